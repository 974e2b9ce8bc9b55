"""Parquet and Arrow files as a table: pieces of row groups and record batches. All that pyarrow raises is made a SourceError."""

from __future__ import annotations

import os
import re
from collections import Counter
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
        self._files: list[ArrowFile] = [open_file(name) for name in names]
        first = self._files[0]
        called = unique(first.schema.names)
        check_types(first.name, called, reading.types)
        for file in self._files[1:]:
            compare_names(file.name, file.schema.names, first.name, first.schema.names)
        known = [self._known(number) for number in range(len(called))]
        self.columns = tuple(
            TableColumn.given(
                name,
                reading.types.get(name) or type_of(file.schema.field(number).type) or "category",
            )
            for number, (name, file) in enumerate(zip(called, known, strict=True))
        )
        for file in self._files:
            self._compare_types(known, file)
        counts = [file.rows for file in self._files]
        self.rows = None if None in counts else sum(count or 0 for count in counts)
        if self.rows == 0:
            raise SourceError(f"{first.name}: holds no rows; at least one is needed. Check it.")
        self.notes = tuple(renamed(first.name, first.schema.names, called, ()))
        self.column_notes = {}
        for number, (column, file) in enumerate(zip(self.columns, known, strict=True)):
            type = file.schema.field(number).type
            if type_of(type) is None:
                said = f"column {column.name!r} holds {type}, which is not read: it can only be dropped."
                self.column_notes[column.name] = [said]
            elif pyarrow.types.is_null(type) and column.type == "number":
                self.column_notes[column.name] = [
                    f"column {column.name!r} holds nulls alone: it is read as number."
                ]
        self.indexes = tuple(
            c.name
            for c in self.columns
            if _INDEX.fullmatch(c.name) and c.type == "integer" and c.name not in reading.types
        )

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

    def _known(self, number: int) -> ArrowFile:
        """Find the first file in which a column is not of nulls alone, by its type; the first one if it is so in all."""
        for file in self._files:
            if not pyarrow.types.is_null(file.schema.field(number).type):
                return file
        return self._files[0]

    def _compare_types(self, known: Sequence[ArrowFile], file: ArrowFile) -> None:
        """Raise SourceError if a file has columns of other types. known: for each column, the file that tells its type."""
        for number, (one, first) in enumerate(zip(file.schema, known, strict=True)):
            if file is first:
                continue
            column, other = self.columns[number], first.schema.field(number)
            found = type_of(one.type)
            alike = found == column.type or column.name in self._reading.types
            if not alike and not (pyarrow.types.is_null(one.type) or found is None is type_of(other.type)):
                raise SourceError(
                    f"{file.name}: column {column.name!r} holds {one.type}, in {first.name} it is "
                    f"{other.type}; all files must have the same types. Pass "
                    f"{Option('types', {column.name: column.type})}, or another type, if one fits both."
                )

    def _check(self, layout: RecordLayout) -> None:
        """Raise UsageError for columns that cannot be read as what is wanted."""
        for w in layout.members:
            for file in self._files:
                type = file.schema.field(w.index).type
                name, found = w.column.name, type_of(type)
                if readable(type, w.column.type):
                    continue
                said = f", which cannot be read as {w.column.type}"
                way = Option("types", {name: found})
                if found is None:
                    said = "; numbers, booleans, dates, times and texts are read"
                    way = Option("drop", name)
                raise UsageError(f"{file.name}: column {name!r} holds {type}{said}. Pass ", way, ".")


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


class ArrowFile:
    """A file. rows: None if only reading tells."""

    schema: Arrow
    rows: int | None = None

    def __init__(self, name: str) -> None:
        self.name, self._size = name, os.stat(name).st_size

    def parts(self, indices: Sequence[int], most: int, group: int, row: int) -> Iterator[ArrowPart]:
        """Yield parts of at most so many rows, from a row of a group on. indices: of columns."""
        raise NotImplementedError


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Make a SourceError of what pyarrow raises about a file."""
    try:
        yield
    except (pyarrow.lib.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
        said = (str(error).strip().splitlines() or ["nothing is said why"])[0].rstrip(".")
        raise SourceError(f"{name}: cannot be read ({said}). Check it, or write it again.") from None


def open_file(name: str) -> ArrowFile:
    """Open a file by its suffix and its first bytes, and read its schema. Raises SourceError."""
    with open(name, "rb") as file:
        begin = file.read(6)
    if begin.startswith(b"FEA1"):
        raise SourceError(
            f"{name}: is in version 1 of Feather, which is no longer read. Rewrite it, as by"
            " pyarrow.feather.write_feather(pyarrow.feather.read_table(OLD), NEW)."
        )
    with reading(name):
        if name.lower().endswith(PARQUET) or begin.startswith(b"PAR1"):
            return _Parquet(name)
        return _Ipc(name, stream=begin != b"ARROW1")


class _Parquet(ArrowFile):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._metadata = None
        with self._open() as file:
            self._metadata = file.metadata
            self.schema = file.schema_arrow
        self.rows = self._metadata.num_rows
        groups = [self._metadata.row_group(g) for g in range(self._metadata.num_row_groups)]
        self._rows = [group.num_rows for group in groups]
        self._before = [0, *accumulate(group.total_byte_size for group in groups)]

    def parts(self, indices: Sequence[int], most: int, group: int, row: int) -> Iterator[ArrowPart]:
        every, before = self.schema.names, Counter[str]()
        numbers_of = []  # columns may have equal names: which of those each is
        for name in every:
            numbers_of.append(before[name])
            before[name] += 1
        names, numbers = [every[i] for i in indices], [numbers_of[i] for i in indices]
        done = self._bytes(group, row)
        for g in range(group, len(self._rows)):
            count, first = self._rows[g], row if g == group else 0
            if not count:
                continue
            if count <= most:
                ends = self._bytes(g + 1, 0)
                yield ArrowPart([g + 1, 0], partial(self._group, g, names, numbers), ends - done, count)
                done = ends
                continue
            with reading(self.name), self._open() as file:
                at = 0
                for batch in file.iter_batches(most, [g], columns=list(dict.fromkeys(names))):
                    start, at = at, at + batch.num_rows
                    if at <= first:
                        continue  # done by an interrupted run; there is no way to them but through these
                    rest = batch.slice(max(0, first - start))
                    arrays = _picked(rest, names, numbers)
                    ends = self._bytes(g, at)
                    after = [g, at] if at < count else [g + 1, 0]
                    yield ArrowPart(after, partial(tuple, arrays), ends - done, rest.num_rows)
                    done = ends

    def _group(self, group: int, names: Sequence[str], numbers: Sequence[int]) -> list[Arrow]:
        """Read a row group's columns; workers have one each, so no more threads are begun."""
        with self._open() as file:
            table = file.read_row_group(group, columns=list(dict.fromkeys(names)), use_threads=False)
        return _picked(table, names, numbers)

    def _open(self) -> Any:
        return pyarrow.parquet.ParquetFile(
            self.name, metadata=self._metadata, pre_buffer=False, buffer_size=_BUFFER
        )

    def _bytes(self, group: int, row: int) -> int:
        """Return the bytes of the file before a row, as if rows lay in order."""
        if group >= len(self._rows):
            return self._size
        weight = self._before[group + 1] - self._before[group]
        before = self._before[group] + weight * row // max(1, self._rows[group])
        return int(self._size * before // max(1, self._before[-1]))


class _Ipc(ArrowFile):
    """Arrow's own format. What is not compressed is mapped, and read where it is used."""

    def __init__(self, name: str, *, stream: bool) -> None:
        super().__init__(name)
        self._stream = stream
        with pyarrow.memory_map(name) as file:
            self.schema = self._reader(file, []).schema

    def parts(self, indices: Sequence[int], most: int, group: int, row: int) -> Iterator[ArrowPart]:
        with reading(self.name), pyarrow.memory_map(self.name) as file:
            # Whoever reads fewer columns than there are is given them in the file's order, as they are asked for here.
            reader = self._reader(file, indices)
            for g, batch, begin, end in self._batches(file, reader, 0 if self._stream else group):
                if g < group:
                    continue
                count = batch.num_rows
                done = begin
                for start in range(row if g == group else 0, count, most):
                    stop = min(start + most, count)
                    at = begin + (end - begin) * stop // count
                    after = [g, stop] if stop < count else [g + 1, 0]
                    arrays = batch.slice(start, stop - start).columns
                    yield ArrowPart(after, partial(tuple, arrays), at - done, stop - start)
                    done = at

    def _batches(self, file: Arrow, reader: Arrow, group: int) -> Iterator[tuple[int, Arrow, int, int]]:
        """Yield each batch's number, it, and where it begins and ends in the file, about."""
        if self._stream:
            begin = 0
            for g, batch in enumerate(reader):
                end = int(file.tell())
                yield g, batch, begin, end
                begin = end
        else:
            count = reader.num_record_batches
            for g in range(group, count):
                yield g, reader.get_batch(g), self._size * g // count, self._size * (g + 1) // count

    def _reader(self, file: Arrow, indices: Sequence[int]) -> Arrow:
        ipc = pyarrow.ipc
        options = ipc.IpcReadOptions(included_fields=list(indices) or None)
        return (ipc.open_stream if self._stream else ipc.open_file)(file, options=options)


def _picked(table: Arrow, names: Sequence[str], numbers: Sequence[int]) -> list[Arrow]:
    """Return the columns, each as one array. numbers: which of those with the same name."""
    found = []
    for name, number in zip(names, numbers, strict=True):
        column = table.column(table.schema.get_all_field_indices(name)[number])
        if hasattr(column, "combine_chunks"):
            column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        found.append(column)
    return found
