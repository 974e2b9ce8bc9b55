"""Arrays of numbers, booleans and datetimes as the raw values of a column: of Arrow's files, and of data frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.tables.transform.cell_values import DAY
from packer.tables.transform.column_types import MISSING_INTEGER
from packer.tables.transform.records import CellFault, RecordMember

BEYOND_SINGLE_FROM = float.fromhex("0x1.ffffffp127")  # from here on the nearest float32 is infinite
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_NAT = np.iinfo(np.int64).min


class RawValues(NamedTuple):
    """Raw values [n]. wrong: bool [n], the values that cannot be taken, and why, the end of a sentence."""

    values: NDArray[Any]
    wrong: Sequence[tuple[NDArray[np.bool_], str]] = ()


def of_arrow(column: Any) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """Return an Arrow array of numbers, booleans, dates or times as NumPy's, and its nulls; None where NaN and NaT tell them."""
    kind = str(column.type)
    if kind.startswith(("date", "time")):
        # Zones change how a time is written, not the time.
        unit = kind.split("[")[1].split("]")[0].split(",")[0]
        ticks = column.cast(f"int{column.type.bit_width}").cast("int64").fill_null(_NAT)
        form = "m8" if kind.startswith(("time32", "time64")) else "M8"
        return np.asarray(ticks.to_numpy(zero_copy_only=False)).view(
            f"{form}[{'D' if unit == 'day' else unit}]"
        ), None
    missing = None
    if column.null_count and kind not in ("halffloat", "float", "double"):
        missing = column.is_null().to_numpy(zero_copy_only=False)
        column = column.fill_null(False if kind == "bool" else 0)
    return np.asarray(column.to_numpy(zero_copy_only=False)), missing


def raw_values(array: NDArray[Any], missing: NDArray[np.bool_] | None, w: RecordMember) -> RawValues:
    """Return values as a column's raw ones; what is wrong among them has any value.

    array: of numbers, booleans, M8 (for dates and timestamps) or m8 (for times); missing: those that neither NaN nor NaT tells.
    """
    kind, given = w.column.type, array.dtype.kind
    wrong: list[tuple[NDArray[np.bool_], str]] = []
    values: NDArray[Any]
    if given in "Mm":
        values = _clock(array, kind)
    elif kind == "integer":
        values, wrong = _integers(array, copy=missing is not None)
    elif kind == "boolean":
        values = array.astype(np.float32)
        if given != "b":
            wrong = [(~((array == 0) | (array == 1) | np.isnan(array)), "is neither 0 nor 1")]
    elif given == "f":
        values, infinite = array, np.isinf(array)
        wrong = [(infinite, CellFault.INFINITE)]
        if w.single and array.dtype.itemsize > 4:
            beyond = (np.abs(values) >= BEYOND_SINGLE_FROM) & ~infinite
            values = np.where(beyond, np.nan, values) if beyond.any() else values
            wrong.append((beyond, CellFault.BEYOND_SINGLE))
    else:
        values = array.astype(np.float64)
        if w.exact and given != "b":
            # 2**63 and 2**64, which the largest become, are no int64 and no uint64.
            inside = values < float(np.iinfo(array.dtype).max) + 1
            wrong = [(np.where(inside, values, 0).astype(array.dtype) != array, CellFault.ROUNDED)]
    if missing is not None:
        np.putmask(values, missing, MISSING_INTEGER if kind == "integer" else np.nan)
    return RawValues(values, [(mask, why) for mask, why in wrong if mask.any()])


def _integers(
    array: NDArray[Any], copy: bool
) -> tuple[NDArray[np.int64], list[tuple[NDArray[np.bool_], str]]]:
    if array.dtype.kind != "f":
        values = array.astype(np.int64, copy=copy)
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


def _clock(array: NDArray[Any], kind: str) -> NDArray[np.float64]:
    """Return days or seconds since 1970, or seconds since midnight. Of a fraction six digits count, as of those in texts."""
    unit = np.datetime_data(array.dtype)[0]
    if unit == "D" and kind == "date":
        return np.where(np.isnat(array), np.nan, array.view(np.int64))
    unit = "s" if unit in "YMWDhm" else unit if unit in _PER_SECOND else "ns"
    ticks = array.astype(f"{array.dtype.kind}8[{unit}]", copy=False).view(np.int64)
    per = _PER_SECOND[unit]
    seconds, rest = np.divmod(ticks, per) if per > 1 else (ticks, None)
    if kind == "date":
        values = (seconds // DAY).astype(np.float64)
    elif rest is None:
        values = seconds.astype(np.float64)
    else:
        values = seconds + (rest * (10**6 // per) if per <= 10**6 else rest // (per // 10**6)) / 1e6
    np.putmask(values, np.isnat(array), np.nan)
    return values
