"""Byte ranges of a pack's arrays, by element and by block.

An element is a row of a fixed-shape field, an entry of offsets, or a byte of a blob. Loading finds rows
through the same extents in C (``read/gather.py``).
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from packer.format.fields import (
    OFFSETS,
    Extent,
)
from packer.format.header import Header


class Span(NamedTuple):
    """A contiguous byte range of a file; file: as in Extent."""

    file: str
    offset: int
    nbytes: int


class ArraySpans:
    """The byte ranges of an uncompressed array's elements. count: number of elements."""

    def __init__(self, extents: Sequence[Extent]) -> None:
        self._extents = extents
        self._firsts = [0, *itertools.accumulate(e.rows for e in extents)]
        self.count: int = self._firsts[-1]

    def elements(self, start: int, stop: int) -> list[Span] | None:
        """Return the byte ranges of elements [start, stop), in order; None if some are outside the array."""
        if not 0 <= start <= stop <= self.count:
            return None
        found: list[Span] = []
        k = bisect.bisect_right(self._firsts, start) - 1
        while start < stop:
            extent, first = self._extents[k], self._firsts[k]
            end = min(stop, first + extent.rows)
            if start < end:
                offset = extent.offset + (start - first) * extent.row_bytes
                found.append(Span(extent.file, offset, (end - start) * extent.row_bytes))
            start, k = end, k + 1
        return found


class BlockSpans:
    """The byte ranges of an array's blocks, in a pack of one part.

    read: returns bytes of a file at an offset. The reader of a blob's blocks takes their places from the row
    offsets.
    """

    array: str
    extents: tuple[Extent, ...]

    def __init__(
        self, header: Header, array: str, read: Callable[[str, int, int], bytes | memoryview]
    ) -> None:
        f = header.field(array.removesuffix(OFFSETS))
        self.array, self.extents = array, header.extents[array]
        self._header, self._read = header, read
        self.compressed: bool = f.compressed
        self._spans = None if f.compressed else ArraySpans(self.extents)
        self._offsets = ArraySpans(header.extents[f.name + OFFSETS]) if f.ragged and array == f.name else None
        self._end = header.rows + (array != f.name)
        # Block and entry of the last read: each block ends where the next begins.
        self._latest = (-1, -1)

    def spans(self, block: int) -> list[Span] | None:
        """Return a stored block's byte ranges in order; None if damaged offsets lead outside the array."""
        if self._spans is None:  # a compressed block is one extent
            extent = self.extents[block]
            return [Span(extent.file, extent.offset, extent.nbytes)]
        return self._spans.elements(self.first(block), self.first(block + 1))

    def first(self, block: int) -> int:
        """Return the index of a block's first element; -1 if unreadable.

        The last block's successor starts at the array's end.
        """
        row = min(block * self._header.block_rows, self._header.rows)
        if self._offsets is None:
            return self._end if block == self._header.blocks else row
        latest, first = self._latest
        if block == latest:
            return first
        try:
            [span] = self._offsets.elements(row, row + 1) or []
            data = self._read(*span)
        except OSError:
            return -1
        first = int.from_bytes(data, "little", signed=True) if len(data) == 8 else -1
        self._latest = (block, first)
        return first
