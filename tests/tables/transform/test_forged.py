"""Records that somebody changed: they are refused in one sentence, or they work."""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer.errors import FormatError, UsageError
from packer.format.fields import (
    Extent,
    Field,
)
from packer.format.header import Header
from packer.format.table_record import check_table
from packer.tables import apply
from packer.tables.transform.column_plan import ColumnChoices
from packer.tables.transform.column_types import TableColumn
from packer.tables.transform.fitting import measured
from packer.tables.transform.records import floats_of
from packer.tables.transform.table_summary import describe
from packer.tables.transform.table_transform import TableTransform
from tests.tables.rawtables import Fitted, Table, fit
from tests.tables.transform.test_apply import as_data

TABLE = Table(
    [
        TableColumn("x", "number"), TableColumn("i", "integer"),
        TableColumn("b", "boolean"), TableColumn("d", "date"), TableColumn("t", "timestamp"),
        TableColumn("c", "category"), TableColumn("h", "category"),
        TableColumn("y", "integer"), TableColumn("k", "text"), TableColumn("n", "boolean"),
        TableColumn("gone", "number"),
    ],
    [
        [1.0, None, 3.0], [4, 5, None], [0.0, 1.0, None], [3.0, 4.0, None], [1e9, None, 2e9], ["a", None, "b"], ["u", "v", None],
        [5, 2**60, 5], ["one", None, "two"], [0.0, 1.0, 1.0], [0.0] * 3,
    ],
)  # fmt: skip
FITTED = [
    fit(TABLE, ColumnChoices(label=("y",), keep=("k", "n"), drop=("gone",), one_hot=("h",), **choices))
    for choices in (
        {"label_as": "classes", "standardize": True, "missing": "median", "indicators": True, "log1p": ("x",)},
        {"dtype": "int64", "missing": "zero"},
        {},
    )
]  # fmt: skip
PLACES = [
    "missing", "number", "integer", "boolean", "date", "time", "timestamp", "category", "text", "feature", "label", "keep", "drop",
    "classes", "nan", "mean", "zero", "error", "<i8", "<f4", "|i1", "x", "y", "c", "\ud800", "",
]  # fmt: skip
VALUES = st.one_of(
    st.none(), st.booleans(), st.sampled_from(PLACES), st.integers(-3, 3), st.sampled_from([2**63, 10**400, -(10**30)]),
    st.floats(allow_nan=False, allow_infinity=False), st.sampled_from([[], {}, [None], [[]], {"a": 1}, ["a", "a"], [1.0, 0.0]]),
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values inside a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [p for key, v in inner for p in [(*path, key), *places(v, (*path, key))]]


@st.composite
def forged(draw: st.DrawFn) -> tuple[Fitted, dict[str, Any]]:
    fitted = draw(st.sampled_from(FITTED))
    record: dict[str, Any] = copy.deepcopy(fitted.transform.to_json())
    for _ in range(draw(st.integers(1, 2))):
        *path, last = draw(st.sampled_from(places(record)))
        inner: Any = record
        for key in path:
            inner = inner[key]
        if isinstance(inner, dict) and draw(st.integers(0, 4)) == 0:
            del inner[last]
        else:
            inner[last] = draw(VALUES)
    return fitted, record


@settings(max_examples=300)
@given(forged())
def test_records_that_were_changed_are_refused_or_work(case):
    fitted, record = case
    extents = {"other": (Extent("", 0, 3, 8),)}
    header = Header(rows=3, block_rows=3, fields=(Field("other", "<f4", (2,)),), extents=extents)
    data = json.dumps(json.loads(header.to_bytes()) | {"table": record}).encode()
    read: Header | None = None
    with suppress(FormatError):
        read = Header.from_bytes(data, "x")
        assert read.table is None or Header.from_bytes(read.to_bytes(), "x") == read
        for line in describe(read.table or {}):
            line.encode()
    transform: TableTransform | None = None
    with suppress(UsageError, ValueError):
        transform = TableTransform.from_json(check_table(record))
        sample = floats_of(fitted.records, fitted.plan.numeric).T
        measured(transform, fitted.plan, fitted.sums, sample, fitted.dictionaries)
        mapped = apply(record, as_data(fitted.table))
        for field in transform.fields():
            value = mapped[field.name]
            if field.shape is not None:
                assert isinstance(value, np.ndarray)
                assert (value.dtype.str, value.shape[1:]) == (field.dtype, field.shape)
    assert transform is None or read is not None


def test_a_count_beyond_every_file_is_refused() -> None:
    record = copy.deepcopy(FITTED[0].transform.to_json())
    record["columns"][0]["statistics"]["rows"] = (1 << 62) - 1
    check_table(record)
    record["columns"][0]["statistics"]["rows"] = 1 << 62
    with pytest.raises(ValueError, match="the table is malformed"):
        check_table(record)
