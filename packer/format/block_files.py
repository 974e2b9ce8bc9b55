"""Blocks of fields whose stored size is not known beforehand, a file each until the pack is put together.

Rows of any length: their lengths (int64, one a row), then their bytes. Compressed rows: what the codec made of the block.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray

from packer.codecs.block_codecs import BlockCodec
from packer.format.header import Field


@dataclass(frozen=True)
class StreamedArray:
    """An array uint8 [nbytes] that is given piece by piece."""

    nbytes: int
    pieces: Iterable[bytes]


@dataclass(frozen=True)
class CompressedArray:
    """A compressed field, [rows, *shape], given block by block as it is to be stored."""

    field: Field
    codec: BlockCodec
    blocks: Iterable[bytes]
    nbytes: int
    """Bytes of all blocks, about."""


AddedArray = NDArray[np.generic] | StreamedArray | CompressedArray
"""An array that is added to a pack when it is put together."""


class BlockFiles:
    """The files of one field. Writing is thread-safe for different blocks."""

    def __init__(self, folder: str, name: str) -> None:
        self._stem = os.path.join(folder, f"{name}.")

    def write(self, block: int, *pieces: bytes | memoryview) -> int:
        """Write a block's file anew; returns its XXH3-64."""
        state = xxhash.xxh3_64()
        with open(f"{self._stem}{block}", "wb", buffering=0) as file:
            for piece in pieces:
                view = memoryview(piece)
                state.update(view)
                while view:
                    view = view[file.write(view) :]
        return state.intdigest()

    def nbytes(self, blocks: int) -> int:
        """Return the bytes of the files of the first so many blocks."""
        return sum(os.path.getsize(f"{self._stem}{block}") for block in range(blocks))

    def read(self, block: int) -> bytes:
        """Read a block's file. Raises FileNotFoundError."""
        with open(f"{self._stem}{block}", "rb") as file:
            return file.read()

    def check(self, block: int, checksum: int) -> bool:
        """Return True if a block's file is there and has that XXH3-64."""
        try:
            return xxhash.xxh3_64_intdigest(self.read(block)) == checksum
        except FileNotFoundError:
            return False

    def write_rows(self, block: int, rows: Sequence[bytes]) -> int:
        """Write a block of rows of any length; returns the file's XXH3-64."""
        lengths = np.fromiter(map(len, rows), "<i8", len(rows))
        return self.write(block, lengths.tobytes(), b"".join(rows))

    def lengths(self, block: int, rows: int) -> NDArray[np.int64]:
        """Read the lengths of a block's rows, int64 [rows]."""
        with open(f"{self._stem}{block}", "rb") as file:
            return np.frombuffer(file.read(8 * rows), "<i8")

    def rows(self, block: int, rows: int) -> list[bytes]:
        """Read a block's rows."""
        data = self.read(block)
        bounds = [8 * rows, *(8 * rows + np.cumsum(np.frombuffer(data, "<i8", rows))).tolist()]
        return [data[a:b] for a, b in itertools.pairwise(bounds)]


class MovedRows:
    """Rows of a field as they are to be in the finished pack: some of them come from elsewhere.

    planned: rows when the blocks were written; kept: rows of the finished pack; moves: row -> the row it comes from.
    """

    def __init__(
        self, files: BlockFiles, *, block_rows: int, planned: int, kept: int, moves: Mapping[int, int]
    ) -> None:
        self.files, self.block_rows = files, block_rows
        self.planned, self.kept, self.moves = planned, kept, moves

    @property
    def blocks(self) -> int:
        """Blocks of the finished pack."""
        return -(-self.kept // self.block_rows)

    def changed(self, block: int) -> bool:
        """Return True if the finished block differs from the one that was written."""
        start = block * self.block_rows
        stop = min(start + self.block_rows, self.planned)
        return stop > self.kept or any(row in self.moves for row in range(start, stop))

    def ragged_offsets(self) -> NDArray[np.int64]:
        """Return where each finished row begins in the blob, int64 [kept + 1]."""
        lengths = np.concatenate(
            [
                self.files.lengths(b, self._count(b, self.planned))
                for b in range(-(-self.planned // self.block_rows))
            ]
        )
        for row, origin in self.moves.items():
            lengths[row] = lengths[origin]
        offsets = np.zeros(self.kept + 1, "<i8")
        np.cumsum(lengths[: self.kept], out=offsets[1:])
        return offsets

    def ragged(self) -> Iterator[bytes]:
        """Yield the bytes of each finished block's rows."""
        kept: tuple[int, list[bytes]] | None = None
        for block in range(self.blocks):
            planned = self._count(block, self.planned)
            if not self.changed(block):
                yield self.files.read(block)[8 * planned :]
                continue
            start = block * self.block_rows
            rows = self.files.rows(block, planned)[: self.kept - start]
            for i in range(len(rows)):
                if start + i in self.moves:
                    block_of, at = divmod(self.moves[start + i], self.block_rows)
                    if (
                        kept is None or kept[0] != block_of
                    ):  # rows that follow each other come from one block, mostly
                        kept = block_of, self.files.rows(block_of, self._count(block_of, self.planned))
                    rows[i] = kept[1][at]
            yield b"".join(rows)

    def coded(self, field: Field, codec: BlockCodec) -> Iterator[bytes]:
        """Yield each finished block as it is to be stored."""
        kept: tuple[int, NDArray[np.generic]] | None = None
        for block in range(self.blocks):
            if not self.changed(block):
                yield self.files.read(block)
                continue
            start, rows = block * self.block_rows, self.decoded(block, field, codec)
            rows[max(0, self.kept - start) :] = 0
            for i in range(self._count(block, self.kept)):
                if start + i in self.moves:
                    block_of, at = divmod(self.moves[start + i], self.block_rows)
                    if kept is None or kept[0] != block_of:
                        kept = block_of, self.decoded(block_of, field, codec)
                    rows[i] = kept[1][at]
            yield codec.compress(rows[: min(self.block_rows, self.kept)])

    def decoded(self, block: int, field: Field, codec: BlockCodec) -> NDArray[np.generic]:
        """Decode a written block's rows, [block_rows, *shape] (a chunk is always full)."""
        rows = np.empty((self.block_rows, *(field.shape or ())), field.dtype)
        codec.decompress_into(self.files.read(block), rows.reshape(-1).view(np.uint8))
        return rows

    def _count(self, block: int, rows: int) -> int:
        return min(self.block_rows, rows - block * self.block_rows)
