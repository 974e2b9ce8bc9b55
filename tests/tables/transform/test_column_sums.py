from __future__ import annotations

import math
import statistics as exact
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer import native
from packer.errors import UsageError
from packer.tables.transform.column_plan import ColumnChoices, plan_columns
from packer.tables.transform.column_sums import (
    BLOCK,
    COUNT,
    DRAWN,
    LEAST,
    MOST,
    SHIFT,
    SQUARES,
    SUM,
    ColumnSums,
    NumberSummary,
    block_sums,
    category_statistics,
    histogram,
    numeric_statistics,
)
from packer.tables.transform.column_types import TableColumn, days_of, seconds_of
from tests.tables.rawtables import Table, fit, read, tables


def records_of(draws: np.random.Generator, kinds: str, rows: int) -> np.ndarray:
    """Random members of "f" float32, "d" float64, "i" something else; some are whole, missing, empty or minus zero."""
    dtypes = {"f": "<f4", "d": "<f8", "i": "<i4"}
    records = np.zeros(rows, [(f"c{i}", dtypes[kind]) for i, kind in enumerate(kinds)])
    for i, kind in enumerate(kinds):
        x = draws.standard_normal(rows) * 10.0 ** draws.integers(-3, 12)
        if draws.random() < 0.3:
            x = np.trunc(x)
        x[draws.random(rows) < draws.choice([0, 0.1, 1], p=[0.5, 0.4, 0.1])] = np.nan if kind != "i" else 0
        if kind != "i" and draws.random() < 0.2:
            x = np.where(draws.random(rows) < 0.5, -0.0, 0.0)
        records[f"c{i}"] = np.clip(x, -1e9, 1e9) if kind == "i" else x
    return records


@pytest.mark.skipif(not native.COMPILED, reason="the loops in C are missing")
@pytest.mark.parametrize(
    "kinds", ["f", "d", "ffff", "fffffffff", "ddddd", "fifdffffifffdddddd", "i", "f" * 29]
)
@pytest.mark.parametrize("rows", [0, 1, 255, BLOCK, BLOCK + 300])
def test_compiled_and_plain_sums_are_equal_to_the_bit(monkeypatch, kinds, rows):
    for chosen in (False, True):
        draws = np.random.default_rng([rows, len(kinds), chosen])
        records = records_of(draws, kinds, rows)
        members = [f"c{i}" for i, kind in enumerate(kinds) if kind != "i"]
        fit = draws.random(rows) < 0.7 if chosen else None
        one = block_sums(records, members, fit)
        with monkeypatch.context() as patch:
            patch.setattr(native, "COMPILED", False)
            two = block_sums(records, members, fit)
        assert one[0].shape == (-(-rows // BLOCK), len(members), 6), chosen
        assert one[0].tobytes() == two[0].tobytes(), chosen
        assert one[1].tolist() == two[1].tolist(), chosen


@pytest.mark.parametrize("compiled", [True, False])
def test_sums_are_right(monkeypatch, compiled):
    if compiled and not native.COMPILED:
        pytest.skip("the loops in C are missing")
    monkeypatch.setattr(native, "COMPILED", compiled)
    records = np.zeros(4, [("a", "<f4"), ("b", "<f8"), ("c", "<f8")])
    records["a"], records["b"], records["c"] = [np.nan, 2, 5, -1], [0.5, 3, 4, 1e300], np.nan
    (figures,), whole = block_sums(records, ["a", "b", "c"], np.array([True, True, True, False]))
    assert figures[:, COUNT].tolist() == [2, 3, 0]
    assert figures[:, SHIFT].tolist() == [2, 0.5, 0]
    assert figures[:, SUM].tolist() == [3, 6, 0]
    assert figures[:, SQUARES].tolist() == [9, 18.5, 0]
    assert figures[:, LEAST].tolist() == [2, 0.5, math.inf]
    assert figures[:, MOST].tolist() == [5, 4, -math.inf]
    assert whole.tolist() == [True, False, True]


@pytest.mark.skipif(not native.COMPILED, reason="the loops in C are missing")
def test_arrays_that_do_not_go_together_are_refused():
    one = (
        np.zeros(8, np.uint8),
        4,
        8,
        None,
        np.zeros(1, np.int64),
        np.ones(1, np.uint8),
        np.empty((1, 1, 6)),
        np.ones(1, np.uint8),
    )
    native.loops.block_sums(*one)
    for place, wrong in [
        (0, np.zeros(7, np.uint8)), (1, 0), (2, 0), (3, np.zeros(1, np.uint8)), (4, np.ones(1, np.int64)), (4, -np.ones(1, np.int64)),
        (5, np.zeros(1, np.uint8)), (6, np.empty(5)), (7, np.ones(2, np.uint8)),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match="sizes"):
            native.loops.block_sums(*one[:place], wrong, *one[place + 1 :])


@given(tables(kinds=["number", "integer", "boolean", "date", "time", "timestamp"]), st.data())
def test_statistics_are_those_of_exact_arithmetic(table, data):
    chosen = data.draw(st.lists(st.booleans(), min_size=table.rows, max_size=table.rows))
    kept = tuple(c.name for c in table.columns if c.type == "integer")
    if len(kept) == len(table.columns):
        return
    fitted = fit(table, ColumnChoices(dtype="float64", keep=kept), chosen)
    for column, cells in zip(fitted.transform.columns, table.cells, strict=True):
        present = [c for c, use in zip(cells, chosen, strict=True) if use and c is not None]
        found = column.statistics
        assert (found["rows"], found["missing"]) == (sum(chosen), sum(chosen) - len(present))
        if not present:
            assert [found.get(key) for key in ("mean", "std", "min", "max", "histogram")] == [None] * 5
            continue
        fractions = [Fraction(c) for c in present]
        size = max(map(abs, present))
        assert found["mean"] == pytest.approx(float(exact.mean(fractions)), rel=1e-15, abs=1e-15 * size)
        spread = max(present) - min(present)
        assert found["std"] == pytest.approx(exact.pstdev(fractions), rel=1e-7, abs=1e-7 * spread)
        assert (found["min"], found["max"]) == (min(present), max(present))
        assert found["integral"] == all(float(c).is_integer() for c in present)
        assert sum(found["histogram"]["counts"]) == len(present)


@pytest.mark.parametrize("step", [BLOCK, 2 * BLOCK, 7 * BLOCK])
def test_parts_of_any_length_give_equal_results(step):
    draws = np.random.default_rng(0)
    rows = 5 * BLOCK + 17
    plan = plan_columns(
        [TableColumn(str(i), "number") for i in range(3)], ColumnChoices(standardize=True, log1p=("2",))
    )
    records = np.empty(rows, plan.layout.dtype)
    for name in records.dtype.names:
        records[name] = draws.exponential(size=rows)
    fit_rows = draws.random(rows) < 0.8
    whole, parts = ColumnSums(plan), ColumnSums(plan)
    whole.merge(whole.part(records, fit_rows))
    for start in range(0, rows, step):
        parts.merge(parts.part(records[start : start + step], fit_rows[start : start + step]))
    for index, what in [(0, ""), (1, ""), (2, ""), (2, "log1p")]:
        assert whole.summary(index, what) == parts.summary(index, what)
    assert whole.summary(2, "log1p").mean == pytest.approx(
        np.log1p(records["c2"][fit_rows]).mean(), rel=1e-14
    )


def test_seconds_since_1970_keep_their_digits():
    rows = 100_000
    draws = np.random.default_rng(1)
    plan = plan_columns([TableColumn("t", "timestamp")], ColumnChoices())
    records = np.empty(rows, plan.layout.dtype)
    records["c0"] = 1_400_000_000 + draws.random(rows)
    sums = ColumnSums(plan)
    sums.merge(sums.part(records))
    found = sums.summary(0)
    assert found.mean - 1.4e9 == pytest.approx((records["c0"] - 1.4e9).mean(), rel=1e-6)
    assert found.std == pytest.approx((records["c0"] - 1.4e9).std(), rel=1e-9)


def test_equal_values_have_no_deviation():
    plan = plan_columns([TableColumn("x", "number")], ColumnChoices())
    records = np.full(3 * BLOCK, 0.1, plan.layout.dtype)
    records["c0"] = 0.1
    sums = ColumnSums(plan)
    sums.merge(sums.part(records))
    assert (sums.summary(0).mean, sums.summary(0).std) == (float(np.float32(0.1)), 0.0)


def test_kept_whole_numbers_have_exact_ends():
    table = Table(
        [TableColumn("x", "number"), TableColumn("id", "integer")],
        [[0.0] * 3, [2**60 + 1, None, -(2**61) - 1]],
    )
    found = fit(table, ColumnChoices(keep=("id",))).transform.columns[1].statistics
    assert (found["min"], found["max"], found["missing"]) == (-(2**61) - 1, 2**60 + 1, 1)


@given(tables(kinds=["category"]), st.data())
def test_categories_are_counted(table, data):
    chosen = data.draw(st.lists(st.booleans(), min_size=table.rows, max_size=table.rows))
    fitted = fit(table, ColumnChoices(), chosen)
    for column, cells in zip(fitted.transform.columns, table.cells, strict=True):
        used = [c for c, use in zip(cells, chosen, strict=True) if use]
        present = {c: used.count(c) for c in used if c is not None}
        assert column.categories == tuple(sorted(present))
        assert column.statistics == {
            "rows": sum(chosen), "missing": used.count(None), "distinct": len(present),
            "counts": sorted(map(list, present.items()), key=lambda pair: (-pair[1], pair[0])),
        }  # fmt: skip


def test_only_the_most_frequent_categories_are_listed():
    found = category_statistics([str(i) for i in range(50)], list(range(50)))
    assert found["distinct"] == 49
    assert found["counts"] == [[str(i), i] for i in range(49, 29, -1)]


def test_counts_grow_with_the_dictionary():
    plan = plan_columns([TableColumn("c", "category")], ColumnChoices())
    sums = ColumnSums(plan)
    for cells in (["a", "b"], ["b", "c", "d"], ["a"]):
        records, dictionaries, _ = read(Table([TableColumn("c", "category")], [cells]), plan.layout)
        records["c0"] = ["abcd".index(dictionaries[0][code]) for code in records["c0"]]
        sums.merge(sums.part(records))
    assert sums.counts[0].tolist() == [0, 2, 2, 1, 1]


def test_histogram():
    edges, counts = histogram(np.linspace(0, 1, 1601))
    assert edges == pytest.approx([0.005, 0.995])
    assert sum(counts) == 1601
    assert counts[1:-1] == [99] * 14
    assert min(counts[0], counts[-1]) > 105
    assert histogram(np.full(7, 3.0)) == ([3.0, 3.0], [7])
    assert histogram(np.array([1.0, 1e9]))[1] == [1] + [0] * 14 + [1]


def test_only_the_first_columns_have_histograms():
    summaries = [summary_of(np.arange(3.0))] * (DRAWN + 2)
    found = numeric_statistics(3, summaries, np.tile(np.arange(3.0), (DRAWN + 2, 1)).T)
    assert ["histogram" in record for record in found] == [True] * DRAWN + [False] * 2


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("cells", [[1e200, -1e200], [1.7e308, -1.7e308], [3e-170, 1e-170], [5e-324, 0.0]])
def test_sums_that_overflow_or_vanish_are_not_told(monkeypatch, compiled, cells):
    if compiled and not native.COMPILED:
        pytest.skip("the loops in C are missing")
    monkeypatch.setattr(native, "COMPILED", compiled)
    plan = plan_columns([TableColumn("x", "number")], ColumnChoices(dtype="float64"))
    sums = ColumnSums(plan)
    for block in (cells, cells * BLOCK):
        records = np.zeros(len(block), plan.layout.dtype)
        records["c0"] = block
        sums.merge(sums.part(records))
    found = sums.summary(0)
    assert math.isnan(found.std)
    assert (found.least, found.most) == (min(cells), max(cells))
    (record,) = numeric_statistics(sums.rows, [found], np.array(cells)[:, None])
    assert record["std"] is None
    assert np.isfinite(record["histogram"]["edges"]).all()


def test_columns_with_missing_cells_are_summed_up_as_alone():
    draws = np.random.default_rng(0)
    sample = draws.normal(size=(50, 40))
    sample[draws.random(sample.shape) < draws.choice([0, 0.5, 1], 40)] = np.nan
    found = numeric_statistics(50, [summary_of(column) for column in sample.T], sample)
    alone = [numeric_statistics(50, [summary_of(column)], column[:, None])[0] for column in sample.T]
    assert found == alone
    assert sum("histogram" not in record for record in found) > 5


def summary_of(column: np.ndarray) -> NumberSummary:
    present = column[~np.isnan(column)]
    least, most = (present.min(), present.max()) if len(present) else (0.0, 0.0)
    return NumberSummary(len(present), 0.0, 1.0, float(least), float(most), False)


def test_days_and_seconds():
    x = np.array([-0.5, 0.0, 86_400.25, np.nan])
    assert days_of(x)[:3].tolist() == [-1, 0, 1]
    assert seconds_of(x)[:3].tolist() == [86_399.5, 0, 0.25]
    assert np.isnan([days_of(x)[3], seconds_of(x)[3]]).all()


def test_too_many_classes_are_found_while_summing():
    plan = plan_columns(
        [TableColumn("x", "number"), TableColumn("y", "number")],
        ColumnChoices(label=("y",), label_as="classes", max_categories=9),
    )
    sums = ColumnSums(plan)
    records = np.zeros(6, plan.layout.dtype)
    records["c1"] = range(6)
    sums.merge(sums.part(records))
    records["c1"] += 5
    with pytest.raises(UsageError) as error:
        sums.merge(sums.part(records))
    assert str(error.value) == (
        "column 'y': has more than 9 categories (11 so far); encode=Encode(max_categories=9) allows no more."
        " Pass label_as='number' or a larger encode=Encode(max_categories=)."
    )
