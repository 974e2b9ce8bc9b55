"""The types of columns, found out from their cells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from packer import native
from packer.cli.option_words import in_options
from packer.errors import UsageError
from packer.tables.reading.record_parser import parse_records
from packer.tables.reading.table_opening import open_table
from packer.tables.reading.table_source import ReadOptions
from packer.tables.reading.type_inference import infer
from packer.tables.transform.column_types import TableColumn
from packer.tables.transform.records import RecordLayout, RecordMember


def inferred(
    *cells: str, given: str | None = None, reading: ReadOptions | None = None
) -> tuple[str, tuple[str, ...]]:
    records = [[cell.encode()] for cell in cells]
    form = (reading or ReadOptions()).dialect()
    (column,), notes = infer("a.csv", ["x"], records, form, {"x": given} if given else {})
    assert column.name == "x"
    return column.type, tuple(in_options(note) for note in notes.get("x", ()))


def type_of(*cells: str, reading: ReadOptions | None = None) -> str:
    return inferred(*cells, reading=reading)[0]


@pytest.mark.parametrize(
    ("type", "cells"),
    [
        ("integer", ["1", "-2", "+30", "", " 4\t", "007", "NA"]),
        ("integer", ["9223372036854775807", "-9223372036854775807"]),
        ("number", ["9223372036854775808", "1"]),
        ("number", ["-9223372036854775808", "1"]),
        ("number", ["1" * 5000, "1"]),
        ("number", ["1", "2.5", "nan"]),
        ("number", ["1.", ".5", "-1e5", "1E+05", "1.5e-300", "1e400"]),
        ("number", ["1.5", "inf", "-Infinity"]),
        ("boolean", ["true", "False", "", "YES", "no"]),
        ("date", ["2013-01-31", "2013/02/28", "None"]),
        ("timestamp", ["2013-01-01 05:00", "2013-01-01T05:00:00.5Z", ""]),
        ("time", ["05:00", "05:00:01.5", ""]),
        ("category", ["red", "blue", "", "red"]),
        ("category", ["1", "x"]),
        ("category", ["true", "maybe"]),
        ("category", ["true", "1"]),
        ("category", ["2013-01-31", "2013-02-30"]),
        ("category", ["2013-01-31", "2013-01-31 05:00"]),
        ("category", ["inf", "inf"]),
        ("number", ["1e400", "-2e999"]),  # which are told when they are read
        ("category", ["1e", "."]),
        ("category", ["1\n2", "3"]),
        ("category", ["1 2", "3 4"]),
        ("category", ["１", "２"]),
    ],
)
def test_types(type: str, cells: list[str]) -> None:
    assert type_of(*cells) == type


def test_bytes_that_are_no_text_are_categories() -> None:
    (column,), _ = infer("a.csv", ["x"], [[b"caf\xe9"], [b"x"]], ReadOptions().dialect(), {})
    assert column == TableColumn("x", "category")


def test_marks_of_numbers() -> None:
    german = ReadOptions(decimal=",", thousands=".", delimiter=";")
    assert type_of("1.234", "5", "-1.234.567", reading=german) == "integer"
    assert type_of("1.234,5", "5,", reading=german) == "number"
    assert type_of("1,234.5", "5", reading=ReadOptions(thousands=",", delimiter=";")) == "number"
    assert type_of("1,234", "5", reading=ReadOptions(thousands=",", delimiter=";")) == "integer"


def test_texts_that_also_mean_missing() -> None:
    assert type_of("1", "?", "2", reading=ReadOptions(na=("?",))) == "integer"
    assert type_of("1", "-9.99", reading=ReadOptions(na=("-9.99",))) == "integer"
    assert type_of("1", "-9.98", reading=ReadOptions(na=("-9.99",))) == "number"
    assert type_of("x", "2.5", "7", reading=ReadOptions(na=("x", "-9.99"))) == "number"


def test_a_column_without_values_is_said_to_be_one() -> None:
    assert inferred("", "NA", " ") == (
        "number",
        (
            "column 'x' holds no value in the first 3 rows and is read as number. "
            "If it is not, pass --type x=category, or another type.",
        ),
    )
    assert inferred()[0] == "number"


def test_texts_that_are_nearly_all_different_are_said_to_be() -> None:
    cells = [f"name {number}" for number in range(95)] + ["name 1"] * 5
    assert inferred(*cells) == (
        "category",
        (
            "column 'x' is read as category; it holds 95 different texts in its first 100 cells, such as 'name 1' and 'name 0'.",
        ),
    )
    assert inferred(*cells[:99])[1] == ()
    assert inferred(*cells, *["name 2"] * 20)[1] == ()
    assert inferred(*cells, given="text") == ("text", ())


def test_a_few_texts_among_numbers_are_bad_cells() -> None:
    note = (
        "column 'x' is read as number; 3 of its first 98 cells are not, as '?' and '-', and their rows are bad."
        " For texts pass --type x=category."
    )
    assert inferred(*map(str, range(95)), "?", "?", "-") == ("number", (note,))
    for right, wrong, kind in (
        ("2024-02-28", "2024-02-30", "date"),
        ("true", "maybe", "boolean"),
        ("10:30", "25:00", "time"),
        ("2024-02-28 10:00", "soon", "timestamp"),
    ):
        assert inferred(*[right] * 4, wrong)[0] == kind
        assert inferred(*[right] * 4, *[wrong] * 2)[0] == "category"
    assert inferred(*map(str, range(80)), *["?"] * 18)[0] == "category"


@pytest.mark.parametrize(
    "cells", [["1,2,3", "4,5"], ["1,234", "x"], ["10:20", "1"], ["1,234", "x", "y", "z"], ["1,23,456", "1"]]
)
def test_other_texts_with_commas_are_categories(cells: list[str]) -> None:
    assert type_of(*cells) == "category"


def test_a_type_that_is_given_wins() -> None:
    assert inferred("1", "2", given="category") == ("category", ())
    assert inferred("", given="date") == ("date", ())


def test_a_column_or_type_that_is_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("distance,year\n1,2\n")
    for given_types, sentence in [
        (
            {"distanse": "number"},
            "--type distanse=number: a.csv has no column 'distanse'; the nearest is 'distance'. Correct it.",
        ),
        (
            {"zzz": "number"},
            "--type zzz=number: a.csv has no column 'zzz'; there are 'distance' and 'year'. Correct it.",
        ),
        (
            {"year": "int"},
            "--type year=int: is not a type; types are number, integer, boolean, date, time, timestamp, category, text, "
            "currency, percent, date-name, date-ymd, date-mdy, date-dmy, time-12h, timestamp-offset"
            ", timestamp-mdy, timestamp-dmy, verbatim; the nearest is 'integer'. Correct it.",
        ),
    ]:
        with pytest.raises(UsageError) as error:
            open_table(["a.csv"], ReadOptions(types=given_types))
        assert in_options(str(error.value)) == sentence


@pytest.mark.parametrize(
    ("cells", "type", "digits"),
    [
        (["7", "0", "-0"], "integer", ""),
        (["7", " 007", "10"], "integer", "007"),
        (["10", "+07"], "integer", "+07"),
        (["0.5", "7", "007"], "number", ""),
        ([str(2**53), "0.5"], "number", ""),
        ([str(2**53 + 1), "0.5"], "number", str(2**53 + 1)),
        ([str(2**63), str(2**63 + 7), "1"], "number", str(2**63 + 7)),
        (["1e30", "9" * 40], "number", "9" * 40),
        (["a", "007"], "category", None),
    ],
)
def test_whole_numbers_whose_digits_are_lost_are_found(cells: list[str], type: str, digits: str) -> None:
    records = [[cell.encode()] for cell in cells]
    ((column,), _) = infer("a.csv", ["x"], records, ReadOptions().dialect(), {})
    assert (column.type, column.digits) == (type, digits)
    assert infer("a.csv", ["x"], records, ReadOptions().dialect(), {"x": type})[0][0].digits is None


def test_ragged_records_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,x\nx\nx,y,z\n2,y\n")
    table = open_table([str(tmp_path / "a.csv")], ReadOptions())
    assert table.columns == (TableColumn("a", "integer"), TableColumn("b", "category"))


def notes_on(cells: list[str], name: str = "x", **reading: Any) -> list[str]:
    records = [[cell.encode()] for cell in cells]
    (column,), notes = infer("a.csv", [name], records, ReadOptions(**reading).dialect(), {})
    assert (column.type == "category") or not notes
    return [in_options(note) for said in notes.values() for note in said]


@pytest.mark.parametrize(
    ("cells", "ways"),
    [
        ([*map(str, range(50)), *["?"] * 30], "If '?' means missing, pass --na '?'."),
        (["1", "2", "3", "lost", "lost", "lost", "lost"], "If 'lost' means missing, pass --na lost."),
        (["red", "blue", "?"], "If '?' means missing, pass --na '?'."),
        (["2013-01-31", "-"], "If '-' means missing, pass --na -."),
        (
            [*(f"2013-01-{i % 28 + 1:02}" for i in range(60)), *["never"] * 40],
            "If 'never' means missing, pass --na never.",
        ),
        (["$12.50", "$1,234", "-$5"], "If it is another type, pass --type x=currency."),
        (["3 €", "€ 5.20"], "If it is another type, pass --type x=currency."),
        (
            [str(i / 8) if i % 3 else f"({i / 8})" for i in range(90)],
            "If it is another type, pass --type x=currency.",
        ),
        (["12%", "12.5 %", "0%"], "If it is another type, pass --type x=percent."),
        (["01/02/2013", "31.1.2013"], "If it is another type, pass --type x=date-dmy."),
        (
            ["01/02/2013", "3/1/2013"],
            "If it is another type, pass --type x=date-mdy or --type x=date-dmy.",
        ),
        (
            ["01/02/2013 5:30 PM", "1/31/2013 5:30 am"],
            "If it is another type, pass --type x=timestamp-mdy.",
        ),
    ],
)
def test_columns_that_may_be_something_else_are_told(cells: list[str], ways: str) -> None:
    (note,) = notes_on(cells)
    assert note.startswith(
        f"column 'x' is read as category; it holds {len(set(cells))} different texts in its first {len(cells)} cells, such as "
    )
    assert note.endswith(f". {ways}")
    assert repr(max(set(cells), key=cells.count)) in note or cells.count(cells[0]) < 3


def test_numbers_with_a_unit_are_told() -> None:
    (note,) = notes_on([f"{number} km/h" for number in range(12)] * 2)
    assert note.endswith(". For numbers leave km/h out: sed 's|\\([0-9]\\) km/h|\\1|g'.")
    assert notes_on([f"{doors} doors" for doors in range(2, 6)] * 3) == []
    assert notes_on([f"{number}{'ab'[number % 2]}" for number in range(12)]) == []


def test_columns_of_words_are_not_told() -> None:
    for cells in (
        ["?", "?"],
        [*map(str, range(30)), *["a", "b"] * 35],
        ["yes", "no", "never"] * 40,
        ["A1", "B2"],
    ):
        assert notes_on(cells) == []
    assert notes_on([*map(str, range(50)), *["?"] * 30], na=("?",)) == []


@pytest.mark.parametrize("compiled", [True, False])
def test_records_are_read_alike_by_both_parsers(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiled:
        monkeypatch.setattr(native, "COMPILED", False)
    columns = [
        TableColumn.given("p", "currency"),
        TableColumn.given("r", "percent"),
        TableColumn.given("d", "date-dmy"),
        TableColumn("n", "number"),
    ]
    single = [True, False, False, True]
    layout = RecordLayout(
        tuple(RecordMember(i, c, s) for i, (c, s) in enumerate(zip(columns, single, strict=True)))
    )
    text = (
        b'"$1,234.50",12%,31/01/2013,1\n'
        b"NA,,,2\n"
        b"free,1%,1/1/2013,3\n"
        b"$1,12,1/1/2013,4\n"
        b"$1,1%,2013-01-01,5\n"
        b"$1000000000000000000000000000000000000000,1%,1/1/2013,6\n"
        b"-$2,-1%, 1/2/2013 ,7\n"
    )
    parsed = parse_records(text, ReadOptions().dialect(4), layout)
    assert parsed.records["c3"].tolist() == [1, 2, 7]
    assert parsed.records["c0"].dtype == "<f4"
    assert parsed.records["c0"].tolist()[::2] == [1234.5, -2]
    assert parsed.records["c1"].tolist()[::2] == [0.12, -0.01]
    assert parsed.records["c2"].tolist()[::2] == [15736, 15737]
    assert [str(parsed.records[f"c{i}"][1]) for i in range(3)] == ["nan"] * 3
    assert [(bad.line, bad.column, bad.reason) for bad in parsed.bad] == [
        (2, 0, "is not an amount of money ($1,234.50)"),
        (3, 1, "is not a percentage (12%)"),
        (4, 2, "is not a date (DD/MM/YYYY)"),
        (5, 0, "is beyond float32"),
    ]


def test_a_column_of_image_files_is_noted() -> None:
    records = [[b"a/1.jpg", b"cat"], [b"2.PNG", b"dog"]]
    note = "column 'file' names image files, which a table does not read. To pack the images with these labels, convert "
    _, notes = infer("l.csv", ["file", "label"], records, ReadOptions().dialect(), {})
    assert [in_options(n) for n in notes["file"]] == [note + "the folder of the images with --labels l.csv."]
    assert not infer("l.csv", ["label", "file"], [r[::-1] for r in records], ReadOptions().dialect(), {})[1]


@pytest.mark.parametrize(
    ("cells", "type", "ends"),
    [
        (["20181028", "20190101"], "integer", "are dates too. If they are dates, pass --type x=date-ymd."),
        (["20181028", "20191301"], "integer", ""),
        (["007", "10"], "integer", "which a feature does not keep. If they are codes, pass --type x=category."),
        (["1.9", "1.10"], "number", "is read as 1.1. If they are versions or codes, pass --type x=category."),
        (["1.5", "2.50", "3.10"], "number", ""),
        (["2018-10-28 08:30 CET", "x"], "category", "write offsets instead, as +01:00."),
        (["28-Oct-18", "1-Jan-19"], "category", "pass --type x=date-dmy."),
        ([f"{n * 2654435761 % 2**32:08x}" for n in range(21)], "category", " and '08d12dfd'."),
        ([f"{n * 2654435761 % 2**32:08x}" for n in range(20)], "category", ""),
        (["28-Oct-2018", "1-Jan-2019"], "date", ""),
        (["8:30 PM", "12:00 am"], "time", ""),
        (["2018-10-28 08:30:00 +0200", "2018-10-28T08:30Z"], "timestamp", ""),
    ],
)  # fmt: skip
def test_dates_and_numbers_that_are_names_are_noted(cells: list[str], type: str, ends: str) -> None:
    found, notes = inferred(*cells)
    assert found == type
    assert [note.endswith(ends) for note in notes] == ([True] if ends else [])


@pytest.mark.parametrize(
    ("cells", "word"),
    [
        (["1", "2.5", "3", "4", "(null)"], "(null)"),
        (["8:30", "9:30", "10:30", "closed"], "closed"),
        (["2018-01-02", "2018-01-03", "2018-01-04", "NaT"], "NaT"),
        (["1", "2", "3", "4", "5+"], None),
        (["1", "2", "3", "low", "high"], None),
    ],
)
def test_the_one_word_among_values_is_offered_as_missing(
    cells: list[str], word: str | None, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("x,y\n" + "".join(f"{cell},1.5\n" for cell in cells * 5))
    (note,) = open_table([str(tmp_path / "a.csv")], ReadOptions()).column_notes["x"]
    assert ("means missing" in note) is (word is not None)
    if word is not None:
        assert f"If {word!r} means missing, pass csv=Csv(na=({word!r},))." in note
        table = open_table([str(tmp_path / "a.csv")], ReadOptions(na=(word,)))
        assert table.columns[0].type != "category"
