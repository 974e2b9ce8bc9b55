"""Rows given as dicts as records, cell by cell: 20,000 columns in 20 ms; Arrow takes 4 s, 200 us per column.

Numbers are written as texts, and all texts are parsed at once. Only cells that are surely valid and of a
plain Python type are read; RowReader.map returns None for all else, and
``packer/tables/reading/arrow_frames.py`` then reads the rows, or raises the error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from types import NoneType
from typing import Any

import numpy as np

from packer.garbage import paused
from packer.tables.reading.record_parser import one_column, parse_records
from packer.tables.reading.table_source import text_dialect
from packer.tables.transform.column_types import MISSING_CATEGORY, TableColumn, matching, shortest
from packer.tables.transform.records import BEYOND_SINGLE_FROM, RecordLayout, RecordMember
from packer.tables.transform.row_mapper import MappedRows, RowMapper
from packer.tables.transform.table_transform import TableTransform

_FLOATS, _INTEGERS, _BOOLEANS = (float, np.float64), (int, np.int64), (bool, np.bool_)
_Cell = Callable[[Any], "str | float"]
"""Returns the text of a cell, "" for missing, or its raw value. Raises _OtherError."""


class _OtherError(Exception):
    """A cell that is left to Arrow."""


class RowReader:
    """Mapping of rows with the same columns.

    names: columns of the transform that the rows have, in its order.
    """

    @paused()
    def __init__(self, transform: TableTransform, names: Sequence[str]) -> None:
        """Raise UsageError if a feature is missing."""
        self.names, dialect = names, text_dialect(transform.reading)
        self._plan = plan = transform.plan_for(TableColumn.named(names))
        members, verbatim = plan.layout.members, "na" not in transform.reading
        self._texts = {
            w.index: transform.column(w.column.name).categories or ()
            for w in members
            if w.column.type == "category"
        }
        self._mapper = RowMapper(transform, plan.layout, self._texts)
        na = frozenset() if verbatim else frozenset(text.decode() for text in dialect.na)
        decimal = dialect.decimal.decode()
        writers: dict[Any, _Cell] = {}  # columns with the same rules share a writer
        self._cells: list[_Cell] = [lambda cell: ""] * len(names)  # columns of no role have empty cells
        for w in members:
            key = w.column.name if w.index in self._texts else (w.column.type, w.column.notation, w.single)
            if key not in writers:
                writers[key] = _cell_writer(w, self._texts.get(w.index, ()), na, decimal)
            self._cells[w.index] = writers[key]
        # A last, empty cell makes no line blank.
        self._dialect = replace(one_column(dialect), width=len(names) + 1, keep_spaces=True)
        self._layout = plan.layout
        if verbatim and any(w.column.type == "text" for w in members):
            self._layout = RecordLayout(
                tuple(
                    replace(w, column=w.column.but(notation="verbatim")) if w.column.type == "text" else w
                    for w in members
                )
            )

    def map(self, rows: Sequence[Mapping[Any, Any]]) -> MappedRows | None:
        """Map some rows; None if Arrow has to read them."""
        cells = [[row[name] for name in self.names] for row in rows]
        if len(rows) > 1 and any(len({*map(type, of)} - {NoneType}) > 1 for of in zip(*cells, strict=True)):
            return None
        try:
            values = [[write(cell) for write, cell in zip(self._cells, row, strict=True)] for row in cells]
            lines = ["\x1f".join([*(x if type(x) is str else "" for x in row), ""]) for row in values]
            text = "\n".join(lines).encode()
        except (_OtherError, UnicodeEncodeError):
            return None
        ends = [text.count(mark) for mark in (b"\r", b"\n", b"\x1f")]
        if ends != [0, len(rows) - 1, len(rows) * len(self.names)]:
            return None
        parsed = parse_records(text, self._dialect, self._layout)
        if parsed.bad:
            return None
        records = parsed.records
        for number, row in enumerate(values):
            for index, x in enumerate(row):
                if type(x) is not str:
                    records[f"c{index}"][number] = x
        if self._plan.bad_rows(records, self._texts, 1)[1]:
            return None
        mapped = self._mapper.map(records, parsed.texts)
        return None if mapped.beyond is not None else mapped


def _cell_writer(w: RecordMember, categories: Sequence[str], na: frozenset[str], decimal: str) -> _Cell:
    """Return the writer of a column's cells. na: texts of categories that mean missing."""
    if w.column.type in ("category", "text"):
        return _text_writer(w, categories, na)
    kind, is_read = w.column.type, w.column.cells.read is not None
    integers = (*_INTEGERS, *(_BOOLEANS if kind in ("number", "integer", "boolean") else ()))

    def write(cell: Any) -> str | float:
        given = type(cell)
        if given is str:
            return str(cell)
        if cell is None or (given in _FLOATS and cell != cell):
            return ""
        if given not in _FLOATS and (given not in integers or not -(2**63) < int(cell) < 2**63):
            raise _OtherError
        if kind in ("date", "time", "timestamp"):
            raise _OtherError
        if is_read:  # as a raw value
            x = float(cell)
            beyond = not isfinite(x) or (w.single and abs(x) >= BEYOND_SINGLE_FROM / 2)
            if beyond or x != cell or (kind == "boolean" and x not in (0, 1)):
                raise _OtherError
            return x
        if given in _FLOATS and kind == "number":
            return repr(float(cell)).replace(".", decimal)
        if given in _FLOATS and not cell.is_integer():
            raise _OtherError
        return str(int(cell))

    return write


def _text_writer(w: RecordMember, categories: Sequence[str], na: frozenset[str]) -> _Cell:
    """Return the writer of a cell of categories as codes, or of kept texts.

    An unknown category gets the code of a missing one: both are mapped to 0.
    """
    na = na & {""} if w.column.cells.verbatim else na
    coded, codes = w.column.type == "category", {text: code for code, text in enumerate(categories)}
    match: list[Callable[[str], str]] = []

    def write(cell: Any) -> str | float:
        given = type(cell)
        if cell is None or (given in _FLOATS and cell != cell) or (given is str and cell in na):
            return MISSING_CATEGORY if coded else ""
        if given is str:
            text = cell
        elif given in _FLOATS or (given in _INTEGERS and -(2**63) <= cell < 2**63):
            text = shortest(cell.item() if isinstance(cell, np.generic) else cell)
        elif given in _BOOLEANS:
            text = "true" if cell else "false"
        else:
            raise _OtherError
        if coded and text not in codes:
            match[:] = match or [matching(categories)]
            text = match[0](text)
        if (coded and w.column.role == "label" and text not in codes) or (given is not str and text in na):
            raise _OtherError
        return codes.get(text, MISSING_CATEGORY) if coded else text

    return write
