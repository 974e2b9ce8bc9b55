"""Sentences about columns that are read as categories and may be something else: what was seen, how often, which option helps."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from packer.tables.reading.text_form import Form
from packer.tables.transform.written import SYMBOLS, convert_written

MARKS = frozenset((b"?", b"??", b"-", b"--", b"---", b".", b"*", b"n.a.", b"N.A.", b"\\N"))
"""Cells that stand for a missing value in many files, and are not taken for one unless --na says so."""
MOSTLY = 0.9
_FEW = 100  # cells, too few to say that all of them differ
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_TRIED = 1000  # different dates, to see whether the month or the day comes first


class _Way(NamedTuple):
    """shape: of cells with every digit made 0; what: such cells are called; types: of --type; meaning: what reading them gives."""

    shape: re.Pattern[str]
    what: str
    types: tuple[str, ...]
    meaning: str = ""


_AMOUNT = r"0[0.,' ]*"
_DAY = r"00?([/.-])00?\1(?:0000|00)"
_WAYS = (
    _Way(
        re.compile(rf"\(?[+-]? ?(?:[{SYMBOLS}] ?[+-]?{_AMOUNT}|{_AMOUNT}[\s\u00a0]?[{SYMBOLS}])\)?"),
        "amounts of money",
        ("currency",),
        " to read their numbers",
    ),
    _Way(
        re.compile(rf"[+-]?(?:{_AMOUNT}|[.,]0+) ?%"), "percentages", ("percent",), ", which reads 12% as 0.12"
    ),
    _Way(re.compile(_DAY), "dates", ("date-mdy", "date-dmy")),
    _Way(
        re.compile(_DAY + r"[ T]+00?:00(?::00(?:\.0+)?)?(?: ?[AaPp][Mm])?"),
        "timestamps",
        ("timestamp-mdy", "timestamp-dmy"),
    ),
)
_FIRST = {"mdy": "the month comes first", "dmy": "the day comes first"}


def without_marks(counts: Mapping[bytes, int]) -> tuple[dict[bytes, int], dict[bytes, int]]:
    """Part the cells of a column: those that are values, and those that may stand for missing ones."""
    marks = {cell: count for cell, count in counts.items() if cell in MARKS}
    return {cell: count for cell, count in counts.items() if cell not in MARKS}, marks


def doubts_of(column: str, counts: Mapping[bytes, int], rest: str, form: Form) -> list[str]:
    """Say what a user should know of a column that is read as categories.

    counts: cell -> how often it occurs among the first rows, missing ones left out; rest: the type of the cells that are no MARKS.
    """
    total = sum(counts.values())
    values, marks = without_marks(counts)
    name = shlex.quote(column)
    notes = []
    if marks and values:
        shown = " and ".join(repr(mark.decode()) for mark in sorted(marks))
        found = sum(marks.values())
        others = f", {_PLURAL[rest]} in the others" if rest != "category" else ""
        options = " ".join(f"--na {shlex.quote(mark.decode())}" for mark in sorted(marks))
        notes.append(
            f"column {column!r} holds {shown} in {found:,} of its first {total:,} cells{others}: it is read as category, and"
            f" {shown} as {'one' if len(marks) == 1 else 'some'} of them. If that means missing, pass {options}."
        )
    if rest == "category" and values and (said := _written(column, name, values, form)):
        return [*notes, said]
    if total >= _FEW and len(counts) >= MOSTLY * total:
        notes.append(
            f"column {column!r} holds {len(counts):,} different texts in its first {total:,} cells: it is read as category. "
            f"If it is no feature, pass --drop {column} or --keep {column}."
        )
    return notes


_PLURAL = {
    "number": "numbers",
    "integer": "numbers",
    "boolean": "true and false",
    "date": "dates",
    "time": "times",
    "timestamp": "timestamps",
}


def _written(column: str, name: str, values: Mapping[bytes, int], form: Form) -> str:
    """Say how the cells are written, if most of them are written for people; else ""."""
    total = sum(values.values())
    shapes = {cell: cell.translate(_DIGITS) for cell in values}
    for way in _WAYS:
        fits = {
            shape for shape in set(shapes.values()) if way.shape.fullmatch(shape.decode(errors="replace"))
        }
        alike = [cell for cell in values if shapes[cell] in fits]
        found = sum(values[cell] for cell in alike)
        if found < MOSTLY * total:
            continue
        texts = [cell.decode() for cell in alike[:_TRIED]]
        marks = form.decimal.decode(), form.thousands.decode()
        read = {kind: convert_written(texts, kind, *marks)[1] for kind in way.types}
        best = max(int(valid.sum()) for valid in read.values())
        if best < MOSTLY * len(texts):
            continue
        said = f"column {column!r} holds {way.what}, as {texts[0]!r} ({found:,} of its first {total:,} cells): it is read as category."
        if len(way.types) == 1:
            return f"{said} Pass --type {name}={way.types[0]}{way.meaning}."
        (one, first), (two, second) = ((kind, _FIRST[kind.rpartition("-")[2]]) for kind in way.types)
        if read[one].sum() == read[two].sum():
            return f"{said} Pass --type {name}={one} if {first}, or --type {name}={two} if {second}: these values allow both."
        (kind, comes), other = ((one, first), two) if read[one].sum() == best else ((two, second), one)
        proof = texts[int(np.argmax(read[kind] & ~read[other]))]
        return f"{said} Pass --type {name}={kind}: {comes}, as {proof!r} shows."
    return ""
