"""The checksums of format 1, and the trailer that seals a pack with them: XXH3, 64 bits for a block, 128 for what the trailer seals.

They find damage, not forgery: anyone who can write the file can write its checksums. See xxhash.com.

The trailer is 128 bytes that say a pack is whole, checked before anything else looks at the file.

    offset  size  content (integers are little-endian)
         0     8  length of the container: the HDF5 file without its trailer; 0 in a directory
         8     8  header: offset in its file
        16     8  header: length
        24    16  header: XXH3-128
        40     8  checksum table: offset in its file
        48     8  checksum table: length
        56    16  checksum table: XXH3-128
        72    16  rest: XXH3-128 of all bytes outside the row extents, in file order (of a directory: the npy headers of the arrays,
                  in the order of the columns)
        88    24  zero
       112     8  XXH3-64 of the 112 bytes before (big-endian, canonical)
       120     8  magic: 89 50 4B 52 0D 0A 1A 01; the last byte is the trailer's version

HDF5 ignores bytes after its end, and drops them when it opens a file for writing: a missing trailer means that
the file is not one of ours, was cut short, or was opened for writing since.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from packer.errors import damaged

Buffer = bytes | memoryview | NDArray[np.generic]

_PIECE = 8 << 20


_XXHASH: Any = xxhash  # whose types know nothing of NumPy's arrays

block_checksum: Callable[[Buffer], int] = _XXHASH.xxh3_64_intdigest
"""Returns the XXH3-64 of the bytes of a C-contiguous array, any dtype and shape; releases the GIL."""

BlockChecksum = _XXHASH.xxh3_64
"""The same of what is given to ``update``, one after the other, as ``intdigest`` tells."""


def digest(pieces: Iterable[Buffer]) -> bytes:
    """Return the XXH3-128 (16 bytes, canonical big-endian) of the pieces' bytes, one after the other."""
    state = _XXHASH.xxh3_128()
    for piece in pieces:
        state.update(piece)
    return bytes(state.digest())


def file_ranges(read: Callable[[int, int], bytes], ranges: Iterable[tuple[int, int]]) -> Iterator[bytes]:
    """Read [start, stop) ranges of a file, in pieces of bounded size. read: returns bytes at an offset, of that number.

    Raises EOFError when the file ends before a range does.
    """
    for start, stop in ranges:
        while start < stop:
            piece = read(start, min(_PIECE, stop - start))
            if not piece:
                raise EOFError("the file ends before them")
            yield piece
            start += len(piece)


def outside(taken: Iterable[tuple[int, int]], length: int) -> list[tuple[int, int]]:
    """Return the [start, stop) byte ranges of a file of that length that lie in none of the ranges taken, in order."""
    ranges, at = [], 0
    for start, stop in sorted(taken):
        if start > at:
            ranges.append((at, start))
        at = max(at, stop)
    if at < length:
        ranges.append((at, length))
    return ranges


SIZE = 128
MAGIC = b"\x89PKR\r\n\x1a\x01"
_LAYOUT = struct.Struct("<QQQ16sQQ16s16s24s")
assert _LAYOUT.size == SIZE - 16


@dataclass(frozen=True)
class Trailer:
    """The trailer's content: offsets and lengths in bytes, digests of 16 bytes."""

    container_length: int
    header_offset: int
    header_length: int
    header_digest: bytes
    checksums_offset: int
    checksums_length: int
    checksums_digest: bytes
    rest_digest: bytes

    def to_bytes(self) -> bytes:
        """Return the 128 bytes."""
        body = _LAYOUT.pack(*astuple(self), bytes(24))
        return body + xxhash.xxh3_64_digest(body) + MAGIC

    @classmethod
    def from_bytes(cls, data: bytes) -> Trailer | None:
        """Read 128 bytes; None if they are no trailer, or a damaged one."""
        if len(data) != SIZE or data[-8:] != MAGIC:
            return None
        if xxhash.xxh3_64_digest(data[:-16]) != data[-16:-8]:
            return None
        return cls(*_LAYOUT.unpack(data[:-16])[:-1])

    def check_length(self, name: str, size: int) -> None:
        """See that a file of so many bytes ends with this trailer. Raises FormatError."""
        if self.container_length != size - SIZE:
            raise damaged(
                name, f"is {size} bytes long, its trailer says {self.container_length + SIZE}", "trailer"
            )
