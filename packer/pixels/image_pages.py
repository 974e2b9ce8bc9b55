"""Pages and frames of image files beyond the first, which is the one that is packed."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from packer.errors import ImageError
from packer.pixels.image_files import (
    format_of_image,
    opened,
)

_SUBFILE = 254  # TIFF 6.0, NewSubfileType
_OF_ANOTHER_PAGE = 1 | 4  # a copy of lower resolution, a mask
_MOST_PAGES, _MOST_TAGS = 64, 4096
_BYTES = {3: 2, 4: 4}  # TIFF's types SHORT and LONG


def has_more_pages(data: bytes) -> bool:
    """Return True if a file has pages or frames beyond the first; previews and masks of the first are none.

    False for JPEG: its second picture (MPO) is a preview or the same scene.
    """
    name, _ = format_of_image(data)
    if name in ("", "JPEG"):
        return False
    if name == "TIFF":
        return any(not kind & _OF_ANOTHER_PAGE for number, kind in enumerate(_tiff_pages(data)) if number)
    try:
        with opened(data) as image:
            return bool(getattr(image, "is_animated", False))
    except (ImageError, MemoryError):
        return False


def _tiff_pages(data: bytes) -> Iterator[int]:
    """Yield NewSubfileType of each page of a TIFF or BigTIFF file, 0 if it has none; at most _MOST_PAGES."""
    little, big = data.startswith(b"II"), data[2:4] in (b"+\0", b"\0+")
    forms = ("Q", "Q", "HHQ8s") if big else ("I", "H", "HHI4s")
    offset, count, entry = (struct.Struct(("<" if little else ">") + form) for form in forms)
    try:
        (at,) = offset.unpack_from(data, 8 if big else 4)
        for _ in range(_MOST_PAGES):
            (entries,) = count.unpack_from(data, at) if at else (0,)
            if not 0 < entries <= _MOST_TAGS:
                return
            at += count.size
            tags = (entry.unpack_from(data, at + k * entry.size) for k in range(entries))
            kinds = (value[: _BYTES.get(kind, 0)] for tag, kind, _, value in tags if tag == _SUBFILE)
            yield int.from_bytes(next(kinds, b""), "little" if little else "big")
            (at,) = offset.unpack_from(data, at + entries * entry.size)
    except struct.error:
        return  # truncated: the decoder reports it
