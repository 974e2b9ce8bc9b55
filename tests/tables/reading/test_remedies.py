"""Remedies that are tried on the sample before they are proposed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import pytest

from packer.cli.option_words import in_options
from packer.errors import SourceError, UsageError
from packer.tables.reading.table_source import Csv, ReadOptions
from packer.tables.reading.text_table import TextTable
from packer.tables.table_conversion import convert_table


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def opened(text: str, **reading: Any) -> TextTable:
    Path("a.csv").write_text(text)
    return TextTable(["a.csv"], ReadOptions(**reading))


def refused(text: str, **reading: Any) -> str:
    with pytest.raises(SourceError) as error:
        opened(text, **reading)
    return in_options(str(error.value))


def described(text: str, **reading: Any) -> tuple[list[str], list[str], list[str]]:
    """Return names, types and notes."""
    table = opened(text, **reading)
    return (
        [c.name for c in table.columns],
        [c.type for c in table.columns],
        list(map(in_options, table.notes)),
    )


SPACES = 'python -c "import csv, sys; csv.writer(sys.stdout).writerows(csv.reader(sys.stdin, skipinitialspace=True))"'
NAMED = "--type with one of its names if it holds the names."
OTHER = "numbers in another notation than the decimal point '.'. Pass"


@pytest.mark.parametrize(
    ("text", "ways"),
    [
        (
            "gewicht;preis\n1,250;2,5\n1,300;3,5\n",
            "line 2, column 'gewicht' holds '1,250' and line 2, column 'preis' holds '2,5'|--decimal \",\" for 1.25, or"
            " --type gewicht=category --type preis=category if they are not numbers.",
        ),
        (
            "a;b\n1,250;2\n1,300;3\n",
            "line 2, column 'a' holds '1,250'|--thousands \",\" for 1250, which reads (1250, 2) and (1300, 3), or"
            ' --decimal "," for 1.25, which reads (1.25, 2) and (1.3, 3), or --type a=category if they are not numbers.',
        ),
        # A number of the other column would change, too: as texts, b hides that a is read wrongly.
        (
            "a;b\n1.250;2,5\n1.300;3,5\n",
            "line 2, column 'b' holds '2,5'|--thousands . --decimal \",\" for 2.5.",
        ),
        (
            "a;b\n1.25;2,5\n1.30;3,5\n",
            "line 2, column 'b' holds '2,5'|a file in one notation, as none reads all columns, or --type b=category if"
            " they are not numbers.",
        ),
        (
            "a;b\n1,250;2\n980;3\n",
            "line 2, column 'a' holds '1,250'|--thousands \",\" for 1250, or --type a=category if they are not numbers.",
        ),
        (
            "a;b\n1.234.567;1\n5;2\n",
            "line 2, column 'a' holds '1.234.567'|--thousands . --decimal \",\" for 1234567, or --type a=category if they are not numbers.",
        ),
        (
            "a;b\n5;1\n1 234;2\n",
            "line 3, column 'a' holds '1 234'|--thousands ' ' for 1234, or --type a=category if they are not numbers.",
        ),
        (
            "date;x\n31.12.2020;1,5\n01.02.2021;2,5\n",
            "line 2, column 'x' holds '1,5'|--decimal \",\" for 1.5, or --type x=category if they are not numbers.",
        ),
    ],
)
def test_a_notation_is_proposed_if_it_reads_all_columns(text: str, ways: str) -> None:
    seen, ways = ways.split("|")
    assert refused(text) == f"a.csv: {seen}, {OTHER} {ways}"


def test_thousands_stand_between_groups_of_three_digits() -> None:
    assert refused("gewicht;preis\n1,250;2,5\n1,300;3,5\n", thousands=",") == (
        "a.csv: line 2, column 'preis' holds '2,5', numbers in another notation than the decimal point '.' and ','"
        ' between groups of three digits. Pass --decimal "," for 2.5, or --type preis=category if they are not numbers.'
    )


@pytest.mark.parametrize(
    "text",
    [
        "ip,y\n192.168.1.1,1\n10.0.0.1,2\n",
        'place,y\n"12.5,13.2",1\n"1.5,3.2",2\n',
        "a;y\n1,23,456;1\n2,34,567;2\n",
        "version,y\n1.2.3,1\n1.10.3,2\n",
    ],
)
def test_texts_with_marks_of_numbers_stay_texts(text: str) -> None:
    assert described(text)[1] == ["category", "integer"]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("x,y\na,1,2\nb,3,4\n", ["column_0", "x", "y"]),
        ("a,b\n1,2,\n3,4,\n", ["a", "b"]),
        ("a,b,\n1,2,\n3,4,\n", ["a", "b"]),
        ("a,b,\n1,2\n3,4\n", ["a", "b"]),
        ("a;b;;\n1;2;;\n3;4;;\n", ["a", "b"]),
        (
            "Price,Close,High\nTicker,X,X\nDate,,\n2024-01-02,1.5,2\n2024-01-03,2.5,3\n2024-01-04,1,2\n",
            ["Date", "Close.X", "High.X"],
        ),
        (
            "Price,Close,Close\nTicker,X,Z\nDate,,\n2024-01-02,1.5,2\n2024-01-03,2.5,3\n2024-01-04,1,2\n",
            ["Date", "Close.X", "Close.Z"],
        ),
        ("a,a,b\nx,y,x\n1,2,3\n4,5,6\n7,8,9\n", ["a.x", "a.y", "b.x"]),
    ],
)
def test_headers_of_other_lengths_are_understood_and_told(text: str, names: list[str]) -> None:
    found, types, notes = described(text)
    assert found == names
    assert "category" not in types[1:]
    assert len(notes) == 1


def test_notes_on_headers() -> None:
    assert described("x,y\na,1,2\nb,3,4\n")[2] == [
        "a.csv: its header has one name less than its rows have cells, as R writes row names; the first column"
        " has no name."
    ]
    assert described("a,b\n1,2,\n3,4,\n")[2] == [
        "a.csv: each row ends with 1 empty cell without a name; left out."
    ]
    assert described("a,b,\n1,2\n3,4\n")[2] == ["a.csv: delimiters at the end of its header are left out."]


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        (
            "5.1,3.5,setosa\n4.9,3.0,setosa\n4.7,3.2,other\n5.0,3.3,setosa\n",
            "'setosa', which comes again below",
        ),
        ("ant,1,1,1\nbee,1,2,1\ncat,2,1,2\ncow,1,1,1\n", "'1', which is a value like those below"),
        ("0,Ann,74.3\n1,Bob,73.3\n2,Cal,71.9\n3,Dan,69.8\n", "'0', which is a value like those below"),
        ("Alice,34\nBob,28\nCarla,45\nDan,31\n", "'34', which is a value like those below"),
        ("p,x,s\ne,x,s\ne,b,s\np,x,y\n", "'p', which comes again below"),
    ],
)
def test_a_first_row_like_the_others_is_an_error(text: str, seen: str) -> None:
    assert refused(text) == (
        f"a.csv: its first row holds {seen}, and no name that its column could not hold; it may be a row. Pass"
        " --no-header if it is a row, or --type with one of its names if it holds the names."
    )
    assert described(text, header=False)[0] == [str(n) for n in range(text.split("\n")[0].count(",") + 1)]


@pytest.mark.parametrize(
    "text",
    [
        "country,2019,2020,2021\nN,5.5,6.1,7\nS,2019,3.5,1.5\nC,1.5,2.5,3.5\n",
        "shop,2019,2020,2021\nA,1998,x,2001\nB,2950,y,2950\nC,2001,z,1999\n",
        "shop,2020-01-01,2020-01-02\nA,5,6\nB,7,8\nC,1,2\n",
        "sample,400.5,401.0,401.5\ns1,0.1,0.2,0.3\ns2,0.2,0.3,0.1\ns3,0.3,0.4,0.5\n",
        "name,kind\nx,a\ny,b\nz,a\n",
        "text,label\nlabel,a\ntext,b\nfoo,c\n",
    ],
)
def test_names_that_are_numbers_stay_names(text: str) -> None:
    assert described(text)[0] == text.split("\n")[0].split(",")


def test_numbers_are_no_names() -> None:
    for cells in ("1,2.5", "1e3,,NaN", "-1,-2", "inf,1", "-Infinity,+nan", "7"):
        assert "its first row holds numbers, not names" in refused(f"{cells}\n" * 3)
    assert described("id,2019\na,5\n")[0] == ["id", "2019"]
    assert described("1_000,2\na,5\n")[0] == ["1_000", "2"]


def test_numbers_above_the_columns_of_a_pivot_table_are_names() -> None:
    rows = "food,22.2,3,4\ncare,2,3,4\n"
    assert described(f",1940,1945,1950\n{rows}")[0] == ["column_0", "1940", "1945", "1950"]
    for text in (f",1945,1940,1950\n{rows}", f",1940,1945,1950\n{rows},1,2,3\n"):
        assert "its first row holds numbers, not names" in refused(text)


def test_a_first_row_of_numbers_is_seen_in_any_notation_and_beside_a_bad_row() -> None:
    rows = "".join(f"{n};n{n};{n * 7 % 10},5\n" for n in range(9, 40))
    assert "its first row holds '9', which is a value like those below" in refused(rows, decimal=",")
    assert "its first row holds '9', which is" in refused(f"{rows}end\n", decimal=",")


def test_a_header_that_another_mark_splits_is_no_single_name() -> None:
    rows = "".join(f"{n}&{n % 3}&{n},5\n" for n in range(9))
    assert "its line 1 has 1 cell with text" in refused(f"a&b&c\n{rows}")


def test_a_column_without_names_and_values_hides_no_remedy() -> None:
    assert bad(",a,b\n" + ',x,1\n,y 5" p,2\n,"q" said,3\n' * 2).endswith(
        "has text after its closing quote. Correct it, or pass --quote none if quotes are part of the texts."
    )


def test_rows_are_left_out_only_if_they_can_be_told_apart() -> None:
    quotes = "v,b\n" + "a,2\n" * 9 + '"Goat,1\nRoe,2\n"Cow" said,3\nHorse,4\n'
    assert bad(quotes, on_error="skip").endswith(
        "has text after its closing quote. Correct it, or pass --quote none if quotes are part of the texts."
    )
    assert bad("d\n2020-01-02\n2020-01-03\n", types={"d": "date-mdy"}).endswith(
        "is not a date (MM/DD/YYYY). Correct it, or pass --type d=date, or --type d=category for texts."
    )


def test_remedies_like_another_pack_are_options_that_it_allows() -> None:
    rows = "".join(f"{n},n{n % 3},{n}.5\n" for n in range(9))
    Path("train.csv").write_text(f"a,b,c\n{rows}")
    convert_table("train.csv", "train.h5")
    comma = "a,b,c\n" + '1,n1,"2,5"\n' * 4
    assert bad(comma, like="train.h5").endswith('is not a number. Correct it, or pass --decimal "," for 2.5.')
    assert bad(rows, like="train.h5").endswith("No option that was tried explains all rows; correct it.")


def test_a_second_line_of_units_is_an_error() -> None:
    assert refused("w,h\nkg,m\n1,2\n3,4\n5,6\n") == (
        "a.csv: its second line, with 'kg', holds no value of a column whose other cells are numbers, so that it"
        " may be a second header or units. Pass --skip-rows 1 if the second line holds the names, or a"
        " file without this line if it holds units, for example with: sed 2d."
    )


def test_words_that_mean_missing_and_spaces_are_told_once() -> None:
    text = "code,y\nNA, 1\n DE,2\nFR,3\nNA,4\n"
    assert described(text)[2] == [
        "a.csv: words that mean missing in columns of texts, in the first 4 rows: code 'NA' 2. If they are values,"
        " pass --type code=verbatim: only empty cells are missing.",
        "a.csv: spaces around the texts of 1 column (code) are left out. To keep them, pass --keep-spaces.",
    ]
    assert described(text, na="", keep_spaces=True)[2] == []


def test_numbers_that_a_number_does_not_write_are_marked() -> None:
    assert opened("v,y\n1.1,1\n1.10,2\n").columns[0].digits == "1.10"
    assert opened("price,y\n12.50,1\n3.00,2\n").columns[0].digits == ""
    assert opened("x,y\n1.0,1\n2.55,2\n").columns[0].digits == ""


def bad(text: str, **options: Any) -> str:
    Path("a.csv").write_text(text)
    with pytest.raises(SourceError) as error:
        convert_table("a.csv", "a.h5", **options)
    return in_options(str(error.value)).split(" Finished work")[0]


DATES = "d,y\n" + "".join(f"2024-01-{day:02},{day}\n" for day in range(1, 29))
NUMBERS = "x,y\n" + "".join(f"{n},{n}\n" for n in range(30))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            f"{DATES}2024-02-30,1\n",
            "line 30, column 'd': '2024-02-30' is not a date (YYYY-MM-DD). Correct it, or pass --type d=category for texts,",
        ),
        (
            "b,y\n" + "true,1\nno,2\n" * 10 + "maybe,3\n",
            "line 22, column 'b': 'maybe' is neither true nor false. Correct it, or pass --na maybe"
            " if 'maybe' means missing, or --type b=category for texts,",
        ),
        (
            f"{NUMBERS}?,?\n",
            "line 32, column 'x': '?' is not a number. Correct it, or pass --na '?' if '?' means missing,"
            " or --type x=category for texts,",
        ),
        (
            "x,y\n" + "1,1\n" * 9 + "x,y\n",
            "line 11, column 'x': 'x' is not a number. Correct it, or pass --on-error skip to leave such rows out.",
        ),
        (
            "x,y\n" + "1,1\n" * 20_000 + '"1,234",1\n',
            "line 20,002, column 'x': '1,234' is not a number. Correct it, or pass --thousands \",\" for 1234, or --decimal \",\""
            " for 1.234, or --type x=category for texts,",
        ),
        (
            'a,b\n1,x\n2,"y" z\n',
            "line 3, column 'b': '\"y\" z' has text after its closing quote. Correct it, or pass --quote none if quotes"
            " are part of the texts.",
        ),
        (
            'a,b\n1,"x \\"y\\" z"\n2,"no\nline, \\"two\\""\n' + "3,q\n" * 9,
            "line 2, column 'b': '\"x \\\\\"y\\\\\" z\"' has text after its closing quote. Correct it, or pass"
            " --delimiter \",\" --escape '\\' if it stands before quotes.",
        ),
        (
            "x,y,z\n" + "1,1,--\n2,2,3\n4,5,6\n" * 9 + "--,1,2\n",  # no text of z
            "line 29, column 'x': '--' is not a number. Correct it, or pass --na -- if '--' means missing, or --type"
            " x=category for texts,",
        ),
    ],
)
def test_a_bad_cell_names_what_reads_its_column(text: str, sentence: str) -> None:
    end = " or --on-error skip to leave such rows out." if sentence.endswith(",") else ""
    assert bad(text) == f"a.csv: {sentence}{end}"


def test_codes_in_another_spelling_are_matched_or_refused() -> None:
    Path("train.csv").write_text("code,y\n7,1\n8,2\n7,1\n")
    convert_table("train.csv", "train.h5", label="y", types={"code": "category"}, shuffle=False)
    Path("new.csv").write_text("code,y\n8.0,1\n7.0,2\n")
    convert_table("new.csv", "new.h5", like="train.h5", shuffle=False)
    with h5py.File("new.h5") as pack:
        assert pack["categories"][:, 0].tolist() == [2, 1]
    Path("other.csv").write_text("code,y\nA,1\nB,2\n")
    with pytest.raises(
        UsageError, match="column 'code' holds none of the 2 categories of the pack given as like"
    ):
        convert_table("other.csv", "other.h5", like="train.h5")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("2018-10-28", "28.10.2018"),
        ("13/06/2018", "06/13/2018"),
        ("2018-10-28 08:30+02:00", "2018-10-28 08:30"),
        ("2018-10-28", "2018-10-28 08:30"),
        ("8:30", "8:30 PM"),
        ("28-Oct-2018", "2018-10-28"),
    ],
)
def test_dates_in_several_forms_are_an_error_with_a_line_of_each(first: str, second: str) -> None:
    text = "d,x\n" + f"{first},1\n" * 3 + f"\n{second},2\n" * 3
    assert refused(text) == (
        f"a.csv: column 'd' holds dates or times in several forms, in line 2 {first!r} and in line 6 {second!r}; all"
        " cells of a column need one. Correct it, or pass --type d=category for texts."
    )
    assert opened(text, types={"d": "category"}).columns[0].type == "category"


@pytest.mark.parametrize(
    ("text", "way"),
    [
        ("a,b\n1,'x, y'\n2,'z, w'\n", """Pass --quote "'" if it quotes cells."""),
        ("id,name\n1,Doe, Jo\n2,Roe, Al\n", "No option that was tried explains all rows; correct it."),
        (
            'a,b\n1,"x \\", y"\n2,"z \\", w"\n',
            "Pass --delimiter \",\" --escape '\\' if it stands before quotes.",
        ),
        ('a, b\n1, "x, y"\n2, "z, w"\n', f"Pass the file rewritten, for example with: {SPACES}."),
        ('a, b\n1, "x"\n2, "z"\n', f"after spaces, which are part of it. Pass the file rewritten, for example with: {SPACES}."),
        ('a, b\n1, "x, y\nz"\n2, u\n', f"after spaces, which are part of it. Pass the file rewritten, for example with: {SPACES}."),
        ('a| b\n1| "x"\n2| "z"\n', "csv.reader(sys.stdin, skipinitialspace=True, delimiter='|'))\"."),
        ("Report\n" + "a^b\n" * 9, "hold '^', which may separate cells. Pass --delimiter ';' if it has one column."),
        ("Report,\nm,f\nP1,P6\nP2,P5\n", "Pass --skip-rows 1 for titles above it."),
        ("'a','b'\n'1','x'\n'2','y'\n", """its names stand in single quotes. Pass --quote "'"."""),
        ("0,5;1\n1,5;2\n2,5;3\n", f'its first row holds numbers, not names. Pass --no-header --decimal "," if it is a row, or {NAMED}'),
        # One row of another length hides no remedy.
        ("a;b\n" + "0,5;1\n" * 9 + "end\n", '--decimal "," for 0.5, or --type a=category if they are not numbers.'),
        ("1,2\n" + "3,4\n" * 9 + "end\n", f"its first row holds numbers, not names. Pass --no-header if it is a row, or {NAMED}"),
        ("a;b\n1'234,5;1\n7,5;2\n", """Pass --thousands "'" --decimal "," for 1234.5, or --type a=category if they are not numbers."""),
        ("Report\nm,f,g\nP1,P6,A\nP2,P5,B\n", "Pass --skip-rows 1 for titles above it, which reads ('P1', 'P6', 'A')"
         " and ('P2', 'P5', 'B'), or --delimiter ';' if it has one column, which reads ('m,f,g'), ('P1,P6,A') and ('P2,P5,B')."),
        # The columns that differ are shown.
        ("a,b,c,d,e\nx,1,2,3,\"1,250\"\ny,1,2,3,\"1,300\"\n", "Pass --thousands \",\" for 1250, which reads ('x', 1, 2, 1250, ...) and"
         " ('y', 1, 2, 1300, ...), or --decimal \",\" for 1.25, which reads ('x', 1, 2, 1.25, ...) and ('y', 1, 2, 1.3, ...), or"
         " --type e=category if they are not numbers."),
        ("1 2\n3 4\n5 6\n", "Pass --delimiter ' ' --no-header if ' ' separates cells."),
        ("  1  2\n 30  4\n  5 66\n", "Pass the file rewritten and with --no-header, for example with: perl"
         " -pe 's/^ +| +$//g; s/ +/\\t/g'."),
        ("2,2,x\n1,2,3,4\n5,6,7,8\n", "Pass --skip-rows 1 --no-header for other lines above rows."),
    ],
)  # fmt: skip
def test_quotes_counts_and_spaces_are_told_with_what_reads_them(text: str, way: str) -> None:
    assert refused(text).endswith(way)


def test_a_comment_among_the_rows_is_told_with_its_mark() -> None:
    rows = "".join(f"{n},{n}\n" for n in range(9))
    assert bad(f"a,b\n{rows}# note\n{rows}", label="b").endswith(
        "line 11: has 1 cells; 2 are expected. Correct it, or pass --comment '#' if it is a comment, or --on-error skip to"
        " leave such rows out."
    )


@pytest.mark.parametrize("lines", ["x,x\nlow,high\n", "x,x\nlow,high\nday,\n"])
def test_rows_below_several_header_lines_stay_rows(lines: str) -> None:
    table = opened(lines + "".join(f"{n},{n / 4}\n" for n in range(20)))
    assert table.first_line("a.csv") == 1 + lines.count("\n")
    assert [c.type for c in table.columns] == ["integer", "number"]


def test_points_that_may_be_between_thousands_are_noted() -> None:
    assert in_options(opened("a;b\n1.250;1\n980;2\n").column_notes["a"][0]) == (
        "column 'a' is read as number, 1.250 as 1.25; all its points have three digits after them, as between thousands."
        ' If they are, pass --thousands . --decimal ",".'
    )
    for text in ("a;b\n1.250;1\n0.980;2\n", "a;b\n1.25;1\n", "a,b\n1.250,1\n"):
        assert not opened(text).column_notes


def test_lines_above_rows_without_a_header_are_skipped_not_made_one_column() -> None:
    rows = "".join(f"{n},{n / 4},{'pq'[n % 2]}\n" for n in range(30))
    for above in ("@relation x\n@attribute a numeric\n@data\n", "ncols 3\nnrows 30\nnodata -9\n"):
        assert refused(above + rows).endswith("Pass --skip-rows 3 --no-header for other lines above rows.")


def test_names_that_are_read_as_a_row_are_no_missing_values() -> None:
    rows = "".join(f"{n},{n / 4}\n" for n in range(9))
    assert "or pass --header if it holds the names, or --on-error" in bad(
        "a,b\n" + rows, csv=Csv(header=False)
    )
    found = bad("?,b\n" + rows, csv=Csv(header=False), label="1")
    assert "--na '?' if '?' means missing" in found


def test_a_date_in_the_usual_form_is_offered_its_type() -> None:
    days = "".join(f"2018-1-{n + 1},{n}\n" for n in range(9))
    assert "or pass --type d=date, or --type d=category" in bad("d,b\n" + days, types={"d": "date-ymd"})


def test_a_header_that_does_not_fit_is_not_skipped() -> None:
    for header in ("a,b\n", "a title\nb,c\n"):
        assert "--no-header" not in refused(
            header + "".join(f"{n},{n / 4},{'pq'[n % 2]}, {n}\n" for n in range(30))
        )
