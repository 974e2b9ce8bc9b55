"""Text of a table to records, in Python alone: what ``native/csv.c`` does, with the same results, where that was not compiled.

A quote opens a cell only at its beginning; inside, a doubled one stands for itself. Blank lines are passed over.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer.tables.reading.table_source import TextDialect
from packer.tables.transform.records import MAX_BAD, MISSING_CATEGORY, MISSING_INTEGER

# What is done with a cell. TRIMMED: as CATEGORY, without the spaces around it.
SKIP, SINGLE, DOUBLE, INTEGER, CATEGORY, TRIMMED, TEXT = range(7)
# What can be wrong with it, or with the whole record. Those of quotes come before all others.
FINE, NOT_NUMBER, NOT_WHOLE, TOO_LONG, IS_INFINITE, BEYOND_SINGLE, NOT_UTF8, AFTER_QUOTE, UNCLOSED, RAGGED = (
    range(10)
)

Cells = NDArray[np.int32]
"""[width, 2]: what is done with a cell of each column, and where in a record its value lies."""
Fault = tuple[int, int, bytes, int, int]
"""Line, column (-1: none), the cell, what is wrong, how many cells the record has."""
Result = tuple[int, int, int, list[Fault], dict[int, list[str]], bytes]
"""Records, ends of lines, bad records, those that are listed, dictionaries, texts."""

VALUE_BYTES = 320
_FORMATS = {SINGLE: "<f", DOUBLE: "<d", INTEGER: "<q", CATEGORY: "<i", TRIMMED: "<i", TEXT: "<qi"}
_MISSING = {SINGLE: float("nan"), DOUBLE: float("nan"), INTEGER: MISSING_INTEGER}
BEYOND_SINGLE_FROM = float.fromhex("0x1.ffffffp127")  # from here on the nearest float32 is infinite
_INFINITY = re.compile(rb"[+-]?inf(inity)?", re.IGNORECASE)


@dataclass(frozen=True)
class Record:
    """line: where it begins, from 0; next_line: where the next one does; fault: of quotes, FINE or more."""

    line: int
    next_line: int
    cells: list[bytes]
    fault: int = FINE
    column: int = -1
    value: bytes = b""


def records_of(data: bytes, dialect: TextDialect) -> Iterator[Record]:
    """Take the text apart, without a look at what the cells mean."""
    at, line = 0, 0
    while at < len(data):
        stop = data.find(b"\n", at)
        end = len(data) if stop < 0 else stop
        text = data[at:end]
        if not text.strip(b" \t\r") and dialect.delimiter not in text:
            line += stop >= 0
            at = end + 1
        elif dialect.quote and dialect.quote in text:
            at, record = _quoted(data, at, line, dialect)
            line = record.next_line
            yield record
        else:
            at = end + 1
            yield Record(line, line + (stop >= 0), text.removesuffix(b"\r").split(dialect.delimiter))
            line += stop >= 0


def cells_of(data: bytes, dialect: TextDialect) -> Iterator[list[bytes]]:
    """Yield the cells of each record, as records_of does: the beginning of a file takes a quarter of the time."""
    at = 0
    while at < len(data):
        stop = data.find(b"\n", at)
        text = data[at : stop if stop >= 0 else len(data)]
        if dialect.quote and dialect.quote in text and (dialect.delimiter in text or text.strip(b" \t\r")):
            at, record = _quoted(data, at, 0, dialect)
            yield record.cells
            continue
        at += len(text) + 1
        if dialect.delimiter in text or text.strip(b" \t\r"):
            yield text.removesuffix(b"\r").split(dialect.delimiter)


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
            cell = data[at:end].removesuffix(b"\r") if last else data[at:end]
        elif after != end and not (last and data[after:end] == b"\r") and not fault:
            fault, column, value = AFTER_QUOTE, len(cells), data[at:end]
        cells.append(cell)
        at = end + 1
        if last:
            break
    lines = data.count(b"\n", first, min(at, len(data)))
    return at, Record(line, line + lines, cells, fault, column, value)


def parse(
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
                struct.pack_into(_FORMATS[kind], out, rows * size + offset, *values)
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
    if kind == INTEGER:
        return _integer(cell.replace(dialect.thousands, b""), match)
    if not match:
        return IS_INFINITE if _INFINITY.fullmatch(cell) else NOT_NUMBER, ()
    value = float(cell.replace(dialect.thousands, b"").replace(dialect.decimal, b"."))
    if abs(value) == float("inf"):
        return IS_INFINITE, ()
    if kind == SINGLE and abs(value) >= BEYOND_SINGLE_FROM:
        return BEYOND_SINGLE, ()
    return FINE, (value,)


def _integer(cell: bytes, match: re.Match[bytes] | None) -> tuple[int, Sequence[int]]:
    if not match or match[2] is not None or match[3] is not None or not match[1][:1].isdigit():
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


def end_of_records(data: bytes, start: int, dialect: TextDialect) -> int:
    """Return where the last complete record ends; `start`, where one begins, if there is none."""
    if not dialect.quote or data.find(dialect.quote, start) < 0:
        return max(start, data.rfind(b"\n", start) + 1)
    pattern = b"(?:^|(?<=[\\n" + re.escape(dialect.delimiter) + b"]))" + re.escape(dialect.quote)
    opening = re.compile(pattern)
    text, at, found = data[start:], 0, 0
    while True:
        quote = opening.search(text, at)
        line = text.rfind(b"\n", at, quote.start() if quote else len(text))
        found = line + 1 if line >= 0 else found
        if not quote:
            return start + found
        close = text.find(dialect.quote, quote.end())
        while close >= 0 and text[close + 1 : close + 2] == dialect.quote:
            close = text.find(dialect.quote, close + 2)
        if close < 0:
            return start + found
        at = close + 1
