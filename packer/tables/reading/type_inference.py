"""The types of columns, found out from the first rows."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from packer.errors import SourceError, UsageError
from packer.tables.reading.doubts import MOSTLY, doubts_of, without_marks
from packer.tables.reading.text_form import Form
from packer.tables.transform.cell_values import NA_TEXTS, convert
from packer.tables.transform.columns import MISSING_INTEGER, TYPES, WRITTEN, TableColumn

SAMPLE_ROWS = 10_000
_CONVERTED = ("boolean", "date", "timestamp", "time")  # in the order they are tried in
_PLAIN_NA = frozenset(text.encode() for text in NA_TEXTS)
_SURE_DIGITS = 18  # as many fit an int64, whatever they are
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_INFINITE = re.compile(rb"[+-]?inf(inity)?", re.IGNORECASE)
Counts = Mapping[bytes, int]
"""Cell, without the spaces around it -> how often it occurs; missing cells are not in it."""


def infer(
    name: str, names: Sequence[str], records: Sequence[Sequence[bytes]], form: Form, given: Mapping[str, str]
) -> tuple[tuple[TableColumn, ...], list[str]]:
    """Find out what type each column has.

    name: of the file, for messages; names: of the columns; records: the first rows, at most SAMPLE_ROWS; given: column -> type,
    where a user said it.
    Returns: the columns, and sentences about those that may be misread. Raises: UsageError for what is given and cannot be;
    SourceError for numbers in another way of writing.
    """
    check_types(name, names, given)
    cells = list(zip(*(record for record in records if len(record) == len(names)), strict=True))
    columns: list[TableColumn] = []
    notes: list[str] = []
    for number, column in enumerate(names):
        if column in given:
            columns.append(TableColumn.given(column, given[column]))
            continue
        present = cells[number] if cells else ()
        quick = _number_type(present, form)
        if quick:
            columns.append(TableColumn(column, quick))
            continue
        counts = _present(present, form)
        type = _type_of(counts, form)
        if type == "category" and _mostly_numbers(counts, form):
            _refuse_other_numbers(name, column, counts, form)
            type = "number"  # the others are bad cells: each is told with its line when it is read
        columns.append(TableColumn(column, type))
        if not counts:
            notes.append(
                f"column {column!r} holds no value in the first {len(records):,} rows: it is read as number. "
                f"If it is none, pass --type {column}=category, or another type."
            )
        elif type == "category":
            _refuse_other_numbers(name, column, counts, form)
            rest = _type_of(without_marks(counts)[0], form)
            notes += doubts_of(column, counts, rest, form)
    return tuple(columns), notes


def has_empty(
    names: Sequence[str], records: Sequence[Sequence[bytes]], form: Form, given: Mapping[str, str]
) -> bool:
    """Whether a column whose type is not given holds no value in these records."""
    open_columns = [number for number, column in enumerate(names) if column not in given]
    for record in records:
        if len(record) == len(names):
            open_columns = [n for n in open_columns if record[n].strip(b" \t") in form.na]
        if not open_columns:
            return False
    return bool(open_columns)


def check_types(name: str, names: Sequence[str], given: Mapping[str, str]) -> None:
    """Check the types a user gave. Raises: UsageError for a column or a type that is none."""
    for column, type in given.items():
        if column not in names:
            near = difflib.get_close_matches(column, names, 1)
            known = f"{near[0]!r} is near" if near else f"there are {_some(names)}"
            raise UsageError(f"--type {column}={type}: {name} has no column {column!r}; {known}. Correct it.")
        known_types = (*TYPES, *WRITTEN)
        if type not in known_types:
            near = difflib.get_close_matches(type, known_types, 1)
            hint = f"{near[0]} is near" if near else "none is near"
            raise UsageError(
                f"--type {column}={type}: is no type; {', '.join(known_types)} are, {hint}. Correct it."
            )


def _some(names: Sequence[str]) -> str:
    listed = ", ".join(map(repr, names[:8]))
    return f"{listed} and {len(names) - 8} more" if len(names) > 8 else listed


def _number_type(cells: Sequence[bytes], form: Form) -> str:
    """The type of most columns of numbers, without a look at each cell: a tenth of the time. "" where a closer look is needed."""
    shapes = b"\n".join(cells).translate(_DIGITS).split(b"\n")
    present = {shape.strip(b" \t") for shape in set(shapes)} - _PLAIN_NA
    if not present or len(shapes) != len(cells) or not form.na <= _PLAIN_NA:
        return ""
    whole, number = _patterns(form)
    if all(map(whole.fullmatch, present)):
        return "integer" if max(map(len, present)) <= _SURE_DIGITS else ""
    return "number" if all(map(number.fullmatch, present)) else ""


def _present(cells: Sequence[bytes], form: Form) -> Counts:
    counts: Counter[bytes] = Counter()
    for cell, count in Counter(cells).items():
        trimmed = cell.strip(b" \t")
        if trimmed not in form.na:
            counts[trimmed] += count
    return counts


def _shapes(cells: Counts) -> Counter[bytes]:
    """Cells with every digit made 0: few, where they are numbers. Returns: shape -> how many cells have it."""
    shapes: Counter[bytes] = Counter()
    for cell, count in cells.items():
        shapes[cell.translate(_DIGITS)] += count
    return shapes


def _type_of(counts: Counts, form: Form) -> str:
    if not counts:
        return "number"
    shapes = _shapes(counts)
    whole, number = _patterns(form)
    if all(map(whole.fullmatch, shapes)):
        return "integer" if _fit(counts, form) else "number"
    numbers = [bool(number.fullmatch(shape)) for shape in shapes]
    if all(n or _INFINITE.fullmatch(shape) for n, shape in zip(numbers, shapes, strict=True)) and any(
        numbers
    ):
        return "number"
    try:
        texts = [cell.decode() for cell in counts]
    except UnicodeDecodeError:
        return "category"  # which says where, when it is read
    for type in _CONVERTED:
        if convert(texts[:1], type)[1][0] and convert(texts, type)[1].all():
            return type
    return "category"


def _mostly_numbers(counts: Counts, form: Form) -> bool:
    """Whether some cells that are no numbers stand among many that are."""
    number = _patterns(form)[1]
    shapes = _shapes(counts)
    found = sum(count for shape, count in shapes.items() if number.fullmatch(shape))
    return found >= MOSTLY * shapes.total()


def _patterns(form: Form) -> tuple[re.Pattern[bytes], re.Pattern[bytes]]:
    """What shapes of whole numbers, and of all numbers, are."""
    point = re.escape(form.decimal)
    digits = b"0[0" + re.escape(form.thousands) + b"]*" if form.thousands else b"0+"
    return (
        re.compile(rb"[+-]?" + digits),
        re.compile(rb"[+-]?(?:" + digits + rb"(?:" + point + rb"0*)?|" + point + rb"0+)(?:[eE][+-]?0+)?"),
    )


def _fit(counts: Counts, form: Form) -> bool:
    """Whether all the whole numbers are int64, and none the one that means missing."""
    for cell in counts:
        if len(cell) > _SURE_DIGITS:
            digits = cell.replace(form.thousands, b"") if form.thousands else cell
            value = int(digits) if len(digits) < 40 else 1 << 63
            if not MISSING_INTEGER < value < 1 << 63:
                return False
    return True


def _refuse_other_numbers(name: str, column: str, counts: Counts, form: Form) -> None:
    """Raise a SourceError for cells that are numbers with marks between thousands, or with another decimal point."""
    point = re.escape(form.decimal)
    number = _patterns(form)[1]
    ways: list[tuple[bytes, str, bytes]] = []  # pattern of a shape, option, mark
    if not form.thousands:
        for mark in (b",", b".", b"'", b"_", b" "):
            if mark != form.decimal:
                group = re.escape(mark)
                ways.append(
                    (rb"[+-]?0{1,3}(?:" + group + rb"000)+(?:" + point + rb"0+)?", "--thousands", mark)
                )
        if form.decimal == b".":
            ways.append((rb"[+-]?0{1,3}(?:\.000){2,}", "--thousands", b"."))
    if form.decimal == b".":
        ways.append((rb"[+-]?(?:0+|0{1,3}(?:\.000)+),0+(?:[eE][+-]?0+)?", "--decimal", b","))
    shapes = _shapes(counts)
    total = sum(shapes.values())
    for pattern, option, mark in ways:
        other = re.compile(pattern)
        found = [shape for shape in shapes if other.fullmatch(shape)]
        alike = sum(count for shape, count in shapes.items() if shape in found or number.fullmatch(shape))
        if found and alike >= MOSTLY * total:
            example = next(cell for cell in counts if cell.translate(_DIGITS) in found).decode()
            what = "between thousands" if option == "--thousands" else "as decimal point"
            written = "' '" if mark == b" " else '"\'"' if mark == b"'" else mark.decode()
            more = " --thousands ." if option == "--decimal" and "." in example else ""
            more = " --decimal ," if option == "--thousands" and mark == form.decimal else more
            raise SourceError(
                f"{name}: column {column!r} holds numbers with {written} {what}, as {example!r}; that must be said. "
                f"Pass {option} {written}{more}, or --type {column}=category if they are none."
            )
