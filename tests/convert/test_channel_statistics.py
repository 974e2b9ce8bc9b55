from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.convert.pixel_sums import PixelSums


@given(st.integers(0, 2**32), st.sampled_from([1, 3, 4]), st.integers(1, 40), st.integers(1, 40))
def test_sums_are_exact(seed: int, channels: int, height: int, width: int):
    images = np.random.default_rng(seed).integers(0, 256, (3, height, width, channels), dtype=np.uint8)
    sums = PixelSums(channels)
    sums.add(images[:2], 2)
    sums.add(images[2:], 1)
    wide = images.reshape(-1, channels).astype(np.int64)
    assert sums.sums == wide.sum(0).tolist()
    assert sums.squares == (wide**2).sum(0).tolist()
    assert sums.pixels == len(wide)


@pytest.mark.parametrize("value", [0, 1, 254, 255])
def test_sums_of_a_large_constant_image_are_exact(value: int):
    sums = PixelSums(3)
    sums.add(np.full((1, 2048, 2048, 3), value, np.uint8), 1)
    assert sums.sums == [value * 2048**2] * 3
    assert sums.squares == [value**2 * 2048**2] * 3


def test_mean_and_deviation_on_the_scale_to_one_whatever_the_grouping():
    images = np.random.default_rng(0).integers(0, 256, (6, 9, 7, 3), dtype=np.uint8)
    one, other = PixelSums(3), PixelSums(3)
    one.add(images[:4], 4)
    other.add(np.concatenate([images[4:], 0 * images[:1]]), 2)  # the last was skipped
    one.merge(other)
    pixels = images.reshape(-1, 3) / 255.0
    assert one.mean_std(255)["mean"] == pytest.approx(pixels.mean(0))
    assert one.mean_std(255)["std"] == pytest.approx(pixels.std(0))
