"""Arrow's columns as records: what each of its types becomes, and which of its values cannot.

Texts that are to be something else than texts are read as cells of a CSV file would be. Nulls and NaN are missing; of texts that
stay texts, nothing else is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.tables.reading.record_parser import BEYOND_SINGLE_FROM, VALUE_CHARACTERS, parse_records
from packer.tables.reading.table_source import TextDialect
from packer.tables.transform import data_frames
from packer.tables.transform.cell_values import DAY
from packer.tables.transform.column_types import MISSING_CATEGORY, MISSING_INTEGER, TEXT, TYPES
from packer.tables.transform.records import (
    MAX_BAD,
    BadRow,
    CellFault,
    ParsedRows,
    RecordLayout,
    RecordMember,
)

Arrow = Any  # an object of pyarrow's, which has no annotations
Wrong = Sequence[tuple[NDArray[np.bool_], str]]
"""[N] whether a value cannot be taken, and why, the end of a sentence."""

_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_BLOCK_BYTES = 256 << 10  # of records, filled column by column while they are in the cache
_TEXTS = 1000  # read at once; at most as many are listed as bad


class _RawValues(NamedTuple):
    values: NDArray[Any]
    wrong: Wrong = ()


def _raw(values: NDArray[Any], *wrong: tuple[NDArray[np.bool_], str]) -> _RawValues:
    return _RawValues(values, [(mask, why) for mask, why in wrong if mask.any()])


def type_of(type: Arrow) -> str | None:
    """Return the column type for values of an Arrow type, one of TYPES; None: they cannot be read."""
    t = pa.types
    if t.is_dictionary(type):
        return type_of(type.value_type)
    if t.is_decimal(type) and type.scale == 0:
        return "integer"
    for column, tests in (
        ("integer", (t.is_integer,)),
        ("number", (t.is_floating, t.is_decimal, t.is_null)),
        ("boolean", (t.is_boolean,)),
        ("date", (t.is_date,)),
        ("time", (t.is_time,)),
        ("timestamp", (t.is_timestamp,)),
        ("category", (_is_text,)),
    ):
        if any(test(type) for test in tests):
            return column
    return None


def readable(type: Arrow, wanted: str) -> bool:
    """Tell whether values of an Arrow type can be read as a column type."""
    if type_of(type) is None:
        return False
    return not TYPES[wanted].numeric or _reader(_plain(type), wanted) is not None


def records_of(columns: Sequence[Arrow], layout: RecordLayout, dialect: TextDialect) -> ParsedRows:
    """Make records of a piece of a table.

    columns: an Arrow array of N values for each wanted column; dialect: how texts that are to be numbers are written.
    """
    rows = len(columns[0])
    raws: dict[str, NDArray[Any]] = {}
    wrong: list[tuple[RecordMember, Arrow, NDArray[np.bool_], str]] = []
    columns = list(columns)
    for i, w in enumerate(layout.members):
        columns[i], shown, mask = _checked(columns[i])
        if mask is not None:
            wrong.append((w, shown, mask, CellFault.NOT_UTF8))
        column = columns[i]
        if w.column.kind.numeric:
            raws[w.name], faults = _read(column, w, dialect)
            wrong += [(w, column, mask, why) for mask, why in faults]
    keep: NDArray[np.bool_] | None = None
    bad: list[BadRow] = []
    if wrong:
        keep = ~np.logical_or.reduce([mask for _, _, mask, _ in wrong])
        bad = _listed(np.flatnonzero(~keep)[:MAX_BAD], wrong)
    dictionaries: dict[int, list[str]] = {}
    blob = b""
    for w, column in zip(layout.members, columns, strict=True):
        if not w.column.kind.numeric:
            kept = column if keep is None else column.filter(pa.array(keep))
            if w.column.type == "category":
                raws[w.name], dictionaries[w.index] = _categories(kept)
            else:
                raws[w.name], texts = _texts(kept, len(blob))
                blob += texts
        elif keep is not None:
            raws[w.name] = raws[w.name][keep]
    records = _filled(raws, layout.dtype)
    lines_of = np.arange(rows) if keep is None else np.flatnonzero(keep)
    return ParsedRows(records, dictionaries, blob, bad, rows - len(records), rows, lines_of=lines_of)


def _checked(column: Arrow) -> tuple[Arrow, Arrow, NDArray[np.bool_] | None]:
    """Look whether all texts of a column are UTF-8, which no format promises.

    Returns: the column, with nulls for those that are not; it as messages show it; which are not, None if all are.
    """
    if not _is_text(_plain(column.type)):
        return column, column, None
    try:
        (column.dictionary if pa.types.is_dictionary(column.type) else column).validate(full=True)
        return column, column, None
    except pa.lib.ArrowInvalid:
        pass
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    given: list[bytes] = column.cast(pa.large_binary()).fill_null(b"").to_pylist()
    shown = [text.decode(errors="replace") for text in given]
    mask = np.array([text != s.encode() for text, s in zip(given, shown, strict=True)])
    null = column.is_null().to_numpy(zero_copy_only=False)
    return pa.array(shown, pa.large_string(), mask=mask | null), pa.array(shown, pa.large_string()), mask


def _filled(values: dict[str, NDArray[Any]], dtype: np.dtype[Any]) -> NDArray[np.void]:
    """Put columns beside each other."""
    rows = len(next(iter(values.values())))
    records: NDArray[np.void] = np.empty(rows, dtype)
    step = max(64, _BLOCK_BYTES // dtype.itemsize)
    members = [(records[name], of) for name, of in values.items()]
    for start in range(0, rows, step):
        for member, of in members:
            member[start : start + step] = of[start : start + step]
    return records


def _listed(
    rows: NDArray[np.intp], wrong: list[tuple[RecordMember, Arrow, NDArray[np.bool_], str]]
) -> list[BadRow]:
    """List what is wrong with these rows; the first column counts."""
    found = []
    for row in rows.tolist():
        w, column, _, why = next(one for one in wrong if one[2][row])
        found.append(BadRow(row, w.index, str(column[row].as_py())[:VALUE_CHARACTERS], why))
    return found


def _read(column: Arrow, w: RecordMember, dialect: TextDialect) -> _RawValues:
    """Read a column that is neither categories nor text."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if _is_text(column.type):
        return _from_texts(column, w, dialect)
    reader = _reader(column.type, w.column.type)
    assert reader is not None
    return reader(column, w)


ValueReader = Callable[[Arrow, RecordMember], _RawValues]


def _reader(type: Arrow, wanted: str) -> ValueReader | None:
    """Return the function that reads values of an Arrow type, no dictionary, as a column type; None if nothing does."""
    t = pa.types
    if _is_text(type) or t.is_null(type):
        return _nothing
    known: dict[str, tuple[tuple[Callable[[Arrow], bool], ValueReader], ...]] = {
        "number": (
            (t.is_floating, _floats),
            (t.is_integer, _whole_numbers),
            (t.is_decimal, _decimals),
            (t.is_boolean, _booleans),
        ),
        "integer": (
            (t.is_integer, _integers),
            (t.is_floating, _whole_floats),
            (t.is_decimal, _whole_decimals),
            (t.is_boolean, _integers),
        ),
        "boolean": ((t.is_boolean, _booleans), (t.is_integer, _flags)),
        "date": ((t.is_date, _dates), (t.is_timestamp, _dates)),
        "time": ((t.is_time, _times),),
        "timestamp": ((t.is_timestamp, _times), (t.is_date, _times)),
    }
    return next((reader for test, reader in known.get(wanted, ()) if test(type)), None)


def _nothing(column: Arrow, w: RecordMember) -> _RawValues:
    """Read nulls alone."""
    missing = MISSING_INTEGER if w.column.type == "integer" else np.nan
    return _RawValues(np.full(len(column), missing, w.dtype))


def _missing(column: Arrow) -> NDArray[np.bool_] | None:
    return column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None


def _floats(column: Arrow, w: RecordMember) -> _RawValues:
    return _numbers(column.to_numpy(zero_copy_only=False), w)


def _numbers(values: NDArray[Any], w: RecordMember) -> _RawValues:
    infinite = np.isinf(values)
    if not (w.single and values.dtype.itemsize > 4):
        return _raw(values, (infinite, CellFault.INFINITE))
    beyond = (np.abs(values) >= BEYOND_SINGLE_FROM) & ~infinite
    if beyond.any():
        values = np.where(beyond, np.nan, values)
    return _raw(values, (infinite, CellFault.INFINITE), (beyond, CellFault.BEYOND_SINGLE))


def _whole_numbers(column: Arrow, w: RecordMember) -> _RawValues:
    missing = _missing(column)
    given = (column if missing is None else column.fill_null(0)).to_numpy(zero_copy_only=False)
    values = given.astype(np.float64)
    if missing is not None:
        values[missing] = np.nan
    if not w.exact:
        return _RawValues(values)
    # 2**63 and 2**64, which the largest become, are no int64 and no uint64.
    inside = values < float(np.iinfo(given.dtype).max) + 1
    whole = np.where(inside, values, 0).astype(given.dtype)
    rounded = whole != given
    return _raw(values, (rounded if missing is None else rounded & ~missing, CellFault.ROUNDED))


def _decimals(column: Arrow, w: RecordMember) -> _RawValues:
    """Read decimals by their texts: Arrow's own way is not to the nearest."""
    texts = column.cast(pa.string()).to_pylist()
    found = _numbers(np.array([np.nan if text is None else float(text) for text in texts], np.float64), w)
    if not w.exact:
        return found
    rounded = [v is not None and v == (n := int(v)) and int(float(n)) != n for v in column.to_pylist()]
    return _RawValues(
        found.values, [*found.wrong, *_raw(found.values, (np.array(rounded), CellFault.ROUNDED)).wrong]
    )


def _booleans(column: Arrow, w: RecordMember) -> _RawValues:
    return _RawValues(column.cast(pa.int8()).cast(pa.float32()).to_numpy(zero_copy_only=False))


def _flags(column: Arrow, w: RecordMember) -> _RawValues:
    values = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    wrong = ~((values == 0) | (values == 1) | np.isnan(values))
    return _raw(values, (wrong, "is neither 0 nor 1"))


def _integers(column: Arrow, w: RecordMember) -> _RawValues:
    if pa.types.is_uint64(column.type):
        missing = _missing(column)
        unsigned = column.fill_null(0).to_numpy(zero_copy_only=False)
        beyond = unsigned > np.uint64(2**63 - 1)
        values = unsigned.astype(np.int64)
        if missing is not None:
            values[missing] = MISSING_INTEGER
    else:
        column = column.cast(pa.int64())
        missing = _missing(column)
        values = column.fill_null(MISSING_INTEGER).to_numpy(zero_copy_only=False)
        beyond = values == MISSING_INTEGER
        if missing is not None:
            beyond &= ~missing
    return _raw(values, (beyond, CellFault.TOO_LONG))


def _whole_floats(column: Arrow, w: RecordMember) -> _RawValues:
    given = column.to_numpy(zero_copy_only=False).astype(np.float64)
    missing = np.isnan(given)
    infinite, beyond = np.isinf(given), np.abs(given) >= 2.0**63
    broken = ~missing & ~infinite & (given != np.floor(given))
    values = np.where(missing | beyond | broken, 0, given).astype(np.int64)
    values[missing] = MISSING_INTEGER
    return _raw(
        values,
        (infinite, CellFault.INFINITE),
        (beyond & ~infinite, CellFault.TOO_LONG),
        (broken, CellFault.NOT_WHOLE),
    )


def _whole_decimals(column: Arrow, w: RecordMember) -> _RawValues:
    try:
        return _integers(column.cast(pa.int64()), w)  # exact, or an error
    except pa.lib.ArrowInvalid:
        pass
    values = np.full(len(column), MISSING_INTEGER, np.int64)
    broken, beyond = np.zeros(len(column), np.bool_), np.zeros(len(column), np.bool_)
    for row, value in enumerate(column.to_pylist()):
        if value is not None:
            whole = int(value)
            broken[row] = value != whole
            beyond[row] = not MISSING_INTEGER < whole <= -(MISSING_INTEGER + 1)
            values[row] = 0 if beyond[row] else whole
    return _raw(values, (beyond, CellFault.TOO_LONG), (broken, CellFault.NOT_WHOLE))


def _dates(column: Arrow, w: RecordMember) -> _RawValues:
    seconds = _times(column, w).values
    return _RawValues(np.floor(seconds / DAY))


def _times(column: Arrow, w: RecordMember) -> _RawValues:
    """Return seconds since midnight, or since 1970-01-01 UTC. Of a fraction six digits count, as of those in texts."""
    type, missing = column.type, _missing(column)
    if pa.types.is_date32(type):
        ticks, unit = column.cast(pa.int32()).cast(pa.int64()), None
    else:
        ticks, unit = (
            column.view(pa.int32() if type.bit_width == 32 else pa.int64()),
            getattr(type, "unit", "ms"),
        )
    whole = ticks.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    if unit is None:
        values = whole * float(DAY)
    else:
        per = _UNITS[unit]
        seconds, rest = np.divmod(whole, per)
        micros = rest * 10**6 // per if per <= 10**6 else rest // (per // 10**6)
        values = seconds + micros / 1e6
    if missing is not None:
        values[missing] = np.nan
    return _RawValues(values)


def _from_texts(column: Arrow, w: RecordMember, dialect: TextDialect) -> _RawValues:
    """Parse each distinct text once, as a cell of a CSV file."""
    encoded = column.dictionary_encode()
    texts = encoded.dictionary.to_pylist()
    layout = RecordLayout((RecordMember(0, w.column, w.single, w.exact),))
    dialect = replace(dialect, delimiter=b"\x1f", quote=b'"', width=1)
    values = np.full(len(texts) + 1, MISSING_INTEGER if w.column.type == "integer" else np.nan, w.dtype)
    reasons: dict[str, NDArray[np.bool_]] = {}
    for start in range(0, len(texts), _TEXTS):
        some = texts[start : start + _TEXTS]
        # No value holds the end of a line, and none may end the cell's.
        cells = "".join(
            '"' + text.replace('"', '""').replace("\n", "\1").replace("\r", "\1") + '"\n' for text in some
        )
        parsed = parse_records(cells.encode(), dialect, layout)
        good = np.ones(len(some), np.bool_)
        for bad in parsed.bad:
            good[bad.line] = False
            reasons.setdefault(bad.reason, np.zeros(len(texts) + 1, np.bool_))[start + bad.line] = True
        values[start + np.flatnonzero(good)] = parsed.records[layout.members[0].name]
    codes = _codes(encoded.indices)
    return _RawValues(values[codes], [(mask[codes], why) for why, mask in reasons.items()])


def _codes(indices: Arrow) -> NDArray[np.int32]:
    """Return Arrow's numbers of categories; -1 for null."""
    codes: NDArray[Any] = indices.fill_null(MISSING_CATEGORY).to_numpy(zero_copy_only=False)
    return codes.astype(np.int32, copy=False)


def _categories(column: Arrow) -> tuple[NDArray[np.int32], list[str]]:
    """Return codes in the order of first appearance, and their texts."""
    if pa.types.is_dictionary(column.type):
        # Not all of its texts may occur, in whatever order; one may be there twice, or be null.
        texts = _as_texts(column.dictionary)
        if texts.null_count or len(texts.unique()) < len(texts):
            return _categories(column.cast(column.type.value_type))
        indices = column.indices.cast(pa.int32()).dictionary_encode()
        return _codes(indices.indices), texts.take(indices.dictionary).to_pylist()
    encoded = _as_texts(column).dictionary_encode()
    return _codes(encoded.indices), encoded.dictionary.to_pylist()


def _texts(column: Arrow, before: int) -> tuple[NDArray[np.void], bytes]:
    """Return where each text lies in a blob that has so many bytes before these, and these."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    texts = pa.concat_arrays([_as_texts(column).cast(pa.large_string())])  # its own offsets, from 0 or not
    bounds = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + len(texts) + 1]
    data = texts.buffers()[2]
    places: NDArray[np.void] = np.zeros(len(texts), TEXT)
    places["at"] = before + bounds[:-1] - bounds[0]
    places["length"] = np.diff(bounds)
    missing = _missing(texts)
    if missing is not None:
        places["length"][missing] = 0
    if data is None:
        return places, b""
    return places, memoryview(data)[int(bounds[0]) : int(bounds[-1])].tobytes()


def _as_texts(column: Arrow) -> Arrow:
    """Return values as the texts that they are in data frames: Arrow writes floats, booleans and times otherwise than Python."""
    t = pa.types
    if not any(test(column.type) for test in (t.is_floating, t.is_boolean, t.is_time, t.is_timestamp)):
        return column.cast(pa.large_string() if t.is_large_string(column.type) else pa.string())
    encoded = column.dictionary_encode()
    texts = pa.array(data_frames.texts(encoded.dictionary, frozenset()), pa.string())
    return texts.take(encoded.indices)


def _is_text(type: Arrow) -> bool:
    t = pa.types
    return bool(
        t.is_string(type)
        or t.is_large_string(type)
        or (hasattr(t, "is_string_view") and t.is_string_view(type))
    )


def _plain(type: Arrow) -> Arrow:
    return type.value_type if pa.types.is_dictionary(type) else type
