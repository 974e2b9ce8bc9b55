from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.errors import PackerError, SourceError
from packer.inputs.file_names import (
    IMAGE_EXTENSIONS,
    class_folders,
    image_order,
    is_hidden,
    is_image,
    notes_on,
)


@pytest.mark.parametrize("extension", sorted(IMAGE_EXTENSIONS))
def test_images(extension: str) -> None:
    assert is_image("a" + extension)
    assert is_image("a.b" + extension.upper())


@pytest.mark.parametrize("name", ["jpg", ".jpg", "a.txt", "a.jpg.txt", "a.", ""])
def test_not_images(name: str) -> None:
    assert not is_image(name)


@pytest.mark.parametrize("name", [".a.jpg", "._a.jpg", "__MACOSX", ".git"])
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


def test_classes_are_sorted_and_numbered() -> None:
    labels, classes, splits = class_folders(
        "pets", ["cat/1.jpg", "dog/a/2.jpg", "dog/b/3.jpg"], ["dog", "cat"]
    )
    assert splits == {}
    assert labels is not None
    assert labels.dtype == "int64"
    assert labels.tolist() == [0, 1, 1]
    assert classes == ["cat", "dog"]


@pytest.mark.parametrize("folders", [[], ["notes"]])
def test_a_flat_folder_has_no_classes(folders: list[str]) -> None:
    assert class_folders("pets", ["1.jpg", "2.jpg"], folders) == (None, None, {})


def test_splits_are_laid_out_one_by_one() -> None:
    keys = ["test/cat/1.jpg", "train/cat/2.jpg", "train/dog/3.jpg"]
    folders = ["test", "train", "train/cat", "train/dog", "test/cat", "train/dog/deeper"]
    labels, classes, splits = class_folders("pets", keys, folders)
    assert labels is not None
    assert labels.tolist() == [0, 0, 1]
    assert classes == ["cat", "dog"]
    assert [(name, members.tolist()) for name, members in splits.items()] == [
        ("train", [1, 2]),
        ("test", [0]),
    ]


def test_splits_may_be_flat() -> None:
    labels, classes, splits = class_folders("pets", ["train/1.jpg", "val/2.jpg"], ["train", "val"])
    assert (labels, classes, list(splits)) == (None, None, ["train", "val"])


@pytest.mark.parametrize(
    ("keys", "folders", "kind", "message"),
    [
        (
            [],
            ["cat"],
            SourceError,
            "pets: no images found; files ending in .avif, .bmp, .gif, .jpe, .jpeg, .jpg, .pgm, .png, .ppm, .tif, .tiff, "
            ".webp are read. Check the path.",
        ),
        (
            ["cat/1.jpg"],
            ["cat", "dog", "eel"],
            SourceError,
            "pets/dog: a class folder without images; each needs at least one. Add some, remove the folder, or pass "
            "on_error='skip'.",
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
            "pets/validation: a split without images; each needs some. Add some, or remove the folder.",
        ),
        (
            ["train/cat/1.jpg", "val/1.jpg"],
            ["train", "val", "train/cat"],
            SourceError,
            "pets/val: holds no class folders, as other splits do; all or none may. Sort its images into classes.",
        ),
        (
            ["train/cat/1.jpg"],
            ["train", "train/cat", "train/dog"],
            SourceError,
            "pets/train/dog: a class folder without images; each needs at least one. Add some, remove the folder, or pass "
            "on_error='skip'.",
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
    _, classes, splits = class_folders("pets", ["cat/1.jpg", "train/1.jpg"], ["cat", "train"])
    assert (classes, splits) == (["cat", "train"], {})


@pytest.mark.parametrize(
    ("keys", "note"),
    [
        (
            ["a/1.jpg", "a/1.png", "b/1.jpg"],
            "a/1.jpg and a/1.png differ only in their extension, and both are packed.",
        ),
        (
            ["a/1.jpg", "a/1.png", "b/2.gif", "b/2.jpg"],
            "a/1.jpg and a/1.png differ only in their extension, and both are packed; there are 2 such pairs.",
        ),
    ],
)
def test_twins_are_noted(keys: list[str], note: str) -> None:
    assert notes_on(keys, True, ["a", "b"]) == [note]


def test_other_notes() -> None:
    assert notes_on(["1.jpg"], False, None) == [
        "The images are not in class folders, so the pack has no labels; pass labels= to add some."
    ]
    assert notes_on(["a/1.jpg"], True, ["a"]) == ["All images are in one class folder (a)."]
    assert notes_on(["a/1.jpg", "b/1.jpg"], True, ["a", "b"]) == []
