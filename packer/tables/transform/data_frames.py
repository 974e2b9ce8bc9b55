"""Columns of data frames as raw values: pandas, polars, pyarrow, and mappings of arrays or lists.

None of these packages is imported: a frame is known by what it offers. A cell that does not fit its column's type is an error
that names the row, the column and the value.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.tables.transform.cell_values import NA_TEXTS
from packer.tables.transform.column_types import (
    MISSING_CATEGORY,
    MISSING_INTEGER,
    ColumnType,
    TableColumn,
    read_cells,
    shortest,
)
from packer.tables.transform.raw_values import of_arrow, raw_values
from packer.tables.transform.records import RecordMember

NA = frozenset(NA_TEXTS)
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


@dataclass(frozen=True)
class Frame:
    """A table of any kind. names: of its columns, as texts; rows: how many; get: the column of a name."""

    names: tuple[str, ...]
    rows: int
    get: Callable[[str], Any]


def frame(data: Any) -> Frame:
    """Look at a data frame, or at a mapping of arrays or lists of one length. Raises UsageError."""
    if hasattr(data, "column_names") and hasattr(data, "num_rows"):  # pyarrow
        return Frame(tuple(data.column_names), data.num_rows, data.column)
    if isinstance(data, Mapping):
        columns = {str(name): column for name, column in data.items()}
        lengths = {name: _length(name, column) for name, column in columns.items()}
        for name, length in lengths.items():
            first = next(iter(lengths))
            if length != lengths[first]:
                raise UsageError(
                    f"column {name!r}: has {length:,} rows, and {first!r} has {lengths[first]:,}; one length is allowed."
                    " Give columns of one length."
                )
        return Frame(tuple(columns), next(iter(lengths.values()), 0), columns.__getitem__)
    if hasattr(data, "columns") and hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        # By place: pandas allows names that are no texts (numbers, where a file has no header) and names that occur twice.
        names = tuple(map(str, data.columns))
        places = {name: i for i, name in reversed(list(enumerate(names)))}
        get = data.iloc if hasattr(data, "iloc") else None
        return Frame(
            names,
            len(data),
            (lambda name: get[:, places[name]]) if get is not None else data.__getitem__,
        )
    raise UsageError(
        f"data: is a {type(data).__name__}; a pandas or polars DataFrame, a pyarrow Table or a dict of columns is allowed."
        " Pass one of them."
    )


def _length(name: str, column: Any) -> int:
    """Return the rows of a mapping's column. Raises UsageError for a lone value."""
    if not isinstance(column, (str, bytes)):
        try:
            return len(column)
        except TypeError:  # no container, or an array without dimensions
            pass
    raise UsageError(
        f"column {name!r}: is a {type(column).__name__}; a list or an array with a value for each row is allowed."
        " Put it in a list."
    )


def numbers(
    values: Any, column: TableColumn, na: frozenset[str] = NA, marks: tuple[str, str] = (".", "")
) -> NDArray[Any]:
    """Return the raw values of a column that holds numbers, dates or times.

    values: of a frame; na: the texts that mean "missing"; marks: the decimal point, and what stands between thousands, in a column
    that is written for people. Returns: [n] of the type's raw dtype; numbers as float64. Raises UsageError.
    """
    array = _array(values)
    given = array.dtype.kind
    fits = {"b": ("boolean",), "M": ("date", "timestamp"), "m": ("time",)}
    if given in "iuf" or column.type in fits.get(given, ()):
        parts = given == "M" and column.type == "date" and array[~np.isnat(array)]
        if parts is False or (parts == parts.astype("M8[D]")).all():
            found = raw_values(array, None, RecordMember(0, column))
            if not found.wrong:
                return found.values.astype(column.kind.raw)
    return _of_cells(array.tolist() if given in "US" else list(array), column, na, marks)


def texts(values: Any, na: frozenset[str] = NA, known: Sequence[str] = ()) -> list[str | None]:
    """Return the cells of a column of texts or categories, None for missing.

    known: the categories there are: a number, or a boolean, that is one of them in another way of writing (1 and "1.0") is that one.
    """
    array = _array(values)
    if array.dtype.kind == "f":
        single = array.dtype.itemsize < 8  # 0.1 as float32 is 0.1
        cells: list[Any] = [float(str(x)) for x in array] if single else array.tolist()
    else:
        cells = array.tolist() if array.dtype.kind in "USiub" else list(array)
    found = [_cell_text(cell, na) for cell in cells]
    if known and array.dtype.kind not in "US":
        ways, names = _ways(known), set(known)
        for row, text in enumerate(found):
            cell = cells[row]
            if text is not None and text not in names and not isinstance(cell, (str, bytes)):
                number = isinstance(cell, (int, float, np.number)) and not isinstance(cell, bool)
                found[row] = (ways.get(_key(cell)) if number else ways.get(text)) or text
    return found


def _ways(known: Sequence[str]) -> dict[float | str, str]:
    """Return the categories by the number, or the boolean in small letters, that each is; none for two that are the same."""
    ways: dict[float | str, list[str]] = {}
    for text in known:
        value = _value(text, "integer") if _value(text, "integer") is not None else _value(text, "number")
        ways.setdefault(text.lower() if value is None else _key(value), []).append(text)
    return {value: alike[0] for value, alike in ways.items() if len(alike) == 1}


def _key(number: Any) -> float:
    """Return a number so that equal ones are equal as keys, also beyond float64's whole numbers."""
    plain = number.item() if isinstance(number, np.generic) else number
    return int(plain) if isinstance(plain, int) or plain.is_integer() else float(plain)


def codes(
    values: Any, na: frozenset[str] = NA, known: Sequence[str] = ()
) -> tuple[NDArray[np.int32], list[str]]:
    """Number the texts of a column of categories. known: as in texts.

    Returns: [n] codes, MISSING_CATEGORY for missing; their texts, as they first appear.
    """
    dictionary: dict[str, int] = {}
    cells = texts(values, na, known)
    numbered = (MISSING_CATEGORY if c is None else dictionary.setdefault(c, len(dictionary)) for c in cells)
    return np.fromiter(numbered, np.int32, len(cells)), list(dictionary)


def _array(values: Any) -> NDArray[Any]:
    """Return a frame's column as an array; of objects where cells are missing that its dtype cannot tell."""
    if isinstance(values, np.ndarray):
        array = np.ma.getdata(values)
        if np.ma.isMaskedArray(values) and np.ma.getmaskarray(values).any():
            array = array.astype(object)
            array[np.ma.getmaskarray(values)] = None
    elif hasattr(values, "to_pylist"):  # pyarrow
        array = _of_arrow(values)
    elif hasattr(values, "to_list") and hasattr(values, "null_count"):  # polars
        array = _of_polars(values)
    elif hasattr(values, "array") and hasattr(values, "to_numpy"):  # pandas
        array = _of_pandas(values)
    else:
        values = list(values)
        plain = all(type(v) in (int, float) for v in values)
        array = np.asarray(values) if plain and values else _objects(values)
    if array.ndim != 1:
        raise UsageError(
            f"data: a column has shape {array.shape}; one number or text a row is allowed. Give its columns one by one."
        )
    return array


def _of_arrow(values: Any) -> NDArray[Any]:
    if str(values.type).startswith(("timestamp", "int", "uint", "halffloat", "float", "double")):
        array, missing = of_arrow(values)
        if missing is None:
            return array
    return _objects(values.to_pylist())


def _of_polars(values: Any) -> NDArray[Any]:
    kind = str(values.dtype)
    if kind.startswith("Datetime"):  # zones change how a time is written, not the time
        filled = np.asarray(values.to_physical().fill_null(np.iinfo(np.int64).min).to_numpy())
        return filled.view(f"M8[{getattr(values.dtype, 'time_unit', 'us')}]")
    if kind.startswith("Float") or (kind.startswith(("Int", "UInt")) and not values.null_count):
        return np.asarray(values.to_numpy())
    return _objects(values.to_list())


def _of_pandas(values: Any) -> NDArray[Any]:
    dtype = values.dtype
    if isinstance(dtype, np.dtype):
        return np.asarray(values.to_numpy())
    if str(dtype).startswith("datetime64["):  # with a zone
        return np.asarray(values.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy())
    missing = np.asarray(values.isna())
    kind = getattr(dtype, "kind", "O")
    if kind in "iuf" and not missing.any():
        return np.asarray(values.to_numpy(dtype=getattr(dtype, "numpy_dtype", None)))
    array = np.asarray(values.to_numpy(dtype=object)).copy()
    array[missing] = None
    return array


def _objects(values: Sequence[Any]) -> NDArray[Any]:
    array = np.empty(len(values), object)
    array[:] = values
    return array


def _of_cells(
    cells: list[Any], column: TableColumn, na: frozenset[str], marks: tuple[str, str]
) -> NDArray[Any]:
    """Raw values cell by cell; texts are read as in files."""
    kind = column.type
    raw: NDArray[Any] = np.full(len(cells), np.nan)
    if kind == "integer":
        raw = np.full(len(cells), MISSING_INTEGER, np.int64)
    words: list[int] = []
    for row, cell in enumerate(cells):
        if isinstance(cell, (bytes, np.bytes_)):
            cell = cell.decode("utf-8", "surrogateescape")
        if isinstance(cell, str):
            cells[row] = cell = cell.strip(" \t")
            if cell in na:
                continue
            if column.cells.read:
                words.append(row)
                continue
        elif _absent(cell):
            continue
        value = _value(cell, kind)
        if value is None:
            raise _misfit(row, cell, column)
        raw[row] = value
    if words:
        some = [cells[row] for row in words]
        values, valid = read_cells(some, column.notation or kind, *marks)
        if not valid.all():
            row = words[int(np.argmin(valid))]
            raise _misfit(row, cells[row], column)
        raw[words] = values
    return raw.astype(np.float32) if kind == "boolean" else raw


def _value(cell: Any, kind: str) -> float | int | None:
    """Return a present cell as a number of a column's type; None if it is none."""
    if isinstance(cell, np.generic):
        cell = _plain(cell)
    if kind == "boolean":
        return float(cell) if isinstance(cell, (bool, int, float)) and cell in (0, 1) else None
    if isinstance(cell, (datetime.date, datetime.time, datetime.timedelta)):
        return _span_value(cell, kind)
    if isinstance(cell, bool) or not isinstance(cell, (int, float, str, decimal.Decimal)):
        return None
    if isinstance(cell, str) and not _NUMERIC.issuperset(cell):
        return None
    try:
        if kind == "integer":
            whole = int(cell)
            exact = isinstance(cell, str) or whole == cell
            return whole if exact and -(2**63) < whole < 2**63 else None
        number = float(cell)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) < np.inf else None


def _span_value(cell: datetime.date | datetime.time | datetime.timedelta, kind: str) -> float | None:
    """Return a date or a timestamp since 1970, or a time since midnight, as a number of a column's type; None if it is none."""
    if isinstance(cell, datetime.datetime):
        span = (cell if cell.tzinfo else cell.replace(tzinfo=datetime.timezone.utc)) - _EPOCH
    elif isinstance(cell, datetime.date):
        span = datetime.timedelta(cell.toordinal() - _EPOCH.toordinal())
    elif isinstance(cell, datetime.time):
        span = datetime.datetime.combine(_EPOCH, cell.replace(tzinfo=None)) - _EPOCH.replace(tzinfo=None)
    else:
        span = cell
    if kind not in (("date", "timestamp") if isinstance(cell, datetime.date) else ("time",)):
        return None
    if kind == "date":
        return None if span.seconds or span.microseconds else span.days
    return span.days * 86_400 + span.seconds + span.microseconds / 1e6


_NUMERIC = frozenset("0123456789.eE+-")  # float() takes more: underscores, other scripts' digits, words


def _plain(cell: np.generic) -> Any:
    """Return a NumPy scalar as one of Python's; of a datetime what lies below microseconds is cut off."""
    if isinstance(cell, np.datetime64):
        return cell.astype("M8[us]").item()
    if isinstance(cell, np.timedelta64):
        return cell.astype("m8[us]").item()
    return cell.item()


def _absent(cell: Any) -> bool:
    """Tell whether a cell is None, NaN, NaT or pandas' NA."""
    if cell is None:
        return True
    try:
        return bool(cell != cell)
    except (TypeError, ValueError):  # pandas.NA has no truth
        return True


def _cell_text(cell: Any, na: frozenset[str]) -> str | None:
    """Return a cell as its text in a file would be; None if it is missing."""
    if isinstance(cell, (bytes, np.bytes_)):
        cell = bytes(cell).decode("utf-8", "surrogateescape")
    if isinstance(cell, str):
        return None if cell in na else str(cell)
    if _absent(cell):
        return None
    if isinstance(cell, (float, np.floating)):
        return shortest(float(cell))
    if isinstance(cell, (bool, np.bool_)):
        return "true" if cell else "false"
    if isinstance(cell, (np.datetime64, np.timedelta64)):
        cell = _plain(cell)
    return cell.isoformat(" ") if isinstance(cell, datetime.datetime) else str(cell)


def _misfit(row: int, cell: Any, column: TableColumn) -> UsageError:
    shown = repr(cell if isinstance(cell, str) else str(cell))
    shown = shown if len(shown) <= 80 else shown[:80] + "..."
    cells = column.cells
    reason = (isinstance(cells, ColumnType) and cells.frame_reason) or cells.reason
    if column.type == "number" and str(cell).lower().lstrip("+-") in ("inf", "infinity"):
        reason = "is infinite"
    return UsageError(
        f"row {row:,}, column {column.name!r}: {shown} {reason}; such cells and missing ones are allowed. Mend it, or leave"
        " the row out."
    )
