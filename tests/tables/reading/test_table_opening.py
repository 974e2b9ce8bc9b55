"""What people have: frames, folders, archives, workbooks and JSON lines give the pack that their CSV gives."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import sqlite3
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow
import pytest
from PIL import Image

from packer.cli.convert_command import kind_of
from packer.cli.option_words import in_options
from packer.errors import PackerError, UsageError
from packer.load.row_dataset import PackedDataset
from packer.packs.pack_opening import open_pack
from packer.tables.table_conversion import convert_table

CSV = "x,n,c\n1.5,1,a\n2,2,b\n,3,\n4,4,a\n"
FRAME = pandas.read_csv(io.StringIO(CSV))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def packed(source: Any, **options: Any) -> list[Any]:
    """The rows of the pack of a table, in the table's order."""
    convert_table(source, "p.h5", shuffle=False, overwrite=True, **options)
    rows = PackedDataset("p.h5")[:]
    return [
        np.asarray(getattr(rows, f.name)).tolist() for f in open_pack("p.h5").fields if f.name in rows._fields
    ]


def same(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(np.array_equal(x, y, equal_nan=True) for x, y in zip(a, b, strict=True))


def expected(text: str = CSV) -> list[Any]:
    Path("plain.csv").write_text(text)
    return packed("plain.csv", label="n")


def refused(source: Any, **options: Any) -> str:
    with pytest.raises(PackerError) as error:
        convert_table(source, "r.h5", **options)
    return in_options(str(error.value))


def zipped(*names: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in names:
            archive.writestr(name, CSV)
    return buffer.getvalue()


def tarred(*names: str, mode: Any = "w:gz") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = len(CSV)
            archive.addfile(member, io.BytesIO(CSV.encode()))
    return buffer.getvalue()


LINES = "".join(
    json.dumps({k: None if v != v else v for k, v in row.items()}) + "\n" for row in FRAME.to_dict("records")
)
FILES: dict[str, Callable[[], bytes]] = {
    "t.txt": CSV.replace(",", "\t").encode,
    "gzip.csv": lambda: gzip.compress(CSV.encode()),
    "bzip.csv.gz": lambda: bz2.compress(CSV.encode()),
    "t.csv.xz": lambda: lzma.compress(CSV.encode()),
    "t.txt.gz": lambda: gzip.compress(CSV.encode()),
    "t.zip": lambda: zipped("a/t.csv", "a/", "__MACOSX/a/._t.csv", "a/.DS_Store"),
    "t.csv.zip": lambda: zipped("t.csv"),
    "t.tar.gz": lambda: tarred("a/t.csv", "a/._t.csv"),
    "t.tar": lambda: tarred("t.csv", mode="w"),
    "t.jsonl": LINES.encode,
    "t.ndjson.gz": lambda: gzip.compress(LINES.encode()),
}


@pytest.mark.parametrize("name", FILES)
def test_files_are_read_by_their_content(name: str) -> None:
    Path(name).write_bytes(FILES[name]())
    assert same(packed(name, label="n"), expected())
    assert name.endswith("csv.gz") or kind_of(name) == "tables"


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("t.zip", zipped("a.csv", "b.csv"), "is a zip archive of 2 files (a.csv, b.csv); one with a single table is read."
         " Unpack it, and pass the files."),
        ("t.tar.gz", tarred("a.csv", "b.csv"), "is a tar archive of 2 files (a.csv, b.csv); one with a single table is"
         " read. Unpack it, and pass the files."),
        ("t.xls", b"\xd0\xcf\x11\xe0\xa1\xb1", "is an old Excel file; tables of text are read here. Save it as .xlsx or as"
         " CSV."),
        ("t.csv", b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "is a pointer of Git LFS, not the file;"
         " tables of text are read here. Get the file: git lfs pull."),
        ("t.csv", b'[{"x": 1}]', "is a JSON document; tables of text are read here. Pass the frame:"
         " convert_table(pandas.read_json(FILE), OUT)."),
        ("t.jsonl", b'{"x": 1, "n": 2}\n{"x": "a", "n": 2}\n', "is no table of JSON lines (JSON parse error: Column(/x)"
         " changed from number to string in row 1); each line is an object, and a name has values of one type. Correct"
         " it."),
    ],
)  # fmt: skip
def test_others_are_refused_as_what_they_are(name: str, content: bytes, sentence: str) -> None:
    Path(name).write_bytes(content)
    assert refused(name) == f"{name}: {sentence}"


def test_json_lines_hold_one_type_in_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packer.tables.reading.arrow_batches._JSON_BLOCK", 64)
    Path("t.jsonl").write_text('{"x": 1, "n": 1}\n' * 20 + '{"x": 1.5, "n": 1}\n')
    assert refused("t.jsonl").startswith(
        "t.jsonl: is no table of JSON lines (Failed to convert JSON to int64, couldn't parse:1.5); each line is an object,"
        " and a name has values of one type. Correct it, or pass --type COLUMN=number."
    )
    Path("one.jsonl").write_text('{"x": 1}\n' * 20 + '{"x": 1.5}\n')
    assert "Correct it, or pass --type x=number." in refused("one.jsonl")
    rows = packed("t.jsonl", label="n", types={"x": "number"})
    assert rows[0] == [[1.0]] * 20 + [[1.5]]
    Path("t.jsonl").write_text('{"x": null, "n": 1}\n' * 20 + '{"x": "a", "n": 1}\n')
    assert "or pass --type x=category." in refused("t.jsonl")
    assert packed("t.jsonl", label="n", types={"x": "category"})[0][-1] == [1]


def test_a_workbook_is_its_only_sheet() -> None:
    pytest.importorskip("openpyxl")
    frame = FRAME.assign(d=pandas.to_datetime(["2020-01-02"] * 4), ok=[True, False, True, True], code="007")
    frame.to_excel("t.xlsx", index=False)
    text = frame.assign(d="2020-01-02").to_csv(index=False)
    assert same(packed("t.xlsx", label="n"), expected(text))
    with pandas.ExcelWriter("two.xlsx") as book:
        for name in ("A", "B"):
            frame.to_excel(book, sheet_name=name, index=False)
    assert refused("two.xlsx") == (
        "two.xlsx: is a workbook with 2 filled sheets ('A', 'B'); one with a single table is read. Save one sheet as CSV:"
        " pandas.read_excel('two.xlsx', 'A').to_csv('t.csv', index=False)"
    )


# Frames


def cursor() -> Any:
    base = sqlite3.connect(":memory:")
    FRAME.to_sql("t", base, index=False)
    return base.execute("select * from t")


FRAMES: dict[str, Callable[[], Any]] = {
    "pandas": lambda: FRAME,
    "index": lambda: FRAME.set_index("x"),
    "arrow": lambda: pyarrow.Table.from_pandas(FRAME),
    "reader": lambda: pyarrow.Table.from_pandas(FRAME).to_reader(),
    "polars": lambda: pytest.importorskip("polars").from_arrow(pyarrow.Table.from_pandas(FRAME)),
    "dict": lambda: FRAME.to_dict("list"),
    "rows": lambda: FRAME.to_dict("records"),
    "cursor": cursor,
}


@pytest.mark.parametrize("kind", FRAMES)
def test_frames_are_tables(kind: str) -> None:
    assert same(packed(FRAMES[kind](), label="n"), expected())


def test_the_content_of_a_frame_is_its_identity() -> None:
    convert_table(FRAME, "p.h5", label="n")
    first = open_pack("p.h5").seal
    assert convert_table(FRAME.copy(), "p.h5", label="n", resume=True).rows == 4
    assert open_pack("p.h5").seal == first
    with pytest.raises(UsageError, match=r"^p\.h5: is a complete pack, but of other options or inputs: "):
        convert_table(FRAME.assign(x=1.0), "p.h5", label="n", resume=True)


@pytest.mark.parametrize(
    ("frame", "sentence"),
    [
        ({"x": [1, 2], "n": [1]}, "column 'n': has 1 rows, and 'x' has 2; all columns need the same length. Pass columns of"
         " equal length."),
        ({"x": 1}, "column 'x': is a int; a value for each row is needed. Pass a list."),
        ({"x": [1, "a"]}, "column 'x': Could not convert 'a' with type str: tried to convert to int64; all values must have"
         " one type. Convert it, or pass --drop x."),
        ({"x": []}, "data frame: holds no rows; at least one is needed. Check it."),
    ],
)  # fmt: skip
def test_frames_that_are_no_table_are_refused(frame: Any, sentence: str) -> None:
    assert refused(frame) == sentence


# Folders


def test_a_folder_of_tables_is_a_table() -> None:
    Path("f/sub").mkdir(parents=True)
    for name in ("f/b.csv", "f/sub/a.csv"):
        Path(name).write_text(CSV)
    Path("f/README.md").write_text("about")
    Path("f/_SUCCESS").write_text("")
    assert kind_of("f") == "tables"
    assert packed("f", label="n")[2] == [1, 2, 3, 4] * 2
    Path("f/sub/a.wav").write_text("")
    assert kind_of("f") == "images"
    assert refused("f") == (
        "f: holds other files than tables, or none; a folder of a table holds nothing else. Pass the files, for example as"
        " 'f/*.csv'."
    )


def test_images_beside_a_table_are_images() -> None:
    Path("f").mkdir()
    Path("f/labels.csv").write_text("file,label\n0.png,a\n")
    Image.new("RGB", (8, 8)).save("f/0.png")
    Path("list.txt").write_text("f/0.png\t1\nf/0.png\t2\n")
    Path("words.txt").write_text("cat\ndog\n")
    assert [kind_of(name) for name in ("f", "list.txt", "words.txt")] == ["images"] * 3


def test_splits_in_a_folder_are_not_one_table() -> None:
    Path("f").mkdir()
    for name in ("f/test.csv", "f/train.csv"):
        Path(name).write_text(CSV)
    assert refused("f") == (
        "f: holds test.csv and train.csv, which look like splits; the files of a folder become one table. Pass the files of"
        " each split alone, the others with --like train.h5; or if all are one table, 'f/**/*.csv'."
    )
    assert len(packed("f/**/*.csv", label="n")[2]) == 8


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_folders_give_columns(form: str) -> None:
    for code in ("01001", "2%20b", "__HIVE_DEFAULT_PARTITION__"):
        folder = Path(f"f/code={code}/part=1")
        folder.mkdir(parents=True)
        FRAME.to_csv(folder / "p.csv", index=False) if form == "csv" else FRAME.to_parquet(
            folder / "p.parquet"
        )
    report = convert_table("f", "p.h5", label="n", keep=["code"], shuffle=False)
    assert report.notes[0] == (
        f"the names of folders give columns, as code=01001 and part=1 for f/code=01001/part=1/p.{form}."
    )
    dataset = PackedDataset("p.h5", fields=["features", "code"])
    assert [row.code for row in dataset] == ["01001"] * 4 + ["2 b"] * 4 + [""] * 4
    assert dataset[:].features[:, 1].tolist() == [1.0] * 12
    Path("g/other=1").mkdir(parents=True)
    FRAME.to_csv("g/other=1/p.csv", index=False)
    assert refused(["g/other=1/p.csv", f"f/code=01001/part=1/p.{form}"]) == (
        f"f/code=01001/part=1/p.{form}: its folders give the columns 'code', 'part', those of g/other=1/p.csv 'other'; all"
        " files of a table have the same. Pass files of one layout."
    )


def test_a_column_of_folders_can_be_the_label() -> None:
    for code in "ab":
        Path(f"f/code={code}").mkdir(parents=True)
        Path(f"f/code={code}/p.csv").write_text(CSV)
    assert same(packed("f", label="code"), packed("f/*/*.csv", label="code"))
    assert packed("f", label="code")[-1] == [0] * 4 + [1] * 4


# Escapes


def test_escaped_cells() -> None:
    Path("t.csv").write_text('x,n,s\n1,1,"a \\"b\\", c"\n2,2,\\N\n3,3,a\\,b\n4,4,"x ""y"""\n5,5,"\\\\"\n')
    csv = {"escape": "\\", "delimiter": ","}
    convert_table("t.csv", "p.h5", label="n", keep=["s"], csv=csv, shuffle=False)
    assert [row.s for row in PackedDataset("p.h5", fields=["s"])] == ['a "b", c', "", "a,b", 'x "y"', "\\"]
    Path("t.tsv").write_text('x\tn\ts\n1\t1\ta "b\n2\t2\ta\\\tb\\\nc\n3\n')
    assert refused("t.tsv", csv={"escape": "\\", "delimiter": "\t", "quote": ""}) == (
        "t.tsv: line 5: has 1 cells; 3 are expected. Correct it, or pass --on-error skip to leave such rows out."
    )
    Path("bad.csv").write_text('x,n,s\n1,1,"a"b\n')
    assert refused("bad.csv", csv=csv) == (
        "bad.csv: a quoted cell is not closed as --escape '\\' and --quote '\"' say (',' expected after '\"'). Correct it, or"
        " pass --quote none."
    )
    assert refused("t.csv", csv={"escape": "\\"}) == (
        "--escape '\\': needs the delimiter, because it may stand before one. Pass --delimiter \",\" too, or the file's"
        " delimiter."
    )


# Labels


def test_several_classes_in_a_cell() -> None:
    Path("t.csv").write_text("x,tags\n1,a|b\n2,b\n3,\n4,c | a\n")
    assert packed("t.csv", label="tags", label_separator="bar")[1] == [
        [1, 1, 0],
        [0, 1, 0],
        [0, 0, 0],
        [1, 0, 1],
    ]
    header = open_pack("p.h5").header
    assert header.classes == ("a", "b", "c")
    convert_table("t.csv", "like.h5", like="p.h5", shuffle=False)
    assert PackedDataset("like.h5")[:].label.tolist() == [[1, 1, 0], [0, 1, 0], [0, 0, 0], [1, 0, 1]]
    assert packed("t.csv", label="tags", label_separator="|", classes="c,z,b,a")[1][0] == [0, 0, 1, 1]
    assert refused("t.csv", label="tags", label_separator="|", classes="a,b") == (
        "t.csv: line 5, column 'tags': 'c | a' is not one of the label's classes. Correct it, or pass --classes with all names,"
        " or --on-error skip to leave such rows out."
    )
    assert refused("t.csv", label="tags", label_separator=",", label_as="float") == (
        "--label-separator: is about the class names in one column, the label. Pass --label COLUMN, without --label-as"
        " number, or leave it out."
    )
    Path("t.csv").write_text("x,tags\n1,3 10\n2,2 3\n")
    packed("t.csv", label="tags", label_separator="space")
    assert open_pack("p.h5").header.classes == ("2", "3", "10")


def test_classes_in_the_given_order() -> None:
    Path("t.csv").write_text("x,y,s\n1,5,b\n2,7,a\n")
    assert packed("t.csv", label="s", classes=["b", "z", "a"])[-1] == [0, 2]
    assert open_pack("p.h5").header.classes == ("b", "z", "a")
    assert packed("t.csv", label="y", classes="7,5")[-1] == [1, 0]


@pytest.mark.parametrize(
    ("labels", "noted"),
    [([5, 7], True), ([-1, 1], True), ([1, 2, 3], True), ([1.0, 2.0], True), ([0, 1], False), ([0, 1, 2], False),
     ([0, 2], True), ([*range(100, 200)], False), ([0.5, 1.5], False)],
)  # fmt: skip
def test_numbers_that_may_be_classes_are_noted(labels: list[float], noted: bool) -> None:
    Path("t.csv").write_text("x,y\n" + "".join(f"1,{y}\n" for y in labels * 3))
    notes = [in_options(note) for note in convert_table("t.csv", "p.h5", label="y").notes]
    shown = ", ".join(f"{y:g}" for y in labels)
    sentence = (
        f"label 'y' holds {len(labels)} different numbers, {shown}, and is stored as them; a loss over classes needs 0 to"
        f" {len(labels) - 1}. If they are classes, pass --label-as classes."
    )
    assert (sentence in notes) == noted
    assert noted or not any("If they are classes" in note for note in notes)
