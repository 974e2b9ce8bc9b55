"""The antialiased triangle filter in whole numbers: which source pixels make a result's pixel, and their weights.

Along each axis a result's pixel is a weighted sum of the source's pixels around it. Their weights fall off in a straight
line to zero at a distance of

    source pixels a result's pixel    as far as
    at most 1 (enlarging)             1 source pixel: linear interpolation
    more (shrinking)                  that number: the same triangle, widened, so nothing aliases

which is Pillow's BILINEAR. A JPEG decoded at 1/2, 1/4 or 1/8 is sharper than averages of its pixels would be, so the
triangle of what is left is right for it, too; but not when hardly anything is left, so there it reaches at least 8/7.
(Photos of 400x533 to 200 px, decoded at 1/2, PSNR in dB against the whole picture's float triangle: 1: 39.2, 8/7: 46.2,
5/4: 43.7; from 7/6 on the plain triangle is best.)

Everything here is whole numbers, so that no processor or library rounds otherwise.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MOST_SHORT_TAPS = 6
"""Filters of more taps than this have weights in 65536ths, which are fine enough for any number of them."""


class Axis(NamedTuple):
    """How one axis is resampled: result i is the sum over k of weights[i, k] * source[first[i] + k], over 2**bits."""

    first: NDArray[np.int32]
    """[results], each at least 0; first + taps is at most the length of the source."""
    weights: NDArray[np.uint16]
    """[results, taps]; each row sums to 2**bits."""
    bits: int
    """8 or 16."""


@lru_cache(maxsize=2048)  # most images of a set have one of few sizes; an axis of 256 takes 3 KB and 60 us
def triangle(pixels: int, start: int, length: int, shrunk: int, results: int) -> Axis:
    """Resample a part of an axis.

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
    axis = Axis(first.astype(np.int32), weights.astype(np.uint16), bits)
    axis.first.flags.writeable = axis.weights.flags.writeable = False
    return axis
