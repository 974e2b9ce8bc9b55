"""Tables of Python values, and the records a reader makes of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from packer.tables.transform import fitting
from packer.tables.transform.column_plan import ColumnChoices, plan_columns
from packer.tables.transform.column_sums import ColumnSums
from packer.tables.transform.column_types import MISSING_INTEGER, TableColumn
from packer.tables.transform.records import RecordLayout, floats_of
from packer.tables.transform.row_mapper import MappedRows, RowMapper
from packer.tables.transform.table_transform import TableTransform


@dataclass
class Table:
    """columns; cells: a list for each, None for missing; of the values that raw forms have."""

    columns: list[TableColumn]
    cells: list[list[Any]]

    @property
    def rows(self) -> int:
        return len(self.cells[0])


def read(table: Table, layout: RecordLayout) -> tuple[NDArray[Any], dict[int, list[str]], bytes]:
    """Records, dictionaries in order of first appearance, and the blob of texts."""
    records = np.empty(table.rows, layout.dtype)
    dictionaries: dict[int, list[str]] = {}
    blob = b""
    for w in layout.members:
        cells = table.cells[w.index]
        if w.column.type == "category":
            own = dict.fromkeys(str(c) for c in cells if c is not None)
            codes = {text: k for k, text in enumerate(own)}
            dictionaries[w.index] = list(own)
            records[w.name] = [-1 if c is None else codes[str(c)] for c in cells]
        elif w.column.type == "text":
            for row, cell in enumerate(cells):
                data = b"" if cell is None else str(cell).encode()
                records[w.name][row] = (len(blob), len(data))
                blob += data
        else:
            none: float = MISSING_INTEGER if w.column.type == "integer" else math.nan
            records[w.name] = [none if c is None else c for c in cells]
    return records, dictionaries, blob


@dataclass
class Fitted:
    table: Table
    plan: TableTransform
    sums: ColumnSums
    transform: TableTransform
    records: NDArray[Any]
    dictionaries: dict[int, list[str]]
    texts: bytes

    def map(self) -> MappedRows:
        return RowMapper(self.transform, self.plan.layout, self.dictionaries).map(self.records, self.texts)


def fit(table: Table, choices: ColumnChoices, rows: Sequence[bool] | None = None) -> Fitted:
    """Fit a transform on all rows, or on some."""
    plan = plan_columns(table.columns, choices)
    records, dictionaries, texts = read(table, plan.layout)
    chosen = None if rows is None else np.array(rows, np.bool_)
    sums = ColumnSums(plan)
    sums.merge(sums.part(records, chosen))
    sample = floats_of(records if chosen is None else records[chosen], plan.numeric).T
    transform = fitting.fit(
        plan, sums, sample, dictionaries, "all" if rows is None else "train", {"header": True}
    )
    return Fitted(table, plan, sums, transform, records, dictionaries, texts)


def single(value: float) -> float:
    return float(np.float32(value))


CELLS: dict[str, st.SearchStrategy[Any]] = {
    "number": st.one_of(
        st.integers(-5, 5).map(float),
        st.floats(-1e6, 1e6, width=32),
        st.sampled_from([0.0, 0.1, 1e-30, 3e10]),
    ),
    "integer": st.integers(-(10**6), 10**6),
    "boolean": st.sampled_from([0.0, 1.0]),
    "date": st.integers(-30_000, 60_000).map(float),
    "time": st.integers(0, 86_399).map(float),
    "timestamp": st.one_of(
        st.integers(-(10**9), 2 * 10**9).map(float),
        st.integers(0, 10**15).map(lambda us: us // 10**6 + us % 10**6 / 1e6),
    ),
    "category": st.sampled_from(["", "a", "B", "caf\u00e9", "Zoë", "10", "9", "x,y"]).filter(bool),
    "text": st.text("abcé ", min_size=1, max_size=5),
}


@st.composite
def tables(draw: st.DrawFn, kinds: Sequence[str] = tuple(CELLS), most: int = 12) -> Table:
    """Tables of 1 to 12 rows and 1 to 6 columns."""
    types = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=6))
    rows = draw(st.integers(1, most))
    columns = [TableColumn(f"{kind} {i}", kind) for i, kind in enumerate(types)]
    cells = [
        draw(
            st.lists(
                st.none() | CELLS[kind] if draw(st.booleans()) else CELLS[kind], min_size=rows, max_size=rows
            )
        )
        for kind in types
    ]
    return Table(columns, cells)
