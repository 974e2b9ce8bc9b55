"""Booleans, dates, times, timestamps, and notations of numbers and dates: which texts are some, and which numbers they become."""

from __future__ import annotations

import math
from datetime import date, datetime, timedelta, timezone

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.format.table_record import KINDS
from packer.tables.transform.cell_values import NA_TEXTS, Values
from packer.tables.transform.column_types import NOTATIONS, TYPES, TableColumn


def read_cells(texts: list[str], kind: str, decimal: str = ".", thousands: str = "") -> Values:
    read = (NOTATIONS.get(kind) or TYPES[kind]).read
    assert read is not None
    return read(texts, decimal, thousands)


def values(type: str, *texts: str) -> list[float | None]:
    found, valid = read_cells(texts, type)
    assert found.dtype == np.float64
    assert valid.dtype == np.bool_
    assert np.isnan(found[~valid]).all()
    return [float(v) if ok else None for v, ok in zip(found, valid, strict=True)]


def test_booleans_are_words_in_any_case() -> None:
    texts = ("true", "FALSE", "Yes", "no", " True\t")
    assert values("boolean", *texts) == [1, 0, 1, 0, 1]
    assert values("boolean", "0", "1", "t", "maybe", "truee", "y", "true\n") == [None] * 7


def test_dates_are_days_since_1970() -> None:
    assert values("date", "1970-01-01", "1969-12-31", "2013-01-01", " 2013/01/02 ") == [0, -1, 15706, 15707]
    assert values("date", "2013-1-1", "2013/1/02", "2013.01.03") == [15706, 15707, 15708]
    first, last = datetime(1, 1, 1), datetime(9999, 12, 31)
    assert values("date", "0001-01-01", "9999-12-31") == [
        (d - datetime(1970, 1, 1)).days for d in (first, last)
    ]


@pytest.mark.parametrize(
    "text",
    [
        "2013-13-01",
        "2013-00-01",
        "2013-02-30",
        "2013-01-00",
        "1900-02-29",
        "0000-01-01",
        "2013-01/01",
        "2013.01-01",
        "13-01-01",
        "2013-1-111",
        "2013-01-011",
        "2013-01-01T00:00",
        "2013-01-01\x002",
        "２013-01-01",
        "",
        "x" * 100,
    ],
)
def test_other_texts_are_no_dates(text: str) -> None:
    assert values("date", "2012-02-29", text, "2000-02-29") == [15399, None, 11016]


def test_times_are_seconds_since_midnight() -> None:
    texts = ("00:00", "05:30", "23:59:59", "12:00:00.5", "00:00:00.000001", "00:00:00.1234567891234")
    assert values("time", *texts) == [0, 19800, 86399, 43200.5, 1e-6, 0.123456]
    assert values("time", "5:30", "9:00:01") == [19800, 32401]


@pytest.mark.parametrize(
    "text",
    ["24:00", "5:3", "05:60", "05:30:60", "05:30:", "05:30:1", "05:30:01.", "05:30.5", "05:30Z", "0530", ""],
)
def test_other_texts_are_no_times(text: str) -> None:
    assert values("time", text) == [None]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:00", 0),
        ("1970-01-01 00:00:01", 1),
        ("1970/01/01 00:00:01.25", 1.25),
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01 00:00:02 UTC", 2),
    ],
)
def test_timestamps_are_seconds_since_1970_in_utc(text: str, seconds: float) -> None:
    assert values("timestamp", text, "1970-01-01 00:00", text) == [seconds, 0, seconds]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01 00:00:02 GMT", 2),
        ("1970-01-01 01:00:00.1 +01:00", 0.1),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-01T01:00:00.5+0100", 0.5),
        ("1970-01-01T01:00+01", 0),
        ("1969-12-31T22:29:59-01:30", -1),
        ("1970-01-01 00:00+05:30", -19800),
    ],
)
def test_timestamps_with_an_offset_are_in_utc(text: str, seconds: float) -> None:
    assert values("timestamp-offset", text, "1970-01-01 00:00", text) == [seconds, None, seconds]


@pytest.mark.parametrize(
    "text",
    [
        "1970-01-01",
        "1970-01-01_00:00",
        "1970-01-01T00",
        "1970-01-01T24:00",
        "1970-02-30T00:00",
        "1970-01-01T00:00  Z",
        "1970-01-01T00:00 CET",
        "1970-01-01T00:00.5+01",
        "1970-01-01T00:00ZZ",
        "1970-01-01T00:00+1",
        "1970-01-01T00:00+01:",
        "1970-01-01T00:00+01:3",
        "1970-01-01T00:00+0100x",
        "1970-01-01T00:00+24:00",
        "1970-01-01T00:00+01:60",
        "1970-01-01T00:00:00." + "1" * 60,
    ],
)
def test_other_texts_are_no_timestamps(text: str) -> None:
    assert values("timestamp", text) == values("timestamp-offset", text) == [None]


@given(
    st.lists(
        st.datetimes(min_value=datetime(1, 1, 3), max_value=datetime(9999, 12, 29)).flatmap(
            lambda moment: st.integers(-23 * 60, 23 * 60).map(
                lambda minutes: moment.replace(tzinfo=timezone(timedelta(minutes=minutes)))
            )
        )
    )
)
def test_timestamps_are_those_of_the_standard_library(moments: list[datetime]) -> None:
    epoch = datetime(1970, 1, 1, tzinfo=timezone.utc)
    found, valid = read_cells([moment.isoformat() for moment in moments], "timestamp-offset")
    assert valid.all()
    whole = [(m - epoch) // timedelta(seconds=1) + m.microsecond / 1e6 for m in moments]
    np.testing.assert_array_equal(found, np.array(whole, np.float64))


def test_more_texts_than_are_read_at_once() -> None:
    days = np.arange(-100_000, 100_000, 17)
    found, valid = read_cells(days.astype("datetime64[D]").astype(str).tolist(), "date")
    assert valid.all()
    np.testing.assert_array_equal(found, days)


@pytest.mark.parametrize("type", [name for name, type in TYPES.items() if type.read])
def test_no_text_is_no_value(type: str) -> None:
    found, valid = read_cells([], type)
    assert found.shape == valid.shape == (0,)


def test_what_means_missing_is_what_pandas_takes_for_it() -> None:
    parsers = pytest.importorskip("pandas._libs.parsers")
    assert set(NA_TEXTS) == parsers.STR_NA_VALUES
    assert len(set(NA_TEXTS)) == len(NA_TEXTS)


EPOCH = date(1970, 1, 1).toordinal()


def read(text: str, written: str, decimal: str = ".", thousands: str = "") -> float | None:
    values, valid = read_cells([text], written, decimal, thousands)
    assert valid[0] == (not math.isnan(values[0]))
    return float(values[0]) if valid[0] else None


def test_every_way_has_a_type_and_a_reason() -> None:
    assert {notation.of for notation in NOTATIONS.values()} <= set(TYPES)
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
def test_other_texts_are_no_dates_with_the_month_first(text: str) -> None:
    assert read(text, "date-mdy") == (15707 if text == "1/2/2013 " else None)


@pytest.mark.parametrize(
    ("kind", "texts", "value"),
    [
        ("date-name", ["2-Jan-2013", "2 January 2013", "Jan 2, 2013", "January 2 2013", "02JAN2013", "2/Jan/2013"], 15707),
        ("date-name", ["2-Jan-13", "2 Jam 2013", "Ja 2, 2013", "30 Feb 2013", "2 January2013", "Jan 2013", "x"], None),
        ("date-dmy", ["2-Jan-13", "2Jan13", "2-Jan-2013", "02/01/2013"], 15707),
        ("date-ymd", ["20130102"], 15707),
        ("date-ymd", ["20130230", "2013010", "201301021", "00000102", "2013-01-02"], None),
        ("time-12h", ["8:30 PM", "08:30:00pm", "8:30 p.m."], 73800),
        ("time-12h", ["12:00 am", "12:00:00 A.M."], 0),
        ("time-12h", ["20:30", "8:30", "13:00 PM", "0:10 AM", "8 PM"], None),
    ],
)  # fmt: skip
def test_names_of_months_digits_alone_and_halves_of_days(kind: str, texts: list[str], value: float) -> None:
    assert values(kind, *texts) == [value] * len(texts)


def test_times_without_a_half_of_the_day_are_invalid_beside_others() -> None:
    texts = ["1/31/2013 5:30", "1/31/2013 5:30 PM", "1/31/2013 17:30", "1/31/2013 0:30"]
    assert [value is None for value in values("timestamp-mdy", *texts)] == [True, False, False, False]
    assert None not in values("timestamp-mdy", *texts[:1], *texts[2:])


def test_timestamps_with_the_month_or_the_day_first() -> None:
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


@pytest.mark.parametrize("zone", ["+02:00", "-05:30", "-00:30", "+00:00", "+23:59"])
def test_many_timestamps_of_one_zone_are_those_of_each(zone: str) -> None:
    cells = [f"20{n % 100:02}-01-{n % 28 + 1:02}T{n % 24:02}:30:{n % 60:02}.25{zone}" for n in range(300)]
    found, valid = read_cells(cells, "timestamp-offset")
    assert valid.all()
    assert found.tolist() == [
        datetime.fromisoformat(cell.replace(".25", ".250000")).timestamp() for cell in cells
    ]
    assert found.tolist() == [read_cells([cell, "x"], "timestamp-offset")[0][0] for cell in cells]
    mixed = [*cells, "2020-01-01T00:00:00-07:15"]
    assert read_cells(mixed, "timestamp-offset")[0][-1] == datetime.fromisoformat(mixed[-1]).timestamp()
    assert not read_cells(["2020-01-01T00:00:00+24:00", *cells], "timestamp-offset")[1][0]
