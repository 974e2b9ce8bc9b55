"""Infer column types from the first rows, and note columns that may be misread."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from packer.errors import SourceError, UsageError
from packer.garbage import paused
from packer.sentence import Option, Sentence
from packer.source_kinds import IMAGES
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
_IMAGE_SUFFIXES = tuple(suffix.encode() for suffixes in IMAGES.values() for suffix in suffixes)
_PROBES = (1, 4, None)  # numbers of texts that are tried, one after the other: most types fail on the first
_LOST = (CellFault.LEADING_ZEROS, CellFault.ROUNDED)
Counts = Mapping[bytes, int]
"""Cell -> number of occurrences."""


@paused()
def infer(
    name: str,
    names: Sequence[str],
    records: Sequence[Sequence[bytes]],
    dialect: TextDialect,
    given: Mapping[str, str],
) -> tuple[tuple[TableColumn, ...], dict[str, list[str]]]:
    """Infer the type of each column.

    name: of the file, for messages; names: of the columns; records: the first rows, at most SAMPLE_ROWS;
    given: column -> type, set by the user.
    Returns: the columns, and notes on columns that may be misread, by name. Raises UsageError for given types
    that do not exist; SourceError for numbers in another notation.
    """
    check_types(name, names, given)
    cells = list(zip(*(record for record in records if len(record) == len(names)), strict=True))
    counts = {c: Counter(cells[n] if cells else ()) for n, c in enumerate(names) if c not in given}
    alone = one_column(dialect)
    typed = _types_of({column: list(texts) for column, texts in counts.items()}, alone)
    typed |= {column: TableColumn.given(column, type) for column, type in given.items()}
    present = {c: _present(texts, dialect) for c, texts in counts.items() if typed[c].type == "category"}
    notes: dict[str, list[str]] = {}
    looks = _look([list(texts) for texts in present.values()], "number", alone)
    for (column, texts), look in zip(present.items(), looks, strict=True):
        _refuse_other_numbers(name, column, texts, dialect)
        total = sum(texts.values())
        if look.some and total - sum(texts[text] for text in look.wrong) >= MOSTLY * total:
            # The reader reports each bad cell with its line.
            typed[column] = TableColumn(column, "number", digits=look.digits)
        elif note := _note(column, texts):
            notes[column] = [Sentence(note)]
    for column in counts:
        if not typed[column].type:
            typed[column] = TableColumn(column, "number", digits="")
            notes[column] = [
                Sentence(
                    f"column {column!r} holds no value in the first {len(records):,} rows and is read as"
                    " number."
                    f" If it is not, pass {as_category(column)}, or another type."
                )
            ]
    if names and names[0] in present and _are_image_files(present[names[0]]):
        notes[names[0]] = [
            Sentence(
                f"column {names[0]!r} names image files, which a table does not read. To pack the images"
                f" with these labels, convert the folder of the images with {Option('labels', name)}."
            )
        ]
    return tuple(typed[c] for c in names), notes


def _are_image_files(counts: Counts) -> bool:
    """Return True if all texts of a column end like names of image files."""
    return bool(counts) and all(cell.strip().lower().endswith(_IMAGE_SUFFIXES) for cell in counts)


def check_types(name: str, names: Sequence[str], given: Mapping[str, str]) -> None:
    """Raise UsageError if the user named a column or a type that does not exist."""
    types, known = (*TYPES, *NOTATIONS), frozenset(names)
    for column, type in given.items():
        if column not in known:
            why = f": {name} has no column {column!r}; {nearest(column, names)}. Correct it."
            raise UsageError(f"{Option('types', {column: type})}{why}")
        if type not in types:
            why = f": is not a type; types are {', '.join(types)}; {nearest(type, types)}. Correct it."
            raise UsageError(f"{Option('types', {column: type})}{why}")


def _types_of(columns: Mapping[str, Sequence[bytes]], dialect: TextDialect) -> dict[str, TableColumn]:
    """Return each column with the first type that fits all texts; "" if all are missing, else category."""
    typed = {column: TableColumn(column, "category") for column in columns}
    left = dict(columns)
    for kind in _TRIED:
        fitting: dict[str, _Look | None] = dict.fromkeys(left)
        for most in _PROBES:
            looks = _look([left[column][:most] for column in fitting], kind, dialect)
            fitting = {c: look for c, look in zip(fitting, looks, strict=True) if not look.wrong}
        for column, look in fitting.items():
            if look is not None and (look.some or kind == "integer"):
                digits = look.digits if kind in ("integer", "number") else None
                typed[column] = TableColumn(column, kind if look.some else "", digits=digits)
                del left[column]
    return typed


@dataclass
class _Look:
    """The result of reading a column's texts as a type.

    some: True if any text has the type; digits: the first whole number whose digits are lost (leading zeros,
    or rounded by float64), "" for none; wrong: texts that do not have the type, except infinite numbers,
    which the reader reports with their line.
    """

    some: bool
    digits: str = ""
    wrong: list[bytes] = field(default_factory=list)


def _look(columns: Sequence[Sequence[bytes]], kind: str, dialect: TextDialect) -> list[_Look]:
    """Read texts of columns as a type, all at once, because wide tables have many columns with few texts."""
    texts = [text for column in columns for text in column]
    values, bad = read_texts(texts, _TRIED[kind], dialect)
    ends = np.cumsum([len(column) for column in columns], dtype=np.int64)
    present = [part.any() for part in np.split(~is_missing(values), ends[:-1])] if columns else []
    looks = [_Look(bool(some)) for some in present]
    places = np.searchsorted(ends, [b.line for b in bad], "right").tolist()
    for b, look in zip(bad, (looks[place] for place in places), strict=True):
        text = texts[b.line].strip(b" \t")
        if b.reason in _LOST:
            look.some, look.digits = True, look.digits or text.decode()
        elif b.reason is not CellFault.INFINITE:
            look.wrong.append(texts[b.line])
        elif NUMBER.fullmatch(text):
            look.some = True  # beyond float64
    return looks


def _present(cells: Counts, dialect: TextDialect) -> Counter[bytes]:
    counts: Counter[bytes] = Counter()
    for cell, count in cells.items():
        trimmed = cell.strip(b" \t")
        if trimmed not in dialect.na:
            counts[trimmed] += count
    return counts


def _refuse_other_numbers(name: str, column: str, counts: Counts, dialect: TextDialect) -> None:
    """Raise SourceError for numbers with thousands separators or with another decimal point."""
    if dialect.thousands or dialect.decimal != b".":
        return
    for thousands, decimal in _WRITTEN:
        groups = rb"\d{1,3}(?:" + re.escape(thousands) + rb"\d{3})+|" if thousands else b""
        other = re.compile(
            rb"[+-]?(?:" + groups + rb"\d+)(?:" + re.escape(decimal) + rb"\d+(?:[eE][+-]?\d+)?)?"
        )
        plain = [cell for cell in counts if NUMBER.fullmatch(cell)]
        odd = [cell for cell in counts if other.fullmatch(cell) and not NUMBER.fullmatch(cell)]
        if odd and sum(counts[cell] for cell in (*plain, *odd)) >= MOSTLY * sum(counts.values()):
            example = odd[0].decode()
            marks = (("Csv.thousands", thousands), ("Csv.decimal", decimal.replace(b".", b"")))
            given = " ".join(f"{Option(option, mark.decode())}" for option, mark in marks if mark)
            raise SourceError(
                f"{name}: column {column!r} holds numbers in another notation, such as {example!r}; an option"
                " must set it."
                f" Pass {given}, or {as_category(column)} if they are not numbers."
            )


_WRITTEN = ((b",", b"."), (b"'", b"."), (b"_", b"."), (b" ", b"."), (b"", b","), (b".", b","), (b" ", b","))
"""Common thousands separators and decimal points; b"" for none."""
MOSTLY = 0.9
_MARKS = frozenset(
    (b"?", b"??", b"-", b"--", b"---", b".", b"*", b"n.a.", b"N.A.", b"\\N")
)  # often mean missing
_FEW = 100  # fewer cells do not show that all differ
_NUMBERLIKE = re.compile(rb"[-+(]?(?:[0-9.]|[$\xc2\xe2])[^a-zA-Z]*(?:[AaPp][Mm])?")


def _note(column: str, counts: Counts) -> str:
    """Return a note on categories that look like numbers or dates, or that nearly all differ; "" for none."""
    total = sum(counts.values())
    numbers = sum(n for cell, n in counts.items() if _NUMBERLIKE.fullmatch(cell))
    marks = any(cell in _MARKS for cell in counts) and len(counts) > 1
    if 2 * numbers < total and not marks and (total < _FEW or len(counts) < MOSTLY * total):
        return ""
    shown = sorted(counts, key=lambda cell: (-counts[cell], cell))[:2]
    examples = " and ".join(repr(cell.decode(errors="replace")) for cell in shown)
    return (
        f"column {column!r} is read as category; it holds {len(counts):,} different texts in its first"
        f" {total:,} cells, such as {examples}."
        f" If it is another type, pass {Option('types', {column: 'number'})}, date, currency, percent or"
        " date-mdy; for texts"
        f" that mean missing {Option('Csv.na')}; if it is not a feature, {Option('drop', column)}."
    )
