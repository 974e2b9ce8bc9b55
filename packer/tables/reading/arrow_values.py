"""Arrow columns as records: the raw value of each Arrow type, and values that have none.

Decimals, and texts that are read as another type, are parsed like cells of a CSV file. Nulls and NaN are
missing; among values that stay texts, only nulls are, but under the options of a pack that was made of text
files these are read as there.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
from numpy.typing import NDArray

from packer.tables.reading.record_parser import one_column, read_texts
from packer.tables.reading.row_records import written
from packer.tables.reading.table_source import TextDialect
from packer.tables.transform.cell_values import DAY
from packer.tables.transform.column_types import (
    MISSING_CATEGORY,
    MISSING_INTEGER,
    TEXT,
    TYPES,
    TableColumn,
)
from packer.tables.transform.records import (
    BEYOND_SINGLE_FROM,
    BadCells,
    CellFault,
    ParsedRows,
    RecordLayout,
    RecordMember,
)

Arrow = Any  # a pyarrow object; pyarrow has no annotations
Wrong = list[tuple[NDArray[np.bool_], str]]
"""bool [n], True for invalid values, and the reason, the end of a sentence."""
RawValues = tuple[NDArray[Any], Wrong]
"""Raw values [n]; invalid ones are arbitrary."""

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_NAT = np.iinfo(np.int64).min
_BLOCK_BYTES = 256 << 10  # bytes of records filled column by column while they are in the CPU cache


@functools.cache
def type_of(type: Arrow) -> str | None:
    """Return the column type for values of an Arrow type, one of TYPES; None if they cannot be read."""
    type = _plain(type)
    if is_text(type):
        return "category"
    if pa.types.is_decimal(type):
        return "number" if type.scale else "integer"
    return next((name for name, kind in TYPES.items() if str(type).startswith(kind.arrow)), None)


def readable(type: Arrow, wanted: TableColumn) -> bool:
    """Return True if values of an Arrow type can be read as a column's type."""
    natural, kind = type_of(type), wanted.kind
    if natural is None or natural == "category" or pa.types.is_null(_plain(type)):
        return natural is not None
    written = bool(wanted.notation) and natural in ("number", "integer")  # 20181028
    return written or not kind.numeric or natural in (wanted.type, *kind.also)


def records_of(
    columns: Sequence[Arrow], layout: RecordLayout, dialect: TextDialect, *, words: bool = False
) -> ParsedRows:
    """Return the records of a piece of a table.

    columns: an Arrow array of N values per column of the layout; dialect: notation of numbers in texts;
    words: texts that stay texts are read as cells of that dialect, too.
    """
    rows = len(columns[0])
    raws: dict[str, NDArray[Any]] = {}
    dictionaries: dict[int, list[str]] = {}
    blob = b""
    bad = BadCells()
    for w, given in zip(layout.members, columns, strict=True):
        column, shown, faults = _checked(
            given if w.column.type == "category" else given.cast(_plain(given.type))
        )
        if words and not w.column.kind.numeric and is_text(_plain(column.type)):
            column = _as_cells(column, w, dialect)
        if w.column.kind.numeric:
            raws[w.name], more = _read(column, w, dialect)
            faults += more
        elif w.column.type == "category":
            raws[w.name], dictionaries[w.index] = _categories(column)
        else:
            raws[w.name], texts = _texts(column, len(blob))
            blob += texts
        for wrong, why in faults:
            bad.add(w.index, wrong, why, lambda row: str(shown[row].as_py()))  # noqa: B023
    parsed = ParsedRows(_filled(raws, layout.dtype), dictionaries, blob, lines=rows, lines_of=np.arange(rows))
    parsed.leave_out(bad.mask, bad.rows)
    return parsed


def _checked(column: Arrow) -> tuple[Arrow, Arrow, Wrong]:
    """Check that all texts of a column are UTF-8, which no format guarantees.

    Returns: the column, with nulls for invalid texts; the column for messages; the invalid texts.
    """
    if not is_text(_plain(column.type)):
        return column, column, []
    try:
        (column.dictionary if pa.types.is_dictionary(column.type) else column).validate(full=True)
        return column, column, []
    except pa.lib.ArrowInvalid:
        pass
    given = column.cast(_plain(column.type)).cast(pa.large_binary())
    texts = [None if text is None else text.decode(errors="replace") for text in given.to_pylist()]
    shown = pa.array(texts, pa.large_string())
    bad = pa.compute.not_equal(shown.cast(pa.large_binary()), given).fill_null(False)
    clean = pa.compute.if_else(bad, pa.scalar(None, shown.type), shown)
    return clean, shown, [(bad.to_numpy(zero_copy_only=False), CellFault.NOT_UTF8)]


def _as_cells(column: Arrow, w: RecordMember, dialect: TextDialect) -> Arrow:
    """Return texts without the spaces around them, and null for those that mean missing."""
    texts = column.cast(_plain(column.type)).cast(pa.large_string())
    texts = texts if dialect.keep_spaces else pa.compute.utf8_trim(texts, " \t")
    missing = [""] if w.column.cells.verbatim else [text.decode() for text in dialect.missing]
    absent = pa.compute.is_in(texts, value_set=pa.array(missing, texts.type))
    return pa.compute.if_else(absent, pa.scalar(None, texts.type), texts)


def _filled(values: dict[str, NDArray[Any]], dtype: np.dtype[Any]) -> NDArray[np.void]:
    """Return records filled from columns."""
    rows = len(next(iter(values.values())))
    records: NDArray[np.void] = np.empty(rows, dtype)
    step = max(64, _BLOCK_BYTES // dtype.itemsize)
    members = [(records[name], of) for name, of in values.items()]
    for start in range(0, rows, step):
        for member, of in members:
            member[start : start + step] = of[start : start + step]
    return records


def _read(column: Arrow, w: RecordMember, dialect: TextDialect) -> RawValues:
    """Read a column that is neither categories nor text."""
    if pa.types.is_null(column.type):
        return np.full(len(column), w.missing, w.dtype), []
    if pa.types.is_decimal(column.type) and w.column.type == "boolean":
        column = column.cast(pa.float64())
    if pa.types.is_decimal(column.type):  # Arrow does not convert to the nearest float
        w = replace(w, column=w.column.but(notation=""))  # the notation is for texts only
        texts = column.cast(pa.string())
        if column.type.scale > 0:
            # 5.00 and 0E-8 are whole; zeros with another exponent, as in 1E-10, stay.
            texts = pa.compute.replace_substring_regex(texts, r"^(-?\d+)\.0+$|^(0)E-\d+$", r"\1\2")
        return _from_texts(texts, w, replace(dialect, decimal=b".", thousands=b""))
    if w.column.type in ("date", "time", "timestamp") and not pa.types.is_temporal(column.type):
        column = _as_texts(column)
    if is_text(column.type):
        return _from_texts(column, w, dialect)
    array = _numbers(column)
    values, wrong = (
        _raw(array, w) if not pa.types.is_temporal(column.type) else (_clock(array, column.type, w), [])
    )
    if column.null_count:
        values = np.where(column.is_null().to_numpy(zero_copy_only=False), w.missing, values)
    return values, wrong


def _from_texts(column: Arrow, w: RecordMember, dialect: TextDialect) -> RawValues:
    """Parse each distinct text once, like a cell of a CSV file."""
    encoded = column.dictionary_encode()
    alone = RecordLayout((replace(w, index=0),))
    values, bad = read_texts(
        encoded.dictionary.cast(pa.large_binary()).to_pylist(), alone, one_column(dialect)
    )
    reasons: dict[str, NDArray[np.bool_]] = {}
    for b in bad:
        reasons.setdefault(b.reason, np.zeros(len(values) + 1, np.bool_))[b.line] = True
    codes = _codes(encoded.indices)
    raw = np.append(values, np.array(w.missing, w.dtype))[codes]
    return raw, [(mask[codes], why) for why, mask in reasons.items()]


def _codes(indices: Arrow) -> NDArray[np.int32]:
    """Return Arrow's category numbers, -1 for null."""
    codes: NDArray[Any] = indices.fill_null(MISSING_CATEGORY).to_numpy(zero_copy_only=False)
    return codes.astype(np.int32, copy=False)


def _categories(column: Arrow) -> tuple[NDArray[np.int32], list[str]]:
    """Return codes in the order of first appearance, and their texts."""
    if pa.types.is_dictionary(column.type):
        # A dictionary may hold unused, repeated or null texts, in any order.
        texts = _as_texts(column.dictionary)
        if texts.null_count or len(texts.unique()) < len(texts):
            return _categories(column.cast(column.type.value_type))
        indices = column.indices.cast(pa.int32()).dictionary_encode()
        return _codes(indices.indices), texts.take(indices.dictionary).to_pylist()
    encoded = _as_texts(column).dictionary_encode()
    return _codes(encoded.indices), encoded.dictionary.to_pylist()


def _texts(column: Arrow, before: int) -> tuple[NDArray[np.void], bytes]:
    """Return the position of each text in a buffer, and the bytes to append to it.

    before: length of the buffer.
    """
    texts = pa.concat_arrays([_as_texts(column).cast(pa.large_string())])  # own offsets, not always from 0
    bounds = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + len(texts) + 1]
    data = texts.buffers()[2]
    places: NDArray[np.void] = np.zeros(len(texts), TEXT)
    places["at"] = before + bounds[:-1] - bounds[0]
    places["length"] = np.diff(bounds)
    if texts.null_count:
        places["length"][texts.is_null().to_numpy(zero_copy_only=False)] = 0
    if data is None:
        return places, b""
    return places, memoryview(data)[int(bounds[0]) : int(bounds[-1])].tobytes()


def _as_texts(column: Arrow) -> Arrow:
    """Return values as texts like those of rows; Arrow's floats and times differ."""
    t, kind = pa.types, column.type
    if not (t.is_floating(kind) or t.is_timestamp(kind) or t.is_time(kind) or t.is_duration(kind)):
        return column.cast(pa.large_string() if t.is_large_string(kind) else pa.string())
    encoded = column.dictionary_encode()
    values = encoded.dictionary.to_numpy(zero_copy_only=False)
    return pa.array(map(written, values), pa.string()).take(encoded.indices)


def is_text(type: Arrow) -> bool:
    """Return True for an Arrow type of texts."""
    return str(type) in ("string", "large_string", "string_view")


def _plain(type: Arrow) -> Arrow:
    return type.value_type if pa.types.is_dictionary(type) else type


def _numbers(column: Arrow) -> NDArray[Any]:
    """Return numbers or booleans as a NumPy array, dates and times as ticks; nulls are NaN, False or 0."""
    if pa.types.is_temporal(column.type):
        column = column.cast(f"int{column.type.bit_width}").cast("int64")
    if column.null_count and not pa.types.is_floating(column.type):
        column = column.fill_null(False if pa.types.is_boolean(column.type) else 0)
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _raw(array: NDArray[Any], w: RecordMember) -> RawValues:
    """Return numbers or booleans as a column's raw values."""
    kind, given = w.column.type, array.dtype.kind
    if kind == "integer":
        return _integers(array)
    if kind == "boolean":
        wrong = (
            [] if given == "b" else [(~((array == 0) | (array == 1) | np.isnan(array)), "is neither 0 nor 1")]
        )
        with np.errstate(over="ignore"):
            return array.astype(np.float32), wrong
    if given != "f":
        values = array.astype(np.float64)
        if not w.exact or given == "b":
            return values, []
        # The maxima become 2**63 and 2**64, which int64 and uint64 do not hold.
        inside = values < float(np.iinfo(array.dtype).max) + 1
        return values, [(np.where(inside, values, 0).astype(array.dtype) != array, CellFault.ROUNDED)]
    infinite = np.isinf(array)
    if not w.single or array.dtype.itemsize <= 4:
        return array, [(infinite, CellFault.INFINITE)]
    beyond = (np.abs(array) >= BEYOND_SINGLE_FROM) & ~infinite
    values = np.where(beyond, np.nan, array) if beyond.any() else array
    return values, [(infinite, CellFault.INFINITE), (beyond, CellFault.BEYOND_SINGLE)]


def _integers(array: NDArray[Any]) -> RawValues:
    if array.dtype.kind != "f":
        values = array.astype(np.int64, copy=False)
        beyond = array > np.uint64(2**63 - 1) if array.dtype == np.uint64 else values == MISSING_INTEGER
        return values, [(beyond, CellFault.TOO_LONG)]
    given = array.astype(np.float64)
    missing, infinite, beyond = np.isnan(given), np.isinf(given), np.abs(given) >= 2.0**63
    broken = ~missing & ~infinite & (given != np.floor(given))
    values = np.where(missing | beyond | broken, 0, given).astype(np.int64)
    values[missing] = MISSING_INTEGER
    return values, [
        (infinite, CellFault.INFINITE),
        (beyond & ~infinite, CellFault.TOO_LONG),
        (broken, CellFault.NOT_WHOLE),
    ]


def _clock(ticks: NDArray[np.int64], type: Arrow, w: RecordMember) -> NDArray[np.float64]:
    """Return days or seconds since 1970, or seconds since midnight, cut to six digits of a fraction."""
    per = 1000 if pa.types.is_date64(type) else _PER_SECOND.get(getattr(type, "unit", ""), 1)
    ticks = ticks * DAY if pa.types.is_date32(type) else ticks
    seconds = ticks // per
    days = w.column.type == "date"
    values = seconds // DAY if days else seconds + (ticks - seconds * per) * 10**6 // per / 1e6
    return np.where(ticks == _NAT, np.nan, values)
