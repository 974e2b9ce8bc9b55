"""The header of a text file and the cells of its rows: which line names which columns.

A header may have one name less than rows have cells (R's row names), rows or the header may end with
delimiters, and several lines may hold the names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isnan
from typing import NamedTuple

from packer import units
from packer.tables.reading.dialect import (
    NO_NAME,
    NUMBER,
    Undecided,
    are_places,
    column_names,
    fitted_names,
)
from packer.tables.reading.table_source import ReadOptions, TextDialect
from packer.tables.reading.type_inference import MOSTLY, fits, kinds_of, numbers_of, valid_of

_MOST_HEADERS = 4  # most lines with names
_SECOND = 2  # lines
_EXAMINED = 1000  # rows whose values are compared with the header's
_QUOTED = re.compile(rb"'[^']*'")
_LEAST = 3  # fewer rows do not show what is usual


class TableHeader(NamedTuple):
    """The names of columns, and the lines that hold them.

    names: as written, "" for none; dialect: with the number of cells of each row; lines: records before the
    first row; notes: for the user.
    """

    names: list[str]
    dialect: TextDialect
    lines: int
    notes: tuple[str, ...] = ()


@dataclass
class _FirstRows:
    """The first records of a file as cells, the header's included."""

    name: str
    records: list[list[bytes]]
    dialect: TextDialect

    def filled(self, cell: bytes) -> bool:
        """Return True for a cell with a value."""
        return cell.strip(b" \t") not in self.dialect.na

    def columns(self, start: int = 1) -> list[list[bytes]]:
        """Return the values of each column of the header, those of the first `start` records left out."""
        rows = self.records[start : start + _EXAMINED]
        places = range(len(self.records[0]))
        return [[row[n] for row in rows if n < len(row) and self.filled(row[n])] for n in places]


def header_of(
    name: str, records: list[list[bytes]], dialect: TextDialect, reading: ReadOptions
) -> TableHeader:
    """Return the header of a file by its first records, at least one. Raises SourceError, Undecided."""
    rows = _FirstRows(name, records, dialect)
    lines, cells, notes = _lines(rows, reading) if reading.header else (0, [b""] * len(records[0]), ())
    widths = {len(row) for row in records[lines:]}
    width = widths.pop() if len(widths) == 1 else 0
    fitted = fitted_names(cells, records[lines:])
    cells, least = fitted or cells, len(cells)
    names = column_names(name, cells) if lines else [str(n) for n in range(len(cells))]
    surplus = max(0, width - len(names))
    seen = {
        "delimiters at the end of its header are left out": least > width,
        "its header has one name less than its rows have cells, as R writes row names; the first column has"
        " no name": len(names) > least,
        "its first row numbers the columns, so it holds their names": lines and are_places(names),
        f"each row ends with {units.count(surplus, 'empty cell')} without a name; left out": surplus,
    }
    if fitted:
        notes += tuple(f"{name}: {note}." for note, holds in seen.items() if holds)
    if lines == 1 and not set(reading.types) & set(names):
        _check_names(rows, cells)
    return TableHeader(names, replace(dialect, width=len(names), surplus=surplus), lines, notes)


def _check_names(rows: _FirstRows, cells: Sequence[bytes]) -> None:
    """Raise Undecided for a first row of numbers, of values like those below, or in single quotes."""
    filled = [cell.strip() for cell in cells if rows.filled(cell)]
    if filled and rows.dialect.quote == b'"' and all(map(_QUOTED.fullmatch, filled)):
        raise Undecided("its names stand in single quotes", [({"quote": "'"}, "")])
    if seen := "numbers, not names" if _are_numbers(rows, cells) else _value_of(rows):
        raise Undecided(
            f"its first row holds {seen}",
            [({"header": False}, "if it is a row")],
            "types= with one of its names if it holds the names",
        )


def _are_numbers(rows: _FirstRows, cells: Sequence[bytes]) -> bool:
    """Return True for numbers that neither count the columns nor ascend behind an empty cell, as in pivots."""
    filled = [cell.strip().replace(b",", b".") for cell in cells if rows.filled(cell)]
    if not filled or not all(map(NO_NAME.fullmatch, filled)) or are_places([c.decode() for c in cells]):
        return False
    ascending = all(float(a) < float(b) for a, b in pairwise(filled))
    pivot = len(filled) == len(cells) - 1 > 1 and ascending and not rows.filled(cells[0])
    return not pivot or len(rows.columns()[0]) < min(len(rows.records) - 1, _EXAMINED)


def _lines(rows: _FirstRows, reading: ReadOptions) -> tuple[int, list[bytes], tuple[str, ...]]:
    """Return how many records hold names, the names, and a note. Raises Undecided for a second header."""
    records = rows.records
    top = records[0]
    if any(NUMBER.fullmatch(cell.strip()) for row in records[1:2] for cell in row):
        return 1, top, ()
    most = min(_MOST_HEADERS, len(records) - _LEAST)
    for lines in range(most, 1, -1):
        head = records[:lines]
        if not _are_names(rows, lines):
            continue
        single = [row for row in head[1:] if rows.filled(row[0]) and not any(map(rows.filled, row[1:]))]
        stacked = [top, *(row for row in head[1:] if row not in single)]
        parts = [
            [cell.strip() for cell in cells if rows.filled(cell)] for cells in zip(*stacked, strict=True)
        ]
        names = [b".".join(dict.fromkeys(part)) for part in parts]
        if single:
            names[0] = single[-1][0].strip()
        repeats = len(set(top)) < len(top) and len(set(names)) == len(names)
        if (single and single[-1] == head[-1]) or repeats:
            shown = ", ".join(repr(name.decode(errors="replace")) for name in names[:3])
            return lines, names, (f"{rows.name}: its first {lines} lines hold names, joined as {shown}.",)
    words = [cell.strip() for row in records[1:2] for cell in row if cell.strip()]
    differ = len(words) == 1 or len(set(words)) > 1  # one word in several cells means missing
    if most >= _SECOND and differ and _are_names(rows, _SECOND):
        cell = next(c for c in records[1] if rows.filled(c)).decode(errors="replace")[:40]
        raise Undecided(
            f"its second line, with {cell!r}, holds no value of a column whose other cells are numbers, so"
            " that it may be a second header or units",
            [({"skip_rows": reading.skip_rows + 1}, "if the second line holds the names")],
            f"a file without this line if it holds units, for example with: sed {reading.skip_rows + 2}d",
        )
    return 1, top, ()


def _are_names(rows: _FirstRows, lines: int) -> bool:
    """Return True if the records after the first hold no value of any typed column, and all later ones do."""
    width = len(rows.records[0])
    if any(len(row) != width for row in rows.records[: lines + _LEAST]):
        return False
    kinds = kinds_of(rows.columns(lines), rows.dialect)
    typed = [n for n, kind in enumerate(kinds) if kind not in ("", "category")]
    held = {n: [row[n] for row in rows.records[1:lines] if rows.filled(row[n])] for n in typed}
    held = {n: cells for n, cells in held.items() if cells}
    words = b"".join(cell for cells in held.values() for cell in cells).decode(errors="replace")
    return (
        2 * len(held) > len(typed)
        and any(map(str.isalpha, words))  # a single mark in all columns means missing
        and any(map(rows.filled, rows.records[lines - 1]))
        and not any(valid_of(cells, kinds[n], rows.dialect) for n, cells in held.items())
    )


def _value_of(rows: _FirstRows) -> str:
    """Return a value of a first row that looks like the others, and why; "" if one of its cells is a name."""
    records = [row for row in rows.records if len(row) == len(rows.records[0])]
    if len(records) < max(1 + _LEAST, MOSTLY * len(rows.records)):
        return ""
    rows = replace(rows, records=records)
    first, few = records[0], records[1 : 1 + _LEAST]
    for number, cell in enumerate(first):
        named = rows.filled(cell) and not NO_NAME.fullmatch(cell.strip())
        if named and all(NUMBER.fullmatch(row[number].strip()) for row in few):
            return ""  # the name of a column of numbers
    columns = rows.columns()
    again: list[bytes] = []
    alike: list[bytes] = []
    texts = numbers = 0
    inside: list[bytes] = []
    for cell, column, kind in zip(first, columns, kinds_of(columns, rows.dialect), strict=True):
        if not rows.filled(cell) or not column:
            continue
        if kind == "category":
            texts += 1
            others = {c.strip() for c in column}
            again += [cell] if cell.strip() in others and len(others) < len(column) else []
        elif not fits([cell], kind, rows.dialect):
            return ""  # a name of a column of numbers, dates or such
        elif kind in ("number", "integer"):
            numbers += 1
            inside += [cell] if _is_inside(cell, column, rows.dialect) else []
        else:
            alike.append(cell)
    values = _values(first, rows.dialect)
    steps = {round(b - a, 9) for a, b in pairwise(values)} if len(values) >= _LEAST else set()
    rising = len(steps) == 1 and steps != {0}  # 2019, 2020, 2021 are names
    again = again if 2 * len(again) >= texts else []
    alike += inside if len(inside) * 2 > numbers and not rising else []
    if not again and not alike:
        return ""
    seen = (again or alike)[0].decode(errors="replace")[:40]
    what = "comes again below" if again else "is a value like those below"
    return f"{seen!r}, which {what}, and no name that its column could not hold; it may be a row"


def _is_inside(cell: bytes, column: Sequence[bytes], dialect: TextDialect) -> bool:
    """Return True for a number in the range of the column's, or one step before them if they are sorted."""
    values, own = _values(column, dialect), _values([cell], dialect)
    if not values or not own:
        return False
    steps, step = [b - a for a, b in pairwise(values)], values[0] - own[0]
    before = all(step * other > 0 for other in steps) and abs(step) <= max(map(abs, steps), default=0)
    return min(values) <= own[0] <= max(values) or before


def _values(cells: Sequence[bytes], dialect: TextDialect) -> list[float]:
    """Return the values of those cells that are numbers."""
    return [value for value in numbers_of(cells, dialect) if not isnan(value)]
