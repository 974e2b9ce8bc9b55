from __future__ import annotations

import builtins
import shutil
from pathlib import Path
from typing import Any

import pytest

from packer import convert_images
from packer.errors import MissingDependencyError, PackerError, SourceError, UsageError
from packer.inputs.label_options import Labels
from tests.inputs.box_sets import (
    NAMES,
    boxes_by_name,
    expected_boxes,
    packed,
    write_picture,
    write_text,
    write_yolo,
    yolo_text,
)

LIST = "{split}.txt"


def refused(source: Path, tmp_path: Path, **options: Any) -> str:
    with pytest.raises(PackerError) as error:
        packed(source, tmp_path / "out.h5", **options)
    return str(error.value)


def notes(source: Path, tmp_path: Path) -> tuple[str, ...]:
    return convert_images(source, tmp_path / "out.h5", size=(16, 32), overwrite=True).notes


def described(root: Path, text: str) -> Path:
    write_text(root / "data.yaml", text)
    return root


@pytest.fixture
def one(tmp_path: Path) -> Path:
    """Images 0 to 3 in a folder, with labels, and a data.yaml."""
    root = tmp_path / "one"
    for number in range(4):
        write_picture(root / "images" / f"{number}.png", number)
        write_text(root / "labels" / f"{number}.txt", yolo_text(number))
    return described(root, f"train: images\nnames: [{', '.join(NAMES)}]\n")


BOMB = "a: &a [x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 8)}]\n"
    for before, name in zip("abcdefghijk", "bcdefghijkl", strict=True)
)

FORMS = {
    "folders of images": ("images/{split}/{name}", "train: images/train\nval: images/val"),
    "folders of splits": ("{split}/images/{name}", "train: train/images\nval: val/images"),
    "Roboflow": ("{split}/images/{name}", "train: ../train/images\nval: ../val/images"),
    "parents of images": ("{split}/images/{name}", "train: train\nval: val"),
    "beside images": ("{split}/{name}", "train: train\nval: val"),
    "a list of folders": ("{split}/images/{name}", "train: [train/images]\nval:\n- val/images"),
    "a path that exists": ("images/{split}/{name}", "path: images\ntrain: train\nval: val"),
    "a path of another machine": (
        "images/{split}/{name}",
        "path: /content/x\ntrain: images/train\nval: images/val",
    ),
    "Windows": (
        "images/{split}/{name}",
        "path: C:\\x\\set\ntrain: images\\train\nval: C:\\x\\set\\images\\val",
    ),
    "another machine": (
        "images/{split}/{name}",
        "train: /content/x/images/train\nval: /content/x/images/val",
    ),
    "a path that does not exist": (
        "images/{split}/{name}",
        "path: ../datasets/x\ntrain: images/train\nval: images/val",
    ),
    "no test": (
        "images/{split}/{name}",
        "train: images/train\nval: images/val\ntest:  # none\ndownload: |\n  print()",
    ),
}


@pytest.mark.parametrize(("form", "text"), FORMS.values(), ids=FORMS)
def test_every_form_of_paths_gives_the_same_pack(tmp_path: Path, form: str, text: str) -> None:
    root = described(write_yolo(tmp_path / "set", form), f"{text}\nnc: 3\nnames: [cat, dog, emu]\n")
    pack = packed(root, tmp_path / "out.h5")
    assert boxes_by_name(pack) == expected_boxes()
    assert pack.header.classes == NAMES
    assert {name: list(spans) for name, spans in pack.header.splits.items()} == {
        "train": [(0, 5)],
        "val": [(5, 9)],
    }


@pytest.mark.parametrize(
    "line", ["./images/{name}", "images/{name}", "data/obj/{name}", "{root}/images/{name}"]
)
def test_lists_of_images(tmp_path: Path, line: str) -> None:
    root = write_yolo(tmp_path / "set", "images/{name}")
    for split, numbers in (("train", range(4)), ("val", range(4, 8))):
        lines = [line.format(root=root, name=f"{number}.png") for number in numbers]
        write_text(root / f"{split}.txt", "\n".join([*lines, ""]))
    described(root, "train: train.txt\nval: ./val.txt\nnames: {0: cat, 1: dog, 2: emu}\n")
    pack = packed(root, tmp_path / "out.h5")
    assert boxes_by_name(pack) == expected_boxes(range(8))
    assert list(pack.header.splits) == ["train", "val"]
    report = convert_images(root, tmp_path / "again.h5", size=8)
    assert (
        "Left out, outside the folders and lists of the annotations: 1 image, such as images/8.png."
        in report.notes
    )
    write_text(root / "val.txt", "images/77.png\n")
    assert refused(root, tmp_path) == (
        f"{root}/val.txt line 1: no image, or several, are called images/77.png; a list names images. Correct it, or "
        "pass on_error='skip'."
    )


def test_the_description_itself_is_a_source(tmp_path: Path) -> None:
    write_yolo(tmp_path / "datasets/pets", description=None)
    text = "path: ../datasets/pets\ntrain: images/train\nval: images/val\nnames: [cat, dog, emu]\n"
    path = write_text(tmp_path / "configs/pets.yaml", text)
    assert boxes_by_name(packed(path, tmp_path / "out.h5")) == expected_boxes()
    text = "train: ../datasets/pets/images/train\nval: ../datasets/pets/images/val\nnames: [cat, dog, emu]\n"
    path.write_text(text)
    assert boxes_by_name(packed(path, tmp_path / "out.h5")) == expected_boxes()
    assert refused(tmp_path / "configs", tmp_path) == (
        f"{path}: train is {tmp_path}/datasets/pets/images/train, outside {tmp_path}/configs; images lie in the "
        f"folder that is packed. Pass {path} as SRC."
    )
    path.write_text("train: 7\n")
    assert refused(path, tmp_path) == (
        f"{path}: describes no YOLO dataset; train, val and names are needed. Pass the folder of the images."
    )


def test_two_descriptions_are_an_error_and_each_may_be_passed(one: Path, tmp_path: Path) -> None:
    write_text(one / "other.yaml", "train: images\nnames: [x, y, z]\n")
    write_text(one / "settings.yaml", "epochs: 3\n")
    write_text(one / "equal.yml", (one / "data.yaml").read_text())
    assert refused(one, tmp_path) == (
        f"{one}/data.yaml: describes a YOLO dataset, and so does other.yaml; one of them is read. Pass it as SRC."
    )
    assert packed(one / "other.yaml", tmp_path / "out.h5").header.classes == ("x", "y", "z")


def test_splits_of_equal_images_are_packed_once_others_may_not_overlap(tmp_path: Path) -> None:
    """coco128.yaml trains and validates on the same folder."""
    root = write_yolo(tmp_path / "set")
    described(root, "train: images/train\nval: images/train\nnames: [cat, dog, emu]\n")
    report = convert_images(root, tmp_path / "out.h5", size=8)
    assert report.rows == 5
    assert (
        f"{root}/data.yaml: 5 images of val, such as images/train/0.png, are all images of train, too; they are "
        "packed once, in train."
    ) in report.notes
    described(root, "train: images\nval: images/val\nnames: [cat, dog, emu]\n")
    assert refused(root, tmp_path) == (
        f"{root}/data.yaml: 4 images of val, such as images/val/5.png, are in train, too; an image is in one split, "
        "or splits are equal. Correct the paths."
    )


def test_splits_without_labels_are_not_images_without_objects(tmp_path: Path) -> None:
    root = write_yolo(tmp_path / "set")
    write_picture(root / "images/test/90.png")
    described(root, "train: images/train\nval: images/val\ntest: images/test\nnames: [cat, dog, emu]\n")
    assert packed(root, tmp_path / "out.h5").rows == 9
    assert f"{root}/data.yaml: none of the 1 image of test has a label file; they are left out." in notes(
        root, tmp_path
    )
    shutil.rmtree(root / "labels/val")
    assert refused(root, tmp_path) == (
        f"{root}/data.yaml: none of the 4 images of val has a label file; labels lie in a folder labels beside "
        "images, or beside each image. Add them, or pass on_error='skip'."
    )
    assert packed(root, tmp_path / "out.h5", on_error="skip").rows == 5


def test_an_empty_or_missing_label_file_is_an_image_without_objects(one: Path, tmp_path: Path) -> None:
    (one / "labels/2.txt").unlink()
    assert boxes_by_name(packed(one, tmp_path / "out.h5")) == {**expected_boxes(range(4)), "2.png": []}
    told = notes(one, tmp_path)
    assert "Read as YOLO labels: 3 boxes of 3 classes." in told
    assert "1 image without a label file, such as images/2.png: packed as images without objects." in told


FORM = (
    "; a line is a class number and 4 fractions of the image's width and height (centre x, centre y, width, height). "
    "Correct it, or pass on_error='skip'."
)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("3 0.5 0.5 0.2 0.2", "has the class 3, and there are 3 classes"),
        ("-1 0.5 0.5 0.2 0.2", "begins with -1, which is not the number of a class"),
        ("0.5 0.5 0.5 0.2 0.2", "begins with 0.5, which is not the number of a class"),
        ("cat 0.5 0.5 0.2 0.2", "is 'cat 0.5 0.5 0.2 0.2'"),
        ("0 32 16 8 8", "has 32, outside 0 to 1"),
        ("0 0.5 nan 0.2 0.2", "has nan, outside 0 to 1"),
        ("0 0.5 0.5 0.2", "has 4 numbers"),
        (
            "0 0.5 0.5 0.2 0.2 0.93",
            "has 5 numbers after the class, perhaps a confidence, as predictions have",
        ),
        ("0 0.1 0.1 0.9 0.1 0.5 1.8", "has coordinates outside 0 to 1"),
        ("0 0.1 0.1 0.9 0.1 0.5 0.8 0.3", "has 7 numbers after the class"),
    ],
)
def test_a_wrong_line_refuses_its_image(one: Path, tmp_path: Path, line: str, found: str) -> None:
    extra = "\n0 0.1 0.1 0.9 0.1 0.5 0.8\n" if "0.3" in line else "\n"
    write_text(one / "labels/1.txt", f"{extra}{line}\n")
    number = extra.count("\n") + 1
    assert refused(one, tmp_path) == f"{one}/labels/1.txt line {number}: {found}{FORM}"
    pack = packed(one, tmp_path / "out.h5", on_error="skip")
    assert pack.rows == 3
    assert [dict(entry) for entry in pack.header.skipped] == [
        {"key": "images/1.png", "reason": f"line {number} of labels/1.txt {found}."}
    ]


def test_a_label_file_that_is_no_text_or_has_no_image(one: Path, tmp_path: Path) -> None:
    (one / "labels/1.txt").write_bytes(b"\0\0")
    reason = (
        "has zero bytes, which UTF-8 text has not; YOLO labels are needed. Check the file; convert UTF-16 with: "
        "iconv -f UTF-16 -t UTF-8 OLD > NEW"
    )
    assert refused(one, tmp_path) == f"{one}/labels/1.txt line 1: {reason}, or pass on_error='skip'."
    pack = packed(one, tmp_path / "out.h5", on_error="skip")
    assert pack.header.skipped == ({"key": "images/1.png", "reason": f"its label file: line 1: {reason}."},)
    (one / "labels/1.txt").write_text("")
    write_text(one / "labels/README.txt", "Labels by hand.")
    write_text(one / "labels/9.txt", "0 0.5 0.5 0.2 0.2")
    assert refused(one, tmp_path) == (
        f"{one}/labels/9.txt: no image of this name is there; each label file has one. Add it, or pass "
        "on_error='skip'."
    )
    assert packed(one, tmp_path / "out.h5", on_error="skip").rows == 4


def test_polygons_and_turned_boxes_become_the_boxes_around_them(one: Path, tmp_path: Path) -> None:
    write_text(one / "labels/0.txt", "1 0.25 0.5 0.5 0.25 0.75 0.75\n0 0.5 0.5 0.25 0.5\n")
    write_text(one / "labels/1.txt", "2 0.25 0.25 0.5 0.25 0.5 0.5 0.25 0.5\n")
    found = boxes_by_name(packed(one, tmp_path / "out.h5"))
    assert found["0.png"] == [("dog", [8, 4, 24, 12]), ("cat", [12, 4, 20, 12])]
    assert found["1.png"] == [("emu", [8, 4, 16, 8])]
    assert "2 polygons of YOLO labels (segments or turned boxes): packed is the box around each." in notes(
        one, tmp_path
    )


@pytest.mark.parametrize("shape", ["", "kpt_shape: [2, 3]\n"])
def test_poses_keep_their_boxes(one: Path, tmp_path: Path, shape: str) -> None:
    for number in range(4):
        write_text(one / f"labels/{number}.txt", "1 0.5 0.5 0.5 0.5 0.3 0.3 2 0 0 0\n")
    (one / "data.yaml").write_text(f"train: images\n{shape}names: [cat, dog, emu]\n")
    assert boxes_by_name(packed(one, tmp_path / "out.h5"))["0.png"] == [("dog", [8, 4, 24, 12])]
    assert "4 poses of YOLO labels: packed is the box of each, without its points." in notes(one, tmp_path)
    if shape:
        write_text(one / "labels/0.txt", "0 0.1 0.1 0.9 0.1 0.5 0.8\n")
        assert refused(one, tmp_path) == f"{one}/labels/0.txt line 1: has 6 numbers after the class{FORM}"


def test_lines_that_may_be_polygons_or_poses_are_an_error(one: Path, tmp_path: Path) -> None:
    for number in range(4):
        write_text(one / f"labels/{number}.txt", "1 0.5 0.5 0.5 0.5 0.3 0.3 0.6 0.7 0.5 0.5\n")
    assert refused(one, tmp_path) == (
        f"{one}: its YOLO labels have 10 numbers after the class, which may be a box and 3 points in it, or a polygon "
        "of 5 points. Write kpt_shape: [3, 2] into data.yaml if they are points, or remove them."
    )
    (one / "data.yaml").write_text("train: images\nkpt_shape: [3, 2]\nnames: [cat, dog, emu]\n")
    assert boxes_by_name(packed(one, tmp_path / "out.h5"))["0.png"] == [("dog", [8, 4, 24, 12])]


@pytest.mark.parametrize(
    ("form", "listed"),
    [
        ("images/{split}/{name}", "classes.txt"),
        ("images/{split}/{name}", "labels/classes.txt"),
        ("{name}", "classes.txt"),
        ("obj_train_data/{name}", "obj.names"),
        ("data/obj/{name}", "data/obj.names"),
        ("{split}/{name}", "train/_darknet.labels"),
    ],
)
def test_layouts_without_a_description_are_told_by_their_files(
    tmp_path: Path, form: str, listed: str
) -> None:
    root = write_yolo(tmp_path / "set", form, None)
    pack = packed(root, tmp_path / "out.h5")
    assert boxes_by_name(pack) == {
        key: [(str(NAMES.index(name)), box) for name, box in boxes] for key, boxes in expected_boxes().items()
    }
    assert list(pack.header.splits) == (["train", "val"] if "{split}" in form else [])
    assert (
        "The labels name no classes: they are called by their numbers. Names can be given by classes=, or in a "
        "data.yaml or classes.txt."
    ) in notes(root, tmp_path)
    assert boxes_by_name(packed(root, tmp_path / "out.h5", classes=NAMES)) == expected_boxes()
    assert "line 1: has the class 2, and there are 2 classes" in refused(root, tmp_path, classes="cat,dog")
    write_text(root / listed, "\n".join([*NAMES, ""]))
    assert boxes_by_name(packed(root, tmp_path / "out.h5")) == expected_boxes()


def test_a_split_of_a_described_dataset_has_its_names(tmp_path: Path) -> None:
    root = write_yolo(tmp_path / "set", "{split}/images/{name}")
    assert packed(root / "train", tmp_path / "out.h5").header.classes == NAMES


def test_two_lists_of_names_are_an_error(tmp_path: Path) -> None:
    root = write_yolo(tmp_path / "set", "images/{name}", None)
    write_text(root / "classes.txt", "cat\ndog\nemu\n")
    write_text(root / "labels/classes.txt", "dog\ncat\nemu\n")
    assert "its class names differ from those of" in refused(root, tmp_path)


def test_text_files_of_other_content_are_no_labels(tmp_path: Path) -> None:
    for number, text in enumerate(
        ("a photo of a cat", "Car 0.0 0 1.5 5 6 7 8", "3", "684,8,273,116,0,0", "")
    ):
        write_picture(tmp_path / "set" / f"{number}.png", number)
        write_text(tmp_path / "set" / f"{number}.txt", text)
    pack = packed(tmp_path / "set", tmp_path / "out.h5")
    assert "boxes" not in [field.name for field in pack.fields]


def test_masks_beside_labelled_images_are_left_out(tmp_path: Path) -> None:
    root = write_yolo(tmp_path / "set", "images/{name}", None)
    for number in range(9):
        write_picture(root / "masks" / f"{number}.png", number)
    pack = packed(root, tmp_path / "out.h5")
    assert [key.split("/")[0] for key in pack.keys()] == ["images"] * 9


def test_folders_that_match_equally_well_are_an_error(tmp_path: Path) -> None:
    root = write_yolo(tmp_path / "set", "photos/{name}", None)
    for number in range(9):
        (root / f"photos/{number}.txt").rename(root / f"{number}.txt")
        write_text(root / "one" / f"{number}.txt", yolo_text(number))
        write_text(root / "two" / f"{number}.txt", yolo_text(number))
        (root / f"{number}.txt").unlink()
    assert refused(root, tmp_path) == (
        f"{root}/photos: its files have the names of those in {root}/one and in {root}/two; one of the folders "
        "belongs to it. Move the other one away."
    )


def test_the_unit_is_known(one: Path, tmp_path: Path) -> None:
    assert packed(one, tmp_path / "out.h5", labels=Labels(boxes_unit="relative")).rows == 4
    assert refused(one, tmp_path, labels=Labels(boxes_format="xyxy")) == (
        f"labels=Labels(boxes_format='xyxy'): applies to a CSV and to COCO annotations, but {one} holds YOLO labels. "
        "Leave it out."
    )
    with pytest.raises(UsageError) as error:
        packed(one, tmp_path / "out.h5", labels=Labels(boxes_unit="pixels"))
    assert str(error.value) == (
        f"labels=Labels(boxes_unit='pixels'): boxes of {one} are fractions of the images' sides. Leave it out."
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "names: {0: cat, 2: dog}",
            "its 2 names have the numbers 0, 2; classes are numbered 0 to 1. Correct them.",
        ),
        ("names: [cat, cat]", "two classes are called cat; names are unique. Correct them."),
        ("nc: 4\nnames: [cat, dog]", "nc is 4, but names holds 2; nc is the number of classes. Correct it."),
        (
            "names: [cat, [dog]]",
            "names are not a list of texts, or a text for each number; class names are. Correct them.",
        ),
        ("names: [cat", "damaged YAML; the description of a YOLO dataset is needed. Correct it."),
        (f"names: {'[' * 5000}", "damaged YAML; the description of a YOLO dataset is needed. Correct it."),
        (
            "kpt_shape: 7\nnames: [cat]",
            "kpt_shape is 7; the number of points and 2 or 3 numbers per point are needed. Correct it.",
        ),
    ],
)
def test_a_wrong_description_is_one_sentence(one: Path, tmp_path: Path, text: str, found: str) -> None:
    path = write_text(one / "data.yaml", f"train: images\n{text}\n")
    assert refused(one, tmp_path) == f"{path}: {found}"


def test_names_stay_text(one: Path, tmp_path: Path) -> None:
    write_text(one / "data.yaml", "train: images\nnames: [no, 007, 1.50]\n")
    assert packed(one, tmp_path / "out.h5").header.classes == ("no", "007", "1.50")


def test_a_missing_split_is_one_sentence(one: Path, tmp_path: Path) -> None:
    path = write_text(one / "data.yaml", "train: images\nval: pictures\nnames: [cat, dog, emu]\n")
    assert refused(one, tmp_path) == (
        f"{path}: val is pictures, which does not exist; splits are folders. Correct it, or pass on_error='skip'."
    )
    path.write_text("train: images\ntest: pictures\nnames: [cat, dog, emu]\n")
    assert f"{path}: test is pictures, which does not exist; it is left out." in notes(one, tmp_path)


def test_without_pyyaml_only_descriptions_are_an_error(
    one: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def fake(name: str, *args: Any) -> Any:
        if name == "yaml":
            raise ModuleNotFoundError(name)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", fake)
    with pytest.raises(MissingDependencyError) as error:
        packed(one, tmp_path / "out.h5")
    assert str(error.value) == (
        f"{one}/data.yaml (a YOLO dataset): pyyaml is not installed. Run: pip install pyyaml"
    )
    write_text(one / "data.yaml", "epochs: 3\n")
    assert packed(one, tmp_path / "out.h5").rows == 4


def test_coordinates_are_those_of_the_upright_image(tmp_path: Path) -> None:
    """As Ultralytics reads them: OpenCV turns the image by its EXIF orientation."""
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "set").mkdir()
    Image.new("RGB", (64, 32)).save(tmp_path / "set/a.jpg", exif=exif)  # upright: 32 wide, 64 high
    write_text(tmp_path / "set/a.txt", "0 0.5 0.25 0.5 0.25\n")
    assert boxes_by_name(packed(tmp_path / "set", tmp_path / "out.h5", size=(64, 32))) == {
        "a.jpg": [("0", [8, 8, 24, 24])]
    }


def test_a_source_error_is_raised_for_no_labels_at_all(one: Path, tmp_path: Path) -> None:
    (one / "labels").rename(one / "gone")
    for path in (one / "gone").iterdir():
        path.unlink()
    with pytest.raises(SourceError, match=r"none of the 4 images of train has a label file"):
        packed(one, tmp_path / "out.h5")


def test_nested_aliases_are_not_expanded(one: Path, tmp_path: Path) -> None:
    path = write_text(one / "data.yaml", f"{BOMB}train: images\nnames: [cat]\nnc: *l\n")
    assert refused(one, tmp_path) == (
        f"{path}: nc is {', '.join(['...'] * 8)}, but names holds 1; nc is the number of classes. Correct it."
    )


def test_unreadable_files_beside_images_are_no_descriptions(tmp_path: Path) -> None:
    write_picture(tmp_path / "set/0.png")
    (tmp_path / "set/data.yaml").symlink_to("nosuch")
    assert packed(tmp_path / "set", tmp_path / "out.h5").rows == 1


def test_a_set_without_other_splits_may_be_split(one: Path, tmp_path: Path) -> None:
    write_text(one / "data.yaml", "train: images\nval: images\nnames: [cat, dog, emu]\n")
    pack = packed(one, tmp_path / "out.h5", split="train=0.5,val=0.5")
    assert {name: list(spans) for name, spans in pack.header.splits.items()} == {
        "train": [(0, 2)],
        "val": [(2, 4)],
    }


def test_a_description_above_a_folder_with_its_labels_tells_poses_and_names(tmp_path: Path) -> None:
    root = write_yolo(tmp_path / "set", "data/{split}/images/{name}", description=None)
    described(root, "train: data/train/images\nval: data/val/images\nkpt_shape: [3, 2]\nnames: [a, b, c]\n")
    shutil.rmtree(root / "data/train/labels")
    write_text(root / "data/train/labels/0.txt", "1 0.5 0.5 0.5 0.5 0.4 0.4 0.5 0.5 0.6 0.6\n")
    pack = packed(root / "data/train", tmp_path / "out.h5")
    assert boxes_by_name(pack)["0.png"] == [("b", [8, 4, 24, 12])]


def test_a_box_outside_its_image_names_the_folder_of_its_file(one: Path, tmp_path: Path) -> None:
    write_text(one / "labels/1.txt", "1 1.005 0.5 0.005 0.4\n")
    assert "(labels line 1) lies outside its 64 x 32 pixels." in refused(one, tmp_path)
