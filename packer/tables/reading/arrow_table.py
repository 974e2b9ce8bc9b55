"""Parquet, Arrow and JSON lines files as a table, by row groups and record batches.

pyarrow's errors become SourceErrors. Data frames are another kind of file here (arrow_frames.py).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, Protocol

import pyarrow
import pyarrow.ipc
import pyarrow.json
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
from packer.tables.reading.text_stream import TextStream
from packer.tables.transform.column_types import TableColumn, unique
from packer.tables.transform.records import ParsedRows, RecordLayout

_INDEX = re.compile(r"__index_level_\d+__")  # pandas' names for an index without a name
PIECE_ROWS = 1 << 18  # most rows per piece
PIECE_BYTES = 32 << 20  # bytes of records per piece, about
_JSON_BLOCK = 8 << 20  # bytes of JSON parsed at once
_JSON_TYPES = {"number": pyarrow.float64(), "integer": pyarrow.int64(), "boolean": pyarrow.bool_()}
_JSON_ERROR = re.compile(r"couldn't parse:|Column\(/(.*)\) changed from null to (?:(number)|string)")
_BUFFER = 1 << 20  # bytes read per column at once; without it, pyarrow reads entire row groups of any size


class ArrowTable(TableSource):
    """Files that Arrow reads, or data frames, that hold one table.

    A piece is a row group or record batch, or a part of a large one. Memory holds the pieces being read; for
    compressed Arrow files a full record batch.
    """

    unit = "row"

    def __init__(self, files: Sequence[ArrowInput], reading: ReadOptions) -> None:
        """Decide the columns by the files' schemas. Raises SourceError, UsageError."""
        names = [file.name for file in files]
        super().__init__(names, reading)
        self._form = reading.dialect()
        self._files, first = files, files[0]
        names_used = unique(first.schema.names)
        for file in self._files[1:]:
            compare_names(file.name, file.schema.names, first.name, first.schema.names)
        columns: list[TableColumn] = []
        self.column_notes: dict[str, list[str]] = {}
        for number, name in enumerate(names_used):
            types = [file.schema.field(number).type for file in self._files]
            # The first file whose type for a column is not null decides the column's type.
            decisive = next((k for k, type in enumerate(types) if not pyarrow.types.is_null(type)), 0)
            held = types[decisive]
            columns.append(TableColumn.given(name, reading.types.get(name) or type_of(held) or "category"))
            for file, type in zip(self._files, types, strict=True):
                alike = type_of(type) == type_of(held) or pyarrow.types.is_null(type)
                if not alike and name not in reading.types:
                    raise SourceError(
                        f"{file.name}: column {name!r} holds {type}, in {names[decisive]} it is {held}; all"
                        f" files must have the same types. Pass {Option('types', {name: columns[-1].type})},"
                        " or another type, if one fits both."
                    )
            if not type_of(held):
                self.column_notes[name] = [
                    f"column {name!r} holds {held}, which cannot be read; it can only be dropped."
                ]
            elif pyarrow.types.is_null(held) and columns[-1].type == "number":
                self.column_notes[name] = [f"column {name!r} holds only nulls and is read as number."]
        self.columns: tuple[TableColumn, ...] = tuple(columns)
        counts = [file.rows for file in self._files]
        self.rows: int | None = None if None in counts else sum(count or 0 for count in counts)
        if self.rows == 0:
            raise SourceError(f"{first.name}: holds no rows; at least one is needed. Check it.")
        self.notes: tuple[str, ...] = tuple(renamed(first.name, first.schema.names, names_used, ()))
        self.indexes: tuple[str, ...] = tuple(name for name in names_used if _INDEX.fullmatch(name))

    def chunks(self, layout: RecordLayout, after: list[Any] | None = None) -> Iterator[TableChunk]:
        """Yield pieces, from the beginning or from `after`: [number of the file, row in it]."""
        self._check(layout)
        indices = [w.index for w in layout.members]
        most = max(1, min(PIECE_ROWS, PIECE_BYTES // max(1, layout.dtype.itemsize)))
        first, row = after or (0, 0)
        for number, file in enumerate(self._files[first:], first):
            with reading(file.name):
                for at, nbytes, columns in file.batches(indices, most, row):
                    rows = len(columns[0])
                    for start in range(max(0, row - at), rows, most):
                        stop = min(start + most, rows)
                        part = [column.slice(start, stop - start) for column in columns]
                        parse = partial(_parse, file.name, part, layout, self._form)
                        share = nbytes * stop // rows - nbytes * start // rows
                        yield TableChunk(file.name, [number, at + stop], share, parse)
            row = 0

    def _check(self, layout: RecordLayout) -> None:
        """Raise UsageError for columns that cannot be read as the planned type."""
        for w in layout.members:
            for file in self._files:
                type = file.schema.field(w.index).type
                if not readable(type, w.column.type):
                    way = {w.column.name: type_of(type)}
                    drop = Option("types", way) if type_of(type) else Option("drop", w.column.name)
                    raise UsageError(
                        f"{file.name}: column {w.column.name!r} holds {type}, which cannot be read as"
                        f" {w.column.type}. Pass {drop}."
                    )


def _parse(name: str, columns: Sequence[Arrow], layout: RecordLayout, form: TextDialect) -> ParsedRows:
    with reading(name):
        return records_of(columns, layout, form)


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Convert errors that pyarrow raises for a file into a SourceError."""
    try:
        yield
    except (pyarrow.lib.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
        reason = (str(error).strip().splitlines() or ["no reason given"])[0].rstrip(".")
        raise SourceError(f"{name}: cannot be read ({reason}). Check it, or write it again.") from None


_Batch = tuple[int, int, "list[Arrow]"]
"""Number of earlier rows in the file; bytes of the file, about; an array per requested column."""


class ArrowInput(Protocol):
    """A file, or a frame, that yields record batches. rows: as in ArrowFile; schema: pyarrow's."""

    name: str
    rows: int | None
    schema: Any

    def batches(self, indices: Sequence[int], most: int, row: int) -> Iterator[_Batch]:
        """Yield batches of the columns `indices`, of any size, from the row `row` or an earlier one on."""


class ArrowFile:
    """A Parquet file, or an Arrow file or stream.

    rows: number of rows, None if only reading shows it. Parquet is decoded while batches are iterated.
    Uncompressed Arrow data are memory-mapped, and read where they are used.
    """

    name: str

    rows: int | None = None

    def __init__(self, name: str) -> None:
        """Read a file's schema; the suffix and the first bytes show the format. Raises SourceError."""
        self.name, self._size = name, os.stat(name).st_size
        with open(name, "rb") as file:
            begin = file.read(6)
        self._is_stream = begin != b"ARROW1"
        self._parquet: Any = None
        with reading(name):
            if name.lower().endswith(PARQUET) or begin.startswith(b"PAR1"):
                with self._open() as parquet:
                    self._parquet, self.schema = parquet.metadata, parquet.schema_arrow
                self.rows = self._parquet.num_rows
            else:
                with pyarrow.memory_map(name) as mapped:
                    self.schema = self._reader(mapped, []).schema

    def batches(self, indices: Sequence[int], most: int, row: int) -> Iterator[_Batch]:
        """Yield batches of columns; for Parquet, at most `most` rows each, from the row group of `row` on."""
        if self._parquet is not None:
            yield from self._row_groups(indices, most, row)
            return
        with pyarrow.memory_map(self.name) as file:
            # pyarrow returns included fields in the file's order, which is the order of `indices`.
            reader, at, begin = self._reader(file, indices), 0, 0
            count = 0 if self._is_stream else reader.num_record_batches
            batches = reader if self._is_stream else map(reader.get_batch, range(count))
            for number, batch in enumerate(batches, 1):
                end = file.tell() if self._is_stream else self._size * number // count
                yield at, end - begin, batch.columns
                at, begin = at + batch.num_rows, end

    def _row_groups(self, indices: Sequence[int], most: int, row: int) -> Iterator[_Batch]:
        all_names = self.schema.names
        # Columns with equal names can only be read together.
        names = [all_names[i] for i in indices] if len(set(all_names)) == len(all_names) else None
        at, total = 0, self._parquet.num_rows
        with self._open() as file:
            for group in range(self._parquet.num_row_groups):
                count = self._parquet.row_group(group).num_rows
                if at + count <= row:
                    at += count
                    continue
                for batch in file.iter_batches(most, [group], columns=names):
                    nbytes = self._size * (at + batch.num_rows) // total - self._size * at // total
                    # Select by name: for a column a.b pyarrow also reads the member b of a struct a.
                    yield at, nbytes, [batch.column(column) for column in names or indices]
                    at += batch.num_rows

    def _open(self) -> Any:
        return pyarrow.parquet.ParquetFile(
            self.name, metadata=self._parquet, pre_buffer=False, buffer_size=_BUFFER
        )

    def _reader(self, file: Arrow, indices: Sequence[int]) -> Arrow:
        options = pyarrow.ipc.IpcReadOptions(included_fields=list(indices) or None)
        return (pyarrow.ipc.open_stream if self._is_stream else pyarrow.ipc.open_file)(file, options=options)


class JsonLines:
    """A file of one JSON object a line, perhaps compressed; Arrow infers the types from its first block.

    A value that does not have its column's type is an error, wherever it stands; so is a column that the first
    block does not have.
    """

    rows: int | None = None

    def __init__(self, name: str, options: ReadOptions) -> None:
        """Read the first block. Raises SourceError."""
        self.name, self._encoding = name, options.encoding
        self._parse = pyarrow.json.ParseOptions()
        with self._open() as (_, reader):
            found = reader.schema
        # Numbers read as categories are written as texts later; columns without values have any type.
        types = [_json_type(field, options.types.get(field.name)) for field in found]
        self.schema = pyarrow.schema(list(zip(found.names, types, strict=True)))
        if self.schema != found:
            self._parse = pyarrow.json.ParseOptions(self.schema)

    def batches(self, indices: Sequence[int], most: int, row: int) -> Iterator[_Batch]:
        """Yield the blocks. Lines are parsed from the beginning, as their lengths differ."""
        at = before = 0
        with self._open() as (stream, reader):
            for batch in reader:
                nbytes, before = stream.consumed - before, stream.consumed
                if batch.num_rows:
                    yield at, nbytes, [batch.column(index) for index in indices]
                at += batch.num_rows

    @contextmanager
    def _open(self) -> Iterator[tuple[TextStream, Any]]:
        options = pyarrow.json.ReadOptions(block_size=_JSON_BLOCK)
        with closing(TextStream(self.name, self._encoding)) as stream:
            try:
                yield stream, pyarrow.json.open_json(stream, options, self._parse)
            except pyarrow.lib.ArrowInvalid as error:
                way, known = "", _JSON_ERROR.search(str(error))
                if known:  # the first block decided the type of a column
                    kind = "category" if known[1] and not known[2] else "number"
                    whole = [field.name for field in self.schema if pyarrow.types.is_integer(field.type)]
                    column = known[1] or (whole[0] if len(whole) == 1 else "COLUMN")
                    way = f", or pass {Option('types', {column: kind})}"
                raise SourceError(
                    f"{self.name}: is no table of JSON lines ({error}); each line is an object, and a name"
                    f" has values of one type. Correct it{way}."
                ) from None


def _json_type(field: Any, wanted: str | None) -> Any:
    """Return the Arrow type that a column of JSON is read as. wanted: its type as users name it."""
    if wanted in _JSON_TYPES and (field.type in _JSON_TYPES.values() or pyarrow.types.is_null(field.type)):
        return _JSON_TYPES[wanted]
    return pyarrow.string() if wanted and pyarrow.types.is_null(field.type) else field.type
