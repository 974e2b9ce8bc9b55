"""Fields of a pack, and the extents of their rows; names and masks of fields."""

from __future__ import annotations

import dataclasses
import keyword
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from packer.format.own_size import OwnSize

OFFSETS = ".offsets"


_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")


# the HDF5 group, and the file of the checksum table in a directory
_TAKEN = frozenset(("packer", "checksums"))


@dataclass(frozen=True)
class Field:
    """A named column of a pack.

    dtype: NumPy type string, one of DTYPES; shape: of one row, None if ragged (then dtype is "|u1");
    about: further facts for readers (layout, colour order, method of resizing), plain JSON values;
    codec: decodes the stored bytes into rows; None if the bytes are the rows.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] | None
    about: Mapping[str, Any] = field(default_factory=dict)
    codec: Mapping[str, Any] | None = None

    @property
    def ragged(self) -> bool:
        """True if rows differ in length."""
        return self.shape is None

    @property
    def compressed(self) -> bool:
        """True for a fixed field that is stored block by block through a codec."""
        return self.codec is not None and not self.ragged

    @property
    def loaded(self) -> Field:
        """The field as loading returns it: JPEG rows of equal shape become pixels."""
        shape = self.codec.get("shape") if self.codec is not None and self.ragged else None
        return self if shape is None else Field(self.name, "|u1", tuple(shape), self.about)

    @property
    def pixels(self) -> bool:
        """True if rows are images of 8 or 16 bits, [H, W, C]."""
        hwc = len(self.shape or ()) == 3 and self.about.get("layout") == "HWC"
        return hwc and self.dtype in ("|u1", "<u2")

    @property
    def deep(self) -> bool:
        """True for images that JPEG cannot hold: 16 bits, or other than 1, 3 or 4 channels."""
        return self.pixels and (self.dtype != "|u1" or (self.shape or ())[2] not in (1, 3, 4))

    @property
    def most(self) -> int:
        """Largest value of a pixel; it counts as 1.0 in mean and std."""
        return int(np.iinfo(self.dtype).max)

    @property
    def own_size(self) -> OwnSize | None:
        """Pixel format of pictures that keep their size; None for other fields."""
        return OwnSize.parse(self.about, self.codec) if self.loaded.ragged else None

    @property
    def measures(self) -> bool:
        """True for the height or width of the pictures in another field."""
        return "of" in self.about and "sampling" not in self.about

    @property
    def counts(self) -> bool:
        """True for the numbers of the rows in the files that they came from."""
        return self.about.get("row_of") == "files"

    @property
    def by_default(self) -> bool:
        """True if it is loaded by default: no text, no picture's height or width, no numbers of rows."""
        return not self.about.keys() & {"encoding", "row_of"} and not self.measures

    @cached_property
    def row_bytes(self) -> int:
        """Bytes per row of a fixed field; per element of a ragged field's blob."""
        return prod(self.shape or ()) * np.dtype(self.dtype).itemsize

    @property
    def arrays(self) -> tuple[str, ...]:
        """Names of the arrays that store the field."""
        return (self.name, self.name + OFFSETS) if self.ragged else (self.name,)


def find_field(fields: Iterable[Field], name: str) -> Field | None:
    """Return the field with this name; None if there is none."""
    return next((f for f in fields if f.name == name), None)


@dataclass(frozen=True)
class Extent:
    """The place of a run of rows.

    file: relative to the pack, "" for the HDF5 file itself; offset: in bytes; row_bytes: bytes per row;
    stored: bytes of a compressed block in the file, else None.
    """

    file: str
    offset: int
    rows: int
    row_bytes: int
    stored: int | None = None

    @property
    def nbytes(self) -> int:
        """Bytes occupied in the file."""
        return self.rows * self.row_bytes if self.stored is None else self.stored

    @property
    def end(self) -> int:
        """Byte offset just past the extent."""
        return self.offset + self.nbytes


COORDINATES = ("boxes", "keypoints")
"""Fields whose values are pixel coordinates of the image in the same row."""


def beside_images(f: Field, image: Field | None) -> Field:
    """Return a field as a mask, which augmentation moves with the image, if it has a value per pixel; else as
    is.
    """
    size = (
        image.loaded.shape[:2] if image and image.loaded.shape and image.about.get("layout") == "HWC" else ()
    )
    shape, layout = f.shape or (), f.about.get("layout")
    flat = len(shape) == 2 and f.name not in COORDINATES
    if f is image or not size or shape[:2] != size or not (flat or (len(shape) == 3 and layout == "HWC")):
        return f
    return dataclasses.replace(f, about={"layout": layout or "HW", "sampling": "nearest", **f.about})


def is_field_name(name: object) -> bool:
    """Return True for a valid name of a field."""
    return (
        isinstance(name, str)
        and _NAME.match(name) is not None
        and not (keyword.iskeyword(name) or name in _TAKEN)
    )
