"""The dialect of a text file, found from its beginning: delimiter, header, names of the columns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import islice, takewhile
from typing import NamedTuple

from packer import units
from packer.errors import SourceError, UsageError
from packer.sentence import Option
from packer.source_kinds import compression
from packer.tables.reading.record_parser import Record, end_of_records, records_of
from packer.tables.reading.table_source import ReadOptions, TextDialect
from packer.tables.transform.column_types import TableColumn

# Where two part all records alike, the earlier one: commas stand in numbers and texts.
DELIMITERS = (b"\t", b";", b"|", b",")
_OTHERS = (
    b" ",
    b":",
    b"^",
    b"~",
    b"&",
    b"\x01",
    b"\x1f",
)  # never taken, but named where they part most lines
_BY_SUFFIX = {".tsv": b"\t", ".tab": b"\t", ".psv": b"|"}
_RECORDS = 100  # looked at to find the delimiter
_LEAST = 0.5  # of them must have one number of cells
_COMMENTS = b"#%!*"  # marks that lines of comment begin with
_NOTED = 6  # columns named in a note
NUMBER = re.compile(rb"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")
_NO_NAME = re.compile(NUMBER.pattern + rb"|[+-]?(?:inf(?:inity)?|nan)", re.IGNORECASE)


def first_line_at(name: str, text: bytes, skip_rows: int) -> int:
    """Return the offset behind the lines passed over at a file's beginning. Raises: UsageError."""
    at = 0
    for _ in range(skip_rows):
        at = text.find(b"\n", at) + 1
        if not at:
            raise UsageError(
                f"{name}: {Option('Csv.skip_rows', skip_rows)} passes over all lines that were"
                " read of it; a table begins behind them. Pass a smaller number."
            )
    return at


class _FirstRecords(NamedTuple):
    """The first records of a text as a delimiter cuts them.

    width: the number of cells of most of those that have several; leading: records before the first one of that width; share: of all
    records that have it; clean: of all, that have it and no text behind a closing quote.
    """

    delimiter: bytes
    records: list[Record]
    width: int
    leading: int
    share: float
    clean: float


def _cut(text: bytes, ended: bool, reading: ReadOptions, delimiter: bytes) -> _FirstRecords:
    records = first_records(text, ended, replace(reading.dialect(), delimiter=delimiter), _RECORDS)
    widths = [len(record.cells) for record in records]
    ((width, count),) = Counter(w for w in widths if w > 1).most_common(1) or [(1, 0)]
    leading = widths.index(width) if count else 0
    if reading.header and width > 2:
        # Spreadsheets fill lines of a title up with empty cells.
        filled = (
            k for k, record in enumerate(records) if any(cell.strip(b" \t") for cell in record.cells[1:])
        )
        leading = next((k for k in filled if k >= leading), leading)
    clean = sum(len(record.cells) == width and not record.fault for record in records)
    every = max(1, len(records))
    return _FirstRecords(delimiter, records, width, leading, count / every, clean / every)


def delimiter_of(name: str, text: bytes, ended: bool, reading: ReadOptions) -> bytes:
    """Find the delimiter of a file: as given, by its suffix, or the one that parts most records into as many cells.

    text: the beginning of the file, behind the lines that are passed over; all of it if `ended`.
    Raises: SourceError if lines before the table have another number of cells; if lines would become one column though they may hold
    several.
    """
    dialect = reading.dialect()
    marks = {dialect.decimal, dialect.thousands}
    bare = name.lower().removesuffix(compression(name))
    tried = [d for s, d in _BY_SUFFIX.items() if bare.endswith(s)]
    tried = tried or [d for d in DELIMITERS if d not in (dialect.quote, dialect.comment)]
    if reading.delimiter is not None:
        tried = [dialect.delimiter]
    elif not dialect.quote or dialect.quote not in text:
        tried = [d for d in tried if d not in marks] or tried  # in quotes marks of numbers part cells
    cuts = [_cut(text, ended, reading, d) for d in tried]
    several = [cut for cut in cuts if cut.width > 1 and cut.share >= _LEAST]
    if several:
        best = max(several, key=lambda cut: (not cut.leading, cut.delimiter not in marks, cut.clean))
        if best.leading:
            raise _unparted(name, best, text, reading)
        return best.delimiter
    unfinished = next((cut.delimiter for cut in cuts if not cut.records), None)
    if unfinished:
        return unfinished  # a quote that is not closed, which whoever reads the first row tells
    if reading.delimiter is None:
        # A mark of numbers that the names hold, too, parts them.
        passed = set() if reading.header else marks
        for mark in (*DELIMITERS, *_OTHERS):
            cut = _cut(text, ended, reading, mark)
            parted = [len(record.cells) > 1 for record in cut.records]
            if (
                mark not in (*passed, dialect.quote)
                and parted[:1] == [True]
                and sum(parted) > _LEAST * len(parted)
            ):
                raise _unparted(name, cut._replace(leading=0), text, reading)
    return next((cut.delimiter for cut in cuts if cut.width == 1), tried[0])


def _unparted(name: str, cut: _FirstRecords, text: bytes, reading: ReadOptions) -> SourceError:
    """Return the error for records that a mark parts into different numbers of cells, first of all those before the table."""
    mark, odd, ways = cut.delimiter, cut.records[0], []
    shown = {b"\t": "tabs", b",": "commas", b";": "semicolons"}.get(mark, repr(mark.decode()))
    if cut.leading:
        begin = odd.cells[0].lstrip(b'"')[:1]
        if begin and begin in _COMMENTS and reading.comment is None:
            ways.append(f"{Option('Csv.comment', begin.decode())} if it begins lines of comment")
        skip = Option("Csv.skip_rows", reading.skip_rows + cut.records[cut.leading].line)
        ways.append(f"{skip} if lines of a title come first; a header has a name for each column")
        found = (
            f"its line {reading.skip_rows + odd.line + 1:,} has {units.count(len(odd.cells), 'cell')}, most rows have"
            f" {cut.width:,}, parted by {shown}; all must have as many"
        )
    else:
        ways.append(f"{Option('Csv.delimiter', mark.decode())} if {mark.decode()!r} parts cells")
        found = (
            f"no delimiter parts most of its first {_RECORDS} rows into as many cells, and most of them hold"
            f" {shown}, which may part cells"
        )
    if reading.delimiter is None and (len(odd.cells) == 1 or not cut.leading):
        absent = next((mark for mark in (";", "|", "\t", "^", "~") if mark.encode() not in text), "\t")
        ways.append(f"{Option('Csv.delimiter', absent)} if it has one column")
    if not cut.leading and mark * 2 in text:
        ways = [ways[1], f"{ways[0]}; replace several in a row by one first"]
    return SourceError(f"{name}: {found}. Pass {', or '.join(ways)}.")


def first_records(text: bytes, ended: bool, dialect: TextDialect, most: int) -> list[Record]:
    """Return the first records of a text, at most `most`; the last one that is not known to be whole is left out unless `ended`."""
    if not ended:
        text = text[: end_of_records(text, 0, dialect)]
    return list(islice(records_of(text, dialect), most))


def column_names(name: str, cells: Sequence[bytes], dialect: TextDialect) -> list[str]:
    """Return the header's cells as texts, without the spaces around them. Raises: SourceError if they are no names."""
    filled = [cell for cell in cells if cell.strip(b" \t") not in dialect.na]
    if filled and all(_NO_NAME.fullmatch(cell.strip()) for cell in filled):
        raise SourceError(
            f"{name}: its first row holds numbers, no names. Pass {Option('Csv.header', False)}."
        )
    try:
        return [cell.decode().strip() for cell in cells]
    except UnicodeDecodeError:
        raise SourceError(
            f"{name}: its first row is not UTF-8; the whole file must be."
            f" Pass {Option('Csv.encoding')}, as cp1252 or latin-1."
        ) from None


def renamed(name: str, given: Sequence[str], columns: Sequence[str], told: Collection[str]) -> list[str]:
    """Return a note on the columns of a file that are called otherwise than it says. told: those that need no note."""
    changed = [repr(c) for c, old in zip(columns, given, strict=True) if c != old and c not in told]
    if not changed:
        return []
    listed = ", ".join(changed[:_NOTED]) + (" and others" if len(changed) > _NOTED else "")
    count = units.count(len(changed), "column")
    return [f"{name}: {count} without a name, or with that of another, called {listed}."]


def index_columns(written: Sequence[str], columns: Sequence[TableColumn]) -> tuple[str, ...]:
    """Return the names of the columns that pandas' to_csv makes of an index: the first one, without a name, and those behind it that
    were once such a one. written: the header's cells.
    """
    named = [text if number else text or "Unnamed: 0" for number, text in enumerate(written)]
    found = takewhile(
        lambda pair: re.fullmatch(r"Unnamed: \d+(\.\d+)*", pair[0]), zip(named, columns, strict=True)
    )
    return tuple(column.name for _, column in found)
