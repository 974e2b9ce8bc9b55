"""Blocks of fields whose stored size is not known beforehand, a file each until the pack is put together.

Rows of any length: their lengths (int64, one a row), then their bytes. Compressed rows: what the codec made of the block.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from packer.codecs.block_codecs import BlockCodec, codec_from_record
from packer.format.header import Field


class AddedArray(NamedTuple):
    """An array that is added to a pack when it is put together, given piece by piece.

    nbytes: of all pieces, about that where they are compressed; codec: of the pieces, a block each, None if they are as they are.
    """

    dtype: str
    shape: tuple[int, ...]
    pieces: Iterable[bytes]
    nbytes: int
    codec: BlockCodec | None = None

    @classmethod
    def of(cls, array: NDArray[np.generic]) -> AddedArray:
        """Return a whole array, in one piece."""
        return cls(array.dtype.str, array.shape, (array.tobytes(),), array.nbytes)


class BlockFiles:
    """The files of one field, of so many rows in blocks of `block_rows`. Writing is thread-safe for different blocks.

    The rows of a block are an array, [block_rows, *shape], where a codec packs them, else a list of each row's bytes.
    """

    def __init__(self, folder: str, field: Field, rows: int, block_rows: int) -> None:
        self._stem = os.path.join(folder, f"{field.name}.")
        self._field, self._rows, self._block_rows = field, rows, block_rows
        self.codec = codec_from_record(dict(field.codec or {})) if field.compressed else None

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

    def empty(self) -> Any:
        """Return the rows of a block that has none yet, or zeros."""
        shape = (self._block_rows, *(self._field.shape or ()))
        return [] if self.codec is None else np.zeros(shape, self._field.dtype)

    def store(self, block: int, rows: Any) -> int:
        """Write a block's rows; returns the file's XXH3-64."""
        if self.codec is not None:
            return self.write(block, self.codec.compress(rows))
        lengths = np.fromiter(map(len, rows), "<i8", len(rows))
        return self.write(block, lengths.tobytes(), b"".join(rows))

    def load(self, block: int) -> Any:
        """Read a block's rows."""
        data = self.read(block)
        if self.codec is not None:
            rows = self.empty()
            self.codec.decompress_into(data, rows.reshape(-1).view(np.uint8))
            return rows
        lengths = self._lengths(block, data)
        bounds = [8 * len(lengths), *(8 * len(lengths) + np.cumsum(lengths)).tolist()]
        return [data[a:b] for a, b in itertools.pairwise(bounds)]

    def move(self, moves: Sequence[tuple[int, int]]) -> None:
        """Copy rows (to, from), in that order; none is copied that was copied over before."""
        size = self._block_rows
        donor, donors = -1, self.empty()  # rows that follow each other come from one block, mostly
        for block, group in itertools.groupby(moves, lambda move: move[0] // size):
            rows = self.load(block)
            for to, origin in group:
                if origin // size != donor:
                    donor = origin // size
                    donors = self.load(donor)
                rows[to % size] = donors[origin % size]
            self.store(block, rows)

    def offsets(self, kept: int) -> NDArray[np.int64]:
        """Return where each of the first rows begins in the blob, int64 [kept + 1]."""
        lengths = []
        for block in self._blocks(kept):
            with open(f"{self._stem}{block}", "rb") as file:
                lengths.append(self._lengths(block, file.read(8 * self._block_rows)))
        offsets = np.zeros(kept + 1, "<i8")
        np.cumsum(np.concatenate(lengths)[:kept], out=offsets[1:])
        return offsets

    def blob(self, kept: int) -> Iterator[bytes]:
        """Yield the bytes of each block of the first rows."""
        for block in self._blocks(kept):
            data = self.read(block)
            lengths = self._lengths(block, data)
            stop = 8 * len(lengths) + int(lengths[: kept - block * self._block_rows].sum())
            yield data[8 * len(lengths) : stop]

    def nbytes(self, kept: int) -> int:
        """Return the bytes of the files of the first rows."""
        return sum(os.path.getsize(f"{self._stem}{block}") for block in self._blocks(kept))

    def packed(self, kept: int) -> Iterator[bytes]:
        """Yield each block of the first rows as it is to be stored: a chunk is always full, behind the last row with zeros."""
        assert self.codec is not None
        for block in self._blocks(kept):
            start = block * self._block_rows
            if min(start + self._block_rows, self._rows) <= kept:
                yield self.read(block)
                continue
            rows = self.load(block)
            rows[kept - start :] = 0
            yield self.codec.compress(rows[: min(self._block_rows, kept)])

    def _blocks(self, kept: int) -> range:
        return range(-(-kept // self._block_rows))

    def _lengths(self, block: int, data: bytes) -> NDArray[np.int64]:
        return np.frombuffer(data, "<i8", min(self._block_rows, self._rows - block * self._block_rows))
