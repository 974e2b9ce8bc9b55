"""The dialect of a text file, detected from its beginning: delimiter, header, column names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from typing import Any, NamedTuple

from packer import units
from packer.errors import SourceError, UsageError
from packer.source_kinds import compression
from packer.tables.reading.record_parser import Record, end_of_records, records_of
from packer.tables.reading.table_source import ReadOptions, TextDialect
from packer.tables.transform.column_types import TableColumn, shown_columns

# If two delimiters split all records equally well, the first wins: commas occur in numbers and texts.
DELIMITERS = (b"\t", b";", b"|", b",")
_OTHERS = (b" ", b":", b"^", b"~", b"&", b"\x01", b"\x1f")  # never chosen, but named if they split most lines
_RARE = (b"^", b"~", b"&", b"\x01", b"\x1f")  # in most lines, they separate cells, below a title, too
_BY_SUFFIX = {".tsv": b"\t", ".tab": b"\t", ".psv": b"|"}
_RECORDS = 100  # records examined to detect the delimiter
_FEW = 2  # columns
_LEAST = 0.5  # share of them that must have the same number of cells
COMMENTS = b"#%!*"  # common comment marks
NUMBER = re.compile(rb"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")
NO_NAME = re.compile(NUMBER.pattern + rb"|[+-]?(?:inf(?:inity)?|nan)", re.IGNORECASE)


def first_line_at(name: str, text: bytes, skip_rows: int) -> int:
    """Return the offset of the first line after `skip_rows` lines. Raises UsageError."""
    at = 0
    for _ in range(skip_rows):
        at = text.find(b"\n", at) + 1
        if not at:
            raise UsageError(
                f"{name}: csv=Csv(skip_rows={skip_rows!r}) skips all lines that were"
                " read from it; a table must follow them. Pass a smaller number."
            )
    return at


_PLACES = 5  # first cells 0, 1, 2 ... of fewer columns may be a row
Candidate = tuple[Mapping[str, Any], str]
"""Changes of reading options (member -> value), and when to make them, "" for always."""


@dataclass(eq=False)
class Undecided(Exception):
    """A file that the given options do not explain.

    problem: what was seen; candidates: changes that may explain it; otherwise: a further remedy, which needs
    no trial, "" for none.
    """

    problem: str
    candidates: Sequence[Candidate]
    otherwise: str = ""


def endless(place: int, delimiter: bytes) -> Undecided:
    """Return the problem of a record without an end. place: where it begins in the file's text."""
    return Undecided(
        f"the record at byte {place:,} of its text does not end, or is too long; a quote may be unclosed",
        [
            ({"quote": ""}, "if quotes are part of the texts"),
            ({"delimiter": delimiter.decode(), "escape": "\\"}, "if it stands before quotes"),
        ],
    )


class _FirstRecords(NamedTuple):
    """The first records of a text, split by a delimiter.

    width: most frequent number of cells, among records with several; leading: number of records before the
    first with this width; share: share of the records with this width; clean: share with this width and no
    text after a closing quote.
    """

    delimiter: bytes
    records: list[Record]
    width: int
    leading: int
    share: float
    clean: float


def _filled(cells: Sequence[bytes]) -> int:
    """Return the number of cells with a text."""
    return sum(bool(cell.strip(b" \t")) for cell in cells)


def _cut(text: bytes, ended: bool, reading: ReadOptions, delimiter: bytes) -> _FirstRecords:
    records = first_records(text, ended, replace(reading.dialect(), delimiter=delimiter), _RECORDS)
    widths = [len(record.cells) for record in records]
    ((width, count),) = Counter(w for w in widths if w > 1).most_common(1) or [(1, 0)]
    leading = widths.index(width) if count else 0
    if reading.header and width > 1:
        # Spreadsheets pad title lines with empty cells.
        filled = (k for k, record in enumerate(records) if _filled(record.cells[1:]))
        leading = next((k for k in filled if k >= leading), leading)
    clean = sum(len(record.cells) == width and not record.fault for record in records)
    every = max(1, len(records))
    return _FirstRecords(delimiter, records, width, leading, count / every, clean / every)


def delimiter_of(name: str, text: bytes, ended: bool, reading: ReadOptions) -> bytes:
    """Return the delimiter of a file: as given, by its suffix, or the one that splits records most evenly.

    text: the beginning of the file after skipped lines; all of it if `ended`.
    Raises Undecided if lines before the table have another number of cells, or if lines with a single column
    may hold several.
    """
    dialect = reading.dialect()
    marks = {dialect.decimal, dialect.thousands}
    bare = name.lower().removesuffix(compression(name))
    tried = [d for s, d in _BY_SUFFIX.items() if bare.endswith(s)]
    tried = tried or [d for d in DELIMITERS if d not in (dialect.quote, dialect.comment)]
    if reading.delimiter is not None:
        tried = [dialect.delimiter]
    elif not dialect.quote or dialect.quote not in text:
        tried = [d for d in tried if d not in marks] or tried  # quoted numbers may hold delimiters
    cuts = [_cut(text, ended, reading, d) for d in tried]
    several = [cut for cut in cuts if cut.width > 1 and cut.share >= _LEAST]
    if several:
        best = max(several, key=lambda cut: (not cut.leading, cut.delimiter not in marks, cut.clean))
        if best.leading and not (best.leading == 1 and reading.header and _is_header(best.records)):
            raise _unparted(best, text, reading)
        return best.delimiter
    if unfinished := [cut.delimiter for cut in cuts if not cut.records]:
        return unfinished[0]  # an unclosed quote, which the reader of the first row reports
    if reading.delimiter is None:
        # A number mark that also occurs in the names is a delimiter.
        passed = set() if reading.header else marks
        for mark in (*DELIMITERS, *_OTHERS):
            cut = _cut(text, ended, reading, mark)
            parted = [len(record.cells) > 1 for record in cut.records]
            if (
                mark not in (*passed, dialect.quote)
                and (parted[:1] == [True] or mark in _RARE)
                and sum(parted) > _LEAST * len(parted)
            ):
                raise _unparted(cut._replace(leading=0), text, reading)
    return next((cut.delimiter for cut in cuts if cut.width == 1), tried[0])


def _is_header(records: Sequence[Record]) -> bool:
    """Return True for a first line that names the rows' columns: one name less, or empty cells after."""
    first = records[0].cells
    names = fitted_names(first, [record.cells for record in records[1:]])
    return names is not None and all(names[len(names) > len(first) :])


def fitted_names(header: Sequence[bytes], rows: Sequence[Sequence[bytes]]) -> list[bytes] | None:
    """Return the header's cells, one for each column of the rows; None if the rows do not fit them.

    Columns at the end of all rows without a name and a value are left out. Row names of R have no name.
    """
    names, width = [cell.strip() for cell in header], len(rows[0]) if rows else 0
    if not width or any(len(row) != width for row in rows):
        return None
    kept = width
    while (
        kept > 1 and not any(names[kept - 1 : kept]) and not any(row[kept - 1].strip(b" \t") for row in rows)
    ):
        kept -= 1
    if kept == width == len(names) + 1 and _have_row_names(header, rows):
        return [b"", *names]
    return None if kept > len(names) or any(names[kept:]) else names[:kept]


def _have_row_names(header: Sequence[bytes], rows: Sequence[Sequence[bytes]]) -> bool:
    """Return True for rows that begin with R's row names: different texts, or, of several columns, 1 to N.

    Parts of quoted texts, or of texts such as "Doe, John", are no cells.
    """
    spaced = not any(cell[:1] == b" " for cell in header)
    if any(_is_part(cell) or (spaced and cell[:1] == b" ") for row in rows for cell in row):
        return False
    cells = [row[0] for row in rows]
    parts = (mark in header[0] and all(mark in cell for cell in cells) for mark in (*DELIMITERS, *_OTHERS))
    if len(header) == 1 and any(parts):
        return False
    numbers = [cell for cell in cells if NUMBER.fullmatch(cell.strip())]
    counted = len(rows[0]) > _FEW and cells == [b"%d" % number for number in range(1, len(cells) + 1)]
    return counted or (not numbers and len(set(cells)) == len(cells))


def _is_part(cell: bytes) -> bool:
    """Return True for a cell that either begins or ends with a quote."""
    return cell.endswith((b'"', b"'")) != cell.lstrip(b" ").startswith((b'"', b"'"))


def _unparted(cut: _FirstRecords, text: bytes, reading: ReadOptions) -> Undecided:
    """Return the error for records that a mark splits unevenly, or for lines before the table."""
    mark, odd = cut.delimiter, cut.records[0]
    shown = {b"\t": "tabs", b",": "commas", b";": "semicolons"}.get(mark, repr(mark.decode()))
    ways: list[Candidate] = []
    if cut.leading:
        begin = odd.cells[0].lstrip(b'"')[:1]
        if begin and begin in COMMENTS and reading.comment is None:
            ways.append(({"comment": begin.decode()}, "if it begins comment lines"))
        if b"'" in text:
            ways.append(({"quote": "'"}, "if it quotes cells"))
        if b'\\"' in text:
            ways.append(({"delimiter": mark.decode(), "escape": "\\"}, "if it stands before quotes"))
        above = {"skip_rows": reading.skip_rows + cut.records[cut.leading].line}
        filled = _filled(odd.cells)
        if cut.leading > 1 or filled == 1 or filled != cut.width - 1:  # else it may be a header
            ways.append((above, "for titles above it"))
        last = cut.records[cut.leading - 1].cells
        counts = any(NUMBER.fullmatch(cell.strip()) for cell in odd.cells)
        if counts or (cut.leading > 1 and _filled(last) == 1):  # no names
            ways.append(({**above, "header": False}, "for other lines above rows"))
        problem = (
            f"its line {reading.skip_rows + odd.line + 1:,} has {units.count(filled, 'cell')} with text, most"
            f" rows have {cut.width:,} cells, separated by {shown}; all must have the same number"
        )
    else:
        separate = f"if {mark.decode()!r} separates cells"
        ways += [({"delimiter": mark.decode(), **other}, separate) for other in ({}, {"header": False})]
        problem = (
            f"no delimiter splits most of its first {_RECORDS} rows into the same number of cells, and most"
            f" of them hold {shown}{', some repeated' if mark * 2 in text else ''}, which may separate cells"
        )
    absent = next((mark for mark in (";", "|", "\t", "^", "~") if mark.encode() not in text), "\t")
    if reading.delimiter is None and (len(odd.cells) == 1 or not cut.leading):
        marks: tuple[dict[str, str], ...] = ({}, {"decimal": ","}, {"thousands": ","})
        ways += [({"delimiter": absent, **other}, "if it has one column") for other in marks]
    return Undecided(problem, ways)


def first_records(text: bytes, ended: bool, dialect: TextDialect, most: int) -> list[Record]:
    """Return the first records of a text, at most `most`; without the last one if it may be incomplete."""
    if not ended:
        text = text[: end_of_records(text, 0, dialect)]
    return list(islice(records_of(text, dialect), most))


def column_names(name: str, cells: Sequence[bytes]) -> list[str]:
    """Return the header's cells as stripped texts. Raises SourceError unless they are UTF-8."""
    try:
        return [cell.decode().strip() for cell in cells]
    except UnicodeDecodeError:
        raise SourceError(
            f"{name}: its first row is not UTF-8; the file must be UTF-8."
            " Pass csv=Csv(encoding=), such as cp1252 or latin-1."
        ) from None


def are_places(names: Sequence[str]) -> bool:
    """Return True for the names 0, 1, 2 ... that pandas gives to columns: after a blank one, or many."""
    places = [str(place) for place in range(len(names))]
    return (
        [*names] == ["", *places[:-1]] if len(names) < _PLACES else [*names] in (places, ["", *places[:-1]])
    )


def renamed(name: str, given: Sequence[str], columns: Sequence[str], expected: Collection[str]) -> list[str]:
    """Return a note on the renamed columns of a file, [] for none. expected: new names that need no note."""
    changed = [repr(c) for c, old in zip(columns, given, strict=True) if c != old and c not in expected]
    note = f"{name}: columns without a name, or with a repeated one, renamed: {shown_columns(changed)}."
    return [note] if changed else []


def index_columns(written: Sequence[str], columns: Sequence[TableColumn]) -> tuple[str, ...]:
    """Return the names of the columns that pandas' to_csv writes for an index.

    These are the first column if it has no name, and the columns after it that the header names "Unnamed: N":
    each was an index in an earlier file. written: the header's cells.
    """
    named = [text if number else text or "Unnamed: 0" for number, text in enumerate(written)]
    indexes = takewhile(
        lambda pair: re.fullmatch(r"Unnamed: \d+(\.\d+)*", pair[0]), zip(named, columns, strict=True)
    )
    return tuple(column.name for _, column in indexes)
