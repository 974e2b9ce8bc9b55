"""Positions of results in their sources: flips, crops, resizes and rotations, composed to an affine matrix.

Positions are in pixels from the image's top left corner: pixel i extends from i to i + 1, an image of width W
from 0 to W. The affine matrix maps positions in the result to positions in the source:
x = a u + b v + c, y = d u + e v + f.

Images that differ in size are stored one after the other in one array, and a pass reads each at its offset,
without a resize before it. An image may be stored at 1/2, 1/4 or 1/8 of its size, which JPEG decodes to in
less time; no detail is lost if the result is smaller still.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from packer.augment.passes import pass_spec
from packer.augment.passes.pass_spec import Outside, Sampling

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Numbers = float | NDArray[Any]
Size = tuple[Any, Any]
"""(height, width): numbers, or int64 [N] for samples that differ in size."""

_FAR = 1e6  # an edge beyond every picture, where float32 still has a resolution of 1/16


class AffinePlacement:
    """The position of each sample's result in its source.

    count: number of samples. size: (height, width) of the source, later of the result: numbers, or int64 [N]
        for samples that differ in size.

    matrix: float64 [3, 2, N]: (a, d), (b, e), (c, f).
    taps: float64 [4, N]: left, top, right, bottom of the pixels that may be read.
    frame: float64 [4, N]: the picture's edges in the source; far away until `see_outside` is called.
    softness: float64 [2, N]: width of the frame's edges in source pixels, across and down.
    support: float64 [2, N]: half the filter's width in source pixels, across and down.
    """

    # Six rows of N numbers: composing these elementwise takes a tenth of the time of N products of 3x3
    # matrices.
    def __init__(self, count: int, size: Size) -> None:
        height, width = size
        self.size: Size = size
        self.matrix: Floats = _rows(count, 1, 0, 0, 1, 0, 0).reshape(3, 2, count)
        self.taps: Floats = _rows(count, 0, 0, width, height)
        self.frame: Floats = _rows(count, -_FAR, -_FAR, _FAR, _FAR)
        self.softness: Floats = _rows(count, 1, 1)
        self.support: Floats = _rows(count, 1, 1)
        self._whole = np.ones(count, np.bool_)  # positions are whole pixels so far
        self._straight = np.ones(count, np.bool_)  # rows of the result are rows of the source so far
        self._continued = False

    def __len__(self) -> int:
        return int(self.matrix.shape[-1])

    def copy(self) -> AffinePlacement:
        """Return an independent copy."""
        return copy.deepcopy(self)

    def restore(self, samples: NDArray[np.bool_], before: AffinePlacement) -> None:
        """Restore these samples from an earlier copy."""
        for name, kept in vars(before).items():
            if isinstance(kept, np.ndarray):
                getattr(self, name)[..., samples] = kept[..., samples]

    def mirror(self, some: NDArray[np.bool_], down: bool = False) -> None:
        """Mirror some samples, bool [N]: left to right, or top to bottom if `down`."""
        axis, origin = self.matrix[int(down)], self.matrix[2]
        origin += np.where(some, axis * self.size[not down], 0)
        axis *= np.where(some, -1.0, 1.0)

    def cut(self, left: Numbers, top: Numbers, size: Size, read_only: bool = True) -> None:
        """Crop whole pixels. left, top: [N]. read_only: later resizes may read only the rectangle."""
        if read_only:
            self._read_only(left, top, left + size[1], top + size[0])
        u, v, origin = self.matrix
        origin += u * left + v * top
        self.size = size

    def cut_padded(self, left: Numbers, top: Numbers, size: Size, outside: Outside | None) -> None:
        """Crop a rectangle that may exceed the picture. outside: the padding mode; None if it does not."""
        if outside == "constant":
            self.see_outside()
        continues = outside not in ("constant", None)
        self.cut(left, top, size, read_only=not continues)
        # Padding now continues the pixels of `taps` beyond the edges; later crops must not change these.
        self._continued |= continues

    def stretch(self, box: tuple[Numbers, ...], size: Size, antialias: bool, sampling: Sampling) -> None:
        """Crop a rectangle of whole pixels and resize it.

        box: left, top, width, height, [N] each. size: (h, w) of the result.
        antialias: True to widen the filter where the image shrinks; required for "cubic".
        """
        left, top, width, height = box
        self._read_only(left, top, left + width, top + height)
        self._forget_edges(left, top, left + width, top + height)
        self._compose(width / size[1], 0.0, left, 0.0, height / size[0], top)
        if antialias:
            widened = np.maximum(self._pixel(), 1)
            self.support = 2 * widened if sampling == "cubic" else widened
            self.softness = np.maximum(self.softness, widened)
        self._whole[:] = False
        self.size = size

    def turn(self, a: Numbers, b: Numbers, c: Numbers, d: Numbers, e: Numbers, f: Numbers) -> None:
        """Apply an affine matrix that maps positions in the new picture to this one. Numbers, or [N]."""
        self._compose(a, b, c, d, e, f)
        self._whole[:] = self._straight[:] = False

    def see_outside(self) -> None:
        """Set the frame to the picture's edges, each a pixel wide, before a step that may read beyond them.

        After a rotation the frame keeps the edges from before it.
        """
        if not self._straight.any():
            return
        height, width = self.size
        edges = self._in_source(0, 0, width, height)
        self.frame[:2] = np.where(self._straight, np.maximum(self.frame[:2], edges[:2]), self.frame[:2])
        self.frame[2:] = np.where(self._straight, np.minimum(self.frame[2:], edges[2:]), self.frame[2:])
        self.softness = np.where(self._straight, np.maximum(self._pixel(), 1e-6), self.softness)

    def columns(self) -> NDArray[np.float32]:
        """Return the first columns of a pass, as specified in pass_spec.py: float32 [N, 18]."""
        u, v, origin = self.matrix
        columns = np.empty((pass_spec.STEPS_AT, len(self)))
        columns[0:6:3], columns[1:6:3], columns[2:6:3] = u, v, origin + (u + v) / 2 - 0.5
        columns[6:8], columns[8:10] = self.taps[:2], self.taps[2:] - 1
        columns[10:12] = self.support
        columns[12:16] = self.frame - 0.5
        columns[16:18] = 1 / self.softness
        return np.ascontiguousarray(columns.T, dtype=np.float32)

    def _compose(self, a: Numbers, b: Numbers, c: Numbers, d: Numbers, e: Numbers, f: Numbers) -> None:
        u, v, origin = self.matrix
        self.matrix = np.stack([u * a + v * d, u * b + v * e, u * c + v * f + origin])

    def _forget_edges(self, left: Numbers, top: Numbers, right: Numbers, bottom: Numbers) -> None:
        """Remove edges of the frame that a rectangle does not cross: a resize does not soften these."""
        if self._straight.any():
            box = self._in_source(left, top, right, bottom)
            self.frame[:2][self._straight & (box[:2] >= self.frame[:2])] = -_FAR
            self.frame[2:][self._straight & (box[2:] <= self.frame[2:])] = _FAR

    def _pixel(self) -> Floats:
        """Return the size in the source of a pixel of this picture, across and down: float64 [2, N]."""
        sizes: Floats = np.hypot(self.matrix[0], self.matrix[1])
        return sizes

    def _in_source(self, left: Numbers, top: Numbers, right: Numbers, bottom: Numbers) -> Floats:
        """Return a rectangle in source coordinates, float64 [4, N]; the picture must not be rotated."""
        (a, _), (_, e), (c, f) = self.matrix
        x1, x2, y1, y2 = a * left + c, a * right + c, e * top + f, e * bottom + f
        return np.stack([np.minimum(x1, x2), np.minimum(y1, y2), np.maximum(x1, x2), np.maximum(y1, y2)])

    def _read_only(self, left: Numbers, top: Numbers, right: Numbers, bottom: Numbers) -> None:
        if self._whole.any() and not self._continued:
            box = self._in_source(left, top, right, bottom)
            # For a rectangle in the padding keep the nearest pixel: taps must not be empty.
            first, end = self.taps[:2].copy(), self.taps[2:].copy()
            self.taps[:2] = np.where(self._whole, np.clip(box[:2], first, end - 1), first)
            self.taps[2:] = np.where(self._whole, np.clip(box[2:], first + 1, end), end)


def _rows(count: int, *numbers: Numbers) -> Floats:
    rows: Floats = np.empty((len(numbers), count))
    for row, number in zip(rows, numbers, strict=True):
        row[:] = number
    return rows


def transform_about(
    placement: AffinePlacement, center: tuple[float, float] | None, drawn: Mapping[str, NDArray[Any]]
) -> None:
    """Rotate, scale and shear about a point, then translate by pixels. The frame is set first.

    drawn: any of angle, scale, shear_x, shear_y, move_x and move_y, [N] each; angles in degrees, clockwise on
        the screen.

    The picture is transformed by T(move) T(center) R S T(-center), with R S = scale * [[cos(a - sy) /
    cos(sy), -cos(a - sy) tan(sx) / cos(sy) - sin(a)], [sin(a - sy) / cos(sy), -sin(a - sy) tan(sx) / cos(sy)
    + cos(a)]], the convention of torchvision's affine (functional/_geometry.py,
    `_get_inverse_affine_matrix`).
    """
    placement.see_outside()
    height, width = placement.size
    x, y = (width / 2, height / 2) if center is None else center
    turn, sx, sy = (np.deg2rad(drawn.get(name, 0.0)) for name in ("angle", "shear_x", "shear_y"))
    cos, sin, tan, over = np.cos(turn - sy), np.sin(turn - sy), np.tan(sx), np.cos(sy)
    a, b = cos / over, -cos * tan / over - np.sin(turn)
    c, d = sin / over, -sin * tan / over + np.cos(turn)
    # The determinant of R S is scale**2, so the inverse has d, -b, -c, a over scale.
    a, b, c, d = (each / drawn.get("scale", 1.0) for each in (d, -b, -c, a))
    from_x, from_y = x + drawn.get("move_x", 0.0), y + drawn.get("move_y", 0.0)
    placement.turn(a, b, x - a * from_x - b * from_y, c, d, y - c * from_x - d * from_y)


REDUCTIONS = (1, 2, 4, 8)
"""Factors by which stored images may be smaller than the originals, across and down."""


def placed(columns: Tensor, places: Integers, boxes: Integers, reductions: Integers) -> Tensor:
    """Return the columns of a ragged pass over stored images, or parts of them: float32 [N, P].

    columns: for the same images at their full size.
    places: int64 [N], number of the first pixel of each part in the array of all images.
    boxes: int64 [N, 4], left, top, right and bottom of the part in the reduced image, stored row by row; it
        must contain all pixels that the pass may read.
    reductions: int64 [N], of REDUCTIONS, by which images are stored smaller.
    """
    made = columns.numpy().copy()
    reduce(made, reductions)
    left, top, right, bottom = boxes.T
    stride = right - left
    first = np.divmod(places - top * stride - left, pass_spec.PLACE_STEP)
    made[:, -pass_spec.SOURCE_WIDTH :] = np.stack([*first, bottom, right, stride], axis=1)
    return torch.from_numpy(made)


def reductions(columns: NDArray[np.float32]) -> Integers:
    """Return the largest reduction of each image that keeps its visible part at least as large as the result.

    columns: float32 [N, P], of a pass that resizes with antialiasing. Returns: int64 [N], of REDUCTIONS.
    """
    shrinks = columns[:, pass_spec.SUPPORT_AT : pass_spec.FRAME_AT].min(axis=1)
    found: Integers = np.array(REDUCTIONS, np.int64)[
        np.searchsorted(REDUCTIONS, shrinks * (1 + 1e-6), "right") - 1
    ]
    return found


def boxes_seen(passes: Sequence[NDArray[np.float32]]) -> Integers:
    """Return the box of each image that the passes may read: int64 [N, 4], left, top, right, bottom.

    passes: columns, float32 [N, P] each, over the same images at their full size.
    """
    taps = np.stack([columns[:, pass_spec.TAPS_AT : pass_spec.SUPPORT_AT] for columns in passes])
    return np.hstack([taps[..., :2].min(axis=0), taps[..., 2:].max(axis=0) + 1]).astype(np.int64)


def reduce(columns: NDArray[np.float32], by: Integers) -> None:
    """Convert the columns of a pass, float32 [N, P], in place to images `by` times smaller, int64 [N]."""
    some = np.flatnonzero(by > 1)
    if not some.size:
        return
    part, factor = columns[some].astype(np.float64), by[some, None].astype(np.float64)
    part[:, :6] /= factor
    for at in (2, 5):  # pixel centres lie half a pixel from the edge
        part[:, at] += 0.5 / factor[:, 0] - 0.5
    part[:, 6:8] = np.floor(part[:, 6:8] / factor)
    part[:, 8:10] = np.ceil((part[:, 8:10] + 1) / factor) - 1
    part[:, 10:12] = np.maximum(part[:, 10:12] / factor, 1)
    part[:, 12:16] = (part[:, 12:16] + 0.5) / factor - 0.5
    part[:, 16:18] *= factor
    columns[some] = part
