"""The types of columns, found from the first rows, and notes on columns that may be misread."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set

from packer.errors import SourceError, UsageError
from packer.sentence import Option, Sentence
from packer.tables.reading.table_source import TextDialect
from packer.tables.transform.cell_values import NA_TEXTS
from packer.tables.transform.column_plan import as_category, nearest
from packer.tables.transform.column_types import MISSING_INTEGER, NOTATIONS, TYPES, TableColumn, read_cells
from packer.units import LEADING_ZEROS

SAMPLE_ROWS = 10_000
_PLAIN_NA = frozenset(text.encode() for text in NA_TEXTS)
_FLOAT_DIGITS = 15  # as many are exact in float64
_LONGEST = 300  # digits that are read as a number
_PADDED = re.compile(rb"(?:^|\n)[ \t]*(" + LEADING_ZEROS.encode() + rb")[ \t]*(?=\n|$)")
_SURE_DIGITS = 18  # as many fit an int64, whatever they are
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_INFINITE = re.compile(rb"[+-]?inf(inity)?", re.IGNORECASE)
Counts = Mapping[bytes, int]
"""Cell, without the spaces around it -> how often it occurs; missing cells are not in it."""


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
    notes: dict[str, list[str]] = {}
    for number, column in enumerate(names):
        if column in given:
            columns.append(TableColumn.given(column, given[column]))
            continue
        present = cells[number] if cells else ()
        quick, shapes = _number_type(present, dialect)
        if quick:
            columns.append(TableColumn(column, quick, "", _lost_digits(quick, present, shapes, dialect)))
            continue
        counts = _present(present, dialect)
        type = _type_of(counts, dialect)
        if type == "category":
            _refuse_other_numbers(name, column, counts, dialect)
            numbers, alike = _patterns(dialect)[1], _shapes(counts)
            if sum(n for shape, n in alike.items() if numbers.fullmatch(shape)) >= MOSTLY * alike.total():
                type = "number"  # the others are bad cells: each is told with its line when it is read
            elif found := _note(column, counts):
                notes[column] = [Sentence(found)]
        elif not counts:
            notes[column] = [
                Sentence(
                    f"column {column!r} holds no value in the first {len(records):,} rows: it is read as number."
                    f" If it is none, pass {as_category(column)}, or another type."
                )
            ]
        columns.append(TableColumn(column, type, "", _lost_digits(type, counts, _shapes(counts), dialect)))
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


def _number_type(cells: Sequence[bytes], dialect: TextDialect) -> tuple[str, Set[bytes]]:
    """Find the type of most columns of numbers, and the shapes of cells, without a look at each: a tenth of the time.

    The type is "" where a closer look is needed.
    """
    shapes = b"\n".join(cells).translate(_DIGITS).split(b"\n")
    present = {shape.strip(b" \t") for shape in set(shapes)} - _PLAIN_NA
    if not present or len(shapes) != len(cells) or not dialect.na <= _PLAIN_NA:
        return "", present
    whole, number = _patterns(dialect)
    if all(map(whole.fullmatch, present)):
        return "integer" if max(map(len, present)) <= _SURE_DIGITS else "", present
    return "number" if all(map(number.fullmatch, present)) else "", present


def _lost_digits(
    type: str, cells: Iterable[bytes], shapes: Iterable[bytes], dialect: TextDialect
) -> str | None:
    """Find a whole number whose digits are lost as a type: zeros in front, or what float64 rounds. Returns: as TableColumn.digits.

    shapes: of the cells, spaces around them left away.
    """
    if type == "integer":
        padded = _PADDED.search(b"\n".join(cells)) if max(map(len, shapes)) > 1 else None
        return padded[1].decode() if padded else ""
    if type != "number":
        return None
    whole = _patterns(dialect)[0]
    if any(len(shape) > _FLOAT_DIGITS and whole.fullmatch(shape) for shape in shapes):
        for cell in map(bytes.strip, cells):
            if len(cell) > _FLOAT_DIGITS and whole.fullmatch(cell.translate(_DIGITS)):
                number = cell.replace(dialect.thousands, b"")
                if len(cell) > _LONGEST or int(float(number)) != int(number):
                    return cell.decode()
    return ""


def _present(cells: Sequence[bytes], dialect: TextDialect) -> Counts:
    counts: Counter[bytes] = Counter()
    for cell, count in Counter(cells).items():
        trimmed = cell.strip(b" \t")
        if trimmed not in dialect.na:
            counts[trimmed] += count
    return counts


def _shapes(cells: Counts) -> Counter[bytes]:
    """Make every digit of cells 0: few shapes, where they are numbers. Returns: shape -> how many cells have it."""
    shapes: Counter[bytes] = Counter()
    for cell, count in cells.items():
        shapes[cell.translate(_DIGITS)] += count
    return shapes


def _type_of(counts: Counts, dialect: TextDialect) -> str:
    if not counts:
        return "number"
    shapes = _shapes(counts)
    whole, number = _patterns(dialect)
    if all(map(whole.fullmatch, shapes)):
        return "integer" if _fit(counts, dialect) else "number"
    numbers = [bool(number.fullmatch(shape)) for shape in shapes]
    if all(n or _INFINITE.fullmatch(shape) for n, shape in zip(numbers, shapes, strict=True)) and any(
        numbers
    ):
        return "number"
    try:
        texts = [cell.decode() for cell in counts]
    except UnicodeDecodeError:
        return "category"  # which says where, when it is read
    for name, type in TYPES.items():
        if type.read and read_cells(texts[:1], name)[1][0] and read_cells(texts, name)[1].all():
            return name
    return "category"


def _patterns(dialect: TextDialect) -> tuple[re.Pattern[bytes], re.Pattern[bytes]]:
    """Return the patterns of shapes of whole numbers, and of all numbers."""
    point = re.escape(dialect.decimal)
    digits = b"0[0" + re.escape(dialect.thousands) + b"]*" if dialect.thousands else b"0+"
    return (
        re.compile(rb"[+-]?" + digits),
        re.compile(rb"[+-]?(?:" + digits + rb"(?:" + point + rb"0*)?|" + point + rb"0+)(?:[eE][+-]?0+)?"),
    )


def _fit(counts: Counts, dialect: TextDialect) -> bool:
    """Tell whether all the whole numbers are int64, and none the one that means missing."""
    for cell in counts:
        if len(cell) > _SURE_DIGITS:
            digits = cell.replace(dialect.thousands, b"") if dialect.thousands else cell
            value = int(digits) if len(digits) < 40 else 1 << 63
            if not MISSING_INTEGER < value < 1 << 63:
                return False
    return True


def _refuse_other_numbers(name: str, column: str, counts: Counts, dialect: TextDialect) -> None:
    """Raise a SourceError for cells that are numbers with marks between thousands, or with another decimal point."""
    if dialect.thousands or dialect.decimal != b".":
        return
    number, shapes = _patterns(dialect)[1], _shapes(counts)
    for thousands, decimal in _WRITTEN:
        groups = rb"0{1,3}(?:" + re.escape(thousands) + rb"000)+|" if thousands else b""
        other = re.compile(rb"[+-]?(?:" + groups + rb"0+)(?:" + re.escape(decimal) + rb"0+(?:[eE][+-]?0+)?)?")
        found = [shape for shape in shapes if other.fullmatch(shape) and not number.fullmatch(shape)]
        alike = sum(count for shape, count in shapes.items() if shape in found or number.fullmatch(shape))
        if found and alike >= MOSTLY * shapes.total():
            example = next(cell for cell in counts if cell.translate(_DIGITS) in found).decode()
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
