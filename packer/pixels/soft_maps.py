"""Soft maps, such as alpha mattes and depth: resampled linearly where a mask takes the nearest value.

The filter is that of images (decode_resize.py): Pillow's BILINEAR, a triangle that is widened where a map shrinks, so nothing
aliases; computed in float32 and float64, and rounded once. Channels are resampled each by itself; alpha does not weigh colours.

A pixel that is resampled from NaN is NaN: one that has no value needs a number, or a map of its own that says so.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from packer.pixels.decode_resize import ImagePlacement

_Box = tuple[float, float, float, float]


def place_soft(values: NDArray[Any], geometry: ImagePlacement, out: NDArray[Any]) -> None:
    """Fill the image's place in ``out`` with the part of a soft map that the image shows; the bars are left as they are.

    values: [h, w] or [h, w, C], uint8, uint16 or float32, upright; it may be larger or smaller than the image. Not modified.
    out: of the same dtype and channels, [H, W] or [H, W, C] of ``geometry.result``; rows may lie apart. What has the size of its
        place already is copied exactly.
    """
    box = geometry.box
    target: NDArray[Any] = geometry.target.of(out)
    down = _Part.of(box.top, box.height, geometry.source[0], values.shape[0])
    across = _Part.of(box.left, box.width, geometry.source[1], values.shape[1])
    part = values[down.first : down.end, across.first : across.end]
    if down.whole(target.shape[0]) and across.whole(target.shape[1]):
        target[...] = part
        return
    within = across.start, down.start, across.stop, down.stop
    for channel in range(part.shape[2] if part.ndim == 3 else 1):
        one, filled = (a[..., channel] if a.ndim == 3 else a for a in (part, target))
        made = _resampled(one.astype(np.float32), within, filled.shape)
        filled[...] = made if filled.dtype.kind == "f" else np.rint(made)


class _Part(NamedTuple):
    """A part of an axis: pixels [first, end), of which [start, stop) is taken, counted from `first`.

    Beyond these pixels the image shows nothing, so they get no weight.
    """

    first: int
    end: int
    start: float
    stop: float

    @classmethod
    def of(cls, first: int, length: int, source: int, other: int) -> _Part:
        """Return what shows [first, first + length), of ``source``, in an axis of ``other`` pixels."""
        start, stop = first * other / source, (first + length) * other / source
        low = math.floor(start)
        return cls(low, math.ceil(stop), start - low, stop - low)

    def whole(self, pixels: int) -> bool:
        """Return True if the part is that many whole pixels."""
        return self.start == 0 and self.stop == pixels


def _resampled(values: NDArray[np.float32], box: _Box, size: tuple[int, ...]) -> NDArray[np.float32]:
    """Resample [h, w]: float32 of ``size``, (H, W)."""
    image = Image.fromarray(np.ascontiguousarray(values))
    return np.asarray(image.resize((size[1], size[0]), Image.Resampling.BILINEAR, box=box))
