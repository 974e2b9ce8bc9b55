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
from packer.tables.reading.record_parser import (
    Record,
    end_of_records,
    is_passed_over,
    records_of,
)
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
)  # never taken, but named where most lines hold as many
_BY_SUFFIX = {".tsv": b"\t", ".tab": b"\t", ".psv": b"|"}
_RECORDS = 100  # looked at to find the delimiter
_LEAST = 0.5  # of them must have one number of cells
_COMMENTS = b"#%!*"  # marks that lines of comment begin with
_NOTED = 6  # columns named in a note


def first_line_at(name: str, text: bytes, ended: bool, skip_rows: int) -> int:
    """Return the offset behind the lines passed over at a file's beginning. Raises: UsageError."""
    at = 0
    for _ in range(skip_rows):
        at = text.find(b"\n", at) + 1
        if not at:
            lines = text.count(b"\n") + (not text.endswith(b"\n"))
            size = "" if ended else f"first {len(text) >> 10:,} KiB hold "
            raise UsageError(
                f"{name}: {size or 'has '}{units.count(lines, 'line')}, of which {Option('Csv.skip_rows', skip_rows)}"
                " passes over all; a table begins behind them. Pass a smaller number."
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


def _cut(text: bytes, ended: bool, dialect: TextDialect, header: bool) -> _FirstRecords:
    if not ended:
        text = text[: end_of_records(text, 0, dialect)]
    records = list(islice(records_of(text, dialect), _RECORDS))
    widths = [len(record.cells) for record in records]
    ((width, count),) = Counter(w for w in widths if w > 1).most_common(1) or [(1, 0)]
    leading = widths.index(width) if count else 0
    if header and width > 2:
        # Spreadsheets fill lines of a title up with empty cells.
        leading = next((k for k in range(leading, len(records)) if not _is_padded(records[k])), leading)
    clean = sum(len(record.cells) == width and not record.fault for record in records)
    every = max(1, len(records))
    return _FirstRecords(dialect.delimiter, records, width, leading, count / every, clean / every)


def _is_padded(record: Record) -> bool:
    return not any(cell.strip(b" \t") for cell in record.cells[1:])


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
    cuts = [_cut(text, ended, replace(dialect, delimiter=d), reading.header) for d in tried]
    several = [cut for cut in cuts if cut.width > 1 and cut.share >= _LEAST]
    if several:
        best = max(several, key=lambda cut: (not cut.leading, cut.delimiter not in marks, cut.clean))
        if best.leading:
            raise _uneven(name, best, text, reading)
        return best.delimiter
    unfinished = next((cut.delimiter for cut in cuts if not cut.records), None)
    if unfinished:
        return unfinished  # a quote that is not closed, which whoever reads the first row tells
    if reading.delimiter is None:
        # A mark of numbers that the names hold, too, parts them.
        _check_single(name, text, dialect, set() if reading.header else marks)
    return next((cut.delimiter for cut in cuts if cut.width == 1), tried[0])


def _uneven(name: str, cut: _FirstRecords, text: bytes, reading: ReadOptions) -> SourceError:
    """Return the error for records before a table that have another number of cells, or are a title."""
    odd = cut.records[0]
    skip = Option("Csv.skip_rows", reading.skip_rows + cut.records[cut.leading].line)
    ways = f"{skip} if lines of a title come first; a header has a name for each column"
    begin = odd.cells[0].lstrip(b'"')[:1]
    if begin and begin in _COMMENTS and reading.comment is None:
        ways = f"{Option('Csv.comment', begin.decode())} if it begins lines of comment, or {ways}"
    if len(odd.cells) == 1 and reading.delimiter is None:
        ways += f"; or pass {Option('Csv.delimiter', _absent(text))} if it has one column"
    return SourceError(
        f"{name}: its line {reading.skip_rows + odd.line + 1:,} has {units.count(len(odd.cells), 'cell')}, most rows have"
        f" {cut.width:,}, parted by {_shown(cut.delimiter)}; all must have as many. Pass {ways}."
    )


def _check_single(name: str, text: bytes, dialect: TextDialect, passed: set[bytes]) -> None:
    """Raise SourceError for one column whose first line, and most others, hold a mark that may part cells.

    passed: marks that part none.
    """
    some = (line.strip() for line in text.split(b"\n", _RECORDS)[:_RECORDS])
    quote = re.escape(dialect.quote or b"\n")
    quoted = re.compile(quote + b"[^" + quote + b"]*" + quote)
    lines = [quoted.sub(b"", line) for line in some if not is_passed_over(line, dialect)]
    if not lines or (dialect.quote and dialect.quote in lines[0]):
        return  # one that is not closed, which whoever reads the first row tells
    for mark in (*DELIMITERS, *_OTHERS):
        most = sum(mark in line for line in lines) > _LEAST * len(lines)
        if most and mark not in passed and mark in lines[0]:
            one = f"{Option('Csv.delimiter', _absent(text))} if it has one column"
            parted = f"{Option('Csv.delimiter', mark.decode())} if {mark.decode()!r} parts cells"
            ways = f"{parted}, or {one}"
            if any(mark * 2 in line for line in lines):
                ways = f"{one}, or {parted}; replace several in a row by one first"
            raise SourceError(
                f"{name}: no delimiter parts most of its first {_RECORDS} rows into as many cells, and most of them hold"
                f" {_shown(mark)}, which may part cells. Pass {ways}."
            )


def _absent(text: bytes) -> str:
    """Return a mark that is not in a text, or a tab."""
    return next((mark for mark in (";", "|", "\t", "^", "~") if mark.encode() not in text), "\t")


def _shown(mark: bytes) -> str:
    return {b"\t": "tabs", b",": "commas", b";": "semicolons"}.get(mark, repr(mark.decode()))


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
    return [record.cells for record in islice(records_of(text, dialect), most)]


def first_record_end(text: bytes, dialect: TextDialect) -> int:
    """Return the offset behind the first record that is not blank; 0 if no such record ends in the text."""
    record = next(records_of(text, dialect), None)
    return record.end if record is not None and record.end <= len(text) else 0


def column_names(name: str, cells: Sequence[bytes], dialect: TextDialect) -> list[str]:
    """Return the header's cells as texts, without the spaces around them. Raises: SourceError if they are no names."""
    filled = [cell for cell in cells if cell.strip(b" \t") not in dialect.na]
    if filled and all(map(_is_number, filled)):
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
