"""Columns in names of folders, as in code=01001/part-0.parquet: the same value for all rows of a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import unquote

import numpy as np

from packer.errors import SourceError
from packer.tables.reading.record_parser import one_column, parse_records
from packer.tables.reading.table_source import ReadOptions, TableChunk, TableSource
from packer.tables.reading.type_inference import infer
from packer.tables.transform.records import ParsedRows, RecordLayout, RecordMember

_MISSING = "__HIVE_DEFAULT_PARTITION__"
_NAMED = 2  # most folders named in a note


def partitions(names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return file -> column -> value, as the folders of the files say; {} if no file has any.

    Raises SourceError if the files have different columns.
    """
    found = {name: _values(name) for name in names}
    first = found[names[0]]
    for name, values in found.items():
        if list(values) != list(first):
            shown = [", ".join(map(repr, one)) or "none" for one in (values, first)]
            raise SourceError(
                f"{name}: its folders give the columns {shown[0]}, those of {names[0]} {shown[1]}; all files"
                " of a table have the same. Pass files of one layout."
            )
    return found if first else {}


def _values(name: str) -> dict[str, str]:
    pairs = (part.split("=", 1) for part in os.path.dirname(name).split(os.sep) if part.find("=") > 0)
    return {unquote(key): "" if value == _MISSING else unquote(value) for key, value in pairs}


class PartitionedTable(TableSource):
    """The table of files, and after its columns those of their folders; a file's own column wins."""

    def __init__(
        self,
        open_files: Callable[[Sequence[str], ReadOptions], TableSource],
        names: Sequence[str],
        values: Mapping[str, Mapping[str, str]],
        reading: ReadOptions,
    ) -> None:
        """values: file -> column -> value. Raises as `open_files` does."""
        super().__init__(names, reading)
        self._values, keys = values, list(values[names[0]])
        types = {name: type for name, type in reading.types.items() if name not in keys}
        self._inner = inner = open_files(names, replace(reading, types=types))
        self._keys = [key for key in keys if all(key != c.name for c in inner.columns)]
        given = {name: type for name, type in reading.types.items() if name in self._keys}
        self._dialect = replace(one_column(reading.dialect()), width=len(self._keys) + 1)
        cells = [[values[name][key].encode() for key in self._keys] for name in names]
        columns, notes = infer(names[0], self._keys, cells, self._dialect, given)
        self.columns = (*inner.columns, *columns)
        self.column_notes = {**notes, **inner.column_notes}
        self.indexes, self.unit, self.rows = inner.indexes, inner.unit, inner.rows
        folders = [f"{key}={values[names[0]][key] or _MISSING}" for key in self._keys[:_NAMED]]
        self.notes = (
            *inner.notes,
            *(
                [f"the names of folders give columns, as {' and '.join(folders)} for {names[0]}."]
                if folders
                else ()
            ),
        )

    def chunks(self, layout: RecordLayout, after: list[Any] | None = None) -> Iterator[TableChunk]:
        """Yield the pieces of the files, with the columns of their folders."""
        width = len(self._inner.columns)
        held = tuple(w for w in layout.members if w.index < width)
        added = [w for w in layout.members if w.index >= width]
        inner = RecordLayout(held or (RecordMember(0, self._inner.columns[0]),))
        known: dict[str, ParsedRows] = {}
        for chunk in self._inner.chunks(inner, after):
            if chunk.name not in known:
                known[chunk.name] = self._row(chunk.name, width, added)
            yield replace(
                chunk, parse=partial(_widened, chunk.parse, known[chunk.name], layout, added, width)
            )

    def _row(self, name: str, width: int, added: Sequence[RecordMember]) -> ParsedRows:
        """Return the values of a file's folders as a row. Raises SourceError."""
        texts = [self._values[name][key] for key in self._keys]
        line = self._dialect.delimiter.join(text.encode() for text in (*texts, ""))
        layout = RecordLayout(tuple(replace(w, index=w.index - width) for w in added))
        row = parse_records(line, self._dialect, layout)
        for bad in row.bad:
            column = self._keys[bad.column or 0]
            raise SourceError(
                f"{name}: the value of its folder {column}={bad.value} {bad.reason}. Correct it."
            )
        return row

    def first_line(self, name: str) -> int:
        """See TableSource."""
        return self._inner.first_line(name)

    def fingerprint(self) -> dict[str, Any]:
        """See TableSource."""
        return {**super().fingerprint(), "folders": [dict(self._values[name]) for name in self.names]}


def _widened(
    parse: Callable[[], ParsedRows],
    row: ParsedRows,
    layout: RecordLayout,
    added: Sequence[RecordMember],
    width: int,
) -> ParsedRows:
    """Return the parsed rows with the columns `added`, which are those of `row`."""
    parsed = parse()
    records = np.empty(len(parsed.records), layout.dtype)
    for name in parsed.records.dtype.names or ():
        if name in (layout.dtype.names or ()):
            records[name] = parsed.records[name]
    for w in added:
        value = row.records[f"c{w.index - width}"][0]
        records[w.name] = value
        if w.column.type == "text":
            records[w.name]["at"] += len(parsed.texts)
        elif w.column.type == "category":
            parsed.dictionaries[w.index] = row.dictionaries[w.index - width]
    parsed.records, parsed.texts = records, bytes(parsed.texts) + row.texts
    return parsed
