"""apply: map rows of a data frame, or a single row, like the rows of a pack. Arrow reads the frames."""

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
    like missing ones. A number in a column of categories is the category whose text is this number, 1 or 1.0,
    so that whole numbers match that pandas holds as floats because cells are missing.
    """
    transform = _transform(header)
    single = hasattr(data, "items") and len(data) > 0 and all(_is_cell(value) for _, value in data.items())
    try:
        from packer.tables.reading import arrow_frames
    except ImportError:
        raise MissingDependencyError("pyarrow", "mapping data frames") from None
    columns = arrow_frames.columns_of([data] if single else data)
    plan = transform.plan_for([TableColumn(name, "number") for name in columns])
    rows, texts_of_others = arrow_frames.records(columns, plan.layout, transform.reading)
    for index in texts_of_others:
        matches = _matches(transform.column(plan.columns[index].name).categories or ())
        texts = rows.dictionaries[index]
        rows.dictionaries[index] = [matches.get(text) or matches.get(_key(text)) or text for text in texts]
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
        name: [text.decode() for text in values] if isinstance(values, list) else values
        for name, values in mapped.fields.items()
    }
    return {name: values[0] for name, values in fields.items()} if single else fields


def _is_cell(value: Any) -> bool:
    return isinstance(value, (str, bytes)) or not hasattr(value, "__iter__")


def _unfit(row: int, name: str, what: str) -> UsageError:
    return UsageError(f"row {row:,}, column {name!r}: {what}. Correct it, or leave the row out.")


def _matches(known: Sequence[str]) -> dict[float | str, str]:
    """Return the categories by their text and by their `_key`, unless several share the key."""
    keyed: dict[float | str, list[str]] = {}
    for text in known:
        keyed.setdefault(_key(text), []).append(text)
    return {text: text for text in known} | {key: alike[0] for key, alike in keyed.items() if len(alike) == 1}


def _key(text: str) -> float | str:
    """Return equal keys for texts of equal numbers (exact beyond float64's whole numbers) or booleans."""
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
            f"header: the {type(header).__name__} holds no mapping of a table; packs that were converted from"
            " tables do."
            " Pass one, or its header."
        )
    try:
        # The table of a pack was checked when the pack was opened: a check takes as long as mapping a row.
        return TableTransform.from_json(check_table(table) if table is header else table)
    except ValueError as error:
        raise UsageError(f"header: {error}. Convert the table again.") from None
