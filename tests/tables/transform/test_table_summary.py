from __future__ import annotations

import re

import pytest

from packer.tables.transform.column_plan import ColumnChoices
from packer.tables.transform.column_types import TableColumn
from packer.tables.transform.table_summary import describe, histogram, short
from tests.tables.rawtables import Table, fit


def test_a_table_of_every_type():
    table = Table(
        [
            TableColumn("a number", "number"), TableColumn("b", "boolean"),
            TableColumn("d", "date"), TableColumn("t", "time"), TableColumn("s", "timestamp"),
            TableColumn("c", "category"), TableColumn("h", "category"),
            TableColumn("id", "integer"), TableColumn("note", "text"), TableColumn("gone", "number"),
            TableColumn("y", "category"),
        ],
        [
            [float(i) if i else None for i in range(100)], [float(i < 25) for i in range(100)], [float(i) for i in range(100)],
            [60.0 * i for i in range(100)], [1.6e9 + i for i in range(100)], ["ab"[i > 89] for i in range(100)],
            [f"kind {i % 20}" for i in range(100)], list(range(100)), ["x"] * 99 + [None], [0.0] * 100, ["cat"] * 100,
        ],
    )  # fmt: skip
    choices = ColumnChoices(
        label=("y",), keep=("id", "note"), drop=("gone",), one_hot=("h",), standardize=True, indicators=True
    )
    lines = describe(fit(table, choices).transform.to_json())
    bars = "[▁▂▃▄▅▆▇█]{16}"
    for line, pattern in zip(
        lines,
        [
            rf"a number  number     feature \(standardized, indicator\)  1.0 % missing  {bars}  1 to 99, 50 ± 28.6",
            r"b         boolean    feature +[▁-█ ]{16}  25 % true",
            rf"d         date       feature \(standardized\) +{bars}  1970-01-01 to 1970-04-10",
            rf"t         time       feature \(standardized\) +{bars}  0:00:00 to 1:39:00",
            rf"s         timestamp  feature \(standardized\) +{bars}  2020-09-13 12:26:40 to 2020-09-13 12:28:19",
            r"c         category   category +2 categories: a 90 %, b 10 %",
            r"h         category   one-hot +20 categories: kind 0 5.0 %, kind 1 5.0 %, kind 10 5.0 %, \.\.\.",
            rf"id        integer    kept +{bars}  0 to 99, 49.5 ± 28.9",
            r"note      text       kept +1.0 % missing",
            r"gone      number     dropped",
            r"y         category   label +1 category: cat 100 %",
        ],
        strict=True,
    ):
        assert re.fullmatch(pattern, line), line


def test_many_columns():
    table = Table([TableColumn(f"x{i}", "number") for i in range(100)], [[1.0]] * 100)
    lines = describe(fit(table, ColumnChoices()).transform.to_json())
    assert len(lines) == 61
    assert lines[-1] == "and 40 more"
    assert describe(fit(table, ColumnChoices()).transform.to_json(), 100)[-1].startswith("x99")


def test_names_and_categories_that_would_spoil_the_lines():
    table = Table(
        [TableColumn("x" * 50, "number"), TableColumn("a\nb", "category")], [[None], ["red\x1b[31m"]]
    )
    one, two = describe(fit(table, ColumnChoices()).transform.to_json())
    assert one.startswith("x" * 31 + "…  number")
    assert one.endswith("no values")
    assert two.startswith("a�b ")
    assert two.endswith("1 category: red�[31m 100 %")


@pytest.mark.parametrize(
    ("counts", "text"),
    [([0, 1, 2, 4, 8], " ▂▃▅█"), ([5], "█" * 16), ([1, 1000], "▁█"), ([], ""), ([0, 0], "  ")],
)
def test_histogram(counts, text):
    assert histogram(counts) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (-0.0, "0"), (12, "12"), (1234.0, "1,234"), (1234.56, "1,235"), (0.012345, "0.0123"), (-2.5, "-2.5"), (1e9, "1e+09"),
        (123456789.5, "1.23e+08")],
)  # fmt: skip
def test_short_numbers(number, text):
    assert short(number) == text


def test_dates_beyond_the_calendar():
    record = fit(Table([TableColumn("d", "timestamp")], [[1e15]]), ColumnChoices()).transform.to_json()
    assert describe(record)[0].endswith("1e+15 to 1e+15")
