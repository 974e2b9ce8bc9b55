"""Rows given as dicts as records, cell by cell: 20,000 columns in 20 ms; Arrow takes 4 s, 200 us per column.

Only what is surely valid and of a plain Python type is read; RowReader.read returns None for all else, and
``packer/tables/reading/arrow_frames.py`` then reads the rows, or raises the error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from types import NoneType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.tables.reading.record_parser import one_column, parse_records
from packer.tables.reading.table_source import TextDialect
from packer.tables.transform.column_types import MISSING_CATEGORY, MISSING_INTEGER, matching, shortest
from packer.tables.transform.records import BEYOND_SINGLE_FROM, RecordLayout, RecordMember
from packer.tables.transform.row_mapper import RowMapper
from packer.tables.transform.table_transform import TableTransform

_FLOATS, _INTEGERS, _BOOLEANS = (float, np.float64), (int, np.int64), (bool, np.bool_)
_SAFE = {"f2": 6e4, "f4": 3e38, "f8": inf, "i1": 127, "u1": 255, "i2": 32_767, "i4": 2**31 - 1, "i8": 2**62}
"""Numbers of these sizes fit a dtype, once it is certain that they are whole."""


class _OtherError(Exception):
    """A cell that is left to Arrow."""


class RowReader:
    """Reader of rows for one plan of a transform.

    mapper: maps the records that `read` returns.
    """

    def __init__(self, transform: TableTransform, plan: TableTransform, dialect: TextDialect) -> None:
        """dialect: of texts."""
        members = plan.layout.members
        known = {w.index: transform.column(w.column.name).categories or () for w in members}
        texts = {w.index: known[w.index] for w in members if w.column.type == "category"}
        self.mapper = RowMapper(transform, plan.layout, texts)
        self._dialect, self._layout = one_column(dialect), plan.layout
        na = frozenset(text.decode() for text in dialect.na) if "na" in transform.reading else frozenset()
        self._names = [w.column.name for w in members]
        alike: dict[Any, Callable[[Any], Any]] = {}  # columns with the same rules share a reader
        self._cells = []
        for w in members:
            c = w.column
            key: Any = c.name
            if c.kind.numeric:
                scaled = c.standardize is not None
                key = (c.type, c.role, c.missing, c.log1p, scaled, w.single, w.exact)
            if key not in alike:
                alike[key] = (
                    _number_reader(plan, w) if c.kind.numeric else _text_reader(w, known[w.index], na)
                )
            self._cells.append(alike[key])
        self._kept = [place for place, w in enumerate(members) if w.column.type == "text"]
        self._parsed: tuple[list[int], RecordLayout] = [], RecordLayout(())

    def read(self, rows: Sequence[Mapping[Any, Any]]) -> tuple[NDArray[Any], bytes] | None:
        """Return the records of some rows and the bytes of their texts; None if Arrow has to read them."""
        cells = [[row[name] for name in self._names] for row in rows]
        if len(rows) > 1 and any(len({*map(type, of)} - {NoneType}) > 1 for of in zip(*cells, strict=True)):
            return None
        try:
            values = [[read(cell) for read, cell in zip(self._cells, row, strict=True)] for row in cells]
            self._parse(values)
        except (_OtherError, UnicodeEncodeError):
            return None
        blob = bytearray()
        for row in values:
            for place in self._kept:
                text = row[place]
                row[place] = len(blob), len(text)
                blob += text
        return np.array([tuple(row) for row in values], self._layout.dtype), bytes(blob)

    def _parse(self, values: list[list[Any]]) -> None:
        """Replace the texts of numbers by their values, all parsed at once."""
        places = sorted({place for row in values for place, cell in enumerate(row) if type(cell) is str})
        if not places:
            return
        members = self._layout.members
        known, layout = self._parsed
        if known != places:
            layout = RecordLayout(tuple(replace(members[place], index=k) for k, place in enumerate(places)))
            self._parsed = places, layout
        # A last, empty cell makes no line blank; an empty cell is missing.
        lines = [
            "\x1f".join([*(c if type(c := row[place]) is str else "" for place in places), ""])
            for row in values
        ]
        text = "\n".join(lines)
        if "\r" in text or text.count("\n") >= len(lines) or text.count("\x1f") > len(lines) * len(places):
            raise _OtherError
        dialect = replace(self._dialect, width=len(places) + 1)
        parsed = parse_records(text.encode(), dialect, layout)
        if parsed.bad or len(parsed.records) < len(lines):
            raise _OtherError
        for row, numbers in zip(values, parsed.records.tolist(), strict=True):
            for place, x in zip(places, numbers, strict=True):
                row[place] = self._cells[place](None if x == MISSING_INTEGER or x != x else x)


def _number_reader(plan: TableTransform, w: RecordMember) -> Callable[[Any], Any]:
    """Return the reader of a cell of numbers; texts are returned as they are."""
    c, kind, limit, whole = w.column, w.column.kind, inf, False
    dtype = np.dtype(plan.dtype if c.role == "feature" else plan.label_dtype or "<f8")
    classes = None
    if c.role == "label" and plan.label_kind == "classes":
        classes = frozenset(plan.class_values or ())
    elif c.role != "keep" and not c.log1p and c.standardize is None and w.dtype != dtype:
        if not (kind.whole and dtype.kind == "f"):
            limit, whole = _SAFE[dtype.str[1:]], dtype.kind in "iu"
        if kind.parts and dtype.str[1:] not in ("f4", "f8"):
            limit = -1  # seconds of a day
    needed = (
        c.role == "label"
        or (c.role == "keep" and kind.whole)
        or c.missing == "error"
        or (c.missing == "nan" and dtype.kind in "iu")
    )
    least = 0 if dtype.kind == "u" and whole else -limit
    limit = min(limit, BEYOND_SINGLE_FROM / 2) if w.single else limit
    missing, is_integer, is_boolean = w.missing, c.type == "integer", c.type == "boolean"
    booleans = c.type in ("number", "integer", "boolean")

    def read(cell: Any) -> Any:
        given = type(cell)
        if given is str:
            return cell
        if cell is None or (given in _FLOATS and cell != cell):
            if needed:
                raise _OtherError
            return missing
        if given in _FLOATS:
            x: float = float(cell)
            if is_integer:
                if not (abs(x) < 2.0**63 and x.is_integer()):
                    raise _OtherError
                x = int(x)
        elif given in _INTEGERS or (given in _BOOLEANS and booleans):
            x = int(cell)
            if not -(2**63) < x < 2**63:
                raise _OtherError
            if not is_integer:
                if w.exact and float(x) != x:
                    raise _OtherError
                x = float(x)
        else:
            raise _OtherError
        if (
            not least <= x <= limit
            or abs(x) == inf
            or (whole and x != int(x))
            or (is_boolean and x not in (0, 1))
            or (c.log1p and x <= -1)
            or (classes is not None and x not in classes)
        ):
            raise _OtherError
        return x

    return read


def _text_reader(w: RecordMember, categories: Sequence[str], na: frozenset[str]) -> Callable[[Any], Any]:
    """Return the reader of a cell of categories as codes, or of kept texts as bytes.

    An unknown category gets the code of a missing one: both are mapped to 0.
    """
    na = na & {""} if w.column.cells.verbatim else na
    c, codes = w.column, {text: code for code, text in enumerate(categories)}
    coded, needed = c.type == "category", c.role == "label" or c.missing == "error"
    match: list[Callable[[str], str]] = []

    def read(cell: Any) -> Any:
        given = type(cell)
        if cell is None or (given in _FLOATS and cell != cell) or (given is str and cell in na):
            if needed:
                raise _OtherError
            return MISSING_CATEGORY if coded else b""
        if given is str:
            text = cell
        elif given in _FLOATS or (given in _INTEGERS and -(2**63) <= cell < 2**63):
            text = shortest(cell.item() if isinstance(cell, np.generic) else cell)
        elif given in _BOOLEANS:
            text = "true" if cell else "false"
        else:
            raise _OtherError
        if not coded:
            return text.encode()
        if given is not str:
            match[:] = match or [matching(categories)]
            text = match[0](text)
        code = codes.get(text, MISSING_CATEGORY)
        if code == MISSING_CATEGORY and c.role == "label":
            raise _OtherError
        return code

    return read
