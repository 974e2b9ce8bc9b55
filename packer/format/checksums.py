"""The hashes of format 1: XXH3, 64 bits for a block, 128 for what the trailer seals (xxhash.com).

They find damage, not forgery: anyone who can write the file can write its checksums.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import xxhash
from numpy.typing import NDArray

from packer.format.file_io import pread_all

Buffer = bytes | memoryview | NDArray[np.generic]

_PIECE = 8 << 20


def block_checksum(data: NDArray[np.generic]) -> int:
    """Return the XXH3-64 of a C-contiguous array's bytes, any dtype and shape; releases the GIL."""
    return xxhash.xxh3_64_intdigest(_bytes(data))


class BlockChecksum:
    """block_checksum of arrays one after the other."""

    def __init__(self) -> None:
        self._state = xxhash.xxh3_64()

    def add(self, data: NDArray[np.generic]) -> None:
        """Take in a C-contiguous array's bytes."""
        self._state.update(_bytes(data))

    def value(self) -> int:
        """Return the checksum so far."""
        return int(self._state.intdigest())


def digest(pieces: Iterable[Buffer]) -> bytes:
    """Return the XXH3-128 (16 bytes, canonical big-endian) of the pieces' bytes, one after the other."""
    state = xxhash.xxh3_128()
    for piece in pieces:
        state.update(_bytes(piece) if isinstance(piece, np.ndarray) else piece)
    return state.digest()


def file_ranges(fd: int, ranges: Iterable[tuple[int, int]]) -> Iterator[bytes]:
    """Read [start, stop) ranges of an open file, in pieces of bounded size.

    Raises EOFError when the file ends before a range does.
    """
    for start, stop in ranges:
        while start < stop:
            piece = pread_all(fd, min(_PIECE, stop - start), start)
            if not piece:
                raise EOFError(start)
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


def _bytes(data: NDArray[np.generic]) -> NDArray[np.uint8]:
    return data.reshape(-1).view(np.uint8)
