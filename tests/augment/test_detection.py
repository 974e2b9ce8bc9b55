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
    RandomIoUCrop,
    RandomPerspective,
    RandomRotation,
    RandomZoomOut,
    Resize,
    ScaleJitter,
    Transform,
)
from packer.augment.ragged_images import side_by_side
from tests.augment.conftest import assert_alike, refusal, smooth_images

SHAPE = (3, 40, 52)
COUNT = 40
BOXES = torch.tensor([[3.0, 2, 20, 31], [0, 0, 52, 40], [40, 30, 47, 36]])
POINTS = torch.tensor([[3.5, 2.0], [51, 39]])

RECIPES: list[list[Transform]] = [
    [ScaleJitter((32, 48), (0.3, 2)), RandomCrop((36, 44), 1, True, 7), RandomHorizontalFlip()],
    [RandomHorizontalFlip(), RandomZoomOut(7, (1, 3), 0.8), Resize((36, 44))],
    [RandomZoomOut(7, p=1), CenterCrop((36, 44))],
    [RandomZoomOut(7), RandomIoUCrop(), Resize((36, 44)), RandomHorizontalFlip()],
    [RandomHorizontalFlip(), RandomIoUCrop(0.2, 0.7, 0.3, 3, [0.1, 0.2]), RandomCrop((36, 44), 1, True, 7)],
    [
        ScaleJitter((60, 60), (0.5, 2)),
        RandomHorizontalFlip(),
        RandomIoUCrop(),
        RandomCrop((36, 44), 1, True, 7),
    ],
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
        elif isinstance(transform, RandomIoUCrop):
            left, top = its["left"], its["top"]
            if (its["height"], its["width"]) != size:
                if item.ndim == 2:  # as RandomIoUCrop.make_params has it
                    x, y = (item[:, 0] + item[:, 2]) / 2, (item[:, 1] + item[:, 3]) / 2
                    right, bottom = left + its["width"], top + its["height"]
                    its["is_within_crop_area"] = (left < x) & (x < right) & (top < y) & (y < bottom)
                item = v2.RandomIoUCrop().transform(item, its)
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


@pytest.mark.parametrize("transforms", RECIPES, ids=lambda some: "-".join(type(one).__name__ for one in some))
def test_images_boxes_and_points_are_torchvisions(
    transforms: list[Transform], implementation: str, torchvision: Any
) -> None:
    """All pixels to 2 levels, but those next to padding that a resize shrinks: there a straight ramp stands for the filter."""
    from torchvision import tv_tensors

    images = smooth_images(COUNT, *SHAPE)
    pipeline = Pipeline(transforms, SHAPE, implementation=implementation)
    assert pipeline.stages == ("pass",)
    params = pipeline.sample(np.arange(COUNT), 1, boxes=BOXES.expand(COUNT, -1, -1))
    made = pipeline.apply(images, params)
    boxes = pipeline.apply_boxes(BOXES.expand(COUNT, -1, -1), params)
    points = pipeline.apply_keypoints(POINTS.expand(COUNT, -1, -1), params)
    for i, drawn in enumerate(of_image(params, i) for i in range(COUNT)):
        expected = one_by_one(torchvision, transforms, images[i], drawn)
        far = (made[i].int() - expected.int()).abs().amax(dim=0) > 2
        cover = one_by_one(torchvision, transforms, torch.full_like(images[i], 255), drawn)[0]
        shrunk = any(isinstance(one, Resize) for one in transforms)
        edge = (cover > 7) & (cover < 255) if shrunk else torch.tensor(False)
        assert not (far & ~edge).any()
        around = tv_tensors.BoundingBoxes(BOXES, format="XYXY", canvas_size=SHAPE[1:])
        followed = one_by_one(torchvision, transforms, around, drawn).as_subclass(Tensor)
        torch.testing.assert_close(with_area(boxes[i]), with_area(followed), atol=2e-3, rtol=0)
        if any(isinstance(one, RandomIoUCrop) for one in transforms):
            continue  # which drops boxes by their centres, and with them the corners below
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


def test_crops_by_overlap_are_distributed_as_torchvisions(torchvision: Any) -> None:
    from torchvision import tv_tensors

    boxes = torch.tensor([[10.0, 10, 60, 50], [70, 40, 95, 75], [5, 60, 15, 70]])
    given = tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(80, 100))
    whole = {"top": 0, "left": 0, "height": 80, "width": 100}
    names = list(whole)
    torch.manual_seed(0)
    drawn = [torchvision.RandomIoUCrop().make_params([given]) for _ in range(150)]
    theirs = np.array([[(whole | params)[name] for name in names] for params in drawn])
    pipeline = Pipeline([RandomIoUCrop(), Resize((9, 9))], (3, 80, 100))
    params = pipeline.sample(np.arange(4_000), boxes=boxes.expand(4_000, -1, -1))[0]
    mine = np.stack([params[name].numpy() for name in names], axis=1)
    for one, other in zip(mine.T, theirs.T, strict=True):
        assert_alike(one, other)
    assert_alike(mine[:, 2] * mine[:, 3], theirs[:, 2] * theirs[:, 3])
    kept = [3 if not params else int(params["is_within_crop_area"].sum()) for params in drawn]
    areas = pipeline.apply_boxes(
        boxes.expand(4_000, -1, -1), pipeline.sample(np.arange(4_000), boxes=boxes.expand(4_000, -1, -1))
    )
    mine_kept = ((areas[..., 2] - areas[..., 0]) > 1e-3).sum(dim=1)
    assert_alike(mine_kept.numpy(), np.array(kept))


def test_a_draw_is_of_the_row_and_its_boxes_alone() -> None:
    """Whatever is drawn beside it; without a box in the image, and where none can fit, images stay."""
    draws = np.random.default_rng(0)
    corners = [draws.uniform(0, (40, 30), (count, 2)) for count in (1, 4, 0, 2, 9)]
    boxes: list[Any] = [
        np.concatenate([some, some + draws.uniform(2, 10, some.shape)], axis=1) for some in corners
    ]
    pipeline = Pipeline([RandomZoomOut(), RandomIoUCrop(), Resize((9, 9))], SHAPE)
    rows = np.array([3, 8, 12345678901, 4, 7])
    together = pipeline.sample(rows, 5, boxes=boxes)
    for i, row in enumerate(rows):
        alone = pipeline.sample(rows[i : i + 1], 5, boxes=[torch.tensor(boxes[i])])
        assert [{name: int(drawn[i]) for name, drawn in each.items()} for each in together] == [
            {name: int(drawn[0]) for name, drawn in each.items()} for each in alone
        ], row
    assert (together[1]["width"][2], together[1]["height"][2]) == (
        together[0]["width"][2],
        together[0]["height"][2],
    )
    never = Pipeline([RandomIoUCrop(sampler_options=[0.99], max_scale=0.9), Resize((9, 9))], SHAPE)
    assert never.sample(np.arange(2), boxes=[[[0, 0, 5, 5]]] * 2)[0]["width"].tolist() == [52, 52]


def test_overlaps_are_as_large_as_asked_for() -> None:
    box = np.array([[8.0, 6, 40, 34]])
    pipeline = Pipeline([RandomIoUCrop(sampler_options=[0.6]), Resize((9, 9))], SHAPE)
    (drawn, _) = pipeline.sample(np.arange(300), boxes=[box] * 300)
    top, left, height, width = (drawn[name].numpy() for name in ("top", "left", "height", "width"))
    across = np.minimum(left + width, 40) - np.maximum(left, 8)
    down = np.minimum(top + height, 34) - np.maximum(top, 6)
    overlap = across * down / (32 * 28 + width * height - across * down)
    assert overlap.min() >= 0.6
    assert overlap.min() < 0.62
    assert 0.5 <= (width / height).min() <= (width / height).max() <= 2


LATE = (
    "RandomResizedCrop(size), Resize((height, width)), LetterBox(size), CenterCrop(size) and RandomCrop(size, pad_if_needed=True) "
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
        *(
            (
                lambda before=before: [before, RandomIoUCrop(), Resize((9, 9))],
                "RandomIoUCrop: another pass moves the images before it; colours, and flips, padding, crops and one resize that "
                "share its pass, are allowed there. Put it first.",
            )
            for before in (RandomRotation(9), RandomIoUCrop(), RandomPerspective())
        ),
        (
            lambda: [RandomIoUCrop(sampler_options=[])],
            "RandomIoUCrop: sampler_options is []; a list of numbers from 0 up is allowed. Pass overlaps, and 1 for images "
            "as they are.",
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


@pytest.mark.parametrize("boxes", [None, [[[0.0, 0, 1, 1]]], [[0, 0, 1], [0, 0, 1]]])
def test_boxes_are_asked_for(boxes: Any) -> None:
    pipeline = Pipeline([RandomIoUCrop(), Resize((9, 9))], SHAPE)
    assert "an array [k, 4] for each of 2 images, left, top, right, bottom, is needed. Pass" in refusal(
        lambda: pipeline.sample(np.arange(2), boxes=boxes)
    )


def test_masks_of_images_that_differ_in_size_go_with_them() -> None:
    draws, sizes = np.random.default_rng(0), [(40, 52), (31, 20), (64, 48)]
    images = [draws.integers(1, 256, (*size, 3), dtype=np.uint8) for size in sizes]
    transforms = [RandomZoomOut(), RandomIoUCrop(), Resize((20, 24), "nearest"), RandomHorizontalFlip()]
    pipeline = Pipeline(transforms, (3, None, None))
    boxes = [np.array([[2.0, 3, 18, 21]])] * 3
    drawn = pipeline.prepare(
        pipeline.sample(np.arange(3), 2, sizes=np.array(sizes), boxes=boxes), sizes=np.array(sizes)
    )
    masks = torch.empty(3, 20, 24, dtype=torch.uint8)
    pipeline.begin_masks(side_by_side([image[:, :, :1] for image in images]), drawn, masks)
    made = pipeline.begin(side_by_side(images), drawn)
    assert torch.equal(masks, made[:, 0])
    assert torch.equal(pipeline.apply_masks(masks, drawn), masks)
    assert len(made.unique()) > 99
