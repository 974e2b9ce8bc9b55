"""Parts of JPEG files: the tiles that a crop needs, cut out without decoding anything.

The pixels of a JPEG file are compressed in **MCUs**, squares of 8 or 16 pixels a side, row after row, and each takes up where the
one before it ended: no decoder can begin in the middle. At a **restart marker** it can: there the bits begin at a whole byte, and
nothing before it is referred to. The MCUs from one marker to the next, always so many of a row, are a **tile** here. So the header,
with another height and width, and the tiles of a rectangle are a JPEG file of its pixels, which any decoder reads. Markers are numbered
0 to 7 in turn: the part's begin with 0.

Decoders enlarge colours of half the height or width smoothly, from the nearest two pixels: at the edges of a part one of them is
missing. So pixels that touch an edge inside the picture are left out of what a part promises.

The loops are in C (``native/jpeg_restarts.c``). Where they were not compiled there are no parts, and whole files are decoded.
"""

from __future__ import annotations

from typing import TypeAlias

from packer import native

Box: TypeAlias = tuple[int, int, int, int]
"""Pixels: left, top, right, bottom, the last two exclusive."""


def part(data: bytes | memoryview, box: Box) -> tuple[bytes, Box] | None:
    """Cut the pixels of a box out of a JPEG file, and those around them that share their tiles.

    data: a whole JPEG file; box: in the picture as stored, before its EXIF orientation turns it, not empty, inside it.
    Returns: (a JPEG file, box), which decodes to the pixels of that box. Those of the box asked for are equal bit for bit
        to those of the whole file, decoded at full size. Edges of the box returned are multiples of 8 or edges of the picture, so
        that the same holds for the pixels that decoding to 1/2, 1/4 or 1/8 makes of them. Its metadata are those of the file.
        None if no tiles can be left out, if the tiles of a row are not whole ones, or if the file is progressive, damaged
        or anything else that is not a baseline JPEG in one scan: decode the whole file then.
    """
    found = native.loops.jpeg_part(data, *box) if native.COMPILED else None
    return None if found is None else (found[0], found[1:])


def interval_of(columns: int) -> int:
    """Return how many MCUs a tile has: the divisor of their number in a row that is closest to 4, not 1; the smaller one of two."""
    divisors = (k for k in range(2, columns + 1) if columns % k == 0)
    return min(divisors, key=lambda k: abs(k - 4), default=columns)


def with_markers(data: bytes) -> bytes | None:
    """Give a JPEG file the restart markers of tiles, in place of those that it has; its pixels stay, bit for bit, and all else.

    Where a tile begins the DC values are written as such, not as differences from those before; all other codes are copied. Huffman
    tables that lack codes for such values get them.
    Returns: the file, some 2 % longer, data itself if it has tiles, perhaps smaller ones, or None if it is not a baseline JPEG
        in one scan, would be a single tile, or is damaged.
    """
    return native.loops.jpeg_with_restarts(data) if native.COMPILED else None
