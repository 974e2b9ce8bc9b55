from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from packer import convert_images
from packer.errors import UsageError
from tests.inputs.box_sets import write_picture, write_text, write_voc, write_yolo

HOW = "write these into a CSV or COCO's JSON, and pass labels='FILE'."


def notes(root: Path, tmp_path: Path) -> list[str]:
    report = convert_images(root, tmp_path / "out.h5", size=8, overwrite=True)
    return [note for note in report.notes if "not read" in note]


@pytest.mark.parametrize(
    ("image", "label", "text"),
    [
        ("{n}.png", "{n}.json", '{"shapes": [], "imagePath": "a"}'),  # LabelMe
        ("ds/img/{n}.png", "ds/ann/{n}.png.json", '{"objects": []}'),  # Supervisely
        ("{n}.png", "{n}.txt", "a photo of a cat"),
        ("cat/{n}.png", "cat/{n}.txt", "Car 0.00 0 -1.58 587.01 173.33 614.12 200.12"),
    ],
)
def test_files_with_the_names_of_images_are_told(tmp_path: Path, image: str, label: str, text: str) -> None:
    root = tmp_path / "set"
    for number in range(4):
        write_picture(root / image.format(n=number), number)
        write_text(root / label.format(n=number), text)
    first, second = (label.format(n=number) for number in range(2))
    suffix = Path(label).suffix
    assert notes(root, tmp_path) == [
        f"4 images with a {suffix} file of the same name, such as {first} and {second}, in which no YOLO or Pascal VOC "
        "labels were found: these files are not read. Write labels into a CSV or COCO's JSON, and pass labels='FILE'."
    ]
    for number in range(2):
        (root / label.format(n=number)).unlink()
    assert notes(root, tmp_path) == []


def test_a_file_that_names_the_images_is_told(tmp_path: Path) -> None:
    root = tmp_path / "set"
    for number in range(4):
        write_picture(root / f"ab{number}.png", number)
    path = write_text(root / "train.csv", "id,box\n" + "".join(f'ab{n},"[1, 2]"\n' for n in range(4)))
    assert notes(root, tmp_path) == [
        f"train.csv names images, such as ab0 and ab1, and is not read. If it holds labels, pass labels='{path}'."
    ]
    rows = "".join(f"ab{n}.png,{n % 2}\n" for n in range(4))
    path.write_text("file,label\n" + rows)
    assert convert_images(root, tmp_path / "out.h5", size=8, labels=path, overwrite=True).rows == 4
    path.unlink()
    write_text(root / "annotations.xml", "".join(f'<image name="ab{n}.png"/>' for n in range(4)))
    assert notes(root, tmp_path) == [
        f"annotations.xml names images, such as ab0.png and ab1.png, and is not read. If it holds labels, {HOW}"
    ]


def test_class_folders_and_other_files_need_no_note(tmp_path: Path) -> None:
    root = tmp_path / "set"
    for number in range(4):
        write_picture(root / "cat" / f"ab{number}.png", number)
        write_picture(root / "dog" / f"cd{number}.png", number)
    write_text(root / "list.csv", "".join(f"ab{n}.png,0\n" for n in range(4)))
    write_text(root / "README.txt", "Cats and dogs.")
    assert notes(root, tmp_path) == []
    flat = tmp_path / "flat"
    for number in range(20):
        write_picture(flat / f"{number}.png", number)
    write_text(flat / "log.csv", "epoch,loss\n" + "".join(f"{n},{n}\n" for n in range(20)))
    assert notes(flat, tmp_path) == []


def test_labels_in_an_archive_are_told(tmp_path: Path) -> None:
    root = write_yolo(tmp_path / "flat", "{split}/{name}", None)
    path = shutil.make_archive(str(tmp_path / "flat"), "zip", root)
    assert notes(Path(path), tmp_path) == [
        "9 images with a .txt file of the same name, such as train/0.txt and train/1.txt: these files are not read. "
        "Boxes of COCO, YOLO and Pascal VOC are read from folders; unpack the archive."
    ]


def test_folders_of_labelled_images_in_an_archive_are_no_classes(tmp_path: Path) -> None:
    root = write_voc(tmp_path / "set/VOC2007")
    path = shutil.make_archive(str(tmp_path / "voc"), "zip", root.parent)
    with pytest.raises(UsageError) as error:
        notes(Path(path), tmp_path)
    assert str(error.value) == (
        f"{path}: 9 images with a .xml file of the same name, such as VOC2007/Annotations/0.xml and VOC2007/Annotations/1.xml: "
        "these files are not read. Boxes of COCO, YOLO and Pascal VOC are read from folders; unpack the archive, or if "
        "its folders are the classes, pass classes='VOC2007'."
    )
    assert convert_images(path, tmp_path / "out.h5", size=8, classes="VOC2007").rows == 9
    assert convert_images(root, tmp_path / "out.h5", size=8, overwrite=True).rows == 9
