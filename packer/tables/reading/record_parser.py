"""Text of a table to records: by ``native/csv.c`` if compiled, otherwise by Python, with equal results.

A quote opens a cell only at the cell's beginning; inside, a doubled quote stands for a single one. Lines end
in \\n; any \\r before it belongs to the line end. Blank lines, and lines that begin with the comment mark,
are skipped. The parser returns booleans, dates and times as codes of distinct texts, and each text is then
converted once.
"""

from __future__ import annotations

import functools
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf, nan
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from packer import native
from packer.tables.reading.table_source import TextDialect
from packer.tables.transform.column_types import MISSING_CATEGORY, MISSING_INTEGER
from packer.tables.transform.column_types import TEXT as TEXTS
from packer.tables.transform.records import (
    BEYOND_SINGLE_FROM,
    MAX_BAD,
    VALUE_CHARACTERS,
    BadCells,
    BadRow,
    CellFault,
    ParsedRows,
    RecordLayout,
    RecordMember,
)

# How a cell is read. EMPTY: no column; it must be empty.
SKIP, SINGLE, DOUBLE, INTEGER, CATEGORY, TEXT, EMPTY = range(7)
EXACT = 8  # added to DOUBLE and INTEGER: see RecordMember; to CATEGORY and TEXT: with surrounding spaces
VERBATIM = 16  # added to CATEGORY and TEXT: only an empty cell is missing
KIND = 7
# Faults of a cell, in the order of CellFault, or of a record. Faults of quotes take precedence.
FINE, NOT_NUMBER, NOT_WHOLE, TOO_LONG, IS_INFINITE, BEYOND_SINGLE = range(6)
LEADING_ZEROS, ROUNDED, NOT_UTF8, AFTER_QUOTE, UNCLOSED, RAGGED = range(6, 12)

Cells = NDArray[np.int32]
"""[width, 2]: how a cell of each column is read, and the offset of its value in a record."""
Fault = tuple[int, int, bytes, int, int]
"""Line, column (-1: none), cell, fault, number of cells of the record."""
Result = tuple[int, int, int, list[Fault], dict[int, list[str]], bytes]
"""Records, line ends, bad records, the listed faults, dictionaries, texts."""

MOST_BYTES = 2**31 - 1
_FAULTS = tuple(CellFault)
_CELLS_OF = {"<f4": SINGLE, "<f8": DOUBLE, "<i8": INTEGER, "<i4": CATEGORY, TEXTS.str: TEXT}


def parse_records(data: bytes | memoryview, dialect: TextDialect, layout: RecordLayout) -> ParsedRows:
    """Parse complete records; the last line may lack its end.

    data: UTF-8, less than 2 GiB, not modified.
    Returns: the records, and the bad rows.
    Raises:  ValueError if there is more data.
    """
    nbytes = len(data)
    if nbytes > MOST_BYTES:
        raise ValueError(f"data: {nbytes} bytes; at most {MOST_BYTES}.")
    # A record has an end per cell, and is not blank; one more may be begun and turn out bad.
    records: NDArray[Any] = np.empty((nbytes + 1) // max(dialect.width, 2) + 1, layout.dtype)
    lines = np.empty(len(records), np.int64)
    cells = _cells(dialect, layout)
    if native.COMPILED:
        size = layout.dtype.itemsize
        result = native.loops.parse_csv(
            data, _bytes(records), size, lines, cells, *dialect.marks, dialect.missing, powers_of_ten()
        )
    else:
        result = _parse_plain(bytes(data), records, lines, cells, dialect)
    rows, ends, bad_rows, faults, dictionaries, texts = result
    records.resize(rows, refcheck=False)
    bad = [_bad(fault, dialect.width) for fault in faults]
    lines_of = lines[:rows].copy()
    bad_lines = np.array([fault[0] for fault in faults], np.int64)
    if bad_rows > len(faults):
        bad_lines = np.setdiff1d([record.line for record in records_of(bytes(data), dialect)], lines_of)
    parsed = ParsedRows(records, dictionaries, texts, bad, bad_lines, ends, nbytes, lines_of)
    _convert(parsed, dialect, layout)
    return parsed


def one_column(dialect: TextDialect) -> TextDialect:
    """Return the dialect with which read_texts reads the cells of another dialect."""
    return replace(dialect, delimiter=b"\x1f", quote=b"", comment=b"", width=1, surplus=0)


def read_texts(
    texts: Sequence[bytes], layout: RecordLayout, dialect: TextDialect
) -> tuple[NDArray[Any], list[BadRow]]:
    """Read texts as cells of a column of numbers, booleans or dates.

    layout: of this column only, with index 0; dialect: from one_column.
    Returns: raw values [n], missing where a text is bad; all bad texts, with their position as `line`.
    """
    (member,) = layout.members
    values = np.full(len(texts), member.missing, member.dtype)
    bad: list[BadRow] = []
    for start in range(0, len(texts), MAX_BAD):
        some = texts[start : start + MAX_BAD]
        # Values never contain an end of a line or of a cell.
        lines = b"\n".join(some)
        if lines.count(b"\n") >= len(some):
            lines = b"\n".join(text.replace(b"\n", b"\1") for text in some)
        parsed = parse_records(lines.replace(b"\r", b"\1").replace(b"\x1f", b"\1"), dialect, layout)
        values[start + parsed.lines_of] = parsed.records["c0"]
        bad += [BadRow(start + b.line, b.column, b.value, b.reason) for b in parsed.bad]
    return values, bad


def end_of_records(data: bytes | memoryview, start: int, dialect: TextDialect) -> int:
    """Return where the last complete record ends; `start`, where a record begins, if there is none."""
    if native.COMPILED:
        delimiter, quote, _, _, comment = dialect.marks
        return native.loops.end_of_csv_records(data, start, delimiter, quote, comment)
    data = bytes(data[start:])
    last = deque(records_of(data, dialect), maxlen=1)
    return start + (last[0].begin if last and last[0].end > len(data) else data.rfind(b"\n") + 1)


def is_unclosed(record: bytes, dialect: TextDialect) -> bool:
    """Return True if the last record has an unclosed quote, so that following lines may be records."""
    if b"\n" not in record.strip(b" \t\r\n"):
        return False  # on a single line: a bad row
    return not end_of_records(record + b"\n", 0, dialect)


def _bytes(records: NDArray[Any]) -> memoryview:
    return records.view(np.uint8).data if records.dtype.itemsize and len(records) else memoryview(bytearray())


def _cells(dialect: TextDialect, layout: RecordLayout) -> Cells:
    form = dialect.width, dialect.surplus, dialect.keep_spaces
    if form in layout.derived:
        return cast(Cells, layout.derived[form])
    cells = np.zeros((dialect.width + dialect.surplus, 2), np.int32)
    cells[dialect.width :, 0] = EMPTY
    fields: Mapping[str, Any] = layout.dtype.fields or {}
    if layout.members:
        kinds = [(_kind(w, dialect), fields[w.name][1]) for w in layout.members]
        cells[[w.index for w in layout.members]] = kinds
    layout.derived[form] = cells
    return cells


def _kind(w: RecordMember, dialect: TextDialect) -> int:
    """Return how the cells of a column are read."""
    if w.column.cells.read:
        return CATEGORY
    kind = _CELLS_OF[w.dtype.str]
    exact = w.exact if kind in (DOUBLE, INTEGER) else dialect.keep_spaces and kind != SINGLE
    return kind | (EXACT if exact else 0) | (VERBATIM if w.column.cells.verbatim else 0)


def _bad(fault: Fault, width: int) -> BadRow:
    line, column, value, reason, cells = fault
    if reason == RAGGED:
        return BadRow(line, None, "", f"has {cells} cells; {width} are expected")
    text = value.decode(errors="replace")[:VALUE_CHARACTERS]
    return BadRow(line, column if column < width else None, text, _FAULTS[reason - 1])


def _convert(parsed: ParsedRows, dialect: TextDialect, layout: RecordLayout) -> None:
    """Replace codes of texts by values, and remove the records whose texts are invalid."""
    records, bad = parsed.records, BadCells()
    members: Mapping[str, Any] = layout.dtype.fields or {}
    for w in layout.converted:
        cells, texts = w.column.cells, parsed.dictionaries.pop(w.index)
        assert cells.read is not None
        values, valid = cells.read(texts, dialect.decimal.decode(), dialect.thousands.decode())
        values, valid = np.append(values, np.nan), np.append(valid, True)  # code -1 takes the last entry
        beyond = (np.abs(values) >= BEYOND_SINGLE_FROM) & w.single
        values[beyond] = np.nan
        codes = _member(records, "<i4", members[w.name][1]).copy()
        records[w.name] = values[codes]
        for wrong, reason in ((beyond, CellFault.BEYOND_SINGLE), (~valid & ~beyond, cells.reason)):
            if wrong.any():
                bad.add(w.index, wrong[codes], reason, lambda row: texts[codes[row]])  # noqa: B023
    parsed.leave_out(bad.mask, bad.rows)


def _member(records: NDArray[Any], dtype: Any, offset: int) -> NDArray[Any]:
    """Return the values of a dtype at an offset of each record, as a view."""
    spread: Any = {"names": ["x"], "formats": [dtype], "offsets": [offset], "itemsize": records.itemsize}
    member: NDArray[Any] = records.view(np.dtype(spread))["x"]
    return member


_SMALLEST, _LARGEST = -342, 308  # below, 19 digits are nearer to 0 than to any double; above, infinite


def significand(q: int) -> int:
    """Return the first 128 bits of 5**q, with the highest bit set."""
    power: int = 5 ** abs(q)
    if q >= 0:
        excess = power.bit_length() - 128
        return power >> excess if excess > 0 else power << -excess
    bits = (power - 1).bit_length()
    # If 5**-q has at most 64 bits, numbers can lie exactly between two doubles: round only once.
    reciprocal: int = (1 << (bits + 127 if q >= -27 else 2 * bits + 128)) // power + 1
    return reciprocal >> max(0, reciprocal.bit_length() - 128)


@functools.cache
def powers_of_ten() -> NDArray[np.uint64]:
    """Return 128-bit powers of ten for finding the nearest doubles, in two halves each, the upper first.

    The table of D. Lemire, "Number parsing at a gigabyte per second" (2021), section 5: the first 128 bits of
    5**q for each q. Those for negative q, which have infinitely many bits, are rounded up.
    """
    words = [divmod(significand(q), 1 << 64) for q in range(_SMALLEST, _LARGEST + 1)]
    return np.array(words, np.uint64).reshape(-1)


VALUE_BYTES = 320
_DTYPES = {SINGLE: "<f4", DOUBLE: "<f8", INTEGER: "<i8", CATEGORY: "<i4", TEXT: TEXTS.descr}
_MISSING = {SINGLE: nan, DOUBLE: nan, INTEGER: MISSING_INTEGER}
_PADDED = re.compile(rb"[+-]?0.+")
_INFINITY = re.compile(rb"[+-]?inf(inity)?", re.IGNORECASE)


class Record(NamedTuple):
    """The cells of a record, without quotes.

    line, next_line: numbers of its first line and of the line after it, from 0; begin, end: its position in
    the text, including the line end (beyond the text if that is missing); fault: of quotes, or FINE; column,
    value: the cell with the fault.
    """

    line: int
    next_line: int
    begin: int
    end: int
    cells: list[bytes]
    fault: int = FINE
    column: int = -1
    value: bytes = b""


def records_of(data: bytes, dialect: TextDialect) -> Iterator[Record]:
    """Split a text into records, without interpreting cells; skip blank lines and comments."""
    at, line = 0, 0
    while at < len(data):
        stop = data.find(b"\n", at)
        text = data[at : stop if stop >= 0 else len(data)]
        blank = not text.strip(b" \t\r") and dialect.delimiter not in text
        skipped = blank or (dialect.comment and text.startswith(dialect.comment))
        if dialect.quote and dialect.quote in text and not skipped:
            record = _quoted(data, at, line, dialect)
        else:
            cells = text.rstrip(b"\r").split(dialect.delimiter)
            record = Record(line, line + (stop >= 0), at, at + len(text) + 1, cells)
        at, line = record.end, record.next_line
        if not skipped:
            yield record


def _quoted(data: bytes, begin: int, line: int, dialect: TextDialect) -> Record:
    """Split a record that contains quotes."""
    quote, mark = re.escape(dialect.quote), re.escape(dialect.delimiter)
    # A quoted text (with doubled quotes), its closing quote, if any, and the rest of the cell.
    inside = rb"[^%b]*(?:%b%b[^%b]*)*" % ((quote,) * 4)
    cell = re.compile(rb"(?:%b(%b)(%b|\Z))?([^%b\n]*)(\n|\Z)?" % (quote, inside, quote, mark))
    cells: list[bytes] = []
    fault: tuple[int, int, bytes] = (FINE, -1, b"")
    end = begin
    while True:
        match = cell.match(data, end)
        assert match is not None
        text, close, rest, last = match.groups()
        rest = rest if last is None else rest.rstrip(b"\r")
        if text is not None and not fault[0] and (rest or not close):
            why = AFTER_QUOTE if close else UNCLOSED
            fault = why, len(cells), data[end : match.end(3)]
        cells.append(rest if text is None else text.replace(dialect.quote * 2, dialect.quote))
        if last is not None:
            break
        end = match.end() + 1
    end = match.end(3) + 1
    return Record(line, line + data.count(b"\n", begin, end), begin, end, cells, *fault)


def _parse_plain(
    data: bytes, records: NDArray[Any], lines: NDArray[np.int64], cells: Cells, dialect: TextDialect
) -> Result:
    """Parse complete records like native.loops.parse_csv, column by column.

    records, lines: overwritten; large enough for all records.
    """
    parsed = list(records_of(data, dialect))
    faults: dict[int, Fault] = {}  # by number of the record; the first column counts
    for n, record in enumerate(parsed):
        width = len(record.cells)
        if record.fault:
            faults[n] = record.line, record.column, record.value, record.fault, width
        elif width != len(cells):
            faults[n] = record.line, -1, b"", RAGGED, width
    columns: dict[int, dict[int, Any]] = {}
    kinds = {column: kind & KIND for column, (kind, _) in enumerate(cells.tolist()) if kind != SKIP}
    for column in kinds:
        read, values = _cell_reader(int(cells[column, 0]), dialect), columns.setdefault(column, {})
        for n, record in enumerate(parsed):
            if n not in faults:
                fault, values[n] = read(record.cells[column])
                if fault:
                    faults[n] = record.line, column, record.cells[column], fault, len(cells)
    good = [n for n in range(len(parsed)) if n not in faults]
    lines[: len(good)] = [parsed[n].line for n in good]
    blob = bytearray()
    for n in good:
        for column in (column for column, kind in kinds.items() if kind == TEXT):
            text = columns[column][n]
            columns[column][n] = len(blob), len(text)
            blob += text
    dictionaries = {}
    for column, kind in kinds.items():
        if kind == EMPTY:
            continue
        held = [columns[column][n] for n in good]
        if kind == CATEGORY:
            codes = {text: code for code, text in enumerate(dict.fromkeys(x for x in held if x is not None))}
            dictionaries[column] = [text.decode() for text in codes]
            held = [codes.get(text, MISSING_CATEGORY) for text in held]
        _member(records[: len(good)], _DTYPES[kind], cells[column, 1])[:] = held
    bad = [(*fault[:2], fault[2][:VALUE_BYTES], *fault[3:]) for _, fault in sorted(faults.items())]
    return len(good), data.count(b"\n"), len(bad), bad[:MAX_BAD], dictionaries, bytes(blob)


def _cell_reader(kind: int, dialect: TextDialect) -> Callable[[bytes], tuple[int, Any]]:
    """Return the reader of a cell: it returns the fault and the value (None for a missing category)."""
    mark = re.escape(dialect.thousands)
    integer = rb"(?:\d{1,3}(?:" + mark + rb"\d{3})+(?!\d)|\d+)" if mark else rb"\d+"
    point = re.escape(dialect.decimal)
    number = re.compile(rb"[+-]?(" + integer + rb"(" + point + rb"\d*)?|" + point + rb"\d+)([eE][+-]?\d+)?")
    na = frozenset((b"",)) if kind & VERBATIM else dialect.na
    kind, exact = kind & KIND, kind & EXACT

    def text(cell: bytes) -> tuple[int, Any]:
        cell = cell if exact else cell.strip(b" \t")
        if cell in na:
            return FINE, b"" if kind == TEXT else None
        return FINE if cell.decode(errors="ignore").encode() == cell else NOT_UTF8, cell

    def value(cell: bytes) -> tuple[int, Any]:
        cell = cell.strip(b" \t")
        if cell in na:
            return FINE, _MISSING[kind]
        match = number.fullmatch(cell)
        plain = cell.replace(dialect.thousands, b"").replace(dialect.decimal, b".")
        digits = len(plain.lstrip(b"+-0"))
        is_whole = match is not None and match[2] is None and match[3] is None and match[1][:1].isdigit()
        if kind == INTEGER and not is_whole:
            return NOT_WHOLE, None
        if kind == INTEGER:
            if exact and _PADDED.fullmatch(cell):
                return LEADING_ZEROS, None
            fits = digits <= 19 and abs(int(plain)) < -MISSING_INTEGER
            return (FINE, int(plain)) if fits else (TOO_LONG, None)
        if not match:
            return IS_INFINITE if _INFINITY.fullmatch(cell) else NOT_NUMBER, None
        if exact and is_whole and (digits > 19 or int(float(plain)) != int(plain)):
            return ROUNDED, None
        result = float(plain)
        if kind == SINGLE and BEYOND_SINGLE_FROM <= abs(result) < inf:
            return BEYOND_SINGLE, None
        return IS_INFINITE if abs(result) == inf else FINE, result

    def empty(cell: bytes) -> tuple[int, Any]:
        return (RAGGED if cell.strip(b" \t") else FINE), None

    return empty if kind == EMPTY else text if kind in (CATEGORY, TEXT) else value
