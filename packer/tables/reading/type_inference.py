"""Infer column types from the first rows, and note columns that may be misread."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from packer.garbage import paused
from packer.given_values import option_text
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
    shown_columns,
)
from packer.tables.transform.records import CellFault, RecordLayout, RecordMember

SAMPLE_ROWS = 10_000
MOSTLY = 0.9  # share of cells that give a column its type; the reader reports the others
_CONVERTED = (name for name, type in (*TYPES.items(), *NOTATIONS.items()) if type.read)
TRIED = {
    kind: RecordLayout((RecordMember(0, TableColumn.given("", kind), exact=True),))
    for kind in ("integer", "number", *_CONVERTED)
}
"""Types and notations that texts are tried as -> the layout of a column of them."""
_INFERRED = tuple(kind for kind in TRIED if kind not in NOTATIONS or NOTATIONS[kind].inferred)
_IMAGE_SUFFIXES = tuple(suffix.encode() for suffixes in IMAGES.values() for suffix in suffixes)
_STEPS = (1, 4, None)  # numbers of texts that are tried, one after the other: most types fail on the first
_EXAMINED = 1000  # texts examined for the way they are written
_NAMED = 6  # most columns named in a note
_SHORT = 40  # most characters of a text that may mean "missing"
_SINGLE = 3  # of more cells, one may be wrong
_PROBES = 16  # texts tried first for a type that most texts have
_DOUBTFUL = re.compile(rb"\.\d*0[ \t]*$|^[ \t]*(?:19|20)\d{6}[ \t]*$", re.MULTILINE)  # a code, or a date
_LOST = (CellFault.LEADING_ZEROS, CellFault.ROUNDED)
Counts = Counter[bytes]
"""Numbers of cells by their text without spaces around it; missing ones are left out."""


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
    Returns: the columns, and notes on columns that may be misread, by name.
    """
    cells = list(zip(*records, strict=True))
    columns = {c: cells[n] if cells else () for n, c in enumerate(names) if c not in given}
    typed, wrong = _types_of(columns, dialect)
    notes: dict[str, str] = {}
    semicolons = dialect.delimiter == b";" and dialect.decimal == b"."
    for column, texts in columns.items():
        kind = typed[column].type
        if not kind:
            typed[column] = TableColumn(column, "number", digits="")
            notes[column] = (
                f"column {column!r} holds no value in the first {len(records):,} rows and is read as"
                f" number. If it is not, pass {as_category(column)}, or another type."
            )
        elif kind == "category":
            counts = _present(texts, dialect)
            if column == names[0] and all(cell.lower().endswith(_IMAGE_SUFFIXES) for cell in counts):
                notes[column] = (
                    f"column {column!r} names image files, which a table does not read. To pack the images"
                    f" with these labels, convert the folder of the images with labels={name!r}."
                )
            else:
                notes[column] = _note_on_categories(column, counts, dialect, columns)
        elif column in wrong:
            notes[column] = _note_on_others(typed[column], wrong[column], texts)
        elif kind in ("integer", "number"):
            some = list(islice(dict.fromkeys(texts), _EXAMINED))
            if typed[column].digits or semicolons or _DOUBTFUL.search(b"\n".join(some)):
                some = [text for cell in some if (text := cell.strip(b" \t")) not in dialect.na]
                if kind == "number" and not typed[column].digits:
                    typed[column] = typed[column].but(digits=_unwritten(some))
                notes[column] = _note_on_numbers(typed[column], some, texts, dialect)
    typed |= {column: TableColumn.given(column, given[column]) for column in names if column in given}
    return tuple(typed[c] for c in names), {column: [note] for column, note in notes.items() if note}


def notes_on_texts(
    name: str,
    columns: Sequence[TableColumn],
    records: Sequence[Sequence[bytes]],
    dialect: TextDialect,
    alike: bool,
) -> list[str]:
    """Return notes on texts of categories: missing ones that are words, and spaces around them.

    name: of the file; records: its first rows; alike: a pack decides which words mean missing.
    """
    missing: dict[str, str] = {}
    spaced: list[str] = []
    for number, column in enumerate(columns):
        if column.type not in ("category", "text") or column.cells.verbatim:
            continue
        cells = [row[number] for row in records]
        stripped = [cell.strip(b" \t") for cell in cells]
        words = [cell for cell in stripped if cell and cell in dialect.na]
        if words and len(words) < len(cells):
            missing[column.name] = f"{column.name} {words[0].decode()!r} {len(words):,}"
        if stripped != cells and not dialect.keep_spaces:
            spaced.append(column.name)
    notes: list[str] = []
    if missing:
        verbatim = option_text("types", dict.fromkeys(list(missing)[:_NAMED], "verbatim"))
        way = "" if alike else f" If they are values, pass {verbatim}: only empty cells are missing."
        notes.append(
            f"{name}: words that mean missing in columns of texts, in the first {len(records):,} rows:"
            f" {', '.join(list(missing.values())[:_NAMED])}.{way}"
        )
    if spaced:
        notes.append(
            f"{name}: spaces around the texts of {shown_columns(spaced)} are left out. To keep them, pass"
            " csv=Csv(keep_spaces=True)."
        )
    return notes


def kinds_of(columns: Sequence[Sequence[bytes]], dialect: TextDialect) -> list[str]:
    """Return the type or notation of each column of cells, as infer() does; "" without a value."""
    typed = _types_of({str(n): cells for n, cells in enumerate(columns)}, dialect)[0]
    return [typed[str(n)].notation or typed[str(n)].type for n in range(len(columns))]


def fits(texts: Sequence[bytes], kind: str, dialect: TextDialect) -> bool:
    """Return True if all texts are missing or of a type or notation, and some are not missing."""
    look = _look({"": texts}, kind, dialect)[""]
    return look.some and not look.wrong


def kinds_that_fit(texts: Sequence[bytes], dialect: TextDialect) -> list[str]:
    """Return the types and notations that all texts have; integer only if float64 would round one."""
    kinds = [kind for kind in TRIED if fits(texts, kind, dialect)]
    return [kind for kind in kinds if kind != "integer" or "number" not in kinds]


def valid_of(texts: Sequence[bytes], kind: str, dialect: TextDialect) -> set[bytes]:
    """Return the texts that are of a type or notation, or are missing."""
    return {*texts}.difference(_look({"": texts}, kind, dialect)[""].wrong)


def numbers_of(texts: Sequence[bytes], dialect: TextDialect) -> list[float]:
    """Return the values of texts, NaN for those that are no numbers."""
    values: list[float] = read_texts(texts, TRIED["number"], one_column(dialect))[0].tolist()
    return values


def may_mean_missing(text: bytes) -> bool:
    """Return True for a short text without digits other than those of 0000-00-00."""
    shown = text.decode(errors="replace")
    return 0 < len(shown) <= _SHORT and shown.isprintable() and not re.search("[1-9]|^0$", shown)


def _note_on_others(column: TableColumn, wrong: Sequence[bytes], texts: Sequence[bytes]) -> str:
    """Return the note on a column whose first cells mostly have a type."""
    shown = " and ".join(repr(text.decode(errors="replace")[:40]) for text in wrong[:2])
    some, total = sum(map({*wrong}.__contains__, texts)), len(texts)
    return (
        f"column {column.name!r} is read as {column.notation or column.type}; {some:,} of its first {total:,}"
        f" cells {'is' if some == 1 else 'are'} not, as {shown}, and their rows are bad. For texts pass"
        f" {as_category(column.name)}."
    )


def _unwritten(some: Sequence[bytes]) -> str:
    """Return a number with zeros at its end among numbers with other digits, "" if there is none.

    1.10 beside 1.9 names a version: the number 1.1 does not write it. 12.50 beside 3.00 is an amount.
    """
    texts = [text for text in some if b"." in text]
    if len({len(text) - text.rindex(b".") for text in texts}) < 2:
        return ""
    return next((text.decode() for text in texts if text.endswith(b"0") and not text.endswith(b".0")), "")


def _note_on_numbers(
    column: TableColumn, some: Sequence[bytes], texts: Sequence[bytes], dialect: TextDialect
) -> str:
    """Return a note on numbers that may be dates, codes or versions, "" for none. some: the first texts."""
    first = some[0] if some else b""
    if _YMD.fullmatch(first) and fits([*dict.fromkeys(texts)], "date-ymd", dialect):
        return (
            f"column {column.name!r} is read as {column.type}; all its numbers, as {first.decode()}, are"
            f" dates too. If they are dates, pass {option_text('types', {column.name: 'date-ymd'})}."
        )
    semicolons = dialect.delimiter == b";" and dialect.decimal == b"."
    grouped = next((text for text in some if b"." in text), b"") if semicolons else b""
    if grouped and all(map(_GROUPED.fullmatch, some)):
        return (
            f"column {column.name!r} is read as {column.type}, {grouped.decode()} as"
            f" {float(grouped)}; all its points have three digits after them, as between thousands. If"
            " they are, pass csv=Csv(thousands='.') csv=Csv(decimal=',')."
        )
    if column.type == "integer" and column.digits:
        return (
            f"column {column.name!r} holds whole numbers with leading zeros, as {column.digits!r}, which a"
            f" feature does not keep. If they are codes, pass {as_category(column.name)}."
        )
    tens = {cell.partition(b".")[0]: cell for cell in some if cell.endswith(b".10")}
    both = [cell for begin, cell in tens.items() if {begin + b".9", begin + b".1"} & {*some}]
    if not both:
        return ""
    return (
        f"column {column.name!r} holds {both[0].decode()!r} beside numbers of one digit after the point, and"
        f" is read as {float(both[0])}. If they are versions or codes, pass {as_category(column.name)}."
    )


def _types_of(
    columns: Mapping[str, Sequence[bytes]], dialect: TextDialect
) -> tuple[dict[str, TableColumn], dict[str, list[bytes]]]:
    """Return each column with the first type that fits all texts, or else nearly all; otherwise category.

    Returns: the columns, "" as type if all are missing, and the texts that do not fit.
    """
    wrong: dict[str, list[bytes]] = {}
    left = {column: list(dict.fromkeys(texts)) for column, texts in columns.items()}
    empty = [c for c, texts in left.items() if all(text.strip(b" \t") in dialect.na for text in texts)]
    typed = {column: TableColumn(column, "") for column in empty}
    left = {column: texts for column, texts in left.items() if column not in typed}
    for kind in _INFERRED:
        fitting = left
        for most in _STEPS:
            looks = _look({c: texts[:most] for c, texts in fitting.items()}, kind, dialect)
            fitting = {c: left[c] for c, look in looks.items() if not look.wrong}
        for column in fitting:
            if looks[column].some:
                typed[column] = TableColumn.given(column, kind).but(digits=looks[column].digits)
                del left[column]
    counts = {column: _present(columns[column], dialect) for column in left}
    for kind in _INFERRED[1:]:
        probes = _look({c: texts[:_PROBES] for c, texts in left.items()}, kind, dialect)
        likely = {
            c: left[c]
            for c, look in probes.items()
            if look.some and 2 * len(look.wrong) <= min(len(left[c]), _PROBES)
        }
        for column, look in _look(likely, kind, dialect).items():
            wrong_texts = {text.strip(b" \t") for text in look.wrong}
            some, total = sum(map(counts[column].__getitem__, wrong_texts)), counts[column].total()
            if look.some and (some <= (1 - MOSTLY) * total or (some == 1 and total > _SINGLE)):
                typed[column] = TableColumn.given(column, kind).but(digits=look.digits)
                wrong[column] = look.wrong
                del left[column]
    return {**typed, **{column: TableColumn(column, "category") for column in left}}, wrong


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


def _look(columns: Mapping[str, Sequence[bytes]], kind: str, dialect: TextDialect) -> dict[str, _Look]:
    """Read texts of columns as a type, all at once, because wide tables have many columns with few texts."""
    texts = [text for column in columns.values() for text in column]
    values, bad = read_texts(texts, TRIED[kind], one_column(dialect))
    ends = np.cumsum([len(column) for column in columns.values()], dtype=np.int64)
    present = np.append(0, np.cumsum(~is_missing(values)))[np.append(0, ends)]
    looks = [_Look(some) for some in (np.diff(present) > 0).tolist()]
    places = np.searchsorted(ends, [b.line for b in bad], "right").tolist()
    for b, look in zip(bad, (looks[place] for place in places), strict=True):
        text = texts[b.line].strip(b" \t")
        if b.reason in _LOST:
            look.some, look.digits = True, look.digits or text.decode()
        elif b.reason is not CellFault.INFINITE:
            look.wrong.append(texts[b.line])
        elif NUMBER.fullmatch(text):
            look.some = True  # beyond float64
    return dict(zip(columns, looks, strict=True))


def _present(cells: Sequence[bytes], dialect: TextDialect) -> Counts:
    counts = Counter(cell.strip(b" \t") for cell in cells)
    for text in counts.keys() & dialect.na:
        del counts[text]
    return counts


_MARKS = frozenset(
    (b"?", b"??", b"-", b"--", b"---", b".", b"*", b"n.a.", b"N.A.", b"\\N")
)  # often mean missing
_LEAST, _FEW = 20, 100  # more cells that all differ are no categories; of fewer, most may differ by chance
_YMD = re.compile(rb"(?:19|20)\d{6}")
_GROUPED = re.compile(rb"[+-]?[1-9]\d{0,2}(?:\.\d{3})?|0?")
_NUMBERLIKE = re.compile(
    rb"[-+(]?(?:[0-9.,]|[$\xc2\xe2])[^a-zA-Z]*(?:[AaPp]\.?[Mm]\.?|[eE][-+]?\d+)?"
    rb"|\d\d?[ /.-]?[A-Za-z]{3,9}[ /.-]?\d+|[A-Za-z]{3,9}\.?[ -]\d\d?,?[ -]\d+"
)
_AMOUNT = re.compile(rb"[-+]?\d[\d.,]*( ?[a-zA-Z][a-zA-Z/%]*)")
_FEW_AMOUNTS = 8  # fewer texts, such as 2 doors and 4 doors, are categories
_NO_BREAK = re.compile(rb"\d(?:\xc2\xa0|\xe2\x80\xaf)\d")
_WITHOUT_NO_BREAK = r"sed 's/\xc2\xa0\|\xe2\x80\xaf//g'"
_ZONED = re.compile(rb"\d{4}-\d\d?-\d\d?[T ]\d\d?:\d\d\S* ?\(?[A-Z][A-Za-z/_]+\)?")


def _note_on_categories(
    column: str, counts: Counts, dialect: TextDialect, columns: Mapping[str, Sequence[bytes]]
) -> str:
    """Return a note on categories that look like numbers, amounts or dates, or nearly all differ, or ""."""
    total = counts.total()
    zoned = any(map(_ZONED.fullmatch, counts))
    units = {cell: match[1].decode() for cell in counts if (match := _AMOUNT.fullmatch(cell))}
    if len(set(units.values())) != 1 or len(units) < _FEW_AMOUNTS:
        units = {}
    like = [cell for cell in counts if cell in units or _NUMBERLIKE.fullmatch(cell)]
    numbers = sum(map(counts.__getitem__, like))
    marks = [cell for cell in counts if cell in _MARKS] if len(counts) > 1 else []
    nearly = len(counts) - len(like) <= _SINGLE < len(counts)
    for kind in _INFERRED if nearly and not marks else ():
        odd = {*counts}.difference(valid_of([*counts], kind, dialect))
        if len(odd) == 1 and all(map(may_mean_missing, odd)):  # one word among numbers, dates or times
            marks = [*odd]
            break
    differ = len(counts) == total > _LEAST or (total >= _FEW and len(counts) >= MOSTLY * total)
    if 2 * numbers < total and not marks and not zoned and not differ:
        return ""
    shown = sorted(counts, key=lambda cell: (-counts[cell], cell))[:2]
    examples = " and ".join(repr(cell.decode(errors="replace")[:80]) for cell in shown)
    ways = []
    if marks:
        missing = tuple(mark.decode() for mark in marks)
        named = " or ".join(map(repr, missing[:3]))
        ways.append(f"if {named} means missing, pass csv=Csv(na={missing!r})")
    elif kinds := kinds_that_fit([*counts], dialect):
        typed = " or ".join(option_text("types", {column: kind}) for kind in kinds)
        ways.append(f"if it is another type, pass {typed}")
    if any(map(_NO_BREAK.search, counts)):
        ways.append(f"its spaces are no-break spaces, so for numbers leave them out: {_WITHOUT_NO_BREAK}")
    for unit in {*units.values()}:
        inside = re.compile(rb"\d" + re.escape(unit.encode())).search
        if not any(inside(cell) for other in columns if other != column for cell in columns[other]):
            named = unit if unit[0] == " " else f" {unit}"
            ways.append(f"for numbers leave{named} out: sed 's|\\([0-9]\\){unit}|\\1|g'")
    if zoned:
        ways.append("zones by name are not read, so for times write offsets instead, as +01:00")
    text = f" {'; '.join(ways)}." if ways else ""
    return (
        f"column {column!r} is read as category; it holds {len(counts):,} different texts in its first"
        f" {total:,} cells, such as {examples}.{text[:2].upper()}{text[2:]}"
    )
