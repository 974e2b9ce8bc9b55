"""Images that kept their own size, as a pack stores them: their sizes are known before a pixel is decoded."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from packer.codecs import jpeg
from packer.errors import FormatError
from packer.format.header import Field
from packer.format.pack import Pack
from packer.read.row_reader import MAX_PIXELS

_LEAST_SIDE = 16  # of images that are decoded smaller; below, two scales of libjpeg may round to one size


def is_encoded(field: Field) -> bool:
    """Return True for a field of images that differ in size, stored as JPEG files."""
    return field.ragged and field.about.get("layout") == "HWC" and (field.codec or {}).get("name") == "jpeg"


def channels_of(field: Field) -> int:
    """Return the channels of such images."""
    return 3 if field.about.get("color") == "rgb" else 1


class EncodedImages:
    """Rows of such a field.

    rows: their bytes. numbers: of the rows, for messages. sizes: int64 [N, 2], heights and widths, upright.
    reducible: bool [N], whether an image may be decoded smaller. Raises FormatError for damaged rows.
    """

    def __init__(self, pack: Pack, field: Field, rows: Sequence[bytes], numbers: Sequence[int]) -> None:
        self._pack, self._field, self._rows, self._numbers = pack, field, rows, numbers
        self.sizes = np.empty((len(rows), 2), np.int64)
        self.reducible = np.empty(len(rows), np.bool_)
        for i, row in enumerate(rows):
            try:
                *self.sizes[i], _ = jpeg.size(row)
            except ValueError as error:
                raise self._damaged(i, error) from None
            if self.sizes[i].prod() > MAX_PIXELS:
                height, width = self.sizes[i].tolist()
                raise self._damaged(i, ValueError(f"a JPEG of {width:,} x {height:,} pixels"))
            # Of a turned one the smaller pixels would begin at the other edge.
            self.reducible[i] = self.sizes[i].min() >= _LEAST_SIDE and jpeg.jpeg_orientation(row) == 1

    def decode_into(self, number: int, out: NDArray[np.uint8]) -> None:
        """Decode an image, upright, or 1/2, 1/4 or 1/8 of it where it is reducible.

        out: uint8 [h, w, C], C-contiguous; its size says how much, sides that do not divide are rounded up. C may be 4 for 3, which
            is faster: the last means nothing.
        """
        try:
            jpeg.decode_upright_into(self._rows[number], out, out.shape[:2] != tuple(self.sizes[number]))
        except ValueError as error:
            raise self._damaged(number, error) from None

    def _damaged(self, number: int, error: ValueError) -> FormatError:
        return FormatError(
            f"{self._pack.path}: row {self._numbers[number]} of {self._field.name!r} is damaged ({error})."
            " Run packer verify, or convert the images again."
        )
