"""Temporary files, one per block, for fields whose stored size is unknown until the pack is assembled.

A file of ragged rows holds their lengths (int64, one per row), then their bytes.
A file of compressed rows holds the codec's output.
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
from packer.format.fields import Field
from packer.format.file_io import create_anew


class AddedArray(NamedTuple):
    """An array that is added to a pack when the pack is assembled, delivered in pieces.

    nbytes: size of all pieces, an estimate if they are compressed;
    codec: compresses each piece (one per block), None if pieces are stored as they are.
    """

    dtype: str
    shape: tuple[int, ...]
    pieces: Iterable[bytes]
    nbytes: int
    codec: BlockCodec | None = None

    @classmethod
    def from_array(cls, array: NDArray[np.generic]) -> AddedArray:
        """Return a NumPy array as a single piece."""
        return cls(array.dtype.str, array.shape, (array.tobytes(),), array.nbytes)


class BlockFiles:
    """The block files of one field of `rows` rows. Different blocks can be written from different threads.

    The rows of a block are an array [block_rows, *shape] if the field has a codec, else a list with the bytes
    of each row.
    """

    codec: BlockCodec | None

    def __init__(self, folder: str, field: Field, rows: int, block_rows: int) -> None:
        self._stem = os.path.join(folder, f"{field.name}.")
        self._field, self._rows, self._block_rows = field, rows, block_rows
        self.codec = codec_from_record(dict(field.codec or {})) if field.compressed else None

    def write(self, block: int, *pieces: bytes | memoryview) -> int:
        """Replace a block's file; return the XXH3-64 of its bytes."""
        state = xxhash.xxh3_64()
        with open(create_anew(f"{self._stem}{block}"), "wb", buffering=0) as file:
            for piece in pieces:
                view = memoryview(piece)
                state.update(view)
                while view:
                    view = view[file.write(view) :]
        return state.intdigest()

    def read(self, block: int) -> bytes:
        """Return the bytes of a block's file. Raises FileNotFoundError."""
        with open(f"{self._stem}{block}", "rb") as file:
            return file.read()

    def check(self, block: int, checksum: int) -> bool:
        """Return True if a block's file exists and has this XXH3-64."""
        try:
            return xxhash.xxh3_64_intdigest(self.read(block)) == checksum
        except FileNotFoundError:
            return False

    def empty(self) -> Any:
        """Return the initial rows of a block: an empty list, or zeros."""
        shape = (self._block_rows, *(self._field.shape or ()))
        return [] if self.codec is None else np.zeros(shape, self._field.dtype)

    def store(self, block: int, rows: Any) -> int:
        """Write a block's rows; return the XXH3-64 of its file."""
        if self.codec is not None:
            return self.write(block, self.codec.compress(rows))
        lengths = np.fromiter(map(len, rows), "<i8", len(rows))
        return self.write(block, lengths.tobytes(), b"".join(rows))

    def load(self, block: int) -> Any:
        """Return a block's rows."""
        data = self.read(block)
        if self.codec is not None:
            rows = self.empty()
            self.codec.decompress_into(data, rows.reshape(-1).view(np.uint8))
            return rows
        lengths = self._lengths(block, data)
        bounds = [8 * len(lengths), *(8 * len(lengths) + np.cumsum(lengths)).tolist()]
        return [data[a:b] for a, b in itertools.pairwise(bounds)]

    def move(self, moves: Sequence[tuple[int, int]]) -> None:
        """Copy rows, given as (to, from) pairs, in order.

        No pair may read a row that an earlier pair has overwritten.
        """
        size = self._block_rows
        donor, donors = -1, self.empty()  # consecutive rows mostly come from the same block
        for block, group in itertools.groupby(moves, lambda move: move[0] // size):
            rows = self.load(block)
            for to, origin in group:
                if origin // size != donor:
                    donor = origin // size
                    donors = self.load(donor)
                rows[to % size] = donors[origin % size]
            self.store(block, rows)

    def offsets(self, kept: int) -> NDArray[np.int64]:
        """Return the byte offset of each of the first `kept` rows in the blob, int64 [kept + 1]."""
        lengths = []
        for block in self._blocks(kept):
            with open(f"{self._stem}{block}", "rb") as file:
                lengths.append(self._lengths(block, file.read(8 * self._block_rows)))
        offsets = np.zeros(kept + 1, "<i8")
        np.cumsum(np.concatenate(lengths)[:kept], out=offsets[1:])
        return offsets

    def blob(self, kept: int) -> Iterator[bytes]:
        """Yield the row bytes of each block, up to row `kept`."""
        for block in self._blocks(kept):
            data = self.read(block)
            lengths = self._lengths(block, data)
            stop = 8 * len(lengths) + int(lengths[: kept - block * self._block_rows].sum())
            yield data[8 * len(lengths) : stop]

    def nbytes(self, kept: int) -> int:
        """Return the total size in bytes of the files that hold the first `kept` rows."""
        return sum(os.path.getsize(f"{self._stem}{block}") for block in self._blocks(kept))

    def packed(self, kept: int) -> Iterator[bytes]:
        """Yield each compressed block, up to row `kept`.

        The last chunk is zero-filled behind its last row.
        """
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
