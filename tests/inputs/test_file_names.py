from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.errors import PackerError, SourceError, UsageError
from packer.inputs.file_names import (
    IMAGE_EXTENSIONS,
    class_folders,
    image_order,
    is_hidden,
    is_image,
    suffix_of,
)
from packer.inputs.findings import Findings


@pytest.mark.parametrize("extension", sorted(IMAGE_EXTENSIONS))
def test_images(extension: str) -> None:
    assert is_image("a" + extension)
    assert is_image("a.b" + extension.upper())


@pytest.mark.parametrize("name", ["jpg", ".jpg", "a.txt", "a.jpg.txt", "a.", ""])
def test_not_images(name: str) -> None:
    assert not is_image(name)


@pytest.mark.parametrize("name", [".a.jpg", "._a.jpg", "__MACOSX", ".git", "Thumbs.db"])
def test_hidden(name: str) -> None:
    assert is_hidden(name)
    assert not is_hidden("a" + name)


@given(st.lists(st.text("ab-/. ", min_size=1, max_size=8), max_size=12))
def test_the_order_is_by_class_then_folder_then_name(keys: list[str]) -> None:
    def parts(key: str) -> tuple[str, str, str]:
        folder, _, name = key.rpartition("/")
        return folder.partition("/")[0], folder, name

    assert [keys[index] for index in image_order(keys)] == sorted(keys, key=parts)


def test_folders_that_only_share_a_beginning_are_not_mixed() -> None:
    keys = ["a-b/1.jpg", "a/x/2.jpg", "a/3.jpg"]
    assert [keys[index] for index in image_order(keys)] == ["a/3.jpg", "a/x/2.jpg", "a-b/1.jpg"]


def test_folders_that_differ_in_unicode_form_are_one_class() -> None:
    keys = ["train/b/1.jpg", "train/caf\u00e9/2.jpg", "val/cafe\u0301/3.jpg"]
    found = Findings()
    folders = [*{key.rpartition("/")[0] for key in keys}, "train", "val", "train/cafe\u0301"]
    layout = class_folders("pets", keys, folders, findings=found)
    assert layout.labels is not None
    assert (layout.labels.tolist(), layout.classes, layout.empty) == ([0, 1, 1], ["b", "caf\u00e9"], [])
    assert found.notes == [
        "The classes 'cafe\\u0301' and 'caf\u00e9' differ only in Unicode form; they are one class."
    ]


def test_classes_are_sorted_and_numbered() -> None:
    labels, classes, splits, *_ = class_folders(
        "pets", ["cat/1.jpg", "dog/a/2.jpg", "dog/b/3.jpg"], ["dog", "cat"]
    )
    assert splits == {}
    assert labels is not None
    assert labels.dtype == "int64"
    assert labels.tolist() == [0, 1, 1]
    assert classes == ["cat", "dog"]


@pytest.mark.parametrize("folders", [[], ["notes"]])
def test_a_flat_folder_has_no_classes(folders: list[str]) -> None:
    assert class_folders("pets", ["1.jpg", "2.jpg"], folders)[:3] == (None, None, {})


def test_splits_are_laid_out_one_by_one() -> None:
    keys = ["test/cat/1.jpg", "train/cat/2.jpg", "train/dog/3.jpg"]
    folders = ["test", "train", "train/cat", "train/dog", "test/cat", "train/dog/deeper"]
    labels, classes, splits, *_ = class_folders("pets", keys, folders)
    assert labels is not None
    assert labels.tolist() == [0, 0, 1]
    assert classes == ["cat", "dog"]
    assert [(name, members.tolist()) for name, members in splits.items()] == [
        ("train", [1, 2]),
        ("test", [0]),
    ]


def test_splits_may_be_flat() -> None:
    labels, classes, splits, *_ = class_folders("pets", ["train/1.jpg", "val/2.jpg"], ["train", "val"])
    assert (labels, classes, list(splits)) == (None, None, ["train", "val"])


@pytest.mark.parametrize(
    ("first", "second", "splits"),
    [
        ("Training", "Testing", ["train", "test"]),
        ("Train", "Test", ["train", "test"]),
        ("TRAIN", "VAL", ["train", "val"]),
        ("seg_train", "seg_test", ["train", "test"]),
        ("train_images", "test_images", ["train", "test"]),
        ("train2017", "val2017", ["train", "val"]),
        ("dev", "eval", ["dev", "eval"]),
        ("Valid", "validation", ["valid", "validation"]),
    ],
)
def test_splits_are_known_by_their_names_whatever_the_case(
    first: str, second: str, splits: list[str]
) -> None:
    keys = [f"{first}/cat/1.jpg", f"{second}/cat/1.jpg", f"{second}/dog/2.jpg"]
    folders = [first, second, f"{first}/cat", f"{second}/cat", f"{second}/dog"]
    labels, classes, found, *_ = class_folders("pets", keys, folders)
    assert labels is not None
    assert (labels.tolist(), classes) == ([0, 0, 1], ["cat", "dog"])
    assert [(name, members.tolist()) for name, members in found.items()] == list(
        zip(splits, ([0], [1, 2]), strict=True)
    )


@pytest.mark.parametrize(
    ("keys", "folders", "kind", "message"),
    [
        (
            ["Train/cat/1.jpg", "training/cat/1.jpg"],
            ["Train", "training"],
            UsageError,
            "pets: two of its folders (Train, training) are the same split. Put their images into one folder.",
        ),
        (
            [],
            ["cat"],
            SourceError,
            "pets: no images found; files ending in .avif, .bmp, .gif, .jpe, .jpeg, .jpg, .pgm, .png, .ppm, .tif, .tiff, "
            ".webp are read. Check the path.",
        ),
        (
            ["0.jpg", "cat/1.jpg"],
            ["cat"],
            SourceError,
            "pets: holds images at its top (0.jpg) and in folders (cat); all or none may be in class folders. "
            "Move some, or pass labels=.",
        ),
        (
            ["test/cat/1.jpg", "train/cat/1.jpg"],
            ["train", "test", "validation", "train/cat", "test/cat"],
            SourceError,
            "pets/validation: a split without images; each needs at least one. Add some, or remove the folder.",
        ),
        (
            ["train/cat/1.jpg", "val/1.jpg"],
            ["train", "val", "train/cat"],
            SourceError,
            "pets/val: holds no class folders, but other splits do; all or no splits may. Sort its images into class folders, or pass "
            "labels=Labels(unlabeled='val').",
        ),
    ],
)
def test_what_cannot_be_packed(
    keys: list[str], folders: list[str], kind: type[PackerError], message: str
) -> None:
    with pytest.raises(kind) as error:
        class_folders("pets", keys, folders)
    assert str(error.value) == message


def test_a_class_that_is_called_like_a_split_is_a_class() -> None:
    _, classes, splits, *_ = class_folders("pets", ["cat/1.jpg", "train/1.jpg"], ["cat", "train"])
    assert (classes, splits) == (["cat", "train"], {})


def test_suffixes() -> None:
    names = ["a.HEIC", "a.tar.gz", "a", "a.of-1970-01-01-more"]
    assert [suffix_of(name) for name in names] == [".heic", ".gz", "", ""]


def test_a_split_without_class_folders_has_no_labels_where_that_is_said() -> None:
    keys = ["test/1.jpg", "test/x/2.jpg", "train/cat/1.jpg", "train/dog/1.jpg"]
    folders = {"test", "test/x", "train", "train/cat", "train/dog"}
    found = class_folders("pets", keys, folders, unlabeled=["testing"])  # as its folder may be called
    assert found.labels is not None
    assert (found.labels.tolist(), found.classes, list(found.splits)) == (
        [-1, -1, 0, 1],
        ["cat", "dog"],
        ["train", "test"],
    )
    flat = ["test/1.jpg", "train/cat/1.jpg"]
    with pytest.raises(
        SourceError, match=r"Sort its images into class folders, or pass labels=Labels\(unlabeled='test'\)\."
    ):
        class_folders("pets", flat, {"test", "train", "train/cat"})
    with pytest.raises(
        UsageError, match=r"unlabeled='val'\) is not one of its splits; its splits are train, test\."
    ):
        class_folders("pets", flat, {"test", "train", "train/cat"}, unlabeled=["val"])
