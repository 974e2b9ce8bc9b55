"""Frames of boxes and keypoints: the upright image, or the picture as stored, which EXIF turns upright."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer.errors import ImageError
from packer.given_values import option_text
from packer.pixels.coordinate_units import FRAMES
from packer.pixels.stored_size import StoredSize, turn_points

_OPTION = "Labels.boxes_frame"

Orientation = Callable[[], int]
"""A function that returns the EXIF orientation of an image, from its header."""


@dataclass
class CoordinateFrames:
    """The frame of the coordinates of each image.

    chosen: one of FRAMES for all images, or None: it is the frame that has the recorded size; `usual` if both
    have it, or if no size is recorded. subject: file of the coordinates. sizes: recorded height and width of
    each image, int64 [N, 2]; 0: unknown.
    """

    subject: str = ""
    sizes: NDArray[np.int64] | None = None
    chosen: str | None = None
    usual: str = FRAMES[0]

    def settle(self, chosen: str | None, sample: Mapping[int, StoredSize]) -> None:
        """Set the frame of images whose recorded size does not tell: that of all in a sample that do tell."""
        self.chosen = chosen
        told = {self.told_by_size(index, size) for index, size in sample.items()} - {None}
        self.usual = FRAMES[1] if told == {FRAMES[1]} else FRAMES[0]

    def told_by_size(self, index: int, size: StoredSize) -> str | None:
        """Return the frame that the recorded size of an image tells, or None."""
        frames = {size.upright: FRAMES[0], size.stored: FRAMES[1]}
        return frames.get(self._recorded(index)) if size.swapped else None

    def _recorded(self, index: int) -> tuple[int, int]:
        height, width = (0, 0) if self.sizes is None else self.sizes[index].tolist()
        return height, width

    def frame(self, index: int, size: StoredSize) -> str:
        """Return the frame of an image's coordinates."""
        return self.chosen or self.told_by_size(index, size) or self.usual

    def place(
        self,
        index: int,
        upright: tuple[int, int],
        orientation: Orientation,
        coordinates: NDArray[np.float64],
        relative: bool,
    ) -> NDArray[np.float64]:
        """Return points of an image as pixels of the upright image.

        upright: its height and width. coordinates: [..., 2], in pixels, or in shares of the sides if
        `relative`. Raises: ImageError if they are for an image of another size.
        """
        recorded = self._recorded(index)
        other = self.chosen is None and all(recorded) and recorded != upright
        size = StoredSize(*upright, 1)
        if other or FRAMES[1] in (self.chosen, self.usual):
            size = StoredSize.from_upright(upright, orientation())
        if other and recorded != size.stored and not relative:
            raise ImageError(
                f"has {upright[1]:,} x {upright[0]:,} pixels, but its boxes in {self.subject} are for "
                f"{recorded[1]:,} x {recorded[0]:,}. If they fit the image as it is, pass "
                f"{option_text(_OPTION, FRAMES[0])}."
            )
        stored = self.frame(index, size) == FRAMES[1]
        height, width = size.stored if stored else upright
        points = coordinates * (width, height) if relative else coordinates
        return turn_points(points, size.orientation, upright) if stored else points

    def record(self) -> str:
        """Return what decides the coordinates besides the sizes, for a fingerprint; "" by default."""
        return "" if (self.chosen, self.usual) == (None, FRAMES[0]) else repr((self.chosen, self.usual))

    def explain(self, orientation: int) -> str:
        """Return a sentence on a refused image that EXIF turns; "" if it is not turned."""
        if orientation == 1:
            return ""
        other = FRAMES[self.chosen != FRAMES[1]]
        return (
            f" Its EXIF orientation {orientation} turns it upright; if its coordinates are those of the "
            f"{other} picture, pass {option_text(_OPTION, other)}."
        )
