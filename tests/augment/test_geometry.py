"""packer.augment.geometry: exact against loops over single images, fair draws, one sentence a mistake."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from packer.augment import RandomCrop, RandomHorizontalFlip
from packer.errors import UsageError
from packer.randomness import key

NUMPY_MODES = {"constant": "constant", "reflect": "reflect", "edge": "edge"}


def make_images(
    count: int, channels: int, height: int, width: int, dtype: torch.dtype = torch.uint8
) -> Tensor:
    """Random images [N, C, H, W] with channels_last strides."""
    draws = np.random.default_rng(count + channels + height + width)
    pixels = draws.integers(0, 256, (count, height, width, channels), dtype=np.uint8)
    return torch.from_numpy(pixels).to(dtype).permute(0, 3, 1, 2)


def tensors(draws: dict[str, Any]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(draw) for name, draw in draws.items()}


def is_channels_last(images: Tensor) -> bool:
    return images.is_contiguous(memory_format=torch.channels_last)


# --- flip --------------------------------------------------------------------------------------------------


# Image sizes that are and are not whole 64-, 32- and 16-bit words.
@pytest.mark.parametrize("height_width", [(8, 8), (1, 4), (3, 2), (5, 7), (1, 1)])
@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float16])
def test_flip_mirrors_the_drawn_images(
    height_width: tuple[int, int], channels: int, dtype: torch.dtype
) -> None:
    images = make_images(9, channels, *height_width, dtype)
    before = images.clone()
    flip = torch.tensor([True, False, True, True, False, False, True, False, True])
    flipped = RandomHorizontalFlip().apply(images, {"flip": flip})
    for image, result, mirrored in zip(images, flipped, flip.tolist(), strict=True):
        assert torch.equal(result, image.flip(-1) if mirrored else image)
    assert is_channels_last(flipped)
    assert flipped.dtype == dtype
    assert torch.equal(images, before)


def test_flip_takes_part_of_a_batch_and_other_strides() -> None:
    images = make_images(9, 3, 3, 3)
    flip = torch.tensor([True, False, True])
    expected = torch.where(flip[:, None, None, None], images[1:4].flip(-1), images[1:4])
    # Image 1 begins 27 bytes into the memory: no whole word.
    assert torch.equal(RandomHorizontalFlip().apply(images[1:4], {"flip": flip}), expected)
    planes = images[1:4].contiguous()
    assert torch.equal(RandomHorizontalFlip().apply(planes, {"flip": flip}), expected)
    columns = make_images(3, 3, 3, 6)[..., ::2]
    expected = torch.where(flip[:, None, None, None], columns.flip(-1), columns)
    assert torch.equal(RandomHorizontalFlip().apply(columns, {"flip": flip}), expected)


@pytest.mark.parametrize("p", [0.0, 0.3, 0.5, 1.0])
def test_flips_happen_with_probability_p(p: float) -> None:
    rows = np.arange(20_000)
    flip = RandomHorizontalFlip(p).sample(rows, key(1), (3, 8, 8))["flip"]
    assert abs(flip.mean() - p) <= 4 * (p * (1 - p) / len(rows)) ** 0.5
    assert flip.dtype == np.bool_


def test_flips_of_neighbours_and_of_epochs_are_unrelated() -> None:
    rows = np.arange(20_000)
    first, second = (RandomHorizontalFlip().sample(rows, key(epoch), (3, 8, 8))["flip"] for epoch in (0, 1))
    assert abs((first == second).mean() - 0.5) < 0.015
    assert abs((first[1:] == first[:-1]).mean() - 0.5) < 0.015


@pytest.mark.parametrize("p", [-0.1, 1.5, float("nan")])
def test_flip_refuses_what_is_no_probability(p: float) -> None:
    with pytest.raises(UsageError) as error:
        RandomHorizontalFlip(p)
    assert str(error.value) == f"RandomHorizontalFlip: p is {p}; 0 to 1 is allowed. Pass a probability."


# --- crop --------------------------------------------------------------------------------------------------


def naive_crop(image: Tensor, top: int, left: int, crop: RandomCrop, mode: str, fill: float) -> np.ndarray:
    """Pad one image [C, H, W] with NumPy and slice it."""
    widths = ((0, 0), (crop.top, crop.bottom), (crop.left, crop.right))
    more = {"constant_values": fill} if mode == "constant" else {}
    padded = np.pad(image.numpy(), widths, NUMPY_MODES[mode], **more)  # type: ignore[call-overload]
    return np.asarray(padded[:, top : top + crop.height, left : left + crop.width])


@given(
    channels=st.sampled_from([1, 3, 4]),
    height=st.integers(4, 12),
    width=st.integers(4, 12),
    padding=st.none()
    | st.integers(0, 3)
    | st.tuples(*[st.integers(0, 3)] * 2)
    | st.tuples(*[st.integers(0, 3)] * 4),
    mode=st.sampled_from(sorted(NUMPY_MODES)),
    fill=st.sampled_from([0, 7, 255]),
    dtype=st.sampled_from([torch.uint8, torch.float32]),
    data=st.data(),
)
def test_crop_equals_padding_and_slicing_one_by_one(
    channels: int,
    height: int,
    width: int,
    padding: int | tuple[int, ...] | None,
    mode: str,
    fill: int,
    dtype: torch.dtype,
    data: st.DataObject,
) -> None:
    size = data.draw(st.integers(1, 4) | st.tuples(st.integers(1, height), st.integers(1, width)))
    crop = RandomCrop(size, padding, padding_mode=mode, fill=fill)
    images = make_images(6, channels, height, width, dtype)[1:]  # not at the start of its memory
    before = images.clone()
    draws = crop.sample(np.arange(5), key("crop", data.draw(st.integers(0, 99))), (channels, height, width))
    crops = crop.apply(images, tensors(draws))
    for i, image in enumerate(images):
        expected = naive_crop(image, draws["top"][i], draws["left"][i], crop, mode, fill)
        np.testing.assert_array_equal(crops[i].numpy(), expected)
    assert tuple(crops.shape[1:]) == crop.output_shape((channels, height, width))
    assert is_channels_last(crops)
    assert crops.dtype == dtype
    assert torch.equal(images, before)


def test_crop_takes_planes() -> None:
    images = make_images(5, 3, 9, 8)
    crop = RandomCrop(5)
    params = tensors(crop.sample(np.arange(5), 3, (3, 9, 8)))
    assert torch.equal(crop.apply(images.contiguous(), params), crop.apply(images, params))


@pytest.mark.parametrize(
    ("padding", "sides"),
    [
        (None, (0, 0, 0, 0)),
        (2, (2, 2, 2, 2)),
        ([3], (3, 3, 3, 3)),
        ((1, 2), (1, 2, 1, 2)),
        ((1, 2, 3, 4), (1, 2, 3, 4)),
    ],
)
def test_padding_is_read_as_torchvision_reads_it(padding: Any, sides: tuple[int, ...]) -> None:
    crop = RandomCrop(4, padding)
    assert (crop.left, crop.top, crop.right, crop.bottom) == sides


def test_every_place_is_equally_likely_and_top_does_not_tell_left() -> None:
    # 36 places: 6 tops times 6 lefts.
    draws = RandomCrop(28, padding=(0, 0, 1, 1)).sample(np.arange(36_000), key(5), (3, 32, 32))
    counts = np.bincount(draws["top"] * 6 + draws["left"], minlength=36)
    assert len(counts) == 36
    assert ((counts - 1000) ** 2 / 1000).sum() < 72  # chi-square, 35 degrees of freedom: 1 in 4,000


def test_a_crop_of_the_whole_image_is_the_image() -> None:
    images = make_images(3, 3, 6, 5)
    crop = RandomCrop((6, 5))
    assert torch.equal(crop.apply(images, tensors(crop.sample(np.arange(3), 0, (3, 6, 5)))), images)


@pytest.mark.parametrize(("size", "padding", "room"), [(9, None, "8x8"), ((4, 13), 2, "12x12")])
def test_a_crop_larger_than_the_padded_image_is_refused(size: Any, padding: Any, room: str) -> None:
    crop = RandomCrop(size, padding)
    sentence = (
        f"RandomCrop: size is {crop.height}x{crop.width}; the images allow at most {room}, "
        "their padding included. Crop less, or pad more."
    )
    images = make_images(2, 3, 8, 8)
    for attempt in (
        lambda: crop.output_shape((3, 8, 8)),
        lambda: crop.sample(np.arange(2), 0, (3, 8, 8)),
        lambda: crop.apply(images, {"top": torch.zeros(2).long(), "left": torch.zeros(2).long()}),
    ):
        with pytest.raises(UsageError) as error:
            attempt()
        assert str(error.value) == sentence


@pytest.mark.parametrize("padding", [(0, 8, 0, 0), (5, 0, 0, 0)])
def test_reflection_deeper_than_the_image_is_refused(padding: tuple[int, ...]) -> None:
    with pytest.raises(UsageError) as error:
        RandomCrop(4, padding, padding_mode="reflect").output_shape((3, 8, 5))
    assert str(error.value) == (
        f"RandomCrop: padding is {padding} and the images are 8x5; reflect allows less than their height and "
        "width. Pad less, or with padding_mode='edge'."
    )


@pytest.mark.parametrize("size", [0, (4, 0), (4,), (1, 2, 3)])
def test_crop_refuses_a_size(size: Any) -> None:
    with pytest.raises(UsageError) as error:
        RandomCrop(size)
    assert str(error.value) == (
        f"RandomCrop: size is {size}; a whole number from 1 up, or two (height, width), are allowed. "
        "Pass the side in pixels."
    )


@pytest.mark.parametrize("padding", [-1, (1, 2, 3), (0, 0, 0, -1), ()])
def test_crop_refuses_a_padding(padding: Any) -> None:
    with pytest.raises(UsageError) as error:
        RandomCrop(4, padding)
    assert str(error.value) == (
        f"RandomCrop: padding is {padding}; one, two or four whole numbers from 0 up are allowed. "
        "Pass (left, top, right, bottom)."
    )


def test_crop_refuses_a_padding_mode() -> None:
    with pytest.raises(UsageError) as error:
        RandomCrop(4, 2, padding_mode="symmetric")
    assert str(error.value) == (
        "RandomCrop: padding_mode is 'symmetric'; constant, reflect and edge are allowed. Pass one of them."
    )
