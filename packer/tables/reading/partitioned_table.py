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
from packer.tables.reading.type_inference import infer, notes_on_texts
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
        form = one_column(reading.dialect())
        self._dialect = replace(form, width=len(inner.columns) + len(self._keys) + 1)
        cells = [[values[name][key].encode() for key in self._keys] for name in names]
        columns, notes = infer(names[0], self._keys, cells, form, given)
        self.columns = (*inner.columns, *columns)
        self.column_notes = {**notes, **inner.column_notes}
        self.indexes, self.unit, self.rows = inner.indexes, inner.unit, inner.rows
        folders = [f"{key}={values[names[0]][key] or _MISSING}" for key in self._keys[:_NAMED]]
        note = f"the names of folders give columns, as {' and '.join(folders)} for {names[0]}."
        self.notes = (*inner.notes, *([note] if folders else ()))
        self.notes += tuple(notes_on_texts("the folders", columns, cells, form, bool(reading.alike)))

    def chunks(self, layout: RecordLayout, after: list[Any] | None = None) -> Iterator[TableChunk]:
        """Yield the pieces of the files, with the columns of their folders."""
        held = tuple(w for w in layout.members if w.index < len(self._inner.columns))
        inner = RecordLayout(held or (RecordMember(0, self._inner.columns[0]),))
        rows = {name: self._row(name, layout) for name in self.names}
        for chunk in self._inner.chunks(inner, after):
            yield replace(chunk, parse=partial(_filled, rows[chunk.name], chunk.parse, layout, inner))

    def _row(self, name: str, layout: RecordLayout) -> ParsedRows:
        """Return the values of a file's folders as a row, whose other cells are empty. Raises SourceError."""
        texts = [*("" for _ in self._inner.columns), *(self._values[name][key] for key in self._keys), ""]
        row = parse_records("\x1f".join(texts).encode(), self._dialect, layout)
        for bad in row.bad:
            column = self.columns[bad.column or 0].name
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


def _filled(
    row: ParsedRows, parse: Callable[[], ParsedRows], layout: RecordLayout, inner: RecordLayout
) -> ParsedRows:
    """Return the parsed rows of a file, with the values of its folders, those of `row`."""
    parsed = parse()
    records = np.repeat(row.records, len(parsed.records))
    for w in layout.members:
        if w in inner.members:
            records[w.name] = parsed.records[w.name]
        elif w.column.type == "text":
            records[w.name]["at"] += len(parsed.texts)
    texts = {index: parsed.dictionaries.get(index, known) for index, known in row.dictionaries.items()}
    parsed.records, parsed.dictionaries, parsed.texts = records, texts, bytes(parsed.texts) + row.texts
    return parsed
