"""The dialect of a text file, found from its beginning: delimiter, header, names of the columns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise

from packer import units
from packer.errors import SourceError, UsageError
from packer.sentence import Option, Part
from packer.source_kinds import compression
from packer.tables.reading.record_parser import (
    UNCLOSED,
    Record,
    end_of_records,
    is_passed_over,
    records_of,
    split_records,
)
from packer.tables.reading.table_source import ReadOptions, TextDialect
from packer.tables.transform.column_types import TableColumn, read_cells

# Where two part all records alike, the earlier one: commas stand in numbers and texts.
DELIMITERS = (b"\t", b";", b"|", b",")
_OTHERS = (b":", b"^", b"~", b"&", b"\x01", b"\x1f")  # never taken, but named where all lines hold as many
_BY_SUFFIX = {".tsv": b"\t", ".tab": b"\t", ".psv": b"|"}
_RECORDS = 100  # looked at to find the delimiter
_LEAST = 0.5  # of them must have as many cells as the first
_COMMENTS = b"#%!*"  # marks that lines of comment begin with
_NOTES = 10  # on names that were changed


def first_line_at(name: str, text: bytes, ended: bool, skip_rows: int) -> int:
    """Return the offset behind the lines passed over at a file's beginning. Raises: UsageError."""
    at = 0
    for _ in range(skip_rows):
        at = text.find(b"\n", at) + 1
        if not at:
            lines = text.count(b"\n") + (not text.endswith(b"\n"))
            size = "" if ended else f"first {len(text) >> 10:,} KiB hold "
            raise UsageError(
                f"{name}: {size or 'has '}{units.count(lines, 'line')}, of which "
                f"{Option('Csv.skip_rows', skip_rows)} passes over all; a table begins behind them. "
                "Pass a smaller number."
            )
    return at


@dataclass(frozen=True)
class _FirstRecords:
    """The first records of a text as a delimiter cuts them.

    width: the number of cells of most of them; leading: records before the first one of that width; share:
    of the records from there on that have it, and no text behind a closing quote; alike: that have it, whatever
    stands behind a quote.
    """

    delimiter: bytes
    records: list[Record]
    width: int
    leading: int
    share: float
    alike: float


def _cut(text: bytes, ended: bool, dialect: TextDialect, header: bool) -> _FirstRecords:
    if not ended:
        text = text[: end_of_records(text, 0, dialect)]
    records = list(islice(records_of(text, dialect), _RECORDS))
    widths = [len(record.cells) for record in records]
    if not records:
        return _FirstRecords(dialect.delimiter, records, 0, 0, 0.0, 0.0)
    counts = Counter(width for width in widths if width > 1) or Counter(widths)
    ((width, _),) = counts.most_common(1)
    count = sum(len(record.cells) == width and not record.fault for record in records)
    leading = widths.index(width)
    share, alike = (n / (len(records) - leading) for n in (count, widths.count(width)))
    if header and width > 2:
        # Spreadsheets fill lines of a title up with empty cells; behind them stand names.
        names = next((k for k in range(leading, len(records)) if not _is_padded(records[k])), leading)
        if names > leading and not any(map(_is_number, records[names].cells)):
            leading = names
    return _FirstRecords(dialect.delimiter, records, width, leading, share, alike)


def _is_padded(record: Record) -> bool:
    return not any(cell.strip(b" \t") for cell in record.cells[1:])


def delimiter_of(name: str, text: bytes, ended: bool, reading: ReadOptions) -> bytes:
    """Find the delimiter of a file: as given, by its suffix, or by which most records are like the first.

    text: the beginning of the file, behind the lines that are passed over; all of it if `ended`.
    Raises: SourceError if no delimiter does; if lines before the table have another number of cells; if its
    lines would become one column though they may hold several.
    """
    dialect = reading.dialect()
    suffixes = [d for s, d in _BY_SUFFIX.items() if name.lower().removesuffix(compression(name)).endswith(s)]
    named = [dialect.delimiter] if reading.delimiter is not None else suffixes
    marks = dialect.decimal, dialect.thousands
    free = [d for d in DELIMITERS if d not in (dialect.quote, dialect.comment)]
    # A mark of numbers parts cells only where nothing else does.
    groups = (named, [d for d in free if d not in marks], [d for d in free if d in marks])
    cuts = [
        [_cut(text, ended, replace(dialect, delimiter=delimiter), reading.header) for delimiter in group]
        for group in (groups[:1] if reading.delimiter is not None else groups)
    ]
    if reading.delimiter is None:
        cuts[2] = [cut for cut in cuts[2] if not _are_numbers(cut, dialect)]
    titled: list[_FirstRecords] = []  # behind records of another width
    faulty: _FirstRecords | None = None
    for group in cuts:
        found = [cut for cut in group if cut.width > 1]
        whole = [cut for cut in found if not cut.leading and cut.share >= _LEAST]
        if whole:
            best = max(whole, key=lambda cut: cut.share)
            if named and best.delimiter not in named:
                raise SourceError(
                    f"{name}: its cells are parted by {_shown(best.delimiter)}, and its name says "
                    f"{_shown(named[0])}. Pass {Option('Csv.delimiter', best.delimiter.decode())}, or "
                    "rename it."
                )
            return best.delimiter
        titled += [cut for cut in found if cut.leading and cut.share > _LEAST]
        faulty = faulty or next((cut for cut in found if not cut.leading and cut.alike >= _LEAST), None)
    if faulty:
        return faulty.delimiter  # whoever reads the rows tells the one with text behind a closing quote
    titles = [cut for cut in titled if all(_is_title(record, cut) for record in cut.records[: cut.leading])]
    if titles or (titled and reading.delimiter is None):
        raise _uneven(name, max(titles or titled, key=lambda cut: cut.share), text, reading)
    if reading.delimiter is not None:
        return dialect.delimiter
    every = [cut for group in cuts for cut in group]
    unfinished = next((cut for cut in every if not cut.records), None)
    if unfinished:
        return unfinished.delimiter  # a quote that is not closed, which whoever reads the first row tells
    single = next((cut for cut in every if cut.width == 1), None)
    if single and all(len(cut.records[0].cells) == 1 for cut in every):
        _check_single(name, single, text, dialect, reading)
        return single.delimiter
    raise SourceError(
        f"{name}: neither comma, semicolon, tab nor | parts most of its first {_RECORDS} rows into as "
        f"many cells as the first. Pass {Option('Csv.delimiter')}, or {Option('Csv.skip_rows')} if "
        "lines of a title come first."
    )


def _are_numbers(cut: _FirstRecords, dialect: TextDialect) -> bool:
    """Tell whether lines that a mark of numbers parts are one number each, as 0,5 or 1,200, or missing."""
    lines = [cut.delimiter.join(record.cells).strip() for record in cut.records[cut.leading :]]
    thousands, decimal = re.escape(dialect.thousands), re.escape(dialect.decimal)
    grouped = rb"\d{1,3}(?:" + thousands + rb"\d{3})+|" if thousands else b""
    number = re.compile(
        rb"[+-]?(?:(?:" + grouped + rb"\d+)(?:" + decimal + rb"\d*)?|" + decimal + rb"\d+)(?:[eE][+-]?\d+)?"
    )
    return bool(lines) and all(line in dialect.na or number.fullmatch(line) for line in lines)


def _is_title(record: Record, cut: _FirstRecords) -> bool:
    """Tell whether a leading record may be a title; one with more cells is the header of short rows."""
    return len(record.cells) < cut.width or _is_padded(record)


def _uneven(name: str, cut: _FirstRecords, text: bytes, reading: ReadOptions) -> SourceError:
    """Return the error for records before a table that have another number of cells."""
    leading = cut.records[: cut.leading]
    odd = next((record for record in leading if len(record.cells) > cut.width), leading[0])
    empty = " and all but one empty" if len(odd.cells) == cut.width else ""
    skip = Option("Csv.skip_rows", reading.skip_rows + cut.records[cut.leading].line)
    ways: list[Part] = [skip, " if lines of a title come first; a header has a name for each column"]
    begin = leading[0].cells[0].lstrip(b'"')[:1]
    if begin and begin in _COMMENTS and reading.comment is None:
        ways = [
            Option("Csv.comment", begin.decode()),
            f" if {_shown(begin)} begins lines of comment, or ",
            *ways,
        ]
    if all(len(record.cells) == 1 for record in leading) and reading.delimiter is None:
        ways += ["; or pass ", Option("Csv.delimiter", _absent(text)), " if it has one column"]
    return SourceError(
        f"{name}: its line {reading.skip_rows + odd.line + 1:,} has {units.count(len(odd.cells), 'cell')}{empty},"
        f" most rows have {cut.width:,}, parted by {_shown(cut.delimiter)}; all must have as many. Pass ",
        *ways,
        ".",
    )


def _check_single(
    name: str, cut: _FirstRecords, text: bytes, dialect: TextDialect, reading: ReadOptions
) -> None:
    """Raise SourceError for one column whose lines mostly hold as many of another mark, which may part cells."""
    some = (line.strip() for line in text.split(b"\n", 2 * _RECORDS)[: 2 * _RECORDS])
    lines = [line for line in some if not is_passed_over(line, dialect)][: len(cut.records)]
    if any(dialect.quote and line.startswith(dialect.quote) for line in lines):
        return  # in quotes a mark is text
    rows = lines[1:] or lines if reading.header else lines
    for mark in (b" ", *_OTHERS):
        counts = Counter(len(line.split()) - 1 if mark == b" " else line.count(mark) for line in rows)
        ((count, alike),) = counts.most_common(1) or [(0, 0)]
        if count and alike > _LEAST * len(rows) and mark != dialect.thousands:
            one: list[Part] = [Option("Csv.delimiter", _absent(text)), " if it has one column"]
            several: list[Part] = [Option("Csv.delimiter", mark.decode()), f" if {_shown(mark)} parts cells"]
            # Runs of marks alone part cells as one mark does; each mark would make an empty column.
            single = [mark in re.sub(re.escape(mark) + b"{2,}", b"", line) for line in lines]
            if any(mark * 2 in line for line in lines) and (mark == b" " or not any(single)):
                several = [
                    f"replace several {_shown(mark)} between cells by one first: a delimiter has one character"
                ]
            ways = [several, one]
            if len(several) == 1 or mark not in lines[0] or _are_times(rows):
                ways = [one, several]
            raise SourceError(
                f"{name}: most of its lines hold as many {_shown(mark)} each, which may part cells. Pass ",
                *ways[0],
                ", or ",
                *ways[1],
                ".",
            )


def _are_times(lines: Sequence[bytes]) -> bool:
    """Tell whether most lines are times of day, or timestamps."""
    texts = [line.decode(errors="replace") for line in lines]
    return any(read_cells(texts, kind)[1].mean() > _LEAST for kind in ("time", "timestamp"))


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
    return split_records(text, dialect, most)


def first_record_end(text: bytes, dialect: TextDialect) -> int:
    """Return the offset behind the first record that is not blank; 0 if no such record ends in the text."""
    record = next(records_of(text[: text.rfind(b"\n") + 1], dialect), None)
    if record is None or record.fault == UNCLOSED:
        return 0
    at = 0
    for _ in range(record.next_line):
        at = text.find(b"\n", at) + 1
    return at


def column_names(name: str, cells: Sequence[bytes], dialect: TextDialect) -> tuple[list[str], list[str]]:
    """Make names of the header's cells: empty and repeated ones are changed.

    Returns: the names, and a sentence about each change. Raises: SourceError if they are no names.
    """
    filled = [cell for cell in cells if cell.strip(b" \t") not in dialect.na]
    if filled and all(map(_is_number, filled)):
        raise SourceError(
            f"{name}: its first row holds numbers, no names. Pass {Option('Csv.header', False)}."
        )
    try:
        written = [cell.decode().strip() for cell in cells]
    except UnicodeDecodeError:
        raise SourceError(
            f"{name}: its first row is not UTF-8; the whole file must be. Pass "
            f"{Option('Csv.encoding')}, as cp1252 or latin-1."
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
