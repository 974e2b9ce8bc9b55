"""What a field's stored bytes are to a reader: rows as they are, rows of any length (perhaps JPEG files), compressed blocks."""

from __future__ import annotations

import itertools
import threading
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from packer.codecs import jpeg
from packer.codecs.blocks import codec_from_record
from packer.errors import FormatError
from packer.format.checksums import BlockChecksum
from packer.format.header import OFFSETS, Extent, Field
from packer.format.pack import Pack
from packer.orders.runs import Runs
from packer.read.extents import Array, Bytes, check_range

_PIECE_BYTES = 1 << 20  # read at once while a block's checksum is computed


class Rows(Protocol):
    """One field of a pack, opened. Thread-safe."""

    def read(self, runs: Runs, out: Bytes) -> None:
        """Read runs of rows as they are loaded. out: C-contiguous uint8 [sum of lengths, row bytes], overwritten."""

    def encoded(self, runs: Runs) -> list[bytes]:
        """The bytes of each row of a ragged field."""

    def close(self) -> None:
        """Close the files."""


class Plain:
    """A fixed field whose rows lie in the files as they are loaded."""

    def __init__(self, pack: Pack, field: Field) -> None:
        self._array = Array(pack, pack.header.extents[field.name])

    def read(self, runs: Runs, out: Bytes) -> None:
        """See Rows."""
        self._array.read(runs, out)

    def encoded(self, runs: Runs) -> list[bytes]:
        """There is none."""
        raise TypeError("rows of one length have no encoded form")

    def close(self) -> None:
        """Close the files."""
        self._array.close()


class Ragged:
    """Rows of any length: in each part of the pack a blob, and offsets in it. Where they are JPEG files, read() decodes them."""

    def __init__(self, pack: Pack, field: Field) -> None:
        self._pack, self._field = pack, field
        self._shape = field.loaded.shape
        self._firsts = np.cumsum([0, *(part.rows for part in pack.parts)])
        self._parts = [
            (Array(p, p.header.extents[field.name]), Array(p, p.header.extents[field.name + OFFSETS]))
            for p in pack.parts
        ]

    def read(self, runs: Runs, out: Bytes) -> None:
        """See Rows; the rows are JPEG files of one shape."""
        assert self._shape is not None
        pixels = out.reshape(-1, *self._shape)
        numbers = runs.rows()
        for i, data in enumerate(self.encoded(runs)):
            try:
                jpeg.decode_into(data, pixels[i])
            except ValueError as error:
                raise FormatError(
                    f"{self._pack.path}: row {numbers[i]} of {self._field.name!r} is damaged ({error})."
                    " Run packer verify, or convert the images again."
                ) from None

    def encoded(self, runs: Runs) -> list[bytes]:
        """See Rows."""
        check_range(runs, int(self._firsts[-1]))
        rows: list[bytes] = []
        for start, count in zip(runs.starts.tolist(), runs.lengths.tolist(), strict=True):
            stop = start + count
            for k in range(int(np.searchsorted(self._firsts, start, "right")) - 1, len(self._parts)):
                first, last = int(self._firsts[k]), int(self._firsts[k + 1])
                if first >= stop:
                    break
                rows += self._run(k, max(start, first) - first, min(stop, last) - first)
        return rows

    def _run(self, part: int, start: int, stop: int) -> list[bytes]:
        blob, offsets = self._parts[part]
        raw = np.empty((stop - start + 1, 8), np.uint8)
        offsets.read_run(start, raw)
        bounds = raw.view("<i8")[:, 0]
        first, last = int(bounds[0]), int(bounds[-1])
        if first < 0 or last > blob.rows or (bounds[1:] < bounds[:-1]).any():
            raise FormatError(
                f"{self._pack.path}: offsets of {self._field.name!r} are damaged. Convert the images again."
            )
        data = np.empty((last - first, 1), np.uint8)
        blob.read_run(first, data)
        whole, at = data.tobytes(), (bounds - bounds[0]).tolist()
        return [whole[a:b] for a, b in itertools.pairwise(at)]

    def close(self) -> None:
        """Close the files."""
        for blob, offsets in self._parts:
            blob.close()
            offsets.close()


class Coded:
    """A fixed field in compressed blocks. A block is decoded whole, so contiguous rows are far cheaper than scattered ones.

    Each thread keeps the block it decoded last.
    """

    def __init__(self, pack: Pack, field: Field) -> None:
        try:
            self._codec = codec_from_record(dict(field.codec or {}))
        except ValueError as error:
            raise FormatError(
                f"{pack.path}: {field.name!r} is stored in a way that this packer does not know ({error}). Upgrade packer."
            ) from None
        self._pack, self._field = pack, field
        self._files: list[Array] = []
        self._blocks: list[
            tuple[Array, Extent, int]
        ] = []  # file's bytes, place, rows that the block decodes to
        for part in pack.parts:
            extents = part.header.extents[field.name]
            self._files.append(Array(part, [Extent(extents[0].file, 0, max(e.end for e in extents), 1)]))
            self._blocks += ((self._files[-1], extent, part.header.block_rows) for extent in extents)
        self._firsts = np.cumsum([0, *(extent.rows for _, extent, _ in self._blocks)])
        self._local = threading.local()

    def read(self, runs: Runs, out: Bytes) -> None:
        """See Rows."""
        check_range(runs, int(self._firsts[-1]))
        at = 0
        for start, count in zip(runs.starts.tolist(), runs.lengths.tolist(), strict=True):
            row, stop = start, start + count
            while row < stop:
                block = int(np.searchsorted(self._firsts, row, "right")) - 1
                first = int(self._firsts[block])
                upto = min(stop, int(self._firsts[block + 1]))
                target = out[at : at + upto - row]
                if len(target) == self._blocks[block][2]:
                    self._decode(block, target.reshape(-1))
                else:
                    np.copyto(target, self._decoded(block)[row - first : upto - first])
                at += upto - row
                row = upto

    def encoded(self, runs: Runs) -> list[bytes]:
        """There is none."""
        raise TypeError("rows of one length have no encoded form")

    def _decoded(self, block: int) -> Bytes:
        """A block's rows, uint8 [rows, row bytes], in this thread's memory."""
        local = self._local
        if getattr(local, "block", None) != block:
            shape = (self._blocks[block][2], self._field.row_bytes)
            if getattr(local, "rows", None) is None or local.rows.shape != shape:
                local.rows = np.empty(shape, np.uint8)
            local.block = None
            self._decode(block, local.rows.reshape(-1))
            local.block = block
        rows: Bytes = local.rows
        return rows

    def _decode(self, block: int, out: NDArray[np.uint8]) -> None:
        stored, extent, _ = self._blocks[block]
        data = np.empty((extent.nbytes, 1), np.uint8)
        stored.read_run(extent.offset, data)
        try:
            self._codec.decompress_into(memoryview(data.reshape(-1)), out)
        except ValueError as error:
            first = int(self._firsts[block])
            raise FormatError(
                f"{self._pack.path}: rows {first} to {first + extent.rows - 1} of {self._field.name!r} are damaged ({error})."
                " Run packer verify, or convert the images again."
            ) from None

    def close(self) -> None:
        """Close the files."""
        for array in self._files:
            array.close()


class Verified:
    """Any of the others, whose blocks are compared with their checksums when they are first touched."""

    def __init__(self, rows: Rows, pack: Pack, field: Field) -> None:
        self._rows, self._field = rows, field
        self._parts = [_Part(part, field) for part in pack.parts]
        self._firsts = np.cumsum([0, *(part.rows for part in pack.parts)])

    def read(self, runs: Runs, out: Bytes) -> None:
        """See Rows."""
        self._check(runs)
        self._rows.read(runs, out)

    def encoded(self, runs: Runs) -> list[bytes]:
        """See Rows."""
        self._check(runs)
        return self._rows.encoded(runs)

    def _check(self, runs: Runs) -> None:
        check_range(runs, int(self._firsts[-1]))
        for start, count in zip(runs.starts.tolist(), runs.lengths.tolist(), strict=True):
            stop = start + count
            for k in range(int(np.searchsorted(self._firsts, start, "right")) - 1, len(self._parts)):
                first = int(self._firsts[k])
                if first >= stop:
                    break
                self._parts[k].check(max(start, first) - first, min(stop, int(self._firsts[k + 1])) - first)

    def close(self) -> None:
        """Close the files."""
        self._rows.close()


class _Part:
    """The checksums of one field of one part of a pack, and which of its blocks have been compared."""

    def __init__(self, pack: Pack, field: Field) -> None:
        self._pack, self._field = pack, field
        self._checksums = pack.checksums()
        self._good = np.zeros(pack.header.blocks, bool)

    def check(self, start: int, stop: int) -> None:
        """Compare the blocks of rows [start, stop). Raises FormatError."""
        size = self._pack.header.block_rows
        blocks = np.arange(start // size, -(-stop // size))
        for block in blocks[~self._good[blocks]].tolist():
            for name in self._field.arrays:
                if (
                    self._checksum(name, block)
                    != self._checksums[block, self._pack.header.columns.index(name)]
                ):
                    first = block * size
                    raise FormatError(
                        f"{self._pack.path}: rows {first} to {min(first + size, self._pack.rows) - 1} of {name!r} are damaged"
                        " (their checksum differs). Run packer verify, or convert the images again."
                    )
            self._good[block] = True

    def _checksum(self, name: str, block: int) -> int:
        checksum = BlockChecksum()
        for piece in self._pack.stored_block(name, block, _PIECE_BYTES):
            checksum.add(np.frombuffer(piece, np.uint8))
        return checksum.value()
