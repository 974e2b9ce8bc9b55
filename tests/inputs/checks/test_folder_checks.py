from __future__ import annotations

from collections.abc import Callable

import pytest

from packer.inputs.checks.folder_checks import check_files_left_out
from tests.inputs.checks.conftest import list_folder

Examine = Callable[..., list[str]]


@pytest.mark.parametrize(
    ("keys", "classes"),
    [
        (["charts/1.jpg", "images/2.jpg", "tables/3.jpg"], []),
        (["images/1.jpg", "masks/1.png"], ["images", "masks"]),
        (["fold1/cat/1.jpg", "fold1/dog/1.jpg", "fold2/cat/2.jpg", "fold2/dog/2.jpg"], ["fold1", "fold2"]),
        (["n1/images/1.jpg", "n2/images/2.jpg"], []),  # Tiny ImageNet
        (["cat/back/1.jpg", "cat/front/1.jpg", "dog/back/2.jpg"], []),
    ],
    ids=["other names", "masks, listed", "folds, listed", "one folder in each", "views"],
)
def test_folders_that_are_classes_after_all(errors: Examine, keys: list[str], classes: list[str]) -> None:
    assert errors(keys, accepted=classes) == []


CASES = [
    (
        ["fold1/cat/1.jpg", "fold1/dog/1.jpg", "fold2/cat/2.jpg", "fold2/dog/2.jpg"],
        ["fold1", "fold2"],
        "pets: fold1 and fold2 hold the same folders (cat, dog), as parts of a dataset do; its "
        "folders would be classes. Pass one of its folders, masks by pairs={'mask': 'DIR'}, or "
        "if they are the classes, classes='fold1,fold2'.",
    ),
    (
        ["images/1.jpg", "images/2.jpg"],
        ["images", "labels"],
        "pets: images lies beside labels, which holds no images; its folders would be classes. "
        "Pass one of its folders, masks by pairs={'mask': 'DIR'}, or if they are the classes, "
        "classes='images'.",
    ),
    (
        ["images/1.jpg", "masks/1.png"],
        ["images", "masks"],
        "pets: images lies beside masks, as images beside their masks do; its folders would be "
        "classes. Pass one of its folders, masks by pairs={'mask': 'DIR'}, or if they are the "
        "classes, classes='images,masks'.",
    ),
    (
        ["train/JPEGImages/1.jpg", "train/SegmentationClass/1.png"],
        ["train", "train/Annotations", "train/JPEGImages", "train/SegmentationClass"],
        "pets/train: JPEGImages lies beside SegmentationClass, as images beside their masks do; "
        "its folders would be classes. Pass one of its folders, masks by pairs={'mask': 'DIR'}, "
        "or if they are the classes, classes='JPEGImages,SegmentationClass'.",
    ),
    (
        ["ground_truth/bent/1.png", "test/bent/1.png", "train/good/1.png"],
        ["ground_truth", "test", "train"],
        "pets: its folders test and train are called like splits, and ground_truth lies beside "
        "them; its folders would be classes. Pass one of its folders, masks by pairs={'mask': "
        "'DIR'}, or if they are the classes, classes='ground_truth,test,train'.",
    ),
    (
        ["data/Testing/cat/1.jpg", "data/Training/cat/1.jpg"],
        ["data", "data/Testing", "data/Training"],
        "pets: its only folder data holds splits (Testing, Training); its folders would be "
        "classes. Pass one of its folders, masks by pairs={'mask': 'DIR'}, or if they are the "
        "classes, classes='data'.",
    ),
    (
        ["test_images/1.jpg", "train_images/1.jpg"],
        ["test_images", "train_images"],
        "pets: its folders test_images and train_images are called like splits, and all are "
        "splits only if called train, val, test; its folders would be classes. Pass one of its "
        "folders, masks by pairs={'mask': 'DIR'}, or if they are the classes, "
        "classes='test_images,train_images'.",
    ),
    (
        ["seg_test/seg_test/sea/1.jpg", "seg_train/seg_train/sea/1.jpg"],
        ["seg_test", "seg_train"],
        "pets/seg_train: its only folder is called seg_train, like a split; its folders would "
        "be classes. Pass one of its folders, masks by pairs={'mask': 'DIR'}, or if they are the "
        "classes, classes='seg_train'.",
    ),
    (
        ["cat/1.jpg"],
        ["cat", "dog", "eel"],
        "pets/dog: a class folder without images; each needs at least one. Add some, remove the folder, or pass "
        "on_error='skip'.",
    ),
    (
        ["train/cat/1.jpg"],
        ["train", "train/cat", "train/dog"],
        "pets/train/dog: a class folder without images; each needs at least one. Add some, remove the folder, or pass "
        "on_error='skip'.",
    ),
]


@pytest.mark.parametrize(("keys", "folders", "message"), CASES)
def test_folders_that_are_no_classes(
    errors: Examine, keys: list[str], folders: list[str], message: str
) -> None:
    assert errors(keys, folders)[0] == message


def test_files_that_are_not_read_are_counted_by_suffix() -> None:
    def noted(counts: dict[str, int]) -> list[str]:
        listing = list_folder(["a/1.jpg", "b/2.jpg"])
        listing.source.left_out = counts
        return [finding.sentence for finding in check_files_left_out(listing)]

    counts = {".heic": 1200, ".csv": 1, ".jp2": 1, "": 2}
    assert noted(counts) == ["Not read as images: 1,200 .heic, 2 without a suffix, 1 .csv, 1 .jp2."]
    assert noted({}) == []
    assert noted({f".{k}": 1 for k in range(11)})[0].endswith(", 1 .5, 1 .6 ....")
