"""PartFiles: the files of a pack under way, into which any process writes blocks of rows."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.format.block_files import BlockFiles
from packer.format.checksums import BlockChecksum
from packer.format.fields import (
    Extent,
    Field,
)
from packer.format.file_io import open_own, pread_all, pwrite_all, start_writeback
from packer.format.write_errors import writing

Rows = NDArray[np.generic] | Sequence[bytes]
"""Rows of a fixed field: [rows, *shape], C-contiguous, its dtype; of a ragged field: the bytes of each row.
"""


class PartFiles:
    """The files of a pack of a single part, or of a shard. Picklable; opens its files when they are needed.

    name: the pack in messages; path: its file, or folder of .npy files; folder: that of its block files;
    extents: of its uncompressed fixed fields, `plain`; columns: its arrays, in the order of the checksums.
    Thread-safe for different blocks.
    """

    name: str
    path: str
    folder: str
    fields: tuple[Field, ...]
    rows: int
    block_rows: int
    extents: Mapping[str, tuple[Extent, ...]]

    def __init__(
        self,
        name: str,
        path: str,
        folder: str,
        fields: tuple[Field, ...],
        rows: int,
        block_rows: int,
        extents: Mapping[str, tuple[Extent, ...]],
    ) -> None:
        self._fds: dict[str, int] = {}
        self.name, self.path, self.folder, self.fields = name, path, folder, fields
        self.rows, self.block_rows, self.extents = rows, block_rows, extents
        self.plain: dict[str, Field] = {f.name: f for f in fields if not f.ragged and not f.compressed}
        self.columns: list[str] = [name for f in fields for name in f.arrays]
        self.block_files: dict[str, BlockFiles] = {
            f.name: BlockFiles(folder, f, rows, block_rows) for f in fields if f.name not in self.plain
        }

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave the open files out."""
        own = self.name, self.path, self.folder, self.fields, self.rows, self.block_rows, self.extents
        return PartFiles, own

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the files; they are opened again when they are needed."""
        while self._fds:
            os.close(self._fds.popitem()[1])

    def place(self, name: str, row: int) -> tuple[int, int]:
        """Return the file descriptor and the byte offset of a row of an uncompressed fixed field."""
        (extent,) = self.extents[name]
        if (fd := self._fds.get(extent.file)) is None:
            path = os.path.join(self.path, extent.file) if extent.file else self.path
            opened = open_own(path)
            fd = self._fds.setdefault(extent.file, opened)
            if fd != opened:  # another thread was faster
                os.close(opened)
        return fd, extent.offset + row * extent.row_bytes

    def span(self, block: int) -> tuple[int, int]:
        """Return the first row of a block, and the row after its last."""
        return block * self.block_rows, min((block + 1) * self.block_rows, self.rows)

    def write_rows(self, name: str, row: int, array: NDArray[np.generic]) -> None:
        """Write rows from `row` on of an uncompressed fixed field. Thread-safe for distinct rows."""
        with writing(self.name):
            fd, offset = self.place(name, row)
            pwrite_all(fd, array.reshape(-1).view(np.uint8).data, offset)

    def read_rows(self, name: str, start: int, stop: int) -> NDArray[np.generic]:
        """Return rows [start, stop) of an uncompressed fixed field as written so far."""
        f = self.plain[name]
        assert f.shape is not None
        fd, offset = self.place(name, start)
        data = pread_all(fd, (stop - start) * f.row_bytes, offset)
        return np.frombuffer(data, f.dtype).reshape(stop - start, *f.shape)

    def open_block(self, block: int) -> OpenBlock:
        """Return a block to write."""
        return OpenBlock(self, block)


class OpenBlock:
    """A block being written: uncompressed fixed fields at once to their place, others at the end to files.

    So the caller can refill one buffer while it is in the CPU's cache.
    """

    def __init__(self, files: PartFiles, block: int) -> None:
        self._files, self._block = files, block
        self._start, stop = files.span(block)
        self._rows = stop - self._start
        self._fields = {f.name: f for f in files.fields}
        self._counts = {f.name: 0 for f in files.fields if not f.ragged}
        self._sums = {name: BlockChecksum() for name in files.plain}
        self._gathered = {name: own.empty() for name, own in files.block_files.items()}

    def write(self, parts: Mapping[str, Rows]) -> None:
        """Write the next rows of some fields. Raises ValueError if they do not fit the field or the block."""
        for name, part in parts.items():
            count = self._counts.get(name, 0)
            self._check(self._fields[name], part, count + len(part))
            if name in self._sums:
                assert isinstance(part, np.ndarray)
                self._files.write_rows(name, self._start + count, part)
                self._sums[name].update(part)
            else:
                self._gathered[name][count : count + len(part)] = part
            self._counts[name] = count + len(part)

    def _check(self, f: Field, part: Any, count: int) -> None:
        if f.ragged:
            return
        shape = (len(part), *(f.shape or ()))
        if part.shape != shape or part.dtype.str != f.dtype or not part.flags.c_contiguous:
            raise ValueError(f"{f.name}: rows are {part.dtype.str}{part.shape}; {f.dtype}{shape} fit")
        if count > self._rows:
            raise ValueError(f"{f.name}: block {self._block} has {self._rows} rows; more are given")

    def close(self) -> list[int]:
        """Return the checksum of each column as stored; 0 for ragged fields of which no rows were given.

        Raises ValueError if rows are missing.
        """
        sums = dict.fromkeys(self._files.columns, 0)
        for name, count in self._counts.items():
            if count != self._rows:
                raise ValueError(f"{name}: block {self._block} has {self._rows} rows; {count} are given")
            with writing(self._files.name):
                if name in self._gathered:
                    sums[name] = self._files.block_files[name].store(self._block, self._gathered[name])
                else:
                    fd, offset = self._files.place(name, self._start)
                    start_writeback(fd, offset, count * self._fields[name].row_bytes)
                    sums[name] = int(self._sums[name].intdigest())
        return list(sums.values())
