"""Parts of JPEG files: the tiles that a crop needs, cut out without decoding.

The pixels of a JPEG file are compressed in **MCUs**, squares of 8 or 16 pixels per side, row by row. Each
depends on the one before it, so no decoder can begin in the middle, except at a **restart marker**: there the
bits begin at a byte boundary and refer to nothing before. The MCUs between two markers, a constant number
within a row, are called a **tile** here. The header with another height and width, followed by the tiles of a
rectangle, is a JPEG file of the rectangle's pixels that any decoder reads. Markers are numbered 0 to 7 in
turn; those of a part begin with 0.

Decoders upsample subsampled colours smoothly from the nearest two pixels; at the edges of a part one of them
is missing. The box of a part therefore excludes pixels at edges inside the picture.

The loops are in C (``native/jpeg_restarts.c``). Without them there are no parts, and complete files are
decoded.
"""

from __future__ import annotations

from typing import TypeAlias

from packer import native

NO_MARKERS = "restart markers"
Box: TypeAlias = tuple[int, int, int, int]
"""Pixels: left, top, right, bottom, the last two exclusive."""


def part(data: bytes | memoryview, box: Box) -> tuple[bytes, Box] | None:
    """Cut the tiles that contain a box out of a JPEG file.

    data: a complete JPEG file; box: in the stored picture, before its EXIF orientation turns it; not empty,
    inside the picture.
    Returns: (a JPEG file, box); the file decodes to the pixels of the returned box. Pixels of the requested
        box equal those of the complete file, decoded at full size, bit for bit. Edges of the returned box are
        multiples of 8 or edges of the picture, so the same holds for decoding at 1/2, 1/4 or 1/8. The
        metadata are those of the complete file.
        None if no tile can be omitted, if tiles cross the end of a row, or if the file is not a baseline JPEG
        in one scan, or is damaged: decode the complete file then.
    """
    found = native.loops.jpeg_part(data, *box) if native.COMPILED else None
    return None if found is None else (found[0], found[1:])


def interval_of(columns: int) -> int:
    """Return the MCUs per tile: the divisor of a row's MCUs, not 1, closest to 4; the smaller of two."""
    divisors = (k for k in range(2, columns + 1) if columns % k == 0)
    return min(divisors, key=lambda k: abs(k - 4), default=columns)


def with_markers(data: bytes) -> bytes | None:
    """Return a JPEG file with restart markers between tiles; pixels and all else stay equal, bit for bit.

    The markers replace those of the file. Where a tile begins, DC values are written absolutely instead of as
    differences; all other codes are copied. Huffman tables that lack codes for these values get them.
    Returns: the file, about 2 % longer; data itself if it has tiles, perhaps smaller ones; None if it is not
    a baseline JPEG
        in one scan, would be a single tile, or is damaged.
    """
    return native.loops.jpeg_with_restarts(data) if native.COMPILED else None


def versions() -> dict[str, str]:
    """Return the record of JPEG files without markers: {} if with_markers() writes them."""
    return {} if native.COMPILED else {NO_MARKERS: "none, without the C extension"}
