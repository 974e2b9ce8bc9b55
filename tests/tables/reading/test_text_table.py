"""Text files as tables: what dirty ones become, and pieces that are the same however they are come by."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from packer.cli.option_words import in_options
from packer.errors import SourceError
from packer.tables.reading import text_table as module
from packer.tables.reading.table_source import ReadOptions
from packer.tables.reading.text_table import TextTable
from packer.tables.transform.records import ParsedRows, RecordLayout, RecordMember


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(name: str, data: str | bytes) -> str:
    Path(name).write_bytes(data if isinstance(data, bytes) else data.encode())
    return name


def opened(*names: str, **reading: Any) -> TextTable:
    return TextTable(names, ReadOptions(**reading))


def layout(table: TextTable) -> RecordLayout:
    return RecordLayout(tuple(RecordMember(number, column) for number, column in enumerate(table.columns)))


def parsed(table: TextTable, after: list[Any] | None = None) -> Iterator[tuple[Any, ParsedRows]]:
    for chunk in table.chunks(layout(table), after):
        yield chunk, chunk.read()


def rows(table: TextTable) -> list[list[Any]]:
    """All rows, categories as texts."""
    found = []
    for _, part in parsed(table):
        for record in part.records.tolist():
            row = list(record)
            for number, texts in part.dictionaries.items():
                row[number] = None if row[number] < 0 else texts[row[number]]
            found.append(row)
    return found


def names(table: TextTable) -> list[str]:
    return [column.name for column in table.columns]


def types(table: TextTable) -> list[str]:
    return [column.type for column in table.columns]


def refused(*sources: str, **reading: Any) -> str:
    with pytest.raises(SourceError) as error:
        list(parsed(opened(*sources, **reading)))
    return in_options(str(error.value))


# What a file may hold


def test_a_table() -> None:
    table = opened(write("a.csv", "x,n,c\n1.5,2,red\n,3,\n-2e3,NA,blue\n"))
    assert names(table) == ["x", "n", "c"]
    assert types(table) == ["number", "integer", "category"]
    assert table.notes == ()
    assert (table.unit, table.rows, table.names, table.nbytes) == ("line", None, ("a.csv",), 33)
    (chunk, part), *others = parsed(table)
    assert not others
    assert (chunk.name, chunk.after) == ("a.csv", [0, 33])
    assert (part.lines, part.nbytes, part.bad) == (3, 33, [])
    np.testing.assert_array_equal(part.records["c0"], [1.5, np.nan, -2000])
    assert part.records["c1"].tolist() == [2, 3, -(2**63)]
    assert part.records["c2"].tolist() == [0, -1, 1]
    assert part.dictionaries == {2: ["red", "blue"]}


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r\r\n"])
@pytest.mark.parametrize("last", [True, False])
def test_ends_of_lines(end: str, last: bool) -> None:
    text = end.join(["a,b", "1,x", "", "  ", "2,y"]) + (end if last else "")
    table = opened(write("a.csv", text))
    assert names(table) == ["a", "b"]
    assert rows(table) == [[1, "x"], [2, "y"]]


def test_a_byte_order_mark_is_dropped() -> None:
    for encoding in ("utf-8-sig", "utf-16"):
        table = opened(
            write("a.csv", "ä,b\n1,ö\n".encode(encoding)),
            encoding="utf-8" if "8" in encoding else encoding,
        )
        assert names(table) == ["ä", "b"]
        assert rows(table) == [[1, "ö"]]


def test_utf16_must_be_said() -> None:
    assert refused(write("a.csv", "a,b\n1,2\n".encode("utf-16"))) == (
        "a.csv: begins like UTF-16 text (FF FE); UTF-8 is expected. Pass --encoding utf-16."
    )
    assert refused(write("a.csv", "a,b\n1,2\n".encode("utf-16-le"))) == (
        "a.csv: contains zero bytes, so it is not text; text files are read. Check it; for UTF-16, pass --encoding utf-16-le."
    )


def test_quotes_hold_delimiters_and_ends_of_lines() -> None:
    table = opened(write("a.csv", '"a\nb",c\n"x, ""y""\n\nz",1\r\nplain,2\n'))
    assert names(table) == ["a\nb", "c"]
    assert table.first_line("a.csv") == 3
    assert rows(table) == [['x, "y"\n\nz', 1], ["plain", 2]]


def test_without_quotes_they_are_letters() -> None:
    table = opened(write("a.csv", 'a,c\n5" disk,1\n"x,2\n'), quote="")
    assert rows(table) == [['5" disk', 1], ['"x', 2]]


def test_ragged_rows_and_wrong_cells_are_bad_with_their_lines() -> None:
    table = opened(write("a.csv", "\n\na,b\n1,2\n\n1\n1,2,3\nx,2\n3,4\n"), types={"a": "integer"})
    ((_, part),) = parsed(table)
    assert table.first_line("a.csv") == 4
    assert [(bad.line + 4, bad.column, bad.value, bad.reason) for bad in part.bad] == [
        (6, None, "", "has 1 cells; 2 are expected"),
        (7, None, "", "has 3 cells; 2 are expected"),
        (8, 0, "x", "is not a whole number"),
    ]
    assert part.records["c0"].tolist() == [1, 3]


@pytest.mark.parametrize("end", ["", "\n", "\r\n\n"])
def test_a_quote_that_is_not_closed_on_the_last_line_is_a_bad_row(end: str) -> None:
    table = opened(write("a.csv", 'a,b\n1,2\n"3,4' + end), types={"a": "number"})
    ((_, part),) = parsed(table)
    assert [(bad.line, bad.reason) for bad in part.bad] == [(1, "has a quote that is never closed")]
    assert part.records["c0"].tolist() == [1]


@pytest.mark.parametrize("size", [1, 40, 2 << 20])
@pytest.mark.parametrize("end", ["", "\n"])
def test_a_quote_that_takes_all_lines_behind_it_is_refused(
    end: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PIECE", size)
    sentence = "of its text does not end, or is too long; a quote may be unclosed. Pass --quote none if quotes are part of the texts."
    bytes_before = len("a,b\n1,2\n" + "x,2\n" * 1500)
    # More bad rows than are listed of a piece come before it.
    write("a.csv", "a,b\n1,2\n" + "x,2\n" * 1500 + '"3,4\n5,6' + end)
    assert refused("a.csv", types={"a": "number"}) == f"a.csv: the record at byte {bytes_before:,} {sentence}"
    assert (
        refused(write("b.csv", '1,2\n3,"x\ny""z\n' + end), header=False)
        == f"b.csv: the record at byte 4 {sentence.split(' Pass')[0]} No option that was tried explains all rows; correct it."
    )
    assert refused(write("c.csv", '"a,b\n1,2\n' + end)) == f"c.csv: the record at byte 0 {sentence}"
    # A closed one may end with the file.
    assert rows(opened(write("d.csv", 'a,b\n1,"x\n\ny"' + end))) == [[1, "x\n\ny"]]
    assert len(rows(opened("a.csv", quote="", types={"a": "category"}))) == 1503


def test_names_are_made_different_and_that_is_said() -> None:
    table = opened(write("a.csv", "a,a,,a.1,a, a \n1,2,3,4,5,6\n"))
    assert names(table) == ["a", "a.2", "column_2", "a.1", "a.3", "a.4"]
    assert table.notes == (
        "a.csv: columns without a name, or with a repeated one, renamed: 4 columns ('a.2', 'column_2', 'a.3', 'a.4').",
    )


def test_without_a_header_columns_are_numbered() -> None:
    table = opened(write("a.csv", "1.5,x\n2.5,y\n"), header=False)
    assert names(table) == ["0", "1"]
    assert table.first_line("a.csv") == 1
    assert rows(table) == [[1.5, "x"], [2.5, "y"]]


def test_a_missing_header_is_noticed() -> None:
    for text in ("1.0,2e3,-4\n1,2,3\n", "1.0,,-4\n1,2,3\n"):
        assert (
            refused(write("a.csv", text))
            == "a.csv: its first row holds numbers, not names. Pass --no-header if it is a row, or --type with one"
            " of its names if it holds the names."
        )


@pytest.mark.parametrize("text", ["", "\n", " \r\n\n", "\ufeff"])
def test_an_empty_file_is_refused(text: str) -> None:
    for header in (True, False):
        assert (
            refused(write("a.csv", text), header=header)
            == "a.csv: is empty; at least one row is needed. Check it."
        )
    write("a.csv.gz", gzip.compress(text.encode()))
    assert refused("a.csv.gz") == "a.csv.gz: is empty; at least one row is needed. Check it."


@pytest.mark.parametrize("text", ["a,b", "a,b\n", "\r\na,b\r\n\r\n \r\n", '"a\n",b\n'])
def test_a_header_alone_is_refused(text: str) -> None:
    assert refused(write("a.csv", text)) == (
        "a.csv: holds a header and no rows; at least one row is needed. Check it."
    )


@pytest.mark.parametrize(
    "data", [b"\x7fELF\0\0", os.urandom(3000) + b"\0", b"a,b\n1,\0\n"], ids=["program", "noise", "zero"]
)
def test_what_is_no_text_is_refused(data: bytes) -> None:
    assert refused(write("a.csv", data)) == (
        "a.csv: contains zero bytes, so it is not text; text files are read. Check it."
    )


def test_lines_that_end_in_a_carriage_return_alone_are_refused() -> None:
    assert refused(write("a.csv", "a,b\r1,2\r")) == (
        "a.csv: its lines end in \\r only; \\n and \\r\\n are read. Convert its text, for example with: tr '\\r' '\\n'."
    )


def test_a_name_that_is_not_utf8_is_refused() -> None:
    assert refused(write("a.csv", "prix,é\n1,2\n".encode("latin-1"))) == (
        "a.csv: its first row is not UTF-8; the file must be UTF-8. Pass --encoding, such as cp1252 or latin-1."
    )
    assert names(opened("a.csv", encoding="latin-1")) == ["prix", "é"]


def test_a_cell_that_is_not_utf8_is_a_bad_row() -> None:
    ((_, part),) = parsed(opened(write("a.csv", "a,b\n1,caf\xe9\n2,x\n".encode("latin-1"))))
    assert [(bad.line, bad.column, bad.reason) for bad in part.bad] == [(0, 1, "is not UTF-8")]
    assert rows(opened("a.csv", encoding="latin-1")) == [[1, "café"], [2, "x"]]


def test_a_first_row_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SAMPLE", 64 << 10)
    assert refused(write("a.csv", 'a,"b\n' + "1,2\n" * 50_000)) == (
        "a.csv: the record at byte 0 of its text does not end, or is too long; a quote may be unclosed."
        " Pass --quote none if quotes are part of the texts."
    )


def test_a_record_without_an_end_is_refused_where_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE", 4 << 10)
    monkeypatch.setattr(module, "LONGEST", 1 << 20)
    write("a.csv", "a,b\n" + "1,2\n" * 5000 + '3,"4\n' + "5,6\n" * 500_000)
    sentence = (
        "the record at byte 20,004 of its text does not end, or is too long; a quote may be unclosed."
        " Pass --quote none if quotes are part of the texts."
    )
    assert refused("a.csv") == f"a.csv: {sentence}"
    table = opened("a.csv")
    with pytest.raises(SourceError, match=r"^a\.csv: the record at byte 20,004 "):
        list(table.chunks(layout(table), [0, 4 + 4 * 4999]))
    write("a.csv.gz", gzip.compress(Path("a.csv").read_bytes()))
    assert refused("a.csv.gz") == f"a.csv.gz: {sentence}"


def test_a_file_that_was_cut_off_is_refused() -> None:
    data = gzip.compress(b"a,b\n" + b"".join(b"%d,%d\n" % (n, n * n) for n in range(150_000)))
    assert refused(write("a.csv.gz", data[:-100])).startswith(
        "a.csv.gz: its compressed data are damaged or truncated ("
    )


# Several files


def test_files_follow_each_other_each_with_its_header() -> None:
    write("a.csv", "x,y\n1,a\n2,b")
    write("b.csv", b'\xef\xbb\xbf\n"x" , y\r\n3,c\r\n')
    write("c.csv.gz", gzip.compress(b"x,y\n"))
    write("d.csv.zst", zstandard.compress(b"x,y\n4,d\n"))
    table = opened("a.csv", "b.csv", "c.csv.gz", "d.csv.zst")
    assert rows(table) == [[1, "a"], [2, "b"], [3, "c"], [4, "d"]]
    assert [table.first_line(name) for name in table.names] == [2, 3, 2, 2]
    assert table.notes == ("c.csv.gz holds a header and no rows.",)
    assert [chunk.name for chunk, _ in parsed(table)] == ["a.csv", "b.csv", "d.csv.zst"]
    assert table.nbytes == sum(map(os.path.getsize, table.names))


def test_files_with_other_columns_are_refused() -> None:
    write("a.csv", "x,y\n1,2\n")
    assert refused("a.csv", write("b.csv", "x,y,z\n1,2,3\n")) == (
        "b.csv: column 2 (from 0) is 'z', in a.csv it is missing; all files must have the same columns in the same order. "
        "Leave the file out, or change its columns."
    )
    assert refused("a.csv", write("b.csv", "y,x\n1,2\n")) == (
        "b.csv: column 0 (from 0) is 'y', in a.csv it is 'x'; all files must have the same columns in the same order. "
        "Leave the file out, or change its columns."
    )
    assert "b.csv: column 1 (from 0) is missing, in a.csv it is '1';" in refused(
        "a.csv", write("b.csv", "1\n"), header=False
    )
    assert refused("a.csv", write("b.csv", "")) == "b.csv: is empty; at least one row is needed. Check it."


def test_types_are_those_of_the_first_file_with_rows() -> None:
    write("a.csv", "x,y,z\n")
    write("b.csv", "x,y,z\n1,red,NA\n2,blue,\n")
    write("c.csv", "x,y,z\n3,red,2024-02-29\n")
    table = opened("a.csv", "b.csv", "c.csv", types={"z": "date"})
    assert types(table) == ["integer", "category", "date"]
    assert table.notes == ("a.csv holds a header and no rows.",)
    assert rows(table)[2] == [3, "red", 19782.0]
    table = opened("b.csv", "c.csv")
    assert types(table) == ["integer", "category", "number"]
    assert "column 'z' holds no value in the first 2 rows" in table.column_notes["z"][0]
    assert [bad.value for _, part in parsed(table) for bad in part.bad] == ["2024-02-29"]


def test_a_header_without_the_name_of_the_row_names_is_understood() -> None:
    text = '"x","y"\n' + "".join(f'"{n}",{n}.5,a b\n' for n in range(1, 21))
    for delimiter in (None, ","):
        table = opened(write("a.csv", text), delimiter=delimiter)
        assert [column.name for column in table.columns] == ["column_0", "x", "y"]
        assert table.indexes == ("column_0",)
    # One such row is a bad row.
    table = opened(write("b.csv", "x,y\n1,2\n1,2,3\n"))
    assert [bad.reason for _, part in parsed(table) for bad in part.bad] == ["has 3 cells; 2 are expected"]


def test_titles_and_comments_are_passed_over_in_each_file() -> None:
    first = 'A title, with commas\n\nx,y\n1,a\n# note, "1\n2,b\n'
    second = "Another\n\nx,y\n# one\n3,c\n#"
    table = opened(write("a.csv", first), write("b.csv", second), skip_rows=2, comment="#")
    assert names(table) == ["x", "y"]
    assert types(table) == ["integer", "category"]
    assert rows(table) == [[1, "a"], [2, "b"], [3, "c"]]
    assert (table.first_line("a.csv"), table.first_line("b.csv")) == (4, 4)
    bare = opened(write("c.csv", "A title\n1,2\n# x\n3,4\nx,5\n"), skip_rows=1, header=False, comment="#")
    assert bare.first_line("c.csv") == 2
    assert rows(bare) == [[1, 2], [3, 4]] or types(bare) == ["category", "integer"]
    assert (
        refused(write("d.csv", "a\nb\n"), skip_rows=2)
        == "d.csv: holds no row; at least one is needed. Check it."
    )


def test_numbers_in_quotes_may_hold_the_delimiter() -> None:
    text = 'x,y\n1,"2,100"\n2,"1,234,567.5"\n'
    assert refused(write("a.csv", text)) == (
        "a.csv: line 2, column 'y' holds '2,100', numbers in another notation than the decimal point '.'. "
        'Pass --thousands "," for 2100, or --type y=category if they are not numbers.'
    )
    for delimiter in (None, ","):
        assert rows(opened("a.csv", thousands=",", delimiter=delimiter)) == [[1, 2100.0], [2, 1234567.5]]
    write("b.csv", 'x,y\n1,"2,5"\n2,"-1.000,25"\n')
    assert rows(opened("b.csv", decimal=",", thousands=".")) == [[1, 2.5], [2, -1000.25]]


def test_no_file_has_rows() -> None:
    assert refused(write("a.csv", "a\n"), write("b.csv", "a\n")) == (
        "a.csv: holds a header and no rows; at least one row is needed. Check it."
    )


# Pieces


def large(records: int = 20_000) -> bytes:
    generator = np.random.default_rng(5)
    lines = [b'name,"x\n(m)",id']
    for number in range(records):
        text = b'"%b"' % (b"a\n,b" * int(generator.integers(0, 9))) if number % 7 else b"plain"
        lines.append(b"%b,%d.25,%d" % (text, generator.integers(-999, 999), number))
    return b"\r\n".join(lines)


@pytest.mark.parametrize("kind", ["", ".gz", ".zst"])
def test_pieces_hold_whole_records_and_resuming_gives_the_same(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PIECE", 50_000)
    data = large()
    packs: dict[str, Callable[[bytes], bytes]] = {
        "": bytes,
        ".gz": gzip.compress,
        ".zst": zstandard.compress,
    }
    pack = packs[kind]
    sources = [write("a.csv" + kind, pack(data)), write("b.csv" + kind, pack(b"\xef\xbb\xbf" + data))]
    table = opened(*sources)
    pieces = [(chunk.name, chunk.after, bytes(chunk.parse.args[0])) for chunk, _ in parsed(table)]
    assert len(pieces) > 20
    for name in sources:
        assert b"".join(text for n, _, text in pieces if n == name) == data[data.index(b"\r\n") + 2 :]
    assert all(len(text) <= 50_000 and text.endswith(b"\n") for name, (_, end), text in pieces[:5])
    ids = np.concatenate([part.records["c2"] for _, part in parsed(table)])
    assert ids.tolist() == [*range(20_000)] * 2
    lines = [part.lines for _, part in parsed(table)]
    assert sum(lines) == 2 * (data.count(b"\n") - 2)
    assert sum(part.nbytes for _, part in parsed(table)) == table.nbytes
    for number in (0, 3, len(pieces) // 2 - 1, len(pieces) - 2, len(pieces) - 1):
        again = [
            (c.name, c.after, bytes(c.parse.args[0])) for c, _ in parsed(opened(*sources), pieces[number][1])
        ]
        assert again == pieces[number + 1 :]


@pytest.mark.parametrize("size", [1, 3, 64, 65, 127, 128])
def test_records_longer_than_a_piece_and_pieces_that_end_with_the_file(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PIECE", size)
    texts = ["x" * 63, "y" * 200, "v" * 190, "u" * 300, *"z" * 100, "w" * max(1, size - 1)]
    table = opened(write("a.csv", "a\n" + "".join(text + "\n" for text in texts)))
    assert [row[0] for row in rows(table)] == texts
    afters = [chunk.after for chunk, _ in parsed(table)]
    for number, after in enumerate(afters):
        assert [chunk.after for chunk, _ in parsed(table, after)] == afters[number + 1 :]


def test_pieces_are_read_in_any_order() -> None:
    table = opened(write("a.csv", "a\n" + "".join(f"{n}\n" for n in range(2_500_000))))
    chunks = list(table.chunks(layout(table)))
    assert len(chunks) == 10
    parts = [chunk.read() for chunk in reversed(chunks)][::-1]
    np.testing.assert_array_equal(
        np.concatenate([part.records["c0"] for part in parts]), np.arange(2_500_000)
    )
    assert [part.nbytes for part in parts][-1] < 2 << 20
    assert sum(part.nbytes for part in parts) == table.nbytes


# Identity


def test_the_fingerprint_tells_whether_the_inputs_are_the_same(tmp_path: Path) -> None:
    os.mkdir("one")
    os.mkdir("two")
    sources: Sequence[str] = [write("one/a.csv", "x\n1\n"), write("two/b.csv", "x\n2\n")]
    first = opened(*sources).fingerprint()
    assert first["names"] == ["one/a.csv", "two/b.csv"]
    assert first["sizes"] == [4, 4]
    assert first["reading"] == {
        "header": True,
        "delimiter": None,
        "quote": '"',
        "decimal": ".",
        "thousands": "",
        "na": [],
        "encoding": "utf-8",
        "types": {},
        "skip_rows": 0,
        "comment": None,
        "keep_spaces": False,
    }
    assert opened(*(str(tmp_path / name) for name in sources)).fingerprint() == first
    assert opened(*sources, na=("-",)).fingerprint() != first
    write("one/a.csv", "x\n12\n")
    assert opened(*sources).fingerprint() != first
    assert opened("one/a.csv").fingerprint()["names"] == ["a.csv"]


def test_the_newest_file_is_told() -> None:
    write("a.csv", "x\n1\n")
    write("b.csv", "x\n1\n")
    os.utime("a.csv", ns=(10**18 + 5, 10**18 + 5))
    os.utime("b.csv", ns=(10**18, 10**18))
    assert str(opened("a.csv", "b.csv").newest()) == "a.csv of 2001-09-09 01:46:40.000000005"
