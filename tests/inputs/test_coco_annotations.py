from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from packer import convert_images, open_pack
from packer.errors import PackerError, UsageError
from packer.inputs.image_sources import open_source
from packer.inputs.label_options import Labels
from packer.orders.runs import one_run
from packer.packs.pack import Pack
from packer.read.array_store import PackStore

CATEGORIES = [{"id": 7, "name": "tail"}, {"id": 2, "name": "ear"}, {"id": 90, "name": "paw"}]
BOXES = {0: [([1, 2, 3, 4], 2), ([0, 0, 8, 8], 90)], 1: [], 2: [([0.5, 1.5, 2, 2], 7)]}


def picture(path: Path, seed: int, size: tuple[int, int] = (8, 8)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8)
    Image.fromarray(pixels).save(path)


def annotations(names: list[str], first: int = 0) -> dict[str, Any]:
    told: dict[str, Any] = {"info": {}, "images": [], "annotations": [], "categories": CATEGORIES}
    for n, name in enumerate(names, first):
        told["images"].append({"id": 100 + n, "file_name": name, "width": 8, "height": 8})
        for box, category in BOXES[n % 3]:
            entry = {
                "id": len(told["annotations"]) + 1,
                "image_id": 100 + n,
                "bbox": box,
                "category_id": category,
            }
            told["annotations"].append({**entry, "iscrowd": 0, "segmentation": []})
    return told


def write(path: Path, told: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(told))
    return path


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    """A folder of three images, and a JSON beside it."""
    for n in range(3):
        picture(tmp_path / "images" / f"{n}.png", n)
    write(tmp_path / "told.json", annotations(["0.png", "1.png", "2.png"]))
    return tmp_path


def boxes_of(pack: Pack) -> dict[str, tuple[list[Any], list[Any]]]:
    reader, run = PackStore(pack, pack.fields), one_run(0, pack.rows)
    found = []
    for name in ("boxes", "box_label"):
        found.append([row.tolist() for row in reader.decoded(name, run)])
    reader.close()
    return {key: (boxes, labels) for key, boxes, labels in zip(pack.keys(), *found, strict=True)}


def changed(flat: Path, **lists: Any) -> Path:
    return write(flat / "told.json", {**annotations(["0.png", "1.png", "2.png"]), **lists})


def converted(flat: Path, **options: Any) -> Pack:
    options = {"labels": flat / "told.json"} | options
    convert_images(flat / "images", flat / "out.h5", size=8, overwrite=True, **options)
    return open_pack(flat / "out.h5")


def refused(flat: Path) -> str:
    with pytest.raises(PackerError) as error:
        converted(flat)
    assert not (flat / "out.h5").exists()
    return str(error.value)


def test_shares_of_the_sides_become_pixels(flat: Path) -> None:
    told = annotations(["0.png", "1.png", "2.png"])
    for entry in told["annotations"]:
        entry["bbox"] = [side / 8 for side in entry["bbox"]]
    write(flat / "shares.json", told)
    packs = []
    for name, unit in (("told", None), ("shares", "relative")):
        out = flat / f"{name}.h5"
        convert_images(flat / "images", out, size=8, labels=Labels(flat / f"{name}.json", boxes_unit=unit))
        packs.append(boxes_of(open_pack(out)))
    assert packs[0] == packs[1]
    with pytest.raises(
        UsageError, match=r"shares.json: the largest coordinate of its boxes is 1, like shares of"
    ):
        convert_images(flat / "images", flat / "no.h5", size=8, labels=flat / "shares.json")


def test_boxes_are_corners_and_labels_number_the_categories_by_their_ids(flat: Path) -> None:
    pack = converted(flat)
    assert pack.header.classes == ("ear", "tail", "paw")
    assert boxes_of(pack) == {
        "0.png": ([[1, 2, 4, 6], [0, 0, 8, 8]], [0, 2]),
        "1.png": ([], []),
        "2.png": ([[0.5, 1.5, 2.5, 3.5]], [1]),
    }


def test_a_pack_is_that_of_a_csv_of_the_same_boxes(flat: Path) -> None:
    convert_images(flat / "images", flat / "json.h5", size=4, labels=flat / "told.json", fit="pad")
    rows = [
        "file,name,x0,y0,x1,y1",
        "0.png,ear,1,2,4,6",
        "0.png,paw,0,0,8,8",
        "1.png,,,,,",
        "2.png,tail,0.5,1.5,2.5,3.5",
    ]
    (flat / "labels.csv").write_text("\n".join(rows))
    told = {
        "labels": Labels(flat / "labels.csv", column="name", boxes="x0,y0,x1,y1"),
        "classes": "ear,tail,paw",
    }
    convert_images(flat / "images", flat / "csv.h5", size=4, fit="pad", **told)  # type: ignore[arg-type]
    first, second = open_pack(flat / "json.h5"), open_pack(flat / "csv.h5")
    assert boxes_of(first) == boxes_of(second)
    assert (first.header.classes, first.fields) == (second.header.classes, second.fields)


@pytest.mark.parametrize(
    "places",
    [("train2017", "val2017"), ("images/train2017", "images/val2017"), ("images", "images"), ("", "")],
)
def test_a_folder_laid_out_as_coco_is_found_by_itself(tmp_path: Path, places: tuple[str, str]) -> None:
    shared = places[0] == places[1]
    for k, (place, split) in enumerate(zip(places, ("train2017", "val2017"), strict=True)):
        names = [f"{n + 3 * k if shared else n}.png" for n in range(3)]
        for n, name in enumerate(names):
            picture(tmp_path / place / name, 10 * k + n)
        write(tmp_path / "annotations" / f"instances_{split}.json", annotations(names))
    (tmp_path / "annotations" / "captions_train2017.json").write_text("{}")
    convert_images(tmp_path, tmp_path / "out.h5", size=8, shuffle=False)
    pack = open_pack(tmp_path / "out.h5")
    assert {name: list(map(tuple, spans)) for name, spans in pack.header.splits.items()} == {
        "train": [(0, 3)],
        "val": [(3, 6)],
    }
    assert [len(boxes) for boxes, _ in boxes_of(pack).values()] == [2, 0, 1] * 2
    assert pack.header.classes == ("ear", "tail", "paw")


def test_one_file_of_annotations_is_no_split_and_other_images_are_left_out(tmp_path: Path) -> None:
    for n in range(3):
        picture(tmp_path / "val2017" / f"{n}.png", n)
    picture(tmp_path / "unlabeled2017" / "9.png", 9)
    write(tmp_path / "annotations" / "instances_val2017.json", annotations(["0.png", "1.png", "2.png"]))
    with open_source(tmp_path) as source:
        assert source.splits == {}
        assert source.keys == [f"val2017/{n}.png" for n in range(3)]
        assert (
            "Left out, outside the folders and lists of the annotations: 1 image, such as unlabeled2017/9.png."
            in source.findings.notes
        )


def test_crowds_and_boxes_without_area_are_left_out_with_a_note(flat: Path) -> None:
    told = annotations(["0.png", "1.png", "2.png"])["annotations"]
    crowd = {"image_id": 101, "category_id": 2, "bbox": [0, 0, 5, 5], "iscrowd": 1}
    line = {"image_id": 101, "category_id": 2, "bbox": [1, 1, 5, 0.0]}
    changed(flat, annotations=[*told, crowd, line, line])
    report = convert_images(flat / "images", flat / "out.h5", size=8, labels=flat / "told.json")
    assert boxes_of(open_pack(flat / "out.h5"))["1.png"] == ([], [])
    assert report.notes[-4:] == (
        "Read as COCO annotations: 3 boxes of 3 classes.",
        "2 annotations whose boxes have no area are left out.",
        "1 annotations of crowds are left out.",
        "3 boxes on 2 images; 1 image without boxes, such as 1.png.",
    )


USUAL = annotations(["0.png", "1.png", "2.png"])
FIRST = USUAL["annotations"][0]
NEEDED = ". Correct it, or pass on_error='skip'."


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"image_id": None}, "annotation 1 has the image_id None, which no image has"),
        ({"image_id": 999}, "annotation 1 has the image_id 999, which no image has"),
        ({"image_id": [1]}, "annotation 1 has the image_id [1], which no image has"),
        ({"category_id": None}, "annotation 1 has the category_id None, which no category has"),
        ({"category_id": 3}, "annotation 1 has the category_id 3, which no category has"),
        ({"category_id": {}}, "annotation 1 has the category_id {}, which no category has"),
        ({"bbox": None}, "annotation 1 has no bbox of four finite numbers"),
        ({"bbox": [1, 2, 3]}, "annotation 1 has no bbox of four finite numbers"),
        ({"bbox": [1, 2, 3, "4"]}, "annotation 1 has no bbox of four finite numbers"),
        ({"bbox": [1, 2, 3, float("nan")]}, "annotation 1 has no bbox of four finite numbers"),
        ({"bbox": [1, 2, 3, 10**400]}, "annotation 1 has no bbox of four finite numbers"),
        ({"bbox": [True, 2, 3, 4]}, "annotation 1 has no bbox of four finite numbers"),
    ],
)
def test_annotations_that_cannot_be_used_are_one_sentence_or_skipped(
    flat: Path, entry: dict[str, Any], said: str
) -> None:
    path = changed(flat, annotations=[{**FIRST, **entry}, *USUAL["annotations"][1:]])
    assert refused(flat) == f"{path}: {said}{NEEDED}"
    pack = converted(flat, on_error="skip")
    assert pack.rows == (3 if "image_id" in entry else 2)
    assert len(pack.header.skipped) == 1
    assert said.removeprefix("annotation 1 ") in pack.header.skipped[0]["reason"]


@pytest.mark.parametrize(
    ("lists", "said"),
    [
        ({"images": None}, "has no list images; COCO annotations are needed"),
        ({"annotations": {}}, "has no list annotations"),
        ({"categories": []}, "has no categories; the labels of boxes number them. Add them."),
        ({"categories": [{"id": 1}]}, "category 1 has no id or no name; each has both. Correct it."),
        ({"categories": [*CATEGORIES, {"id": 7, "name": "x"}]}, "two categories have the id 7 or the name x"),
        (
            {"categories": [*CATEGORIES, {"id": 8, "name": "ear"}]},
            "two categories have the id 8 or the name ear",
        ),
        (
            {"images": [{"file_name": "0.png"}]},
            "image 1 has no id; each has an id and a file_name. Correct it.",
        ),
        ({"images": [{"id": 1}]}, "image 1 has no file_name; each has an id and a file_name. Correct it."),
        ({"images": [7]}, "image 1 is not a JSON object; COCO entries are. Correct it."),
        ({"images": [USUAL["images"][0]] * 2}, "two images have the id 100; ids are unique. Correct it."),
        ({"images": [*USUAL["images"], {"id": 5, "file_name": "0.png"}]}, "0.png is listed twice"),
        ({"annotations": [7]}, "annotation 1 is not a JSON object; COCO entries are. Correct it."),
    ],
)
def test_other_lists_are_one_sentence(flat: Path, lists: dict[str, Any], said: str) -> None:
    path = changed(flat, **lists)
    assert refused(flat).startswith(f"{path}: {said}")


def test_images_that_are_not_listed_are_one_sentence_or_skipped(flat: Path) -> None:
    picture(flat / "images" / "new.png", 5)
    picture(flat / "images" / "more.png", 6)
    assert refused(flat) == (
        f"{flat / 'told.json'}: does not list more.png and 1 more; images without objects are listed, too. Add them, "
        "or pass labels=Labels(unlisted='empty') if they have none, or pass on_error='skip'."
    )
    labels = Labels(flat / "told.json", unlisted="empty")
    convert_images(flat / "images", flat / "all.h5", size=8, labels=labels)
    assert boxes_of(open_pack(flat / "all.h5"))["new.png"] == ([], [])
    pack = converted(flat, on_error="skip")
    assert pack.rows == 3
    assert {s["key"]: s["reason"] for s in pack.header.skipped} == {
        "more.png": "is not listed in told.json.",
        "new.png": "is not listed in told.json.",
    }


def test_images_that_are_listed_and_not_there_are_one_sentence_or_skipped(flat: Path) -> None:
    (flat / "images" / "2.png").unlink()
    assert refused(flat) == (
        f"{flat / 'told.json'}: image 3 is called 2.png, a name that no file or several files have. Correct it, "
        "or pass on_error='skip'."
    )
    pack = converted(flat, on_error="skip")
    assert pack.rows == 2
    assert pack.header.skipped == (
        {"key": "told.json image 3", "reason": "is called 2.png, a name that no file or several files have."},
    )


def test_an_image_of_another_size_than_listed_is_refused(flat: Path) -> None:
    picture(flat / "images" / "0.png", 0, (16, 8))
    assert "has 8 x 16 pixels, but its boxes in told.json are for 8 x 8." in refused(flat)
    told = annotations(["0.png", "1.png", "2.png"])
    for image in told["images"]:
        del image["width"]
    write(flat / "told.json", told)
    assert converted(flat).rows == 3


def test_a_box_outside_its_image_names_the_annotation(flat: Path) -> None:
    changed(flat, annotations=[{**FIRST, "id": 42, "bbox": [20, 20, 4, 4]}])
    assert "its box 20,20,24,24 (told.json annotation 42) lies outside its 8 x 8 pixels." in refused(flat)


def test_file_names_match_in_any_unicode_form(flat: Path) -> None:
    before = boxes_of(converted(flat))
    (flat / "images" / "0.png").rename(flat / "images" / "cafe\u0301.png")
    (flat / "told.json").rename(flat / "told.txt")
    write(flat / "told.txt", annotations(["caf\u00e9.png", "1.png", "2.png"]))
    after = boxes_of(converted(flat, labels=flat / "told.txt"))
    assert after == {"cafe\u0301.png" if key == "0.png" else key: value for key, value in before.items()}


def test_damaged_json_is_one_sentence(flat: Path) -> None:
    path = flat / "told.json"
    whole = path.read_text()
    for text in (whole[:-5], "", "[" * 100_000, "\0", "[]", "7"):
        path.write_text(text)
        said = refused(flat)
        damaged = f"{path}: damaged or truncated JSON; labels as CSV, JSON, .xlsx or Parquet are needed. Get it again."
        no_rows = f"{path}: holds no rows; a row for each image is needed. Add them."
        assert said.startswith((damaged, no_rows, f"{path} line 1: "))


def test_files_of_other_categories_do_not_go_together(tmp_path: Path) -> None:
    for word in ("train", "val"):
        picture(tmp_path / word / "0.png", 0)
        told = annotations(["0.png"])
        told["categories"] = (
            CATEGORIES if word == "train" else [{"id": 2, "name": "ear"}, {"id": 90, "name": "leg"}]
        )
        write(tmp_path / "annotations" / f"instances_{word}.json", told)
    with pytest.raises(
        PackerError, match=r"instances_val\.json: its categories differ from those of .*instances_train\.json"
    ):
        open_source(tmp_path)


def test_options_about_a_csv_are_refused(flat: Path) -> None:
    with pytest.raises(
        UsageError,
        match=r"^labels=Labels\(boxes='a,b,c,d'\): applies to columns, but .*told\.json holds COCO annotations\. Leave it out\.",
    ):
        converted(flat, labels=Labels(flat / "told.json", boxes="a,b,c,d"))


def test_boxes_that_only_fit_as_corners_are_refused_unless_told(flat: Path) -> None:
    told = annotations(["0.png", "1.png", "2.png"])["annotations"]
    corners = [{**entry, "bbox": [1, 2, 7 + k % 2, 8]} for k, entry in enumerate(told * 2)]
    path = changed(flat, annotations=corners)
    assert refused(flat) == (
        f"{path}: read as left, top, width, height, 6 of 6 boxes have no area or lie outside their image; all fit as "
        "left, top, right, bottom. Pass labels=Labels(boxes_format='xyxy'), or labels=Labels(boxes_format='xywh') to "
        "read them so."
    )
    labels = Labels(path, boxes_format="xyxy")
    convert_images(flat / "images", flat / "all.h5", size=8, labels=labels)
    found = [box for boxes, _ in boxes_of(open_pack(flat / "all.h5")).values() for box in boxes]
    assert sorted(found) == [[1, 2, 7, 8]] * 3 + [[1, 2, 8, 8]] * 3
