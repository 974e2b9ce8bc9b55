from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.convert.labels import number_labels, read_labels
from packer.errors import SourceError

KEYS = ["cat/1.jpg", "cat/2.png", "dog/3.jpg"]
Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    monkeypatch.chdir(tmp_path)

    def run(text: str | bytes, name: str = "labels.csv") -> str:
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return name

    return run


def refused(path: str, keys: list[str] = KEYS) -> str:
    with pytest.raises(SourceError) as error:
        read_labels(path, keys)
    return str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "cat/1.jpg,5\ncat/2.png,0\ndog/3.jpg,7\n",
        "file,label\ndog/3.jpg,7\ncat/1.jpg,5\ncat/2.png,0",
        "\ufeffcat/1.jpg,5\r\ncat/2.png,0\r\n\r\ndog/3.jpg,7\r\n",
        '"cat/1.jpg","5"\n./cat/2.png, 0\n3,07\n',
        "1,5\n1,5\n2,0\n3,7\n",
    ],
)
def test_whole_numbers_are_taken_as_they_are(write: Write, text: str) -> None:
    labels, classes = read_labels(write(text), KEYS)
    assert labels.dtype == np.int64
    assert labels.tolist() == [5, 0, 7]
    assert classes is None


def test_class_names_are_numbered_in_sorted_order(write: Write) -> None:
    labels, classes = read_labels(write("1,wolf\n2,ant\n3,wolf\n"), KEYS)
    assert labels.tolist() == [1, 0, 1]
    assert classes == ["ant", "wolf"]


def test_names_that_are_not_utf_8_are_found(write: Write) -> None:
    labels, _ = read_labels(write(b"caf\xe9.jpg,3\n"), ["caf\udce9.jpg"])
    assert labels.tolist() == [3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,0.5\n2,1\n3,2\n", "line 1: the label is 0.5"),
        ("1,1\n2,-1\n3,2\n", "line 2: the label is -1"),
        ("1,cat\n2,1e3\n3,dog\n", "line 2: the label is 1e3"),
        ("1,cat\n2,\n3,dog\n", "line 2: the label is empty"),
        ("1,0\n2,1\n3,9223372036854775808\n", "line 3: the label is 9223372036854775808"),
        ("1,0\n2,1\n3," + "9" * 30 + "\n", "line 3: the label is " + "9" * 30),
    ],
)
def test_other_labels_are_refused(write: Write, text: str, message: str) -> None:
    assert refused(write(text)) == (
        f"labels.csv {message}; whole numbers from 0 to 2**63 - 1, or class names, are accepted. Correct it."
    )


@pytest.mark.parametrize(("row", "count"), [("1", 1), ("1,0,extra", 3)])
def test_two_columns_are_read(write: Write, row: str, count: int) -> None:
    assert refused(write(f"file,label\n{row}\n")) == (
        f"labels.csv line 2: {count} columns; two are read, file and label. Remove the others."
    )


@pytest.mark.parametrize("name", ["cow/9.jpg", "../cat/1.jpg", "/cat/1.jpg", "dog/1.jpg"])
def test_unknown_names_are_refused(write: Write, name: str) -> None:
    assert refused(write(f"1,0\n{name},1\n")) == (
        f"labels.csv line 2: no image is called {name}; paths below the images' folder are read, or unique names "
        "without extension. Correct or remove the row."
    )


def test_an_ambiguous_name_is_refused(write: Write) -> None:
    keys = ["a/1.jpg", "b/1.png", "b/2.png"]
    assert refused(write("2,0\n1,1\n"), keys) == (
        "labels.csv line 2: 1 could be a/1.jpg or b/1.png; a name without extension must be unique. "
        "Write the whole path."
    )


@pytest.mark.parametrize(("text", "others"), [("1,0\n3,1\n", ""), ("3,1\n", " and 1 more")])
def test_images_without_a_row_are_refused(write: Write, text: str, others: str) -> None:
    first = "cat/2.png" if not others else "cat/1.jpg"
    assert refused(write(text)) == (
        f"labels.csv: no label for {first}{others}; every image needs one. Add the rows."
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


@given(st.lists(st.text(st.characters(categories=["L", "N", "Zs"]), max_size=6), min_size=1, max_size=8))
def test_numbered_names_lead_back_to_the_names(texts: list[str]) -> None:
    try:
        labels, classes = number_labels("l.csv", texts, list(range(len(texts))))
    except SourceError:
        return
    found = [str(label) if classes is None else classes[label] for label in labels]
    assert found == [str(int(text)) if classes is None else text for text in texts]
