from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from packer import convert_images
from packer.errors import SourceError, UsageError
from packer.inputs.label_options import Labels
from tests.inputs.box_sets import (
    NAMES,
    SPLITS,
    boxes_by_name,
    coco_text,
    expected_boxes,
    packed,
    voc_text,
    write_coco,
    write_picture,
    write_text,
    write_voc,
    write_yolo,
    yolo_text,
)


@pytest.mark.parametrize("write", [write_coco, write_yolo, write_voc])
def test_a_set_gives_equal_fields_in_every_layout(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    reference = packed(write_coco(tmp_path / "coco"), tmp_path / "coco.h5")
    pack = packed(write(tmp_path / "set"), tmp_path / "out.h5")
    assert boxes_by_name(pack) == boxes_by_name(reference) == expected_boxes()
    assert pack.header.classes == reference.header.classes == NAMES
    assert pack.fields == reference.fields
    assert pack.header.splits == reference.header.splits
    assert list(pack.header.splits) == ["train", "val"]


@pytest.mark.parametrize("inner", ["", "VOCdevkit", "VOCdevkit/VOC2007"])
def test_any_folder_above_the_layout_is_read(tmp_path: Path, inner: str) -> None:
    write_voc(tmp_path / "set/VOCdevkit/VOC2007")
    pack = packed(tmp_path / "set" / inner, tmp_path / "out.h5")
    assert boxes_by_name(pack) == expected_boxes()
    assert list(pack.header.splits) == ["train", "val"]


@pytest.mark.parametrize(
    ("write", "inner", "numbers"),
    [
        (write_yolo, "images", range(9)),
        (write_yolo, "images/train", SPLITS["train"]),
        (write_voc, "JPEGImages", range(9)),
        (write_coco, "train", SPLITS["train"]),
    ],
)
def test_a_folder_of_images_has_the_labels_beside_it(
    tmp_path: Path, write: Callable[[Path], Path], inner: str, numbers: range
) -> None:
    pack = packed(write(tmp_path / "set") / inner, tmp_path / "out.h5")
    assert boxes_by_name(pack) == expected_boxes(numbers)
    assert list(pack.header.splits) == (["train", "val"] if len(numbers) == 9 else [])


@pytest.mark.parametrize(
    ("write", "inner", "file"),
    [
        (write_yolo, "labels", "train/0.txt"),
        (write_yolo, "labels/train", "0.txt"),
        (write_voc, "Annotations", "0.xml"),
    ],
)
def test_a_folder_of_labels_names_the_folder_to_pass(
    tmp_path: Path, write: Callable[[Path], Path], inner: str, file: str
) -> None:
    root = write(tmp_path / "set")
    with pytest.raises(SourceError) as error:
        packed(root / inner, tmp_path / "out.h5")
    assert str(error.value) == (
        f"{root / inner}: holds no images, but files such as {file}, whose images are in another folder. Pass "
        f"{root}, the folder that holds both."
    )
    assert packed(root, tmp_path / "out.h5").rows == 9


def test_labels_beside_a_folder_need_not_be_wanted(tmp_path: Path) -> None:
    root = write_yolo(tmp_path / "set")
    report = convert_images(root / "images/val", tmp_path / "out.h5", size=8)
    assert (
        f"The annotations of {root}/images/val lie beside it, in {root}: data.yaml. To leave them out, pass "
        "labels=Labels(unlabeled='all')."
    ) in report.notes
    pack = packed(root / "images/val", tmp_path / "out.h5", labels=Labels(unlabeled="all"))
    assert (pack.rows, "boxes" in [field.name for field in pack.fields]) == (4, False)


def test_labels_of_another_dataset_are_not_taken(tmp_path: Path) -> None:
    for number in range(3):
        write_picture(tmp_path / "photos/train" / f"{number}.png", number)
    write_yolo(tmp_path / "other", "{split}/{name}")
    assert "boxes" not in [
        field.name for field in packed(tmp_path / "photos/train", tmp_path / "out.h5").fields
    ]
    for number in range(40):
        write_text(tmp_path / "labels" / f"{number}.txt", yolo_text(number))
    (tmp_path / "photos/train").rename(tmp_path / "flat")
    assert "boxes" not in [field.name for field in packed(tmp_path / "flat", tmp_path / "out.h5").fields]


def test_class_folders_stay_classes(tmp_path: Path) -> None:
    """ImageNet of Kaggle: boxes of some images in a tree beside that of the classes."""
    for name in ("n01", "n02"):
        for number in range(3):
            write_picture(tmp_path / "Data/train" / name / f"{name}_{number}.png", number)
        write_text(tmp_path / "Annotations/train" / name / f"{name}_0.xml", voc_text(0))
    pack = packed(tmp_path / "Data/train", tmp_path / "out.h5")
    assert "boxes" not in [field.name for field in pack.fields]


def test_two_forms_of_annotations_are_an_error(tmp_path: Path) -> None:
    root = write_yolo(write_coco(tmp_path / "set"), description=None)
    with pytest.raises(UsageError) as error:
        packed(root, tmp_path / "out.h5")
    assert str(error.value) == (
        f"{root}: holds COCO annotations (annotations/instances_train.json) and YOLO labels (labels/train/0.txt); "
        "one of them is read. Move the other ones away, or pass labels=Labels(unlabeled='all') for none."
    )
    unwanted = packed(root, tmp_path / "out.h5", labels=Labels(unlabeled="all"))
    assert "boxes" not in [field.name for field in unwanted.fields]
    write_yolo(root)
    with pytest.raises(UsageError, match=r"Move the other ones away, or pass .*/set/data\.yaml, or pass "):
        packed(root, tmp_path / "out.h5")
    assert packed(root / "data.yaml", tmp_path / "out.h5").rows == 9
    (root / "data.yaml").unlink()
    shutil.rmtree(root / "labels")
    assert packed(root, tmp_path / "out.h5").rows == 9


def test_a_file_of_labels_leaves_the_layout_unread(tmp_path: Path) -> None:
    root = write_yolo(tmp_path / "set", "{name}", description=None)
    table = write_text(tmp_path / "labels.csv", "file,label\n" + "".join(f"{n}.png,{n}\n" for n in range(9)))
    assert "boxes" not in [field.name for field in packed(root, tmp_path / "out.h5", labels=table).fields]


@pytest.mark.parametrize(
    ("images", "name"),
    [
        ("{split}/{number}.png", "{split}/_annotations.coco.json"),  # Roboflow
        ("images/{split}/{number}.png", "annotations/fruits_{split}.json"),
        ("{split}/{number}.png", "{split}.json"),
    ],
)
def test_coco_files_of_other_names_are_found(tmp_path: Path, images: str, name: str) -> None:
    for split, numbers in SPLITS.items():
        write_text(tmp_path / "set" / name.format(split=split), coco_text(numbers))
        for number in numbers:
            write_picture(tmp_path / "set" / images.format(split=split, number=number), number)
    pack = packed(tmp_path / "set", tmp_path / "out.h5")
    assert boxes_by_name(pack) == expected_boxes()
    assert list(pack.header.splits) == ["train", "val"]


def test_coco_of_fiftyone_and_label_studio(tmp_path: Path) -> None:
    for folder, name in (("data", "labels.json"), ("images", "result.json")):
        root = tmp_path / folder
        write_text(root / name, coco_text(range(9)))
        for number in range(9):
            write_picture(root / folder / f"{number}.png", number)
        assert boxes_by_name(packed(root, tmp_path / "out.h5")) == expected_boxes()


def test_files_beside_a_folder_that_are_not_read_are_told(tmp_path: Path) -> None:
    """KITTI: training/image_2 and training/label_2."""
    for number in range(4):
        write_picture(tmp_path / "training/image_2" / f"{number}.png", number)
        write_text(
            tmp_path / "training/label_2" / f"{number}.txt", "Car 0.00 0 -1.58 587.01 173.33 614.12 200.12"
        )
    report = convert_images(tmp_path / "training/image_2", tmp_path / "out.h5", size=8)
    assert (
        f"{tmp_path}/training: files such as label_2/0.txt and label_2/1.txt have the names of the images, and are not "
        "read. If they hold labels, write these into a CSV or COCO's JSON, and pass labels='FILE'."
    ) in report.notes
