"""Data frames as records: pandas, all that hands out an Arrow stream, and mappings of arrays or lists."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from packer.errors import UsageError
from packer.tables.reading.arrow_values import Arrow, is_text, readable, records_of, type_of
from packer.tables.reading.table_source import Csv
from packer.tables.transform.column_types import shortest
from packer.tables.transform.records import ParsedRows, RecordLayout

Columns = dict[str, Callable[[], Any]]
"""Names, and what gives the values of a column; of equal names the first."""


def columns_of(data: Any) -> Columns:
    """Return the columns of a data frame, or of a mapping of arrays or lists. Raises UsageError."""
    if isinstance(data, Mapping):
        return {str(name): partial(lambda values: values, values) for name, values in data.items()}
    if hasattr(data, "iloc"):  # pandas, whose columns may hold values of several types
        names, get = list(map(str, data.columns)), lambda place: data.iloc[:, place]
    elif hasattr(data, "__arrow_c_stream__") or isinstance(data, (pa.Table, pa.RecordBatch)):
        table = pa.table(data)
        names, get = table.column_names, table.column
    else:
        raise UsageError(
            f"data: is a {type(data).__name__}; a pandas DataFrame, one that hands out an Arrow stream (polars, pyarrow) or a dict"
            " of columns is allowed. Pass one of them."
        )
    return {name: partial(get, place) for place, name in reversed(list(enumerate(names)))}


def records(
    columns: Columns, layout: RecordLayout, reading: Mapping[str, Any]
) -> tuple[ParsedRows, list[int]]:
    """Make records of the wanted columns. reading: how the texts of the pack's files were read.

    Returns: the rows; numbers of the columns of categories whose values are no texts. Raises UsageError.
    """
    dialect = Csv(
        **{name: reading[name] for name in ("decimal", "thousands", "na") if name in reading}
    ).dialect()
    # Files that have nulls have no texts that mean missing.
    missing = [text.decode() for text in dialect.na] if "na" in reading else []
    arrays: list[Arrow] = []
    others: list[int] = []
    for w in layout.members:
        name, kind = w.column.name, w.column.type
        try:
            array = _array(columns[name]())
            if is_text(array.type) and missing:
                absent = pa.compute.is_in(array, value_set=pa.array(missing, array.type))
                array = pa.compute.if_else(absent, pa.scalar(None, array.type), array)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise UsageError(
                f"column {name!r}: {error}; a value for each row is needed. Correct it."
            ) from None
        found = type_of(array.type)
        number = kind == "boolean" and found in ("number", "integer")  # floats, where some are missing
        moment = kind in ("date", "time", "timestamp") and found in ("number", "integer")
        span = kind == "time" and pa.types.is_duration(array.type)
        if not (readable(array.type, kind) or number or moment or span):
            raise UsageError(f"column {name!r}: holds {array.type}, which is not read as {kind}. Convert it.")
        if arrays and len(array) != len(arrays[0]):
            raise UsageError(
                f"column {name!r}: has {len(array):,} rows, and {layout.members[0].column.name!r} has {len(arrays[0]):,};"
                " one length is allowed. Give columns of one length."
            )
        if kind == "category" and not is_text(array.type):
            others.append(w.index)
        arrays.append(array)
    return records_of(arrays, layout, dialect), others


def _array(values: Any) -> Arrow:
    """Return a column as one Arrow array; of values of several types as their texts."""
    if hasattr(values, "__arrow_c_stream__") and not hasattr(values, "iloc"):
        values = pa.chunked_array(values)
    if not isinstance(values, (pa.Array, pa.ChunkedArray)):
        if isinstance(values, (str, bytes)):
            raise TypeError(f"is a {type(values).__name__}")
        try:
            array = pa.array(values, from_pandas=True)
        except (pa.ArrowInvalid, TypeError, OverflowError):
            if np.ndim(values) > 1:
                raise
            array = None
        # Arrow makes dates of what stands among dates, without a word.
        if array is None or (pa.types.is_temporal(array.type) and _is_mixed(values, array)):
            array = pa.array([_text(value) for value in values], pa.string())
        values = array
    if values.null_count == len(values):
        return pa.nulls(len(values))  # missing values have no type
    chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
    return pa.concat_arrays(map(_plain, chunks))


def _plain(values: Arrow) -> Arrow:
    """Return an array without dictionary, and without the views that Polars hands out: not all functions of pyarrow take them."""
    if pa.types.is_dictionary(values.type):
        return _plain(values.dictionary).take(values.indices)
    plain = not str(values.type).endswith(("binary", "_view"))
    return values if plain else values.cast(pa.large_string())


def _is_mixed(values: Any, array: Arrow) -> bool:
    """Tell whether values that became dates or times were of several types."""
    if str(getattr(values, "dtype", "object")) != "object":
        return False
    given = {type(x) for x, null in zip(values, array.is_null().to_pylist(), strict=True) if not null}
    return len({datetime.datetime if issubclass(x, datetime.datetime) else x for x in given}) > 1


def _text(value: Any) -> str | None:
    """Return a value as its text in a file would be; None if it is missing."""
    if value is None or isinstance(value, (str, bytes)):
        return value.decode() if isinstance(value, bytes) else value
    try:
        if value != value:
            return None
    except (TypeError, ValueError):  # pandas.NA has no truth
        return None
    if isinstance(value, (float, np.floating)):
        return shortest(float(value))
    if isinstance(value, datetime.datetime):
        return value.isoformat(" ")
    return str(value).lower() if isinstance(value, (bool, np.bool_)) else str(value)
