from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from packer import convert_images
from packer.errors import PackerError
from packer.inputs.label_options import Labels
from tests.inputs.box_sets import (
    boxes_by_name,
    boxes_of_image,
    expected_boxes,
    packed,
    voc_text,
    write_picture,
    write_text,
    write_voc,
)


@pytest.fixture
def voc(tmp_path: Path) -> Path:
    return write_voc(tmp_path / "VOC2007")


def refused(source: Path, tmp_path: Path, **options: Any) -> str:
    with pytest.raises(PackerError) as error:
        packed(source, tmp_path / "out.h5", **options)
    return str(error.value)


def notes(source: Path, tmp_path: Path) -> tuple[str, ...]:
    return convert_images(source, tmp_path / "out.h5", size=(16, 32), overwrite=True).notes


def annotation(*objects: str, width: int = 64, height: int = 32) -> str:
    size = f"<size><width>{width}</width><height>{height}</height></size>"
    return f"<annotation>{size}{''.join(f'<object>{one}</object>' for one in objects)}</annotation>"


def box(*corners: object, name: str = "cat") -> str:
    sides = zip(("xmin", "ymin", "xmax", "ymax"), corners, strict=True)
    return (
        f"<name>{name}</name><bndbox>{''.join(f'<{side}>{value}</{side}>' for side, value in sides)}</bndbox>"
    )


def test_the_first_and_last_pixel_become_edges(voc: Path, tmp_path: Path) -> None:
    write_text(voc / "Annotations/1.xml", annotation(box(1, 1, 64, 32), box(2.5, 3, 3.5, 3)))
    found = boxes_by_name(packed(voc, tmp_path / "out.h5"))
    assert found["1.png"] == [("cat", [0, 0, 32, 16]), ("cat", [0.75, 1, 1.75, 1.5])]


def test_a_set_whose_boxes_begin_at_pixel_0_counts_from_0(tmp_path: Path) -> None:
    for number in range(4):
        write_picture(tmp_path / "set/images" / f"{number}.png", number)
        write_text(tmp_path / "set/annotations" / f"{number}.xml", voc_text(number, first=0))
    assert boxes_by_name(packed(tmp_path / "set", tmp_path / "out.h5")) == expected_boxes(range(4))
    assert (
        "1 boxes, such as one of images/0.png, begin before pixel 1, the first of Pascal VOC: coordinates are read "
        "as edges that count from 0."
    ) in notes(tmp_path / "set", tmp_path)


def test_marks_are_counted_and_parts_are_no_objects(voc: Path, tmp_path: Path) -> None:
    part = f"<part>{box(1, 1, 2, 2, name='head')}</part>"
    marks = "<difficult>1</difficult><truncated>1</truncated><occluded>0</occluded>"
    write_text(voc / "Annotations/1.xml", annotation(box(3, 3, 9, 9) + marks + part, box(3, 3, 9, 9)))
    pack = packed(voc, tmp_path / "out.h5")
    assert len(boxes_by_name(pack)["1.png"]) == 2
    assert pack.header.classes == ("cat", "dog", "emu")
    assert "Objects are marked 1 difficult, 1 truncated: packed like the others." in notes(voc, tmp_path)


@pytest.mark.parametrize("suffix", ["", ".png"])
def test_lists_decide_the_splits(voc: Path, tmp_path: Path, suffix: str) -> None:
    lists = voc / "ImageSets/Main"
    for name, numbers in {"train": [0, 1], "val": [2], "test": [3, 4], "trainval": [0, 1, 2]}.items():
        write_text(lists / f"{name}.txt", "".join(f"{number}{suffix}\n" for number in numbers))
    write_text(lists / "cat_train.txt", "0 -1\n1  1\n")
    pack = packed(voc, tmp_path / "out.h5")
    assert {n: list(s) for n, s in pack.header.splits.items()} == {
        "train": [(0, 2)],
        "val": [(2, 3)],
        "test": [(3, 5)],
    }
    assert (
        "Left out, outside the folders and lists of the annotations: 4 images, such as JPEGImages/5.png and JPEGImages/6.png."
        in notes(voc, tmp_path)
    )
    (lists / "train.txt").unlink()
    (lists / "val.txt").unlink()
    pack = packed(voc, tmp_path / "out.h5")
    assert {n: list(s) for n, s in pack.header.splits.items()} == {"train": [(0, 3)], "test": [(3, 5)]}


def test_names_in_lists_have_one_image_each(voc: Path, tmp_path: Path) -> None:
    path = write_text(voc / "ImageSets/Main/val.txt", "5\n77\n")
    assert refused(voc, tmp_path) == (
        f"{path} line 2: no image, or several, are called 77; a list names images. Correct it, or pass "
        "on_error='skip'."
    )
    assert packed(voc, tmp_path / "out.h5", on_error="skip").rows == 6
    path.write_text("0\n")
    assert refused(voc, tmp_path) == (
        f"{path} line 1: JPEGImages/0.png is in ImageSets/Main/train.txt, too; an image is in one split. Correct "
        "one of them."
    )


def test_several_years_are_one_dataset_and_masks_are_left_out(tmp_path: Path) -> None:
    for year in (2007, 2012):
        root = tmp_path / f"set/VOCdevkit/VOC{year}"
        for number in range(4):
            write_picture(root / "JPEGImages" / f"{year}_{number}.png", number)
            write_picture(root / "SegmentationClass" / f"{year}_{number}.png", number)
            write_text(root / "Annotations" / f"{year}_{number}.xml", voc_text(number))
        write_text(root / "ImageSets/Main/train.txt", f"{year}_0\n{year}_1\n")
        write_text(root / "ImageSets/Main/val.txt", f"{year}_2\n{year}_3\n")
        write_text(root / "ImageSets/Segmentation/train.txt", f"{year}_3\n")
    pack = packed(tmp_path / "set", tmp_path / "out.h5")
    assert {name: list(spans) for name, spans in pack.header.splits.items()} == {
        "train": [(0, 4)],
        "val": [(4, 8)],
    }
    assert all("JPEGImages" in key for key in pack.keys())


@pytest.mark.parametrize(
    ("image", "label"),
    [
        ("{n}.png", "{n}.xml"),  # LabelImg
        ("images/{n}.png", "annotations/{n}.xml"),
        ("data/{n}.png", "labels/{n}.xml"),  # FiftyOne
        ("{n}.png", "xmls/{n}.xml"),
        ("photos/cats/{n}.png", "boxes/{n}.xml"),
    ],
)
def test_other_folders_are_told_by_their_files(tmp_path: Path, image: str, label: str) -> None:
    for number in range(4):
        write_picture(tmp_path / "set" / image.format(n=number), number)
        write_text(tmp_path / "set" / label.format(n=number), voc_text(number))
    assert boxes_by_name(packed(tmp_path / "set", tmp_path / "out.h5")) == expected_boxes(range(4))


def test_splits_by_folders(tmp_path: Path) -> None:
    """Roboflow: each split holds images and their annotations."""
    for split in ("train", "valid", "test"):
        for number in range(3):
            write_picture(tmp_path / "set" / split / f"{split}{number}.png", number)
            write_text(tmp_path / "set" / split / f"{split}{number}.xml", voc_text(number))
    assert set(packed(tmp_path / "set", tmp_path / "out.h5").header.splits) == {"train", "valid", "test"}


def test_photos_and_masks_of_equal_names_are_an_error(tmp_path: Path) -> None:
    """Oxford's pets: annotations/xmls are those of images/, not of annotations/trimaps/."""
    for number in range(4):
        write_picture(tmp_path / "set/images" / f"{number}.png", number)
        write_picture(tmp_path / "set/annotations/trimaps" / f"{number}.png", number)
        if number < 2:
            write_text(tmp_path / "set/annotations/xmls" / f"{number}.xml", voc_text(number))
    root = tmp_path / "set"
    assert refused(root, tmp_path) == (
        f"{root}/annotations/xmls: its files have the names of those in {root}/annotations/trimaps and in "
        f"{root}/images; one of the folders belongs to it. Move the other one away."
    )
    assert packed(root / "images", tmp_path / "out.h5").rows == 4
    (root / "annotations/trimaps").rename(tmp_path / "trimaps")
    pack = packed(root, tmp_path / "out.h5", on_error="skip")
    assert boxes_by_name(pack) == expected_boxes(range(2))


def test_an_image_without_annotation_is_refused(voc: Path, tmp_path: Path) -> None:
    (voc / "Annotations/2.xml").unlink()
    (voc / "Annotations/3.xml").unlink()
    assert refused(voc, tmp_path) == (
        f"{voc}: no annotation for JPEGImages/2.png and 1 more; images without objects have one, too. Add them, or "
        "pass labels=Labels(unlisted='empty') if they have none, or pass on_error='skip'."
    )
    pack = packed(voc, tmp_path / "out.h5", labels=Labels(unlisted="empty"))
    assert boxes_by_name(pack) == {**expected_boxes(), "2.png": [], "3.png": []}
    pack = packed(voc, tmp_path / "out.h5", on_error="skip")
    assert {entry["key"]: entry["reason"] for entry in pack.header.skipped} == {
        "JPEGImages/2.png": "has no annotation.",
        "JPEGImages/3.png": "has no annotation.",
    }


def test_an_annotation_without_image_is_refused(voc: Path, tmp_path: Path) -> None:
    write_text(voc / "Annotations/99.xml", voc_text(0))
    assert refused(voc, tmp_path) == (
        f"{voc}/Annotations/99.xml: no image of this name is there; each annotation has one. Add it, or pass "
        "on_error='skip'."
    )
    assert packed(voc, tmp_path / "out.h5", on_error="skip").rows == 9


NEEDED = "; each has a name, and a bndbox of xmin, ymin, xmax and ymax. Correct it, or pass on_error='skip'."


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        ("<name>cat</name>", "object 1 has no bndbox of four finite numbers"),
        (box(1, 2, 3, "x"), "object 1 has no bndbox of four finite numbers"),
        (box(1, 2, 3, "inf"), "object 1 has no bndbox of four finite numbers"),
        (box(1, 2, 3, "1e99"), "object 1 has no bndbox of four finite numbers"),
        (box(9, 2, 3, 8), "object 1 ends at 3, 8, before it begins at 9, 2"),
        (box(1, 2, 3, 4, name=" "), "object 1 has no name"),
    ],
)
def test_a_wrong_object_refuses_its_image(voc: Path, tmp_path: Path, entry: str, found: str) -> None:
    path = write_text(voc / "Annotations/1.xml", annotation(entry))
    assert refused(voc, tmp_path) == f"{path}: {found}{NEEDED}"
    pack = packed(voc, tmp_path / "out.h5", on_error="skip")
    assert [dict(entry) for entry in pack.header.skipped] == [
        {
            "key": "JPEGImages/1.png",
            "reason": found.replace("object 1", "object 1 of Annotations/1.xml") + ".",
        }
    ]
    assert pack.header.classes == ("cat", "dog", "emu")


BOMB = '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]>'


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"<annotation>", "damaged XML (no element found: line 1, column 12)"),
        (b"", "damaged XML (no element found: line 1, column 0)"),
        ((BOMB + annotation()).encode(), "damaged XML (it has a document type)"),
        ((BOMB + annotation()).encode("utf-16"), "damaged XML (it has a document type)"),
        (b"<objects/>", "holds <objects>, not <annotation>"),
        (b'<?xml version="1.0" encoding="nosuch"?><annotation/>', "damaged XML (unknown encoding: nosuch)"),
        (b"<annotation>" + b" " * (16 << 20), "is larger than 16,777,216 bytes"),
    ],
)
def test_xml_is_read_safely(voc: Path, tmp_path: Path, data: bytes, found: str) -> None:
    path = voc / "Annotations/1.xml"
    path.write_bytes(data)
    remedy = "Check the file" if "larger" in found else "Correct it"
    reason = f"{found}; a Pascal VOC annotation is needed. {remedy}"
    assert refused(voc, tmp_path) == f"{path}: {reason}, or pass on_error='skip'."
    pack = packed(voc, tmp_path / "out.h5", on_error="skip")
    assert pack.header.skipped == ({"key": "JPEGImages/1.png", "reason": f"its annotation: {reason}."},)


def test_deep_and_foreign_xml(voc: Path, tmp_path: Path) -> None:
    (voc / "Annotations/1.xml").write_text(
        "<annotation>" + "<a>" * 100_000 + "</a>" * 100_000 + "</annotation>"
    )
    assert boxes_by_name(packed(voc, tmp_path / "out.h5"))["1.png"] == []
    for number in range(9):
        polygon = "<object><name>x</name><polygon><pt><x>1</x><y>2</y></pt></polygon></object>"
        write_text(voc / f"Annotations/{number}.xml", f"<annotation>{polygon}</annotation>")
    pack = packed(voc / "JPEGImages", tmp_path / "out.h5")
    assert "boxes" not in [field.name for field in pack.fields]


def test_the_size_is_compared_with_the_picture(voc: Path, tmp_path: Path) -> None:
    write_text(voc / "Annotations/0.xml", annotation(box(1, 1, 5, 5), width=32, height=64))
    assert "has 64 x 32 pixels, but its boxes in Annotations are for 32 x 64." in refused(voc, tmp_path)
    write_text(voc / "Annotations/0.xml", annotation(box(1, 1, 5, 5), width=0, height=0))
    assert packed(voc, tmp_path / "out.h5").rows == 9
    write_text(voc / "Annotations/0.xml", annotation(box(1, 1, 5, 5), box(70, 1, 75, 5)))
    assert "its box 69,0,75,5 (Annotations object 2) lies outside its 64 x 32 pixels." in refused(
        voc, tmp_path
    )


def test_classes_may_be_given(voc: Path, tmp_path: Path) -> None:
    pack = packed(voc, tmp_path / "out.h5", classes="emu,dog,cat")
    assert pack.header.classes == ("emu", "dog", "cat")
    assert boxes_by_name(pack) == expected_boxes()
    assert boxes_of_image(0)[0][0] == "dog"


def test_boxes_without_area_are_left_out(tmp_path: Path) -> None:
    write_picture(tmp_path / "set/0.png")
    write_text(tmp_path / "set/0.xml", annotation(box(0, 0, 5, 5), box(3, 3, 3, 9)))
    assert boxes_by_name(packed(tmp_path / "set", tmp_path / "out.h5")) == {
        "0.png": [("cat", [0, 0, 2.5, 2.5])]
    }
    assert "1 objects whose boxes have no area are left out." in notes(tmp_path / "set", tmp_path)
