"""Checksums of format 1, and the trailer that seals a pack.

XXH3, 64 bits for each block, 128 bits for the parts that the trailer covers. They detect damage, not forgery:
anyone who can write the file can write its checksums. See xxhash.com.

The trailer is 128 bytes that mark a pack as complete. Readers check it before they look at anything else in
the file.

    offset  size  content (integers are little-endian)
         0     8  length of the container: the HDF5 file without its trailer; 0 in a directory
         8     8  header: offset in its file
        16     8  header: length
        24    16  header: XXH3-128
        40     8  checksum table: offset in its file
        48     8  checksum table: length
        56    16  checksum table: XXH3-128
        72    16  rest: XXH3-128 of all bytes outside the row extents, in file order
                  (in a directory: of the arrays' npy headers, in column order)
        88    24  zero
       112     8  XXH3-64 of the 112 bytes before (big-endian, canonical)
       120     8  magic: 89 50 4B 52 0D 0A 1A 01; the last byte is the trailer's version

HDF5 ignores bytes after its end and drops them when it opens a file for writing. A file without a trailer is
therefore not a pack, was truncated, or was opened for writing since it was sealed.
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


_XXHASH: Any = xxhash  # xxhash's type hints do not accept NumPy arrays

block_checksum: Callable[[Buffer], int] = _XXHASH.xxh3_64_intdigest
"""Returns the XXH3-64 of a C-contiguous array's bytes, any dtype and shape; releases the GIL."""

BlockChecksum = _XXHASH.xxh3_64
"""Incremental form of `block_checksum`: ``update`` with each piece, then ``intdigest``."""


def digest(pieces: Iterable[Buffer]) -> bytes:
    """Return the XXH3-128 (16 bytes, canonical big-endian) of the concatenated pieces."""
    state = _XXHASH.xxh3_128()
    for piece in pieces:
        state.update(piece)
    return bytes(state.digest())


def file_ranges(read: Callable[[int, int], bytes], ranges: Iterable[tuple[int, int]]) -> Iterator[bytes]:
    """Yield the bytes of [start, stop) ranges of a file, in pieces of bounded size.

    read(offset, count): returns bytes of the file. Raises EOFError if the file ends inside a range.
    """
    for start, stop in ranges:
        while start < stop:
            piece = read(start, min(_PIECE, stop - start))
            if not piece:
                raise EOFError("the file ends before them")
            yield piece
            start += len(piece)


def outside(taken: Iterable[tuple[int, int]], length: int) -> list[tuple[int, int]]:
    """Return the [start, stop) byte ranges of [0, length) that no range in `taken` covers, in order."""
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
    """Content of the trailer: offsets and lengths in bytes, digests of 16 bytes."""

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
        """Parse 128 bytes; return None if they are no trailer or a damaged one."""
        if len(data) != SIZE or data[-8:] != MAGIC:
            return None
        if xxhash.xxh3_64_digest(data[:-16]) != data[-16:-8]:
            return None
        return cls(*_LAYOUT.unpack(data[:-16])[:-1])

    def check_length(self, name: str, size: int) -> None:
        """Check that a file of `size` bytes ends with this trailer. Raises FormatError."""
        if self.container_length != size - SIZE:
            raise damaged(
                name, f"is {size} bytes long, its trailer says {self.container_length + SIZE}", "trailer"
            )
