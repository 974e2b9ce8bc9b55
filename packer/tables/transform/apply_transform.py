"""The mapping of a pack, applied to a data frame: what conversion would have stored for these rows, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.format.table_record import check_table
from packer.tables.transform import data_frames
from packer.tables.transform.column_plan import bad_rows
from packer.tables.transform.records import TEXT, TableColumn
from packer.tables.transform.row_mapper import RowMapper
from packer.tables.transform.table_transform import TableTransform


def apply(header: Any, data: Any) -> dict[str, NDArray[Any] | list[str]]:
    """Map the rows of a data frame as the rows of a pack were.

    Columns are found by name; others than the pack's are passed over.

    Parameters
    ----------
    header : Pack, Header or mapping
        A pack that was made from a table, its header, or the header's member `table`.
    data : DataFrame, Table or mapping
        A pandas or polars DataFrame, a pyarrow Table, or a dict of arrays or lists.

    Returns
    -------
    dict
        Field name -> array [n, ...] as in the pack; texts that were kept as a list. Without the columns of the label, or a kept
        column, its field is left out.

    Raises
    ------
    UsageError
        A feature's column is missing, a cell is not of its column's type, its label is none of the classes, or what a cell becomes
        does not fit the features' dtype.

    Notes
    -----
    Categories that the pack does not know are 0, as missing ones are. A number in a column of categories is taken as its shortest
    text, 1 for 1.0, so that whole numbers that pandas holds as floats, because cells are missing, are found again.
    """
    transform = _transform(header)
    frame = data_frames.frame(data)
    plan = transform.plan_for([TableColumn(name, "number") for name in frame.names])
    layout = plan.layout
    records = np.empty(frame.rows, layout.dtype)
    dictionaries: dict[int, list[str]] = {}
    # A pack of text files says how they were read; files that have nulls have no texts that mean missing.
    reading = transform.reading
    na = data_frames.NA | frozenset(map(str, reading["na"])) if "na" in reading else frozenset()
    marks = str(reading.get("decimal", ".")), str(reading.get("thousands", ""))
    blob = bytearray()
    for w in layout.members:
        cells = frame.get(w.column.name)
        if w.column.type == "category":
            records[w.name], dictionaries[w.index] = data_frames.codes(cells, na)
        elif w.column.type == "text":
            records[w.name] = _texts(data_frames.texts(cells, na), blob)
        else:
            raw = data_frames.numbers(cells, w.column, na or data_frames.NA, marks)
            with np.errstate(over="ignore"):
                records[w.name] = raw
            _check_range(raw, records[w.name], w.column)
    mask, bad = bad_rows(records, plan.rules, 1)
    if mask is not None:
        name = plan.columns[bad[0].column or 0].name
        shown = f"{bad[0].value!r} " if bad[0].value else ""
        raise UsageError(
            f"row {bad[0].line:,}, column {name!r}: {shown}{bad[0].reason}. Mend it, or leave the row out."
        )
    mapped = RowMapper(transform, layout, dictionaries).map(records, bytes(blob))
    if mapped.bad is not None:
        row = int(np.argmax(mapped.bad))
        name = transform.label[0]
        raise UsageError(
            f"row {row:,}, column {name!r}: {str(data_frames.texts(frame.get(name))[row])!r} is none of the label's classes."
            " Leave the row, or the column, out."
        )
    if mapped.beyond is not None:
        row, name = mapped.beyond
        raise UsageError(
            f"row {row:,}, column {name!r}: becomes a number beyond {np.dtype(transform.dtype).name} once it is mapped."
            " Mend the cell, or leave the row out."
        )
    return {
        name: [text.decode("utf-8", "surrogateescape") for text in rows] if isinstance(rows, list) else rows
        for name, rows in mapped.fields.items()
    }


def _transform(header: Any) -> TableTransform:
    try:
        if isinstance(header, Mapping):
            check_table(header)
            return TableTransform.from_json(header)
        table = getattr(getattr(header, "header", header), "table", None)
        if isinstance(table, Mapping):
            return TableTransform.from_json(table)
    except ValueError as error:
        raise UsageError(f"header: {error}. Convert the table again.") from None
    raise UsageError(
        f"header: the {type(header).__name__} holds no mapping of a table; packs that were converted from tables do."
        " Pass one, or its header."
    )


def _texts(cells: list[str | None], blob: bytearray) -> NDArray[Any]:
    """Append the texts to the blob. Returns: where each lies in it."""
    places = []
    for text in cells:
        data = (text or "").encode("utf-8", "surrogateescape")
        places.append((len(blob), len(data)))
        blob += data
    return np.array(places, TEXT)


def _check_range(raw: NDArray[Any], stored: NDArray[Any], column: TableColumn) -> None:
    if stored.dtype == np.float32 and raw.dtype == np.float64:
        wrong = np.isinf(stored)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise UsageError(
                f"row {row:,}, column {column.name!r}: {float(raw[row])!r} is beyond float32. Mend it, or leave the row out."
            )
