"""PackWriter: takes blocks of rows and leaves a sealed pack under its final name, or nothing.

Unfinished output lies in a folder beside the output (working_folder.py). The final name only ever holds a
complete pack: one rename publishes it after the bytes have been flushed. With a plan, finished blocks are
journalled, and a writer with the same plan continues an interrupted run.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.format.block_files import AddedArray
from packer.format.checksums import block_checksum
from packer.format.fields import (
    OFFSETS,
    Extent,
    Field,
)
from packer.format.file_io import make_folder, reserve
from packer.format.hdf5_container import Hdf5Container
from packer.format.header import Header
from packer.format.npy_container import NpyContainer
from packer.format.part_files import PartFiles, Rows
from packer.format.write_errors import writing
from packer.garbage import paused
from packer.machine import cores
from packer.writing.working_folder import WorkingFolder

FORMATS = ("h5", "npy")
_MOVE_BYTES = 4 << 20

_CONTAINERS: Mapping[str, type[Hdf5Container] | type[NpyContainer]] = {
    "h5": Hdf5Container,
    "npy": NpyContainer,
}


class PackWriter:
    """A pack that is being written; a context manager that removes unfinished work, or keeps it for resuming.

    Long because blocks, moved rows, checksums and the seal share open files and one checksum table.

    fields: fields of the pack; rows: planned rows, at least 1; block_rows: rows per block;
    plan: identity of the conversion (plain JSON values), which an unfinished run must match to be resumed;
    resume: True refuses the remains of another plan;
    files: its files, into which any process writes blocks;
    done: block -> note of its record, for finished blocks, an interrupted run's too;
    cleared: how the plan of a discarded unfinished run differed.

    Raises UsageError (output exists, bad folder, another
    plan), SpaceError, PackerError (another process is writing the same output).
    """

    out: str
    fields: tuple[Field, ...]
    rows: int
    block_rows: int

    def __init__(
        self,
        out: str,
        *,
        name: str | None = None,
        fields: Sequence[Field],
        rows: int,
        block_rows: int,
        format: str,
        overwrite: bool = False,
        plan: Mapping[str, Any] | None = None,
        resume: bool = False,
        checked: Callable[[int], None] = lambda rows: None,
        readable: Callable[[int, dict[str, tuple[Extent, ...]]], None] = lambda rows, extents: None,
    ) -> None:
        """name: the pack in messages; checked: called with the number of verified rows when resuming;
        readable: called with the number of rows before the first block that is not journalled, and `extents`.
        """
        self.out, self.fields, self.rows, self.block_rows = name or out, tuple(fields), rows, block_rows
        self.done: dict[int, Any] = {}
        table = (-(-rows // block_rows), sum(len(f.arrays) for f in fields))
        self._checksums = np.frombuffer(mmap.mmap(-1, 8 * table[0] * table[1]), "<u8").reshape(table)
        self._finished, self._resumable = False, plan is not None
        self._readable, self._leading = readable, 0  # blocks before the first that is not journalled
        self._closing = threading.Lock()
        self._place = WorkingFolder(out, overwrite=overwrite, plan=plan, resume=resume, name=self.out)
        container: Hdf5Container | NpyContainer | None = None
        try:
            with writing(self.out):
                self.cleared: str = self._place.cleared
                if not os.path.exists(self._place.pack):
                    self._place.begin_anew()
                    make_folder(self._place.blocks)
                    if format == "npy":
                        make_folder(self._place.pack)
                self._recorded = len(self._place.resumed)
                container = _CONTAINERS[format](self._place.pack, self.fields, rows, block_rows)
                self._container = container
                self.files = PartFiles(
                    *(self.out, self._place.pack, self._place.blocks, self.fields, rows, block_rows),
                    dict(container.extents),
                )
                for name, f in self.files.plain.items():  # reserve the disk space now
                    reserve(*self.files.place(name, 0), rows * f.row_bytes)
                self._check_done(checked)
        except BaseException:
            if container is not None:
                container.close()
            self._place.close(keep=bool(self._place.resumed))
            raise

    def __enter__(self) -> PackWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def blocks(self) -> int:
        """Number of planned blocks."""
        return len(self._checksums)

    @property
    def extents(self) -> dict[str, tuple[Extent, ...]]:
        """Extents of the uncompressed fixed fields."""
        return self._container.extents

    @property
    def kept(self) -> bool:
        """True if closing keeps the unfinished work, because some of it is journalled."""
        return self._recorded > 0 and self._resumable

    def forget(self) -> None:
        """Discard unfinished work on closing: there is nothing to resume."""
        self._recorded = 0

    def write_block(self, block: int, rows: Mapping[str, Rows]) -> None:
        """Write all rows of one block; fields that finish() receives are left out."""
        opened = self.files.open_block(block)
        opened.write(rows)
        self._checksums[block] = opened.close()

    def record(self, block: int, note: Any, checksums: Sequence[int] | None = None) -> None:
        """Journal a block as done.

        note: plain JSON values, returned in `done`; checksums: those of a block that ``files`` wrote.
        Its bytes and checksums have been written; if a power cut loses them nevertheless, the next writer
        detects it.
        """
        if checksums is not None:
            self._checksums[block] = checksums
        self._place.record([block, self._checksums[block].tolist(), note])
        self._recorded += 1
        self.done[block] = note
        while self._leading in self.done:
            self._leading += 1
        self._readable(min(self._leading * self.block_rows, self.rows), self.extents)

    def move_rows(self, moves: Iterable[tuple[int, int]]) -> None:
        """Copy rows, given as (to, from) pairs, in order, and update checksums.

        No pair may read an overwritten row.
        """
        moves = list(moves)
        for to, origin in moves:
            for name in self.files.plain:
                self.files.write_rows(name, to, self.files.read_rows(name, origin, origin + 1))
        for block in sorted({to // self.block_rows for to, _ in moves}):
            self._checksum_block(block, self.rows)
        for name, files in self.files.block_files.items():
            if self._checksums[:, self.files.columns.index(name)].any():  # else finish() receives the rows
                with writing(self.out):
                    files.move(moves)

    def finish(self, *, rows: int, ragged: Mapping[str, Iterable[bytes]], **members: Any) -> Header:
        """Seal the pack with its first `rows` rows, publish it under its final name, and return the header.

        ragged: field -> bytes of each row, for ragged fields that were not written by block; members: the
        remaining members of Header.
        """
        if not 1 <= rows <= self.rows:
            raise ValueError(f"rows is {rows} of {self.rows}")
        block_rows = min(self.block_rows, rows)
        if rows < self.rows:
            self._zero(rows)
            self._checksums = self._checksums[: -(-rows // self.block_rows)].copy()
            self._checksum_block(len(self._checksums) - 1, rows)
        sealed: list[Header] = []

        @paused()
        def header(extents: dict[str, tuple[Extent, ...]]) -> bytes:
            sealed.append(Header(rows, block_rows, self.fields, extents, **members))
            data = sealed[-1].to_bytes()
            Header.from_bytes(data, self.out)  # an unreadable header must not be published
            return data

        with writing(self.out):
            added = self._added_arrays(rows, block_rows, ragged)
            self._container.seal(rows, added, self._checksums, header)
            self.files.close()
            self._container.close()
            self._place.publish()
        self._finished = True
        return sealed[-1]

    def close(self) -> None:
        """Remove unfinished work, or keep it if blocks were journalled. Further calls do nothing."""
        with self._closing:
            if not self._finished:
                self._finished = True
                self.files.close()
                self._container.close()
                self._place.close(keep=self.kept)

    def _check_done(self, checked: Callable[[int], None]) -> None:
        """Verify the blocks of an interrupted run; damaged blocks count as not done."""
        latest = {int(block): (sums, note) for block, sums, note in self._place.resumed}
        rows = 0
        with ThreadPoolExecutor(cores()) as pool:
            found = pool.map(lambda item: self._is_intact(item[0], item[1][0]), latest.items())
            for (block, (sums, note)), same in zip(latest.items(), found, strict=True):
                if same:
                    self._checksums[block] = sums
                    self.done[block] = note
                    rows += min(self.block_rows, self.rows - block * self.block_rows)
                    checked(rows)

    def _is_intact(self, block: int, sums: Sequence[int]) -> bool:
        """Return True if the stored bytes of a block have the checksums that the journal notes for it."""
        start, stop = self.files.span(block)
        for f in self.fields:
            checksum = sums[self.files.columns.index(f.name)]
            if f.name in self.files.plain:
                same = block_checksum(self.files.read_rows(f.name, start, stop)) == checksum
            else:  # fields that finish() receives have no files and a checksum of 0
                same = not checksum or self.files.block_files[f.name].check(block, checksum)
            if not same:
                return False
        return True

    def _zero(self, rows: int) -> None:
        """Zero the rows behind the last one kept, so that equal inputs give equal files."""
        for name, f in self.files.plain.items():
            step = max(1, _MOVE_BYTES // f.row_bytes)
            for start in range(rows, self.rows, step):
                count = min(step, self.rows - start)
                self.files.write_rows(name, start, np.zeros(count * f.row_bytes, np.uint8))

    def _checksum_block(self, block: int, rows: int) -> None:
        """Compute the checksums of a block's plain fields; `rows`: rows of the pack."""
        start = block * self.block_rows
        for name in self.files.plain:
            array = self.files.read_rows(name, start, min(start + self.block_rows, rows))
            self._checksums[block, self.files.columns.index(name)] = block_checksum(array)

    def _added_arrays(
        self, rows: int, block_rows: int, ragged: Mapping[str, Iterable[bytes]]
    ) -> dict[str, AddedArray]:
        """Return the arrays that the container adds at the end; generators record their blocks' checksums."""
        added: dict[str, AddedArray] = {}
        for f in self.fields:
            if f.name in self.files.plain:
                continue
            column = self.files.columns.index(f.name)
            files = self.files.block_files[f.name]
            if files.codec is not None:
                blocks = self._checksummed(column, files.packed(rows))
                shape = (rows, *(f.shape or ()))
                added[f.name] = AddedArray(f.dtype, shape, blocks, files.nbytes(rows), files.codec)
                continue
            starts = range(0, rows, block_rows)
            if f.name in ragged:
                blob, offsets = _concatenate(f.name, ragged[f.name], rows)
                pieces = _cut_blob(blob, offsets[[*starts, rows]].tolist())
            else:
                offsets, pieces = files.offsets(rows), files.blob(rows)
            nbytes = int(offsets[-1])
            added[f.name] = AddedArray("|u1", (nbytes,), self._checksummed(column, pieces), nbytes)
            added[f.name + OFFSETS] = AddedArray.from_array(offsets)
            for block, start in enumerate(starts):
                stop = min(start + block_rows, rows)
                self._checksums[block, column + 1] = block_checksum(offsets[start : stop + (stop == rows)])
        return added

    def _checksummed(self, column: int, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the blocks of an array unchanged, and store the checksum of each."""
        for block, data in enumerate(blocks):
            self._checksums[block, column] = block_checksum(data)
            yield data


def _cut_blob(blob: bytearray, bounds: Sequence[int]) -> Iterator[bytes]:
    for start, stop in pairwise(bounds):
        yield bytes(blob[start:stop])


def _concatenate(name: str, values: Iterable[bytes], rows: int) -> tuple[bytearray, NDArray[np.int64]]:
    """Concatenate all rows' bytes; return the blob and its offsets, int64 [rows + 1]."""
    blob, offsets = bytearray(), np.zeros(rows + 1, "<i8")
    count = 0
    for count, value in enumerate(values, 1):
        blob += value
        offsets[count] = len(blob)
    if count != rows:
        raise ValueError(f"{name}: {count} rows are given for {rows}")
    return blob, offsets
