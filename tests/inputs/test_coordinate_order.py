"""Boxes and points whose columns are in another order or format than x, y, x, y: names, values, options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from packer import Labels, convert_images, open_pack
from packer.errors import PackerError, SourceError
from packer.orders.runs import one_run
from packer.packs.pack import Pack
from packer.read.array_store import PackStore

SIZES = [(64, 40), (40, 64), (80, 50)]


def drawn() -> dict[str, list[tuple[int, int, int, int]]]:
    """Return boxes of twelve images: some reach each edge."""
    boxes = {}
    for number in range(12):
        width, height = SIZES[number % 3]
        boxes[f"{number:02}.png"] = [
            (0, number % 5, width // 2, height),
            (width // 3, 0, width, height - 3),
            (width - 9, height - 8, width - 2, height),
        ]
    return boxes


BOXES = drawn()
ROWS = [[*box] for boxes in BOXES.values() for box in boxes]


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    for number, name in enumerate(BOXES):
        Image.new("RGB", SIZES[number % 3]).save(folder / name)
    return folder


def values(pack: Pack, name: str) -> Any:
    reader = PackStore(pack, pack.fields)
    found = reader.decoded(name, one_run(0, pack.rows))
    reader.close()
    return found


class Run:
    """Conversions of the images with labels in l.csv."""

    def __init__(self, images: Path, folder: Path) -> None:
        self.images, self.folder, self.notes = images, folder, ""
        self.pack: Pack | None = None

    def __call__(
        self, names: str, made: Callable[..., tuple[float, ...]], **options: Any
    ) -> list[list[float]]:
        """Convert; made: left, top, right, bottom -> the cells. Returns: all boxes."""
        lines = [f"file,{names}"]
        for name, boxes in BOXES.items():
            lines += [",".join(map(str, (name, *made(*box)))) for box in boxes]
        (self.folder / "l.csv").write_text("\n".join(lines))
        labels = Labels("l.csv", **{"boxes": names, **options})
        report = convert_images(
            self.images, "o.h5", size="keep", labels=labels, shuffle=False, overwrite=True
        )
        self.pack = open_pack("o.h5")
        self.notes = " ".join(note for note in report.notes if "boxes are" in note)
        return [box for row in values(self.pack, "boxes") for box in row.tolist()]

    def refused(self, *given: Any, **options: Any) -> str:
        with pytest.raises(PackerError) as error:
            self(*given, **options)
        return str(error.value)


@pytest.fixture
def run(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    return Run(images, tmp_path)


def centre(a: int, b: int, c: int, d: int) -> tuple[float, ...]:
    return (a + c) / 2, (b + d) / 2, c - a, d - b


def corner(a: int, b: int, c: int, d: int) -> tuple[float, ...]:
    return a, b, c - a, d - b


def test_the_usual_order_gets_no_note(run: Run) -> None:
    assert run("xmin,ymin,xmax,ymax", lambda *box: box) == ROWS
    assert run.notes == ""


def test_names_decide(run: Run) -> None:
    assert run("ymin,xmin,ymax,xmax", lambda a, b, c, d: (b, a, d, c)) == ROWS
    assert run.notes == (
        "l.csv: boxes are left, top, right, bottom in the columns xmin, ymin, xmax, ymax, as their names say."
    )
    assert run("cx,cy,w,h", centre) == ROWS
    assert run.notes == (
        "l.csv: boxes are centre x, centre y, width, height in the columns cx, cy, w, h, as their names say."
    )


def test_values_tell_corners_from_centres_of_columns_called_x_y_w_h(run: Run) -> None:
    assert run("x,y,w,h", corner) == ROWS
    assert run.notes == (
        "l.csv: boxes are left, top, width, height in the columns x, y, w, h, as their values say: read as centre x, "
        "centre y, width, height, 24 of 36 boxes have no area or lie outside their image. To read them so, pass "
        "labels=Labels(boxes_format='cxcywh')."
    )
    assert run("x,y,w,h", centre) == ROWS
    assert run.notes.startswith(
        "l.csv: boxes are centre x, centre y, width, height in the columns x, y, w, h, as"
    )
    assert run.refused("x,y,w,h", lambda *box: box) == (
        "l.csv: read as left, top, width, height in the columns x, y, w, h, as their names say, 28 of 36 boxes have no "
        "area or lie outside their image; all fit as left, top, right, bottom in the columns x, y, w, h. Pass "
        "labels=Labels(boxes_format='xyxy'), or labels=Labels(boxes_format='xywh') to read them so."
    )


def test_shares_that_may_be_of_a_corner_or_a_centre_are_refused(run: Run) -> None:
    inside = lambda *_: (0.5, 0.5, 0.2, 0.2)  # noqa: E731
    assert run.refused("x,y,w,h", inside, boxes_unit="relative") == (
        "l.csv: x, y, w, h may be left, top, width, height or centre x, centre y, width, height; names and values do "
        "not tell. Pass labels=Labels(boxes_format='xywh') or labels=Labels(boxes_format='cxcywh')."
    )
    assert run("x,y,w,h", inside, boxes_unit="relative", boxes_format="xywh")[0][:2] == [32, 20]


@pytest.mark.parametrize(
    ("made", "ordered", "format"),
    [
        (lambda a, b, c, d: (a, b, c, d), "abcd", "xyxy"),
        (lambda a, b, c, d: (b, a, d, c), "badc", "xyxy"),
        (lambda a, b, c, d: (a, c, b, d), "acbd", "xyxy"),
        (corner, "abcd", "xywh"),
        (centre, "abcd", "cxcywh"),
    ],
)
def test_values_decide_where_names_say_nothing(
    run: Run, made: Callable[..., tuple[float, ...]], ordered: str, format: str
) -> None:
    assert run("a,b,c,d", made) == ROWS
    assert f"in the columns {', '.join(ordered)}, as " in run.notes
    assert run.pack is not None
    record = run.pack.header.provenance["options"]
    assert (record["boxes"], record["boxes_format"]) == (list(ordered), format)


def test_values_that_contradict_names_are_refused_with_what_settles_it(run: Run) -> None:
    assert run.refused("x1,y1,x2,y2", corner) == (
        "l.csv: read as left, top, right, bottom in the columns x1, y1, x2, y2, as their names say, 12 of 36 boxes have "
        "no area or lie outside their image; all fit as left, top, width, height in the columns x1, y1, x2, y2. Pass "
        "labels=Labels(boxes_format='xywh'), or labels=Labels(boxes_format='xyxy') to read them so."
    )
    assert run("x1,y1,x2,y2", corner, boxes_format="xywh") == ROWS

    swapped = lambda a, b, c, d: (b, a, d, c)  # noqa: E731
    assert run.refused("x1,y1,x2,y2", swapped).endswith(
        "all fit as left, top, right, bottom in the columns y1, x1, y2, x2. Pass labels=Labels(boxes='y1,x1,y2,x2') "
        "and labels=Labels(boxes_format='xyxy'), or labels=Labels(boxes_format='xyxy') to read them so."
    )


def test_a_format_is_believed_unless_names_and_values_say_another_order(run: Run) -> None:
    swapped = lambda a, b, c, d: (b, a, d, c)  # noqa: E731
    assert run.refused("y1,x1,y2,x2", swapped, boxes_format="xyxy") == (
        "l.csv: read as left, top, right, bottom in the columns y1, x1, y2, x2, 28 of 36 boxes have no area or lie "
        "outside their image; all fit as left, top, right, bottom in the columns x1, y1, x2, y2, as their names say. "
        "Leave out labels=Labels(boxes_format='xyxy')."
    )
    assert run("y1,x1,y2,x2", lambda *box: box, boxes_format="xyxy") == ROWS
    assert run.notes == (
        "l.csv: boxes are left, top, right, bottom in the columns y1, x1, y2, x2, as "
        "labels=Labels(boxes_format='xyxy') says; their names say another order."
    )


def test_a_single_wrong_row_is_that_row(run: Run) -> None:
    one = lambda a, b, c, d: (c, b, a, d) if (a, b) == (0, 0) else (a, b, c, d)  # noqa: E731
    assert run.refused("xmin,ymin,xmax,ymax", one) == (
        "l.csv line 2: xmax is 0, and xmin 32; boxes have a width and a height. Correct or remove the row, or pass "
        "on_error='skip'."
    )
    negative = lambda a, b, c, d: (a, b, a - c if (a, b) == (0, 0) else c - a, d - b)  # noqa: E731
    assert run.refused("left,top,width,height", negative) == (
        "l.csv line 2: width is -32; boxes have a width and a height. Correct or remove the row, or pass "
        "on_error='skip'."
    )


def test_mixed_and_contradicting_units_are_refused(run: Run) -> None:
    share = lambda a, b, c, d: (0.1, 0.1, 0.9, 0.5) if (a, b) == (0, 0) else (a, b, c, d)  # noqa: E731
    assert run.refused("x1,y1,x2,y2", share) == (
        "l.csv: 3 of 36 boxes have only coordinates up to 1, like shares of an image's width and height, and the others "
        "reach 80; all have one unit. Correct them, or pass labels=Labels(boxes_unit='pixels') if all are pixels."
    )
    assert run.refused("x1,y1,x2,y2", lambda *box: box, boxes_unit="relative") == (
        "l.csv: the largest coordinate of its boxes is 80; shares of an image's width and height are about 1 at most. "
        "Leave out labels=Labels(boxes_unit='relative')."
    )


# Points


def points(run: Run, names: str, *, swapped: bool) -> Any:
    lines = [f"file,{names}"]
    for name, boxes in BOXES.items():
        x, y = boxes[1][2] - 1, boxes[1][3] - 1
        lines.append(f"{name},{y},{x}" if swapped else f"{name},{x},{y}")
    (run.folder / "l.csv").write_text("\n".join(lines))
    labels = Labels("l.csv", keypoints=names)
    report = convert_images(run.images, "o.h5", size="keep", labels=labels, shuffle=False, overwrite=True)
    run.notes = " ".join(note for note in report.notes if "points" in note)
    pack = open_pack("o.h5")
    return PackStore(pack, pack.fields).array("keypoints", one_run(0, pack.rows))[:, 0].tolist()


POINTS = [[box[1][2] - 1, box[1][3] - 1] for box in BOXES.values()]


def test_points(run: Run) -> None:
    assert points(run, "x,y", swapped=False) == POINTS
    assert run.notes == ""
    assert points(run, "row,col", swapped=True) == POINTS
    assert run.notes == "l.csv: points are x, y in the columns col, row, as their names say."
    assert points(run, "a,b", swapped=False) == POINTS
    assert points(run, "a,b", swapped=True) == POINTS
    assert run.notes == (
        "l.csv: points are y, x in the columns a, b, as their values say: 12 of 12 points lie outside their image, and "
        "none with x and y exchanged."
    )
    with pytest.raises(PackerError) as error:
        points(run, "x,y", swapped=True)
    assert str(error.value) == (
        "l.csv: as the names of the columns x, y say, 12 of 12 points lie outside their image, and none with x and y "
        "exchanged; names and values have to agree. Correct the names in the first row."
    )


@pytest.mark.parametrize("form", [list, tuple, "{0[0]} {0[1]} {0[2]} {0[3]}".format])
@pytest.mark.parametrize(
    ("written", "format", "words"),
    [
        (corner, None, "left, top, width, height, as their values say"),
        (corner, "xywh", ""),
        (lambda *box: box, None, "left, top, right, bottom, as given"),
        (centre, "cxcywh", ""),
    ],
)
def test_a_column_of_lists_is_a_column_of_boxes(
    images: Path, tmp_path: Path, form: Any, written: Any, format: str | None, words: str
) -> None:
    lines = [f'{name},"{form(written(*box))}"' for name, boxes in BOXES.items() for box in boxes]
    (tmp_path / "l.csv").write_text("\n".join(["file,bbox", *lines]))
    labels = Labels(file=tmp_path / "l.csv", column=(), boxes="bbox", boxes_format=format)
    report = convert_images(images, tmp_path / "p.h5", size=80, fit="pad", labels=labels, shuffle=False)
    found = [row.tolist() for row in values(open_pack(tmp_path / "p.h5"), "boxes")]
    columns = [f"{name}," + ",".join(map(str, box)) for name, boxes in BOXES.items() for box in boxes]
    (tmp_path / "l.csv").write_text("\n".join(["file,xmin,ymin,xmax,ymax", *columns]))
    labels = Labels(file=tmp_path / "l.csv", column=(), boxes="xmin,ymin,xmax,ymax")
    convert_images(images, tmp_path / "q.h5", size=80, fit="pad", labels=labels, shuffle=False)
    assert found == [row.tolist() for row in values(open_pack(tmp_path / "q.h5"), "boxes")]
    assert [note for note in report.notes if "boxes are" in note and words not in note] == []
    assert any(words in note for note in report.notes) or not words


def test_lists_of_other_lengths_are_refused_and_empty_ones_are_no_boxes(images: Path, tmp_path: Path) -> None:
    lines = [f'{name},"[1, 2, 20, 30]"' for name in BOXES]
    lines[3], lines[5] = lines[3].replace(", 30", ""), lines[5].replace("[1, 2, 20, 30]", "[]")
    (tmp_path / "l.csv").write_text("\n".join(["file,bbox", *lines]))
    labels = Labels(file=tmp_path / "l.csv", column=(), boxes="bbox")
    with pytest.raises(SourceError, match=r"line 5: bbox is \[1, 2, 20\]; a list of four numbers is needed"):
        convert_images(images, tmp_path / "p.h5", size=80, labels=labels)
    convert_images(images, tmp_path / "p.h5", size=80, labels=labels, on_error="skip", shuffle=False)
    assert [len(row) for row in values(open_pack(tmp_path / "p.h5"), "boxes")] == [*[1] * 5, 0, *[1] * 5]
