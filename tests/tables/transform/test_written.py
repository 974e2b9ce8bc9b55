"""Numbers and dates written for people: amounts of money, percentages, dates with the month or the day first."""

from __future__ import annotations

import math
from datetime import date, datetime, timezone

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.format.table_record import KINDS
from packer.tables.transform import data_frames as frames
from packer.tables.transform.column_types import NOTATIONS, TYPES, TableColumn, read_cells

EPOCH = date(1970, 1, 1).toordinal()


def read(text: str, written: str, decimal: str = ".", thousands: str = "") -> float | None:
    values, valid = read_cells([text], written, decimal, thousands)
    assert valid[0] == (not math.isnan(values[0]))
    return float(values[0]) if valid[0] else None


def test_every_way_has_a_type_and_a_reason() -> None:
    assert {notation.type for notation in NOTATIONS.values()} <= set(TYPES)
    assert tuple(TYPES) == KINDS
    assert TableColumn.given("x", "percent") == TableColumn("x", "number", "percent")
    assert TableColumn.given("x", "date") == TableColumn("x", "date")


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("$12.50", 12.5), ("$1,234.50", 1234.5), ("-$5", -5), ("$-5", -5), ("+$5", 5), ("($5.00)", -5), ("€3", 3), ("3 €", 3),
        ("3€", 3), ("£.99", 0.99), ("¥ 1,000,000", 1e6), (" 12.50\t", 12.5), ("12", 12), ("-12.", -12), ("(12)", -12), ("$0.1", 0.1),
    ],
)  # fmt: skip
def test_amounts_of_money(text: str, amount: float) -> None:
    assert read(text, "currency") == amount


@pytest.mark.parametrize(
    "text",
    ["free", "$", "$1,23", "$1,2345", "$12 USD", "(-5)", "$1.2.3", "$$5", "12%", "", "1e5", "1_0", "$١"],
)
def test_other_texts_are_no_amounts(text: str) -> None:
    assert read(text, "currency") is None


def test_marks_of_amounts_are_those_of_the_file() -> None:
    assert read("1.234,50 €", "currency", ",") == 1234.5
    assert read("1'234.50", "currency", ".", "'") == 1234.5
    assert read("1,234.50", "currency", ".", "'") is None


def test_percentages_are_hundredths_nearest_to_what_is_written() -> None:
    for text, value in [
        ("12%", 0.12),
        ("12.5 %", 0.125),
        ("-3%", -0.03),
        ("0%", 0),
        (".7%", 0.007),
        ("110%", 1.1),
        ("7.3%", 0.073),
    ]:
        assert read(text, "percent") == value
    assert read("12,5%", "percent", ",") == 0.125
    for text in ("12", "%", "12%%", "$12%", "a%", "1e1%"):
        assert read(text, "percent") is None


@given(st.dates(date(1900, 1, 1)), st.sampled_from("/-."), st.booleans())
def test_dates_with_the_month_or_the_day_first(day: date, mark: str, padded: bool) -> None:
    width = 2 if padded else 1
    month, number = f"{day.month:0{width}}", f"{day.day:0{width}}"
    expected = day.toordinal() - EPOCH
    assert read(mark.join([month, number, f"{day.year:04}"]), "date-mdy") == expected
    assert read(mark.join([number, month, f"{day.year:04}"]), "date-dmy") == expected


def test_years_of_two_digits_are_those_of_strptime() -> None:
    for text in ("01/02/68", "01/02/69", "01/02/00", "12/31/99"):
        expected = datetime.strptime(text, "%m/%d/%y").date().toordinal() - EPOCH
        assert read(text, "date-mdy") == expected


@pytest.mark.parametrize(
    "text", ["13/01/2013", "02/29/2013", "01/02-2013", "1/2/201", "0/1/2013", "2013/01/02", "x", "1/2/2013 "]
)
def test_other_texts_are_no_dates(text: str) -> None:
    assert read(text, "date-mdy") == (15707 if text == "1/2/2013 " else None)


def test_timestamps() -> None:
    def seconds(*parts: int) -> float:
        return datetime(*parts, tzinfo=timezone.utc).timestamp()  # type: ignore[misc,arg-type]

    assert read("01/31/2013 17:30", "timestamp-mdy") == seconds(2013, 1, 31, 17, 30)
    assert read("1/31/2013 5:30:15 PM", "timestamp-mdy") == seconds(2013, 1, 31, 17, 30, 15)
    assert read("31.01.2013 12:05 am", "timestamp-dmy") == seconds(2013, 1, 31, 0, 5)
    assert read("31/1/13 0:00:00.25", "timestamp-dmy") == seconds(2013, 1, 31) + 0.25
    for text in (
        "01/31/2013",
        "01/31/2013 24:00",
        "01/31/2013 13:00 PM",
        "01/31/2013 1:60",
        "31/01/2013 1:00",
    ):
        assert read(text, "timestamp-mdy") is None


def test_cells_of_data_frames() -> None:
    price, when = TableColumn("p", "number", "currency"), TableColumn("d", "date", "date-dmy")
    assert frames.numbers(["$1,234.50", None, 3.5, "NA"], price).tolist()[::2] == [1234.5, 3.5]
    assert np.isnan(frames.numbers(["$1,234.50", None, 3.5, "NA"], price)[[1, 3]]).all()
    assert frames.numbers(["3,5 €"], price, marks=(",", ".")).tolist() == [3.5]
    assert frames.numbers(["31/01/2013", date(2013, 1, 31)], when).tolist() == [15736, 15736]
    with pytest.raises(
        frames.UsageError,
        match=r"row 0, column 'p': 'free' is no amount of money \(\$1,234\.50\); such cells",
    ):
        frames.numbers(["free"], price)
