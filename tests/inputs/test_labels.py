"""What labels may be, and how rows of a CSV find their images."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.errors import SourceError
from packer.inputs.labels import (
    Column,
    LabelTable,
    finite_numbers,
    multi_hot,
    number_columns,
    number_labels,
)

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
        table = LabelTable(path, keys, chosen)
        table.one_an_image(list(table.columns.values()), "label")
    return str(error.value)


# Rules


def test_whole_numbers_stay_int64() -> None:
    labels, classes = number_labels(
        "l.csv", ["5", "0", "07", "9223372036854775807", "0" * 5000 + "1"], range(5)
    )
    assert labels.dtype == np.int64
    assert labels.tolist() == [5, 0, 7, 2**63 - 1, 1]
    assert classes is None


@pytest.mark.parametrize("texts", [["0.5", "3", "1e3"], ["-1", "0", "1.5"], ["+.5", "2.", "-1E-2"]])
def test_other_numbers_are_float32(texts: list[str]) -> None:
    labels, classes = number_labels("l.csv", texts, range(3))
    assert labels.dtype == np.float32
    assert labels.tolist() == np.array(texts, np.float32).tolist()
    assert classes is None


def test_class_names_are_numbered_in_sorted_order() -> None:
    labels, classes = number_labels("l.csv", ["wolf", "ant", "7", "wolf"], range(4))
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
        number_labels("l.csv", texts, [1, 2, 3])
    assert str(error.value) == (
        f"l.csv {message}; finite numbers, whole ones from -2**63 to 2**63 - 1, or class names, are accepted. "
        "Correct it, or pass --on-error skip."
    )


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["cat", "1e3", "dog"], "line 2: the label is 1e3, and cat in line 1"),
        (["1", "0.5", "dog"], "line 3: the label is dog, and 0.5 in line 2"),
    ],
)
def test_names_and_fractions_do_not_mix(texts: list[str], message: str) -> None:
    with pytest.raises(SourceError) as error:
        number_labels("l.csv", texts, [1, 2, 3])
    assert str(error.value) == (
        f"l.csv {message}; numbers or class names are accepted, not both. Correct one, or pass --label-as classes."
    )


def test_without_regression_only_whole_numbers_and_names_are_taken() -> None:
    with pytest.raises(SourceError) as error:
        number_labels("l.csv", ["1", "-1.5"], [4, 5], column="kind", regression=False)
    assert str(error.value) == (
        "l.csv line 5: kind is -1.5; whole numbers from -2**63 to 2**63 - 1, or class names, are accepted. "
        "Correct it, or pass --on-error skip."
    )
    assert number_labels("l.csv", ["1", "2"], [4, 5], regression=False)[0].tolist() == [1, 2]


@given(st.lists(st.text(st.characters(categories=["L", "N", "Zs"]), max_size=6), min_size=1, max_size=8))
def test_numbered_names_lead_back_to_the_names(texts: list[str]) -> None:
    try:
        labels, classes = number_labels("l.csv", texts, list(range(len(texts))))
    except SourceError:
        return
    found = [str(label) if classes is None else classes[label] for label in labels]
    assert found == [str(int(text)) if classes is None else text for text in texts]


def test_several_columns_are_float32() -> None:
    values = number_columns("l.csv", [["1", "2.5"], ["-3", "4"]], range(2), ["a", "b"])
    assert values.dtype == np.float32
    assert values.tolist() == [[1, -3], [2.5, 4]]


def test_several_columns_of_zeros_and_ones_are_uint8() -> None:
    values = number_columns("l.csv", [["1", "0"], ["0.0", "1.0"]], range(2), ["a", "b"])
    assert values.dtype == np.uint8
    assert values.tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize(
    ("text", "found"), [("", "empty"), ("nan", "nan"), ("x", "x"), ("1e39", "1e39"), ("1_0", "1_0")]
)
def test_several_columns_hold_finite_numbers(text: str, found: str) -> None:
    with pytest.raises(SourceError) as error:
        number_columns("l.csv", [["1", "2"], ["3", text]], [8, 9], ["a", "b"])
    assert str(error.value) == f"l.csv line 9: b is {found}; finite numbers are accepted. Correct it."


def test_missing_numbers_are_nan_where_that_is_allowed() -> None:
    values = finite_numbers("l.csv", ["1", ""], [1, 2], "x", missing=True)
    assert values[0] == 1
    assert np.isnan(values[1])


def test_multi_hot_cells_are_parted_by_bars_or_semicolons() -> None:
    hot, classes = multi_hot("l.csv", ["fog | rain", "", "sun;fog;", "sun"], range(4), "weather")
    assert classes == ["fog", "rain", "sun"]
    assert hot.dtype == np.uint8
    assert hot.tolist() == [[1, 1, 0], [0, 0, 0], [1, 0, 1], [0, 0, 1]]


def test_multi_hot_numbers_are_sorted_as_numbers() -> None:
    assert multi_hot("l.csv", ["10|9", "2|010", "0"], range(3), "x")[1] == ["0", "2", "9", "010", "10"]


def test_multi_hot_needs_a_name() -> None:
    with pytest.raises(SourceError) as error:
        multi_hot("l.csv", ["", "|"], [1, 2], "weather")
    assert str(error.value) == "l.csv: weather is empty in all 2 rows; class names are needed. Add some."


# Columns


@given(st.lists(st.text(st.characters(categories=["L", "N", "Zs", "Cs"]), max_size=6)))
def test_a_column_is_the_list_of_its_cells(texts: list[str]) -> None:
    texts = [text.encode("utf-8", "replace").decode() for text in texts]
    column = Column()
    for text in texts:
        column.append(text)
    assert list(column) == texts
    assert column.filled().tolist() == [bool(text) for text in texts]
    rows = np.arange(0, len(texts), 2)
    assert list(column.only(rows)) == texts[::2]


def test_a_column_keeps_bytes_that_are_no_utf_8() -> None:
    column = Column()
    column.append("caf\udce9")
    assert column[0] == "caf\udce9"


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
    table = LabelTable(write(text), KEYS, ())
    (column,) = table.columns.values()
    rows = table.one_an_image([column], "label")
    assert [column[row] for row in rows] == ["5", "0", "07"]


def test_chosen_columns_are_found_by_the_header(write: Write) -> None:
    table = LabelTable(write("file, a ,b,c\n3,x,y,z\n\n1,p,q,r\n"), KEYS, ("c", "a"))
    assert {name: list(column) for name, column in table.columns.items()} == {
        "c": ["z", "r"],
        "a": ["x", "p"],
    }
    assert table.images.tolist() == [2, 0]
    assert table.lines.tolist() == [2, 4]


def test_the_file_column_is_the_first_that_has_a_name(write: Write) -> None:
    table = LabelTable(write(",file,a\n0,cat/2.png,x\n1,dog/3.jpg,y\n"), KEYS, ("a",))
    assert table.images.tolist() == [1, 2]


def test_names_that_are_not_utf_8_are_found(write: Write) -> None:
    assert LabelTable(write(b"caf\xe9.jpg,3\n"), ["caf\udce9.jpg"], ()).images.tolist() == [0]


@pytest.mark.parametrize(("row", "count"), [("1", 1), ("1,0,extra", 3)])
def test_two_columns_are_read(write: Write, row: str, count: int) -> None:
    assert refused(write(f"file,label\n{row}\n")) == (
        f"labels.csv line 2: {count} columns; two are read, file and label. Remove the others, or name the label's with --label."
    )


def test_rows_are_as_long_as_the_header(write: Write) -> None:
    assert refused(write("file,a,b\n1,2,3\n2,3\n"), KEYS, "a") == (
        "labels.csv line 3: 2 columns; the header has 3. Correct it."
    )


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("file,b", "no column a"),
        ("file,a,a", "2 columns are called a"),
        ("cat/1.jpg,5", "no column a"),
        ("", "no column a"),
    ],
)
def test_chosen_columns_must_be_there_once(write: Write, header: str, found: str) -> None:
    assert refused(write(header), KEYS, "a") == (
        f"labels.csv line 1: {found}; the first row names the columns, here {header.replace(',', ', ')}. "
        "Correct it, or pass others."
    )


def test_the_file_column_cannot_be_chosen(write: Write) -> None:
    assert refused(write("file,a\n1,2\n"), KEYS, "a", "file") == (
        "labels.csv line 1: file is the first column; that one names the files. Name the one that does with --label-file-column."
    )


@pytest.mark.parametrize(
    "name", ["cow/9.jpg", "../cat/1.jpg", "/cat/1.jpg", "dog/1.jpg", "/etc/passwd", "cat/../../cat/1.jpg", ""]
)
@pytest.mark.parametrize("chosen", [(), ("label",)])
def test_unknown_names_are_refused(write: Write, name: str, chosen: tuple[str, ...]) -> None:
    assert refused(write(f"file,label\n1,0\n{name},1\n"), KEYS, *chosen) == (
        f"labels.csv line 3: no image is called {name}; paths below the images' folder are read, and unique names "
        "without folder or extension. Correct or remove the row, or pass --on-error skip."
    )


def test_an_ambiguous_name_is_refused(write: Write) -> None:
    keys = ["a/1.jpg", "b/1.png", "b/2.png"]
    assert refused(write("2,0\n1,1\n"), keys) == (
        "labels.csv line 2: 1 could be a/1.jpg or b/1.png; a name without extension must be unique. "
        "Write the whole path."
    )


@pytest.mark.parametrize(
    ("text", "others"), [("1,0\n3,1\n", ""), ("3,1\n", " and 1 more"), ("", " and 2 more")]
)
def test_images_without_a_row_are_refused(write: Write, text: str, others: str) -> None:
    first = "cat/2.png" if not others else "cat/1.jpg"
    assert refused(write(text)) == (
        f"labels.csv: no label for {first}{others}; every image needs one. Add the rows, or pass --on-error skip."
    )


def test_rows_that_disagree_are_refused(write: Write) -> None:
    assert refused(write("file,label\n1,0\n2,1\ncat/1.jpg,2\n3,0\n")) == (
        "labels.csv line 4: cat/1.jpg has the label 2, and 0 in line 2; each image has one. Remove one of the rows."
    )


def test_a_missing_file_is_a_sentence() -> None:
    assert refused("none.csv") == (
        "none.csv: cannot be read (No such file or directory); a CSV of files and labels is needed. Check the path."
    )


def test_broken_quotes_are_a_sentence(write: Write) -> None:
    assert refused(write('1,0\n2,"0\n')).startswith("labels.csv line 2: not CSV (")
