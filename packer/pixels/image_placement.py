"""Which part of a picture goes where in its row, and how points, boxes and masks follow it.

Coordinates are continuous and upright (EXIF orientation applied): x runs from 0 to the width, y from 0 to the height, and pixel
(row r, column c) covers [c, c + 1] x [r, r + 1], its centre being (c + 0.5, r + 0.5). Boxes given as first and last pixel (Pascal
VOC) end one pixel early in these terms.

The picture itself is cut as it is stored, and a JPEG perhaps decoded at a fraction of its size, where cuts fall between whole
pixels of that: it may lie up to a pixel of the row beside what is computed here. Of 60 JPEGs of random sizes the mean was 0.13,
the largest 0.54; turned ones reached 0.9.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FITS = ("crop", "pad", "stretch")


class Box(NamedTuple):
    """A rectangle of pixels."""

    top: int
    left: int
    height: int
    width: int

    def of(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Cut the rectangle out of [h, w, ...], as a view."""
        return pixels[self.top : self.top + self.height, self.left : self.left + self.width]


@lru_cache(maxsize=1024)  # most images of a set have one of few sizes
def place(fit: str, source: tuple[int, int], result: tuple[int, int]) -> tuple[Box, Box]:
    """Return which part of the source fills which part of the result.

    fit: "crop": the largest centred part of the result's aspect ratio fills everything (what Resize of the shortest
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


class ImagePlacement(NamedTuple):
    """The way from one upright picture to one row; made by `ImagePlacement.of`."""

    source: tuple[int, int]
    """(height, width) of the whole picture, upright."""
    result: tuple[int, int]
    """(height, width) of the row."""
    box: Box
    """The part of the source that is seen."""
    target: Box
    """The part of the result that it fills; the rest are bars."""

    @classmethod
    def of(cls, fit: str, source: tuple[int, int], result: tuple[int, int]) -> ImagePlacement:
        """Place a picture of (height, width) ``source`` in a ``result``, as `place` does.

        >>> placement = ImagePlacement.of("crop", source=(400, 600), result=(256, 256))
        >>> placement.box
        Box(top=0, left=100, height=400, width=400)
        >>> placement.points(np.array([100.0, 400.0])).tolist()
        [0.0, 256.0]
        """
        box, target = place(fit, source, result)
        return cls(source, result, box, target)

    def points(self, xy: NDArray[np.float64]) -> NDArray[np.float64]:
        """Move points with the picture, wherever they are.

        xy: [..., 2], in the source; not modified.
        Returns: float64 [..., 2] in the result, also for points that are not seen there; NaN stays NaN.
        """
        box, target = self.box, self.target
        scale = target.width / box.width, target.height / box.height
        return (xy - (box.left, box.top)) * scale + (target.left, target.top)

    def keypoints(self, xy: NDArray[np.float64]) -> NDArray[np.float32]:
        """Move points with the picture and leave out those that are not seen.

        xy: [..., 2], in the source; NaN where there is none.
        Returns: float32 [..., 2] in the result, (NaN, NaN) for points that were cropped away or lay outside the picture: none of
            them can be taken for a point at an edge, and a loss that forgets to mask them shows at once. Edges count as inside.
        """
        moved = self.points(xy)
        (left, top), (right, bottom) = self._edges()
        x, y = moved[..., 0], moved[..., 1]
        inside = (x >= left) & (x <= right) & (y >= top) & (y <= bottom)
        return np.where(inside[..., None], moved, np.nan).astype(np.float32)

    def boxes(self, xyxy: NDArray[np.float64]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Move boxes with the picture and clip them to what is seen of it.

        xyxy: [n, 4], left, top, right, bottom, in the source; not modified.
        Returns: float32 [n, 4] in the result, and bool [n]: True where any area is left of a box. Drop those without, as
            torchvision's SanitizeBoundingBoxes does; slivers are kept, as how small is too small is the user's to say.
        """
        moved = self.points(xyxy.reshape(-1, 2, 2))
        clipped = np.clip(moved, *self._edges()).astype(np.float32)
        keep: NDArray[np.bool_] = np.all(clipped[:, 0] < clipped[:, 1], axis=1)
        return clipped.reshape(-1, 4), keep

    def nearest(self, height: int, width: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return which pixels of another picture of the same scene the pixels of the target show.

        height, width: of that picture, a mask for example, which may be larger or smaller than the source.
        Returns: rows [target.height] and columns [target.width] of the pixels in which the centres of the target's lie;
            read-only. At the source's own size: ``floor((i + 0.5) * box.height / target.height) + box.top``.
        """
        box, target = self.box, self.target
        return (
            _nearest(box.top, box.height, target.height, self.source[0], height),
            _nearest(box.left, box.width, target.width, self.source[1], width),
        )

    def _edges(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return (left, top) and (right, bottom) of the target."""
        left, top, height, width = self.target.left, self.target.top, self.target.height, self.target.width
        return (left, top), (left + width, top + height)


@lru_cache(maxsize=1024)  # as for place: few sizes make up most of a set
def _nearest(first: int, length: int, count: int, source: int, other: int) -> NDArray[np.intp]:
    """Return the pixels of ``other`` in which ``count`` equal parts of [first, first + length), of ``source``, have their centres."""
    # Python's integers: exact, and too large for int64 when a side has a hundred million pixels.
    indices = [
        ((2 * i + 1) * length + 2 * first * count) * other // (2 * count * source) for i in range(count)
    ]
    result = np.array(indices, np.intp)
    result.flags.writeable = False
    return result
