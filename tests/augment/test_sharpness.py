"""RandomAdjustSharpness against Pillow's and float64 sums."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance
from torch import Tensor

from packer.augment import Pipeline, RandomAdjustSharpness, ToDtype
from tests.augment.conftest import refusal


def images_of(channels: int, height: int = 40, width: int = 31, count: int = 5) -> Tensor:
    """Ramps with noise, uint8 [N, C, H, W], channels_last."""
    draws = np.random.default_rng(channels)
    ramp = np.linspace(0, 200, width)[None, None, :, None]
    pixels = ramp + draws.normal(0, 40, (count, height, width, channels))
    return torch.from_numpy(pixels.clip(0, 255).astype(np.uint8)).permute(0, 3, 1, 2)


@pytest.mark.parametrize("factor", [0.0, 0.1, 0.5, 1.0, 1.9, 3.0])
@pytest.mark.parametrize("channels", [1, 3])
def test_it_is_pillows_within_one(factor: float, channels: int) -> None:
    images = images_of(channels)
    made = Pipeline([RandomAdjustSharpness(factor, 1)], (channels, 40, 31))(images, np.arange(5))
    for image, found in zip(images, made, strict=True):
        pillow = Image.fromarray(image.permute(1, 2, 0).numpy().squeeze())
        expected = np.asarray(ImageEnhance.Sharpness(pillow).enhance(factor)).reshape(40, 31, channels)
        # Pillow rounds the smoothed image and the result as it happens; each may move a value by less than one.
        assert np.abs(found.permute(1, 2, 0).numpy().astype(int) - expected).max() <= 1
    assert made.dtype == torch.uint8
    assert made.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("factor", [0.0, 0.25, 1.75, 2.0])
def test_it_is_the_blend_with_the_smoothed_image_and_edges_stay(factor: float) -> None:
    images = images_of(3)
    made = Pipeline([RandomAdjustSharpness(factor, 1)], (3, 40, 31))(images, np.arange(5)).numpy()
    source = images.double().numpy()
    total = 4 * source[:, :, 1:-1, 1:-1]
    for i in range(3):
        for j in range(3):
            total = total + source[:, :, i : i + 38, j : j + 29]
    smooth = np.rint(total / 13)
    expected = source.copy()
    inner = factor * source[:, :, 1:-1, 1:-1] + (1 - factor) * smooth
    expected[:, :, 1:-1, 1:-1] = np.floor(inner.clip(0, 255))  # factors are exact in binary
    assert np.array_equal(made, expected)


@pytest.mark.parametrize("factor", [0.0, 3.0])
def test_a_fourth_channel_is_kept(factor: float) -> None:
    images = images_of(4)
    made = Pipeline([RandomAdjustSharpness(factor, 1)], (4, 40, 31))(images, np.arange(5))
    assert torch.equal(made[:, 3], images[:, 3])
    alone = Pipeline([RandomAdjustSharpness(factor, 1)], (3, 40, 31))(images[:, :3], np.arange(5))
    assert torch.equal(made[:, :3], alone)


def test_images_without_an_inside_stay() -> None:
    images = images_of(3, 2, 31)
    assert torch.equal(Pipeline([RandomAdjustSharpness(3, 1)], (3, 2, 31))(images, np.arange(5)), images)


def test_p_decides_image_by_image() -> None:
    images = images_of(3, 8, 8, count=400)
    pipeline = Pipeline([RandomAdjustSharpness(0, 0.25)], (3, 8, 8))
    params = pipeline.sample(np.arange(400))
    chosen = params[0]["sharpen"]
    assert 70 < int(chosen.sum()) < 130
    made = pipeline.apply(images, params)
    assert torch.equal(made[~chosen], images[~chosen])
    assert (made[chosen] != images[chosen]).flatten(1).any(1).all()


def test_a_factor_below_0_is_refused() -> None:
    assert refusal(lambda: RandomAdjustSharpness(-1)) == (
        "RandomAdjustSharpness: sharpness_factor is -1; numbers from 0 up are allowed. Pass one of them."
    )


def test_floating_point_images_are_refused() -> None:
    assert refusal(lambda: Pipeline([ToDtype(), RandomAdjustSharpness(2, 1)], (3, 8, 8))) == (
        "RandomAdjustSharpness: the images are torch.float32; torch.uint8 is allowed. Put it before ToDtype and Normalize."
    )
