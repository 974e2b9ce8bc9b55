from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import numpy as np
import pytest

from packer.errors import UsageError
from packer.tables.transform.column_types import MISSING_INTEGER, TableColumn
from packer.tables.transform.data_frames import codes, frame, numbers, texts

NAN = float("nan")
ZONE = dt.timezone(dt.timedelta(hours=2))


class Missing:
    """As pandas.NA: neither equal nor unequal."""

    def __eq__(self, other: object) -> Any:
        return self

    __ne__ = __eq__
    __hash__ = None

    def __bool__(self) -> bool:
        raise TypeError("boolean value of NA is ambiguous")


@pytest.mark.parametrize(
    ("kind", "cells", "raw"),
    [
        ("number", [1, 2.5, None], [1, 2.5, NAN]),
        ("number", [" 1e3 ", "NA", "-.5", "\t7.", "+2", ""], [1000, NAN, -0.5, 7, 2, NAN]),
        ("number", np.array([1, 2], np.uint64), [1, 2]),
        ("number", np.array([0.1, np.nan], np.float32), [float(np.float32(0.1)), NAN]),
        ("number", [decimal.Decimal("0.1"), Missing(), np.float16(0.5), np.int8(3), NAN], [0.1, NAN, 0.5, 3, NAN]),
        ("number", np.array(["1", "x"[:0]]), [1, NAN]),
        ("number", np.array([b"1", b"nan"]), [1, NAN]),
        ("number", np.ma.masked_array([1, 2], [False, True]), [1, NAN]),
        ("integer", [1, None, "-7", 3.0, 2**60 + 1], [1, MISSING_INTEGER, -7, 3, 2**60 + 1]),
        ("integer", np.array([1.0, np.nan]), [1, MISSING_INTEGER]),
        ("integer", np.array([1, 2], np.uint8), [1, 2]),
        ("boolean", [True, "no", "YES", None, 0, 1.0, np.True_], [1, 0, 1, NAN, 0, 1, 1]),
        ("boolean", np.array([True, False]), [1, 0]),
        ("boolean", np.array([1, 0]), [1, 0]),
        ("date", [dt.date(1970, 1, 2), "1969-12-31", dt.datetime(2000, 1, 1), "", np.datetime64("1970-01-03")], [1, -1, 10957, NAN, 2]),
        ("date", np.array(["1970-01-02", "NaT"], "M8[D]"), [1, NAN]),
        ("date", np.array(["1970-01-02", "NaT"], "M8[ns]"), [1, NAN]),
        ("date", [3, 4.0], [3, 4]),
        ("time", [dt.time(1, 2, 3, 500_000), "01:02", dt.timedelta(seconds=90), None,
                  np.timedelta64(5, "m")], [3723.5, 3720, 90, NAN, 300]),
        ("time", np.array([1_500_000, "NaT"], "m8[us]"), [1.5, NAN]),
        ("timestamp", [dt.datetime(1970, 1, 1, 2, tzinfo=ZONE), "1970-01-01T00:00:01.25", dt.date(1970, 1, 2), NAN],
         [0, 1.25, 86_400, NAN]),
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
        ("number", ["1", "x"], 1, "'x'", "is not a number"),
        ("number", ["1_000"], 0, "'1_000'", "is not a number"),
        ("number", ["1e999"], 0, "'1e999'", "is not a number"),
        ("number", ["-inf"], 0, "'-inf'", "is infinite"),
        ("number", np.array([1, np.inf]), 1, "'inf'", "is infinite"),
        ("number", [True], 0, "'True'", "is not a number"),
        ("number", np.array([True]), 0, "'True'", "is not a number"),
        ("number", [[1, 2]], 0, "'[1, 2]'", "is not a number"),
        ("number", ["y" * 100], 0, "'" + "y" * 79 + "...", "is not a number"),
        ("integer", [1.5], 0, "'1.5'", "is not a whole number"),
        ("integer", ["12.0"], 0, "'12.0'", "is not a whole number"),
        ("integer", [2**63], 0, "'9223372036854775808'", "is not a whole number"),
        ("boolean", ["maybe"], 0, "'maybe'", "is no boolean (true, false, yes, no)"),
        ("boolean", np.array([0, 2]), 1, "'2'", "is no boolean (true, false, yes, no)"),
        ("date", ["2020-01-01", "2020-13-01"], 1, "'2020-13-01'", "is no date (YYYY-MM-DD)"),
        ("date", [dt.datetime(2020, 1, 1, 5)], 0, "'2020-01-01 05:00:00'", "is no date (YYYY-MM-DD)"),
        ("date", np.array(["2020-01-01T05"], "M8[s]"), 0, "'2020-01-01T05:00:00'", "is no date (YYYY-MM-DD)"),
        ("time", ["24:00"], 0, "'24:00'", "is no time (HH:MM[:SS])"),
        ("timestamp", ["2020-01-01"[:7]], 0, "'2020-01'", "is no timestamp (YYYY-MM-DD HH:MM[:SS])"),
    ],
)
def test_cells_of_another_kind(kind, cells, row, shown, reason):
    with pytest.raises(UsageError) as error:
        numbers(cells, TableColumn("x y", kind))
    assert str(error.value) == (
        f"row {row}, column 'x y': {shown} {reason}; such cells and missing ones are allowed. Mend it, or leave the row out."
    )


def test_texts():
    cells = ["a", None, "NA", 3, 2.0, 0.1, NAN, b"b", Missing(), np.float32(7), " x"]
    assert texts(cells) == ["a", None, None, "3", "2", "0.1", None, "b", None, "7", " x"]
    assert texts(np.array([1.0, np.nan])) == ["1", None]
    assert texts(np.array(["x", ""])) == ["x", None]
    assert texts(["?", "NA"], frozenset("?")) == [None, "NA"]


def test_codes():
    found, dictionary = codes(["b", None, "a", "b"])
    assert (found.tolist(), found.dtype, dictionary) == ([0, -1, 1, 0], np.int32, ["b", "a"])


def test_own_texts_for_missing():
    na = frozenset(["-"])
    assert numbers(["1", "-"], TableColumn("x", "number"), na)[0] == 1
    with pytest.raises(UsageError, match="'NA' is not a number"):
        numbers(["NA"], TableColumn("x", "number"), na)


def test_frames():
    found = frame({"a": [1, 2], 3: np.zeros(2)})
    assert (found.names, found.rows, found.get("a")) == (("a", "3"), 2, [1, 2])
    assert frame({}).rows == 0
    with pytest.raises(UsageError) as error:
        frame({"a": [1], "b": [1, 2]})
    assert str(error.value) == (
        "column 'b': has 2 rows, and 'a' has 1; one length is allowed. Give columns of one length."
    )
    for value, kind in ((1.5, "float"), ("abc", "str"), (np.array(1.5), "ndarray")):
        with pytest.raises(UsageError) as error:
            frame({"a": value})
        assert str(error.value) == (
            f"column 'a': is a {kind}; a list or an array with a value for each row is allowed. Put it in a list."
        )
    with pytest.raises(UsageError) as error:
        frame([1, 2])
    assert str(error.value) == (
        "data: is a list; a pandas or polars DataFrame, a pyarrow Table or a dict of columns is allowed. Pass one of them."
    )
    with pytest.raises(UsageError, match=r"a column has shape \(2, 2\)"):
        numbers(np.zeros((2, 2)), TableColumn("x", "number"))


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
        table = frame(pandas.DataFrame({"before": [0, 0, 0], "x": series}))
        found = numbers(table.get("x"), TableColumn("x", kind))
        np.testing.assert_array_equal(found, np.array(raw, found.dtype))


@pytest.mark.parametrize(("name", "kind", "cells", "raw"), SERIES, ids=[s[0] for s in SERIES])
def test_pyarrow(name, kind, cells, raw):
    pyarrow = pytest.importorskip("pyarrow")
    forms = [pyarrow.array(cells)]
    if name == "stamps":
        forms += [forms[0].cast(f"timestamp[{unit}]") for unit in ("us", "ns")]
        forms.append(forms[0].cast(pyarrow.timestamp("us", "Asia/Tokyo")))
    for array in forms:
        table = frame(pyarrow.table({"x": pyarrow.chunked_array([array[:1], array[1:]])}))
        assert (table.names, table.rows) == (("x",), 3)
        found = numbers(table.get("x"), TableColumn("x", kind))
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
        table = frame(polars.DataFrame({"x": series}))
        assert (table.names, table.rows) == (("x",), 3)
        found = numbers(table.get("x"), TableColumn("x", kind))
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
        found, dictionary = codes(column)
        assert (found.tolist(), dictionary) == ([0, -1, 1, 0], ["b", "a"])


def test_pandas_names_that_are_no_texts_or_occur_twice():
    pandas = pytest.importorskip("pandas")
    data = pandas.DataFrame([[1.0, 2.0, 3.0]], columns=[0, "a", "a"])
    table = frame(data)
    assert table.names == ("0", "a", "a")
    assert [numbers(table.get(name), TableColumn(name, "number")).tolist() for name in ("0", "a")] == [
        [1.0],
        [2.0],
    ]
