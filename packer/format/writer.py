"""PackWriter: blocks of rows in, a sealed pack under its final name out, or nothing.

Work in progress is ``<out>.packing`` beside the output, locked while its writer lives. The final name only ever holds a
whole pack: it is given by one rename, after the bytes have been flushed.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from packer.errors import SpaceError
from packer.format.checksums import BlockChecksum, block_checksum
from packer.format.files import pread_all, pwrite_all, start_writeback
from packer.format.hdf5 import Hdf5Container
from packer.format.header import OFFSETS, PARTIAL_SUFFIX, Extent, Field, Header
from packer.format.npy import NpyContainer
from packer.format.output import check_output, claim, failure, publish, remove

FORMATS = ("h5", "npy")
_MOVE_BYTES = 4 << 20


class Container(Protocol):
    """What a format offers the writer. Implementations create their files when constructed."""

    extents: dict[str, tuple[Extent, ...]]

    def place(self, name: str, row: int) -> tuple[int, int]:
        """File descriptor and byte offset of a row of a fixed field; thread-safe."""

    def seal(
        self,
        rows: int,
        added: Mapping[str, NDArray[np.generic]],
        checksums: NDArray[np.uint64],
        header: Callable[[dict[str, tuple[Extent, ...]]], bytes],
    ) -> None:
        """Make it whole and flush it: `header` is given the final extents."""

    def close(self) -> None:
        """Let go of the files."""


_CONTAINERS: dict[str, Callable[[str, Sequence[Field], int, int], Container]] = {
    "h5": Hdf5Container,
    "npy": NpyContainer,
}


class PackWriter:
    """A pack being written; a context manager that removes its work when it was not finished.

    fields: of the pack; ragged ones are given to finish() whole. rows: planned, at least 1; block_rows: rows a block.
    Methods that write are thread-safe for different rows. Raises UsageError (output exists, bad folder), SpaceError,
    PackerError (somebody else is writing the same output).
    """

    def __init__(
        self,
        out: str,
        *,
        fields: Sequence[Field],
        rows: int,
        block_rows: int,
        format: str,
        overwrite: bool = False,
    ) -> None:
        check_output(out, overwrite=overwrite)
        self.out, self.fields, self.rows, self.block_rows = out, tuple(fields), rows, block_rows
        self.partial = out.rstrip("/") + PARTIAL_SUFFIX
        self._overwrite = overwrite
        self._fixed = {f.name: f for f in fields if not f.ragged}
        self._columns = [name for f in fields for name in f.arrays]
        table = (-(-rows // block_rows), len(self._columns))
        self._checksums = np.frombuffer(mmap.mmap(-1, 8 * table[0] * table[1]), "<u8").reshape(table)
        self._finished = False
        self._closing = threading.Lock()
        self._lock = claim(self.partial, out, directory=format == "npy")
        try:
            self._container = _CONTAINERS[format](self.partial, self.fields, rows, block_rows)
            try:
                self._reserve()
            except BaseException:
                self._container.close()
                raise
        except OSError as error:
            self._discard()
            raise failure(out, error) from error
        except BaseException:
            self._discard()
            raise

    def __enter__(self) -> PackWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def write_block(
        self,
        block: int,
        pieces: Mapping[str, Iterable[NDArray[np.generic]]],
        whole: Mapping[str, NDArray[np.generic]],
    ) -> None:
        """Write all rows of one block of every fixed field and note their checksums.

        pieces: field -> its rows in order, a few at a time; each piece is written before the next is asked for, so it may be
        one buffer, filled again while it is still in the cache. whole: the other fields, all rows at once. All arrays are
        C-contiguous [rows, *shape] of their field's dtype. Works in a forked process as well: the checksums are shared.
        """
        start = block * self.block_rows
        stop = min(start + self.block_rows, self.rows)
        for name, f in self._fixed.items():
            row, checksum = start, BlockChecksum()
            for array in pieces[name] if name in pieces else (whole[name],):
                shape = (len(array), *(f.shape or ()))
                if array.shape != shape or array.dtype.str != f.dtype or not array.flags.c_contiguous:
                    raise ValueError(f"{name}: rows are {array.dtype.str}{array.shape}; {f.dtype}{shape} fit")
                if row + len(array) > stop:
                    raise ValueError(f"{name}: block {block} has {stop - start} rows; more are given")
                self._write(name, row, array)
                checksum.add(array)
                row += len(array)
            if row != stop:
                raise ValueError(f"{name}: block {block} has {stop - start} rows; {row - start} are given")
            self._checksums[block, self._columns.index(name)] = checksum.value()
            fd, offset = self._container.place(name, start)
            start_writeback(fd, offset, (stop - start) * f.row_bytes)

    def move_rows(self, moves: Iterable[tuple[int, int]]) -> None:
        """Copy rows (to, from), and note the changed blocks' checksums anew for blocks that keep their length."""
        changed = set()
        for to, origin in moves:
            for name in self._fixed:
                self._write(name, to, self.read_rows(name, origin, origin + 1))
            changed.add(to // self.block_rows)
        for block in sorted(changed):
            self._checksum(block, self.rows)

    def read_rows(self, name: str, start: int, stop: int) -> NDArray[np.generic]:
        """Rows [start, stop) of a fixed field, as written so far."""
        f = self._fixed[name]
        assert f.shape is not None
        fd, offset = self._container.place(name, start)
        data = pread_all(fd, (stop - start) * f.row_bytes, offset)
        return np.frombuffer(data, f.dtype).reshape(stop - start, *f.shape)

    def finish(self, *, rows: int, ragged: Mapping[str, Iterable[bytes]], **members: Any) -> Header:
        """Seal the pack with its first `rows` rows and give it its final name.

        ragged: field -> bytes of each row; members: the remaining members of Header. Returns the header.
        """
        if not 1 <= rows <= self.rows:
            raise ValueError(f"rows is {rows} of {self.rows}")
        if rows < self.rows:
            self._zero(rows)
            blocks = -(-rows // self.block_rows)
            self._checksums = self._checksums[:blocks].copy()
            self._checksum(blocks - 1, rows)
        added: dict[str, NDArray[np.generic]] = {}
        for f in self.fields:
            if f.ragged:
                added.update(_ragged_arrays(f.name, ragged[f.name], rows))
        block_rows = min(self.block_rows, rows)
        self._checksum_added(added, rows, block_rows)
        sealed: list[Header] = []

        def header(extents: dict[str, tuple[Extent, ...]]) -> bytes:
            sealed.append(Header(rows, block_rows, self.fields, extents, **members))
            return sealed[-1].to_bytes()

        try:
            self._container.seal(rows, added, self._checksums, header)
            self._container.close()
            publish(self.partial, self.out, overwrite=self._overwrite)
        except OSError as error:
            raise failure(self.out, error) from error
        self._finished = True
        os.close(self._lock)
        return sealed[-1]

    def close(self) -> None:
        """Remove what is not finished. Called again, it does nothing."""
        with self._closing:
            if not self._finished:
                self._finished = True
                self._container.close()
                self._discard()

    def _write(self, name: str, row: int, array: NDArray[np.generic]) -> None:
        fd, offset = self._container.place(name, row)
        try:
            pwrite_all(fd, array.reshape(-1).view(np.uint8).data, offset)
        except OSError as error:
            raise failure(self.out, error) from error

    def _zero(self, rows: int) -> None:
        """Clear the rows behind the last one kept: equal inputs give equal files."""
        for name, f in self._fixed.items():
            step = max(1, _MOVE_BYTES // f.row_bytes)
            for start in range(rows, self.rows, step):
                count = min(step, self.rows - start)
                self._write(name, start, np.zeros(count * f.row_bytes, np.uint8))

    def _checksum(self, block: int, rows: int) -> None:
        start = block * self.block_rows
        for name in self._fixed:
            array = self.read_rows(name, start, min(start + self.block_rows, rows))
            self._checksums[block, self._columns.index(name)] = block_checksum(array)

    def _checksum_added(self, added: Mapping[str, NDArray[np.generic]], rows: int, block_rows: int) -> None:
        for f in self.fields:
            if not f.ragged:
                continue
            blob, offsets = added[f.name], added[f.name + OFFSETS]
            for block, start in enumerate(range(0, rows, block_rows)):
                stop = min(start + block_rows, rows)
                own = blob[offsets[start] : offsets[stop]]
                entries = offsets[start : stop + (stop == rows)]
                self._checksums[block, self._columns.index(f.name)] = block_checksum(own)
                self._checksums[block, self._columns.index(f.name + OFFSETS)] = block_checksum(entries)

    def _reserve(self) -> None:
        """Have the disk promise the space now, where the file system can."""
        for name, f in self._fixed.items():
            fd, offset = self._container.place(name, 0)
            try:
                os.posix_fallocate(fd, offset, self.rows * f.row_bytes)
            except AttributeError:
                return  # macOS has none; check_space() has been asked
            except OSError as error:
                refused = failure(self.out, error)
                if isinstance(refused, SpaceError):
                    raise refused from None

    def _discard(self) -> None:
        remove(self.partial)
        os.close(self._lock)


def _ragged_arrays(name: str, values: Iterable[bytes], rows: int) -> dict[str, NDArray[np.generic]]:
    blob, offsets = bytearray(), np.zeros(rows + 1, "<i8")
    count = 0
    for count, value in enumerate(values, 1):
        blob += value
        offsets[count] = len(blob)
    if count != rows:
        raise ValueError(f"{name}: {count} rows are given for {rows}")
    return {name: np.frombuffer(blob, "|u1"), name + OFFSETS: offsets}
