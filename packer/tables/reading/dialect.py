"""The dialect of a text file, found from its beginning: the delimiter, the header, the names of the columns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from packer.errors import SourceError, UsageError
from packer.sentence import Option
from packer.source_kinds import compression
from packer.tables.reading.record_parser import end_of_records, split_records
from packer.tables.reading.table_source import ReadOptions, TextDialect
from packer.tables.transform.cell_values import NA_TEXTS
from packer.tables.transform.column_types import TableColumn

# Where two part all records alike, the earlier one: commas stand in numbers and texts.
DELIMITERS = (b"\t", b";", b"|", b",")
_BY_SUFFIX = {".tsv": b"\t", ".tab": b"\t", ".psv": b"|"}
_RECORDS = 100  # looked at to find the delimiter
_LEAST = 0.5  # of them must have as many cells as the first
_MOST = 0.9  # of the rows are most
_NOTES = 10  # on names that were changed


def dialect_of(reading: ReadOptions, width: int = 0) -> TextDialect:
    """Return the dialect that options give; without a delimiter: a comma. Raises: UsageError for marks that no file can have."""
    marks = {
        "delimiter": "," if reading.delimiter is None else reading.delimiter,
        "quote": reading.quote,
        "decimal": reading.decimal,
        "thousands": reading.thousands,
    }
    for option, mark in marks.items():
        optional = option in ("quote", "thousands")
        if mark == "" and optional:
            continue
        if len(mark) != 1 or not mark.isascii() or mark in "\r\n\0" or (mark.isalnum() or mark in "+-"):
            raise UsageError(
                Option(option, mark),
                ": is no mark; one ASCII character is, no letter, digit, sign or end of line"
                f"{', or none' if optional else ''}. Pass one.",
            )
    given = [(option, mark) for option, mark in marks.items() if mark]
    if reading.delimiter is None:
        given = given[1:]
    for at, (option, mark) in enumerate(given):
        for other, same in given[:at]:
            if mark == same:
                raise UsageError(
                    Option(option, mark),
                    ": is the same as ",
                    Option(other),
                    "; each mark means one thing. Change one.",
                )
    na = frozenset(text.encode() for text in (*NA_TEXTS, *(text.strip(" \t") for text in reading.na)))
    delimiter, quote, decimal, thousands = (mark.encode() for mark in marks.values())
    return TextDialect(delimiter, quote, decimal, thousands, na, width)


def delimiter_of(name: str, text: bytes, ended: bool, reading: ReadOptions) -> bytes:
    """Find the delimiter of a file: as given, by its suffix, or that by which most records have as many cells as the first.

    text: the beginning of the file, all of it if `ended`. Raises: SourceError if no delimiter does.
    """
    dialect = dialect_of(reading)
    if reading.delimiter is not None:
        return dialect.delimiter
    for suffix, delimiter in _BY_SUFFIX.items():
        if name.lower().removesuffix(compression(name)).endswith(suffix):
            return delimiter
    best, score = b"", 0.0
    unfinished, single, spaced = b"", b"", False
    short = b""  # by which the header has fewer cells than all rows
    for delimiter in DELIMITERS:
        if delimiter in (dialect.quote, dialect.decimal, dialect.thousands):
            continue
        records = first_records(text, ended, replace(dialect, delimiter=delimiter), _RECORDS)
        if not records:
            unfinished = delimiter
            continue
        width = len(records[0])
        alike = sum(len(record) == width for record in records) / len(records)
        if width > 1 and alike > score:
            best, score = delimiter, alike
        if width > 1 and reading.header and _wide(width, records[1:]):
            short = short or delimiter
        if all(len(record) == 1 for record in records):
            single = delimiter
            spaced = all(_is_spaced(record[0]) for record in records[1:] or records)
    if score >= _LEAST:
        return best
    if short:
        return short
    if spaced and not best:
        raise SourceError(
            f"{name}: its cells are parted by spaces; one character parts them, as a comma, a semicolon, a tab or |. Pass ",
            Option("delimiter", " "),
            " if each space is one, or convert it.",
        )
    if unfinished or (single and not best):
        return unfinished or single
    raise SourceError(
        f"{name}: neither comma, semicolon, tab nor | parts most of its first {_RECORDS} rows into as many cells as the first. Pass ",
        Option("delimiter"),
        ".",
    )


def _is_spaced(cell: bytes) -> bool:
    words = [word for word in cell.split(b" ") if word]
    return len(words) > 1 and all(map(_is_number, words))


def _is_number(cell: bytes) -> bool:
    try:
        float(cell.replace(b"_", b"x"))
    except ValueError:
        return False
    return True


def first_records(text: bytes, ended: bool, dialect: TextDialect, most: int) -> list[list[bytes]]:
    """Return the first records of a text, at most `most`; the last one that is not known to be whole is left out unless `ended`."""
    if not ended:
        text = text[: end_of_records(text, 0, dialect)]
    return split_records(text, dialect, most)


def first_record_end(text: bytes, dialect: TextDialect) -> int:
    """Return the offset behind the first record that is not blank; 0 if no such record ends in the text."""
    at = 0
    while (newline := text.find(b"\n", at)) >= 0 and is_blank(text[at:newline], dialect):
        at = newline + 1
    opening = re.compile(b"(?:^|(?<=[\\n" + re.escape(dialect.delimiter) + b"]))" + re.escape(dialect.quote))
    while newline >= 0:
        quote = opening.search(text, at, newline) if dialect.quote else None
        if not quote:
            return newline + 1
        close = text.find(dialect.quote, quote.end())
        while close >= 0 and text[close + 1 : close + 2] == dialect.quote:
            close = text.find(dialect.quote, close + 2)
        if close < 0:
            return 0
        at = close + 1
        newline = text.find(b"\n", at)
    return 0


def is_blank(text: bytes, dialect: TextDialect) -> bool:
    """Tell whether text holds no record."""
    return not text.strip(b" \t\r\n") and dialect.delimiter not in text


def column_names(name: str, cells: Sequence[bytes], dialect: TextDialect) -> tuple[list[str], list[str]]:
    """Make names of the header's cells: empty and repeated ones are changed.

    Returns: the names, and a sentence about each change. Raises: SourceError if they are no names.
    """
    filled = [cell for cell in cells if cell.strip(b" \t") not in dialect.na]
    if filled and all(map(_is_number, filled)):
        raise SourceError(
            f"{name}: its first row holds numbers, no names. Pass ", Option("header", False), "."
        )
    try:
        written = [cell.decode().strip() for cell in cells]
    except UnicodeDecodeError:
        raise SourceError(
            f"{name}: its first row is not UTF-8; the whole file must be. Pass ",
            Option("encoding"),
            ", as cp1252 or latin-1.",
        ) from None
    return unique_names(name, written)


def unique_names(name: str, given: Sequence[str]) -> tuple[list[str], list[str]]:
    """Make columns' names different, and give one to those without.

    name: of the file. Returns: the names, and a sentence about each of the first changes, and how many more there are.
    """
    names: list[str] = []
    notes: list[str] = []
    taken, seen = set(given), {""}
    numbers: dict[str, int] = {}  # the last one that was put behind a name
    changes = 0
    for number, text in enumerate(given):
        fresh = text
        if text in seen:
            fresh = stem = text or f"column_{number}"
            while fresh in taken:
                numbers[stem] = numbers.get(stem, 0) + 1
                fresh = f"{stem}.{numbers[stem]}"
            taken.add(fresh)
            changes += 1
            if changes <= _NOTES:
                what = f"has several columns {text!r}: the one at {number} (from 0) is called {fresh!r}."
                notes.append(
                    f"{name} {what}"
                    if text
                    else f"column {number} (from 0) of {name} has no name: it is called {fresh!r}."
                )
        seen.add(text)
        names.append(fresh)
    if changes > _NOTES:
        notes.append(f"{name}: {changes - _NOTES:,} more columns have such names, and are called otherwise.")
    return names, notes


def index_columns(
    written: Sequence[str],
    columns: Sequence[TableColumn],
    records: Sequence[Sequence[bytes]],
    given: Mapping[str, str],
) -> dict[str, str]:
    """Find the columns that pandas' to_csv makes of an index: the first one, without a name, and those that were once such a one.

    written: the header's cells, [] without a header; columns: with their names and types; records: the first rows; given: column ->
    type, where a user said it. Returns: name -> the beginning of a sentence about it.
    """
    found: dict[str, str] = {}
    for number, (text, column) in enumerate(zip(written, columns, strict=False)):
        again = re.fullmatch(r"Unnamed: \d+(\.\d+)*", text) is not None
        if not (again or (number == 0 and not text)):
            break
        cells = [record[number] for record in records if len(record) == len(columns)]
        what = "" if column.type != "integer" or column.name in given else _row_numbers(cells)
        if not what:
            break
        found[column.name] = (
            f"column {column.name!r} {what}" if again else f"column {number} has no name and {what}"
        )
    return found


def _row_numbers(cells: Sequence[bytes]) -> str:
    """Return in which way whole numbers are those of rows: each follows the one before it, beginning anew at 0, or all differ; or ""."""
    try:
        numbers = [int(cell) for cell in cells]
    except ValueError:
        return ""  # one is missing
    if all(after in (0, before + 1) for before, after in pairwise(numbers)):
        return "counts the rows"
    return "holds a different number in each row" if len(set(numbers)) == len(numbers) else ""


def check_widths(name: str, width: int, records: Sequence[Sequence[bytes]]) -> None:
    """Raise SourceError if most rows have more cells than the header.

    name: of the file; width: cells of its header; records: its first rows.
    """
    wide = _wide(width, records)
    if wide:
        raise SourceError(
            f"{name}: its header has {width:,} cells, its rows {wide:,}; they must have as many. "
            "Give each column a name there, or pass ",
            Option("header", False),
            " if the first row is none.",
        )


def _wide(width: int, records: Sequence[Sequence[bytes]]) -> int:
    """Return the number of cells that most records have, if the header has fewer; else 0."""
    if not records:
        return 0
    common, count = Counter(map(len, records)).most_common(1)[0]
    return common if common > width and count >= _MOST * len(records) else 0
