"""Images that differ in size, and their masks, as a pack stores them: JPEG or PNG files, or raw bytes.

Their sizes are known before a pixel is decoded; for raw bytes the fields height and width hold them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.codecs import jpeg, jpeg_parts, png
from packer.errors import FormatError, damaged, damaged_rows
from packer.format.fields import Field
from packer.packs.pack import Pack
from packer.read.gather import empty

MAX_PIXELS = 1 << 30
"""Most pixels of a row: more means a damaged header."""
_LEAST_SIDE = 16  # smaller images are decoded at full size: two scales of libjpeg may round to one size


def is_encoded(field: Field) -> bool:
    """Return True for a field of images that differ in size."""
    return field.own_size is not None and field.about.get("layout") == "HWC"


def channels_of(field: Field) -> int:
    """Return the number of channels of images that differ in size."""
    return (field.own_size and field.own_size.channels) or 1


def dtype_of(field: Field) -> str:
    """Return NumPy's type string for the pixels of such images or masks, and for other fields their dtype."""
    return field.dtype if field.own_size is None else field.own_size.dtype


class EncodedImages:
    """Rows of images that differ in size, or of their masks or soft maps.

    rows: their bytes. numbers: row numbers, for messages. known: heights and widths from the pack, int [N,
    2], needed for raw rows. sizes: int64 [N, 2], heights and widths, upright. boxes: int64 [N, 4], left, top,
    right and bottom of the part of each image to decode: the full image until `cut` is called.
    Raises FormatError for damaged rows.
    """

    def __init__(
        self,
        pack: Pack,
        field: Field,
        rows: Sequence[bytes | memoryview],
        numbers: Sequence[int],
        known: NDArray[Any] | None = None,
    ) -> None:
        self._pack, self._field, self._numbers = pack, field, numbers
        if (own := field.own_size) is None:
            raise damaged(pack.path, f"rows of {field.name!r} are no pictures")
        self._own = own
        self._rows: list[Any] = [bytes(row) for row in rows] if own.codec == "png" else list(rows)
        sizes = []
        read_size: Any = {"jpeg": jpeg.size, "png": png.size}.get(own.codec or "")
        for i, row in enumerate(self._rows):
            try:
                height, width = said = known[i].tolist() if known is not None else (0, 0)
                if read_size is not None:
                    height, width, _ = read_size(row)
                pixels = height * width
                if read_size is None and (min(said) < 1 or own.nbytes(height, width) != len(row)):
                    raise ValueError(
                        f"it has {len(row):,} bytes, and its height and width are {height:,} and {width:,}"
                    )
                if pixels > MAX_PIXELS:
                    raise ValueError(f"a picture of {width:,} x {height:,} pixels")
                if known is not None and [height, width] != said and own.codec != "jpeg":
                    raise ValueError(
                        f"a PNG file of {width:,} x {height:,} pixels; its height and width are {said[0]:,}"
                        f" and {said[1]:,}"
                    )
            except ValueError as error:
                raise self._damaged(i, error) from None
            sizes.append((height, width))
        self.sizes: NDArray[np.int64] = np.array(sizes, np.int64).reshape(-1, 2)
        self.boxes: NDArray[np.int64] = np.zeros((len(rows), 4), np.int64)
        self.boxes[:, 2:] = self.sizes[:, ::-1]

    @cached_property
    def reducible(self) -> NDArray[np.bool_]:
        """Bool [N], True for images that may be decoded smaller.

        False for turned images: their smaller pixels would begin at the opposite edge.
        """
        able = self.sizes.min(axis=1) >= _LEAST_SIDE
        if self._own.codec != "jpeg":
            return np.zeros(len(able), np.bool_)
        return np.array(
            [fits and jpeg.jpeg_orientation(row) == 1 for fits, row in zip(able, self._rows, strict=True)],
            np.bool_,
        )

    def decode(self, number: int) -> NDArray[Any]:
        """Decode an image, upright, into new memory: [h, w, C] or [h, w]."""
        shape = self._own.shape(*self.sizes[number].tolist())
        out = empty(self._pack.path, self._field.name, shape, self._own.dtype)
        self.decode_into(number, out)
        return out

    def check_sizes(self, sizes: NDArray[np.int64]) -> None:
        """Raise FormatError unless these are masks of images of the given sizes, int64 [N, 2]."""
        for i in np.flatnonzero((self.sizes != sizes).any(axis=1)).tolist():
            (height, width), (rows, columns) = self.sizes[i].tolist(), sizes[i].tolist()
            raise self._damaged(
                i, ValueError(f"{width} x {height} pixels beside an image of {columns} x {rows}")
            )

    def cut(self, seen: NDArray[np.int64]) -> None:
        """Restrict each image to a box around the pixels seen, int64 [N, 4] as `boxes`.

        Boxes of reducible images have edges at multiples of 8. JPEG files keep the tiles around those pixels,
        or everything if they are turned or have no tiles.
        """
        if self._own.codec != "jpeg":
            self.boxes = seen
            return
        boxes: list[Any] = self.boxes.tolist()
        for i, (able, box) in enumerate(zip(self.reducible.tolist(), seen.tolist(), strict=True)):
            if able and (part := jpeg_parts.part(self._rows[i], box)):
                self._rows[i], boxes[i] = part
        self.boxes = np.array(boxes, np.int64).reshape(-1, 4)

    def decode_into(self, number: int, out: NDArray[Any], by: int = 1) -> None:
        """Decode the box of an image, upright; `by` times smaller (2, 4 or 8) if it is reducible.

        out: C-contiguous; for images uint8 [h, w, C], for masks [h, w] of their dtype. Sides that `by` does
            not divide are rounded up. C may be 4 for JPEG images of 3 channels, which is faster; the fourth
            has no meaning.
        """
        data = self._rows[number]
        try:
            if self._own.codec == "jpeg":
                jpeg.decode_upright_into(data, out, by > 1)
                return
            array = png.decode(data) if self._own.codec else np.frombuffer(data, self._own.dtype)
            shape = self._own.shape(*self.sizes[number].tolist())
            if array.dtype != out.dtype or array.size != math.prod(shape):
                raise ValueError(f"{array.dtype} {list(array.shape)} for {out.dtype} {list(shape)}")
            left, top, right, bottom = self.boxes[number].tolist()
            out[...] = array.reshape(shape)[top:bottom, left:right].reshape(out.shape)
        except ValueError as error:
            raise self._damaged(number, error) from None

    def _damaged(self, number: int, error: ValueError) -> FormatError:
        return damaged_rows(self._pack.path, self._field.name, error, self._numbers[number])
