"""packer.augment.annotations: what is painted into an image lies where its box and its points went."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from packer.augment import (
    CenterCrop,
    ColorJitter,
    CutMix,
    Normalize,
    Pipeline,
    RandomAffine,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomRotation,
    RandomVerticalFlip,
    Resize,
    Transform,
)
from packer.augment.annotations import moved_lists
from tests.augment.conftest import given, refusal

SHAPE = (1, 48, 56)
COUNT = 40

STRAIGHT: list[list[Transform]] = [
    [RandomHorizontalFlip(), RandomVerticalFlip()],
    [RandomCrop(32)],
    [RandomCrop((40, 44), padding=(6, 4))],
    [CenterCrop(30), RandomCrop(36, padding=5)],
    [Resize((40, 90))],
    [RandomResizedCrop((40, 52), (0.4, 1.0))],
    [RandomResizedCrop(40, (0.4, 1.0)), RandomCrop(40, padding=6), RandomHorizontalFlip()],
]
TURNED: list[list[Transform]] = [
    [RandomRotation(60, "bilinear")],
    [RandomAffine(40, (0.1, 0.2), (0.7, 1.4), (-15, 15, -15, 15), "bilinear")],
    [RandomHorizontalFlip(), RandomResizedCrop(44, (0.5, 1.0)), RandomRotation(45, "bilinear")],
    [RandomRotation(30, "bilinear"), ColorJitter(hue=0.1), CenterCrop(36)],
    [RandomCrop(40), RandomRotation(90, "bilinear"), RandomCrop(40, padding=5), Resize((30, 60))],
]


def stack(transforms: list[Transform]) -> Pipeline:
    return Pipeline(transforms, SHAPE)


def draws() -> np.random.Generator:
    return np.random.default_rng(3)


@pytest.mark.parametrize("transforms", STRAIGHT + TURNED)
def test_a_painted_blob_goes_where_its_point_goes(transforms: list[Transform]) -> None:
    """The centroid of a blob that is seen whole is its point to 0.1 pixels; of one that is not seen there is nothing."""
    centres = draws().integers(5, (51, 43), (COUNT, 1, 2)) + 0.5
    y, x = np.mgrid[0:48, 0:56] + 0.5
    distance = np.hypot(x - centres[..., 0][..., None], y - centres[..., 1][..., None])
    blobs = np.rint(255 * (1 - distance / 3.5).clip(0, 1)).astype(np.uint8)
    around = 5 * np.array([[0, 0], [1, 0], [0, 1], [-1, 0], [0, -1], [1, 1], [1, -1], [-1, 1], [-1, -1]])
    pipeline = stack(transforms)
    params = pipeline.sample(np.arange(COUNT))
    moved = pipeline.apply_keypoints(torch.from_numpy(centres + around), params).numpy()
    images = pipeline.apply(torch.from_numpy(blobs)[:, None], params).numpy()[:, 0].astype(float)
    height, width = images.shape[1:]
    v, u = np.mgrid[0:height, 0:width] + 0.5
    whole = 0
    for image, points in zip(images, moved, strict=True):
        if np.isnan(points).all():
            assert image.max() == 0
        elif not np.isnan(points).any():
            found = np.array([(image * u).sum(), (image * v).sum()]) / image.sum()
            assert np.hypot(*(found - points[0])) < 0.1
            whole += 1
    assert whole > COUNT / 8


@pytest.mark.parametrize("transforms", STRAIGHT + TURNED)
def test_a_painted_box_fills_its_box(transforms: list[Transform]) -> None:
    """To a pixel, or one and a half if turned, if it is upright, or seen whole; a turned one that is cut lies within its box."""
    pipeline = stack(transforms)
    corners = draws().integers(0, (48, 40), (COUNT, 2))
    sides = draws().integers(6, 20, (COUNT, 2))
    boxes = np.concatenate([corners, np.minimum(corners + sides, (56, 48))], axis=1).astype(float)
    images = torch.zeros(COUNT, *SHAPE, dtype=torch.uint8)
    for image, (left, top, right, bottom) in zip(images, boxes.astype(int), strict=True):
        image[:, top:bottom, left:right] = 255
    params = pipeline.sample(np.arange(COUNT))
    moved = pipeline.apply_boxes(torch.from_numpy(boxes)[:, None], params).numpy()[:, 0]
    edges = torch.from_numpy(boxes[:, [0, 1, 2, 1, 2, 3, 0, 3]]).view(COUNT, 4, 2)
    whole = ~pipeline.apply_keypoints(edges, params).isnan().any(dim=2).any(dim=1).numpy()
    made = pipeline.apply(images, params).numpy()[:, 0]
    height, width = made.shape[1:]
    turned = transforms in TURNED
    for image, (left, top, right, bottom), all_seen in zip(made, moved, whole, strict=True):
        assert 0 <= left <= right <= width
        assert 0 <= top <= bottom <= height
        # A turned corner is thin: less of it is seen than a quarter of a pixel's brightness.
        rows, columns = np.nonzero(image > (40 if turned else 127))
        if len(rows) == 0:
            assert turned or min(right - left, bottom - top) < 1
            assert not all_seen
            continue
        near = 1.5 if turned else 1.01
        found = np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
        assert (found[:2] >= np.array([left, top]) - near).all()
        assert (found[2:] <= np.array([right, bottom]) + near).all()
        if not turned or all_seen:
            np.testing.assert_allclose(found, [left, top, right, bottom], rtol=0, atol=near)
    assert whole.sum() > COUNT / 10


def test_points_and_boxes_are_moved_exactly() -> None:
    pipeline = Pipeline([RandomResizedCrop((20, 40))], (3, 40, 60))
    params = given(top=[10], left=[20], height=[10], width=[20])
    points = torch.tensor([[[20, 10], [40, 20], [25, 12], [19.9, 12], [25, 20.1], [math.nan, 15]]])
    moved = pipeline.apply_keypoints(points, params)
    nan = math.nan
    expected = [[0, 0], [40, 20], [10, 4], [nan, nan], [nan, nan], [nan, nan]]
    torch.testing.assert_close(moved, torch.tensor([expected]).float(), equal_nan=True)
    boxes = torch.tensor(
        [[[15.0, 5, 25, 15], [30, 12, 50, 14], [0, 0, 10, 10], [20, 10, 40, 20], [50, 0, 55, 40]]]
    )
    moved = pipeline.apply_boxes(boxes, params)
    expected = [[0, 0, 10, 10], [20, 4, 40, 8], [0, 0, 0, 0], [0, 0, 40, 20], [40, 0, 40, 0]]
    torch.testing.assert_close(moved, torch.tensor([expected]).float())


def test_a_turned_box_is_the_upright_box_about_its_corners() -> None:
    pipeline = Pipeline([RandomRotation(45)], (3, 40, 40))
    moved = pipeline.apply_boxes(torch.tensor([[[15.0, 10, 25, 20]]]), given(angle=[90.0]))
    # A quarter counter-clockwise: (x, y) -> (y, 40 - x).
    torch.testing.assert_close(moved, torch.tensor([[[10.0, 15, 20, 25]]]), rtol=0, atol=1e-4)
    moved = pipeline.apply_boxes(torch.tensor([[[15.0, 15, 25, 25]]]), given(angle=[45.0]))
    half = 5 * 2**0.5
    torch.testing.assert_close(
        moved, torch.tensor([[[20 - half, 20 - half, 20 + half, 20 + half]]]), rtol=0, atol=1e-4
    )


def test_what_a_crop_hid_stays_hidden_when_more_is_shown() -> None:
    """A crop and then padding, or a turn, in one pass: the picture ended at the crop."""
    pipeline = Pipeline([CenterCrop(20), RandomCrop(40, padding=10)], (3, 40, 40))
    params = [{}, *given(top=[0], left=[0])]
    points = pipeline.apply_keypoints(torch.tensor([[[5.0, 20], [12, 20]]]), params)
    assert points[0].isnan().tolist() == [[True, True], [False, False]]
    boxes = pipeline.apply_boxes(torch.tensor([[[0.0, 0, 15, 15], [0, 0, 8, 40]]]), params)
    assert boxes.tolist() == [[[10, 10, 15, 15], [10, 10, 10, 10]]]
    pipeline = Pipeline([CenterCrop(20), RandomRotation(45)], (3, 40, 40))
    params = [{}, *given(angle=[45.0])]
    assert pipeline.apply_keypoints(torch.tensor([[[9.0, 20.0]]]), params).isnan().all()
    for hidden in (
        [0.0, 15, 8, 25],
        [15.0, 0, 25, 8],
        [32.0, 15, 40, 25],
        [15.0, 32, 25, 40],
    ):  # each side of the crop
        left, top, right, bottom = pipeline.apply_boxes(torch.tensor([[hidden]]), params)[0, 0].tolist()
        assert (right - left) * (bottom - top) == 0


def test_points_on_an_edge_are_seen_after_any_turn() -> None:
    pipeline = Pipeline([RandomRotation(0)], (3, 40, 40))
    corners = torch.tensor([[[0.0, 0], [40, 0], [40, 40], [0, 40], [20, 40]]]).repeat(4, 1, 1)
    moved = pipeline.apply_keypoints(corners, given(angle=[0.0, 90.0, 180.0, -90.0]))
    assert not moved.isnan().any()
    assert moved.min() >= 0
    assert moved.max() <= 40


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_number_types_and_numbers_of_points_are_kept(dtype: torch.dtype) -> None:
    pipeline = Pipeline([RandomHorizontalFlip(1), Normalize([0.5], [0.5])], SHAPE)
    params = pipeline.sample(np.arange(2))
    for count in (0, 1, 5):
        points = torch.full((2, count, 2), 3, dtype=dtype)
        before = points.clone()
        moved = pipeline.apply_keypoints(points, params)
        assert moved.dtype == dtype
        assert moved.tolist() == [[[53, 3]] * count] * 2
        assert torch.equal(points, before)
        boxes = torch.tensor([2, 3, 5, 7], dtype=dtype).expand(2, count, 4)
        moved = pipeline.apply_boxes(boxes, params)
        assert moved.dtype == dtype
        assert moved.tolist() == [[[51, 3, 54, 7]] * count] * 2


def test_an_empty_pipeline_moves_nothing() -> None:
    pipeline = Pipeline([Normalize([0.5], [0.5])], SHAPE)
    boxes = torch.rand(3, 2, 4)
    assert torch.equal(pipeline.apply_boxes(boxes, pipeline.sample(np.arange(3))), boxes)


@pytest.mark.parametrize(
    "wrong", [torch.zeros(2, 4), torch.zeros(2, 3, 5), torch.zeros(2, 3, 4, dtype=torch.int64)]
)
def test_what_are_no_boxes_is_refused(wrong: Tensor) -> None:
    pipeline = Pipeline([RandomHorizontalFlip()], SHAPE)
    params = pipeline.sample(np.arange(2))
    attempts: list[tuple[Any, int]] = [(pipeline.apply_boxes, 4), (pipeline.apply_keypoints, 2)]
    for (attempt, width), what in zip(attempts, ("boxes", "points"), strict=True):
        assert refusal(lambda attempt=attempt: attempt(wrong, params)) == (
            f"Pipeline: {what} are {wrong.dtype} {list(wrong.shape)}; floating point [N, K, {width}] is allowed. Pass such."
        )


def test_boxes_and_points_are_not_mixed() -> None:
    pipeline = Pipeline([CutMix()], SHAPE)
    params = pipeline.sample(np.arange(2))
    assert refusal(lambda: pipeline.apply_boxes(torch.zeros(2, 1, 4), params)) == (
        "CutMix: boxes cannot be mixed; images and labels are allowed. Leave it out for data with boxes."
    )
    assert refusal(lambda: pipeline.apply_keypoints(torch.zeros(2, 1, 2), params)) == (
        "CutMix: points cannot be mixed; images and labels are allowed. Leave it out for data with points."
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64])
def test_lists_of_boxes_lose_what_is_not_seen_and_their_labels(dtype: torch.dtype) -> None:
    boxes = [
        torch.tensor([[0, 0, 4, 4], [20, 2, 30, 9]], dtype=dtype),
        torch.zeros(0, 4, dtype=dtype),
        torch.tensor([[1, 1, 3, 3]], dtype=dtype),
    ]
    labels = [torch.tensor([7, 8]), torch.zeros(0), torch.tensor([9])]
    pipeline = Pipeline([RandomCrop(16)], SHAPE)
    corner = [{"left": torch.full((3,), 18), "top": torch.zeros(3, dtype=torch.int64)}]
    moved, kept = moved_lists(boxes, {"box_label": labels}, lambda given: pipeline.apply_boxes(given, corner))
    assert [each.tolist() for each in moved] == [[[2, 2, 12, 9]], [], []]
    assert moved[0].dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert [each.tolist() for each in kept["box_label"]] == [[8], [], []]
    assert {each.dtype for each in kept["box_label"]} == {torch.int64}
    assert moved_lists([], {}, lambda given: given) == ([], {})
    nothing, of_nothing = moved_lists(boxes[1:2] * 3, {"box_label": labels[1:2] * 3}, lambda given: given)
    assert [tuple(each.shape) for each in (*nothing, *of_nothing["box_label"])] == [(0, 4)] * 3 + [(0,)] * 3
    assert refusal(lambda: moved_lists(boxes, {"box_area": boxes[:1] * 3}, lambda given: given)) == (
        "augment: 'box_area' of a row has 2 entries for 0 boxes; a field named box_... has an entry for each box. "
        "Give the field another name."
    )
