"""Text of a table to records: by ``native/csv.c`` where it was compiled, by ``record_parser_plain.py`` where not, with equal results.

Booleans, dates and times come from it as numbers of distinct texts, and each text is read once.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer import native
from packer.tables.reading import record_parser_plain as plain
from packer.tables.reading.table_source import TextDialect
from packer.tables.transform.cell_values import CONVERTED, convert, convert_notation
from packer.tables.transform.cell_values import REASONS as WRITTEN_REASONS
from packer.tables.transform.records import BadRow, CellFault, ParsedRows, RecordLayout, RecordMember

MOST_BYTES = 2**31 - 1
VALUE_CHARACTERS = 80
_KINDS = {"integer": plain.INTEGER, "category": plain.CATEGORY, "text": plain.TEXT}
_REASONS = {
    plain.NOT_NUMBER: CellFault.NOT_NUMBER,
    plain.NOT_WHOLE: CellFault.NOT_WHOLE,
    plain.TOO_LONG: CellFault.TOO_LONG,
    plain.IS_INFINITE: CellFault.INFINITE,
    plain.BEYOND_SINGLE: CellFault.BEYOND_SINGLE,
    plain.NOT_UTF8: CellFault.NOT_UTF8,
    plain.AFTER_QUOTE: CellFault.AFTER_QUOTE,
    plain.UNCLOSED: CellFault.UNCLOSED,
}
_CONVERTED_REASONS = {
    "boolean": "is neither true nor false",
    "date": "is no date (YYYY-MM-DD)",
    "time": "is no time (HH:MM:SS)",
    "timestamp": "is no timestamp (YYYY-MM-DD HH:MM:SS)",
}


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
        na = tuple(sorted(dialect.na, key=len))
        result = native.loops.parse_csv(
            data, _bytes(records), size, lines, cells, *_marks(dialect), na, _powers()
        )
    else:
        result = plain.parse(bytes(data), _bytes(records), size, lines.data, cells, dialect)
    rows, ends, bad_rows, faults, dictionaries, texts = result
    records.resize(rows, refcheck=False)
    bad = [_bad(fault, dialect.width) for fault in faults]
    parsed = ParsedRows(records, dictionaries, texts, bad, bad_rows, ends, nbytes, lines[:rows].copy())
    if any(map(_by_text, layout.members)):
        _convert(parsed, dialect, layout)
    return parsed


def end_of_records(data: bytes | memoryview, start: int, dialect: TextDialect) -> int:
    """Return where the last complete record ends; `start`, where one begins, if there is none."""
    if native.COMPILED:
        return native.loops.end_of_csv_records(
            data, start, dialect.delimiter[0], dialect.quote[0] if dialect.quote else -1
        )
    return plain.end_of_records(bytes(data), start, dialect)


def split_records(data: bytes | memoryview, dialect: TextDialect, most: int) -> list[list[bytes]]:
    """Take the first records apart, however many cells they have; quotes are removed, nothing else is looked at."""
    return list(islice(plain.cells_of(bytes(data), dialect), most))


@functools.cache
def _powers() -> NDArray[np.uint64]:
    return np.frombuffer(powers_of_ten(), "<u8").copy()  # aligned


def _marks(dialect: TextDialect) -> tuple[int, int, int, int]:
    delimiter, quote, point, thousands = (
        mark[0] if mark else -1
        for mark in (dialect.delimiter, dialect.quote, dialect.decimal, dialect.thousands)
    )
    return delimiter, quote, point, thousands


def _bytes(records: NDArray[Any]) -> memoryview:
    return records.view(np.uint8).data if records.dtype.itemsize and len(records) else memoryview(bytearray())


def _cells(dialect: TextDialect, layout: RecordLayout) -> plain.Cells:
    cells = np.zeros((dialect.width, 2), np.int32)
    fields: Mapping[str, Any] = layout.dtype.fields or {}
    for wanted in layout.members:
        number = plain.SINGLE if wanted.single else plain.DOUBLE
        kind = plain.TRIMMED if _by_text(wanted) else _KINDS.get(wanted.column.type, number)
        cells[wanted.index] = kind, fields[wanted.name][1]
    return cells


def _bad(fault: plain.Fault, width: int) -> BadRow:
    line, column, value, reason, cells = fault
    if reason == plain.RAGGED:
        return BadRow(line, None, "", f"has {cells} cells; {width} are expected")
    text = value.decode(errors="replace")[:VALUE_CHARACTERS]
    return BadRow(line, column if column < width else None, text, _REASONS[reason])


def _by_text(wanted: RecordMember) -> bool:
    """Tell whether each distinct text of a column is read once, by Python."""
    return wanted.column.type in CONVERTED or bool(wanted.column.notation)


def _convert(parsed: ParsedRows, dialect: TextDialect, layout: RecordLayout) -> None:
    """Put values where numbers of texts are, and take out the records whose texts are none."""
    records = parsed.records
    bad: dict[int, BadRow] = {}  # by record; the first column counts
    for wanted in layout.members:
        if not _by_text(wanted):
            continue
        column, texts = wanted.column, parsed.dictionaries.pop(wanted.index)
        if column.notation:
            marks = dialect.decimal.decode(), dialect.thousands.decode()
            values, valid = convert_notation(texts, column.notation, *marks)
            reason = WRITTEN_REASONS[column.notation]
        else:
            values, valid = convert(texts, column.type)
            reason = _CONVERTED_REASONS[column.type]
        beyond = (
            np.abs(values) >= plain.BEYOND_SINGLE_FROM if wanted.single else np.zeros(len(texts), np.bool_)
        )
        values[beyond] = np.nan
        codes = _codes(records, wanted.name)
        # Number -1 takes what stands at the end.
        records[wanted.name] = np.append(values, np.nan)[codes]
        for row in np.flatnonzero(~np.append(valid & ~beyond, True)[codes]).tolist():
            value, is_beyond = texts[codes[row]][:VALUE_CHARACTERS], beyond[codes[row]]
            why = CellFault.BEYOND_SINGLE if is_beyond else reason
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


_SMALLEST, _LARGEST = (
    -342,
    308,
)  # below, 19 digits are nearer to 0 than to any double; above, they are infinite


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
