"""Rows that are pictures of sizes of their own, as arrays: JPEG and PNG files, or raw bytes beside heights and widths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.codecs import jpeg, png
from packer.errors import FormatError
from packer.format.header import Field
from packer.format.own_size import OwnSize
from packer.format.pack import Pack

MAX_PIXELS = 1 << 30
"""Of a row that is a picture of a size of its own: more is damage, not a picture."""

_CODECS = (None, "jpeg", "png")


def check_codec(pack: Pack, field: Field) -> None:
    """Raise FormatError for a ragged field that is stored in a way that is not known."""
    own = OwnSize.of(field.about, field.codec)
    known = field.codec is None if own is None else own.codec in _CODECS
    if not known:
        raise FormatError(
            f"{pack.path}: {field.name!r} is stored in a way that this packer does not know"
            f" (codec {(field.codec or {}).get('name')!r}). Upgrade packer."
        )


def raw_pixels(own: OwnSize, row: bytes | memoryview, size: Sequence[int]) -> NDArray[Any]:
    """Return the pixels of a raw row of (height, width), as a view. Raises ValueError unless it has that size."""
    height, width = size
    pixels = height * width
    if min(height, width) < 1 or pixels > MAX_PIXELS or own.nbytes(height, width) != len(row):
        raise ValueError(f"it has {len(row):,} bytes, and its height and width are {height:,} and {width:,}")
    return np.frombuffer(row, own.dtype).reshape(own.shape(height, width))


def decode_picture(own: OwnSize, row: bytes, size: Sequence[int] | None) -> NDArray[Any]:
    """Decode a row into new memory, upright: [h, w, C] or [h, w].

    size: (height, width) that the pack says it has; needed for raw rows, compared with those of PNG files. Raises ValueError.
    """
    if own.codec == "jpeg":
        return jpeg.decode(row, MAX_PIXELS, own.channels)
    if own.codec is None:
        assert size is not None
        return raw_pixels(own, row, size).copy()
    height, width, _ = png.size(row)
    if height * width > MAX_PIXELS:
        raise ValueError(f"a PNG file of {width:,} x {height:,} pixels")
    values = png.array(row)
    if size is not None and (height, width) != tuple(size):
        raise ValueError(
            f"a PNG file of {width:,} x {height:,} pixels; its height and width are {size[0]:,} and {size[1]:,}"
        )
    if values.dtype.str != own.dtype or values.size != height * width * (own.channels or 1):
        raise ValueError(
            f"a PNG file of {values.dtype} {list(values.shape)}; {np.dtype(own.dtype)} in {own.channels or 1} channels is needed"
        )
    return values.reshape(own.shape(height, width))
