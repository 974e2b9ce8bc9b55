"""Boxes and keypoints of samples: into pixels of the row, as the image beside them is resized."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.pixels.coordinate_units import LEAST_PIXELS, check_unit
from packer.samples.field_plan import IMAGE, Sized, is_channels_first
from packer.samples.values import ValueRefusedError, as_value, is_pillow
from packer.sentence import Option

_WIDTHS = {"boxes": 4, "keypoints": 2}
"""Fields of coordinates -> numbers of an entry: left, top, right, bottom, or x, y."""


@dataclass
class Coordinates:
    """The reading and moving of boxes (xmin, ymin, xmax, ymax) and keypoints (x, y) beside images.

    unit: "relative", "pixels" or None; sized: the size that images get, None where they keep theirs; largest: field -> the largest
    coordinate that was seen.
    """

    unit: str | None = None
    sized: Sized | None = None
    largest: dict[str, float] = field(default_factory=dict)

    def moves(self, names: Mapping[str, Any]) -> bool:
        """Return True if samples of these fields have coordinates that change."""
        changes = self.unit == "relative" or self.sized is not None
        return changes and IMAGE in names and not names.keys().isdisjoint(_WIDTHS)

    def shortens(self, name: str, names: Mapping[str, Any]) -> bool:
        """Return True for a field of samples of these fields whose entries are left out with boxes that are cropped away."""
        return "boxes" in names and (name == "boxes" or name.startswith("box_")) and self.moves(names)

    def see(self, columns: Mapping[str, Sequence[Any]]) -> None:
        """Keep the largest coordinates of some samples, as they were given. Raises ValueRefusedError."""
        for name in _WIDTHS if IMAGE in columns and self.unit != "pixels" else ():
            column: Any = columns.get(name, ())
            for value in [column] if isinstance(column, np.ndarray) else column:
                largest = self.largest.get(name, 0.0)
                if largest >= LEAST_PIXELS:
                    break
                array = np.asarray(as_value(value))
                if array.size and array.dtype.kind in "iuf":
                    self.largest[name] = float(np.fmax(largest, np.fmax.reduce(array, axis=None)))

    def check(self, subject: str) -> None:
        """Raise UsageError if coordinates that were seen look like shares of the image's sides, and no unit is given, or the reverse."""
        for name, largest in self.largest.items():
            if self.unit == "relative" and largest >= LEAST_PIXELS:
                raise UsageError(
                    f"{subject}: a coordinate of its {name} is {largest:.4g}, as of pixels; shares of "
                    "an image's width and height reach to 1. Correct it, or pass "
                    f"{Option('Fields.boxes_unit', 'pixels')}."
                )
            check_unit(subject, name, [np.array(largest)], self.unit, "Fields.boxes_unit")

    def move(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return a sample's values with its boxes and keypoints in pixels of the row, float32.

        Boxes of which nothing is seen are left out, with their entries of other fields called ``box_...``; points that are not
        seen become NaN. Raises ValueRefusedError.
        """
        moved = dict(values)
        if not self.moves(values):
            return moved
        from packer.pixels.decode_resize import ImagePlacement  # here, as it loads OpenCV

        source = _size(values[IMAGE])
        size, fit = (source, "stretch") if self.sized is None else self.sized
        geometry = ImagePlacement.of(fit, source, size)
        share = np.array(source[::-1], np.float64) if self.unit == "relative" else np.ones(2)
        for name, width in _WIDTHS.items():
            if name not in values:
                continue
            given = _numbers(name, values[name], width)
            if not given.size:
                continue
            points = given.reshape(-1, 2) * share
            if name == "keypoints":
                moved[name] = geometry.keypoints(points).reshape(given.shape)
                continue
            _check_corners(given.reshape(-1, 4))
            boxes, seen = geometry.boxes(points.reshape(-1, 4))
            if seen.all():
                moved[name] = boxes.reshape(given.shape)
                continue
            moved[name] = boxes[seen].reshape(-1, *given.shape[1:])  # of one box, [4], nothing: [0]
            for other in values:
                entries = as_value(values[other]) if other.startswith("box_") else ""
                if isinstance(entries, np.ndarray) and len(entries.shape) and len(entries) == len(seen):
                    moved[other] = entries[seen]
        return moved

    def move_columns(self, columns: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        """Return columns of equal length as `move` changes their samples; those that cannot change are the same objects."""
        if not self.moves(columns):
            return dict(columns)
        names = [name for name in columns if name in _WIDTHS or name.startswith("box_")]
        rows = [
            self.move(dict(zip((IMAGE, *names), row, strict=True)))
            for row in zip(columns[IMAGE], *(columns[name] for name in names), strict=True)
        ]
        return {**columns, **{name: [row[name] for row in rows] for name in names}}


def _size(image: Any) -> tuple[int, int]:
    """Return (height, width) of an image. Raises ValueRefusedError."""
    if is_pillow(image):
        width, height = image.size
        return height, width
    shape = tuple(image.shape) if hasattr(image, "shape") else np.shape(as_value(image))
    if len(shape) not in (2, 3) or 0 in shape:
        raise ValueRefusedError(
            f"'image' has the shape {list(shape)}, and boxes or keypoints lie on [H, W, C]. Correct it"
        )
    return (shape[1], shape[2]) if is_channels_first(shape) else (shape[0], shape[1])


def _check_corners(boxes: NDArray[np.float64]) -> None:
    """Raise ValueRefusedError for boxes whose second corner lies before the first, as in x, y, width, height."""
    wrong = (boxes[:, 2:] < boxes[:, :2]).any(1)
    if wrong.any():
        told = ", ".join(f"{side:g}" for side in boxes[np.argmax(wrong)])
        raise ValueRefusedError(
            f"'boxes' has the entry [{told}], which ends before it begins; entries are xmin, ymin, xmax, ymax. Convert them"
        )


def _numbers(name: str, value: Any, width: int) -> NDArray[np.float64]:
    found = as_value(value)
    array = found if isinstance(found, np.ndarray) else np.empty((1, 0), "U1")
    if array.size and (array.dtype.kind not in "iuf" or array.shape[-1:] != (width,)):
        more = array.dtype.kind in "iuf" and array.ndim and array.shape[-1] > width
        raise ValueRefusedError(
            f"{name!r} is {array.dtype.name}{list(array.shape)}, and entries of {width} numbers are moved with the image."
            f" {'Make the further numbers a field of their own' if more else 'Correct it'}"
        )
    return array.astype(np.float64)
