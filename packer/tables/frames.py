"""apply: map rows of a data frame, as convert_table does with `like`, or rows given as dicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from packer.errors import UsageError
from packer.format.table_record import check_table
from packer.garbage import paused
from packer.parquet import reading_arrow
from packer.tables.reading.row_records import RowReader, alike
from packer.tables.reading.table_source import ReadOptions
from packer.tables.table_options import read_alike
from packer.tables.transform.column_types import TableColumn, is_missing
from packer.tables.transform.records import ParsedRows
from packer.tables.transform.row_mapper import Fields, RowMapper
from packer.tables.transform.table_transform import TableTransform

_KEPT = 8  # most tables of packs whose mappings are kept


def apply(header: Any, data: Any) -> dict[str, Any]:
    """Map the rows of a data frame, or a single row, like the rows of a pack.

    Columns are matched by name; columns that the pack does not have are ignored.

    Parameters
    ----------
    header : Pack, Header or mapping
        A pack that was converted from a table, its header, or the header's member `table`.
    data : DataFrame, Table or mapping
        A pandas DataFrame, an object that exports an Arrow stream (polars, pyarrow, DuckDB), or a dict of
        arrays or lists. For one row: a dict of single values. For several rows: a list of such dicts.

    Returns
    -------
    dict
        Field name -> array [n, ...] as in the pack; kept texts as a list. For one row: arrays [...] and a
        text. The label and kept columns that `data` lacks are left out, and a label without a value.

    Raises
    ------
    UsageError
        A feature's column is missing, a cell does not have its column's type, a label is not one of the
        classes, or a mapped value does not fit the features' dtype.
    SourceError, MissingDependencyError
        Arrow cannot read a data frame; pyarrow, which dicts of single values do not need, is not installed.

    Notes
    -----
    Texts are read with the options of the pack's files; each row of dicts by itself. Categories that the pack
    does not know get code 0, like missing ones. A number in a column of categories, also one written as text,
    is the category whose text is this number, 1 or 1.0: pandas holds whole numbers as floats where cells are
    missing. Spaces around a text do not count.
    """
    mapping = _mapping(header)
    single = (
        hasattr(data, "items") and len(data) > 0 and all(map(_is_cell, {type(x) for _, x in data.items()}))
    )
    rows = [data] if single else data
    pieces = mapping.rows(alike(rows)) if isinstance(rows, list) else mapping.frame(data)
    fields: dict[str, Any] = {}
    for name, parts in ((name, [piece[name] for piece in pieces]) for name in pieces[0]):
        if isinstance(parts[0], list):
            fields[name] = [text.decode() for part in parts for text in part]
        else:
            fields[name] = np.concatenate(parts) if len(parts) > 1 else parts[0]
    return {name: values[0] for name, values in fields.items()} if single else fields


def _is_cell(type: type) -> bool:
    return issubclass(type, (str, bytes)) or not hasattr(type, "__iter__")


def _unfit(row: int, name: str, what: str) -> UsageError:
    return UsageError(f"row {row:,}, column {name!r}: {what}. Correct it, or leave the row out.")


class _Mapping:
    """A transform, and the readers of the rows that were mapped last, with and without a label."""

    def __init__(self, transform: TableTransform) -> None:
        self._transform, self._reading = transform, read_alike(ReadOptions(), transform, "like")
        self._readers: dict[bool, RowReader] = {}

    def rows(self, rows: Sequence[Mapping[str, Any]], *, labeled: bool = True) -> list[Fields]:
        """Return the fields of some dicts with the same columns. Raises UsageError."""
        given = rows[0] if rows else {}
        names = [
            c.name for c in self._transform.columns if c.name in given and (labeled or c.role != "label")
        ]
        if (reader := self._readers.get(labeled)) is None or reader.names != names:
            with paused():
                columns = TableColumn.named(dict.fromkeys([*names, *given]))
                plan = self._transform.plan_for(columns, labeled=labeled)
                self._readers[labeled] = reader = RowReader(names, self._transform, plan, self._reading)
        parsed = reader.read(rows)
        labels = [w.name for w in reader.plan.layout.members if w.column.role == "label"]
        if not parsed.bad and any(is_missing(parsed.records[name]).all() for name in labels):
            return self.rows(rows, labeled=False)
        return [self._fields(reader.plan, parsed, reader.mapper)]

    def frame(self, data: Any) -> list[Fields]:
        """Return the fields of a data frame, in pieces. Raises like apply."""
        with reading_arrow("data frame"):
            from packer.tables.reading.arrow_frames import FrameTable

            table = FrameTable(data, self._reading, {c.name for c in self._transform.columns})
        plan = self._transform.plan_for(table.columns)
        if not table.rows:
            return [self._fields(plan, ParsedRows(np.zeros(0, plan.layout.dtype)))]
        if table.empty_label(plan.layout):
            plan = self._transform.plan_for(table.columns, labeled=False)
        return [self._fields(plan, chunk.read(), first=chunk.after[1]) for chunk in table.chunks(plan.layout)]

    def _fields(
        self, plan: TableTransform, parsed: ParsedRows, mapper: RowMapper | None = None, first: int = 0
    ) -> Fields:
        """Return the fields of parsed rows. first: number of the row after them. Raises UsageError."""
        first = max(0, first - parsed.lines)
        if not parsed.bad:
            plan.accept(parsed)
        for bad in parsed.bad[:1]:
            shown = f"{bad.value!r} " if bad.value else ""
            raise _unfit(first + bad.line, plan.columns[bad.column or 0].name, f"{shown}{bad.reason}")
        mapper = mapper or RowMapper(self._transform, plan.layout, parsed.dictionaries)
        mapped = mapper.map(parsed.records, parsed.texts)
        if mapped.beyond is not None:
            what = f"becomes a number beyond {np.dtype(plan.dtype).name} once it is mapped"
            raise _unfit(first + mapped.beyond[0], mapped.beyond[1], what)
        return mapped.fields


_latest: dict[int, tuple[Mapping[str, Any], _Mapping]] = {}
"""Id of the table of a pack -> the table, which keeps the id in use, and its mapping."""


@paused()
def _mapping(header: Any) -> _Mapping:
    """Return the mapping of a table; that of a pack is kept for further calls."""
    table = (
        header if isinstance(header, Mapping) else getattr(getattr(header, "header", header), "table", None)
    )
    if not isinstance(table, Mapping):
        raise UsageError(
            f"header: the {type(header).__name__} holds no mapping of a table; packs that were converted"
            " from tables do. Pass one, or its header."
        )
    if table is not header and (kept := _latest.get(id(table))) is not None:
        return kept[1]
    try:
        # The table of a pack was checked when the pack was opened: a check takes as long as mapping a row.
        mapping = _Mapping(TableTransform.from_json(check_table(table) if table is header else table))
    except ValueError as error:
        raise UsageError(f"header: {error}. Convert the table again.") from None
    if table is not header:
        for oldest in list(_latest)[: max(0, len(_latest) + 1 - _KEPT)]:
            _latest.pop(oldest, None)
        _latest[id(table)] = table, mapping
    return mapping
