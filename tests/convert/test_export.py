"""Packs become folders, from which packer convert makes the same packs again."""

from __future__ import annotations

import csv
import errno
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from packer.convert import export as module
from packer.convert import export_files
from packer.convert.export import export_images, file_stems, is_plain
from packer.convert.image_conversion import convert_images
from packer.convert.repacking import merge_packs
from packer.convert.splits import Split
from packer.errors import FormatError, PackerError, SpaceError, UsageError
from packer.format.fields import Field
from packer.format.header import PARTIAL_SUFFIX
from packer.inputs.image_pairs import Soft
from packer.inputs.label_options import Labels
from packer.orders.runs import Runs
from packer.packs.pack import Pack
from packer.packs.pack_opening import open_pack
from packer.read.array_store import PackStore
from packer.tables.table_conversion import convert_table
from packer.writing.pack_writer import PackWriter

IMAGE = Field("image", "|u1", (4, 6, 3), {"layout": "HWC", "color": "rgb"})
LABEL = Field("label", "<i8", ())
KEY = Field("key", "|u1", None, {"encoding": "utf-8"})
BOXES = Field("boxes", "|u1", None, {"dtype": "<f4", "row_shape": [4], "format": "xyxy"})
BOX_LABEL = Field("box_label", "|u1", None, {"dtype": "<i8", "row_shape": []})


def again(folder: Path, columns: dict[str, Any] | None = None, **options: Any) -> Pack:
    """Convert a folder, and what an export wrote beside its images. columns: of its CSV."""
    if (folder / "labels.csv").exists():
        with (folder / "labels.csv").open(errors="surrogateescape") as file:
            names = next(csv.reader(file))
        if "split" in names:
            if not {"train", "Training"} & {*os.listdir(folder)}:
                options["split"] = Split(column="split")
            columns = {"column": "label" if "label" in names else ""} | (columns or {})
        options["labels"] = Labels(folder / "labels.csv", **(columns or {}))
    convert_images(folder, folder.parent / "again", **{"format": "h5", **options})
    return open_pack(folder.parent / "again")


def picture(seed: int, size: tuple[int, int] = (20, 24), mode: str = "RGB", format: str = "PNG") -> bytes:
    channels = {"L": (), "RGB": (3,), "RGBA": (4,)}[mode]
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, *channels), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format)
    return file.getvalue()


def pixels_of(path: Path) -> NDArray[np.uint8]:
    with Image.open(path) as image:
        return np.asarray(image)


def folder_of(root: Path, *keys: str, **options: Any) -> Path:
    """A folder of images, each of its own noise; JPEG or PNG by its name."""
    for seed, key in enumerate(keys):
        path = root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        kind = "JPEG" if path.suffix == ".jpg" else "PNG"
        path.write_bytes(picture(seed, **{"format": kind, **options}))
    return root


def values(pack: Pack) -> dict[str, list[Any]]:
    """Every row of every field but the key, as plain values."""
    reader = PackStore(pack, pack.fields)
    everything = Runs(np.array([0]), np.array([pack.rows]))
    found: dict[str, list[Any]] = {}
    for f in pack.fields:
        if f.name == "key":
            continue
        if f.loaded.ragged:
            rows = [row.tolist() for row in reader.decoded(f.name, everything)] if not f.codec else None
            found[f.name] = rows or reader.ragged(f.name, everything)
        else:
            out = np.empty((pack.rows, f.loaded.row_bytes), np.uint8)
            reader.copy(everything, {f.name: out})
            found[f.name] = [f"{f.loaded.dtype}{f.loaded.shape}", out.tobytes()]
    return found


def stems(pack: Pack) -> list[str]:
    return [os.path.splitext(key)[0] for key in pack.keys()]


def assert_same(before: Pack, after: Pack) -> None:
    assert values(after) == values(before)
    assert stems(after) == stems(before)
    assert (after.header.classes, after.header.splits) == (before.header.classes, before.header.splits)


def hand_made(out: Path, keys: list[bytes], *columns: tuple[Field, Any], **members: Any) -> Path:
    """A pack of random images with these keys; columns: a field and [rows, ...], or a list of bytes for a ragged one."""
    rows = len(keys)
    if not any(f.name == "image" for f, _ in columns):
        images = np.random.default_rng(0).integers(0, 256, (rows, 4, 6, 3), np.uint8)
        columns = ((IMAGE, images), *columns)
    fields = (*(f for f, _ in columns), KEY)
    fixed = {f.name: v for f, v in columns if not f.ragged}
    ragged = {f.name: v for f, v in columns if f.ragged}
    with PackWriter(
        str(out), fields=fields, rows=rows, block_rows=rows, format="h5" if out.suffix == ".h5" else "npy"
    ) as writer:
        writer.write_block(0, fixed)
        writer.finish(rows=rows, ragged={**ragged, "key": keys}, **members)
    return out


# Round trips


CLASSES = ("cat/1.jpg", "cat/2.png", "cat/deep/3.jpg", "dog/1.jpg", "dog/2.JPG", "eel/9.png")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"seed": 5},
        {"shuffle": False},
        {"channels": "gray"},
        {"channels": "rgba", "fit": "pad"},
        {"size": (8, 12)},
        {"store": "gzip"},
        {"shards": 4},
        {"shards": 4, "format": "npy"},
    ],
    ids=str,
)
def test_class_folders_come_back(tmp_path: Path, options: dict[str, Any]) -> None:
    source = folder_of(tmp_path / "pets", *CLASSES)
    out = tmp_path / ("pack" if "shards" in options else "pack.h5")
    convert_images(source, out, **{"size": 16, **options})
    progress: list[int] = []
    report = export_images(out, tmp_path / "images", on_progress=progress.append)
    assert report.notes == ()
    written = sorted(
        str(path.relative_to(tmp_path / "images")) for path in (tmp_path / "images").rglob("*.*")
    )
    images = ["cat/1.png", "cat/2.png", "cat/deep/3.png", "dog/1.png", "dog/2.png", "eel/9.png"]
    assert written == sorted([*images, "labels.csv"])
    assert (report.files, progress[-1]) == (7, 6)
    assert report.nbytes == sum(path.stat().st_size for path in (tmp_path / "images").rglob("*.*"))
    convert_images(tmp_path / "images", tmp_path / "folders", **{"size": 16, "format": "h5", **options})
    assert_same(open_pack(out), open_pack(tmp_path / "folders"))
    assert_same(open_pack(out), again(tmp_path / "images", **{"size": 16, **options}))
    assert not (tmp_path / f"images{PARTIAL_SUFFIX}").exists()


def test_an_empty_folder_stays_where_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(PackerError):
        export_images(tmp_path / "no.h5", tmp_path / "out")
    assert os.listdir(tmp_path) == ["out"]


def test_a_flat_folder_without_labels_comes_back(tmp_path: Path) -> None:
    convert_images(folder_of(tmp_path / "flat", "1.jpg", "2.png", "ü.png"), tmp_path / "pack", size=16)
    report = export_images(tmp_path / "pack", tmp_path / "images")
    assert report.notes == ()
    assert_same(open_pack(tmp_path / "pack"), again(tmp_path / "images", size=16))


def test_rows_of_jpeg_files_are_written_untouched(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "pets", *CLASSES)
    convert_images(source, tmp_path / "pack.h5", size=16, store="jpeg", quality=80)
    pack = open_pack(tmp_path / "pack.h5")
    report = export_images(tmp_path / "pack.h5", tmp_path / "images")
    files = [(tmp_path / "images" / f"{stem}{_ending(tmp_path, stem)}").read_bytes() for stem in stems(pack)]
    assert files == pack.read_ragged("image")
    assert (tmp_path / "images" / "dog" / "2.jpg").exists()
    assert report.notes == ()
    assert_same(pack, again(tmp_path / "images", size=16))


def _ending(tmp_path: Path, stem: str) -> str:
    return next((tmp_path / "images" / stem).parent.glob(Path(stem).name + ".*")).suffix


@pytest.mark.parametrize("options", [{}, {"channels": "gray"}], ids=str)
@pytest.mark.parametrize("size", ["max=20", "min=12"])
def test_whole_pictures_come_back_as_the_same_bytes(
    tmp_path: Path, size: str, options: dict[str, Any]
) -> None:
    source = folder_of(tmp_path / "pets", *CLASSES)
    (source / "cat" / "1.jpg").write_bytes(picture(3, (11, 17), format="JPEG"))
    convert_images(source, tmp_path / "pack.h5", size=size, store="jpeg", **options)
    report = export_images(tmp_path / "pack.h5", tmp_path / "images")
    assert report.notes == ()
    assert (tmp_path / "images/cat/1.jpg").read_bytes() == (source / "cat/1.jpg").read_bytes()
    assert_same(
        open_pack(tmp_path / "pack.h5"), again(tmp_path / "images", size=size, store="jpeg", **options)
    )


def test_images_that_kept_their_size_come_back_as_the_same_bytes(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "pets", *CLASSES)
    (source / "cat" / "1.jpg").write_bytes(picture(3, (31, 17), format="JPEG"))
    convert_images(source, tmp_path / "pack.h5", size="keep", store="jpeg")
    report = export_images(tmp_path / "pack.h5", tmp_path / "images")
    assert report.notes == ()
    assert (tmp_path / "images/cat/1.jpg").read_bytes() == (source / "cat/1.jpg").read_bytes()
    assert_same(open_pack(tmp_path / "pack.h5"), again(tmp_path / "images", size="keep", store="jpeg"))


@pytest.mark.parametrize(
    ("columns", "options", "written"),
    [
        (["label", "b", "a", "b", "c"], {}, {}),
        (["label", "3", "1", "0", "3"], {}, {}),
        (["label", "-0.1", "3", "1e-7", "0.33333334"], {}, {}),
        (["label", "with, comma", 'a "b"', "ü", "x"], {}, {}),
        (["one,two", "0,1", "1,1", "0,0", "1,0"], {"column": "one,two"}, {"column": "one,two"}),
        (["one,two", "0.5,1", "1,1", "0,0", "1,-7"], {"column": "one,two"}, {"column": "one,two"}),
        (
            ["x,y,u,v", "1,2,3,4", "9,9,,", "0.1,0.7,15.9,1", "24,20,1e-3,0"],
            {"keypoints": "x,y,u,v"},
            {"keypoints": "x1,y1,x2,y2"},
        ),
        (
            ["x,y,sort", "1,2,b", "9,9,a", ",,b", "24,20,b"],
            {"keypoints": "x,y", "column": "sort"},
            {"keypoints": "x1,y1", "column": "label"},
        ),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_a_csv_says_comes_back(
    tmp_path: Path, columns: list[str], options: dict[str, Any], written: dict[str, Any]
) -> None:
    keys = ["a/1.png", "a/2.png", "b/3.png", "4 5.png"]
    source = folder_of(tmp_path / "images", *keys)
    first, *rest = columns
    cells = [[text] if not options and "," in text else text.split(",") for text in rest]
    with open(tmp_path / "in.csv", "w", newline="") as file:
        csv.writer(file).writerows(
            [["file", *first.split(",")], *([k, *c] for k, c in zip(keys, cells, strict=True))]
        )
    convert_images(source, tmp_path / "pack.h5", size=16, labels=Labels(tmp_path / "in.csv", **options))
    report = export_images(tmp_path / "pack.h5", tmp_path / "out")
    assert report.notes == ()
    assert_same(open_pack(tmp_path / "pack.h5"), again(tmp_path / "out", written, size=16))


@pytest.mark.parametrize("labelled", [True, False])
def test_boxes_come_back(tmp_path: Path, labelled: bool) -> None:
    source = folder_of(tmp_path / "images", "a/1.png", "a/2.png", "3.png")
    (tmp_path / "in.csv").write_text(
        "file,x1,y1,x2,y2,what\na/1.png,1,2,3.3,4,b\na/2.png,,,,,\n3.png,0,0,24,20,a\na/1.png,0.1,0,24,20,a\n"
    )
    column = "what" if labelled else ""
    convert_images(
        source,
        tmp_path / "pack.h5",
        size=(16, 32),
        fit="pad",
        labels=Labels(tmp_path / "in.csv", column, boxes="x1,y1,x2,y2"),
    )
    report = export_images(tmp_path / "pack.h5", tmp_path / "out")
    assert report.notes == ()
    chosen = {"column": "label" if labelled else None, "boxes": "xmin,ymin,xmax,ymax"}
    made = again(tmp_path / "out", chosen, size=(16, 32), fit="pad")
    assert_same(open_pack(tmp_path / "pack.h5"), made)
    assert sum(map(len, values(made)["boxes"])) == 3


@pytest.mark.parametrize(
    ("dtype", "channels", "kept"),
    [
        ("u1", (), True),
        ("u1", (3,), True),
        ("u1", (4,), True),
        ("u2", (), True),
        ("u1", (2,), False),
        ("u2", (3,), False),
        ("f4", (), False),
    ],
)
def test_masks_that_png_files_hold_come_back(
    tmp_path: Path, dtype: str, channels: tuple[int, ...], kept: bool
) -> None:
    source = folder_of(tmp_path / "images", *CLASSES)
    draws = np.random.default_rng(1)
    for key in CLASSES:
        mask = (draws.random((20, 24, *channels)) * 300).astype(dtype)
        (tmp_path / "masks" / key).parent.mkdir(parents=True, exist_ok=True)
        np.save((tmp_path / "masks" / key).with_suffix(".npy"), mask)
    kind = Soft if (dtype, channels) in (("f4", ()), ("u1", ())) else Path
    convert_images(source, tmp_path / "pack.h5", size=16, pairs={"depth": kind(tmp_path / "masks")})
    report = export_images(tmp_path / "pack.h5", tmp_path / "out")
    if not kept:
        assert report.notes == (
            "Not written: depth; images, labels, boxes, keypoints and masks that PNG files hold are.",
        )
        return
    assert report.notes == ()
    assert (report.files, sorted(os.listdir(tmp_path / "out"))) == (13, ["depth", "image", "labels.csv"])
    convert_images(
        tmp_path / "out/image", tmp_path / "again.h5", size=16, pairs={"depth": kind(tmp_path / "out/depth")}
    )
    assert_same(open_pack(tmp_path / "pack.h5"), open_pack(tmp_path / "again.h5"))


@pytest.mark.parametrize(("train", "val"), [("train", "val"), ("Training", "dev")])
def test_splits_by_folder_keep_their_folders(tmp_path: Path, train: str, val: str) -> None:
    source = folder_of(
        tmp_path / "sets",
        *(f"{val}/{name}" for name in ("a/1.png", "b/9.png")),
        *(f"{train}/{name}" for name in ("a/1.png", "b/2.png", "a/3.jpg")),
    )
    convert_images(source, tmp_path / "pack.h5", size=16)
    report = export_images(tmp_path / "pack.h5", tmp_path / "out")
    assert report.notes == ()
    assert (tmp_path / f"out/{train}/a/3.png").exists()
    assert_same(open_pack(tmp_path / "pack.h5"), again(tmp_path / "out", size=16))


@pytest.mark.parametrize("split", ["train=0.5,val=0.5", "rest=0.5,train=0.5"])
def test_drawn_splits_come_back_from_the_csv(tmp_path: Path, split: str) -> None:
    source = folder_of(tmp_path / "pets", *(f"{c}/{i}.png" for c in "ab" for i in range(6)))
    convert_images(source, tmp_path / "pack.h5", size=16, split=split, seed=3)
    assert export_images(tmp_path / "pack.h5", tmp_path / "out").notes == ()
    assert sorted(os.listdir(tmp_path / "out")) == ["a", "b", "labels.csv"]
    assert_same(open_pack(tmp_path / "pack.h5"), again(tmp_path / "out", size=16, seed=3))


def test_splits_that_share_rows_are_named_together(tmp_path: Path) -> None:
    splits = {"a": ((0, 2),), "=b": ((1, 3),)}
    pack = hand_made(tmp_path / "pack.h5", [b"%d.png" % i for i in range(4)], splits=splits)
    export_images(pack, tmp_path / "out")
    with (tmp_path / "out/labels.csv").open() as file:
        assert [line[1] for line in csv.reader(file)] == ["split", "a", "'=b,a", "'=b", ""]


def test_one_split(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "pets", *(f"{c}/{i}.png" for c in "ab" for i in range(6)))
    convert_images(source, tmp_path / "pack.h5", size=16, split="train=0.5,val=0.5", shuffle=False)
    report = export_images(tmp_path / "pack.h5", tmp_path / "out", split="val")
    pack = open_pack(tmp_path / "pack.h5")
    assert report.notes == ()
    for row in range(6, 12):
        image = pixels_of(tmp_path / "out" / (stems(pack)[row] + ".png"))
        assert np.array_equal(image, pack.read("image", row, row + 1)[0])
    assert report.files == 7
    with pytest.raises(UsageError) as caught:
        export_images(tmp_path / "pack.h5", tmp_path / "other", split="test")
    assert str(caught.value) == (
        f"{tmp_path}/pack.h5: has no split 'test'; its splits: train, val. Pass one of these."
    )


def test_names_that_are_not_utf8_come_back(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/in/\xff"
    os.makedirs(folder)
    for name in (b"\xfe.jpg", b" lead.png", b"a\nb.png", b"#\r.png"):
        with open(folder + b"/" + name, "wb") as file:
            file.write(picture(len(name)))
    (tmp_path / "in.csv").write_bytes(
        b'"\xff/\xfe.jpg",1\n\xff/ lead.png,2\n"\xff/a\nb.png",3\n"\xff/#\r.png",4\n'
    )
    convert_images(tmp_path / "in", tmp_path / "pack.h5", size=16, labels=tmp_path / "in.csv")
    export_images(tmp_path / "pack.h5", tmp_path / "out")
    assert sorted(os.listdir(os.fsencode(tmp_path) + b"/out/\xff")) == [
        b" lead.png",
        b"#_.png",
        b"a_b.png",
        b"\xfe.png",
    ]
    assert values(open_pack(tmp_path / "pack.h5")) == values(again(tmp_path / "out", size=16))


def test_a_name_that_begins_with_a_blank_is_found_in_the_csv(tmp_path: Path) -> None:
    pack = hand_made(tmp_path / "pack.h5", [b" 1.png", b"file.png"], (LABEL, np.array([7, 8])))
    report = export_images(pack, tmp_path / "out")
    assert report.notes == ()
    assert_same(
        open_pack(pack), again(tmp_path / "out", columns={"column": "label"}, size=(4, 6), shuffle=False)
    )


# What does not come back, and names


def test_keys_that_differ_only_in_their_endings_get_numbers(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "pets", "cat/1.jpg", "cat/1.png", "dog/1.jpg")
    convert_images(source, tmp_path / "pack.h5", size=16, shuffle=False)
    report = export_images(tmp_path / "pack.h5", tmp_path / "out")
    assert report.notes == (
        "Names that differ from the keys: 1 file, as the name was taken, or the key holds control characters, line ends"
        " or backslashes.",
    )
    assert sorted(os.listdir(tmp_path / "out/cat")) == ["1.png", "1~2.png"]
    assert values(again(tmp_path / "out", size=16, shuffle=False)) == values(open_pack(tmp_path / "pack.h5"))


def test_a_merged_pack_with_equal_keys(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "pets", "cat/1.jpg", "dog/1.jpg")
    convert_images(source, tmp_path / "pack.h5", size=16)
    merge_packs([tmp_path / "pack.h5"] * 3, tmp_path / "merged.h5", duplicates="keep")
    report = export_images(tmp_path / "merged.h5", tmp_path / "out")
    assert sorted(os.listdir(tmp_path / "out/cat")) == ["1.png", "1~2.png", "1~3.png"]
    assert report.notes[0].startswith("Names that differ from the keys: 4 files, as the name was taken")


def test_fields_that_are_not_written_are_said(tmp_path: Path) -> None:
    columns = (Field("speed", "<f8", ()), np.zeros(2)), (Field("text", "|u1", None), [b"a", b""])
    pack = hand_made(tmp_path / "pack.h5", [b"1.png", b"2.png"], *columns)
    assert export_images(pack, tmp_path / "out").notes == (
        "Not written: speed, text; images, labels, boxes, keypoints and masks that PNG files hold are.",
    )


CHANGED = (
    "In 1 of the class names, _ replaces control characters and line ends, blanks at the ends are left out, and '"
    " precedes = + - @."
)


@pytest.mark.parametrize("classes", [("a", "b\n"), ("a", "b ")])
def test_class_names_that_a_cell_cannot_hold_are_said(tmp_path: Path, classes: tuple[str, ...]) -> None:
    pack = hand_made(tmp_path / "pack.h5", [b"1.png", b"2.png"], (LABEL, np.array([1, 0])), classes=classes)
    assert export_images(pack, tmp_path / "out").notes == (CHANGED,)


@pytest.mark.parametrize("classes", [("a", "b"), ("a", "b", "c"), ("b", "a"), ("9", "10"), ("07", "seven")])
def test_numbers_of_classes_come_back_with_the_pack_as_a_model(
    tmp_path: Path, classes: tuple[str, ...]
) -> None:
    pack = hand_made(
        tmp_path / "pack.h5", [b"1.png", b"2.png"], (LABEL, np.array([1, 0])), classes=classes, seed=None
    )
    report = export_images(pack, tmp_path / "out")
    said = (
        f"labels.csv holds the names of classes, not their numbers; to pack it again, pass like={str(pack)!r}.",
    )
    assert report.notes == (() if classes in (("a", "b"), ("07", "seven")) else said)
    for like in [pack] if report.notes else [pack, None]:
        made = again(tmp_path / "out", size=(4, 6), shuffle=False, like=like, overwrite=True)
        assert made.header.classes == classes
        assert values(made)["label"] == values(open_pack(pack))["label"]


def test_labels_that_are_no_class_have_an_empty_cell(tmp_path: Path) -> None:
    labels = np.array([-1, 0])
    pack = hand_made(tmp_path / "pack.h5", [b"1.png", b"2.png"], (LABEL, labels), classes=("a",))
    export_images(pack, tmp_path / "out")
    assert (tmp_path / "out/labels.csv").read_text().split() == ["file,label", "1.png,", "2.png,a"]
    pack = hand_made(tmp_path / "numbers.h5", [b"1.png", b"2.png"], (LABEL, labels))
    export_images(pack, tmp_path / "more")
    assert (tmp_path / "more/labels.csv").read_text().split() == ["file,label", "1.png,-1", "2.png,0"]


def test_class_folders_with_a_list_of_classes_come_back(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "pets", "train/007/1.png", "train/8/1.png", "val/8/2.png")
    convert_images(source, tmp_path / "pack.h5", size=16, classes=["8", "empty", "007"])
    (note,) = export_images(tmp_path / "pack.h5", tmp_path / "out").notes
    assert note.endswith(f"pass like='{tmp_path}/pack.h5'.")
    assert sorted(os.listdir(tmp_path / "out")) == ["labels.csv", "train", "val"]
    assert_same(open_pack(tmp_path / "pack.h5"), again(tmp_path / "out", like=tmp_path / "pack.h5"))


@pytest.mark.parametrize("labeled", [False, True], ids=["splits", "classes and splits"])
def test_drawn_splits_come_back(tmp_path: Path, labeled: bool) -> None:
    source = folder_of(tmp_path / "in", *(CLASSES if labeled else [key.replace("/", "-") for key in CLASSES]))
    convert_images(source, tmp_path / "pack.h5", size=16, split="train=4,val=rest")
    export_images(tmp_path / "pack.h5", tmp_path / "out")
    beside = Labels(tmp_path / "out/labels.csv")
    convert_images(
        tmp_path / "out", tmp_path / "again.h5", size=16, labels=beside, split=Split(column="split")
    )
    before, after = (open_pack(tmp_path / name) for name in ("pack.h5", "again.h5"))
    assert {f.name for f in after.fields} == {f.name for f in before.fields}
    assert (after.header.classes, after.header.splits) == (before.header.classes, before.header.splits)
    assert all({*stems(after)[a:b]} == {*stems(before)[a:b]} for ((a, b),) in before.header.splits.values())


def test_a_file_of_splits_alone_gives_no_labels(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "in", *CLASSES)
    lines = (f"{key},{'val' if number % 3 else 'train'}\n" for number, key in enumerate(CLASSES))
    (tmp_path / "s.csv").write_text("file,split\n" + "".join(lines))
    file, split = tmp_path / "s.csv", Split(column="split")
    report = convert_images(source, tmp_path / "pack.h5", size=16, labels=Labels(file), split=split)
    assert f"{file}: holds no labels, and names of folders are not read beside it" in report.notes[0]
    header = open_pack(tmp_path / "pack.h5").header
    assert (header.classes, header.splits) == (None, {"train": ((0, 2),), "val": ((2, 6),)})
    for options, sentence in [
        ({"labels": Labels(file)}, "split holds names of splits (train, val), no classes. Pass"),
        ({"labels": Labels(file, as_="float"), "split": split}, "is about labels, but"),
    ]:
        with pytest.raises(PackerError) as caught:
            convert_images(source, tmp_path / "no.h5", size=16, **options)
        assert sentence in str(caught.value)


def test_columns_of_unusable_names_are_renamed(tmp_path: Path) -> None:
    label = Field("label", "|u1", (3,), {"columns": ["a,b", "c", "d"]})
    pack = hand_made(tmp_path / "pack.h5", [b"1.png", b"2.png"], (label, np.eye(3, dtype=np.uint8)[:2]))
    report = export_images(pack, tmp_path / "out")
    assert report.notes == ()
    made = again(tmp_path / "out", columns={"column": "label1,label2,label3"}, size=(4, 6), shuffle=False)
    assert values(made)["label"] == values(open_pack(pack))["label"]


def test_boxes_and_their_labels_must_be_as_many(tmp_path: Path) -> None:
    columns = (BOXES, [np.array([0, 0, 1, 1], "<f4").tobytes()]), (BOX_LABEL, [b""])
    pack = hand_made(tmp_path / "pack.h5", [b"1.png"], *columns)
    with pytest.raises(FormatError) as caught:
        export_images(pack, tmp_path / "out")
    assert str(caught.value) == (
        f"{pack}: row 0 has 1 boxes and 0 labels of boxes; each box has one. Convert the images again."
    )
    assert sorted(os.listdir(tmp_path)) == ["pack.h5"]


NAMES = st.lists(
    st.lists(
        st.sampled_from(["a", "b", "1.jpg", "1.png", "1.jpg.png", "1", "1~2.png", "1.JPEG"]),
        min_size=1,
        max_size=3,
    ).map("/".join),
    min_size=1,
    max_size=12,
)


@given(NAMES, st.sampled_from([".png", ".jpg"]))
def test_names_are_unique_whatever_their_endings(keys: list[str], ending: str) -> None:
    found = file_stems(keys, ending)
    assert len(set(found)) == len(keys)
    assert [name.rpartition("/")[0] for name in found] == [key.rpartition("/")[0] for key in keys]
    folders = {key[:at] for key in keys for at in range(len(key)) if key[at] == "/"}
    assert folders.isdisjoint(stem + ending for stem in found)


# Keys from anywhere


@pytest.mark.parametrize(
    "key",
    [b"", b"/etc/x.png", b"../x.png", b"a/../../b.png", b"a/./b.png", b"a//b.png", b"a/", b"..", b"a\0b.png"],
)
def test_hostile_keys_are_refused(tmp_path: Path, key: bytes) -> None:
    (tmp_path / "in").mkdir()
    pack = hand_made(tmp_path / "in/pack.h5", [b"ok.png", key])
    with pytest.raises(FormatError) as caught:
        export_images(pack, tmp_path / "in/out")
    assert str(caught.value) == (
        f"{pack}: the key of row 1 is {os.fsdecode(key)!r}; only plain paths below a folder are written as files."
        " Nothing was written."
    )
    assert [path.name for path in tmp_path.rglob("*")] == ["in", "pack.h5"]


@pytest.mark.parametrize("folders", [100, 1500])
def test_keys_of_very_many_folders_are_refused(tmp_path: Path, folders: int) -> None:
    pack = hand_made(tmp_path / "pack.h5", [b"ok.png", b"a/" * folders + b"x.png"])
    with pytest.raises(FormatError) as caught:
        export_images(pack, tmp_path / "out")
    assert str(caught.value) == (
        f"{pack}: the key of row 1 is {('a/' * folders + 'x.png')[:77] + '...'!r}; only plain paths below a folder are written as"
        " files. Nothing was written."
    )
    assert os.listdir(tmp_path) == ["pack.h5"]


def test_work_that_others_left_is_not_touched(tmp_path: Path) -> None:
    pack = hand_made(tmp_path / "pack.h5", [b"a/x.png", b"b/y.png"])
    (tmp_path / f"out{PARTIAL_SUFFIX}").mkdir()
    (tmp_path / f"out{PARTIAL_SUFFIX}" / "1.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"holds 1.txt, which is not packer's"):
        export_images(pack, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["1.txt", f"out{PARTIAL_SUFFIX}", "pack.h5"]


@given(st.lists(st.sampled_from(["", ".", "..", "a", "\0", "/", "..."])).map("/".join))
def test_a_key_that_passes_stays_below_its_folder(key: str) -> None:
    if not is_plain(key):
        return
    (stem,) = file_stems([key], ".png")
    assert "\0" not in stem
    assert os.path.normpath(f"/out/{stem}.png") == f"/out/{stem}.png"


@pytest.mark.parametrize("key", [b"x" * 252 + b".raw", b"/".join([b"x" * 200] * 25) + b".png"])
def test_keys_too_long_for_the_disk_are_refused(tmp_path: Path, key: bytes) -> None:
    pack = hand_made(tmp_path / "pack.h5", [b"ok.png", key])
    with pytest.raises(PackerError, match=r"out: writing failed \(File name too long\)\. Take shorter names"):
        export_images(pack, tmp_path / "out")
    assert os.listdir(tmp_path) == ["pack.h5"]


def test_a_key_in_the_way_of_the_csv(tmp_path: Path) -> None:
    columns = [(LABEL, np.arange(2))]
    pack = hand_made(tmp_path / "pack.h5", [b"labels.csv/1.png", b"2.png"], *columns)
    with pytest.raises(PackerError) as caught:
        export_images(pack, tmp_path / "out")
    assert str(caught.value) == (
        f"{tmp_path}/out: labels.csv would be written twice, as a folder, or under a name that this disk treats as equal."
        " Nothing was written; pass a folder on another disk."
    )
    assert os.listdir(tmp_path) == ["pack.h5"]


# The folder


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    return hand_made(tmp_path / "pack.h5", [b"%d.png" % i for i in range(40)])


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path, pack: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine").write_text("x")
    for name in ("out", "out/mine"):
        with pytest.raises(UsageError) as caught:
            export_images(pack, tmp_path / name)
        assert str(caught.value) == (
            f"{tmp_path}/{name}: exists, and is not an empty folder; nothing is overwritten. Pass another name."
        )
    assert os.listdir(tmp_path / "out") == ["mine"]


def test_an_empty_folder_is_filled_through_a_link_too(tmp_path: Path, pack: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "out").symlink_to("real")
    export_images(pack, f"{tmp_path}/out/")
    assert len(os.listdir(tmp_path / "real")) == 40
    assert (tmp_path / "out").is_symlink()


def test_what_a_killed_export_left_is_cleared(tmp_path: Path, pack: Path) -> None:
    left = tmp_path / f"out{PARTIAL_SUFFIX}"
    (left / "pack/0.png").mkdir(parents=True)
    (left / "blocks").mkdir()
    (left / "pack/a").symlink_to(tmp_path)
    export_images(pack, tmp_path / "out")
    assert len(os.listdir(tmp_path / "out")) == 40
    assert sorted(os.listdir(tmp_path)) == ["out", "pack.h5"]


def test_wrong_arguments_are_sentences(tmp_path: Path, pack: Path) -> None:
    def refused(match: str, **options: Any) -> None:
        with pytest.raises(UsageError) as caught:
            export_images(pack, tmp_path / "out", **options)
        assert str(caught.value) == match

    refused("workers=0: is not a whole number of at least 1.", workers=0)
    bands = Field("image", "|u1", (2, 2, 5), {"layout": "HWC"})
    for dtype, f, shape in (("f4", Field("image", "<f4", (2, 2)), (1, 2, 2)), ("u1", bands, (1, 2, 2, 5))):
        pack = hand_made(tmp_path / f"{dtype}.h5", [b"1"], (f, np.zeros(shape, dtype)))
        refused(
            f"{pack}: holds no images with keys that image files hold; uint8 or uint16 [H, W, 1, 3 or 4], or JPEG"
            " files, are exported, each with its key. Pass a pack of images."
        )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_failing_disk_leaves_nothing(
    tmp_path: Path, pack: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = []

    def failing(fd: int, data: Any, offset: int) -> None:
        writes.append(fd)
        if len(writes) > 10:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(module, "pwrite_all", failing)
    monkeypatch.setattr(export_files, "_PIECE_ROWS", 4)
    with pytest.raises(SpaceError if number == errno.ENOSPC else PackerError) as caught:
        export_images(pack, tmp_path / "out")
    assert str(caught.value) == (
        f"{tmp_path}/out: writing failed ({os.strerror(number)}). Free some space, or pass another disk."
    )
    assert os.listdir(tmp_path) == ["pack.h5"]


def test_too_small_a_disk_is_seen_beforehand(
    tmp_path: Path, pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "packer.packs.output_names.shutil.disk_usage", lambda path: type("", (), {"free": 10})
    )
    with pytest.raises(SpaceError, match="Free some space, or pass a smaller size or another disk"):
        export_images(pack, tmp_path / "out")
    assert os.listdir(tmp_path) == ["pack.h5"]


def test_an_interrupt_leaves_nothing(tmp_path: Path, pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_files, "_PIECE_ROWS", 4)

    def interrupt(done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_images(pack, tmp_path / "out", on_progress=interrupt)
    assert os.listdir(tmp_path) == ["pack.h5"]


@pytest.mark.usefixtures("impatient")
def test_two_exports_to_one_folder_do_not_mix(tmp_path: Path, pack: Path) -> None:
    caught: list[str] = []

    def second(done: int) -> None:
        if not caught:
            with pytest.raises(PackerError) as error:
                export_images(pack, tmp_path / "out")
            caught.append(str(error.value))

    export_images(pack, tmp_path / "out", on_progress=second)
    assert caught == [
        f"{tmp_path}/out: another packer is writing it ({tmp_path}/out{PARTIAL_SUFFIX} is locked). Wait for it, or pass another name."
    ]
    assert len(os.listdir(tmp_path / "out")) == 40


def test_damage_is_found(tmp_path: Path, pack: Path) -> None:
    offset = open_pack(pack).header.extents["image"][0].offset
    with open(pack, "r+b") as file:
        file.seek(offset + 100)
        file.write(b"\xaa\x55\xaa\x55")
    with pytest.raises(FormatError) as caught:
        export_images(pack, tmp_path / "out")
    assert str(caught.value) == (
        f"{pack}: rows 0 to 39 of 'image' are damaged (their checksum differs). Run packer verify, or convert the images again."
    )
    assert os.listdir(tmp_path) == ["pack.h5"]


def test_a_table_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,2\n3,4\n")
    convert_table(tmp_path / "t.csv", tmp_path / "t.h5")
    with pytest.raises(UsageError) as caught:
        export_images(tmp_path / "t.h5", tmp_path / "out")
    assert str(caught.value) == (
        f"{tmp_path}/t.h5: was made from a table; image files are exported. Read its fields with h5py, or"
        " packer.PackedDataset, and write them with pandas, as docs/guides/tables.md shows."
    )


def test_names_that_a_terminal_or_a_spreadsheet_would_obey(tmp_path: Path) -> None:
    keys = [b"=cmd().png", b"a\x1b[2J.png", b"..\\..\\evil.png", b"a\n.png", b"a_.png", b"-1.png"]
    classes = ("=1+1", "b\x1b[31m", "-1", "@x")
    pack = hand_made(tmp_path / "pack.h5", keys, (LABEL, np.array([0, 1, 2, 3, 0, 1])), classes=classes)
    report = export_images(pack, tmp_path / "out")
    with open(tmp_path / "out/labels.csv", newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [
        ["file", "label"],
        ["./=cmd().png", "'=1+1"],
        ["a_[2J.png", "b_[31m"],
        [".._.._evil.png", "-1"],
        ["a_.png", "'@x"],
        ["a_~2.png", "'=1+1"],
        ["./-1.png", "b_[31m"],
    ]
    assert sorted(os.listdir(tmp_path / "out")) == sorted(
        ["labels.csv", *(row[0].removeprefix("./") for row in rows[1:])]
    )
    assert any(note.startswith("Names that differ from the keys: 4 files") for note in report.notes)
    assert CHANGED.replace("1", "3", 1) in report.notes
    twice = hand_made(
        tmp_path / "twice.h5", [b"1.png"], (LABEL, np.zeros(1, "<i8")), classes=("a\x1b", "a\x07")
    )
    with pytest.raises(
        FormatError, match="two of its class names differ only in blanks or control characters"
    ):
        export_images(twice, tmp_path / "other")
