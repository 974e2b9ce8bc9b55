"""The types of columns, found from the first rows, and notes on columns that may be misread."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from packer.errors import SourceError, UsageError
from packer.sentence import Option, Sentence
from packer.tables.reading.dialect import NUMBER
from packer.tables.reading.record_parser import one_column, read_texts
from packer.tables.reading.table_source import TextDialect
from packer.tables.transform.column_types import (
    NOTATIONS,
    TYPES,
    TableColumn,
    as_category,
    is_missing,
    nearest,
)
from packer.tables.transform.records import CellFault, RecordLayout, RecordMember

SAMPLE_ROWS = 10_000
_TRIED = {
    kind: RecordLayout((RecordMember(0, TableColumn("", kind), exact=True),))
    for kind in ("integer", "number", *(name for name, type in TYPES.items() if type.read))
}
_PROBE = 4  # texts that are looked at first: most types are none of a column's
_LOST = (CellFault.LEADING_ZEROS, CellFault.ROUNDED)
Counts = Mapping[bytes, int]
"""Cell -> how often it occurs."""


def infer(
    name: str,
    names: Sequence[str],
    records: Sequence[Sequence[bytes]],
    dialect: TextDialect,
    given: Mapping[str, str],
) -> tuple[tuple[TableColumn, ...], dict[str, list[str]]]:
    """Find out what type each column has.

    name: of the file, for messages; names: of the columns; records: the first rows, at most SAMPLE_ROWS; given: column -> type,
    where a user said it.
    Returns: the columns, and notes on those that may be misread, by name. Raises: UsageError for what is given and cannot be;
    SourceError for numbers in another way of writing.
    """
    check_types(name, names, given)
    cells = list(zip(*(record for record in records if len(record) == len(names)), strict=True))
    columns: list[TableColumn] = []
    alone = one_column(dialect)
    notes: dict[str, list[str]] = {}
    for number, column in enumerate(names):
        if column in given:
            columns.append(TableColumn.given(column, given[column]))
            continue
        counts = Counter(cells[number] if cells else ())
        type, digits = _type_of(list(counts), alone)
        if type == "category":
            present = _present(counts, dialect)
            _refuse_other_numbers(name, column, present, dialect)
            wrong, lost, some = _look(list(present), "number", alone)
            total = sum(present.values())
            if some and total - sum(present[text] for text in wrong) >= MOSTLY * total:
                type, digits = "number", lost  # each bad cell is told with its line when it is read
            elif found := _note(column, present):
                notes[column] = [Sentence(found)]
        elif not type:
            type, digits = "number", ""
            notes[column] = [
                Sentence(
                    f"column {column!r} holds no value in the first {len(records):,} rows: it is read as number."
                    f" If it is none, pass {as_category(column)}, or another type."
                )
            ]
        columns.append(TableColumn(column, type, "", digits))
    return tuple(columns), notes


def check_types(name: str, names: Sequence[str], given: Mapping[str, str]) -> None:
    """Check the types a user gave. Raises: UsageError for a column or a type that is none."""
    types = (*TYPES, *NOTATIONS)
    for column, type in given.items():
        if column not in names:
            said = f": {name} has no column {column!r}; {nearest(column, names)}. Correct it."
            raise UsageError(f"{Option('types', {column: type})}{said}")
        if type not in types:
            said = f": is no type; {', '.join(types)} are, {nearest(type, types)}. Correct it."
            raise UsageError(f"{Option('types', {column: type})}{said}")


def _type_of(texts: Sequence[bytes], dialect: TextDialect) -> tuple[str, str | None]:
    """Find the first type as which the parser reads all texts, "" if all are missing. Returns: it, and TableColumn.digits."""
    for kind in _TRIED:
        if len(texts) > _PROBE and _look(texts[:_PROBE], kind, dialect)[0]:
            continue
        wrong, lost, some = _look(texts, kind, dialect)
        if not wrong and (some or kind == "integer"):
            return kind if some else "", lost if kind in ("integer", "number") else None
    return "category", None


def _look(texts: Sequence[bytes], kind: str, dialect: TextDialect) -> tuple[list[bytes], str, bool]:
    """Read texts as a type.

    Returns: those that are none, but for infinite numbers, which are told with their line when they are read; the first whole number
    whose digits are lost: zeros in front, or what float64 rounds, "" for none; whether any text is one.
    """
    values, bad = read_texts(texts, _TRIED[kind], dialect)
    lost = [texts[b.line].strip(b" \t").decode() for b in bad if b.reason in _LOST]
    wrong = [texts[b.line] for b in bad if b.reason not in (*_LOST, CellFault.INFINITE)]
    beyond = any(b.reason is CellFault.INFINITE and NUMBER.fullmatch(texts[b.line].strip()) for b in bad)
    return wrong, lost[0] if lost else "", bool(lost) or beyond or not is_missing(values).all()


def _present(cells: Counts, dialect: TextDialect) -> Counter[bytes]:
    counts: Counter[bytes] = Counter()
    for cell, count in cells.items():
        trimmed = cell.strip(b" \t")
        if trimmed not in dialect.na:
            counts[trimmed] += count
    return counts


def _refuse_other_numbers(name: str, column: str, counts: Counts, dialect: TextDialect) -> None:
    """Raise a SourceError for cells that are numbers with marks between thousands, or with another decimal point."""
    if dialect.thousands or dialect.decimal != b".":
        return
    for thousands, decimal in _WRITTEN:
        groups = rb"\d{1,3}(?:" + re.escape(thousands) + rb"\d{3})+|" if thousands else b""
        other = re.compile(
            rb"[+-]?(?:" + groups + rb"\d+)(?:" + re.escape(decimal) + rb"\d+(?:[eE][+-]?\d+)?)?"
        )
        plain = [cell for cell in counts if NUMBER.fullmatch(cell)]
        found = [cell for cell in counts if other.fullmatch(cell) and not NUMBER.fullmatch(cell)]
        if found and sum(counts[cell] for cell in (*plain, *found)) >= MOSTLY * sum(counts.values()):
            example = found[0].decode()
            given = f"{Option('Csv.thousands', thousands.decode())}" if thousands else ""
            given += " " if thousands and decimal == b"," else ""
            given += f"{Option('Csv.decimal', ',')}" if decimal == b"," else ""
            raise SourceError(
                f"{name}: column {column!r} holds numbers in another way of writing, as {example!r}; that must be said."
                f" Pass {given}, or {as_category(column)} if they are none."
            )


_WRITTEN = ((b",", b"."), (b"'", b"."), (b"_", b"."), (b" ", b"."), (b"", b","), (b".", b","), (b" ", b","))
"""Marks between thousands, and decimal points, in which people write numbers; b"" for none."""
MOSTLY = 0.9
_MARKS = frozenset(
    (b"?", b"??", b"-", b"--", b"---", b".", b"*", b"n.a.", b"N.A.", b"\\N")
)  # missing values, often
_FEW = 100  # cells, too few to say that all of them differ
_NUMBERLIKE = re.compile(rb"[-+(]?(?:[0-9.]|[$\xc2\xe2])[^a-zA-Z]*(?:[AaPp][Mm])?")


def _note(column: str, counts: Counts) -> str:
    """Return a note on categories that may be something else: many look like numbers or dates, or nearly all differ; "" for none."""
    total = sum(counts.values())
    numbers = sum(n for cell, n in counts.items() if _NUMBERLIKE.fullmatch(cell))
    marks = any(cell in _MARKS for cell in counts) and len(counts) > 1
    if 2 * numbers < total and not marks and (total < _FEW or len(counts) < MOSTLY * total):
        return ""
    shown = sorted(counts, key=lambda cell: (-counts[cell], cell))[:2]
    examples = " and ".join(repr(cell.decode(errors="replace")) for cell in shown)
    return (
        f"column {column!r} is read as category; it holds {len(counts):,} different texts in its first {total:,} cells, as {examples}."
        f" If it is another type, pass {Option('types', {column: 'number'})}, date, currency, percent or date-mdy; for texts"
        f" that mean missing {Option('Csv.na')}; if it is no feature, {Option('drop', column)}."
    )
