"""apply: rows of a data frame, or one row, mapped as the rows of a pack were. Frames come in through Arrow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from packer.errors import MissingDependencyError, UsageError
from packer.format.table_record import check_table
from packer.tables.transform.column_types import TableColumn
from packer.tables.transform.row_mapper import RowMapper
from packer.tables.transform.table_transform import TableTransform


def apply(header: Any, data: Any) -> dict[str, Any]:
    """Map the rows of a data frame, or one row, as the rows of a pack were.

    Columns are found by name; others than the pack's are passed over.

    Parameters
    ----------
    header : Pack, Header or mapping
        A pack that was made from a table, its header, or the header's member `table`.
    data : DataFrame, Table or mapping
        A pandas DataFrame, whatever hands out an Arrow stream (polars, pyarrow, DuckDB), or a dict of arrays or
        lists. One row: a dict of single values. Several: a list of such dicts.

    Returns
    -------
    dict
        Field name -> array [n, ...] as in the pack; texts that were kept as a list. Of one row [...], and a text.
        Without the columns of the label, or a kept column, its field is left out.

    Raises
    ------
    UsageError
        A feature's column is missing, a cell is not of its column's type, its label is none of the classes, or what a cell becomes
        does not fit the features' dtype.
    MissingDependencyError
        pyarrow is not installed.

    Notes
    -----
    Texts are read as those of the pack's files were. Categories that the pack does not know are 0, as missing ones are. A number in a
    column of categories is the one that is this number, 1 or 1.0, so that whole numbers that pandas holds as floats, because cells
    are missing, are found again.
    """
    transform = _transform(header)
    one = hasattr(data, "items") and len(data) > 0 and all(_is_cell(value) for _, value in data.items())
    if one or isinstance(data, list):
        data = _columns([data] if one else data)
    try:
        from packer.tables.reading import arrow_frames
    except ImportError:
        raise MissingDependencyError("pyarrow", "mapping data frames") from None
    columns = arrow_frames.columns_of(data)
    plan = transform.plan_for([TableColumn(name, "number") for name in columns])
    rows, texts_of_others = arrow_frames.records(columns, plan.layout, transform.reading)
    for index in texts_of_others:
        ways = _ways(transform.column(plan.columns[index].name).categories or ())
        held = rows.dictionaries[index]
        rows.dictionaries[index] = [ways.get(text) or ways.get(_key(text)) or text for text in held]
    bad = rows.bad or plan.bad_rows(rows.records, rows.dictionaries, 1)[1]
    if bad:
        name = plan.columns[bad[0].column or 0].name
        shown = f"{bad[0].value!r} " if bad[0].value else ""
        raise _unfit(bad[0].line, name, f"{shown}{bad[0].reason}")
    mapped = RowMapper(transform, plan.layout, rows.dictionaries).map(rows.records, rows.texts)
    if mapped.beyond is not None:
        what = f"becomes a number beyond {np.dtype(transform.dtype).name} once it is mapped"
        raise _unfit(*mapped.beyond, what)
    fields = {
        name: [text.decode() for text in found] if isinstance(found, list) else found
        for name, found in mapped.fields.items()
    }
    return {name: found[0] for name, found in fields.items()} if one else fields


def _is_cell(value: Any) -> bool:
    return isinstance(value, (str, bytes)) or not hasattr(value, "__iter__")


def _columns(given: list[Any]) -> dict[str, list[Any]]:
    """Return rows, each a mapping of the same names to single values, as columns. Raises UsageError."""
    rows: list[dict[Any, Any]] = []
    for number, row in enumerate(given):
        if not hasattr(row, "items"):
            raise UsageError(f"data: row {number} is a {type(row).__name__}; a dict is allowed. Pass such.")
        rows.append(dict(row.items()))
        if rows[-1].keys() != rows[0].keys():
            name = min(rows[-1].keys() ^ rows[0].keys(), key=str)
            raise UsageError(
                f"data: row {number} and row 0 do not both have {name!r}; all rows have the same columns. Give"
                " it, None where it is missing."
            )
    return {str(name): [row[name] for row in rows] for name in (rows[0] if rows else ())}


def _unfit(row: int, name: str, what: str) -> UsageError:
    return UsageError(f"row {row:,}, column {name!r}: {what}. Mend it, or leave the row out.")


def _ways(known: Sequence[str]) -> dict[float | str, str]:
    """Return the categories by the number, or the boolean in small letters, that each is; none for two that are the same."""
    ways: dict[float | str, list[str]] = {}
    for text in known:
        ways.setdefault(_key(text), []).append(text)
    return {text: text for text in known} | {key: alike[0] for key, alike in ways.items() if len(alike) == 1}


def _key(text: str) -> float | str:
    """Return what equal numbers and booleans have in common, also beyond float64's whole numbers."""
    try:
        return int(text) if text.lstrip("+-").isdigit() else int(f) if (f := float(text)).is_integer() else f
    except (ValueError, OverflowError):
        return text.lower()


def _transform(header: Any) -> TableTransform:
    table = (
        header if isinstance(header, Mapping) else getattr(getattr(header, "header", header), "table", None)
    )
    if not isinstance(table, Mapping):
        raise UsageError(
            f"header: the {type(header).__name__} holds no mapping of a table; packs that were converted from tables do."
            " Pass one, or its header."
        )
    try:
        # A pack's was checked when the pack was opened: it takes as long as mapping a row.
        return TableTransform.from_json(check_table(table) if table is header else table)
    except ValueError as error:
        raise UsageError(f"header: {error}. Convert the table again.") from None
