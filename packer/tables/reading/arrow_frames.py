"""Data frames through Arrow, as tables and as records.

A frame is an exporter of an Arrow stream (polars, pyarrow, DuckDB, ADBC), a pandas DataFrame, a mapping of
arrays or lists, a list of mappings, or a cursor of DB-API with the result of a query.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from itertools import repeat
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.ipc

from packer.errors import UsageError
from packer.format.checksums import digest
from packer.tables.reading.arrow_batches import BatchSource
from packer.tables.reading.arrow_table import ArrowTable
from packer.tables.reading.arrow_values import Arrow, readable, records_of, without_words
from packer.tables.reading.table_source import ReadOptions, text_dialect
from packer.tables.transform.records import ParsedRows, RecordLayout

_UNREADABLE = (pa.ArrowException, TypeError, ValueError, OverflowError)


def columns_of(data: Any, *, once: bool = False) -> dict[str, Any]:
    """Return the columns of a data frame or mapping, by name; the first of equal names.

    once: equal names are an error. Raises UsageError.
    """
    pairs: Iterable[tuple[Any, Any]]
    if hasattr(data, "reset_index") and any(name is not None for name in data.index.names):
        data = data.reset_index()  # named indexes are columns, as in Parquet files of pandas
    if isinstance(data, list):
        pairs = _columns(data).items()
    elif hasattr(data, "__arrow_c_stream__") and not hasattr(data, "iloc"):
        try:
            table = pa.table(data)
        except _UNREADABLE as error:
            raise UsageError(f"data: Arrow cannot read it ({error}). Convert its columns.") from None
        pairs = zip(table.column_names, table.columns, strict=True)
    elif getattr(data, "description", None) and hasattr(data, "fetchall"):
        rows, names = data.fetchall(), [c[0] for c in data.description]
        if rows and isinstance(rows[0], Mapping):  # of a cursor of dicts
            rows = [[row[name] for name in names] for row in rows]
        pairs = zip(names, zip(*rows, strict=True) if rows else repeat(()), strict=False)
    elif hasattr(data, "items") and not hasattr(data, "to_frame"):
        pairs = data.items()  # a mapping, or pandas, where unused columns may have mixed types
    else:
        raise UsageError(
            f"data: is a {type(data).__name__}; a pandas DataFrame, an object that exports an Arrow stream"
            " (polars, pyarrow), a dict of columns, or a cursor after a query is allowed. Pass one of them."
        )
    columns: dict[str, Any] = {}
    for name, values in pairs:
        if once and str(name) in columns:
            raise UsageError(f"data: has two columns named {str(name)!r}; each has its own name. Rename one.")
        columns.setdefault(str(name), values)
    return columns


def _columns(given: list[Any]) -> dict[str, list[Any]]:
    """Return rows, mappings of the same names to single values, as columns. Raises UsageError."""
    rows: list[dict[Any, Any]] = []
    for number, row in enumerate(given):
        if not hasattr(row, "items"):
            raise UsageError(f"data: row {number} is a {type(row).__name__}; a dict is allowed. Pass dicts.")
        rows.append(dict(row.items()))
        if rows[-1].keys() != rows[0].keys():
            name = min(rows[-1].keys() ^ rows[0].keys(), key=str)
            raise UsageError(
                f"data: row {number} and row 0 do not both have {name!r}; all rows need the same columns."
                " Add it, with None where it is missing."
            )
    return {str(name): [row[name] for row in rows] for name in (rows[0] if rows else ())}


class FrameTable(ArrowTable):
    """A data frame in memory; its content is its identity, so that runs resume as those of files do."""

    def __init__(self, data: Any, reading: ReadOptions) -> None:
        """Raises UsageError for other objects, and for columns of different lengths."""
        faults: dict[str, str] = {}
        batch = _batch_of(data, faults)
        frame = BatchSource(
            "data frame",
            batch.schema,
            batch.num_rows,
            lambda indices, most, row: iter([(0, batch.nbytes, [batch.column(i) for i in indices])]),
            faults,
        )
        super().__init__([frame], reading)
        digests: list[bytes] = []  # of the pieces written, which are kept nowhere
        sink = SimpleNamespace(
            closed=False, flush=lambda: None, write=lambda piece: digests.append(digest([piece]))
        )
        with pa.ipc.new_stream(pa.PythonFile(sink, "w"), batch.schema) as writer:
            writer.write_batch(batch)
        self.nbytes, self._digest = batch.nbytes, digest(digests).hex()

    def fingerprint(self) -> dict[str, Any]:
        """See TableSource."""
        return {**super().fingerprint(), "sizes": [self.nbytes], "content": self._digest}

    def digests(self) -> list[str]:
        """See TableSource."""
        return [self._digest]


def _batch_of(data: Any, faults: dict[str, str]) -> Any:
    """Return a data frame as one record batch. faults: gets unreadable columns. Raises UsageError."""
    columns: dict[str, Arrow] = {}
    for name, values in columns_of(data, once=True).items():
        if isinstance(values, (str, bytes)) or not hasattr(values, "__len__"):
            raise UsageError(
                f"column {name!r}: is a {type(values).__name__}; a value for each row is needed. Pass a list."
            )
        try:
            columns[name] = _array(values)
        except _UNREADABLE as error:
            faults[name] = f"column {name!r}: {error}; all values must have one type"
            columns[name] = pa.nulls(len(values), pa.list_(pa.null()))
        _check_length(columns, name)
    return pa.record_batch(columns)


def _check_length(columns: Mapping[str, Arrow], name: str) -> None:
    """Raise UsageError if a column is not as long as the first."""
    first = next(iter(columns))
    if len(columns[name]) != len(columns[first]):
        raise UsageError(
            f"column {name!r}: has {len(columns[name]):,} rows, and {first!r} has {len(columns[first]):,};"
            " all columns need the same length. Pass columns of equal length."
        )


def records(columns: Mapping[str, Any], layout: RecordLayout, reading: Mapping[str, Any]) -> ParsedRows:
    """Return the records of the layout's columns.

    reading: options with which the texts of the pack's files were read. Raises UsageError.
    """
    dialect = text_dialect(reading)
    arrays: dict[str, Arrow] = {}
    for w in layout.members:
        name, kind = w.column.name, w.column.type
        try:
            array = _array(columns[name])
            array = without_words(array, w, dialect) if "na" in reading else array
        except _UNREADABLE as error:
            raise UsageError(
                f"column {name!r}: {error}; a value for each row is needed, all of one type. Convert it."
            ) from None
        if not readable(array.type, w.column):
            raise UsageError(
                f"column {name!r}: holds {array.type}, which cannot be read as {kind}. Convert it."
            )
        arrays[name] = array
        _check_length(arrays, name)
    return records_of([*arrays.values()], layout, dialect)


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
