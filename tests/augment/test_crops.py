"""packer.augment.geometric: as NumPy pads and slices, fair corners, one sentence a mistake."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given as over
from hypothesis import settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from packer.augment import (
    CenterCrop,
    Normalize,
    Pipeline,
    RandomAffine,
    RandomCrop,
    RandomHorizontalFlip,
    Resize,
    ToDtype,
)
from packer.augment.kinds import Draws
from tests.augment.conftest import assert_fair, forced, given, levels, noise_images, one, refusal, separately

MODES = ("constant", "edge", "reflect", "symmetric")


def naive_crop(
    image: NDArray[Any], y: int, x: int, crop: RandomCrop, fill: float | tuple[float, ...]
) -> NDArray[Any]:
    """Pad one image [C, H, W] with NumPy and slice it."""
    left, top, right, bottom = crop.padding or (0, 0, 0, 0)
    margins = ((top, bottom), (left, right))
    if crop.padding_mode == "constant":
        fills = fill if isinstance(fill, tuple) else (fill,) * len(image)
        planes = [np.pad(p, margins, constant_values=f) for p, f in zip(image, fills, strict=True)]
    else:
        planes = [np.pad(plane, margins, crop.padding_mode) for plane in image]  # type: ignore[call-overload]
    return np.stack(planes)[:, y : y + crop.size[0], x : x + crop.size[1]]


@settings(max_examples=75)
@over(
    channels=st.sampled_from([1, 3, 4]),
    height=st.integers(4, 12),
    width=st.integers(4, 12),
    padding=st.none()
    | st.integers(0, 3)
    | st.tuples(*[st.integers(0, 3)] * 2)
    | st.tuples(*[st.integers(0, 3)] * 4),
    mode=st.sampled_from(MODES),
    fill=st.sampled_from([0, 7, 255]),
    dtype=st.sampled_from([torch.uint8, torch.float32]),
    way=st.sampled_from(["plain", "auto"]),
    data=st.data(),
)
def test_crops_equal_padding_and_slicing_one_by_one(
    channels: int,
    height: int,
    width: int,
    padding: int | tuple[int, ...] | None,
    mode: str,
    fill: int,
    dtype: torch.dtype,
    way: str,
    data: st.DataObject,
) -> None:
    size = data.draw(st.integers(1, 4) | st.tuples(st.integers(1, height), st.integers(1, width)))
    value = fill if dtype == torch.uint8 else fill / 255
    crop = RandomCrop(size, padding, padding_mode=mode, fill=value)
    images = noise_images(6, channels, height, width, dtype)[1:]  # not at the start of its memory
    before = images.clone()
    pipeline = one(crop, images)
    params = pipeline.sample(np.arange(5), data.draw(st.integers(0, 99)))
    with forced(way):
        crops = pipeline.apply(images, params)
    for i, image in enumerate(images.numpy()):
        expected = naive_crop(image, int(params[0]["top"][i]), int(params[0]["left"][i]), crop, value)
        np.testing.assert_array_equal(crops[i].numpy(), expected)
    assert tuple(crops.shape[1:]) == pipeline.output_shape == (channels, *crop.size)
    assert crops.dtype == dtype
    assert torch.equal(images, before)


@pytest.mark.parametrize("mode", ["constant", "edge"])
def test_padding_may_be_wider_than_the_image(mode: str, implementation: str) -> None:
    images = noise_images(40, 3, 4, 5)
    crop = RandomCrop(3, padding=(9, 7), padding_mode=mode, fill=(1, 2, 3))
    pipeline = one(crop, images)
    params = pipeline.sample(np.arange(40))
    for image, result, top, left in zip(
        images.numpy(), pipeline.apply(images, params).numpy(), *params[0].values(), strict=True
    ):
        np.testing.assert_array_equal(result, naive_crop(image, int(top), int(left), crop, (1, 2, 3)))


@pytest.mark.parametrize("mode", MODES)
def test_what_follows_sees_the_padding_as_it_was_made(mode: str, implementation: str) -> None:
    """A crop, a flip or another padding after one that padded: the same pixels as one after the other."""
    images = noise_images(60, 3, 9, 10)
    pad = RandomCrop((13, 12), padding=4, padding_mode=mode, fill=9)
    for after in (
        [CenterCrop(3)],
        [RandomCrop((4, 3))],
        [RandomHorizontalFlip(), RandomCrop(2)],
        [RandomCrop(5), RandomCrop(8, padding=3, padding_mode=mode, fill=9)],
        [RandomCrop(5), RandomCrop(8, padding=3, padding_mode="edge")],
    ):
        for stack in ([pad, *after], [*after[:-1], pad, after[-1]] if len(after) == 1 else [pad, *after]):
            pipeline = Pipeline(stack, (3, 9, 10))
            params = pipeline.sample(np.arange(60))
            assert torch.equal(pipeline.apply(images, params), separately(stack, images, params))


def test_a_crop_of_nothing_but_padding_can_be_resized(implementation: str) -> None:
    images = noise_images(2, 3, 6, 6)
    stack = [RandomCrop(4, padding=20, fill=7), Resize(8)]
    pipeline = Pipeline(stack, (3, 6, 6))
    corners = [*given(top=[0, 40], left=[41, 12]), {}]
    assert pipeline.apply(images, corners).unique().tolist() == [7]


@pytest.mark.parametrize(
    ("padding", "sides"),
    [
        (None, None),
        (2, (2, 2, 2, 2)),
        ([3], (3, 3, 3, 3)),
        ((1, 2), (1, 2, 1, 2)),
        ((1, 2, 3, 4), (1, 2, 3, 4)),
    ],
)
def test_padding_is_read_as_torchvision_reads_it(padding: Any, sides: tuple[int, ...] | None) -> None:
    crop = RandomCrop(4, padding)
    assert crop.padding == sides


def test_every_place_is_equally_likely_and_top_does_not_tell_left() -> None:
    # 6 tops times 7 lefts.
    draws = RandomCrop((28, 27), padding=(0, 0, 1, 1)).sample(
        Draws(np.arange(42_000), 5, 0, 0, "RandomCrop"), (3, 32, 32)
    )
    assert draws["top"].max() == 5
    assert draws["left"].max() == 6
    assert_fair(np.bincount(draws["top"] * 7 + draws["left"], minlength=42))


def test_a_crop_of_the_whole_image_is_the_image(implementation: str) -> None:
    images = noise_images(3, 3, 6, 5)
    for crop in (RandomCrop((6, 5)), CenterCrop((6, 5))):
        assert torch.equal(one(crop, images)(images, np.arange(3)), images)


@pytest.mark.parametrize("size", [(9, 9), (8, 9), (9, 8), (6, 7), (1, 1), (2, 3), (5, 6)])
def test_the_middle_is_where_torchvision_cuts_it(size: tuple[int, int], implementation: str) -> None:
    images = noise_images(3, 3, 9, 9)
    top, left = (int(round((9 - side) / 2)) for side in size)  # noqa: RUF046
    middle = one(CenterCrop(size), images)(images, np.arange(3))
    assert torch.equal(middle, images[:, :, top : top + size[0], left : left + size[1]])


def test_no_images_give_no_crops(implementation: str) -> None:
    images = noise_images(0, 3, 9, 9)
    for crop in (RandomCrop(4, padding=2), CenterCrop(4)):
        assert one(crop, images)(images, np.arange(0)).shape == (0, 3, 4, 4)


@pytest.mark.parametrize(
    ("attempt", "sentence"),
    [
        (
            lambda: Pipeline([RandomCrop(9)], (3, 8, 8)),
            "RandomCrop: size is 9x9 and the images are 8x8; up to 8x8 is allowed. "
            "Pass a smaller size, more padding, or pad_if_needed=True.",
        ),
        (
            lambda: Pipeline([RandomCrop((4, 13), 2)], (3, 8, 8)),
            "RandomCrop: size is 4x13 and the images are with their padding 12x12; up to 12x12 is allowed. "
            "Pass a smaller size, more padding, or pad_if_needed=True.",
        ),
        (
            lambda: Pipeline([RandomCrop(6), RandomCrop(8)], (3, 9, 9)),
            "RandomCrop: size is 8x8 and the images are 6x6; up to 6x6 is allowed. "
            "Pass a smaller size, more padding, or pad_if_needed=True.",
        ),
        (
            lambda: Pipeline([CenterCrop((5, 9))], (3, 8, 8)),
            "CenterCrop: size is 5x9 and the images are 8x8; up to 8x8 is allowed. Pass a smaller size, or Resize first.",
        ),
        (
            lambda: RandomCrop(4, 2, padding_mode="wrap"),
            "RandomCrop: padding_mode is 'wrap'; 'constant', 'edge', 'reflect', 'symmetric' are allowed. Pass one of them.",
        ),
        (
            lambda: RandomCrop(4, 2, fill="black"),
            "RandomCrop: fill is 'black'; a number, or one a channel, is allowed. Pass such.",
        ),
        (
            lambda: RandomCrop(4, 2, fill=[0, None]),
            "RandomCrop: fill is [0, None]; a number, or one a channel, is allowed. Pass such.",
        ),
        (
            lambda: Pipeline([RandomCrop(4, 2, fill=(1, 2))], (3, 8, 8)),
            "RandomCrop: fill has 2 numbers and the images 3 channels; one number, or one a channel, is allowed. "
            "Pass as many as there are channels.",
        ),
        (
            lambda: Pipeline([RandomCrop(4, 2, fill=256)], (3, 8, 8)),
            "RandomCrop: fill is 256.0 and the images' values are 0 to 255; those are allowed. "
            "Pass it in the images' own scale.",
        ),
        (
            lambda: Pipeline([RandomCrop(4, 2, fill=-1)], (3, 8, 8)),
            "RandomCrop: fill is -1.0 and the images' values are 0 to 255; those are allowed. "
            "Pass it in the images' own scale.",
        ),
        (
            lambda: Pipeline([RandomCrop(4, 2, fill=127)], (3, 8, 8), dtype=torch.float32),
            "RandomCrop: fill is 127.0 and the images' values are 0 to 1; those are allowed. "
            "Pass it in the images' own scale.",
        ),
    ],
)
def test_mistakes_are_sentences(attempt: Any, sentence: str) -> None:
    assert refusal(attempt) == sentence


@pytest.mark.parametrize("padding", [(0, 8, 0, 0), (5, 0, 0, 0)])
def test_reflection_deeper_than_the_image_is_refused(padding: tuple[int, ...]) -> None:
    assert refusal(lambda: Pipeline([RandomCrop(4, padding, padding_mode="reflect")], (3, 8, 5))) == (
        f"RandomCrop: padding is {padding} and the images are 8x5; reflect allows less than their height and "
        "width. Pad less, or with padding_mode='edge'."
    )


@pytest.mark.parametrize("crop", [RandomCrop, CenterCrop])
@pytest.mark.parametrize("size", [0, -3, (4, 0), (1, 2, 3), (), 2.5, (4, 2.5), "4", None, True])
def test_a_size_that_is_none_is_refused(crop: Any, size: Any) -> None:
    assert refusal(lambda: crop(size)) == (
        f"{crop.__name__}: size is {size!r}; a whole number from 1 up, or two (height, width), are allowed. "
        "Pass the side in pixels."
    )


@pytest.mark.parametrize("padding", [-1, (1, 2, 3), (0, 0, 0, -1), (), 1.5, "2", [None], True, (1, False)])
def test_a_padding_that_is_none_is_refused(padding: Any) -> None:
    assert refusal(lambda: RandomCrop(4, padding)) == (
        f"RandomCrop: padding is {padding!r}; one, two or four whole numbers from 0 up are allowed. "
        "Pass (left, top, right, bottom)."
    )


def test_numpys_whole_numbers_are_sizes_and_paddings() -> None:
    crop = RandomCrop(np.int64(4), padding=np.int32(2))
    assert (crop.size, crop.padding) == ((4, 4), (2, 2, 2, 2))


def test_a_fill_is_in_the_scale_of_the_images_that_are_padded(implementation: str) -> None:
    images = noise_images(8, 3, 4, 4)
    for pad in (RandomCrop(4, padding=9, fill=255), RandomAffine(0, (1, 1), fill=255)):
        pipeline = Pipeline([pad, ToDtype()], (3, 4, 4))
        assert pipeline(images, np.arange(8)).max() == 1


def test_normalised_images_may_be_padded_with_any_number(implementation: str) -> None:
    images = noise_images(8, 1, 4, 4)
    stack = [Normalize([0.5], [0.25]), RandomCrop(4, padding=3, fill=-7.5)]
    pipeline = Pipeline(stack, (1, 4, 4))
    assert -7.5 in levels(pipeline(images, np.arange(8)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [(12, 7), (6, 14), (13, 15), (5, 5)])
def test_images_that_are_too_small_are_padded_as_torchvision_pads_them(
    size: tuple[int, int], mode: str, implementation: str, torchvision: Any
) -> None:
    images = noise_images(20, 3, 9, 10)
    pipeline = one(RandomCrop(size, (1, 0), True, 7, mode), images)
    theirs = torchvision.RandomCrop(size, (1, 0), True, 7, mode)
    params = pipeline.sample(np.arange(20))
    expected = []
    for i in range(20):
        drawn = theirs.make_params([images[i]])  # and the place drawn here
        drawn |= {"needs_crop": True} | {name: int(params[0][name][i]) for name in ("top", "left")}
        expected.append(theirs.transform(images[i], drawn))
    assert torch.equal(pipeline.apply(images, params), torch.stack(expected))
    tops, most = params[0]["top"], abs(size[0] - 9)
    assert (int(tops.min()), int(tops.max())) == (0, most)
