from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from packer.inputs.checks.folder_checks import check_files_left_out
from tests.inputs.checks.conftest import list_folder

Examine = Callable[..., list[str]]


@pytest.mark.parametrize(
    ("keys", "classes"),
    [
        (["charts/1.jpg", "images/2.jpg", "tables/3.jpg"], []),
        (["images/a.jpg", "images/xy.jpg", "masks/a.png", "masks/xy.png"], ["images", "masks"]),
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
        "pets: fold1 and fold2 hold the same folders (cat, dog), as parts of a dataset do; its folders would be "
        "classes. Pass one of them, such as pets/fold1, or labels=, or if they are the classes, classes='fold1,fold2'.",
    ),
    (
        ["ground_truth/bent/1.png", "test/bent/1.png", "train/good/1.png"],
        "pets: its folders test and train are called like splits, and ground_truth lies beside them; its folders "
        "would be classes. Pass a folder that holds only folders of splits, or one of them, or if they are the "
        "classes, classes='ground_truth,test,train'.",
    ),
    (
        ["data/Testing/cat/1.jpg", "data/Training/cat/1.jpg"],
        "pets: its folder data holds splits (Testing, Training); its folders would be classes. Pass pets/data, or if "
        "they are the classes, classes='data'.",
    ),
    (
        ["seg_test/seg_test/sea/1.jpg", "seg_train/seg_train/sea/1.jpg"],
        "pets/seg_train: its only folder is called seg_train, like a split; its folders would be classes. Pass "
        "pets/seg_train/seg_train, or if they are the classes, classes='seg_test,seg_train'.",
    ),
]


@pytest.mark.parametrize(("keys", "message"), CASES)
def test_folders_that_are_no_classes(errors: Examine, keys: list[str], message: str) -> None:
    assert message in errors(keys)


def test_folders_that_may_be_samples_are_noted(notes: Examine) -> None:
    keys = [f"p{number}/{name}.png" for number in range(20) for name in ("flair", "t1")]
    assert notes(keys) == [
        "pets: each of its 20 folders holds files of the same names (flair.png, t1.png), as folders of one sample do. "
        "If they are no classes, put the files of a kind into a folder of their own, named by sample, and pass the masks "
        "by pairs={'mask': 'DIR'}."
    ]
    assert notes([f"p{number}/{name}.png" for number in range(20) for name in "ab"]) == []


def test_a_long_list_of_classes_is_not_printed(errors: Examine) -> None:
    (error,) = errors([f"fold{number}/{number}.jpg" for number in range(20)])
    assert error.endswith("or if they are the classes, classes= with a file of their names.")


def test_folders_of_equal_names_are_noted_if_they_are_few(notes: Examine, errors: Examine) -> None:
    names = ["abel", "zoe", "kim", "li", "mary", "ned", "olga", "pat"]
    few = [f"{folder}/{name}.jpg" for folder in ("input", "target") for name in names[:3]]
    assert notes(few) == [
        "pets: input and target hold files of equal names, such as input/abel.jpg and target/abel.jpg, as images beside "
        "their masks do. If they are no classes, pass pets/input with pairs={'mask': 'pets/target'}."
    ]
    many = [f"{folder}/{name}.jpg" for folder in ("input", "target") for name in names]
    assert "hold files of equal names" in errors(many)[0]
    for enumerated in ("abc", "123"):
        assert notes([f"{folder}/{name}.jpg" for folder in ("cat", "dog") for name in enumerated]) == []


def test_class_folders_without_images(errors: Examine) -> None:
    assert errors(["cat/1.jpg", "eel/1.jpg"], ["dog"]) == [
        "pets/dog: a class folder without images; each needs at least one. Add some, remove the folder, or pass "
        "on_error='skip'."
    ]
    assert errors(["train/images/1.jpg"], ["train/labels"]) == [
        "pets/train/labels: a class folder without images; each needs at least one. Add some, remove the folder, or "
        "pass on_error='skip'. If images is no class either, pass pets/train/images."
    ]
    assert errors(["cat/1.jpg"], ["dog"], accepted=["cat", "dog"]) == []


def test_parts_of_one_numbering_are_noted(notes: Examine) -> None:
    keys = [f"class_{part}/{part * 10 + number:04d}.jpg" for part in range(3) for number in range(4)]
    assert notes(keys) == [
        "The folders class_0 and class_1 differ in a number, and continue one numbering of files. If they are parts "
        "of one set, they are no classes: pass labels=."
    ]
    assert notes([key.replace("class_", "") for key in keys]) == []
    assert notes([f"class_{part}/{number}.jpg" for part in range(3) for number in range(4)]) == []


def test_files_that_are_not_read_are_counted_by_suffix() -> None:
    def noted(counts: dict[str, int]) -> list[str]:
        listing = list_folder(["a/1.jpg", "b/2.jpg"])
        listing.source.left_out = counts
        return [finding.sentence for finding in check_files_left_out(listing)]

    counts = {".heic": 1200, ".csv": 1, ".jp2": 1, "": 2}
    assert noted(counts) == ["Not read as images: 1,200 .heic, 2 without a suffix, 1 .csv, 1 .jp2."]
    assert noted({}) == []
    assert noted({f".{k}": 1 for k in range(11)})[0].endswith(", 1 .5, 1 .6 ....")


def _scene(number: int, width: int = 48, height: int = 32, shift: int = 0) -> Image.Image:
    """Return one of several different pictures of smooth spots."""
    spots = np.random.default_rng(number).integers(0, 256, (4, 6, 3), np.uint8)
    wide = Image.fromarray(spots).resize((width + shift, height), Image.Resampling.BICUBIC)
    return wide.crop((shift, 0, shift + width, height))


def _encoded(image: Image.Image, form: str = "PNG") -> bytes:
    file = io.BytesIO()
    image.save(file, form)
    return file.getvalue()


def test_views_of_the_same_pictures_are_noted(notes: Examine) -> None:
    files = {f"left/{k:06d}.jpg": _encoded(_scene(k), "JPEG") for k in range(4)}
    files |= {f"right/{k:06d}.jpg": _encoded(_scene(k, shift=2), "JPEG") for k in range(4)}
    assert notes(files) == [
        "pets: left and right hold files of equal names, such as left/000000.jpg and right/000000.jpg, which look "
        "alike, as copies and views of the same pictures do. If they are no classes, remove one of them, or, to "
        "pack both as fields, pass pets/left with pairs={'right': 'pets/right'} soft='right'."
    ]
    others = {f"right/{k:06d}.jpg": _encoded(_scene(k + 9), "JPEG") for k in range(4)}
    assert notes({**files, **others}) == []


def test_masks_as_jpeg_files(errors: Examine) -> None:
    files = {f"photos/{k}.jpg": _encoded(_scene(k), "JPEG") for k in range(3)}
    for k in range(3):
        mask = np.zeros((32, 48, 3), np.uint8)
        mask[5 : 20 + k, 10:30] = 255
        files[f"shapes/{k}.jpg"] = _encoded(Image.fromarray(mask), "JPEG")
    assert errors(files) == [
        "pets: photos and shapes hold files of equal names, such as photos/0.jpg and shapes/0.jpg, of few values on "
        "one side, as images beside their masks do; its folders would be classes. Pass pets/photos with "
        "pairs={'mask': 'pets/shapes'}, or if they are the classes, classes='photos,shapes'."
    ]


def test_images_of_other_frames_are_no_masks(errors: Examine, notes: Examine) -> None:
    files = {f"photos/{k}.jpg": _encoded(_scene(k), "JPEG") for k in range(3)}
    files |= {f"xrays/{k}.png": _encoded(_scene(k, width=32 + k).convert("L")) for k in range(3)}
    assert errors(files) == notes(files) == []


def test_masks_in_a_folder_below_their_class(errors: Examine) -> None:
    files = {f"{name}/{k}.png": _encoded(_scene(k)) for name in ("cat", "dog") for k in range(3)}
    files |= {f"{key[:3]}/GT/{key[4:]}": _encoded(Image.new("L", (48, 32), 1)) for key in files}
    assert errors(files) == [
        "pets: cat/GT/0.png is called like cat/0.png, and so are the files beside it; its folders would be classes. "
        "Remove pets/cat/GT, or move it out of pets, or if they are the classes, classes='cat,dog'."
    ]


def test_classes_that_hold_splits(errors: Examine) -> None:
    keys = [
        f"{name}/{split}/{name}{k}.jpg" for name in ("cat", "dog") for k, split in enumerate(("train", "val"))
    ]
    assert errors(keys) == [
        "pets: cat and dog hold the same folders (train, val), called like splits; its folders would be classes. Move the "
        "folders, so that splits hold classes (train/cat instead of cat/train), or if they are the classes, "
        "classes='cat,dog'."
    ]


def test_folders_of_a_sample_with_folders_of_kinds(errors: Examine) -> None:
    keys = [
        f"{sample}/{kind}"
        for sample in ("0a", "1b", "2c")
        for kind in ("images/x.png", "masks/1.png", "masks/2.png")
    ]
    assert errors(keys) == [
        "pets: 0a and 1b hold the same folders (images, masks), as folders of one sample do; its folders would be "
        "classes. Put the files of a kind into a folder of their own, named by sample, and pass the masks by "
        "pairs={'mask': 'DIR'}, or if they are the classes, classes='0a,1b,2c'."
    ]


def test_masks_in_every_split(errors: Examine) -> None:
    files = {f"{split}/images/{k}.png": _encoded(_scene(k)) for split in ("train", "val") for k in range(3)}
    files |= {key.replace("images", "masks"): _encoded(Image.new("L", (48, 32), 1)) for key in files}
    assert [one.partition(" Pass ")[2] for one in errors(files)] == [
        "pets with pairs={'mask': 'pets/*/masks'}, or if they are the classes, classes='images,masks'."
    ] * 2


def test_a_folder_beside_splits_may_be_one_without_labels(errors: Examine) -> None:
    keys = ["test/cat/1.jpg", "train/cat/2.jpg", "unlabeled/3.jpg"]
    assert errors(keys) == [
        "pets: its folders test and train are called like splits, and unlabeled lies beside them; its folders would be "
        "classes. Pass a folder that holds only folders of splits, or one of them, or labels=Labels(unlabeled='unlabeled') for a "
        "split without labels, or if they are the classes, classes='test,train,unlabeled'."
    ]


def test_a_folder_that_repeats_the_splits_is_none_without_labels(errors: Examine) -> None:
    keys = [f"{split}/{name}/{split}{name}.jpg" for split in ("test", "train") for name in ("cat", "dog")]
    (error,) = errors([*keys, *(f"pets/{key}" for key in keys)])
    assert "and pets lies beside them" in error
    assert "unlabeled" not in error


def test_class_folders_of_one_image_each_are_noted(notes: Examine) -> None:
    keys = [f"patch{letter}/{letter}.jpg" for letter in "abcdefgh"]
    assert notes(keys) == [
        "pets: each of its 8 class folders holds one image, such as patcha/a.jpg and patchb/b.jpg. If they are no classes, "
        "pass labels=Labels(unlabeled='all'), or labels=."
    ]
    assert notes(keys[:7]) == notes([*keys, "patcha/i.jpg"]) == []
