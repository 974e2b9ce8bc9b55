"""Samples of unknown number, staged as records in a file, then read as the rows of a pack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.convert.sample_order import SampleOrder
from packer.convert.staged_rows import ShuffledFile, StagedRows
from packer.format.fields import Field
from packer.format.part_files import Rows
from packer.samples.columns import ColumnSamples, SampleRows
from packer.samples.field_plan import FieldPlan
from packer.writing.working_folder import WorkingFolder

_BUFFER_BYTES = 4 << 20
_RECORD_BYTES = 1 << 16
"""Largest row in a record; larger rows stay in the blob, since shuffling writes the records again."""
_PLACE = np.dtype([("at", "<i8"), ("length", "<i8")])


class SampleStaging(StagedRows):
    """Rows of samples, buffered and appended to a file.

    fields: fields of the pack. sizes: field -> bytes of its rows in the blob, for fields stored outside the
    records.
    """

    fields: tuple[Field, ...]
    sizes: Counter[str]

    def __init__(self, place: WorkingFolder, fields: Sequence[Field], name: str) -> None:
        apart = {f.name for f in fields if f.ragged or f.row_bytes > _RECORD_BYTES}
        members = [(f.name, _PLACE) if f.name in apart else (f.name, f.dtype, f.shape or ()) for f in fields]
        super().__init__(place, np.dtype(members), name)
        self.fields, self.sizes = tuple(fields), Counter(dict.fromkeys(apart, 0))
        row_bytes = self.dtype.itemsize + sum(f.row_bytes for f in fields if f.name in apart and not f.ragged)
        self._records = np.empty(max(1, _BUFFER_BYTES // row_bytes), self.dtype)
        self._columns = {f.name: self._records[f.name] for f in fields}
        self._bytes, self._held = bytearray(), 0

    @property
    def samples(self) -> int:
        """Number of rows so far, including those in the buffer."""
        return self.rows + self._held

    def add(self, rows: Mapping[str, NDArray[Any] | Sequence[Any]], count: int) -> None:
        """Append `count` rows: for each field an array [count, *shape] or a list; ragged rows are bytes."""
        first = 0
        while first < count:
            step = min(count - first, len(self._records) - self._held)
            part = slice(self._held, self._held + step)
            for name, column in self._columns.items():
                values = rows[name][first : first + step]
                if name in self.sizes:
                    self._add_apart(name, column[part], values)
                elif isinstance(values, list):
                    for at, row in enumerate(values, self._held):
                        column[at] = row
                else:
                    column[part] = values
            first, self._held = first + step, self._held + step
            if self._held == len(self._records) or len(self._bytes) >= _BUFFER_BYTES:
                self.flush()

    def _add_apart(self, name: str, places: NDArray[Any], values: NDArray[Any] | Sequence[Any]) -> None:
        begin = len(self._bytes)
        for at, value in enumerate(values):
            start = len(self._bytes)
            self._bytes += (
                value if isinstance(value, bytes) else memoryview(np.ascontiguousarray(value)).cast("B")
            )
            places[at] = start, len(self._bytes) - start
        self.sizes[name] += len(self._bytes) - begin

    def flush(self) -> None:
        """Write the buffer to the file. Raises SpaceError, PackerError."""
        self.append(self._records[: self._held], self._bytes)
        self._bytes, self._held = bytearray(), 0


class StagedSamples(ColumnSamples):
    """Rows from staged samples."""

    def __init__(self, staged: SampleStaging) -> None:
        """staged: all samples, flushed."""
        ragged_bytes = sum(staged.sizes[f.name] for f in staged.fields if f.ragged) / staged.rows
        plans = {f.name: FieldPlan(f) for f in staged.fields}
        SampleRows.__init__(self, staged.name, plans, staged.rows, round(ragged_bytes))
        self._staged, self._blob = staged, staged.mapped_blob()
        self._records = np.memmap(staged.path, staged.dtype, "r")
        self._file: ShuffledFile | None = None

    def field_rows(self, name: str, samples: NDArray[np.int64]) -> Rows:
        """See ColumnSamples."""
        return _rows_of(self.plans[name].field, self._records[name][samples], self._blob)

    @contextmanager
    def in_order(self, order: SampleOrder, *, shuffled: bool, workers: int) -> Iterator[None]:
        """Read rows in the order of the pack within the block."""
        with self._staged.in_order(order.samples, shuffled=shuffled, workers=workers) as self._file:
            yield

    def read_fields(self, samples: NDArray[np.int64]) -> dict[str, Rows]:
        """See ColumnSamples."""
        assert self._file is not None
        records = self._file.take(samples).view(self._staged.dtype).reshape(-1)
        return {f.name: _rows_of(f, records[f.name], self._blob) for f in self.fields}


def _rows_of(field: Field, values: NDArray[Any], blob: memoryview) -> Rows:
    """Return the rows of a field for PackWriter. values: its member of the records."""
    if values.dtype.names is None:
        return np.ascontiguousarray(values)
    ends = (values["at"] + values["length"]).tolist()
    parts = [blob[at:end] for at, end in zip(values["at"].tolist(), ends, strict=True)]
    if field.ragged:
        return [bytes(part) for part in parts]
    rows = np.empty((len(parts), *(field.shape or ())), field.dtype)
    for row, part in zip(rows, parts, strict=True):
        row[...] = np.frombuffer(part, field.dtype).reshape(field.shape or ())
    return rows
