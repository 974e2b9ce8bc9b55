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
from packer.tables.transform.column_types import NOTATIONS, TYPES, TableColumn, as_category, is_missing
from packer.tables.transform.records import CellFault, RecordLayout, RecordMember

SAMPLE_ROWS = 10_000
MOSTLY = 0.9  # share of cells that give a column its type; the reader reports the others
TRIED = {
    kind: RecordLayout((RecordMember(0, TableColumn.given("", kind), exact=True),))
    for kind in (
        "integer",
        "number",
        *(name for name, type in (*TYPES.items(), *NOTATIONS.items()) if type.read),
    )
}
"""Types and notations that texts are tried as -> the layout of a column of them."""
_INFERRED = tuple(kind for kind in TRIED if kind not in NOTATIONS or NOTATIONS[kind].inferred)
_IMAGE_SUFFIXES = tuple(suffix.encode() for suffixes in IMAGES.values() for suffix in suffixes)
_STEPS = (1, 4, None)  # numbers of texts that are tried, one after the other: most types fail on the first
_EXAMINED = 1000  # texts examined for the way they are written
_NAMED = 6  # most columns named in a note
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
    width = len(names) + dialect.surplus
    cells = list(zip(*(record for record in records if len(record) == width), strict=True))
    columns = {c: cells[n] if cells else () for n, c in enumerate(names) if c not in given}
    typed, wrong = _types_of(columns, dialect)
    typed |= {column: TableColumn.given(column, given[column]) for column in names if column in given}
    notes: dict[str, list[str]] = {}
    semicolons = dialect.delimiter == b";" and dialect.decimal == b"."
    for column, texts in columns.items():
        if typed[column].type == "category":
            present = _present(texts, dialect)
            if column == names[0] and _are_image_files(present):
                notes[column] = [_note_on_images(column, name)]
            elif note := _note(column, present, dialect, columns):
                notes[column] = [note]
        elif column in wrong:
            notes[column] = [_note_on_others(typed[column], wrong[column], texts)]
        elif typed[column].type in ("integer", "number"):
            some = b"\n".join(islice(dict.fromkeys(texts), _EXAMINED))
            if not (typed[column].digits or semicolons or _DOUBTFUL.search(some)):
                continue
            if typed[column].type == "number" and not typed[column].digits:
                typed[column] = typed[column].but(digits=_unwritten(some))
            if note := _note_on_names(typed[column], some, texts, dialect):
                notes[column] = [note]
    for column in columns:
        if not typed[column].type:
            typed[column] = TableColumn(column, "number", digits="")
            notes[column] = [
                (
                    f"column {column!r} holds no value in the first {len(records):,} rows and is read as"
                    f" number. If it is not, pass {as_category(column)}, or another type."
                )
            ]
    return tuple(typed[c] for c in names), notes


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
        cells = [row[number] for row in records if number < len(row)]
        stripped = [cell.strip(b" \t") for cell in cells]
        words = [cell for cell in stripped if cell and cell in dialect.na]
        if words and len(words) < len(cells):
            missing[column.name] = f"{column.name} {words[0].decode()!r} {len(words):,}"
        if any(len(a) != len(b) for a, b in zip(cells, stripped, strict=True)):
            spaced.append(column.name)
    notes: list[str] = []
    if missing:
        shown = ", ".join(list(missing.values())[:_NAMED])
        verbatim = option_text("types", dict.fromkeys(list(missing)[:_NAMED], "verbatim"))
        way = f" If they are values, pass {verbatim}: only empty cells are missing."
        notes.append(
            f"{name}: words that mean missing in columns of texts, in the first {len(records):,} rows:"
            f" {shown}.{'' if alike else way}"
        )
    if spaced and not dialect.keep_spaces:
        shown = ", ".join(spaced[:_NAMED]) + (" and others" if len(spaced) > _NAMED else "")
        notes.append(
            f"{name}: spaces around the texts of {shown} are left out. To keep them, pass"
            " csv=Csv(keep_spaces=True)."
        )
    return notes


def kinds_of(columns: Mapping[str, Sequence[bytes]], dialect: TextDialect) -> dict[str, str]:
    """Return the type or notation of each column of cells, as infer() does; "" without a value."""
    return {c: t.notation or t.type for c, t in _types_of(columns, dialect)[0].items()}


def fits(texts: Sequence[bytes], kind: str, dialect: TextDialect) -> bool:
    """Return True if all texts are missing or of a type or notation, and some are not missing."""
    if kind in ("category", "text"):
        return True
    look = _look([texts], kind, one_column(dialect))[0]
    return look.some and not look.wrong


def valid_of(texts: Sequence[bytes], kind: str, dialect: TextDialect) -> set[bytes]:
    """Return the texts that are of a type or notation, or are missing."""
    return {*texts}.difference(_look([texts], kind, one_column(dialect))[0].wrong)


def _note_on_images(column: str, name: str) -> str:
    return (
        f"column {column!r} names image files, which a table does not read. To pack the images"
        f" with these labels, convert the folder of the images with labels={name!r}."
    )


def _note_on_others(column: TableColumn, wrong: Sequence[bytes], texts: Sequence[bytes]) -> str:
    """Return the note on a column whose first cells mostly have a type."""
    shown = " and ".join(repr(text.decode(errors="replace")[:40]) for text in wrong[:2])
    some, total = sum(map({*wrong}.__contains__, texts)), len(texts)
    return (
        f"column {column.name!r} is read as {column.notation or column.type}; {some:,} of its first {total:,}"
        f" cells {'is' if some == 1 else 'are'} not, as {shown}, and their rows are bad. For texts pass"
        f" {as_category(column.name)}."
    )


def _unwritten(some: bytes) -> str:
    """Return a number with zeros at its end among numbers with other digits, "" if there is none.

    1.10 beside 1.9 names a version: the number 1.1 does not write it. 12.50 beside 3.00 is an amount.
    """
    texts = [cell.strip(b" \t") for cell in some.split(b"\n") if b"." in cell]
    if len({len(text) - text.rindex(b".") for text in texts}) < 2:
        return ""
    return next((text.decode() for text in texts if text.endswith(b"0") and not text.endswith(b".0")), "")


def _note_on_names(column: TableColumn, some: bytes, texts: Sequence[bytes], dialect: TextDialect) -> str:
    """Return a note on numbers that may be dates, codes or versions, "" for none. some: the first texts."""
    trimmed = (cell.strip(b" \t") for cell in texts)
    first = next((text for text in trimmed if text not in dialect.na), b"")
    if _YMD.fullmatch(first) and fits([*dict.fromkeys(texts)], "date-ymd", dialect):
        return (
            f"column {column.name!r} is read as {column.type}; all its numbers, as {first.decode()}, are"
            f" dates too. If they are dates, pass {option_text('types', {column.name: 'date-ymd'})}."
        )
    if dialect.delimiter == b";" and dialect.decimal == b"." and _GROUPED.fullmatch(first):
        present = _present(some.split(b"\n"), dialect)
        grouped = [text for text in present if b"." in text]
        if grouped and all(map(_GROUPED.fullmatch, present)):
            return (
                f"column {column.name!r} is read as {column.type}, {grouped[0].decode()} as"
                f" {float(grouped[0])}; all its points have three digits after them, as between thousands. If"
                " they are, pass csv=Csv(thousands='.') csv=Csv(decimal=',')."
            )
    if column.type == "integer" and column.digits:
        return (
            f"column {column.name!r} holds whole numbers with leading zeros, as {column.digits!r}, which a"
            f" feature does not keep. If they are codes, pass {as_category(column.name)}."
        )
    if b".10" not in some:
        return ""
    present = _present(some.split(b"\n"), dialect)
    tens = {cell.partition(b".")[0]: cell for cell in present if cell.endswith(b".10")}
    both = [cell for begin, cell in tens.items() if {begin + b".9", begin + b".1"} & {*present}]
    if not both:
        return ""
    return (
        f"column {column.name!r} holds {both[0].decode()!r} beside numbers of one digit after the point, and"
        f" is read as {float(both[0])}. If they are versions or codes, pass {as_category(column.name)}."
    )


def _are_image_files(counts: Counts) -> bool:
    """Return True if all texts of a column end like names of image files."""
    return bool(counts) and all(cell.strip().lower().endswith(_IMAGE_SUFFIXES) for cell in counts)


def _types_of(
    columns: Mapping[str, Sequence[bytes]], dialect: TextDialect
) -> tuple[dict[str, TableColumn], dict[str, list[bytes]]]:
    """Return each column with the first type that fits all texts, or else nearly all; otherwise category.

    Returns: the columns, "" as type if all are missing, and the texts that do not fit.
    """
    alone = one_column(dialect)
    typed: dict[str, TableColumn] = {}
    wrong: dict[str, list[bytes]] = {}
    left = {column: list(dict.fromkeys(texts)) for column, texts in columns.items()}
    empty = TableColumn("", "")
    for kind in _INFERRED:
        fitting: dict[str, _Look | None] = dict.fromkeys(left)
        for most in _STEPS:
            looks = _look([left[column][:most] for column in fitting], kind, alone)
            fitting = {c: look for c, look in zip(fitting, looks, strict=True) if not look.wrong}
        form = TableColumn.given("", kind)
        for column, look in fitting.items():
            if look is not None and (look.some or kind == "integer"):
                digits = look.digits if kind in ("integer", "number") else None
                typed[column] = (form if look.some else empty).but(name=column, digits=digits)
                del left[column]
    counts = {column: _present(columns[column], dialect) for column in left}
    for kind in _INFERRED[1:]:
        probes = _look([texts[:_PROBES] for texts in left.values()], kind, alone)
        likely = [
            column
            for (column, texts), look in zip(left.items(), probes, strict=True)
            if look.some and 2 * len(look.wrong) <= len(texts[:_PROBES])
        ]
        for column, look in zip(likely, _look([left[c] for c in likely], kind, alone), strict=True):
            wrong_texts = {text.strip(b" \t") for text in look.wrong}
            some, total = sum(map(counts[column].__getitem__, wrong_texts)), counts[column].total()
            if look.some and (some <= (1 - MOSTLY) * total or (some == 1 and total > _SINGLE)):
                digits = look.digits if kind == "number" else None
                typed[column] = TableColumn.given(column, kind).but(digits=digits)
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


def _look(columns: Sequence[Sequence[bytes]], kind: str, dialect: TextDialect) -> list[_Look]:
    """Read texts of columns as a type, all at once, because wide tables have many columns with few texts."""
    texts = [text for column in columns for text in column]
    values, bad = read_texts(texts, TRIED[kind], dialect)
    ends = np.cumsum([len(column) for column in columns], dtype=np.int64)
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
    return looks


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
    rb"[-+(]?(?:[0-9.]|[$\xc2\xe2])[^a-zA-Z]*(?:[AaPp]\.?[Mm]\.?)?"
    rb"|\d\d?[ /.-]?[A-Za-z]{3,9}[ /.-]?\d+|[A-Za-z]{3,9}\.?[ -]\d\d?,?[ -]\d+"
)
_AMOUNT = re.compile(rb"[-+]?\d[\d.,]*( ?[a-zA-Z][a-zA-Z/%]*)")
_FEW_AMOUNTS = 8  # fewer texts, such as 2 doors and 4 doors, are categories
_NO_BREAK = re.compile(rb"\d(?:\xc2\xa0|\xe2\x80\xaf)\d")
_WITHOUT_NO_BREAK = r"sed 's/\xc2\xa0\|\xe2\x80\xaf//g'"
_DIGIT = re.compile(rb"[1-9]")
_ZONED = re.compile(rb"\d{4}-\d\d?-\d\d?[T ]\d\d?:\d\d\S* ?\(?[A-Z][A-Za-z/_]+\)?")


def _note(column: str, counts: Counts, dialect: TextDialect, columns: Mapping[str, Sequence[bytes]]) -> str:
    """Return a note on categories that look like numbers, amounts or dates, or nearly all differ, or ""."""
    total = counts.total()
    zoned = next((cell for cell in counts if _ZONED.fullmatch(cell)), None)
    numbers = sum(n for cell, n in counts.items() if _NUMBERLIKE.fullmatch(cell))
    amounts = {cell: match[1] for cell in counts if (match := _AMOUNT.fullmatch(cell))}
    if len(set(amounts.values())) != 1 or len(amounts) < _FEW_AMOUNTS:
        amounts = {}
    numbers += sum(counts[cell] for cell in amounts if not _NUMBERLIKE.fullmatch(cell))
    marks = {cell: n for cell, n in counts.items() if cell in _MARKS} if len(counts) > 1 else {}
    for kind in _INFERRED if len(counts) > _SINGLE and not marks else ():
        odd = {*counts}.difference(valid_of([*counts], kind, dialect))
        if len(odd) == 1 and not any(map(_DIGIT.search, odd)):  # one word among numbers, dates or times
            marks = {cell: counts[cell] for cell in odd}
            break
    differ = len(counts) == total > _LEAST or (total >= _FEW and len(counts) >= MOSTLY * total)
    if 2 * numbers < total and not marks and not zoned and not differ:
        return ""
    shown = sorted(counts, key=lambda cell: (-counts[cell], cell))[:2]
    examples = " and ".join(repr(cell.decode(errors="replace")[:80]) for cell in shown)
    others = [cell for cell in counts if cell not in marks]
    kinds = [kind for kind in TRIED if others and fits(others, kind, dialect)]
    kinds = [kind for kind in kinds if kind != "integer" or "number" not in kinds]
    ways = []
    typed = [option_text("types", {column: kind}) for kind in kinds]
    if typed and not marks:
        ways.append(f"if it is another type, pass {' or '.join(typed)}")
    if marks:
        missing = tuple(mark.decode() for mark in marks)
        named = " or ".join(map(repr, missing[:3]))
        ways.append(f"if {named} means missing, pass csv=Csv(na={missing!r})")
    if any(_NO_BREAK.search(cell) for cell in counts):
        ways.append(f"its spaces are no-break spaces, so for numbers leave them out: {_WITHOUT_NO_BREAK}")
    for unit in {one.decode() for one in amounts.values()}:
        inside = re.compile(rb"\d" + re.escape(unit.encode()))
        if any(inside.search(cell) for other in columns.keys() - {column} for cell in columns[other]):
            continue  # the command would change it, too
        ways.append(
            f"for numbers leave{unit if unit[0] == ' ' else f' {unit}'} out: sed 's|\\([0-9]\\){unit}|\\1|g'"
        )
    if zoned:
        ways.append("zones by name are not read, so for times write offsets instead, as +01:00")
    ways.append(f"if it is not a feature, pass drop={column!r}")
    text = "; ".join(ways)
    return (
        f"column {column!r} is read as category; it holds {len(counts):,} different texts in its first"
        f" {total:,} cells, such as {examples}. {text[0].upper()}{text[1:]}."
    )
