"""Boxes: the boxes of all images in one array, placed in rows like the pixels of their images."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import ImageError
from packer.pixels.row_placement import ImagePlacement

Turn = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""A function from points [..., 2] of an image, as in the file, to pixels of the upright image."""


class BoxTable(NamedTuple):
    """Boxes of images, one a row, as they are read.

    xyxy: left, top, right, bottom, float64 [R, 4]. owners: image of each box; labels: its class, or None;
    lines: its position in the file `subject`, counted in `unit`; int64 [R].
    """

    xyxy: NDArray[np.float64]
    owners: NDArray[np.int64]
    labels: NDArray[np.int64] | None
    lines: NDArray[np.int64]
    subject: str
    unit: str = "line"

    def taken(self, rows: NDArray[np.bool_ | np.int64]) -> BoxTable:
        """Return some of the boxes."""
        labels = None if self.labels is None else self.labels[rows]
        return self._replace(
            xyxy=self.xyxy[rows], owners=self.owners[rows], labels=labels, lines=self.lines[rows]
        )


class Boxes:
    """The boxes of all images in one array: ten million boxes take 480 MB."""

    sizes: NDArray[np.int64] | None
    subject: str

    def __init__(self, table: BoxTable, images: int, sizes: NDArray[np.int64] | None = None) -> None:
        """Sort the boxes by image. sizes: expected height and width of images, [images, 2]; 0: unknown."""
        table = table.taken(np.argsort(table.owners, kind="stable"))
        self._unit, self._lines, self.sizes = table.unit, table.lines, sizes
        self.subject = os.path.basename(table.subject)  # packs record reasons, but no paths of the machine
        self.xyxy: NDArray[np.float64] = table.xyxy
        """Left, top, right and bottom of each box as read, float64 [R, 4], sorted by image."""
        labels = table.labels
        self.labels: NDArray[Any] | None = None if labels is None else labels.astype("<i8", copy=False)
        """Class of each box, int64 [R], sorted by image, or None."""
        self._starts = np.searchsorted(table.owners, np.arange(images + 1))

    def place(self, index: int, geometry: ImagePlacement, upright: Turn) -> dict[str, bytes]:
        """Transform the boxes of image ``index`` with its pixels.

        upright: returns points as pixels of the upright image. Raises: ImageError.
        """
        rows, (height, width) = self._row_range(index), geometry.source
        corners = upright(self.corners(index))
        xyxy = np.hstack([corners.min(axis=1), corners.max(axis=1)])  # turning exchanges corners
        outside = (xyxy[:, 2:] <= 0).any(axis=1) | (xyxy[:, :2] >= (width, height)).any(axis=1)
        if outside.any():
            first = int(outside.argmax())
            shown = ",".join(f"{value:.10g}" for value in xyxy[first])
            raise ImageError(
                f"its box {shown} ({self.subject} {self._unit} {self._lines[rows][first]}) lies "
                f"outside its {width:,} x {height:,} pixels."
            )
        moved, keep = geometry.boxes(xyxy)
        placed = {"boxes": moved[keep].astype("<f4", copy=False).tobytes()}
        if self.labels is not None:
            placed["box_label"] = self.labels[rows][keep].tobytes()
        return placed

    def corners(self, index: int) -> NDArray[np.float64]:
        """Return the corners of an image's boxes as read, [n, 2, 2]."""
        return self.xyxy[self._row_range(index)].reshape(-1, 2, 2)

    def _row_range(self, index: int) -> slice:
        return slice(int(self._starts[index]), int(self._starts[index + 1]))

    @property
    def images(self) -> int:
        """Number of images, with or without boxes."""
        return len(self._starts) - 1

    def with_boxes(self) -> NDArray[np.int64]:
        """Return the images that have boxes, int64, ascending."""
        return np.flatnonzero(np.diff(self._starts))

    def owners(self) -> NDArray[np.int64]:
        """Return the image of each box, int64 [R], in the order of ``labels``."""
        return np.repeat(np.arange(self.images), np.diff(self._starts))

    def arrays(self) -> list[NDArray[Any]]:
        """Return the arrays that determine the rows, for a fingerprint."""
        return [self.xyxy, self._starts, *([] if self.labels is None else [self.labels])]
