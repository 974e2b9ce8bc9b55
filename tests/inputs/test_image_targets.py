"""What a CSV says of each image, and where boxes and keypoints end up in the row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packer.errors import ImageError, SourceError, UsageError
from packer.format.fields import Field
from packer.inputs.boxes import Boxes, BoxTable
from packer.inputs.checks.label_checks import check_label_texts
from packer.inputs.findings import Findings
from packer.inputs.image_targets import ImageTargets
from packer.inputs.label_options import Labels
from packer.inputs.listing import Listing
from packer.inputs.opened_source import ImageSource
from packer.pixels.row_placement import ImagePlacement
from tests.inputs import named_images

KEYS = ["cat/1.jpg", "cat/2.png", "dog/3.jpg"]
CROP = ImagePlacement.for_fit("crop", (200, 400), (100, 100))  # shows x from 100 to 300, at half the size
Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    monkeypatch.chdir(tmp_path)

    def run(text: str) -> str:
        (tmp_path / "l.csv").write_text(text)
        return "l.csv"

    return run


def read_targets(path: str, keys: list[str], *, skip: bool = False, **chosen: Any) -> ImageTargets:
    """chosen: members of Labels, under the names by which packs record them."""
    labels = Labels.from_record({"unlisted": "empty"} | chosen if "boxes" in chosen else chosen, path)
    return named_images.read_targets(labels, keys, Findings(skip))


def refused(path: str, **chosen: Any) -> str:
    with pytest.raises((SourceError, UsageError)) as error:
        read_targets(path, KEYS, **chosen)
    return str(error.value)


def boxes_of(targets: ImageTargets, index: int, geometry: ImagePlacement = CROP) -> list[list[float]]:
    data = targets.place(index, geometry)["boxes"]
    assert isinstance(data, bytes)
    return np.frombuffer(data, "<f4").reshape(-1, 4).tolist()  # type: ignore[no-any-return]


def labels_of(targets: ImageTargets, index: int, geometry: ImagePlacement = CROP) -> list[int]:
    data = targets.place(index, geometry)["box_label"]
    assert isinstance(data, bytes)
    return np.frombuffer(data, "<i8").tolist()  # type: ignore[no-any-return]


# Labels


@pytest.mark.parametrize(
    ("text", "dtype", "values", "classes"),
    [
        ("1,5\n2,0\n3,7\n", "<i8", [5, 0, 7], None),
        ("file,label\n3,ant\n1,wolf\n2,ant\n", "<i8", [1, 0, 0], ["ant", "wolf"]),
        ("1,0.5\n2,1\n3,2\n", "<f4", [0.5, 1, 2], None),
        ("1,1.0\n2,-1\n3,+2\n", "<i8", [1, -1, 2], None),
    ],
)
def test_two_columns(
    write: Write, text: str, dtype: str, values: list[float], classes: list[str] | None
) -> None:
    targets = read_targets(write(text), KEYS)
    assert targets.fields == (Field("label", dtype, ()),)
    assert targets.fixed["label"].tolist() == values
    assert targets.fixed["label"].dtype.str == dtype
    assert targets.classes == classes
    assert not targets.needs_geometry
    assert targets.place(0, CROP) == {}


def test_one_column_of_many(write: Write) -> None:
    targets = read_targets(write("file,age,species\n3,5,ant\n1,4,wolf\n2,9,ant\n"), KEYS, label="species")
    assert targets.fixed["label"].tolist() == [1, 0, 0]
    assert targets.classes == ["ant", "wolf"]


@pytest.mark.parametrize("chosen", ["height, age", ["height", "age"]])
def test_several_columns(write: Write, chosen: str | list[str]) -> None:
    targets = read_targets(write("file,age,height\n3,5,1.5\n1,4,-2\n2,9,3\n"), KEYS, label=chosen)
    assert targets.fields == (Field("label", "<f4", (2,), {"columns": ["height", "age"]}),)
    assert targets.fixed["label"].tolist() == [[-2, 4], [3, 9], [1.5, 5]]
    assert targets.classes is None
    assert targets.strata is None


def test_several_columns_of_zeros_and_ones(write: Write) -> None:
    targets = read_targets(write("file,old,tall\n3,0,1\n1,1,1\n2,0,0\n"), KEYS, label="old,tall")
    assert targets.fields == (Field("label", "|u1", (2,), {"columns": ["old", "tall"]}),)
    assert targets.fixed["label"].tolist() == [[1, 1], [0, 0], [0, 1]]


@pytest.mark.parametrize("header", ["", "file,label\n"])
def test_cells_of_several_names_where_asked_for(write: Write, header: str) -> None:
    path = write(f"{header}3,fog|sun\n1,\n2,sun\n")
    targets = read_targets(path, KEYS, label_separator="|")
    assert targets.fields == (Field("label", "|u1", (2,), {"columns": ["fog", "sun"]}),)
    assert targets.fixed["label"].tolist() == [[0, 0], [0, 1], [1, 1]]
    assert targets.classes == ["fog", "sun"]
    write("1,rain\n2,sun\n3,fog|sun\n")
    assert read_targets(path, KEYS).classes == ["fog|sun", "rain", "sun"]


def test_a_wrong_label_is_named_with_its_column(write: Write) -> None:
    assert refused(write("file,a,b\n1,2,3\n2,2,inf\n3,4,5"), label="b") == (
        "l.csv line 3: b is inf; finite numbers, whole numbers from -2**63 to 2**63 - 1, or class names, are accepted. "
        "Correct it, or pass on_error='skip'."
    )
    assert refused(write("file,a,b\n1,2,3\n2,2,x\n3,4,5"), label="a,b") == (
        "l.csv line 3: b is x; finite numbers are accepted. Correct it, or pass on_error='skip'."
    )


def test_rows_that_disagree_in_any_chosen_column_are_refused(write: Write) -> None:
    path = write("file,a,b,c\n1,2,3,4\n2,2,3,4\n3,4,5,6\n1,2,3,9\n")
    assert read_targets(path, KEYS, label="a,b").fixed["label"].shape == (3, 2)
    assert refused(path, label="a,c") == (
        "l.csv line 5: cat/1.jpg has the label 2,9, but 2,4 in line 2; each image has one. "
        "Remove one of the rows, or pass on_error='skip'."
    )


def test_labels_of_folders() -> None:
    targets = ImageTargets(np.array([1, 0, 1]), ["a", "b"])
    assert targets.fields == (Field("label", "<i8", ()),)
    assert targets.classes == ["a", "b"]
    assert targets.strata is targets.fixed["label"]
    assert ImageTargets(None, None).fields == ()


def test_big_endian_labels_are_stored_little_endian() -> None:
    targets = ImageTargets(np.array([1, 2], ">i8"), None)
    assert targets.fixed["label"].dtype.str == "<i8"
    assert targets.fixed["label"].tolist() == [1, 2]


# Boxes

BOXES = """file,kind,xmin,ymin,xmax,ymax
1,wolf,150,50,250,150
3,ant,0,0,90,200
1,ant,200,0,400,100
3,,,,,
2,,,,,
"""
CORNERS = "xmin,ymin,xmax,ymax"


def test_boxes_move_with_the_picture_and_take_their_labels_along(write: Write) -> None:
    targets = read_targets(write(BOXES), KEYS, boxes=CORNERS, label="kind")
    assert targets.fields == (
        Field("boxes", "|u1", None, {"dtype": "<f4", "row_shape": [4], "format": "xyxy"}),
        Field("box_label", "|u1", None, {"dtype": "<i8", "row_shape": []}),
    )
    assert targets.needs_geometry
    assert targets.fixed == {}
    assert targets.strata is None
    assert targets.classes == ["ant", "wolf"]
    assert boxes_of(targets, 0) == [[25, 25, 75, 75], [50, 0, 100, 50]]
    assert labels_of(targets, 0) == [1, 0]
    assert boxes_of(targets, 1) == []
    assert labels_of(targets, 1) == []
    assert boxes_of(targets, 2) == []  # cropped away
    assert labels_of(targets, 2) == []
    stretched = ImagePlacement.for_fit("stretch", (200, 400), (100, 100))
    assert boxes_of(targets, 2, stretched) == [[0, 0, 22.5, 100]]
    assert labels_of(targets, 2, stretched) == [0]


def test_shares_of_the_sides_become_pixels(write: Write) -> None:
    text = "file,a,b,c,d\n1,0.375,0.25,0.625,0.75\n3,0,0,0.2,1\n"
    for unit in (None, "pixels", "relative"):
        targets = read_targets(write(text), KEYS, boxes="a,b,c,d")
        if unit is None:
            with pytest.raises(
                UsageError, match=r"^l.csv: the largest coordinate of its boxes is 1, like shares"
            ):
                targets.measured_in(unit, "l.csv")
            continue
        targets.measured_in(unit, "l.csv")
        expected = [[25, 25, 75, 75]] if unit == "relative" else []
        assert boxes_of(targets, 0) == expected
    targets = read_targets(write("file,x,y\n1,0.5,0.5\n2,,\n3,0.1,0.5\n"), KEYS, keypoints="x,y")
    with pytest.raises(UsageError, match=r"the largest coordinate of its keypoints is 0.5, like shares"):
        targets.measured_in(None, "l.csv")
    targets.measured_in("relative", "l.csv")
    np.testing.assert_array_equal(targets.place(0, CROP)["keypoints"], [[50, 50]])
    np.testing.assert_array_equal(targets.place(2, CROP)["keypoints"], [[np.nan, np.nan]])


def test_boxes_without_labels_and_images_without_rows(write: Write) -> None:
    targets = read_targets(write("file,xmin,ymin,xmax,ymax\n2,110,10,120,20\n"), KEYS, boxes=CORNERS)
    assert [field.name for field in targets.fields] == ["boxes"]
    assert [len(boxes_of(targets, index)) for index in range(3)] == [0, 1, 0]
    assert targets.place(0, CROP) == {"boxes": b""}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("2,a,nan,1,2,3", "xmin is nan; finite numbers are accepted. Correct it, or pass on_error='skip'."),
        ("2,a,1,inf,2,3", "ymin is inf; finite numbers are accepted. Correct it, or pass on_error='skip'."),
        ("2,a,1,2,,3", "xmax is empty; finite numbers are accepted. Correct it, or pass on_error='skip'."),
        ("2,a,1,2,x,3", "xmax is x; finite numbers are accepted. Correct it, or pass on_error='skip'."),
        (
            "2,a,5,2,5,3",
            "xmax is 5, and xmin 5; boxes have a width and a height. Correct or remove the row, or pass on_error='skip'.",
        ),
        (
            "2,a,1,2.5,5,-3",
            "ymax is -3, and ymin 2.5; boxes have a width and a height. Correct or remove the row, or pass on_error='skip'.",
        ),
        (
            "2,,1,2,5,3",
            "kind is empty; whole numbers from -2**63 to 2**63 - 1, or class names, are accepted. "
            "Correct it, or pass on_error='skip'.",
        ),
        (
            "2,0.5,1,2,5,3",
            "kind is 0.5; whole numbers from -2**63 to 2**63 - 1, or class names, are accepted. "
            "Correct it, or pass on_error='skip'.",
        ),
    ],
)
def test_boxes_that_are_refused(write: Write, row: str, message: str) -> None:
    path = write(f"file,kind,xmin,ymin,xmax,ymax\n1,,,,,\n{row}\n")
    assert refused(path, boxes=CORNERS, label="kind") == f"l.csv line 3: {message}"


@pytest.mark.parametrize("corners", ["-5,0,0,10", "400,0,410,10", "0,-9,10,-1", "0,200,10,210"])
def test_boxes_outside_the_picture_are_refused_when_its_size_is_known(write: Write, corners: str) -> None:
    path = write(f"file,xmin,ymin,xmax,ymax\n1,1,1,5,5\n1,{corners}\n")
    targets = read_targets(str(Path(path).absolute()), KEYS, boxes=CORNERS)
    with pytest.raises(ImageError) as error:
        targets.place(0, CROP)
    assert str(error.value) == f"its box {corners} (l.csv line 3) lies outside its 400 x 200 pixels."


def test_boxes_partly_outside_the_picture_are_clipped(write: Write) -> None:
    path = write("file,xmin,ymin,xmax,ymax\n1,-5,-5,410,210\n")
    stretched = ImagePlacement.for_fit("stretch", (200, 400), (100, 100))
    assert boxes_of(read_targets(path, KEYS, boxes=CORNERS), 0, stretched) == [[0, 0, 100, 100]]


def test_a_csv_without_any_box_is_refused(write: Write) -> None:
    assert refused(write("file,xmin,ymin,xmax,ymax\n1,,,,\n"), boxes=CORNERS) == (
        "l.csv: holds no boxes; some are needed. Check its columns."
    )


# Keypoints


def test_keypoints_are_fixed_fields_with_nan_for_what_is_not_seen(write: Write) -> None:
    text = "file,kind,x1,y1,x2,y2\n3,a,100,0,300,200\n1,b,200,100,,\n2,a,99,0,200,201\n"
    targets = read_targets(write(text), KEYS, keypoints="x1,y1,x2,y2", label="kind")
    assert targets.fields == (
        Field("label", "<i8", ()),
        Field("keypoints", "<f4", (2, 2), {"format": "xy", "unseen": "nan", "points": ["1", "2"]}),
    )
    assert targets.fixed["label"].tolist() == [1, 0, 0]
    points = [targets.place(index, CROP)["keypoints"] for index in range(3)]
    assert all(isinstance(p, np.ndarray) and p.dtype == np.float32 for p in points)
    expected = [[[50, 50], [np.nan, np.nan]], [[np.nan, np.nan]] * 2, [[0, 0], [100, 100]]]
    assert np.array_equal(np.array(points), np.array(expected), equal_nan=True)


def test_half_a_point_is_refused(write: Write) -> None:
    path = write("file,x1,y1,x2,y2\n1,1,2,3,4\n2,1,2,,4\n3,1,2,3,4\n")
    assert refused(path, keypoints="x1,y1,x2,y2") == (
        "l.csv line 3: x2 is empty, and y2 is not; a point has both or neither. Correct it, or pass on_error='skip'."
    )
    path = write("file,x1,y1,x2,y2\n1,1,2,3,4\n2,1,2,3,4\n3,1,,3,4\n")
    assert refused(path, keypoints="x1,y1,x2,y2") == (
        "l.csv line 4: y1 is empty, and x1 is not; a point has both or neither. Correct it, or pass on_error='skip'."
    )


def test_every_image_needs_keypoints_of_its_own(write: Write) -> None:
    assert refused(write("file,x,y\n1,1,2\n"), keypoints="x,y") == (
        "l.csv: no keypoints for cat/2.png and 1 more; every image needs a row. Add it, pass "
        "labels=Labels(unlisted='empty'), or pass on_error='skip'."
    )
    assert refused(write("file,x,y\n1,1,2\n1,1,3\n2,1,2\n3,1,2\n"), keypoints="x,y") == (
        "l.csv line 3: cat/1.jpg has the keypoints 1,3, but 1,2 in line 2; each image has one. "
        "Remove one of the rows, or pass on_error='skip'."
    )


def test_boxes_and_keypoints_together(write: Write) -> None:
    path = write("file,xmin,ymin,xmax,ymax,x,y\n1,110,10,120,20,200,100\n2,,,,,,\n3,1,1,300,20,1,1\n")
    targets = read_targets(path, KEYS, boxes=CORNERS, keypoints="x,y")
    assert [field.name for field in targets.fields] == ["boxes", "keypoints"]
    placed = targets.place(0, CROP)
    assert sorted(placed) == ["boxes", "keypoints"]
    assert np.asarray(placed["keypoints"]).tolist() == [[50, 50]]


# Choices


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (
            {"boxes": "a,b,c"},
            "boxes a,b,c: four columns are needed: left, top, right, bottom, or a corner or the centre, "
            "width and height; or one, of lists. Pass for example xmin,ymin,xmax,ymax.",
        ),
        (
            {"boxes_format": "xywh", "keypoints": "x,y"},
            "labels=Labels(boxes_format='xywh'): applies to columns of boxes, but none are given. Pass "
            "labels=Labels(boxes=), or leave it out.",
        ),
        (
            {"keypoints": "x,y,z"},
            "keypoints x,y,z: 3 columns; an x and a y for each point are needed. Pass both.",
        ),
        (
            {"label": "a,,b"},
            "labels=Labels(column=) 'a,,b': holds an empty name; names of columns are needed. Pass for "
            "example labels=Labels(column='a,b').",
        ),
        (
            {"label": []},
            "labels=Labels(column=) []: holds an empty name; names of columns are needed. Pass for "
            "example labels=Labels(column='a,b').",
        ),
        (
            {"label": "a,b", "boxes": CORNERS},
            "label a,b: 2 columns; one column is allowed with boxes, with class names and with a separator. Pass one column.",
        ),
        (
            {"label": "a", "keypoints": "a,b"},
            "column a: chosen twice; each column has one role. Pass it once.",
        ),
        (
            {"label": "a,b", "label_separator": "|"},
            "label a,b: 2 columns; one column is allowed with boxes, with class names and with a separator. Pass one column.",
        ),
    ],
)
def test_choices_that_make_no_sense(chosen: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as error:
        read_targets("none.csv", KEYS, **chosen)
    assert str(error.value) == message


# Other classes


def test_labels_are_renumbered(write: Write) -> None:
    targets = read_targets(write("1,wolf\n2,ant\n3,wolf\n"), KEYS).renumbered(
        ("ant", "bee", "wolf"), "photos"
    )
    assert targets.fixed["label"].tolist() == [2, 0, 2]
    assert targets.classes == ["ant", "bee", "wolf"]


def test_whole_numbers_are_renumbered_as_names(write: Write) -> None:
    targets = read_targets(write("1,7\n2,10\n3,7\n"), KEYS).renumbered(["10", "7", "ant"], "photos")
    assert targets.fixed["label"].tolist() == [1, 0, 1]


def test_multi_hot_labels_are_renumbered(write: Write) -> None:
    targets = read_targets(write("1,c|a\n2,\n3,c\n"), KEYS, label_separator="|").renumbered(
        ["a", "b", "c"], "photos"
    )
    assert targets.fields == (Field("label", "|u1", (3,), {"columns": ["a", "b", "c"]}),)
    assert targets.fixed["label"].tolist() == [[1, 0, 1], [0, 0, 0], [0, 0, 1]]


def test_box_labels_are_renumbered(write: Write) -> None:
    before = read_targets(write(BOXES), KEYS, boxes=CORNERS, label="kind")
    targets = before.renumbered(["ant", "bee", "wolf"], "photos")
    assert labels_of(targets, 0) == [2, 0]
    assert labels_of(before, 0) == [1, 0]
    assert boxes_of(targets, 0) == boxes_of(before, 0)
    assert targets.fields == before.fields
    assert targets.classes == ["ant", "bee", "wolf"]


def test_what_has_no_labels_stays(write: Write) -> None:
    targets = read_targets(write(BOXES), KEYS, boxes=CORNERS)
    assert targets.renumbered(["a"], "photos") is targets
    assert ImageTargets().renumbered(["a"], "photos").fields == ()


@pytest.mark.parametrize(
    ("text", "found", "remedy"),
    [
        ("1,b\n2,cow\n3,c\n", "the class cow", "Leave its images out, add it, or pass on_error='skip'."),
        (
            "1,0\n2,1\n3,2\n",
            "the class 0",
            "Write names for the numbers; of WebDataset tars, in a classes.txt beside them.",
        ),
        ("1,0.5\n2,1\n3,2\n", "labels that are not classes", "Leave out the classes."),
    ],
)
def test_other_classes_are_refused(write: Write, text: str, found: str, remedy: str) -> None:
    targets = read_targets(write(text), KEYS)
    with pytest.raises(UsageError) as error:
        targets.renumbered(["a", "b", "c", "d"], "photos")
    assert str(error.value) == f"photos: holds {found}; 4 classes, a, b, c ..., are allowed. {remedy}"


@pytest.mark.parametrize("name", ["../cat/1.jpg", "/cat/1.jpg", "/etc/passwd", "cat/../../cat/1.jpg"])
@pytest.mark.parametrize("chosen", [{}, {"label": "a"}])
def test_paths_out_of_the_folder_name_no_image(write: Write, name: str, chosen: dict[str, str]) -> None:
    assert refused(write(f"file,a\n1,0\n{name},1\n"), **chosen) == (
        f"l.csv line 3: no image is called {name}; names are paths relative to the images' folder, such as cat/1.jpg, their ends, or "
        "unique names without extension, in one of the columns file, a. Correct the row, pass labels=Labels(file_column=) for another "
        "column, or pass on_error='skip'."
    )


def test_fingerprints_tell_what_differs(write: Write) -> None:
    def print_of(text: str, **chosen: Any) -> bytes:
        return read_targets(write(text), KEYS, **chosen).fingerprint()

    chosen = {"boxes": CORNERS, "label": "kind"}
    other = BOXES.replace("wolf", "bear")
    found = {
        print_of(BOXES, **chosen),
        print_of(BOXES.replace("250", "251"), **chosen),
        print_of(other, **chosen),
        print_of(BOXES, boxes=CORNERS),
        print_of("file,x,y\n1,1,2\n2,1,2\n3,1,2\n", keypoints="x,y"),
        print_of("1,1\n2,2\n3,3\n"),
        print_of("1,1\n2,2\n3,4\n"),
        ImageTargets().fingerprint(),
    }
    assert len(found) == 8
    assert print_of(BOXES, **chosen) in found


# How labels are taken


def test_separators_and_what_is_said_of_them(write: Write) -> None:
    path = write("1,cat dog\n2,cat\n3,\n")
    targets = read_targets(path, KEYS, label_separator="space")
    assert targets.classes == ["cat", "dog"]
    assert targets.findings.notes == ["Cells hold class names: 2 classes, cat, dog."]
    assert read_targets(path, KEYS, label_separator="comma").classes == ["cat", "cat dog"]
    assert read_targets(path, KEYS, label_separator=" d").classes == ["cat", "og"]


def test_a_column_of_splits_that_is_not_read_is_told(write: Write) -> None:
    path = write("file,kind,part\n1,cat,train\n2,dog,Test\n3,cat,train\n")
    assert read_targets(path, KEYS, label="kind").findings.notes == [
        "l.csv: the column part names splits (test, train), and is not read. Pass split=Split(column='part') for these "
        "splits."
    ]
    path = write("file,kind,part\n1,cat,train\n2,dog,tram\n3,cat,train\n")
    assert read_targets(path, KEYS, label="kind").findings.notes == []


def test_several_labels_of_a_box_are_told(write: Write) -> None:
    text = "file,p,q,r,s,kind\n1,0,0,5,5,cat dog\n1,1,1,5,5,cat\n2,0,0,5,5,dog\n3,,,,,\n"
    targets = read_targets(write(text), KEYS, label="kind", boxes="p,q,r,s")
    source = ImageSource(KEYS, np.ones(3, np.int64), np.zeros(3, np.int64)).describe("pets", targets, {})
    (found,) = check_label_texts(Listing(source, targets, labels_given=True))
    assert found.error
    assert found.sentence.endswith(
        "Write a row for each, or pass labels=Labels(as_='classes') if each text is a class."
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label_separator": ""}, "labels=Labels(separator=''): separates class names in a label column"),
        ({"label_separator": "|", "boxes": "p,q,r,s"}, "labels=Labels(separator='|'): separates class names in a label column"),
        ({"label_as": "float", "label_separator": "|"}, "labels=Labels(as_='float'): applies to labels that are numbers, but"),
        ({"label_as": "float", "keypoints": "x,y"}, "labels=Labels(as_='float'): applies to labels that are numbers"),
        ({"label_as": "float", "label": "a", "boxes": "p,q,r,s"}, "labels=Labels(as_='float'): applies to labels that are numbers"),
        ({"label_as": "text"}, "as_='text': is not one of 'auto', 'classes', 'float'."),
    ],
)  # fmt: skip
def test_ways_to_take_labels_that_make_no_sense(write: Write, options: dict[str, Any], message: str) -> None:
    assert refused(write("1,a\n"), **options).startswith(message)


def test_refused_images_count_in_the_fingerprint(write: Write) -> None:
    good = read_targets(write("1,0\n2,1\n3,0\n"), KEYS, skip=True)
    bad = read_targets(write("1,0\n2,1\n3,nan\n"), KEYS, skip=True)
    assert good.fixed["label"].tolist() == bad.fixed["label"].tolist()
    assert good.fingerprint() != bad.fingerprint()
    assert bad.findings.refused == {2: "the label is nan (l.csv line 3)."}
    assert len(set(bad.strata.tolist())) == 3  # type: ignore[union-attr]


def test_a_csv_of_a_header_alone_is_refused_where_images_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("file,label\n")
    with pytest.raises(SourceError, match="holds no rows; a row for each image is needed"):
        read_targets(str(tmp_path / "labels.csv"), ["a.jpg", "b.jpg"], label=["label"], skip=True)


@pytest.mark.parametrize("chosen", [{}, {"label": ["cls"], "boxes": ["l", "t", "r", "b"]}])
def test_labels_of_which_all_are_refused_are_renumbered(write: Write, chosen: dict[str, list[str]]) -> None:
    columns = "file,cls,l,t,r,b" if chosen else "file,cls"
    rows = [f"{key},nan" + (",1,2,3,4" if chosen else "") for key in KEYS]
    targets = read_targets(
        write("\n".join([columns, *rows])), KEYS, skip=True, **{"label_as": "classes", **chosen}
    )
    made = targets.renumbered(["a", "b"], "photos")
    assert (made.classes, sorted(made.findings.refused)) == (["a", "b"], [0, 1, 2])


def test_the_rarest_class_of_each_image() -> None:
    hot = np.array([[1, 1, 0], [1, 0, 0], [0, 0, 0], [1, 1, 1]], np.uint8)
    assert ImageTargets(hot).rarest.tolist() == [1, 0, -1, 2]
    assert ImageTargets(np.array([4, 2, 4])).rarest.tolist() == [4, 2, 4]
    assert ImageTargets(np.array([0.5, 2])).rarest is None
    assert ImageTargets().rarest is None
    owners, labels = np.array([2, 0, 2, 0]), np.array([0, 0, 5, 0])
    corners, lines = np.tile([0.0, 0, 1, 1], (4, 1)), np.arange(4)
    for given, expected in ((labels, [0, -1, 5, -1]), (None, [0, -1, 0, -1])):
        boxes = Boxes(BoxTable(corners, owners, given, lines, "x"), 4)
        assert ImageTargets(boxes=boxes).rarest.tolist() == expected
