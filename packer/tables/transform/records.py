"""Raw rows of a table, between reading and mapping: records, one packed structure per row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from itertools import pairwise
from math import nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.tables.transform.column_types import MISSING_INTEGER, TableColumn, as_float

_SINGLE = np.dtype("<f4")
MAX_BAD = 1000  # most rows listed per chunk
VALUE_CHARACTERS = 80  # of a cell in messages
BEYOND_SINGLE_FROM = float.fromhex("0x1.ffffffp127")  # smallest double whose nearest float32 is infinite


@dataclass(frozen=True)
class RecordMember:
    """A column that is read.

    index: number of the column in the input; single: store a number as <f4 instead of <f8; exact: treat whole
    numbers as bad cells if their digits would be lost (007 as an integer, 9007199254740993 as a number).
    """

    index: int
    column: TableColumn
    single: bool = False
    exact: bool = False

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the column's raw values."""
        return _SINGLE if self.single else self.column.kind.raw

    @property
    def missing(self) -> float:
        """Raw value of a missing number."""
        return MISSING_INTEGER if self.dtype.kind == "i" else nan

    @cached_property
    def name(self) -> str:
        """Name of the column's member in a record."""
        return f"c{self.index}"


@dataclass(frozen=True)
class RecordLayout:
    """The columns that are read, by ascending index; other columns are skipped."""

    members: tuple[RecordMember, ...]

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of a record: packed, one member `c<index>` per column, in order."""
        return np.dtype([(w.name, w.dtype) for w in self.members])

    @cached_property
    def converted(self) -> tuple[RecordMember, ...]:
        """The columns whose texts the parser returns as codes, to be converted once each."""
        return tuple(w for w in self.members if w.column.cells.read)

    @cached_property
    def derived(self) -> dict[Any, Any]:
        """Arrays that the parser derived from the layout, by the number of columns of the text."""
        return {}


def adjacent(records: NDArray[Any], name: str, width: int) -> NDArray[Any]:
    """Return a member of the records and those after it, of the same dtype, as a view [n, width]."""
    cells = records[name]
    shape, strides = (len(cells), width), (cells.strides[0], cells.itemsize)
    return np.lib.stride_tricks.as_strided(cells, shape, strides, writeable=False)


def adjacent_members(members: Sequence[RecordMember], record: np.dtype[Any]) -> list[Sequence[RecordMember]]:
    """Return members in runs, each adjacent in a record and of one dtype and type; categories alone."""
    places: Mapping[str, Any] = record.fields or {}
    firsts, after = [], None
    for k, w in enumerate(members):
        (dtype, at), kind = places[w.name][:2], w.column.type
        if (dtype, at, kind) != after or kind == "category":
            firsts.append(k)
        after = dtype, at + dtype.itemsize, kind
    return [members[first:stop] for first, stop in pairwise([*firsts, len(members)])]


def floats_of(
    records: NDArray[Any], members: Sequence[RecordMember], rows: slice | NDArray[np.int64] = slice(None)
) -> NDArray[np.float64]:
    """Return columns of numbers in some rows: float64 [columns, rows], NaN for missing."""
    runs = [
        as_float(adjacent(records, run[0].name, len(run))[rows]).T
        for run in adjacent_members(members, records.dtype)
    ]
    return np.concatenate(runs) if runs else np.empty((0, len(records[rows])))


class CellFault(str, Enum):
    """A fault of a cell; the text is the end of a sentence."""

    NOT_NUMBER = "is not a number"
    NOT_WHOLE = "is not a whole number"
    TOO_LONG = "is beyond 64-bit integers"
    INFINITE = "is infinite"
    BEYOND_SINGLE = "is beyond float32"
    LEADING_ZEROS = "has leading zeros, which no number keeps"
    ROUNDED = "is a whole number that float64 rounds"
    NOT_UTF8 = "is not UTF-8"
    AFTER_QUOTE = "has text after its closing quote"
    UNCLOSED = "has a quote that is never closed"
    NO_CLASS = "is not one of the label's classes"

    __str__ = str.__str__
    __format__ = str.__format__  # type: ignore[assignment]


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be stored.

    line: line number, from 0 at the chunk's first line (row number, if inputs have no lines); column: number
    in the input, None if the row itself is wrong; value: the cell, cut to 80 characters; reason: the end of a
    sentence, a CellFault where possible.
    """

    line: int
    column: int | None
    value: str
    reason: str


class BadCells:
    """Cells that cannot be stored, collected column by column.

    mask: bool [n], True for their rows, None without any; rows: the first of each column and reason, at most
    `most`.
    """

    def __init__(self, most: int = MAX_BAD) -> None:
        self.mask: NDArray[np.bool_] | None = None
        self.rows: list[BadRow] = []
        self._most = most

    def add(self, column: int, wrong: NDArray[np.bool_], reason: str, text: Callable[[int], str]) -> None:
        """Add the cells of a column, bool [n]. text: returns a row's cell for messages."""
        if wrong.any():
            self.mask = wrong.copy() if self.mask is None else self.mask | wrong
            rows = np.flatnonzero(wrong)[: self._most].tolist()
            self.rows += [BadRow(row, column, text(row)[:VALUE_CHARACTERS], reason) for row in rows]


@dataclass
class ParsedRows:
    """The rows of a parsed chunk.

    records: [n] of the layout's dtype, without bad rows; dictionaries: column number -> texts of its codes,
    in order of first appearance in this chunk; texts: bytes that `at` of text columns refers to; bad:
    ascending by line, at most 1,000; bad_lines: int64, the line (row) of each bad row, listed or not; lines:
    line ends in the chunk (rows, if inputs have no lines); nbytes: input bytes; lines_of: int64 [n], the line
    (row) where each record begins, counted as in BadRow.
    """

    records: NDArray[np.void]
    dictionaries: dict[int, list[str]] = field(default_factory=dict)
    texts: bytes = b""
    bad: list[BadRow] = field(default_factory=list)
    bad_lines: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    lines: int = 0
    nbytes: int = 0
    lines_of: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def bad_rows(self) -> int:
        """Number of all bad rows."""
        return len(self.bad_lines)

    @property
    def gaps(self) -> NDArray[np.int64]:
        """Numbers of the bad rows among all rows of the chunk, ascending."""
        bad = np.sort(self.bad_lines)
        return np.searchsorted(self.lines_of, bad) + np.arange(len(bad))

    def leave_out(self, rows: NDArray[np.bool_] | None, bad: Sequence[BadRow]) -> None:
        """Remove records, and category texts that no other record uses.

        rows: bool [n], True for records to remove, None for none; bad: reasons for some or all of them, with
        the record number as `line`; the first reason of a record counts.
        """
        if rows is None:
            return
        by_line = {b.line: b for b in reversed(self.bad)}
        for b in reversed(bad):
            line = int(self.lines_of[b.line])
            by_line[line] = replace(b, line=line)
        self.bad = [by_line[line] for line in sorted(by_line)][:MAX_BAD]
        self.bad_lines = np.concatenate([self.bad_lines, self.lines_of[rows]])
        self.records, self.lines_of = self.records[~rows], self.lines_of[~rows]
        for index, texts in self.dictionaries.items():
            codes = self.records[f"c{index}"]
            used, first = np.unique(codes, return_index=True)
            order = used[np.argsort(first)]
            order = order[order >= 0]
            renumbered = np.full(len(texts) + 1, -1, np.int32)
            renumbered[order] = np.arange(len(order), dtype=np.int32)
            codes[...] = renumbered[codes]
            self.dictionaries[index] = [texts[code] for code in order.tolist()]
