"""Sizes of pictures as stored and upright, and points turned like the pixels, by EXIF orientation."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.codecs.jpeg import swaps_sides
from packer.pixels.image_files import (
    read_image_header,
    read_orientation,
)


class StoredSize(NamedTuple):
    """Size of a picture in pixels as stored, and the EXIF orientation, 1 to 8, that turns it upright."""

    height: int
    width: int
    orientation: int

    @classmethod
    def from_upright(cls, upright: tuple[int, int], orientation: int) -> StoredSize:
        """Return the stored size of a picture whose upright (height, width) is known."""
        return cls(*(upright[::-1] if swaps_sides(orientation) else upright), orientation)

    @property
    def swapped(self) -> bool:
        """True if turning exchanges a height and a width that differ."""
        return swaps_sides(self.orientation) and self.height != self.width

    @property
    def stored(self) -> tuple[int, int]:
        """(height, width) as stored."""
        return self.height, self.width

    @property
    def upright(self) -> tuple[int, int]:
        """(height, width) of the upright picture."""
        return self.stored[::-1] if swaps_sides(self.orientation) else self.stored


def read_stored_size(data: bytes) -> StoredSize | None:
    """Return the size of an image file without decoding it, None if its header cannot be read."""
    header = read_image_header(data)
    if header is None:
        return None
    return StoredSize.from_upright((header.height, header.width), read_orientation(data))


def turn_points(xy: NDArray[np.float64], orientation: int, upright: tuple[int, int]) -> NDArray[np.float64]:
    """Return points of a stored picture as points of the upright one.

    They turn as `upright` of codecs/jpeg.py turns pixels. xy: [..., 2] in pixels, not modified; orientation:
    EXIF, 1 to 8; upright: height and width when upright.

    >>> turn_points(np.array([10.0, 0.0]), 6, (400, 300)).tolist()  # the stored top is the upright right
    [300.0, 10.0]
    """
    turned = xy[..., ::-1].copy() if swaps_sides(orientation) else xy.copy()
    height, width = upright
    if orientation in (3, 4, 7, 8):
        turned[..., 1] = height - turned[..., 1]
    if orientation in (2, 3, 6, 7):
        turned[..., 0] = width - turned[..., 0]
    return turned
