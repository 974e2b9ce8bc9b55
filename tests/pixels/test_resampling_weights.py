"""Integer weights against the float triangle."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from packer.pixels.resampling import MOST_SHORT_TAPS, FilterAxis, triangle


def dense(axis: FilterAxis, pixels: int) -> NDArray[np.float64]:
    """The weights as a matrix [results, pixels] of fractions."""
    matrix = np.zeros((len(axis.first), pixels))
    for row, (first, weights) in enumerate(zip(axis.first, axis.weights, strict=True)):
        matrix[row, first : first + len(weights)] = weights / 2.0**axis.bits
    return matrix


def exact(pixels: int, start: int, length: int, shrunk: int, results: int) -> NDArray[np.float64]:
    """The same in floats, from the words of the module."""
    centres = start + (np.arange(results)[:, None] + 0.5) * length / results
    reach = max(length / results, shrunk if shrunk == 1 else shrunk * 8 / 7)
    inside = np.arange(start // shrunk, min(-(-(start + length) // shrunk), pixels))
    matrix = np.zeros((results, pixels))
    matrix[:, inside] = np.maximum(0, 1 - np.abs((inside + 0.5) * shrunk - centres) / reach)
    return np.asarray(matrix / matrix.sum(axis=1, keepdims=True))


@given(
    st.integers(1, 400),
    st.sampled_from([1, 2, 4, 8]),
    st.integers(1, 60),
    st.integers(0, 7),
    *[st.floats(0, 1, exclude_max=True)] * 2,
)
def test_weights_are_the_triangles_and_sum_to_one(
    pixels: int, shrunk: int, results: int, missing: int, begin: float, extent: float
) -> None:
    whole = pixels * shrunk - min(missing, shrunk - 1)
    start = int(begin * whole)
    length = 1 + int(extent * (whole - start))
    assume(start + length <= whole)
    axis = triangle(pixels, start, length, shrunk, results)
    taps = axis.weights.shape[1]
    assert (axis.weights.sum(axis=1, dtype=np.int64) == 1 << axis.bits).all()
    assert axis.first.min() >= 0
    assert axis.first.max() + taps <= pixels
    assert axis.bits == (8 if taps <= MOST_SHORT_TAPS else 16)
    # Half a unit by rounding; the largest also gets what the others' rounding left.
    error = np.abs(dense(axis, pixels) - exact(pixels, start, length, shrunk, results))
    assert error.max() * 2**axis.bits <= 0.5 + taps / 2 + 0.01


def test_nothing_to_do_is_one_tap() -> None:
    axis = triangle(9, 2, 5, 1, 5)
    assert axis.first.tolist() == [2, 3, 4, 5, 6]
    assert axis.weights.tolist() == [[256]] * 5


def test_doubling_is_linear_interpolation() -> None:
    assert triangle(2, 0, 2, 1, 4).weights.tolist() == [[256, 0], [192, 64], [64, 192], [0, 256]]


def test_halving() -> None:
    axis = triangle(6, 0, 6, 1, 3)
    assert axis.first.tolist() == [0, 1, 2]
    assert axis.weights.tolist()[1] == [32, 96, 96, 32]


@pytest.mark.parametrize(("shrunk", "start"), [(2, 3), (4, 6), (8, 20)])
def test_a_part_may_begin_within_a_shrunk_pixel(shrunk: int, start: int) -> None:
    """A ramp keeps its values: position p of the whole picture holds p."""
    pixels = 40
    ramp = (np.arange(pixels) + 0.5) * shrunk
    length = 24 * shrunk
    axis = triangle(pixels, start, length, shrunk, 16)
    found = dense(axis, pixels) @ ramp
    expected = start + (np.arange(16) + 0.5) * length / 16
    assert np.abs(found - expected)[2:-2].max() < 0.05 * shrunk


def test_arrays_are_shared_and_so_read_only() -> None:
    axis = triangle(40, 0, 40, 1, 30)
    assert triangle(40, 0, 40, 1, 30) is axis
    assert not axis.first.flags.writeable
    assert not axis.weights.flags.writeable
