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
    Record,
    end_of_records,
    is_passed_over,
    records_of,
    split_records,
)
from packer.tables.reading.table_source import ReadOptions, TextDialect
from packer.tables.transform.column_types import TYPES, TableColumn, read_cells

# Where two part all records alike, the earlier one: commas stand in numbers and texts.
DELIMITERS = (b"\t", b";", b"|", b",")
_OTHERS = (b":", b"^", b"~", b"&", b"\x01", b"\x1f")  # never taken, but named where all lines hold as many
_BY_SUFFIX = {".tsv": b"\t", ".tab": b"\t", ".psv": b"|"}
_RECORDS = 100  # looked at to find the delimiter
_LEAST = 0.5  # of them must have as many cells as the first
_FEW = 10  # lines, whose texts may have as many words by chance
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
                f"{name}: {size or 'has '}{units.count(lines, 'line')}, of which ",
                Option("Csv.skip_rows", skip_rows),
                " passes over all; a table begins behind them. Pass a smaller number.",
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
                ways: list[Part] = [Option("Csv.delimiter", best.delimiter.decode())]
                if cuts[0][0].width == 1:
                    ways += [", or ", Option("Csv.delimiter", named[0].decode()), " if it has one column"]
                raise SourceError(
                    f"{name}: its cells are parted by {_shown(best.delimiter)}, and its name says"
                    f" {_shown(named[0])}. Pass ",
                    *ways,
                    ".",
                )
            return best.delimiter
        titled += [cut for cut in found if cut.leading and cut.share > _LEAST]
        faulty = faulty or next((cut for cut in found if not cut.leading and cut.alike >= _LEAST), None)
    if faulty:
        return faulty.delimiter  # whoever reads the rows tells the one with text behind a closing quote
    if any(map(_is_title, titled)):
        best = max(filter(_is_title, titled), key=lambda cut: cut.share)
        raise _title(name, best, text, reading)
    if reading.delimiter is not None:
        return dialect.delimiter
    every = [cut for group in cuts for cut in group]
    unfinished = next((cut for cut in every if not cut.records), None)
    if unfinished:
        return unfinished.delimiter  # a quote that is not closed, which whoever reads the first row tells
    single = next((cut for cut in every if cut.width == 1), None)
    if titled:
        best = max(titled, key=lambda cut: cut.share)
        wide = next(record for record in best.records if len(record.cells) > best.width)
        raise SourceError(
            f"{name}: most of its rows have {best.width:,} cells, parted by {_shown(best.delimiter)}, and its line"
            f" {reading.skip_rows + wide.line + 1:,} {len(wide.cells):,}; all must have as many. Mend it, or pass ",
            Option("Csv.skip_rows"),
            " if lines of a title come first, or ",
            Option("Csv.delimiter"),
            ".",
        )
    if single and all(len(cut.records[0].cells) == 1 for cut in every):
        _check_single(name, single, text, dialect, reading)
        return single.delimiter
    raise SourceError(
        f"{name}: neither comma, semicolon, tab nor | parts most of its first {_RECORDS} rows into"
        " as many cells as the first. Pass ",
        Option("Csv.delimiter"),
        ", or ",
        Option("Csv.skip_rows"),
        " if lines of a title come first.",
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


def _is_title(cut: _FirstRecords) -> bool:
    """Tell whether the leading records may be a title; one with more cells is the header of short rows."""
    return all(len(record.cells) < cut.width or _is_padded(record) for record in cut.records[: cut.leading])


def _title(name: str, cut: _FirstRecords, text: bytes, reading: ReadOptions) -> SourceError:
    """Return the error for records before a table that have another number of cells."""
    leading, names = cut.records[: cut.leading], cut.records[cut.leading]
    widths = sorted({len(record.cells) for record in leading})
    lines = reading.skip_rows + names.line
    has = f"first row has {units.count(widths[0], 'cell')}"
    if cut.leading > 1:
        has = f"first {cut.leading:,} rows have {widths[0]:,}{f' to {widths[-1]:,}' if widths[1:] else ''}"
        has += " cell" if widths == [1] else " cells"
    if widths == [cut.width]:
        has += " and all but one empty"
    them = "it" if cut.leading == 1 else "them"
    parted = f"those behind {them} {cut.width:,}, parted by {_shown(cut.delimiter)}"
    found = f"{name}: its {has}, {parted}; all must have as many. "
    one_column: list[Part] = []
    alone = widths == [1] and reading.delimiter is None
    if alone and (option := _option_of_numbers(cut, reading)):
        unnamed: list[Part] = [" and ", Option("Csv.header", False), " to read it without names"]
        return SourceError(
            found + "Pass ",
            option,
            f" if it has one column of numbers as {cut.delimiter.join(names.cells).decode().strip()}; else ",
            Option("Csv.skip_rows", lines),
            *(unnamed if reading.header else []),
            ".",
        )
    if alone:
        one_column = [", or ", Option("Csv.delimiter", _absent(text)), " if it has one column"]
    if reading.header and widths == [cut.width - 1] and any(map(_is_number, names.cells)):
        return SourceError(
            found + "Give each column a name there, or pass ",
            Option("Csv.skip_rows", lines),
            " and ",
            Option("Csv.header", False),
            " to read it without names",
            *one_column,
            ".",
        )
    begins = {record.cells[0].lstrip(b'"')[:1] for record in leading}
    ways: list[Part] = [
        Option("Csv.skip_rows", lines),
        f" if {'it is a title' if cut.leading == 1 else 'they are titles'}",
    ]
    if len(begins) == 1 and (mark := begins.pop()) and mark in _COMMENTS and reading.comment is None:
        ways = [
            Option("Csv.comment", mark.decode()),
            f" if {_shown(mark)} begins lines of comment, or ",
            *ways,
        ]
    return SourceError(found + "Pass ", *ways, *one_column, ".")


def _option_of_numbers(cut: _FirstRecords, reading: ReadOptions) -> Option | None:
    """Return the option for lines that may be one number each, with a comma, as 0,5 or 1,200; None if they are not."""
    leading = cut.records[int(reading.header) : cut.leading]
    if cut.delimiter != b"," or cut.width != 2 or reading.decimal != "." or reading.thousands:
        return None
    if not all(_is_number(record.cells[0]) for record in leading):
        return None  # lines of a title
    lines = [b",".join(record.cells) for record in cut.records[cut.leading :] if len(record.cells) == 2]
    if all(re.fullmatch(rb" *[+-]?\d{1,3},\d{3}(\.\d*)? *", line) for line in lines):
        return Option("Csv.thousands", ",")
    if all(re.fullmatch(rb" *[+-]?(\d+|\d{1,3}(\.\d{3})+),\d+ *", line) for line in lines):
        return Option("Csv.decimal", ",")
    return None


def _check_single(
    name: str, cut: _FirstRecords, text: bytes, dialect: TextDialect, reading: ReadOptions
) -> None:
    """Raise SourceError for a table of one column if its lines may hold several, or if its name may be a comment."""
    some = (line.strip(b"\r") for line in text.split(b"\n", 2 * _RECORDS)[: 2 * _RECORDS])
    lines = [line for line in some if not is_passed_over(line, dialect)][: len(cut.records)]
    quoted = any(dialect.quote and line.startswith(dialect.quote) for line in lines)
    if not lines or (quoted and not any(record.fault for record in cut.records)):
        return  # in quotes a mark is text
    absent = _absent(text)
    one_column: tuple[Part, ...] = (", or ", Option("Csv.delimiter", absent), " if it has one column.")
    rows = lines[1:] or lines if reading.header else lines
    if dialect.thousands != b" " and _is_spaced(lines, rows):
        found = (
            f"{name}: its cells are parted by spaces; a comma, a semicolon, a tab or | is found by itself. "
        )
        if all(line == b" ".join(line.split()) for line in lines):
            raise SourceError(found + "Pass ", Option("Csv.delimiter", " "), *one_column)
        raise SourceError(
            found + f"Convert it, as by: awk '{{$1=$1}} 1' OFS='{absent}'; or pass ", *one_column[1:]
        )
    for mark in _OTHERS:
        counts = {line.count(mark) - (line.count(b"://") if mark == b":" else 0) for line in lines}
        if len(counts) > 1 or not counts.pop() or _is_typed(rows):
            continue
        if all(2 * line.count(2 * mark) == line.count(mark) for line in lines):
            raise SourceError(
                f"{name}: its cells are parted by {_shown(2 * mark)}; one character parts them. Convert it, as by: "
                f"sed 's/{(2 * mark).decode()}/{absent}/g'; or pass ",
                *one_column[1:],
            )
        raise SourceError(
            f"{name}: its lines hold as many {_shown(mark)} each, which may part cells. Pass ",
            Option("Csv.delimiter", mark.decode()),
            *one_column,
        )
    begin = lines[0][:1]
    alike = sum(line[:1] == begin for line in lines[1:]) > _LEAST * len(lines[1:])  # #tags, colors
    if reading.header and begin in (b"#", b"%") and not alike:
        raise SourceError(
            f"{name}: its first row, {lines[0][:80].decode(errors='replace')!r}, may be a comment; else it is the"
            " name of a column. Pass ",
            Option("Csv.comment", begin.decode()),
            *one_column,
        )


def _is_spaced(lines: Sequence[bytes], rows: Sequence[bytes]) -> bool:
    """Tell whether words of lines are cells.

    They are if most lines are numbers, or have numbers at two places; and if all lines have as many words, one of
    them a number, or more than two of more than a few lines: a few names of cities have two words each by chance.
    """
    words = [line.split() for line in lines]
    numbers = sum(len(line) > 1 and all(map(_is_number, line)) for line in words)
    if numbers > _LEAST * len(rows):
        return True
    ((width, count),) = Counter(map(len, words)).most_common(1)
    if width == 1 or count <= _LEAST * len(lines) or _is_typed(rows):
        return False
    places = zip(*(line for line in words[-len(rows) :] if len(line) == width), strict=True)
    numbers = sum(all(map(_is_number, place)) for place in places)
    many = width > 2 and count > _FEW
    return numbers > 1 or (count == len(lines) > 2 and (bool(numbers) or many))


def _is_typed(rows: Sequence[bytes]) -> bool:
    """Tell whether all rows are dates, times or timestamps, in which marks and spaces stand."""
    texts = [row.decode(errors="replace").strip() for row in rows]
    return any(bool(read_cells(texts, kind)[1].all()) for kind, entry in TYPES.items() if entry.read)


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
    at = 0
    while (newline := text.find(b"\n", at)) >= 0 and is_passed_over(text[at:newline], dialect):
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


def column_names(name: str, cells: Sequence[bytes], dialect: TextDialect) -> tuple[list[str], list[str]]:
    """Make names of the header's cells: empty and repeated ones are changed.

    Returns: the names, and a sentence about each change. Raises: SourceError if they are no names.
    """
    filled = [cell for cell in cells if cell.strip(b" \t") not in dialect.na]
    if filled and all(map(_is_number, filled)):
        raise SourceError(
            f"{name}: its first row holds numbers, no names. Pass ", Option("Csv.header", False), "."
        )
    try:
        written = [cell.decode().strip() for cell in cells]
    except UnicodeDecodeError:
        raise SourceError(
            f"{name}: its first row is not UTF-8; the whole file must be. Pass ",
            Option("Csv.encoding"),
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
