"""Soft maps: the filter of images, in float; the same part of the scene at any size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from packer.pixels.resampling import place_soft, resize
from packer.pixels.row_placement import FITS, ImagePlacement


def smooth(height: int, width: int) -> NDArray[Any]:
    """Values from 0 to 200, float32, that change slowly, by place in the scene."""
    y, x = np.mgrid[0:height, 0:width]
    values = 100 + 50 * (np.sin(3 * (y + 0.5) / height) + np.cos(4 * (x + 0.5) / width))
    return values.astype(np.float32)


def placed(values: NDArray[Any], fit: str, source: tuple[int, int], size: tuple[int, int]) -> NDArray[Any]:
    out = np.zeros((*size, *values.shape[2:]), values.dtype)
    place_soft(values, ImagePlacement.for_fit(fit, source, size), out)
    return out


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("size", [(16, 16), (24, 40), (90, 70)])
def test_bytes_are_those_of_images_to_their_rounding(fit: str, size: tuple[int, int]) -> None:
    values = np.random.default_rng(0).integers(0, 256, (50, 65), np.uint8)
    geometry = ImagePlacement.for_fit(fit, values.shape, size)
    expected = np.zeros((*size, 1), np.uint8)
    resize(values[..., None], geometry.box, geometry.target.cut_view(expected))
    made = placed(values, fit, (50, 65), size).astype(int)
    away = np.abs(made - expected[..., 0])
    assert away.max() <= 2  # images are rounded twice, and of few taps have weights in 256ths
    assert away.mean() < 0.4
    assert made.max() > 100


@pytest.mark.parametrize(("dtype", "level"), [("u1", 1.0), ("u2", 1.0), (">u2", 1.0), ("f4", 1e-3)])
def test_shrunk_values_are_means(dtype: str, level: float) -> None:
    """The mean of a map stays, also of one of two channels; taking the nearest pixel would not keep it."""
    values = np.random.default_rng(1).uniform(0, 255, (96, 96, 2)).astype(dtype)
    out = np.zeros((6, 6, 2), np.dtype(dtype).newbyteorder("<"))
    place_soft(values, ImagePlacement.for_fit("stretch", (96, 96), (6, 6)), out)
    for channel in range(2):
        means = values[..., channel].astype(float).reshape(6, 16, 6, 16).mean(axis=(1, 3))
        # The triangle reaches as far again as the square of 16 pixels: of noise both are near the middle.
        assert np.abs(out[..., channel] - means).mean() < 8
        assert abs(out[..., channel].mean() - means.mean()) < 3
        image = Image.fromarray(np.ascontiguousarray(values[..., channel], np.float32))
        expected = np.asarray(image.resize((6, 6), Image.Resampling.BILINEAR))
        assert np.abs(out[..., channel] - expected).max() <= level / 2 + 1e-3


@pytest.mark.parametrize("fit", ["crop", "stretch"])
@pytest.mark.parametrize("other", [(40, 60), (80, 120), (20, 30), (13, 29)])
def test_maps_of_another_size_show_the_same_part(fit: str, other: tuple[int, int]) -> None:
    """Of a picture of 40 x 60, whose crop begins in the middle of a pixel of some of the maps."""
    expected = placed(smooth(400, 600), fit, (40, 60), (16, 16))
    made = placed(smooth(*other), fit, (40, 60), (16, 16))
    assert np.abs(made - expected).max() < 3


def test_a_map_of_the_size_of_its_place_is_copied_exactly() -> None:
    values = np.random.default_rng(2).normal(size=(20, 30)).astype("f4")
    values[3, 4:7] = np.nan, np.inf, 3e38
    assert np.array_equal(placed(values, "stretch", (20, 30), (20, 30)), values, equal_nan=True)
    cut = placed(values, "crop", (20, 30), (20, 20))
    assert np.array_equal(cut, values[:, 5:25], equal_nan=True)
    bars = placed(values, "pad", (20, 30), (30, 30))
    assert np.array_equal(bars[5:25], values, equal_nan=True)
    assert not bars[:5].any()
    assert not bars[25:].any()


def test_what_is_resampled_from_nan_is_nan() -> None:
    """And the values beside it are what they would be without it."""
    values = smooth(96, 96)
    expected = placed(values, "stretch", (96, 96), (48, 48))
    values[:, 48:] = np.nan
    made = placed(values, "stretch", (96, 96), (48, 48))
    assert np.isnan(made[:, 24:]).all()
    assert np.array_equal(made[:, :22], expected[:, :22])


def test_a_map_far_smaller_than_its_image_is_read_within_a_pixel() -> None:
    values = np.array([[0, 100], [0, 100]], "f4")
    made = placed(values, "crop", (10, 1000), (8, 8))
    assert np.array_equal(made, np.sort(made, axis=1))
    assert 49 < made.min() <= made.max() <= 51
