"""Results of a size of their own for each image: as torchvision makes them one by one with the same draws, in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from packer.augment import (
    CenterCrop,
    ColorJitter,
    Pad,
    Pipeline,
    RandomApply,
    RandomCrop,
    RandomHorizontalFlip,
    RandomZoomOut,
    Resize,
    ScaleJitter,
    Transform,
)
from tests.augment.conftest import assert_alike, refusal, smooth_images

SHAPE = (3, 40, 52)
COUNT = 40
BOXES = torch.tensor([[3.0, 2, 20, 31], [0, 0, 52, 40], [40, 30, 47, 36]])
POINTS = torch.tensor([[3.5, 2.0], [51, 39]])

RECIPES: list[list[Transform]] = [
    [ScaleJitter((32, 48), (0.3, 2)), RandomCrop((36, 44), 1, True, 7), RandomHorizontalFlip()],
    [RandomHorizontalFlip(), RandomZoomOut(7, (1, 3), 0.8), Resize((36, 44))],
    [RandomZoomOut(7, p=1), CenterCrop((36, 44))],
]


def one_by_one(v2: Any, transforms: Sequence[Transform], item: Any, drawn: list[dict[str, Any]]) -> Any:
    """What torchvision's operations make of an image or boxes, [C, H, W] or [n, 4], with these draws."""
    for transform, its in zip(transforms, drawn, strict=True):
        size = tuple(item.shape[-2:]) if item.ndim == 3 else item.canvas_size
        if isinstance(transform, ScaleJitter):
            item = v2.ScaleJitter((1, 1)).transform(item, {"size": (its["height"], its["width"])})
        elif isinstance(transform, RandomZoomOut):
            left, top = its["left"], its["top"]
            padding = [left, top, its["width"] - left - size[1], its["height"] - top - size[0]]
            item = v2.RandomZoomOut(transform.fill).transform(item, {"padding": padding})
        elif isinstance(transform, RandomCrop):
            crop = v2.RandomCrop(
                (transform.height, transform.width), 1, True, transform.fill, transform.padding_mode
            )
            params = crop.make_params([torch.empty(1, *size)])
            item = crop.transform(item, params | {"needs_crop": True, "top": its["top"], "left": its["left"]})
        elif isinstance(transform, RandomHorizontalFlip):
            item = v2.functional.horizontal_flip(item) if its["flip"] else item
        elif isinstance(transform, Resize):
            item = v2.functional.resize(item, list(transform.size))
        else:
            assert isinstance(transform, CenterCrop)
            item = v2.functional.center_crop(item, [transform.height, transform.width])
    return item


def with_area(boxes: Tensor) -> Tensor:
    """Boxes [n, 4], those without area 0."""
    return torch.where((boxes[:, 2:] > boxes[:, :2] + 1e-3).all(dim=1, keepdim=True), boxes, 0.0)


def of_image(params: list[dict[str, Tensor]], number: int) -> list[dict[str, Any]]:
    return [{name: drawn[number].item() for name, drawn in each.items()} for each in params]


@pytest.mark.parametrize("transforms", RECIPES, ids=lambda some: type(some[0]).__name__)
def test_images_boxes_and_points_are_torchvisions(
    transforms: list[Transform], implementation: str, torchvision: Any
) -> None:
    """All pixels to 2 levels, but those next to padding that a resize shrinks: there a straight ramp stands for the filter."""
    from torchvision import tv_tensors

    images = smooth_images(COUNT, *SHAPE)
    pipeline = Pipeline(transforms, SHAPE, implementation=implementation)
    assert pipeline.stages == ("pass",)
    params = pipeline.sample(np.arange(COUNT), 1)
    made = pipeline.apply(images, params)
    boxes = pipeline.apply_boxes(BOXES.expand(COUNT, -1, -1), params)
    points = pipeline.apply_keypoints(POINTS.expand(COUNT, -1, -1), params)
    for i, drawn in enumerate(of_image(params, i) for i in range(COUNT)):
        expected = one_by_one(torchvision, transforms, images[i], drawn)
        far = (made[i].int() - expected.int()).abs().amax(dim=0) > 2
        cover = one_by_one(torchvision, transforms, torch.full_like(images[i], 255), drawn)[0]
        edge = (cover > 7) & (cover < 255) if isinstance(transforms[-1], Resize) else torch.tensor(False)
        assert not (far & ~edge).any()
        around = tv_tensors.BoundingBoxes(BOXES, format="XYXY", canvas_size=SHAPE[1:])
        followed = one_by_one(torchvision, transforms, around, drawn).as_subclass(Tensor)
        torch.testing.assert_close(with_area(boxes[i]), with_area(followed), atol=2e-3, rtol=0)
        corners = tv_tensors.BoundingBoxes(
            torch.cat([POINTS - 0.25, POINTS + 0.25], dim=1), format="XYXY", canvas_size=SHAPE[1:]
        )
        left, top, right, bottom = one_by_one(torchvision, transforms, corners, drawn).unbind(-1)
        seen = (right > left) & (bottom > top)
        middle = torch.stack([(left + right) / 2, (top + bottom) / 2], dim=1)
        inside = seen & ~points[i].isnan().any(dim=1)
        assert ((points[i] - middle)[inside].abs() < 0.3).all()
        assert (seen | points[i].isnan().any(dim=1)).all()


def test_sizes_and_places_are_distributed_as_torchvisions(torchvision: Any) -> None:
    image, rows = torch.empty(SHAPE), np.arange(3_000)
    jitter = torchvision.ScaleJitter((320, 480))
    theirs = np.array([jitter.make_params([image])["size"] for _ in rows])
    mine = Pipeline([ScaleJitter((320, 480)), RandomCrop(1)], SHAPE).sample(rows)[0]
    assert_alike(mine["height"].numpy(), theirs[:, 0])
    assert_alike(mine["width"].numpy(), theirs[:, 1])
    zoom = torchvision.RandomZoomOut(side_range=(1.5, 4))
    theirs = np.array([zoom.make_params([image])["padding"] for _ in rows])
    mine = Pipeline([RandomZoomOut(0, (1.5, 4), 1), Resize((9, 9))], SHAPE).sample(rows)[0]
    assert_alike(mine["width"].numpy() - SHAPE[2], theirs[:, 0] + theirs[:, 2])
    for ours, free, their, both in (
        (mine["left"], mine["width"] - SHAPE[2], theirs[:, 0], theirs[:, 0] + theirs[:, 2]),
        (mine["top"], mine["height"] - SHAPE[1], theirs[:, 1], theirs[:, 1] + theirs[:, 3]),
    ):
        assert_alike((ours / free).numpy(), their / both)
    half = Pipeline([RandomZoomOut(), Resize((9, 9))], SHAPE).sample(rows)[0]["width"].numpy()
    assert abs((half > SHAPE[2] + 3).mean() - 0.5 * (1 - 3 / 52 / 3)) < 0.04


LATE = (
    "RandomResizedCrop(size), Resize((height, width)), CenterCrop(size) and RandomCrop(size, pad_if_needed=True) "
    "make them alike"
)


@pytest.mark.parametrize(
    ("transforms", "sentence"),
    [
        (
            lambda: [RandomZoomOut()],
            f"Pipeline: the images differ in size; {LATE}. Add one of them.",
        ),
        (
            lambda: [ScaleJitter((9, 9)), ColorJitter(0.4), Resize((9, 9))],
            f"ColorJitter: takes images of one size, and these differ in size; {LATE}. Put one of them before it.",
        ),
        (
            lambda: [RandomApply([RandomZoomOut()])],
            "RandomApply: RandomZoomOut makes images of random sizes; transforms that keep the size are allowed. "
            "Put it outside.",
        ),
        (
            lambda: [RandomZoomOut(1), Pad(3), Resize((9, 9))],
            "Pipeline: the images differ in size, and one pass cannot make them alike: they are resized twice, or filled "
            "with two colours, or sampled in two ways, before they are; once is allowed. Make them alike by the first "
            "resize, and give all operations before it the same fill.",
        ),
        (
            lambda: [ScaleJitter(9), Resize((9, 9))],
            "ScaleJitter: target_size is 9; two whole numbers from 1 up are allowed. Pass (width, height).",
        ),
        (
            lambda: [RandomZoomOut(side_range=(0.5, 2))],
            "RandomZoomOut: side_range is (0.5, 2); two numbers (low, high) from 1 up are allowed. Pass none below 1.",
        ),
    ],
)
def test_mistakes_are_sentences(transforms: Any, sentence: str) -> None:
    assert refusal(lambda: Pipeline(transforms(), SHAPE)) == sentence


def test_an_image_that_came_out_too_small_for_a_crop_is_told() -> None:
    pipeline = Pipeline([ScaleJitter((8, 8), (1, 1)), RandomCrop(9)], SHAPE)
    assert refusal(lambda: pipeline.sample(np.arange(3))) == (
        "RandomCrop: size is 9x9 and the images are 6x8; up to 6x8 is allowed. Pass a smaller size, more padding, or "
        "pad_if_needed=True."
    )
