"""Pixels -> the size asked for, by an antialiased triangle filter in whole numbers.

Along each axis a result's pixel is a weighted sum of the source's pixels around it. Their weights fall off in a straight
line to zero at a distance of

    source pixels a result's pixel    as far as
    at most 1 (enlarging)             1 source pixel: linear interpolation
    more (shrinking)                  that number: the same triangle, widened, so nothing aliases

which is Pillow's BILINEAR. A JPEG decoded at 1/2, 1/4 or 1/8 is sharper than averages of its pixels would be, so the
triangle of what is left is right for it, too; but not when hardly anything is left, so there it reaches at least 8/7.
(Photos of 400x533 to 200 px, decoded at 1/2, PSNR in dB against the whole picture's float triangle: 1: 39.2, 8/7: 46.2,
5/4: 43.7; from 7/6 on the plain triangle is best.)

Everything is whole numbers, so that no processor or library rounds otherwise: OpenCV's sepFilter2D rounds halves to even in
the middle of a row and up at its end, where the end begins depends on the processor. The rows are weighted first, then the
columns, and each sum is rounded to 8 bits, halves up. The loops are written twice, with the same bytes: in C
(``native/resample.c``), and in NumPy where that was not compiled: 0.12 ms against 0.9 for a photo of 400x533 to 256 px.

Against a float64 triangle of the whole picture, 77 photos of 400x533 in dB, mean and worst: to 256 px 57.7 and 57.3, or
53.6 and 42.6 with the chroma doubled by repetition (image_decoder.py). Plain linear interpolation gives 41, an area average 46.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, TypeVar

import cv2
import numpy as np
from numpy.typing import NDArray

from packer import native
from packer.pixels.image_placement import Box

MOST_SHORT_TAPS = 6
"""Filters of more taps than this have weights in 65536ths, which are fine enough for any number of them."""

_ROWS_AT_ONCE = 64
_Sums = TypeVar("_Sums", np.uint16, np.uint32)


class FilterAxis(NamedTuple):
    """The filter of one axis: result i is the sum over k of weights[i, k] * source[first[i] + k], over 2**bits."""

    first: NDArray[np.int32]
    """[results], each at least 0; first + taps is at most the length of the source."""
    weights: NDArray[np.uint16]
    """[results, taps]; each row sums to 2**bits."""
    bits: int
    """8 or 16."""


@lru_cache(maxsize=2048)  # most images of a set have one of few sizes; an axis of 256 takes 3 KB and 60 us
def triangle(pixels: int, start: int, length: int, shrunk: int, results: int) -> FilterAxis:
    """Return how a part of an axis is resampled.

    pixels: how many the source has along the axis, decoded at 1/shrunk of its size.
    start, length: the part, in pixels of the whole size: 0 <= start, length >= 1, start + length <= pixels * shrunk.
    shrunk: 1, 2, 4 or 8. results: how many pixels the part becomes.
    Returns: read-only arrays.

    The part may begin and end within a decoded pixel: rounding it to whole ones cost 4 to 10 dB at 1/4 and 1/8.
    """
    # All positions and distances below are in units of 1 / (14 * results) of a whole-size pixel, so all are whole.
    pixel = 14 * results * shrunk
    centres = 14 * results * start + 7 * (2 * np.arange(results, dtype=np.int64) + 1) * length
    reach = max(14 * length, pixel if shrunk == 1 else pixel // 7 * 8)
    least, most = start // shrunk, min(-(-(start + length) // shrunk), pixels)
    first = np.maximum((centres - reach - pixel // 2) // pixel + 1, least)
    last = np.minimum(-((pixel // 2 - centres - reach) // pixel) - 1, most - 1)
    taps = int((last - first).max()) + 1
    first = np.minimum(first, most - taps)
    distances = np.abs((first[:, None] + np.arange(taps)) * pixel + pixel // 2 - centres[:, None])
    heights = np.maximum(reach - distances, 0)
    bits = 8 if taps <= MOST_SHORT_TAPS else 16
    sums = heights.sum(axis=1, keepdims=True)
    weights = ((2 * heights << bits) + sums) // (2 * sums)
    # What rounding lost or gained is the largest weight's, where it matters least.
    weights[np.arange(results), weights.argmax(axis=1)] += (1 << bits) - weights.sum(axis=1)
    axis = FilterAxis(first.astype(np.int32), weights.astype(np.uint16), bits)
    axis.first.flags.writeable = axis.weights.flags.writeable = False
    return axis


def resize(source: NDArray[np.uint8], box: Box, result: NDArray[np.uint8], shrunk: int = 1) -> None:
    """Fill ``result`` with a part of ``source``.

    source: uint8 [h, w, C], or [h, w, 4] for a result of 3 channels; rows may lie apart.
    box: the part, in pixels of the whole picture; the source holds one for ``shrunk`` of them along each axis.
    result: uint8 [H, W, C], rows may lie apart; filled. Equal sides give an exact copy if ``shrunk`` is 1.
    shrunk: by how much a JPEG was shrunk while it was decoded (1, 2, 4 or 8).
    """
    height, width = source.shape[:2]
    rows, columns = result.shape[:2]
    down = triangle(height, box.top, box.height, shrunk, rows)
    across = triangle(width, box.left, box.width, shrunk, columns)
    if native.COMPILED:
        native.loops.resample(source, result, *down, *across)
    else:
        resample_numpy(source, result, down, across)


def resample_numpy(
    source: NDArray[np.uint8], result: NDArray[np.uint8], down: FilterAxis, across: FilterAxis
) -> None:
    """Fill ``result`` with weighted sums of ``source``, without the compiled form.

    source, result: as for `resize`; apart in memory. down, across: of the result's height and width.
    """
    left, right = int(across.first.min()), int(across.first.max()) + across.weights.shape[1]
    rows = _weigh(source[:, left:right], down)
    if rows.shape[2] != result.shape[2]:
        rows = np.asarray(cv2.cvtColor(rows, cv2.COLOR_RGBA2RGB), np.uint8)
    # Columns become rows, which NumPy gathers at the speed of memory.
    columns = np.asarray(cv2.transpose(rows), np.uint8)
    turned = _weigh(columns, across._replace(first=across.first - left))
    result[...] = np.asarray(cv2.transpose(turned)).reshape(result.shape)


def _weigh(source: NDArray[np.uint8], axis: FilterAxis) -> NDArray[np.uint8]:
    """Weight rows: uint8 [h, ...] -> [H, ...]; a few at a time, as what lies between should stay in the cache."""
    if axis.bits == 8:
        return _weigh_in(np.dtype(np.uint16), source, axis)
    return _weigh_in(np.dtype(np.uint32), source, axis)


def _weigh_in(kind: np.dtype[_Sums], source: NDArray[np.uint8], axis: FilterAxis) -> NDArray[np.uint8]:
    lines = source.reshape(source.shape[0], -1).astype(kind)
    weights = axis.weights.astype(kind)
    result = np.empty((len(weights), lines.shape[1]), np.uint8)
    for start in range(0, len(result), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        sums = np.full((len(weights[rows]), lines.shape[1]), 1 << (axis.bits - 1), kind)
        for k in range(weights.shape[1]):
            term = lines[axis.first[rows] + k]
            np.multiply(term, weights[rows, k, None], out=term)
            np.add(sums, term, out=sums)
        result[rows] = np.right_shift(sums, kind.type(axis.bits), out=sums)
    return result.reshape(-1, *source.shape[1:])
