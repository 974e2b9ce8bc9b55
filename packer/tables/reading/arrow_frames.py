"""FrameTable: a data frame as a table, through Arrow.

A frame is an exporter of an Arrow stream (polars, pyarrow, DuckDB, ADBC), a pandas DataFrame, a mapping of
arrays or lists, a list of mappings, or a cursor of DB-API with the result of a query.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from itertools import repeat
from typing import Any

import pyarrow as pa

from packer.errors import UsageError
from packer.format.checksums import digest
from packer.tables.reading.arrow_batches import BatchSource
from packer.tables.reading.arrow_table import ArrowTable
from packer.tables.reading.arrow_values import Arrow
from packer.tables.reading.row_records import alike
from packer.tables.reading.table_source import ReadOptions

_UNREADABLE = (pa.ArrowException, TypeError, ValueError, OverflowError)


class FrameTable(ArrowTable):
    """A data frame in memory; its content is its identity, so that runs resume as those of files do."""

    def __init__(self, data: Any, reading: ReadOptions, only: Collection[str] | None = None) -> None:
        """Raise UsageError for other objects, and for columns of different lengths.

        only: names of the columns that are read, None for all.
        """
        columns = [(str(name), values) for name, values in _columns_of(data)]
        faults: dict[int, str] = {}
        arrays: dict[int, Arrow] = {}
        for number, (name, values) in enumerate(columns):
            if only is not None and name not in only:
                continue
            unsized = not hasattr(values, "__len__") or getattr(values, "shape", None) == ()
            if unsized or isinstance(values, (str, bytes)):
                raise UsageError(
                    f"column {name!r}: is a {type(values).__name__}; a value for each row is needed. Pass a"
                    " list."
                )
            first = next(iter(arrays), number)
            rows, others = len(values), len(arrays.get(first, values))
            if rows != others:
                raise UsageError(
                    f"column {name!r}: has {rows:,} rows, and {columns[first][0]!r} has {others:,}; all"
                    " columns need the same length. Pass columns of equal length."
                )
            try:
                arrays[number] = _array(values)
            except _UNREADABLE as error:
                faults[number] = f"column {name!r}: {error}; all values must have one type"
                arrays[number] = pa.nulls(rows, pa.list_(pa.null()))
        unread = pa.nulls(len(next(iter(arrays.values()), ())))
        self._batch = batch = pa.record_batch(
            [arrays.get(number, unread) for number in range(len(columns))],
            names=[name for name, _ in columns],
        )
        frame = BatchSource(
            "data frame",
            batch.schema,
            batch.num_rows,
            lambda indices, most, row: iter([(0, batch.nbytes, [batch.column(i) for i in indices])]),
            faults,
        )
        super().__init__([frame], reading)
        self.nbytes = batch.nbytes

    @cached_property
    def _digest(self) -> str:
        parts = (part for column in self._batch.columns for part in column.buffers() if part is not None)
        return digest([f"{self._batch.num_rows} {self._batch.schema}".encode(), *parts]).hex()

    def fingerprint(self) -> dict[str, Any]:
        """See TableSource."""
        return {**super().fingerprint(), "sizes": [self.nbytes], "content": self._digest}

    def digests(self) -> list[str]:
        """See TableSource."""
        return [self._digest]


def _columns_of(data: Any) -> Iterable[tuple[Any, Any]]:
    """Return the names and values of a frame's columns. Raises UsageError."""
    if hasattr(data, "reset_index") and any(name is not None for name in data.index.names):
        data = data.reset_index()  # named indexes are columns, as in Parquet files of pandas
    if isinstance(data, list):
        rows: Any = alike(data)
        return [(name, [row[name] for row in rows]) for name in (rows[0] if rows else ())]
    if hasattr(data, "__arrow_c_stream__") and not hasattr(data, "iloc"):
        try:
            table = pa.table(data)
        except _UNREADABLE as error:
            raise UsageError(f"data: Arrow cannot read it ({error}). Convert its columns.") from None
        return zip(table.column_names, table.columns, strict=True)
    if getattr(data, "description", None) and hasattr(data, "fetchall"):
        rows, names = data.fetchall(), [column[0] for column in data.description]
        if rows and isinstance(rows[0], Mapping):  # of a cursor of dicts
            rows = [[row[name] for name in names] for row in rows]
        return zip(names, zip(*rows, strict=True) if rows else repeat(()), strict=False)
    if hasattr(data, "items") and not hasattr(data, "to_frame"):  # a Series has it
        pairs: Iterable[tuple[Any, Any]] = data.items()
        return pairs
    raise UsageError(
        f"data: is a {type(data).__name__}; a pandas DataFrame, an object that exports an Arrow stream"
        " (polars, pyarrow), a dict of columns, or a cursor after a query is allowed. Pass one of them."
    )


def _array(values: Any) -> Arrow:
    """Return a column as one Arrow array. Raises TypeError, ValueError, ArrowException."""
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
