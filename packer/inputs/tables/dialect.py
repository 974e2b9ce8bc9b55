"""How a text file is written, found out from its beginning: the delimiter, the header, the names of the columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from packer.errors import SourceError, UsageError
from packer.inputs.tables.compression import compression
from packer.inputs.tables.form import Form
from packer.inputs.tables.parse import end_of_records, split_records
from packer.inputs.tables.source import Reading
from packer.tables.values import NA_TEXTS

DELIMITERS = (
    b"\t",
    b";",
    b"|",
    b",",
)  # where two part all records alike, the earlier one: commas stand in numbers and texts
_BY_SUFFIX = {".tsv": b"\t", ".tab": b"\t", ".psv": b"|"}
_RECORDS = 100  # looked at to find the delimiter
_LEAST = 0.5  # of them must have as many cells as the first


def form_of(reading: Reading, width: int = 0) -> Form:
    """The marks a Reading gives; without a delimiter: a comma. Raises: UsageError for marks that no file can have."""
    marks = {
        "--delimiter": "," if reading.delimiter is None else reading.delimiter,
        "--quote": reading.quote,
        "--decimal": reading.decimal,
        "--thousands": reading.thousands,
    }
    for option, mark in marks.items():
        optional = option in ("--quote", "--thousands")
        if mark == "" and optional:
            continue
        if len(mark) != 1 or not mark.isascii() or mark in "\r\n\0" or (mark.isalnum() or mark in "+-"):
            raise UsageError(
                f"{option} {mark}: is no mark; one ASCII character is, no letter, digit, sign or end of line"
                f"{', or none' if optional else ''}. Pass one."
            )
    given = [(option, mark) for option, mark in marks.items() if mark]
    if reading.delimiter is None:
        given = given[1:]
    for at, (option, mark) in enumerate(given):
        for other, same in given[:at]:
            if mark == same:
                raise UsageError(
                    f"{option} {mark}: is the same as {other}; each mark means one thing. Change one."
                )
    na = frozenset(text.encode() for text in (*NA_TEXTS, *(text.strip(" \t") for text in reading.na)))
    delimiter, quote, decimal, thousands = (mark.encode() for mark in marks.values())
    return Form(delimiter, quote, decimal, thousands, na, width)


def delimiter_of(name: str, text: bytes, ended: bool, reading: Reading) -> bytes:
    """The delimiter of a file: the given one, what its suffix says, or the one by which most records have as many cells as the first.

    text: the beginning of the file, all of it if `ended`. Raises: SourceError if no delimiter does.
    """
    form = form_of(reading)
    if reading.delimiter is not None:
        return form.delimiter
    for suffix, delimiter in _BY_SUFFIX.items():
        if name.lower().removesuffix(compression(name)).endswith(suffix):
            return delimiter
    best, score = b"", 0.0
    unfinished, single, spaced = b"", b"", False
    for delimiter in DELIMITERS:
        if delimiter in (form.quote, form.decimal, form.thousands):
            continue
        records = first_records(text, ended, replace(form, delimiter=delimiter), _RECORDS)
        if not records:
            unfinished = delimiter
            continue
        width = len(records[0])
        alike = sum(len(record) == width for record in records) / len(records)
        if width > 1 and alike > score:
            best, score = delimiter, alike
        elif all(len(record) == 1 for record in records):
            single = delimiter
            spaced = all(_is_spaced(record[0]) for record in records[1:] or records)
    if score >= _LEAST:
        return best
    if spaced and not best:
        raise SourceError(
            f"{name}: its cells are parted by spaces; one character parts them, as a comma, a semicolon, a tab or |. "
            "Pass --delimiter ' ' if each space is one, or convert it."
        )
    if unfinished or (single and not best):
        return unfinished or single
    raise SourceError(
        f"{name}: neither comma, semicolon, tab nor | parts most of its first {_RECORDS} rows into as many cells as the first. "
        "Pass --delimiter."
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


def first_records(text: bytes, ended: bool, form: Form, most: int) -> list[list[bytes]]:
    """The first records of a text, at most `most`; the last one that is not known to be whole is left out unless `ended`."""
    if not ended:
        text = text[: end_of_records(text, 0, form)]
    return split_records(text, form, most)


def first_record_end(text: bytes, form: Form) -> int:
    """The offset behind the first record that is not blank; 0 if no such record ends in the text."""
    at = 0
    begun = False
    while (newline := text.find(b"\n", at)) >= 0:
        begun = begun or not is_blank(text[at:newline], form)
        at = newline + 1
        if begun and end_of_records(text[:at], 0, form) == at:
            return at
    return 0


def is_blank(text: bytes, form: Form) -> bool:
    """Whether text holds no record."""
    return not text.strip(b" \t\r\n") and form.delimiter not in text


def column_names(name: str, cells: Sequence[bytes], form: Form) -> tuple[list[str], list[str]]:
    """Make names of the header's cells: empty and repeated ones are changed.

    Returns: the names, and a sentence about each change. Raises: SourceError if they are no names.
    """
    filled = [cell for cell in cells if cell.strip(b" \t") not in form.na]
    if filled and all(map(_is_number, filled)):
        raise SourceError(f"{name}: its first row holds numbers, no names. Pass --no-header.")
    try:
        written = [cell.decode().strip() for cell in cells]
    except UnicodeDecodeError:
        raise SourceError(
            f"{name}: its first row is not UTF-8; the whole file must be. Pass --encoding, as cp1252 or latin-1."
        ) from None
    names: list[str] = []
    notes: list[str] = []
    taken = set(written)
    for number, text in enumerate(written):
        if not text:
            fresh = _free(f"column_{number}", names, taken)
            notes.append(f"column {number} (from 0) of {name} has no name: it is called {fresh!r}.")
        elif text in names:
            fresh = _free(text, names, taken)
            notes.append(
                f"{name} has several columns {text!r}: the one at {number} (from 0) is called {fresh!r}."
            )
        else:
            fresh = text
        names.append(fresh)
    return names, notes


def _free(name: str, names: Sequence[str], taken: set[str]) -> str:
    """The name, or the first of name.1, name.2, ... that no column has."""
    if name not in names and name not in taken:
        return name
    number = 1
    while (fresh := f"{name}.{number}") in names or fresh in taken:
        number += 1
    return fresh
