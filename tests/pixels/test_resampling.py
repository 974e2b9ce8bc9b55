"""Geometry by markers, fidelity by a float reference."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from packer.pixels.image_decoder import KEEP_BYTES, ScratchBuffers
from packer.pixels.resampling import resize
from packer.pixels.row_placement import FITS, Box, place

RATIOS = (1.1, 1.25, 1.5625, 1.8, 2.0, 2.3, 2.6, 2.7, 3.0, 4.0, 5.5, 8.0, 12.0)


def triangle(source: int, result: int) -> NDArray[np.float64]:
    """Weights [result, source] of the antialiased triangle filter (Pillow's BILINEAR without its rounding)."""
    ratio = source / result
    centres = (np.arange(result)[:, None] + 0.5) * ratio
    weights = np.maximum(0, 1 - np.abs(np.arange(source)[None] + 0.5 - centres) / max(ratio, 1.0))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def reference(pixels: NDArray[np.uint8], height: int, width: int) -> NDArray[np.float64]:
    down, across = triangle(pixels.shape[0], height), triangle(pixels.shape[1], width)
    return np.asarray(np.einsum("ij,jkc,lk->ilc", down, pixels.astype(np.float64), across, optimize=True))


def psnr(pixels: NDArray[np.generic], target: NDArray[np.float64]) -> float:
    return float(10 * np.log10(255**2 / np.mean((np.asarray(pixels, np.float64) - target) ** 2)))


def resized(pixels: NDArray[np.uint8], height: int, width: int, shrunk: int = 1) -> NDArray[np.uint8]:
    result = np.empty((height, width, pixels.shape[2]), np.uint8)
    resize(pixels, Box(0, 0, pixels.shape[0] * shrunk, pixels.shape[1] * shrunk), result, shrunk)
    return result


@pytest.mark.parametrize("ratio", RATIOS)
def test_shrinking_is_faithful_to_the_float_triangle(photo: NDArray[np.uint8], ratio: float) -> None:
    side = round(photo.shape[0] / ratio)
    assert psnr(resized(photo, side, side), reference(photo, side, side)) >= 55


@pytest.mark.parametrize("ratio", RATIOS[1:])
def test_a_filterless_resize_would_fail_that(photo: NDArray[np.uint8], ratio: float) -> None:
    side = round(photo.shape[0] / ratio)
    plain = cv2.resize(photo, (side, side), interpolation=cv2.INTER_LINEAR)
    assert psnr(plain, reference(photo, side, side)) < 47


@pytest.mark.parametrize("size", [(150, 384), (384, 150), (100, 500), (500, 100), (40, 41)])
def test_each_axis_is_filtered_by_its_own_ratio(photo: NDArray[np.uint8], size: tuple[int, int]) -> None:
    assert psnr(resized(photo, *size), reference(photo, *size)) >= 55


def test_enlarging_is_linear_interpolation(photo: NDArray[np.uint8]) -> None:
    small = photo[:64, :48]
    assert np.abs(resized(small, 160, 120) - reference(small, 160, 120)).max() <= 1.5


def test_a_part_is_cut_before_it_is_resized(photo: NDArray[np.uint8]) -> None:
    result = np.empty((70, 60, 3), np.uint8)
    resize(photo, Box(31, 57, 200, 150), result)
    assert np.array_equal(result, resized(photo[31:231, 57:207], 70, 60))


@pytest.mark.parametrize("side", [40, 75, 150])
def test_the_fourth_channel_is_left_out_where_three_are_wanted(photo: NDArray[np.uint8], side: int) -> None:
    padded = np.dstack([photo, np.full(photo.shape[:2], 99, np.uint8)])
    result = np.empty((side, side, 3), np.uint8)
    resize(padded, Box(0, 0, 512, 512), result)
    assert np.array_equal(result, resized(photo, side, side))


def test_a_half_in_integers(photo: NDArray[np.uint8]) -> None:
    """At ratio 2 the triangle is [32, 96, 96, 32] / 256; rows first, each sum rounded, halves up."""
    cut = photo[:40, :40].astype(np.int64)
    rows = np.stack([cut[2 * i - 1 : 2 * i + 3] for i in range(1, 19)])
    rows = (np.einsum("k,ikjc->ijc", [32, 96, 96, 32], rows) + 128) >> 8
    columns = np.stack([rows[:, 2 * i - 1 : 2 * i + 3] for i in range(1, 19)], axis=1)
    expected = (np.einsum("k,ijkc->ijc", [32, 96, 96, 32], columns) + 128) >> 8
    assert np.array_equal(resized(photo[:40, :40], 20, 20)[1:-1, 1:-1], expected)


def test_equal_sides_copy_exactly(photo: NDArray[np.uint8]) -> None:
    assert np.array_equal(resized(photo, *photo.shape[:2]), photo)


def test_a_shrunk_jpeg_of_the_right_size_is_smoothed(photo: NDArray[np.uint8]) -> None:
    assert not np.array_equal(resized(photo, 512, 512, shrunk=2), photo)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_flat_pictures_stay_flat_and_the_result_may_be_a_view(channels: int) -> None:
    canvas = np.zeros((20, 30, channels), np.uint8)
    source = np.full((77, 91, channels), 201, np.uint8)
    resize(source, Box(3, 5, 67, 75), canvas[4:16, 6:26])
    assert (canvas[4:16, 6:26] == 201).all()
    assert canvas.sum() == 12 * 20 * channels * 201


@given(
    height=st.integers(1, 70), width=st.integers(1, 70), rows=st.integers(1, 40), columns=st.integers(1, 40)
)
def test_any_size_becomes_any_size_between_its_extremes(
    height: int, width: int, rows: int, columns: int
) -> None:
    source = np.random.default_rng(height * 71 + width).integers(40, 200, (height, width, 3), dtype=np.uint8)
    result = resized(source, rows, columns)
    assert source.min() - 1 <= result.min()
    assert result.max() <= source.max() + 1
    assert np.abs(result.mean() - reference(source, rows, columns).mean()) < 20


@pytest.mark.parametrize("shape", [(1, 40_000, 3), (40_000, 1, 3), (1, 1, 3)])
def test_lines_and_single_pixels(shape: tuple[int, int, int]) -> None:
    assert (resized(np.full(shape, 90, np.uint8), 16, 16) == 90).all()


@pytest.mark.parametrize(
    ("fit", "source", "result", "box", "target"),
    [
        ("crop", (533, 400), (256, 256), Box(66, 0, 400, 400), Box(0, 0, 256, 256)),
        ("crop", (400, 533), (256, 256), Box(0, 66, 400, 400), Box(0, 0, 256, 256)),
        ("crop", (100, 100), (64, 128), Box(25, 0, 50, 100), Box(0, 0, 64, 128)),
        ("crop", (1, 1000), (8, 8), Box(0, 499, 1, 1), Box(0, 0, 8, 8)),
        ("crop", (1000, 1), (8, 1), Box(496, 0, 8, 1), Box(0, 0, 8, 1)),
        ("pad", (400, 200), (256, 256), Box(0, 0, 400, 200), Box(0, 64, 256, 128)),
        ("pad", (200, 400), (256, 256), Box(0, 0, 200, 400), Box(64, 0, 128, 256)),
        ("pad", (1, 1000), (8, 8), Box(0, 0, 1, 1000), Box(3, 0, 1, 8)),
        ("stretch", (7, 900), (8, 16), Box(0, 0, 7, 900), Box(0, 0, 8, 16)),
    ],
)
def test_place(fit: str, source: tuple[int, int], result: tuple[int, int], box: Box, target: Box) -> None:
    assert place(fit, source, result) == (box, target)


@given(st.sampled_from(FITS), *[st.integers(1, 5000)] * 2, *[st.integers(1, 600)] * 2)
def test_boxes_lie_inside_and_are_centred(fit: str, height: int, width: int, rows: int, columns: int) -> None:
    box, target = place(fit, (height, width), (rows, columns))
    for inner, outer in ((box, (height, width)), (target, (rows, columns))):
        assert inner.height >= 1
        assert inner.width >= 1
        assert 0 <= outer[0] - inner.height - 2 * inner.top <= 1
        assert 0 <= outer[1] - inner.width - 2 * inner.left <= 1


def test_scratch_hands_out_the_same_memory_until_it_must_grow() -> None:
    scratch = ScratchBuffers()
    first = scratch.array("a", (4, 5))
    assert np.shares_memory(first, scratch.array("a", (2, 3, 3)))
    assert not np.shares_memory(first, scratch.array("b", (4, 5)))
    assert scratch.array("a", (40, 50)).shape == (40, 50)


def test_scratch_keeps_no_huge_buffers() -> None:
    scratch = ScratchBuffers()
    huge = scratch.array("a", (KEEP_BYTES + 1,))
    assert not np.shares_memory(huge, scratch.array("a", (8,)))
