"""Parquet and Arrow files as a table: pieces of row groups and record batches. pyarrow reads them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from packer.errors import SourceError, UsageError
from packer.sentence import Option
from packer.tables.reading.arrow_files import ArrowFile, ArrowPart, open_file, pyarrow, reading
from packer.tables.reading.arrow_values import readable, records_of, type_of
from packer.tables.reading.dialect import dialect_of, unique_names
from packer.tables.reading.table_source import ReadOptions, TableSource, TextDialect, compare_names
from packer.tables.reading.type_inference import check_types
from packer.tables.transform.records import ParsedRows, RecordLayout, TableColumn

_INDEX = re.compile(r"__index_level_\d+__")  # as pandas calls an index without a name
PIECE_ROWS = 1 << 18  # at most
PIECE_BYTES = 32 << 20  # of records, about


class ArrowTable(TableSource):
    """Parquet files, or Arrow's (IPC, Feather), that hold one table.

    A piece is a row group or a record batch, or a part of one that is large. Row groups that are pieces are decoded by whoever reads
    them, all others while the pieces are told. What is held at once is a piece for each that is read; of Arrow files that are
    compressed, a whole record batch.
    """

    unit = "row"

    def __init__(self, names: Sequence[str], reading: ReadOptions) -> None:
        """Look at the schemas of the files, which exist. Raises: SourceError, UsageError, MissingDependencyError."""
        self._pa = pyarrow()
        super().__init__(names, reading)
        self._form = dialect_of(reading)
        self._files: list[ArrowFile] = [open_file(name) for name in names]
        first = self._files[0]
        called, notes = unique_names(first.name, first.schema.names)
        check_types(first.name, called, reading.types)
        for file in self._files[1:]:
            compare_names(file.name, file.schema.names, first.name, first.schema.names)
        known = [self._known(number) for number in range(len(called))]
        self.columns = tuple(
            TableColumn.given(
                name,
                reading.types.get(name) or type_of(self._pa, file.schema.field(number).type) or "category",
            )
            for number, (name, file) in enumerate(zip(called, known, strict=True))
        )
        for file in self._files:
            self._compare_types(known, file)
        counts = [file.rows for file in self._files]
        self.rows = None if None in counts else sum(count or 0 for count in counts)
        if self.rows == 0:
            raise SourceError(f"{first.name}: holds no rows; at least one is needed. Check it.")
        self.notes = tuple(notes)
        self.column_notes = {}
        for number, (column, file) in enumerate(zip(self.columns, known, strict=True)):
            type = file.schema.field(number).type
            if type_of(self._pa, type) is None:
                said = f"column {column.name!r} holds {type}, which is not read: it can only be dropped."
                self.column_notes[column.name] = [said]
            elif self._pa.types.is_null(type) and column.type == "number":
                self.column_notes[column.name] = [
                    f"column {column.name!r} holds nulls alone: it is read as number."
                ]
        self.indexes = {
            c.name: f"column {c.name!r} numbers the rows"
            for c in self.columns
            if _INDEX.fullmatch(c.name) and c.type == "integer" and c.name not in reading.types
        }

    def chunks(self, layout: RecordLayout, after: list[Any] | None = None) -> Iterator[ArrowChunk]:
        """Yield pieces, from the beginning or from where `after` says: [number of the file, row group or batch, row in it]."""
        self._check(layout)
        indices = [w.index for w in layout.members]
        rows = max(1, min(PIECE_ROWS, PIECE_BYTES // max(1, layout.dtype.itemsize)))
        first, group, row = after or (0, 0, 0)
        for number in range(first, len(self._files)):
            for part in self._files[number].parts(indices, rows, group, row):
                yield ArrowChunk(self.names[number], [number, *part.after], part, layout, self._form)
            group = row = 0

    def _known(self, number: int) -> ArrowFile:
        """Find the first file in which a column is not of nulls alone, by its type; the first one if it is so in all."""
        for file in self._files:
            if not self._pa.types.is_null(file.schema.field(number).type):
                return file
        return self._files[0]

    def _compare_types(self, known: Sequence[ArrowFile], file: ArrowFile) -> None:
        """Raise SourceError if a file has columns of other types. known: for each column, the file that tells its type."""
        for number, (one, first) in enumerate(zip(file.schema, known, strict=True)):
            if file is first:
                continue
            column, other = self.columns[number], first.schema.field(number)
            found = type_of(self._pa, one.type)
            alike = found == column.type or column.name in self._reading.types
            if not alike and not (
                self._pa.types.is_null(one.type) or found is None is type_of(self._pa, other.type)
            ):
                raise SourceError(
                    f"{file.name}: column {column.name!r} holds {one.type}, in {first.name} it is {other.type}; all files must have "
                    "the same types. Pass ",
                    Option("types", {column.name: column.type}),
                    ", or another type, if one fits both.",
                )

    def _check(self, layout: RecordLayout) -> None:
        """Raise UsageError for columns that cannot be read as what is wanted."""
        for w in layout.members:
            for file in self._files:
                type = file.schema.field(w.index).type
                if type_of(self._pa, type) is None:
                    raise UsageError(
                        f"{file.name}: column {w.column.name!r} holds {type}; numbers, booleans, dates, times and texts are read. Pass ",
                        Option("drop", w.column.name),
                        ".",
                    )
                if not readable(self._pa, type, w.column.type):
                    raise UsageError(
                        f"{file.name}: column {w.column.name!r} holds {type}, which cannot be read as {w.column.type}. Pass ",
                        Option("types", {w.column.name: type_of(self._pa, type)}),
                        ".",
                    )


class ArrowChunk:
    """Some rows of a file, a TableChunk."""

    def __init__(
        self, name: str, after: list[Any], part: ArrowPart, layout: RecordLayout, dialect: TextDialect
    ) -> None:
        self.name, self.after = name, after
        self._part, self._layout, self._form = part, layout, dialect

    def read(self) -> ParsedRows:
        """Make records of them."""
        with reading(self.name):
            parsed = records_of(pyarrow(), self._part.load(), self._layout, self._form)
        parsed.nbytes = self._part.nbytes
        return parsed
