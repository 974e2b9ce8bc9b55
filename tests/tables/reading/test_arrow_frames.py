from __future__ import annotations

import datetime as dt
import decimal
import sqlite3
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from packer.errors import UsageError
from packer.tables.reading.arrow_frames import FrameTable
from packer.tables.reading.arrow_values import type_of
from packer.tables.reading.table_source import ReadOptions
from packer.tables.transform.column_types import MISSING_INTEGER, TableColumn
from packer.tables.transform.records import ParsedRows, RecordLayout, RecordMember

NAN = float("nan")
ZONE = dt.timezone(dt.timedelta(hours=2))


def read(cells: Any, column: TableColumn, **reading: Any) -> ParsedRows:
    """The rows of a frame of one column."""
    data = {column.name: cells} if not hasattr(cells, "iloc") or cells.ndim == 1 else cells
    return read_frame(data, column, **reading)


def read_frame(data: Any, column: TableColumn, **reading: Any) -> ParsedRows:
    """The rows of a column of a frame, under the options of a pack."""
    options = ReadOptions(**{"keep_spaces": True} | reading, alike="like", words="na" in reading)
    table = FrameTable(data, options, [column.name])
    number = [c.name for c in table.columns].index(column.name)
    (chunk,) = table.chunks(RecordLayout((RecordMember(number, column),)))
    found = chunk.read()
    found.records = found.records.view([("c0", found.records.dtype[0])])
    found.dictionaries = dict(zip((0,), found.dictionaries.values(), strict=False))
    found.bad = [replace(bad, column=0) for bad in found.bad]
    return found


def numbers(cells: Any, column: TableColumn, **reading: Any) -> Any:
    found = read(cells, column, **reading)
    assert not found.bad
    return found.records["c0"]


def codes(cells: Any, kind: str = "category", **reading: Any) -> list[str | None]:
    """The texts of a column, None for missing."""
    found = read(cells, TableColumn("x", kind), **reading)
    return [None if code < 0 else found.dictionaries[0][code] for code in found.records["c0"].tolist()]


@pytest.mark.parametrize(
    ("kind", "cells", "raw"),
    [
        ("number", [1, 2.5, None], [1, 2.5, NAN]),
        ("number", [" 1e3 ", "NA", "-.5", "\t7.", "+2", ""], [1000, NAN, -0.5, 7, 2, NAN]),
        ("number", np.array([1, 2], np.uint64), [1, 2]),
        ("number", np.array([0.1, np.nan], np.float32), [float(np.float32(0.1)), NAN]),
        ("number", [decimal.Decimal("0.1"), None], [0.1, NAN]),
        ("number", np.array(["1", "x"[:0]]), [1, NAN]),
        ("number", np.array([b"1", b"nan"]), [1, NAN]),
        ("number", np.ma.masked_array([1, 2], [False, True]), [1, NAN]),
        ("integer", [1, None, -7, 2**60 + 1], [1, MISSING_INTEGER, -7, 2**60 + 1]),
        ("integer", ["1", "-7", ""], [1, -7, MISSING_INTEGER]),
        ("integer", [decimal.Decimal(7), None], [7, MISSING_INTEGER]),
        ("integer", np.array([1.0, np.nan]), [1, MISSING_INTEGER]),
        ("integer", np.array([1, 2], np.uint8), [1, 2]),
        ("boolean", ["true", "no", "YES", None], [1, 0, 1, NAN]),
        ("boolean", [True, None, np.True_], [1, NAN, 1]),
        ("boolean", np.array([True, False]), [1, 0]),
        ("boolean", np.array([1, 0]), [1, 0]),
        ("boolean", [1.0, 0.0, None], [1, 0, NAN]),
        ("boolean", np.array([1.0, np.nan]), [1, NAN]),
        ("boolean", np.array([np.nan]), [NAN]),
        ("number", np.array(["NaT"], "M8[ns]"), [NAN]),
        ("date", ["1970-01-02", "1969-12-31", ""], [1, -1, NAN]),
        ("date", [dt.date(1970, 1, 2), None], [1, NAN]),
        ("date", np.array(["1970-01-02", "NaT"], "M8[D]"), [1, NAN]),
        ("date", np.array(["1970-01-02", "NaT"], "M8[ns]"), [1, NAN]),
        ("time", [dt.time(1, 2, 3, 500_000), None], [3723.5, NAN]),
        ("time", ["01:02", None], [3720, NAN]),
        ("time", [dt.timedelta(seconds=90), None], [90, NAN]),
        ("time", np.array([1_500_000, "NaT"], "m8[us]"), [1.5, NAN]),
        ("timestamp", [dt.datetime(1970, 1, 1, 2, tzinfo=ZONE), NAN], [0, NAN]),
        ("timestamp", ["1970-01-01T00:00:01.25", NAN], [1.25, NAN]),
        ("timestamp", np.array(["1969-12-31T23:59:59.9", "NaT"], "M8[ms]"), [-1 + 0.9, NAN]),
        ("timestamp", np.array(["2020-01-01T00:00:00.123456789"], "M8[ns]"), [1_577_836_800 + 123_456 / 1e6]),
        ("timestamp", np.array(["2020-01-01"], "M8[D]"), [1_577_836_800]),
    ],
)  # fmt: skip
def test_numbers(kind, cells, raw):
    found = numbers(cells, TableColumn("x", kind))
    assert found.dtype == {"integer": np.int64, "boolean": np.float32}.get(kind, np.float64)
    np.testing.assert_array_equal(found, np.array(raw, found.dtype))


@pytest.mark.parametrize(
    ("kind", "cells", "row", "shown", "reason"),
    [
        ("number", ["1", "x"], 1, "x", "is not a number"),
        ("number", ["1_000"], 0, "1_000", "is not a number"),
        ("number", ["1e999"], 0, "1e999", "is infinite"),
        ("number", ["-inf"], 0, "-inf", "is infinite"),
        ("number", np.array([1, np.inf]), 1, "inf", "is infinite"),
        ("number", ["1", "y" * 100], 1, "y" * 80, "is not a number"),
        ("integer", [1.5], 0, "1.5", "is not a whole number"),
        ("integer", ["12.0"], 0, "12.0", "is not a whole number"),
        ("integer", np.array([2**63], np.uint64), 0, "9223372036854775808", "is beyond 64-bit integers"),
        ("boolean", ["maybe"], 0, "maybe", "is neither true nor false"),
        ("boolean", np.array([0, 2]), 1, "2", "is neither 0 nor 1"),
        ("date", ["2020-01-01", "2020-13-01"], 1, "2020-13-01", "is not a date (YYYY-MM-DD)"),
        ("time", ["24:00"], 0, "24:00", "is not a time (HH:MM:SS)"),
        ("timestamp", ["2020-01-01"[:7]], 0, "2020-01", "is not a timestamp (YYYY-MM-DD HH:MM:SS)"),
    ],
)
def test_cells_of_another_kind(kind, cells, row, shown, reason):
    (bad,) = read(cells, TableColumn("x y", kind)).bad
    assert (bad.line, bad.value, str(bad.reason)) == (row, shown, reason)


@pytest.mark.parametrize(
    ("kind", "cells", "sentence"),
    [
        ("number", [[1, 2]], "data frame: column 'x y' holds list<item: int64>, which cannot be read as number."),
        ("number", np.array(["2020-01-01"], "M8[s]"), "data frame: column 'x y' holds timestamp[s], which cannot be read as number."),
        ("timestamp", [True], "data frame: column 'x y' holds bool, which cannot be read as timestamp."),
        ("date", [20200131], "data frame: column 'x y' holds int64, which cannot be read as date."),
        ("number", 1.5, "column 'x y': is a float; a value for each row is needed. Pass a list."),
        ("number", "abc", "column 'x y': is a str; a value for each row is needed. Pass a list."),
        ("number", np.array(1.5), "column 'x y': is a ndarray; a value for each row is needed. Pass a list."),
        ("number", np.zeros((2, 2)), "column 'x y': "),
        ("category", np.array([b"\xff"]), "column 'x y': "),
    ],
)  # fmt: skip
def test_columns_of_another_kind(kind, cells, sentence):
    with pytest.raises(UsageError) as error:
        read(cells, TableColumn("x y", kind))
    assert str(error.value).startswith(sentence)


def test_texts():
    assert codes(["a", None, "NA", " x", NAN]) == ["a", None, "NA", " x", None]
    assert codes(["a", None, "NA"], na=["?"]) == ["a", None, None]
    assert codes([3, 2, None]) == ["3", "2", None]
    assert codes([3, 2.0, 0.1, NAN]) == ["3", "2", "0.1", None]
    assert codes(np.array([7, 0.1], np.float32)) == ["7", "0.1"]
    assert codes([True, None]) == ["true", None]
    assert codes([dt.datetime(2020, 1, 2)]) == ["2020-01-02 00:00:00"]
    assert codes(np.array([1.0, np.nan])) == ["1", None]
    assert codes(np.array(["x", "", "?"]), na=["?"]) == ["x", None, None]
    assert codes([b"b", None]) == ["b", None]


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ([1, "a"], "Could not convert 'a' with type str: tried to convert to int64"),
        ([dt.date(2020, 1, 1), 1.5], "holds date and float"),
        ([dt.date(2020, 1, 1), None, dt.datetime(2020, 1, 1, 10)], "holds date and datetime"),
    ],
)
@pytest.mark.parametrize("kind", ["text", "timestamp"])
def test_values_of_several_types_are_refused(kind, cells, said):
    """Arrow alone makes 1970-01-02 of 1.5 behind a date, and drops the hour of a time among dates."""
    for given in (cells, np.array(cells, object)):
        with pytest.raises(UsageError) as error:
            read(given, TableColumn("x", kind))
        assert str(error.value) == (f"column 'x': {said}; all values must have one type. Convert it.")


def test_texts_under_a_pack_of_text_files_are_read_as_there():
    reading = {"na": ["?"], "keep_spaces": False}
    assert codes([" a ", "?", "NA", "", "b", "\ta"], **reading) == ["a", None, None, None, "b", "a"]
    assert codes([" a ", "?"], **reading | {"keep_spaces": True}) == [" a ", None]
    verbatim = TableColumn("x", "category", "verbatim")
    found = read([" NA", "", "?"], verbatim, **reading)
    assert (found.records["c0"].tolist(), found.dictionaries) == ([0, -1, 1], {0: ["NA", "?"]})


def test_codes():
    found = read(["b", None, "a", "b"], TableColumn("x", "category"))
    assert (found.records["c0"].tolist(), found.dictionaries) == ([0, -1, 1, 0], {0: ["b", "a"]})


def test_texts_are_read_as_those_of_the_files():
    assert (
        numbers(["1.234,5", "-"], TableColumn("x", "number"), decimal=",", thousands=".", na=["-"])[0]
        == 1234.5
    )
    assert read(["1.5.0"], TableColumn("x", "number"), decimal=",").bad


def test_numbers_and_dates_as_people_write_them() -> None:
    price, when = TableColumn("p", "number", "currency"), TableColumn("d", "date", "date-dmy")
    assert numbers(["$1,234.50", None, "NA"], price).tolist()[0] == 1234.5
    assert np.isnan(numbers(["$1,234.50", None, "NA"], price)[1:]).all()
    assert numbers([3.5], price).tolist() == [3.5]
    assert numbers(["3,5 €"], price, decimal=",", thousands=".").tolist() == [3.5]
    assert numbers(["31/01/2013"], when).tolist() == [15736]
    assert numbers([dt.date(2013, 1, 31)], when).tolist() == [15736]
    whole = TableColumn("d", "date", "date-ymd")
    for cells in ([20130131, None], [20130131.0, np.nan], ["20130131", None]):
        np.testing.assert_array_equal(numbers(cells, whole), [15736, np.nan])
    assert str(read([20131331], whole).bad[0].reason) == "is not a date (YYYYMMDD)"
    assert read(["free"], price).bad[0].reason == "is not an amount of money ($1,234.50)"


def test_frames():
    frame = FrameTable({"a": [1, 2], 3: np.zeros(2), "b": object()}, ReadOptions(), ["a", "3"])
    assert [c.name for c in frame.columns] == ["a", "3", "b"]
    with pytest.raises(UsageError) as error:
        FrameTable({"z": 0, "a": [1], "b": [1, 2]}, ReadOptions(), ["a", "b"])
    assert str(error.value) == (
        "column 'b': has 2 rows, and 'a' has 1; all columns need the same length. Pass columns of equal length."
    )
    with pytest.raises(UsageError) as error:
        FrameTable([1, 2], ReadOptions())
    assert str(error.value) == ("data: row 0 is a int; a dict is allowed. Pass dicts.")


# Packages that may be absent: what they hand out, against the plain form.

STAMPS = [dt.datetime(2021, 5, 6, 7, 8, 9, 10), None, dt.datetime(1960, 1, 1, 0, 0, 0, 999_999)]
SECONDS = [1_620_284_889.00001, NAN, -315_619_200 + 0.999999]
SERIES: list[tuple[str, str, list[Any], list[float]]] = [
    ("number", "number", [1.5, None, 2.5], [1.5, NAN, 2.5]),
    ("whole", "number", [1, 2, 3], [1, 2, 3]),
    ("whole, missing", "number", [1, None, 3], [1, NAN, 3]),
    ("integer", "integer", [1, None, 2**60 + 1], [1, MISSING_INTEGER, 2**60 + 1]),
    ("boolean", "boolean", [True, None, False], [1, NAN, 0]),
    ("stamps", "timestamp", STAMPS, SECONDS),
    ("dates", "date", [dt.date(1970, 1, 5), None, dt.date(1969, 1, 1)], [4, NAN, -365]),
    ("texts", "date", ["1970-01-05", None, ""], [4, NAN, NAN]),
    ("times", "time", [dt.time(0, 1), None, dt.time(1)], [60, NAN, 3600]),
]


@pytest.mark.parametrize(("name", "kind", "cells", "raw"), SERIES, ids=[s[0] for s in SERIES])
def test_pandas(name, kind, cells, raw):
    pandas = pytest.importorskip("pandas")
    forms = [pandas.Series(cells, dtype=object), pandas.Series(cells)]
    if name in ("integer", "whole, missing"):
        forms = [pandas.Series(cells, dtype="Int64"), pandas.Series(cells, dtype=object)]
    if name == "boolean":
        forms.append(pandas.Series(cells, dtype="boolean"))
    if name == "stamps":
        forms += [
            forms[1].astype("datetime64[ns]"),
            forms[1].dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo"),
        ]
    for series in forms:
        found = numbers(pandas.DataFrame({"before": [0, 0, 0], "x": series}), TableColumn("x", kind))
        np.testing.assert_array_equal(found, np.array(raw, found.dtype))


@pytest.mark.parametrize(("name", "kind", "cells", "raw"), SERIES, ids=[s[0] for s in SERIES])
def test_pyarrow(name, kind, cells, raw):
    pyarrow = pytest.importorskip("pyarrow")
    forms = [pyarrow.array(cells)]
    if name == "stamps":
        forms += [forms[0].cast(f"timestamp[{unit}]") for unit in ("us", "ns")]
        forms.append(forms[0].cast(pyarrow.timestamp("us", "Asia/Tokyo")))
    for array in forms:
        table = pyarrow.table({"x": pyarrow.chunked_array([array[:1], array[1:]])})
        found = read_frame(table, TableColumn("x", kind)).records["c0"]
        np.testing.assert_array_equal(found, np.array(raw, found.dtype))


@pytest.mark.parametrize(("name", "kind", "cells", "raw"), SERIES, ids=[s[0] for s in SERIES])
def test_polars(name, kind, cells, raw):
    polars = pytest.importorskip("polars")
    forms = [polars.Series("x", cells)]
    if name == "stamps":
        forms += [
            forms[0].cast(polars.Datetime("ns")),
            forms[0].dt.replace_time_zone("UTC").dt.convert_time_zone("Asia/Tokyo"),
        ]
    for series in forms:
        table = polars.DataFrame({"x": series})
        found = read_frame(table, TableColumn("x", kind)).records["c0"]
        np.testing.assert_array_equal(found, np.array(raw, found.dtype))


@pytest.mark.parametrize("package", ["pandas", "pyarrow", "polars"])
def test_categories_of_packages(package):
    module = pytest.importorskip(package)
    cells = ["b", None, "a", "b"]
    plain = (
        module.array(cells)
        if package == "pyarrow"
        else module.Series("x", cells)
        if package == "polars"
        else module.Series(cells)
    )
    if package == "pyarrow":
        other = plain.dictionary_encode()
    else:
        other = plain.astype("category") if package == "pandas" else plain.cast(module.Categorical)
    for column in (plain, other):
        found = read(column, TableColumn("x", "category"))
        assert (found.records["c0"].tolist(), found.dictionaries[0]) == ([0, -1, 1, 0], ["b", "a"])


def test_pandas_names_that_are_no_texts_or_occur_twice():
    pandas = pytest.importorskip("pandas")
    data = pandas.DataFrame([[1.0, 2.0, 3.0]], columns=[0, "a", "a"])
    table = FrameTable(data, ReadOptions())
    assert [c.name for c in table.columns] == ["0", "a", "a.1"]
    assert table.notes == (
        "data frame: columns without a name, or with a repeated one, renamed: 1 column ('a.1').",
    )
    assert [numbers(data, TableColumn(name, "number")).tolist() for name in ("0", "a")] == [[1.0], [2.0]]


@pytest.mark.parametrize("form", ["string_view", "binary_view", "large_binary", "large_string"])
def test_texts_as_polars_hands_them_out(form):
    pyarrow = pytest.importorskip("pyarrow")
    if not hasattr(pyarrow, form):
        pytest.skip("an older pyarrow")
    cells = pyarrow.array(["b", None, "a", "?"]).cast(getattr(pyarrow, form)())
    assert (
        codes(cells, na=["?"])
        == codes(pyarrow.chunked_array([cells[:2], cells[2:]]), na=["?"])
        == ["b", None, "a", None]
    )
    assert (
        numbers(pyarrow.array(["1", None]).cast(getattr(pyarrow, form)()), TableColumn("x", "number"))[0] == 1
    )


class Stream:
    """A frame that offers nothing but an Arrow stream."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


def test_whatever_hands_out_an_arrow_stream_is_a_frame():
    pyarrow = pytest.importorskip("pyarrow")
    stream = Stream(pyarrow.table({"y": ["a"], "x": [1.5]}))
    assert read_frame(stream, TableColumn("x", "number")).records["c0"].tolist() == [1.5]


def test_categories_as_polars_hands_them_out():
    """Dictionaries of views, each chunk with its own."""
    pyarrow = pytest.importorskip("pyarrow")
    chunks = [
        pyarrow.DictionaryArray.from_arrays(places, pyarrow.array(texts, pyarrow.string_view()))
        for places, texts in ((pyarrow.array([0, None]), ["b"]), (pyarrow.array([1, 0]), ["b", "a"]))
    ]
    found = read(pyarrow.chunked_array(chunks), TableColumn("x", "category"))
    assert (found.records["c0"].tolist(), found.dictionaries[0]) == ([0, -1, 1, 0], ["b", "a"])


def test_a_cursor_of_dicts_gives_values_not_names() -> None:
    def rows(cursor: Any, row: Any) -> dict[str, Any]:
        return dict(zip([c[0] for c in cursor.description], row, strict=True))

    database = sqlite3.connect(":memory:")
    for factory in (None, sqlite3.Row, rows):
        database.row_factory = factory
        cursor = database.execute("select 1 as a, 'p' as b union all select 2, 'q'")
        found = dict(zip("ab", FrameTable(cursor, ReadOptions())._batch.columns, strict=True))
        assert {name: x.to_pylist() for name, x in found.items()} == {"a": [1, 2], "b": ["p", "q"]}


def test_frames_that_arrow_cannot_read_are_refused() -> None:
    polars = pytest.importorskip("polars")
    with pytest.raises(UsageError, match="data: Arrow cannot read it"):
        FrameTable(polars.DataFrame({"x": polars.Series([1], dtype=polars.Int128)}), ReadOptions())


def test_durations_are_seconds() -> None:
    polars, pandas = pytest.importorskip("polars"), pytest.importorskip("pandas")
    hours = [dt.timedelta(hours=25), None, dt.timedelta(hours=-1)]
    for cells in (hours, pa.array(hours), pandas.Series(hours), polars.Series(hours)):
        assert type_of(pa.table({"x": cells}).schema.field(0).type) == "time"
        np.testing.assert_array_equal(numbers(cells, TableColumn("x", "time")), [90000, np.nan, -3600])
