"""Pad: as torchvision and NumPy pad, in a pass with its neighbours; masks, boxes and points with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from packer.augment import (
    CenterCrop,
    LetterBox,
    Normalize,
    Pad,
    Pipeline,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomRotation,
    parse,
)
from tests.augment.conftest import noise_images, one, refusal, separately, smooth_images

MODES = ("constant", "edge", "reflect", "symmetric")
PADDINGS: list[Any] = [3, [2], (2, 5), (1, 0, 4, 7), 0]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("padding", PADDINGS)
def test_images_and_masks_are_torchvisions_to_the_bit(
    padding: Any, mode: str, implementation: str, torchvision: Any
) -> None:
    images = noise_images(5, 3, 9, 10)
    masks = noise_images(5, 2, 9, 10, seed=1).to(torch.int64)
    pipeline = one(Pad(padding, 7, mode), images, mask_fill=5)
    params = pipeline.sample(np.arange(5))
    expected = torchvision.functional.pad(images, padding, 7, mode)
    assert torch.equal(pipeline.apply(images, params), expected)
    assert tuple(expected.shape[1:]) == pipeline.output_shape
    moved = pipeline.apply_masks(masks, params)
    assert torch.equal(moved, torchvision.functional.pad(masks, padding, 5, mode))


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_a_fill_for_each_channel_is_torchvisions(
    channels: int, implementation: str, torchvision: Any
) -> None:
    images = noise_images(3, channels, 6, 7)
    fill = tuple(range(9, 9 + channels))
    found = one(Pad((2, 3), fill), images)(images, np.arange(3))
    assert torch.equal(found, torchvision.functional.pad(images, [2, 3], list(fill)))


def test_boxes_and_points_are_torchvisions(torchvision: Any) -> None:
    from torchvision import tv_tensors

    boxes = torch.tensor([[0.0, 0, 4, 5], [3, 2, 10, 9]])
    points = torch.tensor([[0.0, 0], [10, 9], [4.5, 3.25]])
    pad = torchvision.Pad((2, 3, 5, 1))
    pipeline = Pipeline([Pad((2, 3, 5, 1))], (3, 9, 10))
    found = pipeline.apply_boxes(boxes[None], [{}])[0]
    assert torch.equal(found, pad(tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(9, 10))))
    found = pipeline.apply_keypoints(points[None], [{}])[0]
    assert torch.equal(found, pad(tv_tensors.KeyPoints(points, canvas_size=(9, 10))))


@pytest.mark.parametrize("mode", MODES)
def test_what_stands_around_it_sees_the_padding_as_it_was_made(mode: str, implementation: str) -> None:
    images = noise_images(20, 3, 9, 10)
    for stack in (
        [Pad(4, 9, mode), CenterCrop(13)],
        [RandomHorizontalFlip(), Pad((3, 1), 9, mode), RandomHorizontalFlip()],
        [CenterCrop(6), Pad(3, 9, mode), Pad((2, 0, 0, 1), 9, mode)],
    ):
        pipeline = Pipeline(stack, (3, 9, 10))
        params = pipeline.sample(np.arange(20))
        expected = separately(stack, images, params)
        assert torch.equal(pipeline.apply(images, params), expected)


def test_it_shares_the_pass_of_its_neighbours() -> None:
    def passes(*transforms: Any) -> int:
        return Pipeline([*transforms, Normalize(0.5, 0.5)], (3, 32, 32)).stages.count("pass")

    assert passes(Pad(4), RandomResizedCrop(16)) == 1
    assert passes(Pad(4), RandomRotation(10)) == 1
    assert passes(Pad(4, padding_mode="symmetric"), CenterCrop(20)) == 1
    assert passes(Pad(4, padding_mode="symmetric"), RandomRotation(10)) == 2


def test_mirrors_reach_any_distance_where_numpys_do(implementation: str) -> None:
    """torchvision stops at the image's own size."""
    images = noise_images(2, 3, 4, 5)
    found = one(Pad((13, 11), padding_mode="symmetric"), images)(images, np.arange(2))
    expected = np.pad(images.numpy(), ((0, 0), (0, 0), (11, 11), (13, 13)), "symmetric")
    np.testing.assert_array_equal(found.numpy(), expected)


def test_an_image_of_one_pixel_is_continued_by_it(implementation: str) -> None:
    images = noise_images(2, 3, 1, 1)
    for mode in ("edge", "symmetric"):
        found = one(Pad(2, padding_mode=mode), images).apply(images, [{}])
        assert torch.equal(found, images.expand(2, 3, 5, 5))


def test_the_text_names_it() -> None:
    (pad,) = parse("Pad((1, 2), padding_mode='symmetric')")
    assert isinstance(pad, Pad)
    assert (pad.padding, pad.padding_mode) == ((1, 2, 1, 2), "symmetric")


MARGINS = "one, two or four whole numbers from 0 up are allowed. Pass (left, top, right, bottom)."


@pytest.mark.parametrize(
    ("attempt", "sentence"),
    [
        (lambda: Pad(-1), f"Pad: padding is -1; {MARGINS}"),
        (lambda: Pad((1, 2, 3)), f"Pad: padding is (1, 2, 3); {MARGINS}"),
        (lambda: Pad(None), f"Pad: padding is None; {MARGINS}"),  # type: ignore[arg-type]
        (
            lambda: Pad(1, padding_mode="wrap"),
            "Pad: padding_mode is 'wrap'; 'constant', 'edge', 'reflect', 'symmetric' are allowed. Pass one of them.",
        ),
        (
            lambda: Pipeline([Pad((9, 2), padding_mode="reflect")], (3, 9, 9)),
            "Pad: padding is (9, 2, 9, 2) and the images are 9x9; reflect allows less than their height and width. "
            "Pad less, or with padding_mode='edge'.",
        ),
        (
            lambda: Pipeline([Pad(2, 300)], (3, 9, 9)),
            "Pad: fill is 300.0 and the images' values are 0 to 255; those are allowed. "
            "Pass it in the images' own scale.",
        ),
    ],
)
def test_mistakes_are_sentences(attempt: Any, sentence: str) -> None:
    assert refusal(attempt) == sentence


@pytest.mark.parametrize("options", [{}, {"scaleup": False}, {"center": False}])
@pytest.mark.parametrize("size", [(24, 24), (48, 41), (61, 30), (9, 40)])
def test_letterboxes_are_resized_and_padded_as_ultralytics_does(
    size: tuple[int, int], options: dict[str, bool], implementation: str, torchvision: Any
) -> None:
    """By its arithmetic, and torchvision's resize: pixels to one level."""
    images = smooth_images(4, 3, 31, 40)
    pipeline = one(LetterBox(size, **options), images)
    ratio = min(size[0] / 31, size[1] / 40)
    if "scaleup" in options:
        ratio = min(ratio, 1.0)
    height, width = round(31 * ratio), round(40 * ratio)
    top, left = (round((all_ - own) / 2 - 0.1) for all_, own in zip(size, (height, width), strict=True))
    if "center" in options:
        top = left = 0
    margins = [left, top, size[1] - width - left, size[0] - height - top]
    f = torchvision.functional
    expected = f.pad(f.resize(images, [height, width]), margins, 114)
    made = pipeline(images, np.arange(4))
    assert (made.int() - expected.int()).abs().max() <= 1
    padding = f.pad(torch.zeros(1, height, width), margins, 1) == 1
    assert (made == 114)[:, :, padding[0]].all()
    boxes = pipeline.apply_boxes(torch.tensor([[[4.0, 3, 30, 31]]]), [{}])[0, 0]
    scaled = torch.tensor([4.0, 3, 30, 31]) * torch.tensor([width / 40, height / 31] * 2)
    torch.testing.assert_close(boxes, scaled + torch.tensor([left, top] * 2), atol=1e-3, rtol=0)
    assert pipeline.stages == ("pass",)
