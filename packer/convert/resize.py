"""Pixels -> the size asked for: where a picture goes, and an antialiased resize at the cost of a plain one.

Cropping comes before resizing. Shrinking is a cheap low-pass filter of three taps at the source's resolution,
then OpenCV's linear interpolation, per axis:

    ratio r = source / result    what is done along that axis
    r <= 1                       linear interpolation (nothing at all when r = 1)
    1 < r <= 8/3                 filter [a, 1 - 2a, a] with a = (r - 1) / 4, at most 1/3; then linear
    r > 8/3                      area average to exactly twice the result, then as for r = 2

Where a comes from: the reference is the triangle filter of half-width r (Pillow's BILINEAR). At r = 2 every
sample lies midway between two pixels, and [1, 2, 1] / 4 followed by their mean is that triangle. Between,
photos measured best at 0.06 (r = 1.25), 0.10 (1.33), 0.14 (1.56), 0.18 (1.67), 0.20 (1.82), 0.28 (2.11): the
straight line. The same line was best for JPEGs decoded at 1/2, 1/4 and 1/8: libjpeg's scaled pictures are
sharper than averages.

The taps are whole 256ths, so that every product and sum of the filter is exact in the float32 that OpenCV computes
it in: no processor rounds otherwise.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from packer.convert.scratch import Scratch

FITS = ("crop", "pad", "stretch")

AREA_RATIO = 8 / 3
"""Above it three taps are too few, and the slower area average comes first."""

_LARGEST_TAP = 85 / 256
_TAP_OF_SHRUNK = 21 / 256
"""At ratio 1 a JPEG decoded at a DCT scale is sharper than the triangle: its variance is 1/6, a tap's 2a."""


class Box(NamedTuple):
    """A rectangle of pixels."""

    top: int
    left: int
    height: int
    width: int

    def of(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Cut the rectangle out of [h, w, ...], as a view."""
        return pixels[self.top : self.top + self.height, self.left : self.left + self.width]

    def divided(self, divisor: int, height: int, width: int) -> Box:
        """Give the same rectangle, to the nearest pixel, in a picture ``divisor`` times smaller."""
        rows = min(max(1, round(self.height / divisor)), height)
        columns = min(max(1, round(self.width / divisor)), width)
        top = min(round(self.top / divisor), height - rows)
        return Box(top, min(round(self.left / divisor), width - columns), rows, columns)


@lru_cache(maxsize=1024)  # most images of a set have one of few sizes
def place(fit: str, source: tuple[int, int], result: tuple[int, int]) -> tuple[Box, Box]:
    """Say which part of the source fills which part of the result.

    fit: "crop": the largest centred part of the result's aspect ratio fills everything (what Resize of the
    shortest
        side and CenterCrop give, to a fraction of a pixel); "pad": everything fills the largest centred part
        of the source's aspect ratio; "stretch": everything fills everything.
    source, result: (height, width) in pixels.
    Returns: a box in the source and a box in the result, neither of them empty.
    """
    height, width = source
    rows, columns = result
    if fit == "crop":
        cut = (
            min(height, max(1, round(width * rows / columns))),
            min(width, max(1, round(height * columns / rows))),
        )
        return _centred(cut, source), Box(0, 0, rows, columns)
    if fit == "pad":
        scale = min(rows / height, columns / width)
        filled = min(rows, max(1, round(height * scale))), min(columns, max(1, round(width * scale)))
        return Box(0, 0, height, width), _centred(filled, result)
    return Box(0, 0, height, width), Box(0, 0, rows, columns)


def _centred(inner: tuple[int, int], outer: tuple[int, int]) -> Box:
    return Box((outer[0] - inner[0]) // 2, (outer[1] - inner[1]) // 2, *inner)


def resize(source: NDArray[np.uint8], result: NDArray[np.uint8], shrunk: int, scratch: Scratch) -> None:
    """Fill ``result`` with the whole of ``source``.

    source: uint8 [h, w, C], rows may lie apart; filtered in place unless it is read-only, as one buffer less in the
        cache saves 3 % of the whole.
    result: uint8 [H, W, C], rows may lie apart; filled. Equal sides give an exact copy if ``shrunk`` is 1.
    shrunk: by how much a JPEG was shrunk while it was decoded (1, 2, 4 or 8).
    scratch: for what lies between; must not hold ``source`` under "area" or "filtered".
    """
    rows, columns, channels = result.shape
    height, width = source.shape[:2]
    if (height, width) == (rows, columns) and shrunk == 1:
        np.copyto(result, source)
        return
    inner = (
        2 * rows if height > AREA_RATIO * rows else height,
        2 * columns if width > AREA_RATIO * columns else width,
    )
    if inner != (height, width):
        area = scratch.array("area", (*inner, channels))
        cv2.resize(source, inner[::-1], dst=area, interpolation=cv2.INTER_AREA)
        source, (height, width) = area, inner
    down, across = _tap(height / rows, shrunk), _tap(width / columns, shrunk)
    if down or across:
        filtered = source
        if not source.flags.writeable:
            filtered = scratch.array("filtered", (height, width, channels))
        cv2.sepFilter2D(
            source, -1, _kernel(across), _kernel(down), dst=filtered, borderType=cv2.BORDER_REPLICATE
        )
        source = filtered
    cv2.resize(source, (columns, rows), dst=result, interpolation=cv2.INTER_LINEAR)


def _tap(ratio: float, shrunk: int) -> float:
    """Give the outer tap of the filter that an axis needs, 0 for none."""
    if ratio == 1.0 and shrunk > 1:
        return _TAP_OF_SHRUNK
    return min(max(0, round(64 * (ratio - 1.0))) / 256, _LARGEST_TAP)


@lru_cache(maxsize=128)
def _kernel(tap: float) -> NDArray[np.float32]:
    kernel = np.array([tap, 1.0 - 2.0 * tap, tap], np.float32)
    kernel.flags.writeable = False
    return kernel
