"""Delimiters and names, found out from the beginning of a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer.cli.option_words import in_options
from packer.errors import SourceError, UsageError
from packer.tables.reading.dialect import (
    Undecided,
    column_names,
    delimiter_of,
    first_line_at,
    first_records,
    renamed,
)
from packer.tables.reading.record_parser import end_of_records, records_of
from packer.tables.reading.remedies import Sample, refusal
from packer.tables.reading.table_source import ReadOptions
from packer.tables.reading.text_table import TextTable
from packer.tables.transform.cell_values import NA_TEXTS
from packer.tables.transform.column_types import unique


def found(text: str, name: str = "a.csv", *, ended: bool = True, **reading: Any) -> str:
    return delimiter_of(name, text.encode(), ended, ReadOptions(**reading)).decode()


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_delimiter_is_found(delimiter: str) -> None:
    assert found(f"a{delimiter}b\n1{delimiter}2\n") == delimiter
    assert found(f"a{delimiter}b") == delimiter
    assert found("".join(f"x{n}{delimiter}\r\n" for n in range(300))) == delimiter
    # A table all of whose rows have empty cells behind the first one is no title.
    assert found(f"a{delimiter * 2}\n1{delimiter * 2}\n") == delimiter
    assert found(f"{delimiter * 2}\n{delimiter * 2}\n") == delimiter


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
        ('"Ann Lee","gamma;"\n"Bob Ray","New"\n', ","),
    ],
)
def test_delimiters_also_stand_in_cells(text: str, delimiter: str) -> None:
    assert found(text) == delimiter


def test_what_is_known_is_not_found_out() -> None:
    text = "a;b\n1;2\n"
    assert found(text, delimiter="|") == "|"
    assert found("a;b\tc\n1;2\t3\n", "a.tsv") == found("a;b\tc\n1;2\t3\n", "A.TAB.gz") == "\t"
    assert found("a;b|c\n1;2|3\n", "a.psv.zst") == "|"
    assert found(text, "a.tsv.csv") == ";"


def cells(text: bytes, ended: bool, most: int = 9, **reading: Any) -> list[list[bytes]]:
    return [record.cells for record in first_records(text, ended, ReadOptions(**reading).dialect(), most)]


def refused(text: str, name: str = "a.csv", **reading: Any) -> str:
    with pytest.raises(Undecided) as error:
        found(text, name, **reading)
    sample = Sample(name, b"x\n" * reading.get("skip_rows", 0) + text.encode(), True)
    return in_options(str(refusal(sample, ReadOptions(**reading), error.value)))


def test_one_column_has_none() -> None:
    assert found("a\n1\n2\n") not in "a12"
    assert found("text\nwell, yes\nno\n") not in ",w"
    assert cells(b"text\nwell, yes\n", True, delimiter="|") == [[b"text"], [b"well, yes"]]


@pytest.mark.parametrize(
    "text",
    [
        "day\n2020-01-01\n2020-01-02\n",
        "review\nbad, too long\ngood\nnot bad\n",
        '"last: first"\n"Doe: Jane"\n"Smith: John"\n',
        "#\n".replace("#", "n#") + "1\n2\n",
        "#cats\n#dogs\n#birds\n",
    ],
)
def test_marks_in_one_column(text: str) -> None:
    assert found(text) in "\t;|,"


def test_marks_of_numbers_part_cells_where_nothing_else_does() -> None:
    assert found('x,y\n1,"2,100"\n2,"3,200"\n', thousands=",") == ","
    assert found('x,y\n1,"2,5"\n2,"3,5"\n', decimal=",") == ","
    assert found("x;y\n1;2,100\n2;3,200\n", thousands=",") == ";"
    assert found("1,5;2,5\n3,5;4,5;5,5\n4,5;1,5\n", decimal=",", header=False) == ";"
    assert found("a\n1,5\n2,5\n", decimal=",", thousands=".", delimiter=";") == ";"


def test_numbers_with_commas_may_be_one_column() -> None:
    for marks in ({"decimal": ","}, {"decimal": ",", "thousands": "."}):
        assert (
            found(
                "value\n0,5\nNA\n1.234,5\n1,5\n" if marks.get("thousands") else "value\n0,5\n1,5\n", **marks
            )
            not in ","
        )
    assert found("0,5\n1,5\n", decimal=",", header=False) != ","
    assert found("n\n1,200\n900\n3,400\n", thousands=",") != ","
    sentence = "has 1 cell with text, most rows have 2 cells, separated by commas; all must have the same number. Pass"
    for text, ways in (
        ("A title\nx,y\n1,2\n3,4\n", "--skip-rows 1 for titles above it."),
        ("n\n0,5\n1,5\n", "--delimiter ';' --decimal \",\" if it has one column."),
        (
            "n\n1,200\n3,400\n",
            "--delimiter ';' --thousands \",\" if it has one column, which reads (1200) and (3400), or"
            " --delimiter ';' --decimal \",\" if it has one column, which reads (1.2) and (3.4).",
        ),
    ):
        assert refused(text).endswith(f"{sentence} {ways}")


def test_texts_behind_closing_quotes_are_for_the_reader_to_tell() -> None:
    text = "label\ttext\n" + '0\t"hi, 0" he said\n' * 9
    assert found(text) == found(text, "a.tsv") == "\t"


def test_a_mark_in_the_first_line_alone_parts_no_cells() -> None:
    assert found("one, two\n" + "text\n" * 50) != ","


def test_rows_that_no_delimiter_parts_alike_are_an_error() -> None:
    ragged = "id,text,label\n1,a b,x\n2,a, b,y\n3,a, b, c,x\n4,a,,,,,x\n"
    assert refused(ragged).startswith(
        "a.csv: no delimiter splits most of its first 100 rows into the same number of cells, and most of them hold commas"
    )


def test_commas_in_a_file_named_otherwise_are_an_error_with_quotes_too() -> None:
    for name in ("a.tsv", "a.psv"):
        assert "no delimiter splits" in refused('x,y\n"a, b",1\n"c",2\nd,3\n', name=name)


def test_the_names_of_a_header_that_a_mark_of_numbers_parts_are_an_error() -> None:
    assert refused("a,b\nYES,3\nno,4\n", decimal=",").startswith(
        "a.csv: no delimiter splits most of its first 100 rows into the same number of cells, and most of them hold commas"
    )
    assert found("a\n0,5\n1,5\n", decimal=",") != ","
    assert found("0,5\n1,5\n", decimal=",", header=False) != ","


def test_one_column_keeps_a_mark_that_few_cells_hold() -> None:
    assert found("t\n" + "text\n" * 8 + "a\tb\n") != "\t"


def test_a_header_of_more_cells_than_its_rows_is_an_error() -> None:
    for reading in ({}, {"delimiter": ","}):
        assert refused("a,b,c\n1,2\n3,4\n5,6\n", **reading).startswith(
            "a.csv: its line 1 has 3 cells with text, most rows have 2 cells, separated by commas; all must have the same number. No option"
        )


@pytest.mark.parametrize("mark", [" ", ":", "^", "~", "&", "\x01"])
def test_another_mark_in_most_lines_is_an_error(mark: str) -> None:
    text = "a#b#c\n1#x#3\n4#y#6\n".replace("#", mark)
    assert refused(text).startswith(
        "a.csv: no delimiter splits most of its first 100 rows into the same number of cells, and most of them hold"
        f" {mark!r}, which may separate cells. Pass --delimiter "
    )
    assert refused(text).endswith(f" if {mark!r} separates cells.")
    assert found(text, delimiter=mark) == mark
    assert found(text, delimiter=";") == ";"


def test_several_marks_between_cells_are_no_delimiter() -> None:
    ends = "No option that was tried explains all rows; correct it."
    rewritten = "Pass the file rewritten, for example with: perl -pe 's/{}'."
    for text, mark, way in (
        ("a::b\n1::2\n3::4\n", ":", rewritten.format("::/\\t/g")),
        ("a  b\n1  2\n3  4\n", " ", rewritten.format("^ +| +$//g; s/ +/\\t/g")),
        ("a^^^b\n1^^^2\n", "^", ends),
    ):
        assert refused(text).endswith(f"hold {mark!r}, some repeated, which may separate cells. {way}")


def test_one_column_of_times_or_names_is_one() -> None:
    for text in (
        "when\n12:30\n12:31\n",
        "t\n2020-01-02 12:30\n2020-01-02 12:31\n",
        "name\nAnna Smith\nBob Jones\n",
    ):
        assert found(text) in "\t;|,"
    for text in ("12:30\n12:31\n", "birth day\n2020-01-02 12:30\n2020-01-02 12:31\n"):
        assert "--delimiter ';' if it has one column" in refused(text)
        assert found(text, delimiter=";") == ";"


def test_spaces_are_an_error() -> None:
    for text in (
        " 1.0   2e5\n 3 NaN\n",
        "/* by x */\na  b\n1  2\n3  4\n5  6\n",
        "city name\nNew York\nLos Angeles\nSan Diego\n",
        "Year  Jan\n---------\n1749  58\n1750  73.3\n",
    ):
        assert "most of them hold ' '" in refused(text)


def test_a_name_that_says_another_delimiter_is_an_error() -> None:
    assert refused("a,b\n1,2\n", "a.tsv").startswith(
        "a.tsv: no delimiter splits most of its first 100 rows into the same number of cells, and most of them hold"
        ' commas, which may separate cells. Pass --delimiter "," if'
    )
    assert found("a,b\n1,2\n", "a.tsv", delimiter="\t") == "\t"
    assert found("a\n1\n", "a.tsv") == "\t"


# Lines before the table

ROWS = "a,b,c\n1,2,3\n4,5,6\n"


@pytest.mark.parametrize(
    ("text", "line", "cells", "ways"),
    [
        (f"A title\n{ROWS}", 1, "1 cell", "--skip-rows 1|"),
        (f"A title, of 2020\n\nby x\n{ROWS}", 1, "2 cells", "--skip-rows 3|"),
        (
            f"# made by x\n# at y\n{ROWS}",
            1,
            "1 cell",
            "--comment '#' if it begins comment lines, which reads (1, 2, 3) and (4, 5, 6), or --skip-rows 2|,"
            " which reads (1, 2, 3) and (4, 5, 6)",
        ),
        (f"A title,,\n,,\n{ROWS}", 1, "1 cell", "--skip-rows 2|"),
    ],
)
def test_lines_before_the_table_are_an_error(text: str, line: int, cells: str, ways: str) -> None:
    title = " for titles above it"
    assert refused(text) == (
        f"a.csv: its line {line} has {cells} with text, most rows have 3 cells, separated by commas; all must have the same number. Pass "
        + ways.replace("|", title)
        + "."
    )


def test_lines_before_the_table_are_told_whatever_is_given() -> None:
    assert "--skip-rows 1 for" in refused(f"A title\n{ROWS}", delimiter=",")
    assert "--skip-rows 1 for" in refused("A title\n1,2\n3,4\n", header=False)
    assert "--skip-rows 3 for" in refused("x\ny\n" + ROWS, skip_rows=1)
    assert found("5,,\n" + ROWS, header=False) == ","
    assert found(f"# x,y\n{ROWS}# z\n", comment="#") == ","


def test_lines_are_passed_over() -> None:
    assert first_line_at("a.csv", b"x\r\n\ny\n", 2) == 4
    with pytest.raises(UsageError) as error:
        first_line_at("a.csv", b"x\ny", 3)
    assert in_options(str(error.value)) == (
        "a.csv: --skip-rows 3 skips all lines that were read from it; a table must follow them."
        " Pass a smaller number."
    )


def test_a_record_that_is_cut_off_does_not_count() -> None:
    assert found("a;b\n1;2\n3", ended=False) == ";"
    assert cells(b"a\n1\n2", False) == [[b"a"], [b"1"]]
    assert cells(b"a\n1\n2", True, 2) == [[b"a"], [b"1"]]


# Marks


def test_marks_become_bytes() -> None:
    form = ReadOptions(delimiter=";", quote="", decimal=",", thousands=".", na=("-", " ? ")).dialect(7)
    assert (form.delimiter, form.quote, form.decimal, form.thousands) == (b";", b"", b",", b".")
    assert form.width == 7
    assert form.na == {text.encode() for text in NA_TEXTS} | {b"-", b"?"}


@pytest.mark.parametrize(
    ("reading", "sentence"),
    [
        (
            {"delimiter": ""},
            "--delimiter '': is not a mark; one ASCII character other than a letter, digit, sign or line end is allowed. Pass one.",
        ),
        (
            {"delimiter": "::"},
            "--delimiter ::: is not a mark; one ASCII character other than a letter, digit, sign or line end is allowed. Pass one.",
        ),
        (
            {"decimal": "5"},
            "--decimal 5: is not a mark; one ASCII character other than a letter, digit, sign or line end is allowed. Pass one.",
        ),
        (
            {"quote": "«"},
            "--quote '«': is not a mark; one ASCII character other than a letter, digit, sign or line end is allowed, or none. Pass one.",
        ),
        (
            {"thousands": "."},
            "--thousands .: is the same as --decimal; each mark means one thing. Change one.",
        ),
        (
            {"delimiter": ",", "decimal": ",", "quote": ""},
            '--decimal ",": is the same as --delimiter; each mark means one thing. Change one.',
        ),
        (
            {"delimiter": ";", "comment": ";"},
            "--comment ';': is the same as --delimiter; each mark means one thing. Change one.",
        ),
        (
            {"comment": "//"},
            "--comment //: is not a mark; one ASCII character other than a letter, digit, sign or line end is allowed, or none. Pass one.",
        ),
    ],
)
def test_other_marks_are_refused(reading: dict[str, str], sentence: str) -> None:
    with pytest.raises(UsageError) as error:
        ReadOptions(**reading).dialect()  # type: ignore[arg-type]
    assert in_options(str(error.value)) == sentence


# The header


def first_end(text: str, **reading: Any) -> int:
    """Where the first record ends, behind the text if it is not whole; 0 if there is none."""
    return next((record.end for record in records_of(text.encode(), ReadOptions(**reading).dialect())), 0)


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("a,b\n1,2\n", 4),
        ("\r\n \na,b\r\n1,2\n", 9),
        ('"a\nb",c\n1,2\n', 8),
        ('"a\n""\n",c\n1,2\n', 10),
        ("a,b", 4),
        ('"a\nb\n', 6),
        ("\n\n", 0),
        (",\n1,2\n", 2),
    ],
)
def test_the_end_of_the_first_record(text: str, end: int) -> None:
    assert first_end(text) == end


def test_a_line_of_tabs_is_a_record_of_tabs() -> None:
    assert first_end("\t\n1\t2\n", delimiter="\t") == 2
    assert first_end("\t\n1\t2\n") == 6


@given(st.text('a,"\n\r', max_size=40))
@settings(max_examples=150, deadline=None)
def test_the_end_of_the_first_record_is_where_a_record_ends(text: str) -> None:
    data, form = text.encode(), ReadOptions().dialect()
    end = first_end(text)
    if not 0 < end <= len(data):
        whole = data[: end_of_records(data, 0, form)]
        assert not first_records(whole, True, form, 1)
        return
    assert data[end - 1] == ord("\n")
    assert end_of_records(data[:end], 0, form) == end
    assert len(first_records(data[:end], True, form, 10)) == 1
    assert first_records(data, True, form, 1) == first_records(data[:end], True, form, 1)


def names(*cells: str) -> tuple[str, ...]:
    return unique(column_names("a.csv", [cell.encode() for cell in cells]))


def test_names_are_trimmed() -> None:
    assert names(" a", "b c ", "ü") == ("a", "b c", "ü")


def test_names_that_are_there_are_not_taken_again() -> None:
    assert names("a", "a", "a.1") == ("a", "a.2", "a.1")
    assert names("", "column_0", "") == ("column_0.1", "column_0", "column_2")


@given(st.lists(st.sampled_from(["a", "a.1", "a.2", "", "column_1", "b"]), max_size=12))
def test_names_are_unique_and_the_first_of_each_is_kept(given: list[str]) -> None:
    found = unique(given)
    assert len(set(found)) == len(given)
    changed = [number for number, text in enumerate(given) if found[number] != text]
    assert changed == [n for n, text in enumerate(given) if not text or text in given[:n]]
    assert len(renamed("a.csv", given, found, ())) == bool(changed)


def test_many_equal_names_are_numbered_and_a_few_of_them_told() -> None:
    found = unique(["x"] * 50_000)
    assert found == ("x", *(f"x.{k}" for k in range(1, 50_000)))
    assert renamed("a.csv", ["x"] * 50_000, found, ["x.1"]) == [
        "a.csv: columns without a name, or with a repeated one, renamed: 49,998 columns"
        " ('x.2', 'x.3', 'x.4', 'x.5', 'x.6', 'x.7' and 49992 more)."
    ]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (",0,1\n0,5,p\n1,6,q\n", ["column_0", "0", "1"]),
        (",0\na,1.5\nb,2.5\n", ["column_0", "0"]),
        ("0,1,2,3,4\n5,6,7,8,9\n1,1,1,1,1\n", ["0", "1", "2", "3", "4"]),
    ],
)
def test_columns_that_pandas_numbers_have_names(text: str, names: list[str], tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(text)
    table = TextTable([str(tmp_path / "a.csv")], ReadOptions())
    assert [c.name for c in table.columns] == names
    assert any(
        note.endswith("its first row numbers the columns, so it holds their names.") for note in table.notes
    )


@pytest.mark.parametrize("first", ["0,1,2", "1,2,3", "0,2,1", "1990,1991,1992"])
def test_few_numbers_in_the_first_row_are_asked_about(first: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(first + "\n5,6,7\n8,9,5\n")
    with pytest.raises(SourceError, match=r"not names. Pass csv=Csv\(header=False\) if it is a row"):
        TextTable([str(tmp_path / "a.csv")], ReadOptions())
    name = first.split(",")[0]
    table = TextTable([str(tmp_path / "a.csv")], ReadOptions(types={name: "number"}))
    assert [c.name for c in table.columns] == first.split(",")
