"""Label files in every form give the same labels, or are refused by their names."""

from __future__ import annotations

import gzip
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from packer.errors import SourceError
from packer.inputs.findings import Findings
from packer.inputs.label_options import Labels
from packer.inputs.label_rows import read_json
from tests.inputs.named_images import label_table, read_targets

KEYS = ["cat/1.jpg", "cat/2.png", "dog/3.jpg", "dog/4.jpg"]
NAMES = ["cat", "dog", "eel", "cat"]
ROWS = list(zip(KEYS, NAMES, strict=True))
NEEDED = "labels as CSV, JSON, .xlsx or Parquet are needed"
Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    monkeypatch.chdir(tmp_path)

    def run(data: str | bytes, name: str = "l.csv") -> str:
        (tmp_path / name).write_bytes(data if isinstance(data, bytes) else data.encode())
        return name

    return run


def read(path: str, *chosen: str, keys: list[str] = KEYS, **more: Any) -> tuple[list[str], list[str]]:
    """Return the label of each image, and the notes."""
    table = label_table(path, keys, chosen, content=read_json(path), **more)
    (column,) = (table.columns[name] for name in chosen or ("",))
    return [column[row] for row in table.one_an_image([column], "label")], table.findings.notes


def refused(path: str, *chosen: str, **more: Any) -> str:
    with pytest.raises(SourceError) as error:
        read(path, *chosen, **more)
    return str(error.value)


def excel(rows: list[tuple[Any, ...]], *sheets: str) -> bytes:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    for name in sheets:
        book.create_sheet(name).append([1])
    file = io.BytesIO()
    book.save(file)
    return file.getvalue()


def parquet(columns: dict[str, list[Any]]) -> bytes:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    file = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), file)
    return file.getvalue()


def text(separator: str, end: str = "\n", header: bool = True) -> str:
    rows = ([("file", "label")] if header else []) + ROWS
    return "".join(separator.join(row) + end for row in rows)


@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("name", ["l.csv", "l.tsv", "l.txt"])
@pytest.mark.parametrize("separator", [",", "\t", ";", "|", " ", "   ", ", "])
def test_the_separator_is_the_one_by_which_a_column_names_images(
    write: Write, separator: str, name: str, header: bool
) -> None:
    for end in ("\n", "\r\n", "\r", "\n\n"):
        assert read(write(text(separator, end, header), name)) == (NAMES, [])


@pytest.mark.parametrize(
    "data",
    [
        text(",").encode("utf-8-sig"),
        text("\t").encode("utf-16"),
        gzip.compress(text(",").encode()),
        text(",").replace("\n", ",,\n").encode(),
        (text(",", ",\n").replace("label,", "label") + ",,\n,\n").encode(),
        "".join(f'"{file}", "{name}"\n' for file, name in ROWS).encode(),
        ("," + text(",").replace("\n", "\n,")).rstrip(",").encode(),
        "".join(f"{k},{file},{name}\n" for k, (file, name) in enumerate(ROWS, 7)).encode(),
        (",0,1\n" + "".join(f"{k},{file},{name}\n" for k, (file, name) in enumerate(ROWS))).encode(),
        "".join(f"{name},{file}\n" for file, name in ROWS).encode(),
    ],
    ids=["BOM", "UTF-16", "gzip", "empty columns", "empty cells and rows", "quotes", "no name", "count", "pandas", "label first"],
)  # fmt: skip
def test_text_as_programs_write_it(write: Write, data: bytes) -> None:
    assert read(write(data))[0] == NAMES


@pytest.mark.parametrize(
    "value",
    [
        dict(ROWS),
        {"cat": [KEYS[0], KEYS[3]], "dog": [KEYS[1]], "eel": [KEYS[2]]},
        {file: {"label": name} for file, name in ROWS},
        [{"file": file, "label": name} for file, name in ROWS],
        [{"label": name, "path": file} for file, name in ROWS],
        ROWS,
        {"labels": ROWS},
        {
            "info": {"year": 2020},
            "samples": [{"file": file, "label": name, "box": {}} for file, name in ROWS],
        },
    ],
    ids=["object", "classes", "objects", "list", "file last", "lists", "StyleGAN", "nested"],
)
def test_json(write: Write, value: Any) -> None:
    for name, indent in (("l.json", None), ("l.txt", 2)):
        assert read(write(json.dumps(value, indent=indent), name))[0] == NAMES


def test_a_name_twice_in_a_json_object_is_compared(write: Write) -> None:
    path = write('{"cat/1.jpg": "cat", "cat/1.jpg": "dog"}')
    assert refused(path, keys=KEYS[:1]) == (
        "l.csv entry 2: cat/1.jpg has the label dog, but cat in entry 1; each image has one. Remove one of the rows, "
        "or pass on_error='skip'."
    )


def test_json_lines(write: Write) -> None:
    lines = [json.dumps({"file_name": file, "label": name}) for file, name in ROWS]
    assert read(write("\n".join(lines) + "\n\n", "l.jsonl")) == (NAMES, [])
    assert read(write(lines[0], "l.jsonl"), keys=KEYS[:1]) == (["cat"], [])
    assert refused(write(lines[0] + "\n{", "l.jsonl")) == (
        f"l.jsonl line 2: damaged or truncated JSON; {NEEDED}. Get it again."
    )
    lists = [json.dumps({"file": file, "tags": [name, "pet"]}) for file, name in ROWS]
    assert read(write("\n".join(lists)))[0] == [f'["{name}", "pet"]' for name in NAMES]


def test_json_that_holds_no_labels(write: Write) -> None:
    assert refused(write(json.dumps(KEYS))) == (
        f'l.csv: holds str instead of objects or lists; {NEEDED}, as {{"a.jpg": "cat"}} or [{{"file": "a.jpg", "label": "cat"}}]. '
        "Correct it."
    )
    boxes = [{"image": file, "annotations": [{"label": name}]} for file, name in ROWS]
    assert refused(write(json.dumps(boxes))) == (
        "l.csv: 1 column, image; two are expected, file and label. Leave out labels= if it has no labels, or remove "
        "lines above its header. Left out: annotations; they hold objects."
    )
    assert refused(write("[[1, 2")) == f"l.csv: damaged or truncated JSON; {NEEDED}. Get it again."


def test_excel(write: Write) -> None:
    for rows in (ROWS, [("file", "label"), *ROWS, (None, None)]):
        assert read(write(excel(rows), "l.xlsx")) == (NAMES, [])
    assert read(write(excel([(file, k) for k, file in enumerate(KEYS)], "more"), "l.csv")) == (
        ["0", "1", "2", "3"],
        ["l.csv: the sheet Sheet is read; others are left out."],
    )
    assert "row 3: no image is called x;" in refused(write(excel([("file", "label"), ROWS[0], ("x", "cat")])))


def test_parquet(write: Write) -> None:
    assert read(write(parquet({"label": NAMES, "file": KEYS, "bytes": [b"x"] * 4})))[0] == NAMES
    lists = parquet({"file": KEYS, "tags": [["a"], ["a", "b"], [], ["c"]]})
    assert read(write(lists))[0] == ['["a"]', '["a", "b"]', "[]", '["c"]']
    assert refused(write(b"PAR1" + bytes(100))).startswith("l.csv: cannot be read (")


@pytest.mark.parametrize(
    ("data", "called"),
    [
        (b"\xd0\xcf\x11\xe0" + bytes(99), "an old Excel file (.xls)"),
        (b"MATLAB 5.0 MAT-file", "a MATLAB file (.mat)"),
        (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
        (b"\x80\x04\x95", "a pickle"),
        (b"\x93NUMPY", "a NumPy array (.npy)"),
        (b"ARROW1\0\0", "an Arrow file"),
        (b"SQLite format 3\0", "an SQLite database"),
        (b"<?xml version='1.0'?>", "XML or HTML"),
    ],
)
def test_other_forms_are_refused_by_their_names(write: Write, data: bytes, called: str) -> None:
    assert refused(write(data)) == f"l.csv: is {called}; {NEEDED}. Export it as CSV."


def test_a_first_row_that_names_a_file_is_data(write: Write) -> None:
    table = label_table(write("x.jpg,cat\n" + text(",", header=False)), KEYS, (), Findings(skip=True))
    assert table.findings.skipped == [{"key": "l.csv line 1", "reason": "no image is called x.jpg."}]
    codes = "6a7be1b7,eel\n78dde6c4,cat\n3c6ef362,dog\n"
    assert "line 1: no image is called 6a7be1b7;" in refused(
        write(codes), keys=["78dde6c4.jpg", "3c6ef362.jpg"]
    )
    for first in ("9,cat", "x,dog"):
        assert f"line 1: no image is called {first[0]};" in refused(
            write(f"{first}\n" + "".join(f"{k},{name}\n" for k, name in enumerate(NAMES, 1)))
        )
    for first in ("0,1", "id,species", "image_id,cat_or_dog"):
        assert read(write(f"{first}\n" + text(",", header=False)))[0] == NAMES


def test_columns_without_a_header_are_chosen_by_number(write: Write) -> None:
    path = write("".join(f"{file},{name},x\n" for file, name in ROWS))
    assert refused(path) == (
        "l.csv line 1: 3 columns, 0 (cat/1.jpg), 1 (cat), 2 (x); two are expected, file and label. Choose the label "
        "column with labels=Labels(column=)."
    )
    assert read(path, "1") == read(path, "1", file_column="0") == (NAMES, [])
    assert (
        refused(path, "label")
        == "l.csv line 1: no column label; the columns are 0 (cat/1.jpg), 1 (cat), 2 (x). Pass one of them."
    )


def test_numbers_that_count_the_rows_are_no_labels(write: Write) -> None:
    path = write("".join(f"{k} {file}\n" for k, file in enumerate(KEYS, 1)), "images.txt")
    assert refused(path) == (
        "images.txt line 1: 2 columns, 0 (1), 1 (cat/1.jpg); two are expected, file and label (0 counts the rows). "
        "Leave out labels= if it has no labels, or remove lines above its header."
    )
    assert read(path, "0") == (["1", "2", "3", "4"], ["images.txt: the column 1 names the images."])


def test_numbers_that_may_name_other_images_are_an_error(write: Write) -> None:
    keys, ids = [f"{number}.jpg" for number in range(1, 5)], (4, 2, 1, 3)
    rows = [(number, image, NAMES[image - 1]) for number, image in enumerate(ids, 1)]
    path = write("id,image,label\n" + "".join(f"{a},{b},{c}\n" for a, b, c in rows))
    assert refused(path, "label", keys=keys) == (
        "l.csv line 1: the columns id and image name images (1, 4); labels belong to those of one. "
        "Choose it with labels=Labels(file_column=)."
    )
    assert read(path, "label", keys=keys, file_column="image")[0] == NAMES
    for header in (",image,label\n", "label,image\n", ""):
        shown = slice(0 if header[:1] == "," else 1, 3)
        lines = [row[shown] if shown.start == 0 else (row[2], row[1]) for row in rows]
        assert (
            read(write(header + "".join(",".join(map(str, line)) + "\n" for line in lines)), keys=keys)[0]
            == NAMES
        )


def test_names_with_blanks_and_several_labels(write: Write) -> None:
    assert read(write("my cat.jpg 3\ndog.jpg 4\n"), keys=["dog.jpg", "my cat.jpg"])[0] == ["4", "3"]
    assert read(write("a.jpg cat dog\nb.jpg cat\n"), keys=["a.jpg", "b.jpg"])[0] == ["cat dog", "cat"]


COMPOSED, DECOMPOSED = "caf\u00e9", "cafe\u0301"


@pytest.mark.parametrize(("key", "name"), [(COMPOSED, DECOMPOSED), (DECOMPOSED, COMPOSED)])
def test_names_match_in_any_unicode_form(write: Write, key: str, name: str) -> None:
    keys = ["b/1.jpg", f"{key}/{key}.jpg"]
    for called in (f"{name}/{name}.jpg", f"{name}.jpg", name):
        assert read(write(f"{called},x\nb/1.jpg,y\n"), keys=keys)[0] == ["y", "x"]
    behind = label_table(write(f"/data/{name}/1.jpg,x\n"), ["1.jpg"], (), folder=f"/other/{key}")
    assert behind.images.tolist() == [0]
    path = write(f"file,{name}\n{name}.jpg,x\nb/1.jpg,y\n")
    assert label_table(path, keys, (key,)).columns == {key: ["x", "y"]}
    groups = write(f"file,label,g\nb/1.jpg,x,{COMPOSED}\n{name}.jpg,y,{DECOMPOSED}\n")
    beside = read_targets(Labels(groups, column="label"), keys, Findings(), ("g",)).beside
    assert beside["g"] == [COMPOSED] * 2


def test_a_name_of_two_files_that_differ_in_form_is_ambiguous(write: Write) -> None:
    keys = [f"{COMPOSED}.jpg", f"{DECOMPOSED}.jpg"]
    for name in (COMPOSED, DECOMPOSED):
        assert refused(write(f"{name}.jpg,x\n"), keys=keys).startswith(
            f"l.csv line 1: several images are called {name}.jpg: 'caf\u00e9.jpg' and 'cafe\\u0301.jpg'; names are paths"
        )


def test_a_name_in_another_case_is_that_of_the_only_image_and_noted(write: Write) -> None:
    keys = ["cat/1.jpg", "cat/2.jpg", "dog/3.JPG", "dog/3.jpg"]
    rows = "CAT/1.jpg,a\n2.JPG,b\ndog/3.JPG,c\ndog/3.jpg,d\n"
    note = "l.csv: 2 names in another case than the image's, as CAT/1.jpg for cat/1.jpg."
    assert read(write(rows), keys=keys) == (["a", "b", "c", "d"], [note])
    assert refused(write(f"{rows}Dog/3.jpg,e\n"), keys=keys).startswith(
        "l.csv line 5: several images are called Dog/3.jpg: 'dog/3.JPG' and 'dog/3.jpg'; names are paths"
    )


def test_lists_of_numbers_are_no_classes(write: Write) -> None:
    path = write('file,bbox\na.jpg,"[1.0, 2, 5e1, -6]"\nb.jpg,"[2,3]"\n')
    assert refused(path, keys=["a.jpg", "b.jpg"]) == (
        "l.csv: bbox holds lists of numbers, as of boxes ([1.0, 2, 5e1, -6]), no classes. Pass"
        " labels=Labels(boxes='bbox') for boxes, or labels=Labels(as_='classes') for classes."
    )
    for options in ({"as_": "classes"}, {"separator": ","}):
        assert read(path, keys=["a.jpg", "b.jpg"], **options)[0] == ["[1.0, 2, 5e1, -6]", "[2,3]"]
    assert read(path, "bbox", keys=["a.jpg", "b.jpg"])[0] == ["[1.0, 2, 5e1, -6]", "[2,3]"]


def test_a_gzip_file_is_told_by_its_content(write: Write) -> None:
    os.rename(write(gzip.compress(json.dumps(dict(ROWS)).encode())), "l.json")
    assert read("l.json")[0] == NAMES


def test_a_column_may_be_label_and_split(write: Write) -> None:
    path = write("file,kind\na.jpg,x\nb.jpg,y\n")
    table = label_table(path, ["a.jpg", "b.jpg"], ["kind"], Findings(), beside=["kind"])
    assert table.columns == {"kind": ["x", "y"]}


STEMS = {
    "number": str,
    "padded": "{:05d}".format,
    "word": "img_{}".format,
    "folder": lambda number: f"c{number % 3}/{number}",
    "code": lambda number: f"{number * 2654435761 % 2**32:08x}",
    "blanks": "my picture {}".format,
}
LABELS = {
    "numbers": ["0", "1", "2", "3"],
    "names": ["cat", "dog", "eel"],
    "amounts": ["0.5", "1.25"],
    "words": ["big cat", "dog"],
}


@given(st.data())
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_labels_of_any_table_are_right_or_refused(write: Write, data: st.DataObject) -> None:
    def draw(*values: Any) -> Any:
        return data.draw(st.sampled_from(values))

    stem, labels = STEMS[draw(*STEMS)], LABELS[draw(*LABELS)]
    numbers = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=12, unique=True))
    keys = [stem(number) + ".jpg" for number in numbers]
    truth = {key: draw(*labels) for key in keys}
    suffix, separator, header, missing = (
        draw(True, False),
        draw(*",\t;| "),
        draw(True, False),
        draw(True, False),
    )
    named = [*([stem(99) + ".jpg"] if missing else []), *keys]
    cells = [key if suffix else key.rpartition("/")[2][:-4] for key in named]
    columns = [["file", *cells], ["label", *(truth.get(key, labels[0]) for key in named)]]
    columns = columns if draw(True, False) else columns[::-1]
    if draw(True, False):
        columns.insert(0, [draw("", "id"), *map(str, range(len(named)))])
    rows = list(zip(*columns, strict=True))[not header :]
    findings = Findings(skip=missing)
    try:
        table = label_table(write("".join(separator.join(row) + "\n" for row in rows)), keys, (), findings)
    except SourceError:
        return
    found = table.columns[""]
    assert {keys[image]: found[row] for row, image in enumerate(table.images.tolist())} == truth
    assert len(findings.skipped) == missing


def test_lists_that_begin_with_their_number_of_rows(write: Write) -> None:
    rows = "\n".join(f"{key}  {number % 2 * 2 - 1:2d} {name}" for number, (key, name) in enumerate(ROWS))
    path = write(f"4\nMale Kind \n{rows}\n", "list_attr.txt")
    assert read(path, "Kind") == (NAMES, [])
    assert read(path, "Male")[0] == ["-1", "1", "-1", "1"]
    assert read(write(f"4\nimage_id Male Kind\n{rows}\n", "list_attr.txt"), "Kind") == (NAMES, [])
    assert "no column Kind" in refused(write(f"5\nMale Kind\n{rows}\n", "list_attr.txt"), "Kind")
