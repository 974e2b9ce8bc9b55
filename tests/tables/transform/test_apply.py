from __future__ import annotations

import datetime as dt
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer.errors import UsageError
from packer.packs.pack_opening import open_pack
from packer.tables import apply
from packer.tables.table_conversion import convert_table
from packer.tables.transform.column_plan import ColumnChoices
from packer.tables.transform.column_types import TableColumn
from packer.tables.transform.row_mapper import Fields
from tests.tables.rawtables import Fitted, Table, fit, tables
from tests.tables.transform.test_table_transform import choices_for


def as_data(table: Table) -> dict[str, list[Any]]:
    """Cells as a data frame has them: booleans, dates and times as such, the other raw forms as they are."""
    epoch = dt.datetime(1970, 1, 1)
    forms: dict[str, Any] = {
        "boolean": bool,
        "date": lambda days: (epoch + dt.timedelta(days)).date(),
        "time": lambda seconds: (epoch + dt.timedelta(seconds=seconds)).time(),
        "timestamp": lambda seconds: epoch + dt.timedelta(seconds=seconds),
    }
    return {
        c.name: [None if x is None else forms.get(c.type, lambda x: x)(x) for x in cells]
        for c, cells in zip(table.columns, table.cells, strict=True)
    }


def check(found: dict[str, Any], stored: Fields) -> None:
    assert found.keys() == stored.keys()
    for name, value in stored.items():
        if isinstance(value, list):
            assert [text.encode() for text in found[name]] == value
        else:
            assert found[name].dtype == value.dtype
            assert found[name].shape == value.shape
            assert found[name].tobytes() == value.tobytes()


@settings(max_examples=100)
@given(st.data())
def test_equal_to_what_conversion_stores_to_the_bit(data):
    table = data.draw(tables())
    choices = data.draw(choices_for(table))
    try:
        fitted = fit(table, choices)
        bad = fitted.plan.bad_rows(fitted.records)[0]
        if bad is not None:  # conversion leaves them out before anything is measured
            fitted = fit(table, choices, (~bad).tolist())
    except UsageError:
        return
    cells = as_data(table)
    if bad is not None:
        with pytest.raises(UsageError, match=r"^row \d+, column "):
            apply(fitted.transform.to_json(), cells)
        return
    mapped = fitted.map()
    if mapped.beyond is not None:
        with pytest.raises(
            UsageError, match=f"^row {mapped.beyond[0]}, column '{mapped.beyond[1]}': becomes a number beyond"
        ):
            apply(fitted.transform.to_json(), cells)
        return
    stored = mapped.fields
    check(apply(fitted.transform.to_json(), cells), stored)
    order = data.draw(st.permutations(list(cells)))
    check(
        apply(fitted.transform.to_json(), {"more": [0] * table.rows} | {name: cells[name] for name in order}),
        stored,
    )


def small() -> Fitted:
    table = Table(
        [
            TableColumn("x", "integer"),
            TableColumn("c", "category"),
            TableColumn("y", "category"),
            TableColumn("k", "text"),
        ],
        [[1, None, 4], ["a", "b", None], ["u", "v", "u"], ["one", None, "é"]],
    )
    return fit(table, ColumnChoices(label=("y",), keep=("k",), missing="mean", standardize=True))


TABLE = small().transform.to_json()


@pytest.mark.parametrize(
    "header", [TABLE, SimpleNamespace(table=TABLE), SimpleNamespace(header=SimpleNamespace(table=TABLE))]
)
def test_a_header_a_pack_or_the_table_itself(header):
    fitted = small()
    check(apply(header, as_data(fitted.table)), fitted.map().fields)


@pytest.mark.parametrize("package", ["pandas", "polars", "pyarrow"])
def test_data_frames(package):
    module = pytest.importorskip(package)
    fitted = small()
    cells = as_data(fitted.table)
    data = module.table(cells) if package == "pyarrow" else module.DataFrame(cells)
    check(apply(TABLE, data), fitted.map().fields)


def test_texts_are_read_as_in_files():
    found = apply(TABLE, {"x": ["1", "", " 4 "], "c": ["a", "b", "NA"]})
    stored = small().map().fields
    assert found.keys() == {"features", "categories"}
    assert found["features"].tobytes() == stored["features"].tobytes()
    assert found["categories"].tolist() == [[1], [2], [0]]


def test_texts_for_missing_are_those_of_the_conversion():
    record = TABLE | {"reading": {"na": ["?"]}}
    assert np.isfinite(apply(record, {"x": ["1", "?"], "c": ["a", "?"]})["features"]).all()
    with pytest.raises(UsageError, match=r"'\?' is not a number"):
        apply(TABLE, {"x": ["1", "?"], "c": ["a", "?"]})


def test_unknown_categories_are_as_missing_ones():
    assert apply(TABLE, {"x": [1, 2], "c": ["zz", "b"]})["categories"].tolist() == [[0], [2]]


def test_one_row_and_a_list_of_rows():
    fitted = small()
    cells = as_data(fitted.table)
    rows = [dict(zip(cells, values, strict=True)) for values in zip(*cells.values(), strict=True)]
    stored = fitted.map().fields
    check(apply(TABLE, rows), stored)
    for number, row in enumerate(rows):
        found = apply(TABLE, row)
        assert found["k"] == stored["k"][number].decode()
        assert {name: value.tolist() for name, value in found.items() if name != "k"} == {
            name: stored[name][number].tolist() for name in stored if name != "k"
        }
    assert apply(TABLE, {"x": np.int64(4), "c": "never seen"})["categories"].tolist() == [0]
    for wrong, message in [
        ({"x": 1}, r"'c'"),
        ({"x": "?", "c": "a"}, r"^row 0, column 'x': '\?' is not a number"),
        (
            [{"x": 1, "c": "a"}, {"x": 1}],
            r"^data: row 1 and row 0 do not both have 'c'; all rows need the same columns\. Add it",
        ),
        ([1], r"^data: row 0 is a int; a dict is allowed\. Pass dicts\.$"),
    ]:
        with pytest.raises(UsageError, match=message):
            apply(TABLE, wrong)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_categories_that_are_no_texts_in_a_frame_are_found(tmp_path, ending):
    pandas = pytest.importorskip("pandas")
    arrow = pytest.importorskip("pyarrow.parquet")
    days = pandas.to_datetime(["2020-01-01 00:00:00", "2020-01-02 03:04:05", None, "1969-12-31 23:00:00"])
    frame = pandas.DataFrame(
        {
            "month": [1.0, 12.0, None, 2.0],
            "flag": pandas.array([True, False, None, True], "boolean"),
            "large": [1e15, 123456789012.0, 1e16, 1e-5],
            "single": np.array([0.1, 0.2, np.nan, 3], np.float32),
            "id": pandas.array([2**62 + 1, None, 2**62 + 2, 0], "Int64"),
            "when": days,
            "zoned": days.tz_localize("Europe/Berlin"),
            "x": [1.5, 2.5, 3.5, 4.5],
        }
    )
    path, names = tmp_path / f"t.{ending}", list(frame)[:-1]
    if ending == "csv":
        names = names[:-2]  # times are written as texts of many forms
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path, index=False)
    types = dict.fromkeys(names, "category")
    convert_table(path, tmp_path / "t.h5", features=[*names, "x"], types=types, shuffle=False)
    pack = open_pack(tmp_path / "t.h5")
    codes = pack.read("categories")
    assert np.array_equal(codes == 0, frame[names].isna())
    check(apply(pack, frame), {"features": pack.read("features"), "categories": codes})
    if ending == "parquet":
        check(apply(pack, arrow.read_table(path)), {"features": pack.read("features"), "categories": codes})
    whole = frame.iloc[[0, 1, 3]].astype({"month": int})
    assert np.array_equal(apply(pack, whole)["categories"], codes[[0, 1, 3]])


def test_numbers_that_are_two_categories_are_unknown():
    fitted = fit(Table([TableColumn("c", "category")], [["07", "007", "8.50", "True"]]), ColumnChoices())
    record = fitted.transform.to_json()
    assert apply(record, {"c": [7, 8.5, 9]})["categories"][:, 0].tolist() == [0, 3, 0]
    assert apply(record, {"c": [True, False]})["categories"][:, 0].tolist() == [4, 0]


def test_no_rows():
    found = apply(TABLE, {"x": [], "c": [], "k": [], "y": []})
    assert found["features"].shape == (0, 1)
    assert (found["label"].shape, found["k"]) == ((0,), [])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            {"X": [1], "k": ["a"]},
            "table: has no column 'x', 'c', which features need; there are 'X' and 'k'."
            " Add the columns that the pack was converted from.",
        ),
        (
            {"x": ["1", "one"], "c": ["a", "a"]},
            "row 1, column 'x': 'one' is not a number. Correct it, or leave the row out.",
        ),
        (
            {"x": [1, 2], "c": ["a", "a"], "y": ["u", "w"]},
            "row 1, column 'y': 'w' is not one of the label's classes. Correct it, or leave the row out.",
        ),
        (
            {"x": [1, 2], "c": ["a", "a"], "y": ["u", None]},
            "row 1, column 'y': is missing; a label is needed. Correct it, or leave the row out.",
        ),
    ],
)
def test_data_that_cannot_be_mapped(data, message):
    with pytest.raises(UsageError) as error:
        apply(TABLE, data)
    assert str(error.value) == message


def test_numbers_beyond_float32():
    record = fit(Table([TableColumn("x", "number")], [[1.0]]), ColumnChoices()).transform.to_json()
    with pytest.raises(UsageError) as error:
        apply(record, {"x": [1.0, 1e39]})
    assert (
        str(error.value) == "row 1, column 'x': '1e+39' is beyond float32. Correct it, or leave the row out."
    )


def test_numbers_that_are_beyond_the_dtype_once_they_are_mapped():
    record = fit(
        Table([TableColumn("x", "number")], [[0.0, 1e-9]]), ColumnChoices(standardize=True, dtype="float16")
    ).transform.to_json()
    with pytest.raises(UsageError) as error:
        apply(record, {"x": [0.0, None, 1.0]})
    assert str(error.value) == (
        "row 2, column 'x': becomes a number beyond float16 once it is mapped. Correct it, or leave the row out."
    )


@pytest.mark.parametrize(
    "header", [None, SimpleNamespace(table=None), SimpleNamespace(header=SimpleNamespace())]
)
def test_packs_of_images_hold_no_mapping(header):
    with pytest.raises(
        UsageError, match="holds no mapping of a table; packs that were converted from tables do"
    ):
        apply(header, {})


def test_malformed_headers():
    with pytest.raises(UsageError, match="header: the table is malformed"):
        apply({"columns": []}, {})
