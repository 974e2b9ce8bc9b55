"""Columns that are not chosen: the classes of boxes, the sizes of images; images that a CSV does not list."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from packer.errors import PackerError
from packer.inputs.findings import Findings
from packer.inputs.image_targets import ImageTargets
from packer.inputs.label_options import Labels
from packer.pixels.row_placement import ImagePlacement
from tests.inputs.named_images import read_targets

KEYS = ["a.jpg", "b.jpg", "c.jpg"]
CORNERS = "xmin,ymin,xmax,ymax"
WHOLE = ImagePlacement.for_fit("stretch", (400, 400), (400, 400))


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read(header: str, rows: Sequence[str], keys: Sequence[str] = KEYS, **options: Any) -> ImageTargets:
    Path("l.csv").write_text("\n".join([header, *rows]) + "\n")
    options = {"boxes": CORNERS} | options
    return read_targets(Labels("l.csv", **options), list(keys), Findings())


def refused(*given: Any, **options: Any) -> str:
    with pytest.raises(PackerError) as error:
        read(*given, **options)
    return str(error.value)


def boxed(*more: str) -> list[str]:
    """Return nine rows, three an image, with the given cells behind the corners."""
    return [f"{KEYS[k % 3]},{k},{k},{k + 9},{k + 20},{','.join(more).format(k=k)}" for k in range(9)]


def label_of(header: str, cells: list[list[str]], **options: Any) -> tuple[list[str] | None, str]:
    """Return the classes (or the numbers) and the note. cells: of the columns behind the corners, in turn."""
    rows = [row.removesuffix(",") for row in boxed("")]
    rows = [",".join([row, *(column[k % len(column)] for column in cells)]) for k, row in enumerate(rows)]
    targets = read(f"file,{CORNERS},{header}", rows, **options)
    assert targets.boxes is not None
    numbers = None if targets.boxes.labels is None else sorted({*map(str, targets.boxes.labels.tolist())})
    return targets.classes or numbers, " ".join(targets.findings.notes)


ANIMALS = ["cat", "dog", "cat"]
FRACTIONS = [f"0.{k}" for k in range(11, 20)]


def test_the_only_column_of_names_is_the_class() -> None:
    assert label_of("species", [ANIMALS]) == (
        ["cat", "dog"],
        "box_label is the column species (cat, dog). labels=Labels(column=) chooses another column, "
        "labels=Labels(column='') none.",
    )
    classes, note = label_of("score,difficult,class", [FRACTIONS, ["0", "1"], ANIMALS])
    assert classes == ["cat", "dog"]
    assert note.startswith("box_label is the column class (cat, dog); score, difficult are not read. ")
    assert label_of("kind", [["face"]])[0] == ["face"]


def test_without_names_the_only_column_of_few_numbers_is_the_class() -> None:
    assert label_of("category", [["3", "0", "1"]])[0] == ["0", "1", "3"]
    assert label_of("category,area,crowd", [["3", "0", "1"], FRACTIONS, ["0"]])[0] == ["0", "1", "3"]
    assert label_of("category", [["0"]])[0] == ["0"]


def test_measures_and_texts_that_differ_in_each_row_are_no_class() -> None:
    assert label_of("score,uid", [FRACTIONS, [f"u{k}" for k in range(9)]]) == (
        None,
        "There is no box_label: score, uid are not read; labels=Labels(column=) chooses a column.",
    )


def test_several_columns_of_names_are_refused() -> None:
    assert label_of("by,class", [["ann"], ANIMALS])[0] == ["cat", "dog"]
    with pytest.raises(PackerError, match=r"columns kind \(face\) and hidden \(0, 1\) may hold the classes"):
        label_of("kind,hidden", [["face"], ["0", "1"]])
    rows = boxed("cat", "train")
    assert refused(f"file,{CORNERS},class,set", rows) == (
        "l.csv: columns class (cat) and set (train) may hold the classes; one of them becomes box_label. Pass "
        "labels=Labels(column='class'), or labels=Labels(column='') to read none."
    )
    assert read(f"file,{CORNERS},class,set", rows, column="class").classes == ["cat"]
    none = read(f"file,{CORNERS},class,set", rows, column="")
    assert [field.name for field in none.fields] == ["boxes"]
    assert Labels.from_record(Labels("l.csv", boxes=CORNERS, column="").record(), "l.csv").column == ()


def test_a_column_that_was_found_is_recorded_and_packs_without_one_stay_without() -> None:
    targets = read(f"file,{CORNERS},class", boxed("cat"))
    assert targets.read_as is not None
    assert targets.read_as.record() == {"boxes": CORNERS.split(","), "label": ["class"]}
    before = Labels.from_record({"boxes": CORNERS.split(",")}, "l.csv")
    again = read_targets(before, KEYS, Findings())
    assert [field.name for field in again.fields] == ["boxes"]


def test_the_class_beside_keypoints_is_the_label() -> None:
    rows = ["a.jpg,1,2,cat", "b.jpg,3,4,dog", "c.jpg,5,6,cat"]
    targets = read("file,x,y,kind", rows, boxes=None, keypoints="x,y")
    assert targets.classes == ["cat", "dog"]
    assert targets.fixed["label"].tolist() == [0, 1, 0]
    assert targets.findings.notes[0].startswith("label is the column kind (cat, dog). ")


def test_widths_and_heights_of_images_are_known_and_no_classes() -> None:
    header = "filename,width,height,class,xmin,ymin,xmax,ymax"
    rows = [f"{key},400,300,cat,1,2,390,299" for key in KEYS]
    targets = read(header, rows)
    assert targets.frames.sizes is not None
    assert targets.frames.sizes.tolist() == [[300, 400]] * 3
    assert targets.classes == ["cat"]
    assert "width" not in targets.findings.notes[0]
    with pytest.raises(PackerError) as error:
        targets.place(0, WHOLE)
    assert str(error.value) == (
        "has 400 x 400 pixels, but its boxes in l.csv are for 400 x 300. If they fit the image as it is, pass "
        "labels=Labels(boxes_frame='upright')."
    )
    targets.frames.settle("upright", {})
    assert targets.place(0, WHOLE)


def test_widths_and_heights_of_boxes_are_not_those_of_images() -> None:
    rows = [f"{key},40,{30 + k},{50 + k},{90 + k},50,60,cat" for k, key in enumerate(KEYS)]
    targets = read(f"file,{CORNERS},width,height,class", rows)
    assert targets.frames.sizes is None
    assert targets.findings.notes[0].startswith(
        "box_label is the column class (cat); width, height are not read."
    )


# Images that are not listed


def test_images_without_a_row_are_refused_unless_they_are_said_to_be_empty() -> None:
    rows = ["b.jpg,1,2,3,4"]
    assert refused(f"file,{CORNERS}", rows) == (
        "l.csv: no boxes for a.jpg and 1 more; every image needs a row (with empty cells if it has none). Add it, pass "
        "labels=Labels(unlisted='empty'), or pass on_error='skip'."
    )
    targets = read(f"file,{CORNERS}", [*rows, "a.jpg,,,,", "c.jpg,,,,"])
    same = read(f"file,{CORNERS}", rows, unlisted="empty")
    for index in range(3):
        assert targets.place(index, WHOLE) == same.place(index, WHOLE)


def test_points_of_images_without_a_row_are_missing_if_they_are_said_to_be() -> None:
    options = {"boxes": None, "keypoints": "x,y"}
    assert refused("file,x,y", ["b.jpg,1,2"], **options) == (
        "l.csv: no keypoints for a.jpg and 1 more; every image needs a row. Add it, pass "
        "labels=Labels(unlisted='empty'), or pass on_error='skip'."
    )
    targets = read("file,x,y", ["b.jpg,1,2"], unlisted="empty", **options)
    assert targets.keypoints is not None
    assert targets.keypoints[1].tolist() == [[1, 2]]
    assert targets.located.tolist() == [1]
