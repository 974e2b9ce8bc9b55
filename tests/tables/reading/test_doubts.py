"""Sentences about columns of categories that may be something else."""

from __future__ import annotations

from typing import Any

import pytest

from packer import native
from packer.cli.console import in_options
from packer.tables.reading.dialect import dialect_of
from packer.tables.reading.record_parser import parse_records
from packer.tables.reading.table_source import ReadOptions
from packer.tables.reading.type_inference import infer
from packer.tables.transform.column_types import TableColumn
from packer.tables.transform.records import RecordLayout, RecordMember


def notes_on(cells: list[str], name: str = "x", **reading: Any) -> list[str]:
    records = [[cell.encode()] for cell in cells]
    (column,), notes = infer("a.csv", [name], records, dialect_of(ReadOptions(**reading)), {})
    assert (column.type == "category") or not notes
    return [in_options(note) for said in notes.values() for note in said]


NUMBERS = [str(number) for number in range(50)]


def test_marks_that_may_mean_missing() -> None:
    assert notes_on(NUMBERS + ["?"] * 30) == [
        "column 'x' holds '?' in 30 of its first 80 cells, numbers in the others: it is read as category, and '?' as one of them."
        " If that means missing, pass --na '?'."
    ]
    assert notes_on([*NUMBERS, *["?"] * 20, *["-"] * 20]) == [
        "column 'x' holds '-' and '?' in 40 of its first 90 cells, numbers in the others: it is read as category, and '-' and '?' as"
        " some of them. If that means missing, pass --na - --na '?'."
    ]
    assert notes_on(["red", "blue", "?"]) == [
        "column 'x' holds '?' in 1 of its first 3 cells: it is read as category, and '?' as one of them. If that means missing, pass"
        " --na '?'."
    ]
    assert notes_on(["2013-01-31", "-"])[0].startswith(
        "column 'x' holds '-' in 1 of its first 2 cells, dates in the others"
    )
    assert notes_on(["?", "?"]) == []
    assert notes_on(NUMBERS + ["?"] * 30, na=("?",)) == []


def test_amounts_of_money() -> None:
    expected = (
        "column 'the price' holds amounts of money, as '$12.50' (3 of its first 3 cells): it is read as category."
        " Pass --type 'the price=currency' to read their numbers."
    )
    assert notes_on(["$12.50", "$1,234", "-$5"], "the price") == [expected]
    for cells in (["12,50 €", "1.234,00 €"], ["3 €"]):
        assert "=currency" in notes_on(cells, decimal=",", delimiter=";")[0]
    assert notes_on(["$12.50", "free", "paid"]) == []


def test_percentages() -> None:
    assert notes_on(["12%", "12.5 %", "0%"]) == [
        "column 'x' holds percentages, as '12%' (3 of its first 3 cells): it is read as category."
        " Pass --type x=percent, which reads 12% as 0.12."
    ]


def test_dates_say_which_order_the_values_allow() -> None:
    both = (
        "column 'x' holds dates, as '01/02/2013' (2 of its first 2 cells): it is read as category. Pass --type x=date-mdy if the month"
        " comes first, or --type x=date-dmy if the day comes first: these values allow both."
    )
    assert notes_on(["01/02/2013", "03/04/2013"]) == [both]
    assert notes_on(["01/02/2013", "01/31/2013"]) == [
        "column 'x' holds dates, as '01/02/2013' (2 of its first 2 cells): it is read as category. Pass --type x=date-mdy: the month"
        " comes first, as '01/31/2013' shows."
    ]
    assert notes_on(["01.02.2013", "31.1.2013"])[0].endswith(
        "Pass --type x=date-dmy: the day comes first, as '31.1.2013' shows."
    )
    assert "holds timestamps" in notes_on(["01/02/2013 5:30 PM"])[0]
    assert "--type x=timestamp-mdy" in notes_on(["01/02/2013 5:30 PM", "1/31/2013 5:30 PM"])[0]
    assert notes_on(["45/45/2013", "99/99/2013"]) == []


def test_both_are_said() -> None:
    assert [note.split("Pass ")[-1] for note in notes_on(["$1", "$2", "-"])] == [
        "column 'x' holds '-' in 1 of its first 3 cells: it is read as category, and '-' as one of them. If that means missing, pass"
        " --na -.",
        "--type x=currency to read their numbers.",
    ]


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
    parsed = parse_records(text, dialect_of(ReadOptions(), 4), layout)
    assert parsed.records["c3"].tolist() == [1, 2, 7]
    assert parsed.records["c0"].dtype == "<f4"
    assert parsed.records["c0"].tolist()[::2] == [1234.5, -2]
    assert parsed.records["c1"].tolist()[::2] == [0.12, -0.01]
    assert parsed.records["c2"].tolist()[::2] == [15736, 15737]
    assert [str(parsed.records[f"c{i}"][1]) for i in range(3)] == ["nan"] * 3
    assert [(bad.line, bad.column, bad.reason) for bad in parsed.bad] == [
        (2, 0, "is no amount of money ($1,234.50)"),
        (3, 1, "is no percentage (12%)"),
        (4, 2, "is no date (DD/MM/YYYY)"),
        (5, 0, "is beyond float32"),
    ]
