from __future__ import annotations

from collections.abc import Sequence

import pytest

from packer.errors import UsageError
from packer.inputs.image_names import ImageNames
from packer.inputs.label_files import ABSENT, ListedFolder, match_files, path_splits, stem_of

USUAL = {"images": "labels"}


def matched(keys: list[str], labels: list[str]) -> dict[str, str]:
    return match_files(ListedFolder("set", keys, labels), labels, USUAL, lambda folder, paths: True).matched


@pytest.mark.parametrize(
    ("image", "label"),
    [
        ("1.jpg", "1.txt"),
        ("1.jpg", "labels/1.txt"),
        ("a/1.jpg", "a/boxes/1.txt"),
        ("images/train/1.jpg", "labels/train/1.txt"),
        ("train/images/1.jpg", "train/labels/1.txt"),
        ("x/JPEGImages/1.jpg", "x/Annotations/1.txt"),
        ("photos/cats/1.jpg", "boxes/1.txt"),
        ("1.jpg", "1.jpg.json"),
    ],
)
def test_corresponding_folders(image: str, label: str) -> None:
    assert matched([image], [label]) == {image: label}


def test_the_nearest_folder_is_that_of_the_images() -> None:
    keys = ["images/train/1.jpg", "images/val/1.jpg", "1.jpg"]
    labels = ["labels/train/1.txt", "labels/val/1.txt", "1.txt", "images/train/1.txt"]
    assert matched(keys, labels) == {
        "images/train/1.jpg": "labels/train/1.txt",
        "images/val/1.jpg": "labels/val/1.txt",
        "1.jpg": "1.txt",
    }


def test_images_of_another_split_have_no_labels() -> None:
    keys = ["photos/train/1.jpg", "photos/test/1.jpg"]
    assert matched(keys, ["boxes/train/1.txt"]) == {"photos/train/1.jpg": "boxes/train/1.txt"}


def test_few_equal_names_far_away_are_chance() -> None:
    keys = [f"a/b/{number}.jpg" for number in range(9)]
    assert matched(keys, ["x/y/0.txt", "x/y/77.txt", "x/y/78.txt"]) == {}


def test_one_file_of_two_images_is_an_error() -> None:
    with pytest.raises(UsageError) as error:
        matched(["1.jpg", "1.png"], ["1.txt"])
    assert str(error.value) == (
        "set/1.txt: belongs to 1.jpg and to 1.png; a label file is that of one image. Rename one of them."
    )


def test_folders_of_other_content_are_tried_a_few_times() -> None:
    tried: list[list[str]] = []
    labels = [f"{folder}/{number}.txt" for folder in range(100) for number in range(50)]
    keys = [label.replace("txt", "jpg") for label in labels]

    def rejects(folder: ListedFolder, paths: Sequence[str]) -> bool:
        tried.append(list(paths))
        return False

    found = match_files(ListedFolder("set", keys, labels), labels, USUAL, rejects)
    assert found.matched == {}
    assert len(tried) == 8
    assert max(map(len, tried)) == 16


def test_splits_in_paths() -> None:
    assert {
        name: rows.tolist() for name, rows in path_splits(["a/val/1", "a/train/1", "a/val/2"]).items()
    } == {"train": [1], "val": [0, 2]}
    assert path_splits(["train/1", "train/2"]) == {}
    assert path_splits(["train/1", "2"]) == {}
    assert path_splits(["train/1", "other/2"]) == {}
    assert path_splits([]) == {}


def test_names_without_a_folder() -> None:
    assert [
        ImageNames(["a/1", "b/1"], below="b/").find_listed(name) for name in ("1", "b/1", "a/1", "2")
    ] == [1, 1, 1, -1]
    index = ImageNames(["a/1", "b/1", "b/2"])
    assert [index.find_listed(name) for name in ("a/1", "./b/1", "1", "2", "x/2", "3")] == [
        0,
        1,
        ABSENT,
        2,
        2,
        ABSENT,
    ]
    assert [stem_of(path) for path in ("a/1.txt", "1.jpg.txt", "1.5.txt", "1.rf.9.jpg")] == [
        "1",
        "1",
        "1.5",
        "1.rf.9",
    ]
