"""Delimiters and names, found out from the beginning of a text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer.cli.console import in_options
from packer.errors import SourceError, UsageError
from packer.tables.reading.dialect import (
    column_names,
    delimiter_of,
    dialect_of,
    first_record_end,
    first_records,
    is_blank,
    unique_names,
)
from packer.tables.reading.record_parser import end_of_records, split_records
from packer.tables.reading.table_source import ReadOptions
from packer.tables.transform.cell_values import NA_TEXTS


def found(text: str, name: str = "a.csv", *, ended: bool = True, **reading: Any) -> str:
    return delimiter_of(name, text.encode(), ended, ReadOptions(**reading)).decode()


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_delimiter_is_found(delimiter: str) -> None:
    assert found(f"a{delimiter}b\n1{delimiter}2\n") == delimiter
    assert found(f"a{delimiter}b") == delimiter
    assert found("".join(f"x{n}{delimiter}\r\n" for n in range(300))) == delimiter


@pytest.mark.parametrize(
    ("text", "delimiter"),
    [
        ("a;b;c\n1,5;2,5;3,5\n", ";"),
        ("1,5;2,5\n3,5;4,5\n", ";"),
        ('name,n\n"x;y;z",1\n"u;v;w",2\n', ","),
        ("name,n\nx;y,1\nu;v,2\nw,3\n", ","),
        ("when\tn\n2013-01-01, 05:00\t1\n2013-01-02, 06:00\t2\n", "\t"),
        ("title,genres\nToy Story,Animation|Comedy\nHeat,Action|Crime\n", ","),
        ("a,b\n1,2\n1\n1,2,3\n3,4\n", ","),
        ('"a\n,;b";c\n"x,y\n";1\n', ";"),
        ("\n\na;b\n1;2\n", ";"),
    ],
)
def test_delimiters_also_stand_in_cells(text: str, delimiter: str) -> None:
    assert found(text) == delimiter


def test_what_is_known_is_not_found_out() -> None:
    text = "a;b\n1;2\n"
    assert found(text, delimiter="|") == "|"
    assert found(text, "a.tsv") == found(text, "A.TAB.gz") == "\t"
    assert found(text, "a.psv.zst") == "|"
    assert found(text, "a.tsv.csv") == ";"


def test_one_column_has_none() -> None:
    assert found("a\n1\n2\n") == ","
    assert found("text\nwell, yes\nno\n") not in ",w"
    assert first_records(b"text\nwell, yes\n", True, dialect_of(ReadOptions(delimiter="|")), 9) == [
        [b"text"],
        [b"well, yes"],
    ]


def test_the_decimal_point_is_no_delimiter() -> None:
    assert found("a\n1,5\n2,5\n", decimal=",", thousands=".") == "|"


def test_no_delimiter_is_an_error() -> None:
    with pytest.raises(SourceError) as error:
        found("one, two\n" + "text\n" * 50)
    assert in_options(error.value.sentence) == (
        "a.csv: neither comma, semicolon, tab nor | parts most of its first 100 rows into as many cells as the first. "
        "Pass --delimiter."
    )


@pytest.mark.parametrize("text", ["a b c\n1 2 3\n", " 1.0   2e5\n 3 NaN\n"])
def test_spaces_are_an_error(text: str) -> None:
    with pytest.raises(SourceError) as error:
        found(text, "a.data")
    assert in_options(error.value.sentence) == (
        "a.data: its cells are parted by spaces; one character parts them, as a comma, a semicolon, a tab or |. "
        "Pass --delimiter ' ' if each space is one, or convert it."
    )
    assert found(text, delimiter=" ") == " "


def test_a_record_that_is_cut_off_does_not_count() -> None:
    assert found("a;b\n1;2\n3", ended=False) == ";"
    assert first_records(b"a\n1\n2", False, dialect_of(ReadOptions()), 9) == [[b"a"], [b"1"]]
    assert first_records(b"a\n1\n2", True, dialect_of(ReadOptions()), 2) == [[b"a"], [b"1"]]


# Marks


def test_marks_become_bytes() -> None:
    form = dialect_of(ReadOptions(delimiter=";", quote="", decimal=",", thousands=".", na=("-", " ? ")), 7)
    assert (form.delimiter, form.quote, form.decimal, form.thousands) == (b";", b"", b",", b".")
    assert form.width == 7
    assert form.na == {text.encode() for text in NA_TEXTS} | {b"-", b"?"}


@pytest.mark.parametrize(
    ("reading", "sentence"),
    [
        (
            {"delimiter": ""},
            "--delimiter '': is no mark; one ASCII character is, no letter, digit, sign or end of line. Pass one.",
        ),
        (
            {"delimiter": "::"},
            "--delimiter ::: is no mark; one ASCII character is, no letter, digit, sign or end of line. Pass one.",
        ),
        (
            {"decimal": "5"},
            "--decimal 5: is no mark; one ASCII character is, no letter, digit, sign or end of line. Pass one.",
        ),
        (
            {"quote": "«"},
            "--quote '«': is no mark; one ASCII character is, no letter, digit, sign or end of line, or none. Pass one.",
        ),
        (
            {"thousands": "."},
            "--thousands .: is the same as --decimal; each mark means one thing. Change one.",
        ),
        (
            {"delimiter": ",", "decimal": ","},
            "--decimal ,: is the same as --delimiter; each mark means one thing. Change one.",
        ),
    ],
)
def test_other_marks_are_refused(reading: dict[str, str], sentence: str) -> None:
    with pytest.raises(UsageError) as error:
        dialect_of(ReadOptions(**reading))  # type: ignore[arg-type]
    assert in_options(error.value.sentence) == sentence


# The header


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("a,b\n1,2\n", 4),
        ("\r\n \na,b\r\n1,2\n", 9),
        ('"a\nb",c\n1,2\n', 8),
        ('"a\n""\n",c\n1,2\n', 10),
        ("a,b", 0),
        ('"a\nb\n', 0),
        ("\n\n", 0),
        (",\n1,2\n", 2),
    ],
)
def test_the_end_of_the_first_record(text: str, end: int) -> None:
    assert first_record_end(text.encode(), dialect_of(ReadOptions())) == end


def test_a_line_of_tabs_is_a_record_of_tabs() -> None:
    assert first_record_end(b"\t\n1\t2\n", dialect_of(ReadOptions(delimiter="\t"))) == 2
    assert first_record_end(b"\t\n1\t2\n", dialect_of(ReadOptions())) == 6


@given(st.text('a,"\n\r', max_size=40))
@settings(max_examples=300, deadline=None)
def test_the_end_of_the_first_record_is_where_a_record_ends(text: str) -> None:
    data, form = text.encode(), dialect_of(ReadOptions())
    end = first_record_end(data, form)
    if not end:
        whole = data[: end_of_records(data, 0, form)]
        assert is_blank(whole, form)
        return
    assert data[end - 1] == ord("\n")
    assert end_of_records(data[:end], 0, form) == end
    assert len(split_records(data[:end], form, 10)) == 1
    assert split_records(data, form, 1) == split_records(data[:end], form, 1)


def names(*cells: str) -> tuple[list[str], list[str]]:
    return column_names("a.csv", [cell.encode() for cell in cells], dialect_of(ReadOptions()))


def test_names_are_trimmed() -> None:
    assert names(" a", "b c ", "ü") == (["a", "b c", "ü"], [])


def test_names_that_are_there_are_not_taken_again() -> None:
    assert names("a", "a", "a.1")[0] == ["a", "a.2", "a.1"]
    assert names("", "column_0", "")[0] == ["column_0.1", "column_0", "column_2"]


@given(st.lists(st.sampled_from(["a", "a.1", "a.2", "", "column_1", "b"]), max_size=12))
def test_names_are_unique_and_the_first_of_each_is_kept(given: list[str]) -> None:
    found, notes = unique_names("a.csv", given)
    assert len(set(found)) == len(given)
    changed = [number for number, text in enumerate(given) if found[number] != text]
    assert changed == [n for n, text in enumerate(given) if not text or text in given[:n]]
    assert len(notes) == min(len(changed), 11)


def test_many_equal_names_are_numbered_and_a_few_of_them_told() -> None:
    found, notes = unique_names("a.csv", ["x"] * 50_000)
    assert found == ["x", *(f"x.{k}" for k in range(1, 50_000))]
    assert len(notes) == 11
    assert notes[0] == "a.csv has several columns 'x': the one at 1 (from 0) is called 'x.1'."
    assert notes[-1] == "a.csv: 49,989 more columns have such names, and are called otherwise."


def test_numbers_are_no_names() -> None:
    for cells in (("1", "2.5"), ("1e3", "", "NaN"), ("-1",)):
        with pytest.raises(
            SourceError, match=r"^a\.csv: its first row holds numbers, no names\. Pass header=False\.$"
        ):
            names(*cells)
    assert names("id", "2019", "2020") == (["id", "2019", "2020"], [])
    assert names("1_000", "2")[0] == ["1_000", "2"]
