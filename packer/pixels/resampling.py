"""Resizing of 8-bit pixels in integers, and of float values.

Resizing is an antialiased triangle filter in integers. Along each axis, a pixel of the result is a weighted
sum of the source pixels around it. The weights fall linearly to zero at a distance that depends on the scale:

    source pixels per result pixel    distance
    at most 1 (enlarging)             1 source pixel: linear interpolation
    more (shrinking)                  that number: the same triangle, widened against aliasing

This is Pillow's BILINEAR. A JPEG decoded at 1/2, 1/4 or 1/8 is sharper than averages of its pixels, so the
triangle for the remaining scale suits it, too, except if hardly any scale remains: there the distance is at
least 8/7. (Photos of 400x533 to 200 px, decoded at 1/2, PSNR in dB against the float triangle of the full
picture: 1: 39.2, 8/7: 46.2, 5/4: 43.7; from 7/6 on the plain triangle is best.)

All arithmetic is in integers, so that results do not depend on a processor's or library's rounding: OpenCV's
sepFilter2D rounds halves to even in the middle of a row and up at its end, and the processor decides where
the end begins. The rows are weighted first, then the columns, and each sum is rounded to 8 bits, halves up.
The loops exist twice, with equal bytes: in C (``native/resample.c``), and in NumPy if that was not compiled:
0.12 ms against 0.9 for a photo of 400x533 to 256 px.

Against a float64 triangle of the full picture, 77 photos of 400x533 in dB, mean and worst: to 256 px 57.7 and
57.3, or 53.6 and 42.6 with the chroma doubled by repetition (image_decoder.py). Plain linear interpolation
gives 41, an area average 46.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from packer import native
from packer.opencv import cv2
from packer.pixels.row_placement import Box, ImagePlacement

MOST_SHORT_TAPS = 6
"""Filters with more taps use weights in units of 1/65536, which suffice for any number of taps."""

_ROWS_AT_ONCE = 64


class FilterAxis(NamedTuple):
    """The filter of an axis: result[i] = sum over k of weights[i, k] * source[first[i] + k], over 2**bits."""

    first: NDArray[np.int32]
    """[results], each at least 0; first + taps is at most the length of the source."""
    weights: NDArray[np.uint16]
    """[results, taps]; each row sums to 2**bits."""
    bits: int
    """8 or 16."""


@lru_cache(maxsize=2048)  # few sizes per data set; an axis of 256 takes 3 KB and 60 us
def triangle(pixels: int, start: int, length: int, shrunk: int, results: int) -> FilterAxis:
    """Return the filter that resamples a part of an axis.

    pixels: pixels of the source along the axis, decoded at 1/shrunk of its size.
    start, length: the part, in pixels of the full size: 0 <= start, length >= 1, start + length <= pixels *
    shrunk.
    shrunk: 1, 2, 4 or 8. results: pixels of the result.
    Returns: read-only arrays.

    The part may begin and end within a decoded pixel: rounding it to whole pixels cost 4 to 10 dB at 1/4 and
    1/8.
    """
    # Positions and distances below are integers, in units of 1 / (14 * results) of a full-size pixel.
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
    # Add the rounding error to the largest weight, where it matters least.
    weights[np.arange(results), weights.argmax(axis=1)] += (1 << bits) - weights.sum(axis=1)
    axis = FilterAxis(first.astype(np.int32), weights.astype(np.uint16), bits)
    axis.first.flags.writeable = axis.weights.flags.writeable = False
    return axis


def resize(source: NDArray[np.uint8], box: Box, result: NDArray[np.uint8], shrunk: int = 1) -> None:
    """Fill ``result`` with a part of ``source``.

    source: uint8 [h, w, C], or [h, w, 4] for a result with 3 channels; not necessarily contiguous.
    box: the part, in pixels of the full picture; the source holds one pixel per ``shrunk`` of them along each
    axis.
    result: uint8 [H, W, C], not necessarily contiguous; filled. Equal sides give an exact copy if ``shrunk``
    is 1.
    shrunk: divisor at which a JPEG was decoded (1, 2, 4 or 8).
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
    """Fill ``result`` with weighted sums of ``source``, without the compiled loop.

    source, result: as for `resize`, not overlapping. down, across: filters of the result's height and width.
    """
    left, right = int(across.first.min()), int(across.first.max()) + across.weights.shape[1]
    rows = _weigh(source[:, left:right], down)
    if rows.shape[2] != result.shape[2]:
        rows = np.asarray(cv2.cvtColor(rows, cv2.COLOR_RGBA2RGB), np.uint8)
    # Transpose columns to rows, which NumPy gathers at the speed of memory.
    columns = np.asarray(cv2.transpose(rows), np.uint8)
    turned = _weigh(columns, across._replace(first=across.first - left))
    result[...] = np.asarray(cv2.transpose(turned)).reshape(result.shape)


def _weigh(source: NDArray[np.uint8], axis: FilterAxis) -> NDArray[np.uint8]:
    """Weight rows: uint8 [h, ...] -> [H, ...]; some at a time, so that sums stay in the CPU cache."""
    kind: np.dtype[Any] = np.dtype(np.uint16 if axis.bits == 8 else np.uint32)
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


def place_soft(values: NDArray[Any], geometry: ImagePlacement, out: NDArray[Any]) -> None:
    """Fill the image's place in ``out`` with the visible part of a soft map; leave the bars unchanged.

    values: [h, w] or [h, w, C], uint8, uint16 or float32, upright; larger or smaller than the image, or
    equal. Not modified.
    out: same dtype and channels, [H, W] or [H, W, C] of ``geometry.result``; not necessarily contiguous.
    Values that already have the size of their place are copied exactly.

    The filter is that of images, Pillow's BILINEAR (masks take the nearest value); computed in float32 and
    float64, and rounded once. Channels are resampled separately. A pixel resampled from NaN is NaN.
    """
    resize_soft(values, geometry.box, geometry.source, geometry.target.cut_view(out))


def resize_soft(values: NDArray[Any], box: Box, source: tuple[int, int], result: NDArray[Any]) -> None:
    """Fill ``result`` with the part in ``box``, in pixels of a ``source`` of (height, width)."""
    down = _Part.from_span(box.top, box.height, source[0], values.shape[0])
    across = _Part.from_span(box.left, box.width, source[1], values.shape[1])
    part = values[down.first : down.end, across.first : across.end]
    if down.whole(result.shape[0]) and across.whole(result.shape[1]):
        result[...] = part
        return
    within = across.start, down.start, across.stop, down.stop
    for channel in range(part.shape[2] if part.ndim == 3 else 1):
        plane, filled = (a[..., channel] if a.ndim == 3 else a for a in (part, result))
        image = Image.fromarray(np.ascontiguousarray(plane, np.float32))
        resized = np.asarray(image.resize(filled.shape[::-1], Image.Resampling.BILINEAR, box=within))
        filled[...] = resized if filled.dtype.kind == "f" else np.rint(resized)


class _Part(NamedTuple):
    """A part of an axis: pixels [first, end), of which [start, stop) is used, counted from `first`.

    Pixels beyond these are invisible in the image, so they get no weight.
    """

    first: int
    end: int
    start: float
    stop: float

    @classmethod
    def from_span(cls, first: int, length: int, source: int, other: int) -> _Part:
        """Return the part of an axis of ``other`` pixels for [first, first + length) of ``source`` pixels."""
        start, stop = first * other / source, (first + length) * other / source
        low = math.floor(start)
        return cls(low, math.ceil(stop), start - low, stop - low)

    def whole(self, pixels: int) -> bool:
        """Return True if the part consists of that many whole pixels."""
        return self.start == 0 and self.stop == pixels
