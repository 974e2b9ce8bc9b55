"""Text of a table to records: by ``native/csv.c`` where it was compiled, by Python where not, with equal results.

A quote opens a cell only at its beginning; inside, a doubled one stands for itself. Lines end in \\n, and any \\r before it belong to
the end. Blank lines, and lines that begin with the comment mark, are passed over. Booleans, dates and times come from it as numbers
of distinct texts, and each text is read once.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer import native
from packer.tables.reading.table_source import TextDialect
from packer.tables.transform.column_types import MISSING_CATEGORY, MISSING_INTEGER, read_cells
from packer.tables.transform.column_types import TEXT as TEXTS
from packer.tables.transform.records import (
    BEYOND_SINGLE_FROM,
    MAX_BAD,
    BadRow,
    CellFault,
    ParsedRows,
    RecordLayout,
)

# What is done with a cell. TRIMMED: as CATEGORY, without the spaces around it.
SKIP, SINGLE, DOUBLE, INTEGER, CATEGORY, TRIMMED, TEXT = range(7)
EXACT = 8  # added to DOUBLE and INTEGER: see RecordMember
# What can be wrong with it, in the order of CellFault, or with the whole record. Those of quotes come before all others.
FINE, NOT_NUMBER, NOT_WHOLE, TOO_LONG, IS_INFINITE, BEYOND_SINGLE = range(6)
LEADING_ZEROS, ROUNDED, NOT_UTF8, AFTER_QUOTE, UNCLOSED, RAGGED = range(6, 12)

Cells = NDArray[np.int32]
"""[width, 2]: what is done with a cell of each column, and where in a record its value lies."""
Fault = tuple[int, int, bytes, int, int]
"""Line, column (-1: none), the cell, what is wrong, how many cells the record has."""
Result = tuple[int, int, int, list[Fault], dict[int, list[str]], bytes]
"""Records, ends of lines, bad records, those that are listed, dictionaries, texts."""

MOST_BYTES = 2**31 - 1
VALUE_CHARACTERS = 80
_FAULTS = tuple(CellFault)
_CELLS_OF = {"<f4": SINGLE, "<f8": DOUBLE, "<i8": INTEGER, "<i4": CATEGORY, TEXTS.str: TEXT}


def parse_records(data: bytes | memoryview, dialect: TextDialect, layout: RecordLayout) -> ParsedRows:
    """Read whole records; the last one may lack the end of its line.

    data: UTF-8, less than 2 GiB, not modified.
    Returns: the records, and what is wrong with others.
    Raises:  ValueError if there is more data.
    """
    nbytes = len(data)
    if nbytes > MOST_BYTES:
        raise ValueError(f"data: {nbytes} bytes; at most {MOST_BYTES}.")
    # A record has an end for each cell, and is not blank; one more may be begun that turns out bad.
    records: NDArray[Any] = np.empty((nbytes + 1) // max(dialect.width, 2) + 1, layout.dtype)
    lines = np.empty(len(records), np.int64)
    cells = _cells(dialect, layout)
    size = layout.dtype.itemsize
    if native.COMPILED:
        result = native.loops.parse_csv(
            data, _bytes(records), size, lines, cells, *dialect.marks, dialect.missing, _powers()
        )
    else:
        result = _parse_plain(bytes(data), _bytes(records), size, lines.data, cells, dialect)
    rows, ends, bad_rows, faults, dictionaries, texts = result
    records.resize(rows, refcheck=False)
    bad = [_bad(fault, dialect.width) for fault in faults]
    parsed = ParsedRows(records, dictionaries, texts, bad, bad_rows, ends, nbytes, lines[:rows].copy())
    _convert(parsed, dialect, layout)
    return parsed


def one_column(dialect: TextDialect) -> TextDialect:
    """Return the dialect in which read_texts reads the cells of another."""
    return replace(dialect, delimiter=b"\x1f", quote=b"", comment=b"", width=1)


def read_texts(
    texts: Sequence[bytes], layout: RecordLayout, dialect: TextDialect
) -> tuple[NDArray[Any], list[BadRow]]:
    """Read texts as cells of a column of numbers, booleans or dates.

    layout: of this column alone, its index is 0; dialect: of one_column.
    Returns: raw values [n], missing ones where a text is bad; all bad texts, `line` being the place.
    """
    (member,) = layout.members
    values = np.full(len(texts), member.missing, member.dtype)
    bad: list[BadRow] = []
    for start in range(0, len(texts), MAX_BAD):
        some = texts[start : start + MAX_BAD]
        # No value holds the end of a line or of a cell.
        lines = b"\n".join(some)
        if lines.count(b"\n") >= len(some):
            lines = b"\n".join(text.replace(b"\n", b"\1") for text in some)
        parsed = parse_records(lines.replace(b"\r", b"\1").replace(b"\x1f", b"\1"), dialect, layout)
        values[start + parsed.lines_of] = parsed.records["c0"]
        bad += [replace(b, line=start + b.line) for b in parsed.bad] if start else parsed.bad
    return values, bad


def end_of_records(data: bytes | memoryview, start: int, dialect: TextDialect) -> int:
    """Return where the last complete record ends; `start`, where one begins, if there is none."""
    if native.COMPILED:
        return native.loops.end_of_csv_records(
            data,
            start,
            *(mark[0] if mark else -1 for mark in (dialect.delimiter, dialect.quote, dialect.comment)),
        )
    return _end_of_records_plain(bytes(data), start, dialect)


def split_records(data: bytes | memoryview, dialect: TextDialect, most: int) -> list[list[bytes]]:
    """Take the first records apart, however many cells they have; quotes are removed, nothing else is looked at."""
    return [record.cells for record in islice(records_of(bytes(data), dialect), most)]


@functools.cache
def _powers() -> NDArray[np.uint64]:
    return np.frombuffer(powers_of_ten(), "<u8").copy()  # aligned


def _bytes(records: NDArray[Any]) -> memoryview:
    return records.view(np.uint8).data if records.dtype.itemsize and len(records) else memoryview(bytearray())


def _cells(dialect: TextDialect, layout: RecordLayout) -> Cells:
    cells = np.zeros((dialect.width, 2), np.int32)
    fields: Mapping[str, Any] = layout.dtype.fields or {}
    for wanted in layout.members:
        kind = TRIMMED if wanted.column.cells.read else _CELLS_OF[wanted.dtype.str]
        kind |= EXACT if wanted.exact and kind in (DOUBLE, INTEGER) else 0
        cells[wanted.index] = kind, fields[wanted.name][1]
    return cells


def _bad(fault: Fault, width: int) -> BadRow:
    line, column, value, reason, cells = fault
    if reason == RAGGED:
        return BadRow(line, None, "", f"has {cells} cells; {width} are expected")
    text = value.decode(errors="replace")[:VALUE_CHARACTERS]
    return BadRow(line, column if column < width else None, text, _FAULTS[reason - 1])


def _convert(parsed: ParsedRows, dialect: TextDialect, layout: RecordLayout) -> None:
    """Put values where numbers of texts are, and take out the records whose texts are none."""
    records = parsed.records
    bad: dict[int, BadRow] = {}  # by record; the first column counts
    for wanted in layout.members:
        if not wanted.column.cells.read:
            continue
        column, texts = wanted.column, parsed.dictionaries.pop(wanted.index)
        marks = dialect.decimal.decode(), dialect.thousands.decode()
        values, valid = read_cells(texts, column.notation or column.type, *marks)
        beyond = np.abs(values) >= BEYOND_SINGLE_FROM if wanted.single else np.zeros(len(texts), np.bool_)
        values[beyond] = np.nan
        codes = _codes(records, wanted.name)
        # Number -1 takes what stands at the end.
        records[wanted.name] = np.append(values, np.nan)[codes]
        for row in np.flatnonzero(~np.append(valid & ~beyond, True)[codes]).tolist():
            value, is_beyond = texts[codes[row]][:VALUE_CHARACTERS], beyond[codes[row]]
            why = CellFault.BEYOND_SINGLE if is_beyond else column.cells.reason
            bad.setdefault(row, BadRow(row, wanted.index, value, why))
    if bad:
        rows = np.zeros(len(records), np.bool_)
        rows[list(bad)] = True
        parsed.leave_out(rows, list(bad.values()))


def _codes(records: NDArray[Any], name: str) -> NDArray[np.int32]:
    """Return the numbers that lie at the beginning of a member."""
    assert records.dtype.fields is not None
    spread: Any = {
        "names": [name],
        "formats": ["<i4"],
        "offsets": [records.dtype.fields[name][1]],
        "itemsize": records.itemsize,
    }
    codes: NDArray[np.int32] = records.view(np.dtype(spread))[name].copy()
    return codes


_SMALLEST, _LARGEST = -342, 308  # below, 19 digits are nearer to 0 than to any double; above, infinite


def significand(q: int) -> int:
    """Return the first 128 bits of 5**q, the first of them set."""
    power: int = 5 ** abs(q)
    if q >= 0:
        excess = power.bit_length() - 128
        return power >> excess if excess > 0 else power << -excess
    bits = (power - 1).bit_length()
    # Where 5**-q has 64 bits or fewer, numbers can lie exactly between two doubles: no bit may be lost twice.
    reciprocal: int = (1 << (bits + 127 if q >= -27 else 2 * bits + 128)) // power + 1
    return reciprocal >> max(0, reciprocal.bit_length() - 128)


def powers_of_ten() -> bytes:
    """Return powers of ten in 128 bits, by which the nearest doubles are found: both halves of each, the upper first, as <u8.

    A table as in D. Lemire, "Number parsing at a gigabyte per second" (2021), section 5: for each q the first 128 bits of 5**q.
    Those of negative q, whose bits never end, are rounded up.
    """
    words = bytearray()
    for q in range(_SMALLEST, _LARGEST + 1):
        upper, lower = divmod(significand(q), 1 << 64)
        words += upper.to_bytes(8, "little") + lower.to_bytes(8, "little")
    return bytes(words)


VALUE_BYTES = 320
_FORMATS = {SINGLE: "<f", DOUBLE: "<d", INTEGER: "<q", CATEGORY: "<i", TRIMMED: "<i", TEXT: "<qi"}
_MISSING = {SINGLE: float("nan"), DOUBLE: float("nan"), INTEGER: MISSING_INTEGER}
_PADDED = re.compile(rb"[+-]?0.+")
_INFINITY = re.compile(rb"[+-]?inf(inity)?", re.IGNORECASE)


class Record(NamedTuple):
    """line: where it begins, from 0; next_line: where the next one does; fault: of quotes, FINE or more."""

    line: int
    next_line: int
    cells: list[bytes]
    fault: int = FINE
    column: int = -1
    value: bytes = b""


def records_of(data: bytes, dialect: TextDialect) -> Iterator[Record]:
    """Take the text apart, without a look at what the cells mean."""
    return (record for _, record in lines_of(data, dialect) if record is not None)


def lines_of(data: bytes, dialect: TextDialect) -> Iterator[tuple[int, Record | None]]:
    """Yield the records, and None for each line that holds none, with the offset behind each."""
    at, line = 0, 0
    while at < len(data):
        stop = data.find(b"\n", at)
        end = len(data) if stop < 0 else stop
        text = data[at:end]
        record: Record | None = None
        if dialect.quote and dialect.quote in text and not is_passed_over(text, dialect):
            at, record = _quoted(data, at, line, dialect)
            line = record.next_line
        else:
            at, first, line = end + 1, line, line + (stop >= 0)
            if not is_passed_over(text, dialect):
                record = Record(first, line, text.rstrip(b"\r").split(dialect.delimiter))
        yield at, record


def is_passed_over(line: bytes, dialect: TextDialect) -> bool:
    """Return True for a line that holds no record: a blank one, or a comment."""
    if dialect.comment and line.startswith(dialect.comment):
        return True
    return not line.strip(b" \t\r") and dialect.delimiter not in line


def _quoted(data: bytes, at: int, line: int, dialect: TextDialect) -> tuple[int, Record]:
    """Take one record apart that has quotes. Returns: where the next one begins, and the record."""
    marks = re.compile(rb"[\n" + re.escape(dialect.delimiter) + rb"]")
    cells: list[bytes] = []
    first, fault, column, value = at, FINE, -1, b""
    while True:
        after, cell = at, None
        if data[at : at + 1] == dialect.quote:
            close = data.find(dialect.quote, at + 1)
            while close >= 0 and data[close + 1 : close + 2] == dialect.quote:
                close = data.find(dialect.quote, close + 2)
            if close < 0:
                if not fault:
                    fault, column, value = UNCLOSED, len(cells), data[at:]
                after = len(data)
            else:
                after = close + 1
            cell = data[at + 1 : after - (close >= 0)].replace(dialect.quote * 2, dialect.quote)
        mark = marks.search(data, after)
        end = mark.start() if mark else len(data)
        last = end == len(data) or data[end : end + 1] == b"\n"
        if cell is None:
            cell = data[at:end].rstrip(b"\r") if last else data[at:end]
        elif data[after:end].strip(b"\r" if last else b"") and not fault:
            fault, column, value = AFTER_QUOTE, len(cells), data[at:end]
        cells.append(cell)
        at = end + 1
        if last:
            break
    lines = data.count(b"\n", first, min(at, len(data)))
    return at, Record(line, line + lines, cells, fault, column, value)


def _parse_plain(
    data: bytes, out: memoryview, size: int, lines: memoryview, cells: Cells, dialect: TextDialect
) -> Result:
    """Read whole records.

    out: bytes, with room for all records of `size` bytes, overwritten; lines: int64, overwritten with each record's line.
    """
    plan = [(column, kind, offset) for column, (kind, offset) in enumerate(cells.tolist()) if kind != SKIP]
    codes: dict[int, dict[bytes, int]] = {
        column: {} for column, kind, _ in plan if kind in (CATEGORY, TRIMMED)
    }
    number = _number_pattern(dialect)
    texts = bytearray()
    rows = bad = 0
    listed: list[Fault] = []
    for record in records_of(data, dialect):
        fault: Fault | None = None
        before = len(texts), [(column, len(known)) for column, known in codes.items()]
        if record.fault:
            fault = (record.line, record.column, record.value, record.fault, len(record.cells))
        elif len(record.cells) != len(cells):
            fault = (record.line, -1, b"", RAGGED, len(record.cells))
        else:
            for column, kind, offset in plan:
                cell = record.cells[column]
                reason, values = _value(cell, kind, dialect, number, codes.get(column, {}), texts)
                if reason:
                    fault = (record.line, column, cell, reason, len(record.cells))
                    break
                struct.pack_into(_FORMATS[kind & ~EXACT], out, rows * size + offset, *values)
        if fault is None:
            lines[rows] = record.line
            rows += 1
            continue
        bad += 1
        if len(listed) < MAX_BAD:
            listed.append((*fault[:2], fault[2][:VALUE_BYTES], *fault[3:]))
        del texts[before[0] :]
        for column, count in before[1]:
            while len(codes[column]) > count:
                codes[column].popitem()
    decoded = {column: [text.decode() for text in known] for column, known in codes.items()}
    return rows, data.count(b"\n"), bad, listed, decoded, bytes(texts)


def _number_pattern(dialect: TextDialect) -> re.Pattern[bytes]:
    whole = rb"\d+" + (rb"(?:" + re.escape(dialect.thousands) + rb"\d+)*" if dialect.thousands else b"")
    point = re.escape(dialect.decimal)
    return re.compile(rb"[+-]?(" + whole + rb"(" + point + rb"\d*)?|" + point + rb"\d+)([eE][+-]?\d+)?")


def _value(
    cell: bytes,
    kind: int,
    dialect: TextDialect,
    number: re.Pattern[bytes],
    codes: dict[bytes, int],
    texts: bytearray,
) -> tuple[int, Sequence[float]]:
    """Read a cell. Returns: what is wrong with it, and what goes into the record."""
    kind, exact = kind & ~EXACT, kind & EXACT
    if kind not in (CATEGORY, TEXT):
        cell = cell.strip(b" \t")
    missing = cell in dialect.na
    if kind == TEXT:
        cell = b"" if missing else cell
        if not _is_utf8(cell):
            return NOT_UTF8, ()
        texts += cell
        return FINE, (len(texts) - len(cell), len(cell))
    if kind in (CATEGORY, TRIMMED):
        if missing:
            return FINE, (MISSING_CATEGORY,)
        if cell not in codes and not _is_utf8(cell):
            return NOT_UTF8, ()
        return FINE, (codes.setdefault(cell, len(codes)),)
    if missing:
        return FINE, (_MISSING[kind],)
    match = number.fullmatch(cell)
    whole = match is not None and match[2] is None and match[3] is None and match[1][:1].isdigit()
    if kind == INTEGER:
        if exact and whole and _PADDED.fullmatch(cell):
            return LEADING_ZEROS, ()
        return _integer(cell.replace(dialect.thousands, b""), whole)
    if not match:
        return IS_INFINITE if _INFINITY.fullmatch(cell) else NOT_NUMBER, ()
    plain = cell.replace(dialect.thousands, b"").replace(dialect.decimal, b".")
    if exact and whole and (len(plain.lstrip(b"+-0")) > 19 or int(float(plain)) != int(plain)):
        return ROUNDED, ()
    value = float(plain)
    if abs(value) == float("inf"):
        return IS_INFINITE, ()
    if kind == SINGLE and abs(value) >= BEYOND_SINGLE_FROM:
        return BEYOND_SINGLE, ()
    return FINE, (value,)


def _integer(cell: bytes, whole: bool) -> tuple[int, Sequence[int]]:
    if not whole:
        return NOT_WHOLE, ()
    if len(cell.lstrip(b"+-0")) > 19 or abs(int(cell)) > -MISSING_INTEGER - 1:
        return TOO_LONG, ()
    return FINE, (int(cell),)


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _end_of_records_plain(data: bytes, start: int, dialect: TextDialect) -> int:
    """Return where the last complete record ends; `start`, where one begins, if there is none."""
    if not dialect.quote or data.find(dialect.quote, start) < 0:
        return max(start, data.rfind(b"\n", start) + 1)
    found = 0
    for end, record in lines_of(data[start:], dialect):
        if (record is None or record.fault != UNCLOSED) and data[start + end - 1 : start + end] == b"\n":
            found = end
    return start + found
