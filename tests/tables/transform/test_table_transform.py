from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from packer.errors import UsageError
from packer.format.fields import Field
from packer.format.table_record import POLICIES, check_table
from packer.tables.transform.column_plan import ColumnChoices, plan_columns
from packer.tables.transform.column_sums import ColumnSums
from packer.tables.transform.column_types import TableColumn
from packer.tables.transform.fitting import measured
from packer.tables.transform.records import floats_of
from packer.tables.transform.row_mapper import RowMapper
from packer.tables.transform.table_summary import describe
from packer.tables.transform.table_transform import TableTransform
from tests.tables.rawtables import Fitted, Table, fit, read, tables


@st.composite
def choices_for(draw: st.DrawFn, table: Table) -> ColumnChoices:
    """Any choices that go with a table."""
    names = [c.name for c in table.columns]
    kinds = {c.name: c.type for c in table.columns}
    keep = [name for name in names if kinds[name] == "text" or draw(st.integers(0, 5)) == 0]
    rest = [name for name in names if name not in keep]
    dtype = draw(st.sampled_from(["float32", "float32", "float16", "float64", "int64"]))
    whole = dtype == "int64"
    cells = dict(zip(names, table.cells, strict=True))
    numbers = [
        name
        for name in rest
        if kinds[name] in ("number", "integer") and all(cell is None or cell > -1 for cell in cells[name])
    ]
    return ColumnChoices(
        keep=tuple(keep),
        missing=draw(st.sampled_from(["nan", "zero", "error"] if whole else POLICIES)),
        indicators=draw(st.booleans()),
        one_hot=draw(st.sampled_from(["all", ()])),
        standardize=not whole and draw(st.booleans()),
        log1p=() if whole or not numbers else tuple(draw(st.sets(st.sampled_from(numbers)))),
        dtype=dtype,
    )


def one_by_one(fitted: Fitted) -> dict[str, Any]:
    """What the fields must hold, cell by cell, from the header's record of the transform and the Python values alone."""
    table = fitted.transform.to_json()
    dtype = np.dtype(table["dtype"])
    features, codes, kept = [], [], {}
    for row in range(fitted.table.rows):
        line: list[float] = []
        numbers: list[int] = []
        flags: list[float] = []
        for column, cells in zip(table["columns"], fitted.table.cells, strict=True):
            cell = cells[row]
            if column["role"] == "keep":
                kept.setdefault(column["field"], []).append(cell)
            if column["role"] != "feature":
                continue
            if column["type"] == "category":
                if column["one_hot"]:
                    line += [float(cell == category) for category in column["categories"]]
                else:
                    numbers.append(0 if cell is None else 1 + column["categories"].index(cell))
                continue
            if column["indicator"]:
                flags.append(float(cell is None))
            x = math.nan if cell is None else float(cell)
            if (
                dtype == np.float32
                and column["type"] == "number"
                and not (column["log1p"] or column["standardize"])
            ):
                x = float(np.float32(x))
            if column["log1p"]:
                x = float(np.log1p(np.array([x]))[0])
            if math.isnan(x) and column["fill"] is not None:
                x = column["fill"]
            scale = column["standardize"] or [0.0, 1.0, 0.0, 1.0]
            if column["type"] == "timestamp":
                day = x if math.isnan(x) else float(math.floor(x / 86400))
                line += [(day - scale[0]) / scale[1], (x - day * 86400 - scale[2]) / scale[3]]
            else:
                line.append((x - scale[0]) / scale[1])
        features.append(line + flags)
        codes.append(numbers)
    found: dict[str, Any] = {}
    if table["features"]:
        with np.errstate(all="ignore"):
            found["features"] = np.array(features, np.float64).reshape(len(features), -1).astype(dtype)
    if table["categories"]:
        found["categories"] = np.array(codes, np.int64)
    return found | kept


def same(a: Any, b: Any) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def canonical(x: np.ndarray) -> np.ndarray:
    """One bit pattern for NaN."""
    return np.where(np.isnan(x), np.array(np.nan, x.dtype), x) if x.dtype.kind == "f" else x


@settings(max_examples=150)
@given(st.data())
def test_fields_are_those_computed_cell_by_cell(data):
    table = data.draw(tables())
    try:
        fitted = fit(table, data.draw(choices_for(table)))
    except UsageError:  # no column is left as a feature
        return
    mask, bad = fitted.plan.bad_rows(fitted.records)
    if mask is not None:
        assert [b.line for b in bad] == sorted(b.line for b in bad)
        assert set(np.flatnonzero(mask).tolist()) == {b.line for b in bad}
        return
    mapped, expected = fitted.map(), one_by_one(fitted)
    assert set(mapped.fields) == set(expected) == {f.name for f in fitted.transform.fields()}
    for spec in fitted.transform.fields():
        value, right = mapped.fields[spec.name], expected[spec.name]
        if spec.shape is None:
            assert value == [(c or "").encode() for c in right]
        elif spec.name in ("features", "categories"):
            assert same(canonical(value), canonical(right))
        else:
            assert value.tolist() == pytest.approx(
                [math.nan if c is None else c for c in right], abs=0, nan_ok=True
            )
        if spec.shape is not None:
            assert (value.dtype.str, value.shape[1:]) == (spec.dtype, spec.shape)
            assert value.flags.c_contiguous
    infinite = np.isinf(expected.get("features", np.zeros((1, 1))).astype(np.float64)).any(axis=1)
    assert (mapped.beyond is not None) == infinite.any()
    if mapped.beyond is not None:
        assert mapped.beyond[0] == int(np.argmax(infinite))


@settings(max_examples=50)
@given(st.data())
def test_the_record_is_plain_json_and_comes_back(data):
    table = data.draw(tables())
    choices = data.draw(choices_for(table))
    try:
        transform = fit(table, choices).transform
    except UsageError:
        return
    with np.errstate(over="ignore"):  # cells beyond the dtype, 65520 in float16, are refused as they are read
        assume(all(np.isfinite(np.float64(c.fill or 0).astype(choices.dtype)) for c in transform.columns))
    text = json.dumps(transform.to_json(), allow_nan=False)
    again = TableTransform.from_json(json.loads(text))
    assert again == transform
    assert json.dumps(again.to_json()) == text
    plan = transform.plan_for(table.columns)
    assert plan.layout.dtype == fit(table, choices).plan.layout.dtype


@settings(max_examples=60)
@given(st.data())
def test_a_recipe_for_another_table_finds_columns_by_name(data):
    """Other order, other columns between, other categories first: equal fields."""
    table = data.draw(tables())
    try:
        fitted = fit(table, data.draw(choices_for(table)))
    except UsageError:
        return
    order = data.draw(st.permutations(range(len(table.columns))))
    other = Table(
        [TableColumn("more", "number"), *(table.columns[i] for i in order)],
        [[1.0] * table.rows, *(table.cells[i] for i in order)],
    )
    plan = fitted.transform.plan_for(other.columns)
    records, dictionaries, texts = read(other, plan.layout)
    dictionaries = {i: ["never seen", *own] for i, own in dictionaries.items()}
    for w in plan.layout.members:
        if w.column.type == "category":
            records[w.name] += records[w.name] >= 0
    mapped = RowMapper(fitted.transform, plan.layout, dictionaries).map(records, texts)
    if fitted.plan.bad_rows(fitted.records)[0] is not None:
        assert plan.bad_rows(records)[0] is not None
        return
    expected = fitted.map()
    for name, value in expected.fields.items():
        assert value == mapped.fields[name] if isinstance(value, list) else same(mapped.fields[name], value)


def numbers(*cells: float | None, kind: str = "number") -> Table:
    return Table([TableColumn("x", kind)], [list(cells)])


@pytest.mark.parametrize(
    ("policy", "filled"),
    [("nan", math.nan), ("error", math.nan), ("mean", 3.0), ("median", 2.0), ("zero", 0.0)],
)
def test_missing_cells(policy, filled):
    fitted = fit(numbers(1, None, 2, 6), ColumnChoices(missing=policy, indicators=True))
    assert fitted.transform.features == ("x", "x.missing")
    features = fitted.map().fields["features"]
    np.testing.assert_array_equal(features, np.array([[1, 0], [filled, 1], [2, 0], [6, 0]], np.float32))
    mask, bad = fitted.plan.bad_rows(fitted.records)
    if policy == "error":
        assert mask.tolist() == [False, True, False, False]
        assert (bad[0].line, bad[0].column, bad[0].value, bad[0].reason) == (1, 0, "", "is missing")
    else:
        assert mask is None


def test_fills_are_of_the_rows_that_count_and_behind_the_logarithm():
    fitted = fit(
        numbers(0, 3, None, 1000), ColumnChoices(missing="mean", log1p=("x",)), [True, True, True, False]
    )
    assert fitted.transform.columns[0].fill == pytest.approx(math.log(4) / 2, rel=1e-15)
    assert fitted.transform.fit_name == "train"
    fitted = fit(numbers(0, 3, 3, None, 1000), ColumnChoices(missing="median", log1p=("x",)))
    assert fitted.transform.columns[0].fill == pytest.approx(math.log(4), rel=1e-15)


@pytest.mark.parametrize("policy", ["mean", "median"])
def test_a_column_without_a_value_is_filled_with_zero(policy):
    fitted = fit(numbers(None, None), ColumnChoices(missing=policy, standardize=True, indicators=True))
    assert fitted.map().fields["features"].tolist() == [[0, 1], [0, 1]]


@pytest.mark.parametrize("kind", ["number", "integer", "date", "time", "timestamp"])
def test_standardized_features_have_mean_0_and_deviation_1(kind):
    draws = np.random.default_rng(3)
    cells = draws.integers(0, 86_400, 20_000) + (1_700_000_000 if kind == "timestamp" else 0)
    cells = cells + (86_400.0 * draws.integers(0, 3000, 20_000) if kind == "timestamp" else 0)
    fitted = fit(numbers(*cells.tolist(), kind=kind), ColumnChoices(standardize=True, dtype="float64"))
    features = fitted.map().fields["features"]
    assert features.mean(axis=0) == pytest.approx(np.zeros(features.shape[1]), abs=1e-12)
    assert features.std(axis=0) == pytest.approx(np.ones(features.shape[1]), rel=1e-12)


@pytest.mark.parametrize("policy", ["mean", "median", "zero"])
@pytest.mark.parametrize("kind", ["number", "timestamp"])
@pytest.mark.parametrize("log1p", [False, True])
def test_statistics_of_standardized_features_are_those_of_the_filled_rows(policy, kind, log1p):
    draws = np.random.default_rng(4)
    cells = draws.exponential(100_000, 3000).round(2).astype(object)
    cells[draws.random(3000) < 0.3] = None
    fit_rows = draws.random(3000) < 0.8
    logs = ("x",) if log1p and kind == "number" else ()
    choices = ColumnChoices(standardize=True, missing=policy, dtype="float64", log1p=logs)
    fitted = fit(numbers(*cells.tolist(), kind=kind), choices, fit_rows.tolist())
    features = fitted.map().fields["features"][fit_rows]
    assert features.mean(axis=0) == pytest.approx(np.zeros(features.shape[1]), abs=1e-12)
    assert features.std(axis=0) == pytest.approx(np.ones(features.shape[1]), rel=1e-12)
    present = fitted.transform.columns[0].statistics["mean"]  # statistics stay those of the table's cells
    assert present == pytest.approx(np.mean([c for c in cells[fit_rows] if c is not None]), rel=1e-12)


def test_a_mean_time_that_float16_holds_in_parts_is_sound():
    table = numbers(1.58e9, None, 1.58e9 + 200, kind="timestamp")
    record = fit(table, ColumnChoices(missing="mean", dtype="float16")).transform.to_json()
    assert TableTransform.from_json(copy.deepcopy(record)).to_json() == record


@pytest.mark.parametrize("one_hot", [(), "all"])
def test_categories_are_those_of_the_rows_that_count(one_hot):
    table = Table(
        [TableColumn("c", "category"), TableColumn("y", "category")],
        [["b", "a", None, "q", "b"], ["n", "m", "m", "o", "n"]],
    )
    choices = ColumnChoices(label=("y",), one_hot=one_hot, max_categories=3)
    fitted = fit(table, choices, [True, True, True, False, True])
    assert fitted.transform.columns[0].categories == ("a", "b")
    fields = fitted.map().fields
    if one_hot:
        assert fields["features"].tolist() == [[0, 1], [1, 0], [0, 0], [0, 0], [0, 1]]
    else:
        assert fields["categories"][:, 0].tolist() == [2, 1, 0, 0, 2]
    assert fitted.transform.classes == ("m", "n", "o")  # a label has the classes of all rows
    assert fields["label"].tolist() == [1, 0, 0, 2, 1]


def test_booleans_codes_and_indicators_are_not_standardized_and_constants_become_zero():
    table = Table(
        [TableColumn("b", "boolean"), TableColumn("c", "category"), TableColumn("k", "number")],
        [[0.0, 1.0, 1.0], ["u", None, "v"], [7.0, None, 7.0]],
    )
    fitted = fit(table, ColumnChoices(standardize=True, one_hot="all", indicators=True, missing="mean"))
    assert fitted.transform.features == ("b", "c=u", "c=v", "k", "k.missing")
    assert fitted.map().fields["features"].tolist() == [[0, 1, 0, 0, 0], [1, 0, 0, 0, 1], [1, 0, 1, 0, 0]]


def test_timestamps_are_days_and_seconds_exact_in_float32():
    seconds = [-1.0, 0.0, 86_399.0, 1_700_000_001.0, 4_102_444_799.0]
    fitted = fit(numbers(*seconds, kind="timestamp"), ColumnChoices())
    assert fitted.transform.features == ("x", "x.seconds")
    assert fitted.map().fields["features"].tolist() == [list(divmod(s, 86_400)) for s in seconds]


def labelled(kind: str, *cells: Any) -> Table:
    return Table([TableColumn("x", "number"), TableColumn("y", kind)], [[0.0] * len(cells), list(cells)])


@pytest.mark.parametrize(
    ("kind", "cells", "choices", "dtype", "values", "classes"),
    [
        ("category", ["b", "a", "b"], {}, "<i8", [1, 0, 1], ("a", "b")),
        ("text", ["b", "a", "b"], {}, "<i8", [1, 0, 1], ("a", "b")),
        ("boolean", [1, 0, 1], {}, "<i8", [1, 0, 1], ("false", "true")),
        ("boolean", [1, 0, 1], {"label_as": "number"}, "<f4", [1, 0, 1], None),
        ("integer", [7, 2**60 + 1, -1], {}, "<i8", [7, 2**60 + 1, -1], None),
        ("integer", [10, 9, -1], {"label_as": "classes"}, "<i8", [2, 1, 0], ("-1", "9", "10")),
        (
            "integer",
            [2**53 + 1, 2**53, 2**53 + 2, -(2**63) + 1],
            {"label_as": "classes"},
            "<i8",
            [2, 1, 3, 0],
            ("-9223372036854775807", "9007199254740992", "9007199254740993", "9007199254740994"),
        ),
        ("integer", [10, 9, -1], {"label_as": "number"}, "<f4", [10, 9, -1], None),
        ("number", [0.1, 9, -1], {}, "<f4", [np.float32(0.1), 9, -1], None),
        ("number", [0.1, 9, -1], {"dtype": "float64"}, "<f8", [0.1, 9, -1], None),
        (
            "number",
            [1.5, 10, -0.0, 9, 0.0],
            {"label_as": "classes"},
            "<i8",
            [1, 3, 0, 2, 0],
            ("0", "1.5", "9", "10"),
        ),
        ("date", [1, 2, 3], {}, "<f4", [1, 2, 3], None),
        ("timestamp", [1.7e9 + 1, 2, 3], {}, "<f8", [1.7e9 + 1, 2, 3], None),
    ],
)
def test_labels(kind, cells, choices, dtype, values, classes):
    fitted = fit(labelled(kind, *cells), ColumnChoices(label=("y",), **choices))
    label = fitted.map().fields["label"]
    assert (label.dtype.str, label.tolist(), fitted.transform.classes) == (dtype, values, classes)
    assert fitted.transform.fields()[-1] == Field("label", dtype, ())
    assert TableTransform.from_json(fitted.transform.to_json()) == fitted.transform


@pytest.mark.parametrize(
    ("kinds", "dtype"),
    [(("integer", "boolean"), "<i8"), (("integer", "number"), "<f4"), (("boolean", "date"), "<f4")],
)
def test_several_labels(kinds, dtype):
    table = Table(
        [TableColumn("x", "number"), *(TableColumn(k, k) for k in kinds)], [[0.0, 1.0], [1, 0], [1, 1]]
    )
    fitted = fit(table, ColumnChoices(label=kinds[::-1]))
    label = fitted.map().fields["label"]
    assert (label.dtype.str, label.tolist()) == (dtype, [[1, 1], [1, 0]])
    assert fitted.transform.fields()[-1].shape == (2,)
    assert TableTransform.from_json(fitted.transform.to_json()) == fitted.transform


@pytest.mark.parametrize("kind", ["category", "boolean", "integer", "number", "date"])
def test_rows_without_a_label_are_bad(kind):
    cells: list[Any] = ["a", None, "b"] if kind == "category" else [1, None, 0]
    fitted = fit(labelled(kind, *cells), ColumnChoices(label=("y",)))
    mask, bad = fitted.plan.bad_rows(fitted.records)
    assert mask.tolist() == [False, True, False]
    assert [(b.line, b.column, b.reason) for b in bad] == [(1, 1, "is missing; a label is needed")]


def test_labels_that_the_recipe_does_not_know_are_bad():
    transform = fit(labelled("category", "a", "b"), ColumnChoices(label=("y",))).transform
    other = labelled("category", "b", "c", "a")
    plan = transform.plan_for(other.columns)
    assert plan.known == {1: {"a": 0, "b": 1}}
    records, dictionaries, _ = read(other, plan.layout)
    mask, bad = plan.bad_rows(records, dictionaries)
    assert mask.tolist() == [False, True, False]
    assert (bad[0].value, bad[0].reason) == ("c", "is not one of the label's classes")
    mapped = RowMapper(transform, plan.layout, dictionaries).map(records)
    assert mapped.fields["label"][[0, 2]].tolist() == [1, 0]


def test_numbers_that_are_no_class_are_bad():
    transform = fit(labelled("number", 1, 2.5), ColumnChoices(label=("y",), label_as="classes")).transform
    other = labelled("number", 2.5, 2, 1, None)
    plan = transform.plan_for(other.columns)
    assert plan.known == {}
    records, _, _ = read(other, plan.layout)
    mask, bad = plan.bad_rows(records)
    assert mask.tolist() == [False, True, False, True]
    assert (bad[0].value, bad[0].reason) == ("2", "is not one of the label's classes")


def test_unknown_categories_are_counted():
    table = Table(
        [TableColumn("c", "category"), TableColumn("h", "category")], [["a", "b", None], ["u", "v", "v"]]
    )
    transform = fit(table, ColumnChoices(one_hot=("h",))).transform
    assert transform.features == ("h=u", "h=v")
    other = Table(table.columns, [["b", "c", None, "c"], ["w", "v", "u", None]])
    plan = transform.plan_for(other.columns)
    records, dictionaries, _ = read(other, plan.layout)
    mapped = RowMapper(transform, plan.layout, dictionaries).map(records)
    assert mapped.fields["categories"].tolist() == [[2], [0], [0], [0]]
    assert mapped.fields["features"].tolist() == [[0, 0], [0, 1], [1, 0], [0, 0]]


def test_label_and_kept_columns_may_be_missing_features_not():
    table = Table(
        [TableColumn("x", "number"), TableColumn("y", "integer"), TableColumn("id", "integer")],
        [[1.0], [2], [3]],
    )
    transform = fit(table, ColumnChoices(label=("y",), keep=("id",))).transform
    plan = transform.plan_for([TableColumn("x", "number")])
    records, _, _ = read(Table([TableColumn("x", "number")], [[5.0]]), plan.layout)
    assert list(RowMapper(transform, plan.layout).map(records).fields) == ["features"]
    with pytest.raises(UsageError) as error:
        transform.plan_for([TableColumn("X1", "number"), TableColumn("y", "integer")])
    assert str(error.value) == (
        "table: has no column 'x', which features need; there are 'X1' and 'y'."
        " Add the columns that the pack was converted from."
    )


def test_kept_fields_have_names_that_a_pack_can_have():
    names = ["id", "ID", "0", "a b", "a-b", "class", "label", "étage", "_x", "packer"]
    table = Table(
        [TableColumn("x", "number"), *(TableColumn(n, "number") for n in names)], [[0.0] for _ in range(11)]
    )
    transform = fit(table, ColumnChoices(keep=tuple(names))).transform
    assert [c.field for c in transform.columns[1:]] == [
        "id", "ID_2", "column_0", "a_b", "a_b_2", "class_", "label_2", "column__tage", "column__x", "packer_2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "cells", "reasons"),
    [
        ("int8", [127.0, -129.0, 1.5, None], ["is beyond int8 (-128 to 127)", "is not a whole number",
             "is missing; int8 cannot store that"]),
        ("uint8", [0.0, -1.0, 256.0], ["is beyond uint8 (0 to 255)"] * 2),
        ("int64", [2.0**62, 2.0**63], ["is beyond int64 (-9223372036854775808 to 9223372036854775807)"]),
        ("float16", [65_504.0, 1e5], ["is beyond float16"]),
        ("float32", [1e38, 1.0, None], []),
    ],
)  # fmt: skip
def test_numbers_that_do_not_fit(dtype, cells, reasons):
    fitted = fit(numbers(*cells), ColumnChoices(dtype=dtype))
    mask, bad = fitted.plan.bad_rows(fitted.records)
    assert [b.reason for b in bad] == reasons
    good = [i for i in range(len(cells)) if mask is None or not mask[i]]
    kept = fitted.map().fields["features"][good, 0]
    np.testing.assert_array_equal(
        kept, np.array([cells[i] if cells[i] is not None else np.nan for i in good], dtype)
    )


@pytest.mark.parametrize(
    ("dtype", "cells", "bad_rows"),
    [
        ("float16", [1.6e9, -1.0, 60_000.0], [1]),
        ("int16", [1.6e9 - 1.6e9 % 86_400, -1.0, 20_000.0, 0.5], [1, 3]),
    ],
)
def test_days_and_seconds_must_fit(dtype, cells, bad_rows):
    fitted = fit(numbers(*cells, kind="timestamp"), ColumnChoices(dtype=dtype))
    assert [b.line for b in fitted.plan.bad_rows(fitted.records)[1]] == bad_rows
    good = [i for i in range(len(cells)) if i not in bad_rows]
    expected = np.array([divmod(cells[i], 86_400) for i in good], dtype)
    assert fitted.map().fields["features"][good].tolist() == expected.tolist()


def test_whole_features_are_exact():
    cells = [2**53 + 1, None, -(2**63) + 1, 2**63 - 1]
    fitted = fit(
        numbers(*cells, kind="integer"), ColumnChoices(dtype="int64", missing="zero", indicators=True)
    )
    assert fitted.plan.bad_rows(fitted.records)[0] is None
    features = fitted.map().fields["features"]
    assert features.tolist() == [[c or 0, c is None] for c in cells]
    assert features.dtype == np.int64
    assert TableTransform.from_json(json.loads(json.dumps(fitted.transform.to_json()))) == fitted.transform
    plan = fit(numbers(127, 128, None, -(2**40), kind="integer"), ColumnChoices(dtype="int8")).plan
    _, bad = plan.bad_rows(read(numbers(127, 128, None, -(2**40), kind="integer"), plan.layout)[0])
    assert [(b.line, b.value, b.reason) for b in bad] == [
        (1, "128", "is beyond int8 (-128 to 127)"),
        (2, "", "is missing; int8 cannot store that"),
        (3, str(-(2**40)), "is beyond int8 (-128 to 127)"),
    ]


@pytest.mark.parametrize(
    ("fitted_on", "mapped", "choices", "beyond"),
    [
        ([0, 1e-9], [[0.0], [1.0], [None], [1e300]], {"standardize": True}, (3, "x")),
        ([0, 1], [[1.0], [40_000.0], [1e9]], {"standardize": True, "dtype": "float16"}, (1, "x")),
        ([0, 1], [[1e9]], {"log1p": ("x",), "dtype": "float16"}, None),
        ([0, 1e-3], [[None], [-1e308], [1e308]], {"standardize": True, "dtype": "float64"}, (1, "x")),
        ([0, 1], [[None], [1.0]], {"missing": "mean"}, None),
    ],
)
def test_what_does_not_fit_once_it_is_mapped_is_told(fitted_on, mapped, choices, beyond):
    """The first row, whatever the number of rows; NaN of missing cells is not meant."""
    transform = fit(numbers(*map(float, fitted_on)), ColumnChoices(**choices)).transform
    for before in (0, 100_000):
        other = numbers(*[0.0] * before, *(cell for (cell,) in mapped))
        plan = transform.plan_for(other.columns)
        found = RowMapper(transform, plan.layout).map(read(other, plan.layout)[0]).beyond
        assert found == (beyond and (beyond[0] + before, beyond[1]))


def test_the_first_of_several_columns_that_do_not_fit():
    table = Table(
        [
            TableColumn("a", "number"),
            TableColumn("c", "category"),
            TableColumn("b", "number"),
            TableColumn("t", "timestamp"),
        ],
        [[0.0, 1.0], ["u", "v"], [0.0, 1.0], [0.0, 1.0]],
    )
    transform = fit(table, ColumnChoices(standardize=True, dtype="float16", one_hot="all")).transform
    other = Table(table.columns, [[0.0, 0.0, 1e6], ["u"] * 3, [0.0, 0.0, 1e6], [0.0, 86_399.0, 0.0]])
    plan = transform.plan_for(other.columns)
    records, dictionaries, _ = read(other, plan.layout)
    assert RowMapper(transform, plan.layout, dictionaries).map(records).beyond == (1, "t")


@pytest.mark.parametrize("cells", [[1e200, -1e200, 3.0], [1.7e308, -1.7e308, 1.6e308], [1e-200, 2e-200, 0.0]])
def test_numbers_that_sums_cannot_hold(cells):
    fitted = fit(numbers(*cells), ColumnChoices(dtype="float64"))
    found = json.loads(json.dumps(fitted.transform.to_json(), allow_nan=False))["columns"][0]["statistics"]
    assert (found["std"], found["min"], found["max"]) == (None, min(cells), max(cells))
    assert found["mean"] is None or found["mean"] == pytest.approx(
        sum(x / 3 for x in cells), abs=1e-15 * max(cells)
    )
    assert TableTransform.from_json(fitted.transform.to_json()) == fitted.transform
    assert describe(fitted.transform.to_json())[0].startswith("x  number  feature")
    with pytest.raises(
        UsageError, match=r"^column 'x': holds numbers so large, .* which standardize=True needs"
    ):
        fit(numbers(*cells), ColumnChoices(dtype="float64", standardize=True))
    if max(cells) > 1:
        fit(numbers(*map(abs, cells)), ColumnChoices(dtype="float64", standardize=True, log1p=("x",)))


def test_a_mean_that_overflows_fills_nothing():
    with pytest.raises(UsageError, match=r"^column 'x': .* which missing='mean' needs"):
        fit(numbers(1.7e308, -1.7e308, None), ColumnChoices(dtype="float64", missing="mean"))
    with pytest.raises(UsageError, match=r"^column 'x': .* which missing='median' needs"):
        fit(numbers(1.7e308, 1.6e308, None), ColumnChoices(dtype="float64", missing="median"))


@pytest.mark.parametrize("distance", [1e-130, 1e-20, 1e130])
def test_deviations_of_any_size_are_divided_by(distance):
    fitted = fit(numbers(0.0, distance), ColumnChoices(dtype="float64", standardize=True))
    assert fitted.map().fields["features"].tolist() == pytest.approx(np.array([[-1.0], [1.0]]), rel=1e-12)


def test_statistics_of_other_rows():
    table = Table(
        [
            TableColumn("x", "number"),
            TableColumn("c", "category"),
            TableColumn("y", "integer"),
            TableColumn("k", "text"),
        ],
        [[0.0, 2.0], ["a", "b"], [7, 8], ["t", None]],
    )
    transform = fit(
        table, ColumnChoices(label=("y",), label_as="classes", keep=("k",), standardize=True)
    ).transform
    other = Table(
        [TableColumn("c", "category"), TableColumn("more", "text"), TableColumn("x", "number")],
        [["z", "b", "z"], ["", "", ""], [5.0, None, 6.0]],
    )
    plan = transform.plan_for(other.columns)
    records, dictionaries, _ = read(other, plan.layout)
    sums = ColumnSums(plan)
    sums.merge(sums.part(records))
    again = measured(transform, plan, sums, floats_of(records, plan.numeric).T, dictionaries, "train")
    assert again.fit_name == "train"
    assert [replace(c, statistics=None) for c in again.columns] == [
        replace(c, statistics=None) for c in transform.columns
    ]
    x, c, y, k = (column.statistics for column in again.columns)
    assert (x["rows"], x["missing"], x["mean"], x["min"], x["max"]) == (3, 1, 5.5, 5, 6)
    assert c == {"rows": 3, "missing": 0, "distinct": 2, "counts": [["z", 2], ["b", 1]]}
    assert (y, k) == (None, None)
    assert TableTransform.from_json(again.to_json()) == again
    assert len(describe(again.to_json())) == 4


def test_names_of_features_are_all_different():
    table = Table(
        [TableColumn("a", "category"), TableColumn("a=b", "number"), TableColumn("y", "number"),
        TableColumn("y.missing", "number"), TableColumn("a=b.1", "number")],
        [["b", None], [1.0, 2.0], [None, 3.0], [4.0, 5.0], [6.0, 7.0]],
    )  # fmt: skip
    fitted = fit(table, ColumnChoices(one_hot="all", indicators=True))
    assert fitted.transform.features == ("a=b", "a=b.2", "y", "y.missing", "a=b.1", "y.missing.1")
    assert fitted.map().fields["features"][0].tolist() == pytest.approx(
        [1, 1, math.nan, 4, 6, 1], nan_ok=True
    )
    assert TableTransform.from_json(fitted.transform.to_json()) == fitted.transform


def test_kept_fields_have_names_of_at_most_100_characters():
    names = ["x" * 300, "x" * 200, "x" * 100, "é" * 101]
    table = Table([TableColumn("f", "number"), *(TableColumn(n, "number") for n in names)], [[0.0]] * 5)
    fields = [c.field for c in fit(table, ColumnChoices(keep=tuple(names))).transform.columns[1:]]
    assert fields == ["x" * 100, "x" * 98 + "_2", "x" * 98 + "_3", "column_" + "_" * 93]


def test_no_logarithm_below_minus_one():
    table = numbers(-1.0, -0.5, -2.0, None)
    plan = plan_columns(table.columns, ColumnChoices(log1p=("x",)))
    _, bad = plan.bad_rows(read(table, plan.layout)[0])
    assert [(b.line, b.value, b.reason) for b in bad] == [
        (0, "-1", "has no log1p; numbers above -1 have one"),
        (2, "-2", "has no log1p; numbers above -1 have one"),
    ]


def test_too_many_categories():
    with pytest.raises(UsageError, match="column 'y': has more than 2 categories"):
        fit(labelled("category", "a", "b", "c"), ColumnChoices(label=("y",), max_categories=2))
    with pytest.raises(
        UsageError, match=r"Pass label_as='number' or a larger encode=Encode\(max_categories=\)"
    ):
        fit(labelled("number", 1, 2, 3), ColumnChoices(label=("y",), label_as="classes", max_categories=2))


@pytest.mark.parametrize("adjacent", [True, False])
def test_records_need_not_lie_side_by_side(adjacent):
    table = Table([TableColumn(f"x{i}", "number") for i in range(5)], [[float(i), i + 0.5] for i in range(5)])
    fitted = fit(table, ColumnChoices(drop=() if adjacent else ("x2",)))
    mapper = RowMapper(fitted.transform, fitted.plan.layout)
    apart = np.repeat(fitted.records, 3)[::3]
    assert mapper.map(apart).fields["features"].tolist() == fitted.map().fields["features"].tolist()
    with pytest.raises(ValueError, match="is mapped"):
        mapper.map(np.zeros(2, [("c0", "<f8")]))


GOOD = fit(
    Table(
        [TableColumn("x", "number"), TableColumn("c", "category"),
        TableColumn("t", "timestamp"), TableColumn("y", "category"), TableColumn("k", "text")],
        [[1.0, None], ["a", "b"], [0.0, 9.0], ["u", "v"], ["t", None]],
    ),
    ColumnChoices(label=("y",), keep=("k",), standardize=True, missing="mean", indicators=True),
).transform.to_json()  # fmt: skip


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("columns",), None), (("columns",), []), (("columns",), [1]), (("columns", 0, "name"), 3), (("columns", 0, "name"), "c"),
        (("columns", 0, "type"), "complex"), (("columns", 0, "type"), "text"), (("columns", 0, "role"), "drop"),
        (("columns", 0, "role"), "other"), (("columns", 0, "missing"), None), (("columns", 0, "missing"), "best"),
        (("columns", 0, "fill"), math.inf), (("columns", 0, "fill"), "much"), (("columns", 0, "indicator"), 1),
        (("columns", 0, "standardize"), [0.0]), (("columns", 0, "standardize"), [0.0, 0.0]),
        (("columns", 0, "standardize"), [math.nan, 1.0]),
        (("columns", 2, "standardize"), [0.0, 1.0]), (("columns", 1, "categories"), None), (("columns", 1, "categories"), [1, 2]),
        (("columns", 1, "one_hot"), True), (("columns", 3, "categories"), None), (("columns", 4, "field"), None),
        (("features",), ["x"]), (("categories",), []), (("dtype",), "<c8"), (("label",), {}), (("label",), None),
        (("label", "columns"), ["x"]), (("label", "kind"), "odd"), (("label", "dtype"), "<u8"), (("reading",), None),
    ],
)  # fmt: skip
def test_malformed_records(path, value):
    record = copy.deepcopy(GOOD)
    TableTransform.from_json(record)
    inner = record
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(ValueError, match=r".") as error:
        check_table(record)
        TableTransform.from_json(record)
    assert type(error.value) is ValueError


def test_members_of_the_record():
    assert set(GOOD) == {"columns", "features", "categories", "dtype", "label", "fit", "reading"}
    assert GOOD["features"] == ["x", "t", "t.seconds", "x.missing"]
    assert GOOD["categories"] == ["c"]
    assert GOOD["label"] == {"columns": ["y"], "kind": "classes", "dtype": "<i8"}
    assert GOOD["columns"][0] == {
        "name": "x", "type": "number", "role": "feature", "missing": "mean", "fill": 1.0, "indicator": True, "log1p": False,
        "standardize": [1.0, 1.0], "categories": None, "one_hot": False, "field": None,
        "statistics": {
            "rows": 2, "missing": 1, "mean": 1.0, "std": 0.0, "min": 1.0, "max": 1.0, "integral": True,
            "histogram": {"edges": [1.0, 1.0], "counts": [1]},
        },
    }  # fmt: skip
    assert GOOD["columns"][2]["standardize"] == [0.0, 1.0, 4.5, 4.5]
    assert GOOD["columns"][4]["statistics"] == {"rows": 2, "missing": 1}


def test_too_many_features():
    table = Table(
        [TableColumn("x", "number"), TableColumn("c", "category")],
        [[0.0] * 100_000, list(map(str, range(100_000)))],
    )
    assert fit(table, ColumnChoices()).transform.features == ("x",)
    with pytest.raises(UsageError) as error:
        fit(table, ColumnChoices(one_hot="all"))
    assert str(error.value) == (
        "table: has 100,001 features, 100,000 of them from 'c'; 100,000 are allowed. Leave 'c' out of one_hot=."
    )
    columns = [TableColumn(f"x{k}", "number") for k in range(100_001)]
    with pytest.raises(UsageError) as error:
        fit(Table(columns, [[0.0]] * 100_001), ColumnChoices())
    assert str(error.value) == (
        "table: has 100,001 features; 100,000 are allowed. Pass fewer columns with features=."
    )


def test_a_fill_that_the_dtype_rounds_is_one_and_one_beyond_it_is_none():
    table = Table([TableColumn("x", "integer")], [[None, -65505]])
    transform = fit(table, ColumnChoices(missing="mean", dtype="float16")).transform
    record = transform.to_json()
    assert TableTransform.from_json(record) == transform
    record["columns"][0]["fill"] = -65520.0
    with pytest.raises(ValueError, match="column 'x' is malformed"):
        TableTransform.from_json(record)
