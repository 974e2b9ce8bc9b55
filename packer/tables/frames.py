"""apply: map rows of a data frame, or a single row, like the rows of a pack. Arrow reads the frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from packer.errors import MissingDependencyError, UsageError
from packer.format.table_record import check_table
from packer.garbage import paused
from packer.tables.row_records import RowReader
from packer.tables.transform.column_types import TableColumn, matched
from packer.tables.transform.row_mapper import MappedRows, RowMapper
from packer.tables.transform.table_transform import TableTransform

_FEW = 100  # most rows that are mapped without Arrow; more of them are faster with it
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
        text. The label and kept columns that `data` lacks are left out.

    Raises
    ------
    UsageError
        A feature's column is missing, a cell does not have its column's type, a label is not one of the
        classes, or a mapped value does not fit the features' dtype.
    MissingDependencyError
        pyarrow is not installed.

    Notes
    -----
    Texts are read with the options of the pack's files. Categories that the pack does not know get code 0,
    like missing ones. A number in a column of categories, also one written as text, is the category whose
    text is this number, 1 or 1.0: pandas holds whole numbers as floats where cells are missing. Spaces around
    a text do not count.
    """
    mapping = _mapping(header)
    single = (
        hasattr(data, "items") and len(data) > 0 and all(map(_is_cell, {type(x) for _, x in data.items()}))
    )
    rows = [dict(data.items())] if single else data if isinstance(data, list) else []
    mapped = mapping.rows(rows) if 0 < len(rows) <= _FEW else None
    if mapped is None:
        mapped = _mapped_by_arrow(mapping.transform, rows if single or isinstance(data, list) else data)
    fields = {
        name: [text.decode() for text in values] if isinstance(values, list) else values
        for name, values in mapped.fields.items()
    }
    return {name: values[0] for name, values in fields.items()} if single else fields


def _mapped_by_arrow(transform: TableTransform, data: Any) -> MappedRows:
    """Map the rows of a data frame, of a mapping of columns or of dicts. Raises like apply."""
    try:
        from packer.tables.reading import arrow_frames
    except ImportError:
        raise MissingDependencyError("pyarrow", "mapping data frames") from None
    columns = arrow_frames.columns_of(data)
    plan = transform.plan_for(TableColumn.named(columns))
    rows = arrow_frames.records(columns, plan.layout, transform.reading)
    for index, texts in rows.dictionaries.items():
        rows.dictionaries[index] = matched(transform.column(plan.columns[index].name), texts)
    bad = rows.bad or plan.bad_rows(rows.records, rows.dictionaries, 1)[1]
    if bad:
        name = plan.columns[bad[0].column or 0].name
        shown = f"{bad[0].value!r} " if bad[0].value else ""
        raise _unfit(bad[0].line, name, f"{shown}{bad[0].reason}")
    mapped = RowMapper(transform, plan.layout, rows.dictionaries).map(rows.records, rows.texts)
    if mapped.beyond is not None:
        what = f"becomes a number beyond {np.dtype(transform.dtype).name} once it is mapped"
        raise _unfit(*mapped.beyond, what)
    return mapped


def _is_cell(type: type) -> bool:
    return issubclass(type, (str, bytes)) or not hasattr(type, "__iter__")


def _unfit(row: int, name: str, what: str) -> UsageError:
    return UsageError(f"row {row:,}, column {name!r}: {what}. Correct it, or leave the row out.")


class _Mapping:
    """A transform, and the reader of the rows that were mapped last."""

    def __init__(self, transform: TableTransform) -> None:
        self.transform = transform
        self._features = {c.name for c in transform.columns if c.role == "feature"}
        self._reader: RowReader | None = None

    def rows(self, rows: list[Any]) -> MappedRows | None:
        """Map some dicts with the same columns. None: only Arrow can tell if these rows can be mapped."""
        if any(type(row) is not dict or row.keys() != rows[0].keys() for row in rows):
            return None
        if not (self._features <= rows[0].keys() and all(type(name) is str for name in rows[0])):
            return None
        names = [c.name for c in self.transform.columns if c.name in rows[0]]
        if self._reader is None or self._reader.names != names:
            self._reader = RowReader(self.transform, names)
        return self._reader.map(rows)


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
