"""Parts of JPEG files: the rows of MCUs that a crop needs, cut out without decoding anything.

The pixels of a JPEG file are compressed in **MCUs**, squares of 8 or 16 pixels a side, row after row, and each takes up where the
one before it ended: no decoder can begin in the middle. With a **restart marker** after each row of MCUs it can: there the bits begin
at a whole byte, and nothing before it is referred to. So the header, with another height, and the bytes between two
markers are a JPEG file of those rows of pixels, which any decoder reads. Markers are numbered 0 to 7 in turn: the part's begin with 0.

Decoders enlarge colours of half the height smoothly, from the nearest two rows: at the edges of a part one of them is missing. So rows
that touch an edge inside the picture are left out of what a part promises.

The loops are in C (``native/jpeg_restarts.c``). Where they were not compiled there are no parts, and whole files are decoded.
"""

from __future__ import annotations

from packer import native


def part(data: bytes, first: int, stop: int) -> tuple[bytes, int, int] | None:
    """Cut the rows of pixels first to stop - 1 of a JPEG file out, and those around them that share their MCUs.

    data: a whole JPEG file; first and stop: in the picture as stored, before its EXIF orientation turns it, 0 <= first < stop <= height.
    Returns: (a JPEG file, start, end), which decodes to the rows start to end - 1. Its rows first to stop - 1 are equal bit for bit
        to those of the whole file, decoded at full size; start and end are multiples of 8 or the edges of the picture, so that the
        same holds for the rows that decoding to 1/2, 1/4 or 1/8 makes of them. Its metadata are those of the file.
        None if whole rows of MCUs cannot be left out, if there is not one restart marker after each row of MCUs, or if the file is
        progressive, damaged or anything else that is not a baseline JPEG in one scan: decode the whole file then.
    """
    return native.loops.jpeg_rows(data, first, stop) if native.COMPILED else None


def with_markers(data: bytes) -> bytes | None:
    """Add a restart marker after each row of MCUs of a JPEG file; its pixels stay, bit for bit, and all else that it holds.

    Where a row begins the DC values are written as such, not as differences from those before; all other codes are copied.
    Returns: the file, 0.1 to 0.2 % longer, data itself if it has such markers, or None if it is not a baseline JPEG in one
        scan, has only one row of MCUs, other restart markers or no codes for such values, or is damaged.
    """
    return native.loops.jpeg_with_restarts(data) if native.COMPILED else None
