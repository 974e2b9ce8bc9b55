"""Parquet and Arrow files as a table: pieces of row groups and record batches. All that pyarrow raises is made a SourceError."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import pyarrow
import pyarrow.ipc
import pyarrow.parquet

from packer.errors import SourceError, UsageError
from packer.sentence import Option
from packer.source_kinds import PARQUET
from packer.tables.reading.arrow_values import Arrow, readable, records_of, type_of
from packer.tables.reading.dialect import renamed
from packer.tables.reading.table_source import (
    ReadOptions,
    TableChunk,
    TableSource,
    TextDialect,
    compare_names,
)
from packer.tables.reading.type_inference import check_types
from packer.tables.transform.column_types import TableColumn, unique
from packer.tables.transform.records import ParsedRows, RecordLayout

_INDEX = re.compile(r"__index_level_\d+__")  # as pandas calls an index without a name
PIECE_ROWS = 1 << 18  # at most
PIECE_BYTES = 32 << 20  # of records, about
_BUFFER = 1 << 20  # bytes of a column read at once; without it a row group is read whole, whatever its size


class ArrowTable(TableSource):
    """Parquet files, or Arrow's (IPC, Feather), that hold one table.

    A piece is a row group or a record batch, or a part of one that is large. Row groups that are pieces are decoded by whoever reads
    them, all others while the pieces are told. What is held at once is a piece for each that is read; of Arrow files that are
    compressed, a whole record batch.
    """

    unit = "row"

    def __init__(self, names: Sequence[str], reading: ReadOptions) -> None:
        """Look at the schemas of the files, which exist. Raises: SourceError, UsageError, MissingDependencyError."""
        super().__init__(names, reading)
        self._form = reading.dialect()
        self._files: list[ParquetTable | IpcTable] = [open_file(name) for name in names]
        first = self._files[0]
        called = unique(first.schema.names)
        check_types(first.name, called, reading.types)
        for file in self._files[1:]:
            compare_names(file.name, file.schema.names, first.name, first.schema.names)
        # A column has the type that the first file says in which it is not of nulls alone.
        told = [next((f for f in self._files if not _is_null(f, n)), first) for n in range(len(called))]
        held = [file.schema.field(number).type for number, file in enumerate(told)]
        self.columns = tuple(
            TableColumn.given(name, reading.types.get(name) or type_of(type) or "category")
            for name, type in zip(called, held, strict=True)
        )
        for file in self._files:
            for number, (column, type) in enumerate(zip(self.columns, held, strict=True)):
                found = file.schema.field(number).type
                alike = type_of(found) == type_of(type) or _is_null(file, number)
                if not alike and column.name not in reading.types:
                    raise SourceError(
                        f"{file.name}: column {column.name!r} holds {found}, in {told[number].name} it is "
                        f"{type}; all files must have the same types. Pass "
                        f"{Option('types', {column.name: column.type})}, or another type, if one fits both."
                    )
        counts = [file.rows for file in self._files]
        self.rows = None if None in counts else sum(count or 0 for count in counts)
        if self.rows == 0:
            raise SourceError(f"{first.name}: holds no rows; at least one is needed. Check it.")
        self.notes = tuple(renamed(first.name, first.schema.names, called, ()))
        self.column_notes = {}
        for number, (column, type) in enumerate(zip(self.columns, held, strict=True)):
            said = "" if type_of(type) else f"{type}, which is not read: it can only be dropped"
            if _is_null(told[number], number) and column.type == "number":
                said = "nulls alone: it is read as number"
            if said:
                self.column_notes[column.name] = [f"column {column.name!r} holds {said}."]
        self.indexes = tuple(name for name in called if _INDEX.fullmatch(name))

    def chunks(self, layout: RecordLayout, after: list[Any] | None = None) -> Iterator[TableChunk]:
        """Yield pieces, from the beginning or from where `after` says: [number of the file, row group or batch, row in it]."""
        self._check(layout)
        indices = [w.index for w in layout.members]
        rows = max(1, min(PIECE_ROWS, PIECE_BYTES // max(1, layout.dtype.itemsize)))
        first, group, row = after or (0, 0, 0)
        for number in range(first, len(self._files)):
            for part in self._files[number].parts(indices, rows, group, row):
                parse = partial(_parse, self.names[number], part.load, layout, self._form)
                held = max(part.nbytes, part.rows * layout.dtype.itemsize)
                yield TableChunk(self.names[number], [number, *part.after], part.nbytes, held, parse)
            group = row = 0

    def _check(self, layout: RecordLayout) -> None:
        """Raise UsageError for columns that cannot be read as what is wanted."""
        for w in layout.members:
            for file in self._files:
                type = file.schema.field(w.index).type
                if not readable(type, w.column.type):
                    way = {w.column.name: type_of(type)}
                    drop = Option("types", way) if type_of(type) else Option("drop", w.column.name)
                    raise UsageError(
                        f"{file.name}: column {w.column.name!r} holds {type}, which is not read as {w.column.type}. Pass {drop}."
                    )


def _is_null(file: ParquetTable | IpcTable, number: int) -> bool:
    return bool(pyarrow.types.is_null(file.schema.field(number).type))


def _parse(
    name: str, load: Callable[[], Sequence[Arrow]], layout: RecordLayout, form: TextDialect
) -> ParsedRows:
    with reading(name):
        return records_of(load(), layout, form)


class ArrowPart(NamedTuple):
    """Neighbouring rows.

    after: [row group or batch, row in it] of the first row behind them; load: gives an array for each column asked for, by any
    thread, once; nbytes: of the file; rows: how many.
    """

    after: list[int]
    load: Callable[[], Sequence[Arrow]]
    nbytes: int
    rows: int


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Make a SourceError of what pyarrow raises about a file."""
    try:
        yield
    except (pyarrow.lib.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
        said = (str(error).strip().splitlines() or ["nothing is said why"])[0].rstrip(".")
        raise SourceError(f"{name}: cannot be read ({said}). Check it, or write it again.") from None


def open_file(name: str) -> ParquetTable | IpcTable:
    """Open a file by its suffix and its first bytes, and read its schema. Raises SourceError."""
    with open(name, "rb") as file:
        begin = file.read(6)
    with reading(name):
        if name.lower().endswith(PARQUET) or begin.startswith(b"PAR1"):
            return ParquetTable(name)
        return IpcTable(name, stream=begin != b"ARROW1")


class ParquetTable:
    """A Parquet file. Row groups that are parts are decoded by whoever reads them, all others while the parts are told."""

    def __init__(self, name: str) -> None:
        self.name, self._size = name, os.stat(name).st_size
        self._metadata = None
        with self._open() as file:
            self._metadata = file.metadata
            self.schema: Arrow = file.schema_arrow
        self.rows: int | None = self._metadata.num_rows
        self._rows = [self._metadata.row_group(g).num_rows for g in range(self._metadata.num_row_groups)]
        self._before = [0, *accumulate(self._rows)]

    def parts(self, indices: Sequence[int], most: int, group: int, row: int) -> Iterator[ArrowPart]:
        """Yield parts of at most so many rows, from a row of a group on. indices: of columns."""
        every = self.schema.names
        # Columns of equal names can only be read together.
        names = [every[i] for i in indices] if len(set(every)) == len(every) else None
        # By name, as more may be read: a struct a with a member b, for a column a.b.
        pick = partial(_picked, columns=names or indices)
        for g in range(group, len(self._rows)):
            count, first = self._rows[g], row if g == group else 0
            before, total = self._before[g], self._before[-1]
            if 0 < count <= most:
                nbytes = self._size * (before + count) // total - self._size * before // total
                yield ArrowPart([g + 1, 0], partial(self._group, g, names, pick), nbytes, count)
                continue
            with reading(self.name), self._open() as file:
                at = 0
                for batch in file.iter_batches(most, [g], columns=names) if count else ():
                    start, at = max(at, first), at + batch.num_rows
                    if at <= first:
                        continue  # done by an interrupted run; there is no way to them but through these
                    arrays = pick(batch.slice(batch.num_rows - (at - start)))
                    nbytes = self._size * (before + at) // total - self._size * (before + start) // total
                    after = [g, at] if at < count else [g + 1, 0]
                    yield ArrowPart(after, partial(tuple, arrays), nbytes, at - start)

    def _group(
        self, group: int, names: list[str] | None, pick: Callable[[Arrow], list[Arrow]]
    ) -> list[Arrow]:
        """Read a row group's columns; workers have one each, so no more threads are begun."""
        with self._open() as file:
            return pick(file.read_row_group(group, columns=names, use_threads=False))

    def _open(self) -> Any:
        return pyarrow.parquet.ParquetFile(
            self.name, metadata=self._metadata, pre_buffer=False, buffer_size=_BUFFER
        )


class IpcTable:
    """A file in Arrow's own format. What is not compressed is mapped, and read where it is used."""

    rows: int | None = None  # only reading tells

    def __init__(self, name: str, *, stream: bool) -> None:
        self.name, self._size, self._stream = name, os.stat(name).st_size, stream
        with pyarrow.memory_map(name) as file:
            self.schema: Arrow = self._reader(file, []).schema

    def parts(self, indices: Sequence[int], most: int, group: int, row: int) -> Iterator[ArrowPart]:
        """Yield parts of at most so many rows, from a row of a batch on. indices: of columns."""
        with reading(self.name), pyarrow.memory_map(self.name) as file:
            # Whoever reads fewer columns than there are is given them in the file's order, as they are asked for here.
            reader = self._reader(file, indices)
            begin, g = 0, 0 if self._stream else group
            while True:
                if self._stream:
                    batch = next(reader, None)
                else:
                    batch = reader.get_batch(g) if g < reader.num_record_batches else None
                if batch is None:
                    return
                end = file.tell() if self._stream else self._size * (g + 1) // reader.num_record_batches
                count, first = batch.num_rows, row if g == group else 0
                for start in range(first, count if g >= group else 0, most):
                    stop = min(start + most, count)
                    nbytes = (end - begin) * stop // count - (end - begin) * start // count
                    after = [g, stop] if stop < count else [g + 1, 0]
                    arrays = batch.slice(start, stop - start).columns
                    yield ArrowPart(after, partial(tuple, arrays), nbytes, stop - start)
                begin, g = end, g + 1

    def _reader(self, file: Arrow, indices: Sequence[int]) -> Arrow:
        ipc = pyarrow.ipc
        options = ipc.IpcReadOptions(included_fields=list(indices) or None)
        return (ipc.open_stream if self._stream else ipc.open_file)(file, options=options)


def _picked(table: Arrow, columns: Sequence[str | int]) -> list[Arrow]:
    """Return the columns of these names or numbers, each as one array."""
    found = []
    for column in map(table.column, columns):
        if hasattr(column, "combine_chunks"):
            column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        found.append(column)
    return found
