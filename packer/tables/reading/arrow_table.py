"""ArrowTable: record batches of files or frames as a table."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow

from packer.errors import SourceError, UsageError
from packer.given_values import option_text
from packer.parquet import reading_arrow
from packer.tables.reading.arrow_batches import BatchSource
from packer.tables.reading.arrow_values import Arrow, readable, records_of, type_of
from packer.tables.reading.dialect import renamed
from packer.tables.reading.table_source import (
    ReadOptions,
    TableChunk,
    TableSource,
    compare_names,
)
from packer.tables.transform.column_types import TableColumn, unique
from packer.tables.transform.records import ParsedRows, RecordLayout

_INDEX = re.compile(r"__index_level_\d+__")  # pandas' names for an index without a name
PIECE_ROWS = 1 << 18  # most rows per piece
PIECE_BYTES = 32 << 20  # bytes of records per piece, about


class ArrowTable(TableSource):
    """Sources of record batches that hold one table.

    A piece is a row group or record batch, or a part of a large one. Memory holds the pieces being read; for
    compressed Arrow files a full record batch.
    """

    unit = "row"

    def __init__(self, sources: Sequence[BatchSource], reading: ReadOptions) -> None:
        """Decide the columns by the sources' schemas. Raises SourceError, UsageError."""
        super().__init__([source.name for source in sources], reading)
        self._form = reading.dialect()
        self._sources, first = sources, sources[0]
        written = first.schema.names
        for source in sources[1:]:
            compare_names(source.name, source.schema.names, first.name, written)
        self.column_notes = {}
        self.columns = tuple(self._column(k, name, reading) for k, name in enumerate(unique(written)))
        names = [column.name for column in self.columns]
        counts = [source.rows for source in sources]
        self.rows = None if None in counts else sum(count or 0 for count in counts)
        self.notes = tuple(renamed(first.name, written, names, ()))
        self.indexes = tuple(filter(_INDEX.fullmatch, names))

    def _column(self, number: int, name: str, reading: ReadOptions) -> TableColumn:
        """Return a column with its type; note if it has none. Raises SourceError if the sources differ."""
        types = [source.schema.field(number).type for source in self._sources]
        # The first source whose type for a column is not null decides the column's type.
        decisive = next((k for k, type in enumerate(types) if not pyarrow.types.is_null(type)), 0)
        held, given = types[decisive], reading.types.get(name)
        column = TableColumn.given(name, given or type_of(held) or "category")
        for source, type in zip(self._sources, types, strict=True):
            if not (given or type_of(type) == type_of(held) or pyarrow.types.is_null(type)):
                raise SourceError(
                    f"{source.name}: column {name!r} holds {type}, in {self.names[decisive]} it is {held};"
                    f" all files must have the same types. Pass {option_text('types', {name: column.type})},"
                    " or another type, if one fits both."
                )
        if not type_of(held):
            why = self._sources[0].faults.get(number, f"column {name!r} holds {held}, which cannot be read")
            self.column_notes[name] = [f"{why}; it can only be dropped."]
        elif pyarrow.types.is_null(held) and column.type == "number":
            self.column_notes[name] = [f"column {name!r} holds only nulls and is read as number."]
        return column

    def chunks(self, layout: RecordLayout, after: list[Any] | None = None) -> Iterator[TableChunk]:
        """Yield pieces, from the beginning or from `after`: [number of the source, row in it]."""
        self._check(layout)
        indices = [w.index for w in layout.members]
        most = max(1, min(PIECE_ROWS, PIECE_BYTES // max(1, layout.dtype.itemsize)))
        first, row = after or (0, 0)
        for number, source in enumerate(self._sources[first:], first):
            with reading_arrow(source.name):
                for at, nbytes, columns in source.batches(indices, most, row):
                    rows = len(columns[0])
                    for start in range(max(0, row - at), rows, most):
                        stop = min(start + most, rows)
                        part = [column.slice(start, stop - start) for column in columns]
                        parse = partial(self._parse, source.name, part, layout)
                        share = nbytes * stop // rows - nbytes * start // rows
                        yield TableChunk(source.name, [number, at + stop], share, parse)
            row = 0

    def _check(self, layout: RecordLayout) -> None:
        """Raise UsageError for columns that cannot be read as the planned type."""
        for w, source in ((w, source) for w in layout.members for source in self._sources):
            name, type = w.column.name, source.schema.field(w.index).type
            why = source.faults.get(w.index)
            if why or not readable(type, w.column):
                way = (
                    option_text("types", {name: type_of(type)})
                    if type_of(type)
                    else option_text("drop", name)
                )
                way = f", or pass {way}" if not self._reading.alike else ""
                why = why or (
                    f"{source.name}: column {name!r} holds {type}, which cannot be read as {w.column.type}"
                )
                raise UsageError(f"{why}. Convert it{way}.")

    def _parse(self, name: str, columns: Sequence[Arrow], layout: RecordLayout) -> ParsedRows:
        with reading_arrow(name):
            return records_of(columns, layout, self._form, words=self._reading.words)
