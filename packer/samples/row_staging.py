"""Rows in raw form, in the order in which they come, in files of a working folder: until it is known how many there are."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.convert.row_maker import ColumnRows
from packer.errors import FormatError, PackerError
from packer.format.file_io import pwrite_all
from packer.format.header import OFFSETS, Extent, Field, Header
from packer.format.pack import Pack
from packer.format.pack_writer import Rows
from packer.orders.runs import consecutive
from packer.read.row_reader import RowReader
from packer.samples.columns import check_labels
from packer.samples.field_plan import LABEL

_BUFFER_BYTES = 4 << 20


class RowStaging:
    """Files that rows are appended to: of a fixed field its rows, of a ragged one its bytes and the offsets of the rows in them.

    For one thread. rows: so far. Writing raises OSError.
    """

    def __init__(self, folder: str, fields: Sequence[Field]) -> None:
        """folder: is made."""
        os.makedirs(folder)
        self.folder, self.fields, self.rows = folder, tuple(fields), 0
        self._files: dict[str, _StagedFile] = {}
        for f in fields:
            self._files[f.name] = _StagedFile(os.path.join(folder, f.name))
            if f.ragged:
                self._files[f.name + OFFSETS] = offsets = _StagedFile(os.path.join(folder, f.name + OFFSETS))
                offsets.add(np.zeros(1, "<i8"))

    def add(self, rows: Mapping[str, NDArray[Any] | Sequence[bytes]], count: int) -> None:
        """Append `count` rows: of fixed fields [count, *shape] of their dtype, of ragged ones the bytes of each."""
        for f in self.fields:
            values = rows[f.name]
            if f.ragged:
                blob = self._files[f.name]
                sizes = np.array([len(value) for value in values], "<i8")
                ends = blob.nbytes + np.cumsum(sizes)
                for value in values:
                    blob.add(np.frombuffer(value, np.uint8))
                self._files[f.name + OFFSETS].add(ends)
            else:
                self._files[f.name].add(np.ascontiguousarray(values))
        self.rows += count

    def finish(self) -> Pack:
        """Write what is left in buffers. Returns the rows as a pack, of which nothing but the rows may be asked."""
        extents: dict[str, tuple[Extent, ...]] = {}
        for f in self.fields:
            self._files[f.name].flush()
            if f.ragged:
                self._files[f.name + OFFSETS].flush()
                extents[f.name] = (Extent(f.name, 0, self._files[f.name].nbytes, 1),)
                extents[f.name + OFFSETS] = (Extent(f.name + OFFSETS, 0, self.rows + 1, 8),)
            else:
                extents[f.name] = (Extent(f.name, 0, self.rows, f.row_bytes),)
        self.close()
        return Pack(self.folder, Header(self.rows, 1, self.fields, extents), b"")

    @property
    def nbytes(self) -> int:
        """Bytes of all rows so far."""
        return sum(file.nbytes for file in self._files.values())

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()


class _StagedFile:
    """A file that is appended to through a buffer. nbytes: of the file, the buffer's included."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._buffer = bytearray()
        self.nbytes = 0

    def add(self, data: NDArray[Any]) -> None:
        if not data.nbytes:
            return
        view = memoryview(data.reshape(-1).view(np.uint8))
        if len(self._buffer) + len(view) > _BUFFER_BYTES:
            self.flush()
        if len(view) >= _BUFFER_BYTES:
            pwrite_all(self._fd, view, self.nbytes)
        else:
            self._buffer += view
        self.nbytes += len(view)

    def flush(self) -> None:
        pwrite_all(self._fd, memoryview(self._buffer), self.nbytes - len(self._buffer))
        self._buffer = bytearray()

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


class StagedSamples(ColumnRows):
    """A RowMaker over staged rows."""

    def __init__(self, staged: Pack, classes: int | None) -> None:
        self._reader, self._classes = RowReader(staged, staged.fields), classes
        self.fields = staged.fields
        self.count = staged.rows
        total = sum(
            extent.nbytes for f in staged.fields if f.ragged for extent in staged.header.extents[f.name]
        )
        self.ragged_bytes = total // staged.rows

    def columns(self, samples: NDArray[np.int64]) -> Mapping[str, Rows]:
        """Return all fields."""
        runs = consecutive(samples)
        rows: dict[str, Rows] = {}
        try:
            for f in self.fields:
                if len(runs.starts) > 1:
                    self._reader.willneed(f.name, runs)
                if f.ragged:
                    rows[f.name] = self._reader.read_ragged(f.name, runs) if len(samples) else []
                else:
                    rows[f.name] = self._reader.array(f, runs)
        except FormatError as error:
            raise PackerError(f"{error.sentence.partition('. ')[0]}. Run it again.") from error
        if self._classes is not None and LABEL in rows:
            check_labels(np.asarray(rows[LABEL]), samples, self._classes)
        return rows

    def name(self, sample: int) -> str:
        """Return its number."""
        return f"sample {sample}"

    def labels(self) -> NDArray[np.int64] | None:
        """Return the label of each row, where there is one whole number; else None."""
        label = next((f for f in self.fields if f.name == LABEL), None)
        if label is None or label.shape != () or np.dtype(label.dtype).kind not in "iu":
            return None
        return self._reader.array(label, consecutive(np.arange(self.count))).astype(np.int64)
