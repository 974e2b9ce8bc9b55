"""Data frames as records, through Arrow: exporters of Arrow streams, pandas, mappings of arrays or lists."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute

from packer.errors import UsageError
from packer.tables.reading.arrow_values import Arrow, is_text, readable, records_of, type_of
from packer.tables.reading.table_source import text_dialect
from packer.tables.transform.records import ParsedRows, RecordLayout


def columns_of(data: Any) -> dict[str, Any]:
    """Return the columns of a data frame or mapping, by name; the first of equal names. Raises UsageError."""
    if hasattr(data, "__arrow_c_stream__") and not hasattr(data, "iloc"):
        table = pa.table(data)
        pairs = zip(table.column_names, table.columns, strict=True)
    elif hasattr(data, "items"):  # a mapping, or pandas, where unused columns may have mixed types
        pairs = data.items()
    else:
        raise UsageError(
            f"data: is a {type(data).__name__}; a pandas DataFrame, an object that exports an Arrow stream"
            " (polars, pyarrow), or a dict of columns is allowed. Pass one of them."
        )
    columns: dict[str, Any] = {}
    for name, values in pairs:
        columns.setdefault(str(name), values)
    return columns


def records(
    columns: Mapping[str, Any], layout: RecordLayout, reading: Mapping[str, Any]
) -> tuple[ParsedRows, list[int]]:
    """Return the records of the layout's columns, and the numbers of category columns without texts.

    reading: options with which the texts of the pack's files were read. Raises UsageError.
    """
    dialect = text_dialect(reading)
    # Files that have nulls have no texts that mean missing.
    missing = [text.decode() for text in dialect.na] if "na" in reading else []
    arrays: list[Arrow] = []
    others: list[int] = []
    for w in layout.members:
        name, kind = w.column.name, w.column.type
        try:
            array = _array(columns[name])
            if is_text(array.type) and missing:
                absent = pa.compute.is_in(array, value_set=pa.array(missing, array.type))
                array = pa.compute.if_else(absent, pa.scalar(None, array.type), array)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise UsageError(
                f"column {name!r}: {error}; a value for each row is needed, all of one type. Convert it."
            ) from None
        natural = type_of(array.type)
        # Booleans with missing values are floats.
        number = w.column.kind.numeric and natural in ("number", "integer")
        span = kind == "time" and pa.types.is_duration(array.type)
        if not (readable(array.type, kind) or number or span):
            raise UsageError(
                f"column {name!r}: holds {array.type}, which cannot be read as {kind}. Convert it."
            )
        if arrays and len(array) != len(arrays[0]):
            raise UsageError(
                f"column {name!r}: has {len(array):,} rows, and {layout.members[0].column.name!r} has"
                f" {len(arrays[0]):,};"
                " all columns need the same length. Pass columns of equal length."
            )
        if kind == "category" and not is_text(array.type):
            others.append(w.index)
        arrays.append(array)
    return records_of(arrays, layout, dialect), others


def _array(values: Any) -> Arrow:
    """Return a column as one Arrow array. Raises TypeError, ValueError, ArrowException."""
    if isinstance(values, (str, bytes)):
        raise TypeError(f"is a {type(values).__name__}")
    if isinstance(values, pa.ChunkedArray):
        array = values  # through its stream, views of short texts would end the process (pyarrow 18 to 24)
    elif hasattr(values, "__arrow_c_stream__") and not hasattr(values, "iloc"):
        array = pa.chunked_array(values)
    else:
        array = pa.array(values, from_pandas=True)
        # Arrow silently converts other objects among dates into dates.
        if pa.types.is_temporal(array.type) and str(getattr(values, "dtype", "object")) == "object":
            given = zip(values, array.is_null().to_pylist(), strict=True)
            types = {dt.datetime if isinstance(x, dt.datetime) else type(x) for x, null in given if not null}
            if len(types) > 1:
                raise TypeError(f"holds {' and '.join(sorted(t.__name__ for t in types))}")
    if array.null_count == len(array):
        return pa.nulls(len(array))  # missing values alone have no type
    return pa.concat_arrays(map(_plain, array.chunks if isinstance(array, pa.ChunkedArray) else [array]))


def _plain(values: Arrow) -> Arrow:
    """Decode dictionaries and views (Polars writes these), which some pyarrow functions cannot read."""
    if pa.types.is_dictionary(values.type):
        return _plain(values.dictionary).take(values.indices)
    plain = not str(values.type).endswith(("binary", "_view"))
    return values if plain else values.cast(pa.large_string())
