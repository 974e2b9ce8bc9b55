"""Boxes and points of photos that EXIF turns: as stored or upright, told by an option or by recorded sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from packer import Labels, convert_images, open_pack
from packer.errors import PackerError
from packer.orders.runs import one_run
from packer.read.array_store import PackStore

WIDTH, HEIGHT = 60, 40
BOX = (10, 4, 22, 30)  # white in the picture as stored
HEADER = "file,xmin,ymin,xmax,ymax"


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A photo of each EXIF orientation, 1.jpg to 8.jpg."""
    monkeypatch.chdir(tmp_path)
    pixels = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    pixels[BOX[1] : BOX[3], BOX[0] : BOX[2]] = 255
    (tmp_path / "photos").mkdir()
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[274] = orientation
        Image.fromarray(pixels).save(tmp_path / f"photos/{orientation}.jpg", exif=exif, quality=95)
    return tmp_path / "photos"


def fields(photos: Path, labels: Labels | str) -> tuple[dict[str, Any], str]:
    """Return the fields of the pack, and the note on EXIF."""
    report = convert_images(photos, "o.h5", size="keep", labels=labels, shuffle=False, overwrite=True)
    pack = open_pack("o.h5")
    store, run = PackStore(pack, pack.fields), one_run(0, pack.rows)
    ragged = [field.name for field in pack.fields if field.name in ("image", "boxes", "keypoints")]
    found = {
        name: store.array(name, run) if name == "keypoints" else store.decoded(name, run) for name in ragged
    }
    return found, " ".join(note for note in report.notes if "EXIF" in note)


def white(image: Any) -> list[int]:
    """Return left, top, right, bottom of the white pixels."""
    rows, columns = np.nonzero(np.asarray(image)[..., 0] > 128)
    return [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]


def check_all_right(found: dict[str, Any]) -> None:
    for image, boxes in zip(found["image"], found["boxes"], strict=True):
        np.testing.assert_allclose(boxes, [white(image)], atol=1.01)


def csv(header: str, cells: str) -> str:
    Path("l.csv").write_text("\n".join([header, *(f"{k}.jpg,{cells}" for k in range(1, 9))]))
    return "l.csv"


CORNERS = HEADER.removeprefix("file,")


def test_boxes_as_stored_lie_on_what_they_show(photos: Path) -> None:
    labels = Labels(csv(HEADER, "10,4,22,30"), boxes=CORNERS, boxes_frame="stored")
    found, note = fields(photos, labels)
    check_all_right(found)
    assert note == ""
    assert open_pack("o.h5").header.provenance["options"]["boxes_frame"] == "stored"
    shares = csv(HEADER, f"{10 / 60},{4 / 40},{22 / 60},{30 / 40}")
    check_all_right(
        fields(photos, Labels(shares, boxes=CORNERS, boxes_frame="stored", boxes_unit="relative"))[0]
    )


def test_points_as_stored_lie_on_what_they_show(photos: Path) -> None:
    labels = Labels(csv("file,x,y", "10,4"), keypoints="x,y", boxes_frame="stored")
    found, _ = fields(photos, labels)
    for image, points in zip(found["image"], found["keypoints"], strict=True):
        left, top, right, bottom = white(image)
        assert min(abs(points[0][0] - left), abs(points[0][0] - right)) < 1.01
        assert min(abs(points[0][1] - top), abs(points[0][1] - bottom)) < 1.01


TURNED = "7 of 8 images examined are turned upright by their EXIF orientation, such as 2.jpg and 3.jpg"


def test_recorded_sizes_tell_the_frame(photos: Path) -> None:
    images = [{"id": k, "file_name": f"{k}.jpg", "width": WIDTH, "height": HEIGHT} for k in range(1, 9)]
    boxes = [{"id": k, "image_id": k, "category_id": 1, "bbox": [10, 4, 12, 26]} for k in range(1, 9)]
    coco = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "a"}]}
    Path("l.json").write_text(json.dumps(coco))
    found, note = fields(photos, "l.json")
    check_all_right(found)
    assert note == (
        f"{TURNED}; their boxes and points are read as those of the stored image, as the recorded sizes say. If all "
        "are those of the upright one, pass labels=Labels(boxes_frame='upright')."
    )
    sized = csv("file,width,height,xmin,ymin,xmax,ymax", "60,40,10,4,22,30")
    check_all_right(fields(photos, Labels(sized, boxes=CORNERS))[0])
    for entry in images[4:]:
        entry["width"], entry["height"] = HEIGHT, WIDTH
    Path("l.json").write_text(json.dumps(coco))
    found, note = fields(photos, "l.json")
    assert [boxes[0].tolist() for boxes in found["boxes"]] == [[*BOX]] * 8
    assert "are read as those of the upright image, as the recorded sizes say." in note


def test_without_sizes_boxes_are_those_of_the_upright_image_and_a_note_counts_turned_ones(
    photos: Path,
) -> None:
    found, note = fields(photos, Labels(csv(HEADER, "10,4,22,30"), boxes=CORNERS))
    assert [boxes[0].tolist() for boxes in found["boxes"]] == [[*BOX]] * 8
    assert note == (
        f"{TURNED}; their boxes and points are read as those of the upright image. If all are those of the stored one, "
        "pass labels=Labels(boxes_frame='stored')."
    )


def test_boxes_that_fit_only_the_stored_picture_are_refused(photos: Path) -> None:
    path = csv(HEADER, "10,4,58,30")
    with pytest.raises(PackerError) as error:
        fields(photos, Labels(path, boxes=CORNERS))
    assert str(error.value) == (
        f"{TURNED}; 4 of their boxes and points lie outside the upright image, and none outside the stored picture. Pass "
        "labels=Labels(boxes_frame='stored'), or labels=Labels(boxes_frame='upright') if they are those of the upright "
        "image."
    )
    assert fields(photos, Labels(path, boxes=CORNERS, boxes_frame="upright"))[1] == ""


def test_a_box_outside_a_turned_image_names_exif(photos: Path) -> None:
    with pytest.raises(PackerError) as error:
        fields(photos, Labels(csv(HEADER, "45,4,58,30"), boxes=CORNERS, boxes_frame="upright"))
    assert str(error.value) == (
        f"{photos}/5.jpg: its box 45,4,58,30 (l.csv line 6) lies outside its 40 x 60 pixels. Its EXIF orientation 5 "
        "turns it upright; if its coordinates are those of the stored picture, pass "
        "labels=Labels(boxes_frame='stored'). Remove it, or pass on_error='skip'."
    )


def test_turned_images_with_masks_are_counted(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "masks").mkdir()
    for k in range(1, 5):
        Image.new("L", (WIDTH, HEIGHT)).save(tmp_path / f"masks/{k}.png")
    for k in range(5, 9):
        Image.new("L", (HEIGHT, WIDTH)).save(tmp_path / f"masks/{k}.png")
    report = convert_images(photos, "o.h5", size=32, pairs={"mask": tmp_path / "masks"})
    assert (
        f"{TURNED}; their masks belong to the upright images. Masks made from pixels as stored have to be turned, too, "
        + ("unless they have that EXIF orientation themselves.")
        in report.notes
    )


def test_options_of_coordinates_without_any_are_refused(photos: Path) -> None:
    for name, value in (("boxes_frame", "stored"), ("unlisted", "empty"), ("boxes_unit", "pixels")):
        with pytest.raises(PackerError) as error:
            fields(photos, Labels(csv("file,label", "a"), **{name: value}))
        assert str(error.value) == (
            f"labels=Labels({name}={value!r}): applies to boxes and keypoints, but there are none. Pass "
            "labels=Labels(boxes=) or labels=Labels(keypoints=), or leave it out."
        )
