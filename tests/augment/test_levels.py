"""RandomAutocontrast and RandomEqualize against Pillow's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from torch import Tensor

from packer.augment import Pipeline, RandomAutocontrast, RandomEqualize, ToDtype
from packer.augment.filters import autocontrast, equalized
from tests.augment.conftest import refusal


def images_of(channels: int, count: int = 6, height: int = 50, width: int = 41) -> Tensor:
    """Images of few and of many values, dull and bright, uint8 [N, C, H, W], channels_last."""
    draws = np.random.default_rng(channels)
    middle = draws.uniform(60, 200, (count, 1, 1, channels))
    spread = draws.uniform(1, 60, (count, 1, 1, channels))
    pixels = draws.normal(middle, spread, (count, height, width, channels)).clip(0, 255).astype(np.uint8)
    pixels[0] = 77
    pixels[1] = np.where(pixels[1] > 100, 255, 0)
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)


def pillow(image: Tensor) -> Image.Image:
    return Image.fromarray(image.permute(1, 2, 0).numpy().squeeze())


@pytest.mark.parametrize("channels", [1, 3])
def test_equalize_is_pillows_to_the_bit(channels: int) -> None:
    images = images_of(channels)
    before = images.clone()
    made = Pipeline([RandomEqualize(1)], (channels, 50, 41))(images, np.arange(6))
    for image, found in zip(images, made, strict=True):
        expected = np.asarray(ImageOps.equalize(pillow(image))).reshape(50, 41, channels)
        assert np.array_equal(found.permute(1, 2, 0).numpy(), expected)
    assert made.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(images, before)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    most=st.integers(1, 256),
)
def test_equalize_is_pillows_for_images_of_any_size(seed: int, height: int, width: int, most: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, most, (2, height, width, 1), np.uint8)
    made = equalized(torch.from_numpy(pixels)).numpy()
    for image, found in zip(pixels, made, strict=True):
        assert np.array_equal(found[..., 0], np.asarray(ImageOps.equalize(Image.fromarray(image[..., 0]))))


@pytest.mark.parametrize("channels", [1, 3])
def test_autocontrast_is_pillows_within_one(channels: int) -> None:
    images = images_of(channels)
    made = Pipeline([RandomAutocontrast(1)], (channels, 50, 41))(images, np.arange(6))
    for image, found in zip(images, made, strict=True):
        expected = np.asarray(ImageOps.autocontrast(pillow(image))).reshape(50, 41, channels)
        # Both round down; where the quotient is whole, float32 and float64 fall on different sides.
        assert np.abs(found.permute(1, 2, 0).numpy().astype(int) - expected).max() <= 1


def test_autocontrast_reaches_both_ends_and_keeps_flat_channels() -> None:
    images = images_of(3)
    made = autocontrast(images.permute(0, 2, 3, 1)).numpy()
    assert (made[0] == 77).all()
    assert (made[1:].min(axis=(1, 2)) == 0).all()
    assert (made[1:].max(axis=(1, 2)) >= 254).all()


def test_autocontrast_is_the_float32_quotient_rounded_down() -> None:
    images = images_of(3)[2:]
    made = autocontrast(images.permute(0, 2, 3, 1)).numpy()
    source = images.permute(0, 2, 3, 1).numpy().astype(np.float32)
    least, most = source.min(axis=(1, 2), keepdims=True), source.max(axis=(1, 2), keepdims=True)
    step = (most - least) * np.float32(1 / 255)
    assert np.array_equal(made, ((source - least) / step).clip(0, 255).astype(np.uint8))


@pytest.mark.parametrize("operation", [RandomAutocontrast, RandomEqualize])
def test_p_decides_image_by_image(operation: type[RandomEqualize]) -> None:
    images = images_of(3, 300, 9, 9)
    pipeline = Pipeline([operation(0.3)], (3, 9, 9))
    params = pipeline.sample(np.arange(300))
    chosen = params[0]["change"]
    assert 60 < int(chosen.sum()) < 120
    made = pipeline.apply(images, params)
    assert torch.equal(made[~chosen], images[~chosen])
    whole = Pipeline([operation(1)], (3, 9, 9))(images, np.arange(300))
    assert torch.equal(made[chosen], whole[chosen])


@pytest.mark.parametrize("operation", [RandomAutocontrast, RandomEqualize])
def test_floating_point_images_are_refused(operation: type[RandomEqualize]) -> None:
    assert refusal(lambda: Pipeline([ToDtype(), operation(0)], (3, 9, 9))) == (
        f"{operation.__name__}: the images are torch.float32; torch.uint8 is allowed. Put it before ToDtype and Normalize."
    )


@pytest.mark.parametrize("operation", [RandomAutocontrast(1), RandomEqualize(1)])
def test_a_fourth_channel_is_kept(operation: RandomAutocontrast | RandomEqualize) -> None:
    images = images_of(4)
    made = Pipeline([operation], (4, 50, 41))(images, np.arange(6))
    assert torch.equal(made[:, 3], images[:, 3])
    assert torch.equal(made[:, :3], Pipeline([operation], (3, 50, 41))(images[:, :3], np.arange(6)))
    assert made.is_contiguous(memory_format=torch.channels_last)


def test_other_channels_are_refused() -> None:
    assert refusal(lambda: Pipeline([RandomEqualize()], (2, 9, 9))) == (
        "RandomEqualize: the images have 2 channels; 1, 3 and 4 are allowed. "
        "Convert with channels= gray, rgb or rgba."
    )
