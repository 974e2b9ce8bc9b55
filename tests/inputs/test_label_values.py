"""What labels may be, and how rows of a CSV find their images."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.errors import SourceError, UsageError
from packer.inputs.findings import Findings
from packer.inputs.label_options import Labels
from packer.inputs.label_values import (
    CheckedRows,
    finite_numbers,
    multi_hot,
    number_columns,
    number_labels,
    split_names,
)
from tests.inputs.named_images import label_table

KEYS = ["cat/1.jpg", "cat/2.png", "dog/3.jpg"]
Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    monkeypatch.chdir(tmp_path)

    def run(text: str | bytes, name: str = "labels.csv") -> str:
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return name

    return run


def refused(path: str, keys: list[str] = KEYS, *chosen: str) -> str:
    with pytest.raises(SourceError) as error:
        table = label_table(path, keys, chosen)
        table.one_an_image(list(table.columns.values()), "label")
    return str(error.value)


# Rules


def test_whole_numbers_with_leading_zeros_are_names() -> None:
    texts = ["007", "7", "10", "007"]
    rows = CheckedRows("l.csv", range(4))
    labels, classes = number_labels(rows, texts, column="code")
    assert (labels.tolist(), classes) == ([0, 2, 1, 0], ["007", "10", "7"])
    assert rows.findings.notes == []
    for names, expected in ((["007", "x"], ["007", "x"]), (["0" * 5000 + "1"], ["0" * 5000 + "1"])):
        assert number_labels(CheckedRows("l.csv", range(4)), names)[1] == expected
    rows = CheckedRows("l.csv", range(4))
    labels, classes = number_labels(rows, texts, label_as="classes")
    assert (labels.tolist(), classes, rows.findings.notes) == ([0, 2, 1, 0], ["007", "10", "7"], [])
    assert number_labels(rows, texts, label_as="float")[0].tolist() == [7, 7, 10, 7]
    numbered = number_labels(rows, ["002", "1"], names=["a", "b", "c"])
    assert (numbered[0].tolist(), numbered[1]) == ([2, 1], ["a", "b", "c"])
    with pytest.raises(
        SourceError, match=r"line 1: the label is 0\.5, but 007 in line 0; numbers or class names"
    ):
        number_labels(rows, ["007", "0.5"])


def test_numbers_that_float32_makes_equal_are_noted() -> None:
    rows = CheckedRows("l.csv", range(3))
    number_labels(rows, ["123456789.123", "1.5", "123456789.456"])
    assert rows.findings.notes[:1] == [
        "the label is stored as float32, which makes 1 of 3 distinct numbers equal to others. If that matters, subtract "
        "a common offset first."
    ]
    rows = CheckedRows("l.csv", range(2))
    number_columns(rows, {"a": ["1", "2.5"], "b": ["16777217", "16777216"]})
    assert [note.partition(" is stored")[0] for note in rows.findings.notes] == ["b"]


def test_class_names_are_numbered_in_sorted_order() -> None:
    labels, classes = number_labels(CheckedRows("l.csv", range(4)), ["wolf", "ant", "7", "wolf"])
    assert labels.dtype == np.int64
    assert labels.tolist() == [2, 1, 0, 2]
    assert classes == ["7", "ant", "wolf"]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["cat", "", "dog"], "line 2: the label is empty"),
        (["1", "", "2"], "line 2: the label is empty"),
        (["0.5", "nan", "2"], "line 2: the label is nan"),
        (["0.5", "2", "-Infinity"], "line 3: the label is -Infinity"),
        (["cat", "NaN", "dog"], "line 2: the label is NaN"),
        (["0", "1", "9223372036854775808"], "line 3: the label is 9223372036854775808"),
        (["0", "1", "9" * 30], "line 3: the label is " + "9" * 30),
        (["0", "0.5", "-4e38"], "line 3: the label is -4e38"),
    ],
)
def test_labels_that_are_refused(texts: list[str], message: str) -> None:
    with pytest.raises(SourceError) as error:
        number_labels(CheckedRows("l.csv", [1, 2, 3]), texts)
    assert str(error.value) == (
        f"l.csv {message}; finite numbers, whole numbers from -2**63 to 2**63 - 1, or class names, are accepted. "
        "Correct it, or pass on_error='skip'."
    )


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["cat", "1e3", "dog"], "line 2: the label is 1e3, but cat in line 1"),
        (["1", "0.5", "dog"], "line 3: the label is dog, but 0.5 in line 2"),
    ],
)
def test_names_and_fractions_do_not_mix(texts: list[str], message: str) -> None:
    with pytest.raises(SourceError) as error:
        number_labels(CheckedRows("l.csv", [1, 2, 3]), texts)
    assert str(error.value) == (
        f"l.csv {message}; numbers or class names are accepted, not both. Correct one of them, or pass labels=Labels(as_='classes')."
    )


def test_without_regression_only_whole_numbers_and_names_are_taken() -> None:
    with pytest.raises(SourceError) as error:
        number_labels(CheckedRows("l.csv", [4, 5]), ["1", "-1.5"], column="kind", regression=False)
    assert str(error.value) == (
        "l.csv line 5: kind is -1.5; whole numbers from -2**63 to 2**63 - 1, or class names, are accepted. "
        "Correct it, or pass on_error='skip'."
    )
    assert number_labels(CheckedRows("l.csv", [4, 5]), ["1", "2"], regression=False)[0].tolist() == [1, 2]


@given(st.lists(st.text(st.characters(categories=["L", "N", "Zs"]), max_size=6), min_size=1, max_size=8))
def test_numbered_names_lead_back_to_the_names(texts: list[str]) -> None:
    try:
        labels, classes = number_labels(CheckedRows("l.csv", list(range(len(texts)))), texts)
    except SourceError:
        return
    found = [str(label) if classes is None else classes[label] for label in labels]
    assert found == [str(int(text)) if classes is None else text for text in texts]


def test_several_columns_are_float32() -> None:
    values = number_columns(CheckedRows("l.csv", range(2)), {"a": ["1", "2.5"], "b": ["-3", "4"]})
    assert values.dtype == np.float32
    assert values.tolist() == [[1, -3], [2.5, 4]]


def test_several_columns_of_zeros_and_ones_are_uint8() -> None:
    values = number_columns(CheckedRows("l.csv", range(2)), {"a": ["1", "0"], "b": ["0.0", "1.0"]})
    assert values.dtype == np.uint8
    assert values.tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize(
    ("text", "found"), [("", "empty"), ("nan", "nan"), ("x", "x"), ("1e39", "1e39"), ("1_0", "1_0")]
)
def test_several_columns_hold_finite_numbers(text: str, found: str) -> None:
    with pytest.raises(SourceError) as error:
        number_columns(CheckedRows("l.csv", [8, 9]), {"a": ["1", "2"], "b": ["3", text]})
    assert (
        str(error.value)
        == f"l.csv line 9: b is {found}; finite numbers are accepted. Correct it, or pass on_error='skip'."
    )


def test_missing_numbers_are_nan_where_that_is_allowed() -> None:
    values = finite_numbers(CheckedRows("l.csv", [1, 2]), {"x": ["1", ""]}, missing=True)[:, 0]
    assert values[0] == 1
    assert np.isnan(values[1])


def test_multi_hot_cells_are_parted() -> None:
    hot, classes = multi_hot(
        CheckedRows("l.csv", range(4)), ["fog | rain", "", "sun|fog|", "sun"], "weather", "|"
    )
    assert classes == ["fog", "rain", "sun"]
    assert hot.dtype == np.uint8
    assert hot.tolist() == [[1, 1, 0], [0, 0, 0], [1, 0, 1], [0, 0, 1]]


def test_multi_hot_numbers_are_sorted_as_numbers() -> None:
    assert multi_hot(CheckedRows("l.csv", range(3)), ["10|9", "2|010", "0"], "x", "|")[1] == [
        "0",
        "2",
        "9",
        "010",
        "10",
    ]


def test_multi_hot_needs_a_name() -> None:
    with pytest.raises(SourceError) as error:
        multi_hot(CheckedRows("l.csv", range(2)), ["", "|"], "weather", "|")
    assert str(error.value) == "l.csv: weather is empty in all 2 rows; class names are needed. Add some."


# Tables


@pytest.mark.parametrize(
    "text",
    [
        "cat/1.jpg,5\ncat/2.png,0\ndog/3.jpg,07\n",
        "file,label\ndog/3.jpg,07\ncat/1.jpg,5\ncat/2.png,0",
        "\ufeffcat/1.jpg,5\r\ncat/2.png,0\r\n\r\ndog/3.jpg,07\r\n",
        '"cat/1.jpg","5"\n./cat/2.png, 0\n3,07\n',
        "1,5\n1,5\n2,0\n3,07\n",
    ],
)
def test_two_columns_need_no_header(write: Write, text: str) -> None:
    table = label_table(write(text), KEYS, ())
    (column,) = table.columns.values()
    rows = table.one_an_image([column], "label")
    assert [column[row] for row in rows] == ["5", "0", "07"]


def test_chosen_columns_are_found_by_the_header(write: Write) -> None:
    table = label_table(write("file, a ,b,c\n3,x,y,z\n\n1,p,q,r\n"), KEYS, ("c", "a"))
    assert {name: list(column) for name, column in table.columns.items()} == {
        "c": ["z", "r"],
        "a": ["x", "p"],
    }
    assert table.images.tolist() == [2, 0]
    assert table.lines.tolist() == [2, 4]


def test_the_file_column_is_the_one_that_names_most_images(write: Write) -> None:
    for text, columns in (
        (",file,a\n0,cat/2.png,x\n1,dog/3.jpg,y\n", ("a",)),
        ("a,file\n1,cat/2.png\n2,dog/3.jpg\n", ()),  # 1 and 2 are names without extension, too
        ("7,cat/2.png,x\n8,dog/3.jpg,y\n9,cat/2.png,x\n", ()),
    ):
        path = write(text)
        table = label_table(path, KEYS, columns)
        assert table.images.tolist()[:2] == [1, 2]
        name = "file" if "file" in text else "1"
        assert table.findings.notes == [f"labels.csv: the column {name} names the images."]
        if columns:
            assert label_table(path, KEYS, columns, file_column="file").findings.notes == []
    assert "no image is called dog/1.jpg" in refused(write("dog/1.jpg,1\ndog/2.jpg,2\n"), KEYS)
    assert refused(write("a,b,same\ncat/1.jpg,cat/2.png,0\ncat/2.png,dog/3.jpg,1\n"), KEYS, "same") == (
        "labels.csv line 1: the columns a and b name images (cat/1.jpg, cat/2.png); labels belong to those of one. "
        "Choose it with labels=Labels(file_column=)."
    )


def test_names_that_are_not_utf_8_are_found(write: Write) -> None:
    assert label_table(write(b"caf\xe9.jpg,3\n"), ["caf\udce9.jpg"], ()).images.tolist() == [0]


@pytest.mark.parametrize(("row", "count"), [("1", "1 column"), ("1,0,extra", "3 columns")])
def test_two_columns_are_read(write: Write, row: str, count: str) -> None:
    assert refused(write(f"file,label\n{row}\n")) == (
        f"labels.csv line 2: {count}; the first row has 2. Correct it, or pass on_error='skip'."
    )


def test_columns_are_listed_where_one_has_to_be_named(write: Write) -> None:
    assert refused(write("file,label,split\n1,0,train\n")).startswith(
        "labels.csv line 1: 3 columns, file, label, split; two are expected, file and label. Choose"
    )


def test_rows_are_as_long_as_the_header(write: Write) -> None:
    assert refused(write("file,a,b\n1,2,3\n2,3\n"), KEYS, "a") == (
        "labels.csv line 3: 2 columns; the first row has 3. Correct it, or pass on_error='skip'."
    )


@pytest.mark.parametrize(
    ("header", "found", "columns"),
    [
        ("file,b", "no column a", "file, b"),
        ("file,a,a", "2 columns are called a", "file, a, a"),
        ("cat/1.jpg,5", "no column a", "0 (cat/1.jpg), 1 (5)"),
    ],
)
def test_chosen_columns_must_be_there_once(write: Write, header: str, found: str, columns: str) -> None:
    assert refused(write(header), KEYS, "a") == (
        f"labels.csv line 1: {found}; the columns are {columns}. Pass one of them."
    )


def test_the_file_column_cannot_be_chosen(write: Write) -> None:
    assert refused(write("file,a\n1,2\n"), KEYS, "a", "file") == (
        "labels.csv line 1: file names the files; the columns are file, a. Choose another column, or pass the column of file names as "
        "labels=Labels(file_column=)."
    )


@pytest.mark.parametrize(
    "name", ["cow/9.jpg", "../cat/1.jpg", "/cat/1.jpg", "dog/1.jpg", "/etc/passwd", "cat/../../cat/1.jpg", ""]
)
@pytest.mark.parametrize("chosen", [(), ("label",)])
def test_unknown_names_are_refused(write: Write, name: str, chosen: tuple[str, ...]) -> None:
    assert refused(write(f"file,label\n1,0\n{name},1\n"), KEYS, *chosen) == (
        f"labels.csv line 3: no image is called {name}; names are paths relative to the images' folder, such as cat/1.jpg, their ends, or "
        "unique names without extension, in one of the columns file, label. Correct the row, pass labels=Labels(file_column=) for "
        "another column, or pass on_error='skip'."
    )


def test_an_ambiguous_name_is_refused(write: Write) -> None:
    keys = ["a/1.jpg", "b/1.png", "b/2.png"]
    assert refused(write("2,0\n1,1\n"), keys) == (
        "labels.csv line 2: several images are called 1; names are paths relative to the images' folder, such as a/1.jpg, their ends, or "
        "unique names without extension, in one of the columns 0, 1. Correct the row, pass labels=Labels(file_column=) for another "
        "column, or pass on_error='skip'."
    )


@pytest.mark.parametrize(("text", "others"), [("1,0\n3,1\n", ""), ("3,1\n", " and 1 more")])
def test_images_without_a_row_are_refused(write: Write, text: str, others: str) -> None:
    first = "cat/2.png" if not others else "cat/1.jpg"
    assert refused(write(text)) == (
        f"labels.csv: no label for {first}{others}; every image needs one. Add the rows, or pass on_error='skip'."
    )


def test_an_empty_csv_is_refused(write: Write) -> None:
    assert refused(write("")) == "labels.csv: holds no rows; a row for each image is needed. Add them."


def test_rows_that_disagree_are_refused(write: Write) -> None:
    assert refused(write("file,label\n1,0\n2,1\ncat/1.jpg,2\n3,0\n")) == (
        "labels.csv line 4: cat/1.jpg has the label 2, but 0 in line 2; each image has one. "
        "Remove one of the rows, or pass on_error='skip'."
    )


def test_a_missing_file_is_a_sentence() -> None:
    assert refused("none.csv") == (
        "none.csv: cannot be read (No such file or directory); labels as CSV, JSON, .xlsx or Parquet are needed. Check the path."
    )


def test_broken_quotes_are_a_sentence(write: Write) -> None:
    assert refused(write('1,0\n2,"0\n')).startswith("labels.csv line 2: not CSV (")


# What numbers are taken for


@pytest.mark.parametrize("text", ["3", "3.0", "+3", "03.", "3e0", "30e-1", ".3e1"])
def test_whole_numbers_are_whole_however_they_are_written(text: str) -> None:
    texts = [text, "-1", "0.0", "9223372036854775807", "-9223372036854775808"]
    labels, classes = number_labels(CheckedRows("l.csv", range(5)), texts)
    assert labels.dtype == np.int64
    assert labels.tolist() == [3, -1, 0, 2**63 - 1, -(2**63)]
    assert classes is None


@pytest.mark.parametrize("text", ["3.5", "1e-3", "-1E-2", "+.5", "1e30", "0.3e0"])
def test_one_number_that_is_not_whole_makes_all_float32(text: str) -> None:
    labels, classes = number_labels(CheckedRows("l.csv", range(3)), ["1", text, "-2."])
    assert labels.dtype == np.float32
    assert labels.tolist() == np.array(["1", text, "-2."], np.float32).tolist()
    assert classes is None


@pytest.mark.parametrize(
    "text", ["1e300", "1e99999999999999999999", "1" * 5000, "-9223372036854775809", "1" * 5000 + ".0"]
)
def test_numbers_beyond_every_type_are_refused(text: str) -> None:
    with pytest.raises(SourceError, match="line 2: the label is"):
        number_labels(CheckedRows("l.csv", [1, 2]), ["1", text])


def test_label_as() -> None:
    texts = ["10", "-1", "9.0", "9"]
    labels, classes = number_labels(CheckedRows("l.csv", range(4)), texts, label_as="classes")
    assert (labels.tolist(), classes) == ([2, 0, 1, 1], ["-1", "9", "10"])
    labels, classes = number_labels(CheckedRows("l.csv", range(3)), ["1.5", "x", "1e3"], label_as="classes")
    assert (labels.tolist(), classes) == ([0, 2, 1], ["1.5", "1e3", "x"])
    labels, classes = number_labels(CheckedRows("l.csv", range(4)), texts, label_as="float")
    assert (labels.dtype, labels.tolist(), classes) == (np.float32, [10, -1, 9, 9], None)
    with pytest.raises(SourceError) as error:
        number_labels(CheckedRows("l.csv", [1, 2]), ["1", "cat"], label_as="float")
    assert str(error.value) == (
        "l.csv line 2: the label is cat; finite numbers, whole numbers from -2**63 to 2**63 - 1, or class names, are accepted. "
        "Correct it, or pass on_error='skip'."
    )
    with pytest.raises(UsageError, match="is not one of 'auto', 'classes', 'float'"):
        Labels(as_="text")
    values = number_columns(CheckedRows("l.csv", [1]), {"a": ["1"], "b": ["0"]}, label_as="float")
    assert values.dtype == np.float32
    with pytest.raises(
        UsageError,
        match="label a,b: 2 columns; one column is allowed with boxes, with class names and with a separator",
    ):
        Labels(column="a,b", as_="classes")


def test_refused_labels_have_reasons_and_are_no_classes() -> None:
    rows = CheckedRows("d/l.csv", [4, 5, 6, 7], Findings(True))
    labels, classes = number_labels(rows, ["b", "", "a", "nan"])
    assert (classes, labels[[0, 2]].tolist()) == (["a", "b"], [1, 0])
    assert rows.findings.refused == {
        1: "the label is empty (l.csv line 5).",
        3: "the label is nan (l.csv line 7).",
    }
    rows = CheckedRows("l.csv", [1, 2, 3], Findings(True))
    labels, _ = number_labels(rows, ["1", "9" * 30, "2"])
    assert (labels.dtype, labels[[0, 2]].tolist(), list(rows.refused)) == (np.int64, [1, 2], [1])


# Several names in a cell


@pytest.mark.parametrize(
    ("separator", "names"),
    [
        (" ", ["a;b", "c|d,", "e"]),
        (";", ["a", "b c|d,  e"]),
        (",", ["a;b c|d", "e"]),
        ("b c", ["a;", "|d,  e"]),
    ],
)
def test_cells_are_split(separator: str, names: list[str]) -> None:
    assert split_names("a;b c|d,  e", separator) == names


# CSVs as they come


def test_tabs_part_the_cells_of_a_tsv_and_commas_those_of_other_files(write: Write) -> None:
    for text, name in (('1,"a,b"\n2,c\n3,d\n', "l.csv"), ("file\tlabel\n1\ta,b\n2\tc\n3\td", "l.TSV")):
        table = label_table(write(text, name), KEYS, ())
        (column,) = table.columns.values()
        assert (list(column), table.images.tolist()) == (["a,b", "c", "d"], [0, 1, 2])
    assert refused(write("1:a\n2:b\n")) == (
        "labels.csv line 1: 1 column, 1:a, separated by commas, tabs, semicolons, bars or blanks; two are expected, file and label. "
        "Leave out labels= if it has no labels, or remove lines above its header."
    )


def test_the_file_column_may_be_named(write: Write) -> None:
    table = label_table(write("label,id,path\nx,1,cat/2.png\ny,2,3\n"), KEYS, ("label",), file_column="path")
    assert (table.images.tolist(), list(table.columns["label"])) == ([1, 2], ["x", "y"])
    table = label_table(write("label,path\nx,1\ny,2\nz,3\n"), KEYS, (), file_column="path")
    assert (table.images.tolist(), list(table.columns[""])) == ([0, 1, 2], ["x", "y", "z"])
    for chosen, column, message in (
        ((), "path", "3 columns, a, path, b; two are expected, file and label. Choose"),
        (("a",), "file", "no column file; the columns are a, path, b. Pass one of them."),
        (("path",), "path", "path names the files; the columns are a, path, b. Choose another column, or pass the column"),
    ):  # fmt: skip
        with pytest.raises(SourceError) as error:
            label_table(write("a,path,b\nx,1,0\n"), KEYS, chosen, file_column=column)
        assert str(error.value).startswith(f"labels.csv line 1: {message}")


@pytest.mark.parametrize("name", ["1", "cat/1.jpg", "./cat/1.jpg"])
def test_paths_and_stems_find_their_image(write: Write, name: str) -> None:
    keys = ["cat/1.jpg", "cat/2.jpg", "dog/2.jpg", "dog/3.jpg", "dog/3.png"]
    table = label_table(write(f"file,x\n{name},a\ndog/3.png,b\n"), keys, ("x",))
    assert table.images.tolist() == [0, 4]
    for other in ("cat/1", "1.png"):
        assert f"no image is called {other};" in refused(write(f"file,x\n{other},a\n"), keys, "x")
    assert refused(write("file,x\n2,a\n"), keys, "x") == (
        "labels.csv line 2: several images are called 2; names are paths relative to the images' folder, such as cat/1.jpg, their ends, "
        "or unique names without extension, in one of the columns file, x. Correct the row, pass labels=Labels(file_column=) for another "
        "column, or pass on_error='skip'."
    )


@pytest.mark.parametrize("before", ["photos/", "/home/me/data/photos/", "../photos/photos/", "C:\\photos\\"])
@pytest.mark.parametrize("folder", ["/mnt/photos", "photos.tar.gz"])
def test_names_are_found_behind_the_name_of_their_folder(write: Write, before: str, folder: str) -> None:
    names = [before + (key.replace("/", "\\") if "\\" in before else key) for key in reversed(KEYS)]
    for header in ("file,x\n", ""):
        text = header + "".join(f"{name},a\n" for name in names)
        table = label_table(write(text), KEYS, (), folder=folder)
        assert (table.images.tolist(), table.findings.notes) == ([2, 1, 0], [])
        assert f"no image is called {names[0]};" in refused(write(text), KEYS)


@pytest.mark.parametrize("name", ["cat\\2.jpg", "x/cat/2.jpg", "2.jpg", "./2.jpg"])
def test_backslashes_and_ends_of_paths_find_their_image(write: Write, name: str) -> None:
    keys = ["x/cat/1.jpg", "x/cat/2.jpg", "x/dog/3.jpg"]
    table = label_table(write(f"file,a\n{name},1\nx/dog/3.jpg,0\n"), keys, ("a",))
    assert (table.images.tolist(), table.findings.notes) == ([1, 2], [])


def test_ends_of_names_that_may_be_another_image_are_refused(write: Write) -> None:
    keys = ["1.jpg", "2.jpg", "train/1.jpg"]
    for name in ("test/2.jpg", "/data/test/2.jpg", "trains/2.jpg", "train.tar/2.jpg"):
        text = f"{name},0\ntrain/2.jpg,0\n"
        with pytest.raises(SourceError, match=f"no image is called {name};"):
            label_table(write(text), keys, (), folder="/data/train")
    with pytest.raises(SourceError, match=r"several images are called train/train/1\.jpg;"):
        label_table(write("train/train/1.jpg,0\n"), keys, (), folder="/data/train")
    assert "several images are called 1.jpg;" in refused(write("1.jpg,0\n"), ["a/1.jpg", "b/1.jpg"])
    # The image called so, not the one whose name without extension it is.
    assert label_table(write("1.jpg,0\n"), ["a/1.jpg", "b/1.jpg.png"], ()).images.tolist() == [0]


def test_another_folders_image_is_not_taken(write: Write) -> None:
    assert "no image is called dog/1.jpg" in refused(write("dog/2,x\ndog/1.jpg,1\n"), KEYS)
