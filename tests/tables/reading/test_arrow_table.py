"""Parquet and Arrow files: every type, every way to be bad, pieces that begin anywhere."""

from __future__ import annotations

import datetime as dt
import decimal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from packer.cli.option_words import in_options
from packer.errors import SourceError, UsageError
from packer.tables.reading import arrow_table as module
from packer.tables.reading.table_opening import open_table
from packer.tables.reading.table_source import ReadOptions, TableSource
from packer.tables.transform.column_types import MISSING_INTEGER, TableColumn
from packer.tables.transform.records import BadRow, ParsedRows, RecordLayout, RecordMember

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
feather = pytest.importorskip("pyarrow.feather")

FORMS = ("parquet", "arrow", "stream.arrow", "feather", "lz4.feather")
every_form = pytest.mark.parametrize("form", FORMS)


def write(path: Path, table: Any, form: str, batch_rows: int = 1 << 20) -> str:
    """The table as a file of that form, in row groups or batches of so many rows."""
    name = str(path / f"t.{form}")
    if form == "parquet":
        pq.write_table(table, name, row_group_size=batch_rows)
    elif form.endswith("feather"):
        feather.write_feather(
            table, name, compression="lz4" if form == "lz4.feather" else "uncompressed", chunksize=batch_rows
        )
    else:
        kind = pa.ipc.new_stream if form == "stream.arrow" else pa.ipc.new_file
        with kind(name, table.schema) as writer:
            for batch in table.to_batches(batch_rows):
                writer.write_batch(batch)
    return name


def layout_of(source: TableSource, *, single: bool = False, **types: str) -> RecordLayout:
    """All columns, as they are or as other types."""
    columns = [TableColumn(c.name, types.get(c.name, c.type)) for c in source.columns]
    return RecordLayout(
        tuple(RecordMember(i, c, single and c.type == "number") for i, c in enumerate(columns))
    )


def read_all(source: TableSource, layout: RecordLayout, after: list[Any] | None = None) -> ParsedRows:
    """All pieces put together as the lead of a conversion does: one dictionary, one blob."""
    whole = ParsedRows(np.empty(0, layout.dtype))
    parts = []
    for chunk in source.chunks(layout, after):
        part = chunk.read()
        for w in layout.members:
            if w.column.type == "category":
                own = whole.dictionaries.setdefault(w.index, [])
                texts = part.dictionaries[w.index]
                codes = part.records[w.name].copy()
                seen = list(dict.fromkeys(codes[codes >= 0].tolist()))
                assert seen == list(range(len(texts)))  # in order of first appearance, none too many
                own += [t for t in texts if t not in own]
                for code, text in enumerate(texts):
                    part.records[w.name][codes == code] = own.index(text)
            elif w.column.type == "text":
                part.records[w.name]["at"] += len(whole.texts)
        for bad in part.bad:
            whole.bad.append(BadRow(bad.line + whole.lines, bad.column, bad.value, bad.reason))
        whole.texts += part.texts
        whole.bad_lines = np.concatenate([whole.bad_lines, part.bad_lines + whole.lines])
        whole.lines += part.lines
        whole.nbytes += part.nbytes
        parts.append(part.records)
        assert len(part.lines_of) == len(part.records)
        assert not set(part.lines_of.tolist()) & {bad.line for bad in part.bad}
    whole.records = np.concatenate(parts) if parts else whole.records
    return whole


def values(parsed: ParsedRows, layout: RecordLayout) -> list[list[Any]]:
    """Each column's values, missing ones None, categories and texts as such."""
    columns = []
    for w in layout.members:
        raw = parsed.records[w.name]
        if w.column.type == "category":
            texts = [*parsed.dictionaries.get(w.index, ()), None]
            columns.append([texts[code] for code in raw.tolist()])
        elif w.column.type == "text":
            columns.append([parsed.texts[at : at + n].decode() for at, n in raw.tolist()])
        elif w.column.type == "integer":
            columns.append([None if v == MISSING_INTEGER else v for v in raw.tolist()])
        else:
            columns.append([None if np.isnan(v) else v for v in raw.tolist()])
    return columns


DAY = dt.date(2024, 2, 29)
EPOCH = dt.datetime(1970, 1, 1)
MOMENT = dt.datetime(2024, 2, 29, 13, 14, 15, 123456)
SECONDS = (MOMENT - EPOCH).total_seconds()
CLOCK = dt.time(13, 14, 15, 123456)
EASTERN = dt.timezone(dt.timedelta(hours=-5))


TYPES: dict[str, tuple[Any, list[Any], str, list[Any]]] = {
    "int8": (pa.int8(), [1, None, -128], "integer", [1, None, -128]),
    "uint16": (pa.uint16(), [65535, 0, None], "integer", [65535, 0, None]),
    "int64": (pa.int64(), [2**63 - 1, None, -(2**63) + 1], "integer", [2**63 - 1, None, -(2**63) + 1]),
    "uint64": (pa.uint64(), [2**63 - 1, None, 0], "integer", [2**63 - 1, None, 0]),
    "half": (pa.float16(), [np.float16(0.5), None, np.float16("nan")], "number", [0.5, None, None]),
    "float": (pa.float32(), [0.1, None, float("nan")], "number", [float(np.float32(0.1)), None, None]),
    "double": (pa.float64(), [0.1, 1e300, None], "number", [0.1, 1e300, None]),
    "decimal": (
        pa.decimal128(20, 3),
        [decimal.Decimal("12345678901234567.891"), None, decimal.Decimal("-0.125")],
        "number",
        [12345678901234567.891, None, -0.125],
    ),
    "null": (pa.null(), [None, None, None], "number", [None, None, None]),
    "bool": (pa.bool_(), [True, None, False], "boolean", [1.0, None, 0.0]),
    "date32": (pa.date32(), [DAY, None, dt.date(1969, 12, 31)], "date", [19782.0, None, -1.0]),
    "date64": (pa.date64(), [DAY, None, dt.date(1969, 12, 31)], "date", [19782.0, None, -1.0]),
    "time32 s": (pa.time32("s"), [dt.time(1, 2, 3), None, dt.time(0)], "time", [3723.0, None, 0.0]),
    "time32 ms": (pa.time32("ms"), [dt.time(1, 2, 3, 4000), None, dt.time(0)], "time", [3723.004, None, 0.0]),
    "time64 us": (pa.time64("us"), [CLOCK, None, dt.time(0)], "time", [47655.123456, None, 0.0]),
    "time64 ns": (pa.time64("ns"), [CLOCK, None, dt.time(0)], "time", [47655.123456, None, 0.0]),
    "timestamp s": (pa.timestamp("s"), [MOMENT.replace(microsecond=0), None, EPOCH], "timestamp", [SECONDS // 1, None, 0.0]),
    "timestamp us": (pa.timestamp("us"), [MOMENT, None, EPOCH], "timestamp", [SECONDS, None, 0.0]),
    "timestamp ns": (pa.timestamp("ns"), [MOMENT, None, EPOCH - dt.timedelta(microseconds=1)], "timestamp", [SECONDS, None, -1 + 0.999999]),
    "zone": (
        pa.timestamp("us", "America/Toronto"),
        [MOMENT.replace(tzinfo=EASTERN), None, EPOCH.replace(tzinfo=dt.timezone.utc)],
        "timestamp",
        [SECONDS + 5 * 3600, None, 0.0],
    ),
    "string": (pa.string(), ["b", None, "a", "b", ""], "category", ["b", None, "a", "b", ""]),
    "large_string": (pa.large_string(), ["ä", None, "NA"], "category", ["ä", None, "NA"]),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["b", None, "a", "b"], "category", ["b", None, "a", "b"]),
}  # fmt: skip


@every_form
@pytest.mark.parametrize("name", list(TYPES))
def test_every_type_of_arrows(tmp_path: Path, form: str, name: str):
    if form.endswith("feather") and name == "null":
        pytest.skip("Feather's writer has none")
    type, given_, column, expected = TYPES[name]
    array = pa.array(given_, type=type) if name != "dictionary" else pa.array(given_).dictionary_encode()
    source = open_table([write(tmp_path, pa.table({"x": array}), form)], ReadOptions())
    assert source.columns == (TableColumn("x", column),)
    assert source.unit == "row"
    layout = layout_of(source)
    parsed = read_all(source, layout)
    assert values(parsed, layout) == [expected]
    assert (parsed.bad, parsed.bad_rows, parsed.lines) == ([], 0, len(given_))
    assert source.first_line(source.names[0]) == 1


@pytest.mark.parametrize("rows", [1, 200, 401])  # row groups and batches have 200
@every_form
def test_pieces_of_any_size_give_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, rows: int
):
    rng = np.random.default_rng(0)
    table = pa.table(
        {
            "a": pa.array(rng.normal(size=rows), mask=rng.random(rows) < 0.1),
            "b": pa.array(rng.integers(-9, 9, rows)),
            "c": pa.array([f"k{n}" for n in rng.integers(0, 40, rows)]),
            "d": pa.array(["x" * n for n in rng.integers(0, 9, rows)]),
        }
    )
    name = write(tmp_path, table, form, 200)
    source = open_table([name], ReadOptions())
    layout = layout_of(source, d="text")
    expected = [
        [None if v is None else v for v in table["a"].to_pylist()],
        table["b"].to_pylist(),
        table["c"].to_pylist(),
        table["d"].to_pylist(),
    ]
    for piece_rows in (1 << 18, 200, 77, 1):
        monkeypatch.setattr(module, "PIECE_ROWS", piece_rows)
        parsed = read_all(source, layout)
        assert values(parsed, layout) == expected
        assert parsed.lines == rows
        assert parsed.nbytes <= source.nbytes
        if form != "stream.arrow":  # which has an end of its own
            assert parsed.nbytes == source.nbytes
        chunks = list(source.chunks(layout))
        assert max(len(chunk.read().records) for chunk in chunks) <= piece_rows
        if piece_rows > 1:
            for number, chunk in enumerate(chunks):
                rest = read_all(source, layout, chunk.after)
                read = sum(len(c.read().records) for c in chunks[: number + 1])
                assert values(rest, layout) == [column[read:] for column in expected]
    assert source.rows == (rows if form == "parquet" else None)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(
    data=st.lists(
        st.tuples(
            st.none() | st.floats(width=64),
            st.none() | st.integers(0, 2**64 - 1),
            st.none() | st.text('ab\n",é', max_size=3),
        ),
        min_size=1,
        max_size=60,
    ),
    single=st.booleans(),
    batch=st.integers(1, 30),
    form=st.sampled_from(FORMS),
)
def test_bad_rows_are_told_and_left_out(tmp_path: Path, data: list[Any], single: bool, batch: int, form: str):
    a, b, c = (list(column) for column in zip(*data, strict=True))
    table = pa.table(
        {
            "a": pa.array(a, pa.float64()),
            "b": pa.array(b, pa.uint64()),
            "c": pa.array(c, pa.string()),
            "d": pa.array(c, pa.string()),
        }
    )
    source = open_table([write(tmp_path, table, form, batch)], ReadOptions())
    layout = layout_of(source, single=single, d="text")
    parsed = read_all(source, layout)
    bad, good = [], []
    for row, (x, n, text) in enumerate(data):
        if x is not None and np.isinf(x):
            bad.append(BadRow(row, 0, str(x), "is infinite"))
        elif single and x is not None and abs(x) >= float.fromhex("0x1.ffffffp127"):
            bad.append(BadRow(row, 0, str(x), "is beyond float32"))
        elif n is not None and n >= 2**63:
            bad.append(BadRow(row, 1, str(n), "is beyond 64-bit integers"))
        else:
            number = None if x is None or np.isnan(x) else float(np.float32(x)) if single else x
            good.append([number, n, text, text or ""])
    assert parsed.bad == bad
    assert parsed.bad_rows == len(bad)
    assert values(parsed, layout) == [[row[k] for row in good] for k in range(4)]


def test_at_most_a_thousand_bad_rows_of_a_piece_are_listed(tmp_path: Path):
    table = pa.table({"a": pa.array([float("inf")] * 5000 + [1.0])})
    source = open_table([write(tmp_path, table, "parquet")], ReadOptions())
    (chunk,) = source.chunks(layout_of(source))
    parsed = chunk.read()
    assert [bad.line for bad in parsed.bad] == list(range(1000))
    assert parsed.bad_rows == 5000
    assert parsed.lines_of.tolist() == [5000]
    assert parsed.records["c0"].tolist() == [1.0]


TEXTS = ["1", " 2.5 ", None, "NA", "", "x\ny", "1e400", "true", "2024-02-29", "12:30", '"', "9" * 30, "2,5"]
# type -> the values of those that can be read, the numbers of the others
AS: dict[str, tuple[list[Any], tuple[int, ...], str]] = {
    "number": ([1.0, 2.5, None, None, None, 1e30], (5, 6, 7, 8, 9, 10, 12), "is not a number"),
    "integer": ([1, None, None, None], (1, 5, 6, 7, 8, 9, 10, 11, 12), "is not a whole number"),
    "boolean": ([None, None, None, 1.0], (0, 1, 5, 6, 8, 9, 10, 11, 12), "is neither true nor false"),
    "date": ([None, None, None, 19782.0], (0, 1, 5, 6, 7, 9, 10, 11, 12), "is not a date (YYYY-MM-DD)"),
    "time": ([None, None, None, 45000.0], (0, 1, 5, 6, 7, 8, 10, 11, 12), "is not a time (HH:MM:SS)"),
}
OWN = {("number", 6): "is infinite", ("integer", 11): "is beyond 64-bit integers"}


@pytest.mark.parametrize("encoded", [False, True])
@pytest.mark.parametrize("type", list(AS))
def test_texts_are_read_as_the_cells_of_a_csv_are(tmp_path: Path, type: str, encoded: bool):
    array = pa.array(TEXTS)
    name = write(tmp_path, pa.table({"x": array.dictionary_encode() if encoded else array}), "parquet")
    source = open_table([name], ReadOptions(types={"x": type}))
    assert source.columns == (TableColumn("x", type),)
    layout = layout_of(source)
    parsed = read_all(source, layout)
    expected, rows, reason = AS[type]
    assert parsed.bad == [BadRow(row, 0, str(TEXTS[row]), OWN.get((type, row), reason)) for row in rows]
    assert values(parsed, layout) == [pytest.approx(expected)]


def broken(type: Any) -> Any:
    """Texts of which one, that occurs twice, is not UTF-8."""
    data = pa.array([b"ok", b"a\xff", None, b"7", b"a\xff", b"ok"], pa.binary())
    array = pa.Array.from_buffers(pa.string(), len(data), data.buffers())
    return array.dictionary_encode() if pa.types.is_dictionary(type) else array.cast(type)


@every_form
@pytest.mark.parametrize("wanted", ["text", "category", "number", "date"])
@pytest.mark.parametrize("type", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_texts_that_are_not_utf8_are_bad(tmp_path: Path, type: Any, wanted: str, form: str):
    table = pa.table({"n": list(range(6)), "x": broken(type)})
    source = open_table([write(tmp_path, table, form)], ReadOptions(types={"x": wanted}))
    layout = layout_of(source)
    parsed = read_all(source, layout)
    assert [b for b in parsed.bad if b.line in (1, 4)] == [
        BadRow(line, 1, "a\ufffd", "is not UTF-8") for line in (1, 4)
    ]
    others = {"text": 0, "category": 0, "number": 2, "date": 3}[wanted]
    assert parsed.bad_rows == len(parsed.bad) == 2 + others
    expected = {
        "text": ["ok", "", "7", "ok"],
        "category": ["ok", None, "7", "ok"],
        "number": [None, 7.0],
        "date": [None],
    }
    assert values(parsed, layout)[1] == expected[wanted]


def test_decimals_are_exact_integers(tmp_path: Path):
    texts = ["123456789012345678", "9223372036854775807", None, "-9223372036854775807", "-0.000"]
    for wide in (pa.decimal128(38, 3), pa.decimal256(60, 3)):
        exact = [None if text is None else decimal.Decimal(text) for text in texts]
        wrong = [
            decimal.Decimal(text)
            for text in ("0.125", "9223372036854775808", "-9223372036854775808", "-1.001")
        ]
        for given_ in (exact, exact + wrong):
            name = write(tmp_path, pa.table({"x": pa.array(given_, wide)}), "parquet")
            source = open_table([name], ReadOptions(types={"x": "integer"}))
            layout = layout_of(source)
            parsed = read_all(source, layout)
            assert values(parsed, layout) == [
                [None if text is None else int(decimal.Decimal(text)) for text in texts]
            ]
            whole, beyond = "is not a whole number", "is beyond 64-bit integers"
            assert [(b.line, b.reason) for b in parsed.bad] == [
                (5, whole),
                (6, beyond),
                (7, beyond),
                (8, whole),
            ][: len(given_) - 5]


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        (
            "number",
            ["0.0000000001", "0.0000000120", "-0.0000000100", "0.5000000000", "100.0000000000", "0", None],
        ),
        ("percent", ["0.0000000010", "12", "1.5"]),
        ("integer", ["0", "100", "-7.0"]),
    ],
)
def test_decimals_are_their_numbers_whatever_their_digits(tmp_path: Path, kind: str, texts: list[str | None]):
    cells = [None if text is None else decimal.Decimal(text) for text in texts]
    table = pa.table({"x": pa.array(cells, pa.decimal128(30, 10))})
    source = open_table([write(tmp_path, table, "parquet")], ReadOptions(types={"x": kind}))
    layout = layout_of(source)
    parsed = read_all(source, layout)
    assert not parsed.bad
    assert values(parsed, layout) == [[None if text is None else float(text) for text in texts]]


def test_whole_decimals_are_booleans(tmp_path: Path):
    table = pa.table({"x": pa.array([decimal.Decimal(1), decimal.Decimal(0), None], pa.decimal128(1, 0))})
    source = open_table([write(tmp_path, table, "parquet")], ReadOptions(types={"x": "boolean"}))
    assert values(read_all(source, layout_of(source)), layout_of(source)) == [[1.0, 0.0, None]]


def test_a_column_named_as_a_member_of_a_struct_is_itself(tmp_path: Path):
    table = pa.table({"a": [{"b": 7, "c": "x"}] * 3, "a.b": [1.0, 2.0, 3.0], "z": [10.0, 20.0, 30.0]})
    for size in (3, 2):
        source = open_table([write(tmp_path, table, "parquet", size)], ReadOptions())
        layout = RecordLayout((RecordMember(1, source.columns[1]), RecordMember(2, source.columns[2])))
        assert values(read_all(source, layout), layout) == [[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]]


def test_blanks_around_texts_are_kept_as_in_csv_files(tmp_path: Path):
    texts = [" a", "a ", "a", "\tNA", "  "]
    (tmp_path / "t.csv").write_text("x,y\n" + "".join(f"{text},{text}\n" for text in texts))
    reading = ReadOptions(types={"x": "category", "y": "text"}, keep_spaces=True)
    for name in (write(tmp_path, pa.table({"x": texts, "y": texts}), "parquet"), str(tmp_path / "t.csv")):
        source = open_table([name], reading)
        layout = layout_of(source)
        assert values(read_all(source, layout), layout) == [texts, texts]


def test_marks_of_numbers_hold_for_texts(tmp_path: Path):
    name = write(tmp_path, pa.table({"x": ["1.000,5", "-", "7"]}), "parquet")
    source = open_table([name], ReadOptions(decimal=",", thousands=".", na=("-",), types={"x": "number"}))
    layout = layout_of(source)
    assert values(read_all(source, layout), layout) == [[1000.5, None, 7.0]]


def test_thousands_of_different_texts_as_numbers(tmp_path: Path):
    texts = [f"{n}.25" if n % 7 else f"no {n}" for n in range(5000)]
    source = open_table(
        [write(tmp_path, pa.table({"x": texts}), "parquet")], ReadOptions(types={"x": "number"})
    )
    layout = layout_of(source)
    parsed = read_all(source, layout)
    assert values(parsed, layout) == [[n + 0.25 for n in range(5000) if n % 7]]
    assert parsed.bad_rows == 715
    assert [bad.line for bad in parsed.bad] == list(range(0, 5000, 7))


OTHERS = [
    ("bool", "integer", [1, None, 0], {}),
    ("bool", "category", ["true", None, "false"], {}),
    ("int8", "category", ["1", None, "-128"], {}),
    ("int8", "number", [1.0, None, -128.0], {}),
    ("int8", "boolean", [1.0, None], {2: "is neither 0 nor 1"}),
    ("double", "integer", [None], {0: "is not a whole number", 1: "is beyond 64-bit integers"}),
    ("timestamp us", "date", [19782.0, None, 0.0], {}),
    ("date32", "timestamp", [19782.0 * 86400, None, -86400.0], {}),
    ("date32", "category", ["2024-02-29", None, "1969-12-31"], {}),
    ("int64", "number", [2.0**63, None, -(2.0**63)], {}),
]


@pytest.mark.parametrize(("name", "type", "expected", "reasons"), OTHERS)
def test_values_as_another_type(
    tmp_path: Path, name: str, type: str, expected: list[Any], reasons: dict[int, str]
):
    arrow_type, given_, _, _ = TYPES[name]
    table = pa.table({"x": pa.array(given_, arrow_type)})
    source = open_table([write(tmp_path, table, "parquet")], ReadOptions(types={"x": type}))
    layout = layout_of(source)
    parsed = read_all(source, layout)
    assert values(parsed, layout) == [expected]
    assert {bad.line: bad.reason for bad in parsed.bad} == reasons


def test_dictionaries_with_nulls_doubles_and_what_does_not_occur(tmp_path: Path):
    odd = pa.DictionaryArray.from_arrays(
        pa.array([3, 0, None, 1, 2, 0], pa.int8()), pa.array(["a", None, "a", "b", "never"])
    )
    unused = pa.DictionaryArray.from_arrays(
        pa.array([3, 0, None, 1, 3, 0], pa.int8()), pa.array(["a", "c", "never", "b"])
    )
    numbers = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 0, 0, 1], pa.int8()), pa.array([5, 7]))
    table = pa.table({"odd": odd, "unused": unused, "numbers": numbers})
    source = open_table([write(tmp_path, table, "arrow")], ReadOptions())
    assert [c.type for c in source.columns] == ["category", "category", "integer"]
    layout = layout_of(source)
    assert values(read_all(source, layout), layout) == [
        ["b", "a", None, None, "a", "a"],
        ["b", "a", None, "c", "b", "a"],
        [5, 7, None, 5, 5, 7],
    ]


def test_only_the_columns_that_are_wanted_are_read_in_their_order(tmp_path: Path):
    table = pa.table({"a": [1, 2], "l": [[1], [2]], "b": ["x", "y"], "c": [0.5, 1.5]})
    for form in ("parquet", "arrow", "stream.arrow"):
        source = open_table([write(tmp_path, table, form)], ReadOptions())
        layout = RecordLayout((RecordMember(2, source.columns[2]), RecordMember(3, source.columns[3], True)))
        parsed = read_all(source, layout)
        assert parsed.records.dtype == np.dtype([("c2", "<i4"), ("c3", "<f4")])
        assert values(parsed, layout) == [["x", "y"], [0.5, 1.5]]


@every_form
def test_columns_of_equal_names_and_of_none(tmp_path: Path, form: str):
    if form.endswith("feather"):
        pytest.skip("Feather's writer refuses them")
    arrays = [pa.array([n, n + 10]) for n in range(4)]
    name = write(tmp_path, pa.Table.from_arrays(arrays, names=["a", "", "a", "a.1"]), form)
    source = open_table([name], ReadOptions())
    assert [c.name for c in source.columns] == ["a", "column_1", "a.2", "a.1"]
    assert source.notes == (
        f"{name}: columns without a name, or with a repeated one, renamed: 2 columns ('column_1', 'a.2').",
    )
    layout = layout_of(source)
    assert values(read_all(source, layout), layout) == [[n, n + 10] for n in range(4)]


def test_files_follow_each_other(tmp_path: Path):
    names = []
    for k in range(3):
        (tmp_path / str(k)).mkdir()
        names.append(write(tmp_path / str(k), pa.table({"a": [k, 10 * k], "b": [str(k), "z"]}), "parquet"))
    source = open_table(names, ReadOptions())
    layout = layout_of(source)
    parsed = read_all(source, layout)
    assert values(parsed, layout) == [[0, 0, 1, 10, 2, 20], ["0", "z", "1", "z", "2", "z"]]
    assert source.rows == 6
    assert source.nbytes == parsed.nbytes == sum(Path(name).stat().st_size for name in names)
    chunks = list(source.chunks(layout))
    assert [chunk.name for chunk in chunks] == names
    assert values(read_all(source, layout, chunks[0].after), layout)[0] == [1, 10, 2, 20]
    assert source.fingerprint()["names"] == [f"{k}/t.parquet" for k in range(3)]
    assert str(source.newest()).startswith("t.parquet of ")


def test_a_column_of_nulls_has_the_type_of_the_next_files(tmp_path: Path):
    names = []
    for k, column in enumerate((pa.nulls(2), pa.nulls(2), pa.array(["x", "y"]), pa.nulls(2))):
        (tmp_path / str(k)).mkdir()
        names.append(write(tmp_path / str(k), pa.table({"a": [k, k], "b": column}), "parquet"))
    source = open_table(names, ReadOptions())
    assert source.columns == (TableColumn("a", "integer"), TableColumn("b", "category"))
    assert source.notes == ()
    layout = layout_of(source)
    assert values(read_all(source, layout), layout)[1] == [None] * 4 + ["x", "y"] + [None] * 2
    (tmp_path / "4").mkdir()
    other = write(tmp_path / "4", pa.table({"a": [1], "b": [1.5]}), "parquet")
    with pytest.raises(SourceError) as error:
        open_table([*names, other], ReadOptions())
    assert in_options(str(error.value)).startswith(
        f"{other}: column 'b' holds double, in {names[2]} it is string; "
    )


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"a": [1]}, "column 1 (from 0) is missing, in {first} it is 'b'; all files must have the same columns in the same order."
            " Leave the file out, or change its columns."),
        (
            {"a": [1], "c": ["x"]},
            "column 1 (from 0) is 'c', in {first} it is 'b'; all files must have the same columns in the same order."
            " Leave the file out, or change its columns.",
        ),
        (
            {"a": [1], "b": [2.5]},
            "column 'b' holds double, in {first} it is string; all files must have the same types."
            " Pass --type b=category, or another type, if one fits both.",
        ),
    ],
)  # fmt: skip
def test_files_that_do_not_go_together(tmp_path: Path, other: dict[str, Any], message: str):
    (tmp_path / "o").mkdir()
    first = write(tmp_path, pa.table({"a": [1], "b": ["x"]}), "parquet")
    second = write(tmp_path / "o", pa.table(other), "parquet")
    with pytest.raises(SourceError) as error:
        open_table([first, second], ReadOptions())
    assert in_options(str(error.value)) == f"{second}: {message.format(first=first)}"


def test_files_of_types_that_a_given_one_fits(tmp_path: Path):
    (tmp_path / "o").mkdir()
    first = write(tmp_path, pa.table({"b": ["1.5"]}), "parquet")
    second = write(tmp_path / "o", pa.table({"b": [2.5]}), "arrow")
    source = open_table([first, second], ReadOptions(types={"b": "number"}))
    layout = layout_of(source)
    assert values(read_all(source, layout), layout) == [[1.5, 2.5]]


def test_columns_that_cannot_be_read_can_only_be_dropped(tmp_path: Path):
    table = pa.table({"a": [1], "l": [[1, 2]], "s": [{"x": 1}], "b": [b"x"]})
    name = write(tmp_path, table, "parquet")
    source = open_table([name], ReadOptions())
    assert list(source.column_notes) == ["l", "s", "b"]
    assert source.column_notes["b"] == [
        "column 'b' holds binary, which cannot be read; it can only be dropped."
    ]
    with pytest.raises(UsageError) as error:
        next(source.chunks(layout_of(source)))
    assert in_options(str(error.value)) == (
        f"{name}: column 'l' holds list<element: int64>, which cannot be read as category. Convert it, or"
        " pass --drop l."
    )
    layout = RecordLayout((RecordMember(0, source.columns[0]),))
    assert values(read_all(source, layout), layout) == [[1]]


def test_types_that_do_not_fit(tmp_path: Path):
    name = write(tmp_path, pa.table({"a": pa.array([1.5]), "t": pa.array([CLOCK])}), "parquet")
    source = open_table([name], ReadOptions(types={"a": "date"}))
    with pytest.raises(UsageError) as error:
        next(source.chunks(layout_of(source)))
    assert in_options(str(error.value)) == (
        f"{name}: column 'a' holds double, which cannot be read as date. Convert it, or pass --type a=number."
    )
    with pytest.raises(UsageError, match="has no column 'q'"):
        open_table([name], ReadOptions(types={"q": "date"}))


def test_nulls_alone_are_noted(tmp_path: Path):
    source = open_table([write(tmp_path, pa.table({"a": pa.nulls(2)}), "parquet")], ReadOptions())
    assert source.column_notes == {"a": ["column 'a' holds only nulls and is read as number."]}


@pytest.mark.parametrize("form", ["parquet", "arrow", "stream.arrow", "lz4.feather"])
def test_files_that_are_damaged(tmp_path: Path, form: str):
    name = write(
        tmp_path, pa.table({"a": np.arange(20_000), "b": np.random.default_rng(0).random(20_000)}), form
    )
    whole = Path(name).read_bytes()
    for cut in (0, 3, 8, 100, len(whole) // 2):
        Path(name).write_bytes(whole[:cut])
        with pytest.raises(SourceError) as error:
            source = open_table([name], ReadOptions())
            read_all(source, layout_of(source))
        assert in_options(str(error.value)).startswith(f"{name}: cannot be read (")
        assert in_options(str(error.value)).endswith("). Check it, or write it again.")
    if form == "parquet":
        Path(name).write_bytes(whole[:1000] + bytes(2000) + whole[3000:])
        source = open_table([name], ReadOptions())
        with pytest.raises(SourceError, match="cannot be read"):
            read_all(source, layout_of(source))


def test_a_file_without_rows(tmp_path: Path):
    name = write(tmp_path, pa.table({"a": pa.array([], pa.int8())}), "parquet")
    with pytest.raises(SourceError) as error:
        open_table([name], ReadOptions())
    assert in_options(str(error.value)) == f"{name}: holds no rows; at least one is needed. Check it."


def test_pieces_are_read_by_several_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "PIECE_ROWS", 500)
    numbers = np.arange(20_000)
    for batch in (400, 5000):
        name = write(tmp_path, pa.table({"a": numbers, "b": numbers.astype(str)}), "parquet", batch)
        source = open_table([name], ReadOptions())
        layout = layout_of(source)
        chunks = list(source.chunks(layout))
        together = threading.Barrier(4)

        def read(
            part: int, chunks: list[Any] = chunks, together: threading.Barrier = together
        ) -> list[ParsedRows]:
            together.wait()
            return [chunk.read() for chunk in chunks[part::4]]

        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(read, range(4)))
        for number in range(len(chunks)):
            parsed = found[number % 4][number // 4]
            assert [str(v) for v in parsed.records["c0"].tolist()] == parsed.dictionaries[1]


def test_without_pyarrow_a_sentence_says_what_to_install(tmp_path: Path):
    name = write(tmp_path, pa.table({"a": [1]}), "parquet")
    code = f"""
        import sys
        sys.modules["pyarrow"] = None
        from packer.errors import MissingDependencyError
        from packer.tables.reading.table_opening import open_table
        from packer.tables.reading.table_source import ReadOptions
        try:
            open_table([{name!r}], ReadOptions())
        except MissingDependencyError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(line[8:] for line in code.splitlines())],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == (f"{name}: pyarrow is not installed. Run: pip install pyarrow\n")
