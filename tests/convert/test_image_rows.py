"""Rows from image files: kept files, pictures with what belongs to them, and what the inputs are known by."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from packer import append_images, native, repack
from packer.codecs import jpeg_parts
from packer.codecs.jpeg import decode, upright
from packer.codecs.jpeg import encode as encode_jpeg
from packer.codecs.jpeg import size as jpeg_size
from packer.convert.image_conversion import convert_images
from packer.convert.image_options import ImageOptions
from packer.convert.image_planning import ConversionPlan
from packer.convert.image_rows import ImageRows
from packer.convert.row_maker import Block
from packer.convert.row_storage import RowStorage
from packer.errors import ImageError, SourceError, UsageError
from packer.inputs.image_pairs import PairForm, Soft, open_pair
from packer.inputs.image_sources import open_source
from packer.inputs.label_options import Labels
from packer.orders.runs import Runs, one_run
from packer.packs.pack import Pack
from packer.packs.pack_opening import open_pack
from packer.pixels.decode_resize import MAX_PIXELS, DecodeResize, PixelSpec
from packer.pixels.row_size import RowSize
from packer.read.array_store import PackStore

Encode = Callable[..., bytes]
EXIF_TAG = 0x0112


def picture(height: int = 40, width: int = 64) -> np.ndarray:
    """uint8 [H, W, 3], smooth, each corner of its own colour."""
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([255 * y // height, 255 * x // width, np.full((height, width), 90)], axis=-1).astype(
        np.uint8
    )


def turned(encode: Encode, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[EXIF_TAG] = orientation
    return encode(picture(), "JPEG", quality=95, exif=exif)


def rows_of(pack: Pack) -> dict[str, bytes]:
    """key -> the image as it is stored."""
    return dict(zip(pack.keys(), pack.read_ragged("image"), strict=True))


def maker(folder: Path, *, size: str = "16", pairs: dict[str, Path] | None = None) -> ImageRows:
    source, spec = open_source(str(folder)), PixelSpec((16, 16))
    partners = [open_pair(name, path, source, PairForm(spec)) for name, path in (pairs or {}).items()]
    store = "raw" if size == "16" else "jpeg"
    rows = RowSize.parse(size)
    options = ImageOptions(rows, "crop", "rgb", "uint8", MAX_PIXELS, RowStorage("h5", store))
    return ImageRows(source, options, source.targets, partners)


@pytest.fixture
def mixed(tmp_path: Path, encode: Encode) -> Path:
    """A flat folder: JPEGs, one turned, one grey, and others of other formats and sizes."""
    folder = tmp_path / "mixed"
    folder.mkdir()
    files = {
        "colour.jpg": encode(picture(), "JPEG", quality=70),
        "grey.jpg": encode(picture()[:, :, 0], "JPEG"),
        "progressive.jpg": encode(picture(), "JPEG", progressive=True),
        "turned.jpg": turned(encode, 6),
        "small.png": encode(picture(8, 9), "PNG"),
        "alpha.png": encode(np.dstack([picture(), np.full((40, 64), 128, np.uint8)]), "PNG"),
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


@pytest.mark.parametrize("out", ["p", "p.h5"])
def test_kept_jpegs_are_untouched_and_others_encoded(mixed: Path, tmp_path: Path, out: str):
    convert_images(mixed, tmp_path / out, size="keep", store="jpeg", quality=85)
    pack = open_pack(tmp_path / out)
    stored = rows_of(pack)
    assert pack.header.field("image").codec == {"name": "jpeg", "shape": None}
    assert pack.header.statistics == {}
    assert len(stored) == 6
    for path in mixed.glob("*.jpg"):
        assert stored[path.name] == path.read_bytes()
    for name, size in (("small.png", (9, 8)), ("alpha.png", (64, 40))):
        with Image.open(io.BytesIO(stored[name])) as image:
            assert (image.format, image.size, image.mode) == ("JPEG", size, "RGB")
    with Image.open(io.BytesIO(stored["small.png"])) as image:
        assert np.abs(np.asarray(image).astype(int) - picture(8, 9)).max() < 40


def test_a_turned_jpeg_is_kept_and_loads_upright(tmp_path: Path, encode: Encode):
    (tmp_path / "in").mkdir()
    for orientation in range(1, 9):
        (tmp_path / "in" / f"{orientation}.jpg").write_bytes(turned(encode, orientation))
    convert_images(tmp_path / "in", tmp_path / "p", size="keep", store="jpeg", shuffle=False)
    pack = open_pack(tmp_path / "p")
    reader = PackStore(pack, pack.fields)
    for row, data in enumerate(reader.ragged("image", Runs(np.arange(8), np.ones(8, np.int64)))):
        with Image.open(io.BytesIO(data)) as image:
            expected = upright(np.asarray(image.convert("RGB")), row + 1)
        assert decode(data, 1 << 20).shape == expected.shape == ((40, 64, 3) if row < 4 else (64, 40, 3))
        assert np.abs(decode(data, 1 << 20).astype(int) - expected).max() < 12


def test_a_kept_file_that_is_cut_short_is_bad(mixed: Path, tmp_path: Path):
    data = (mixed / "colour.jpg").read_bytes()
    (mixed / "colour.jpg").write_bytes(data[: len(data) // 2])
    report = convert_images(mixed, tmp_path / "p", size="keep", store="jpeg", on_error="skip")
    assert [s["key"] for s in report.skipped] == ["colour.jpg"]
    assert "colour.jpg" not in rows_of(open_pack(tmp_path / "p"))


def test_boxes_and_points_of_kept_files_stay_in_the_upright_picture(tmp_path: Path, encode: Encode):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jpg").write_bytes(turned(encode, 6))  # 40 wide, 64 high when upright
    (tmp_path / "l.csv").write_text("file,l,t,r,b,x,y\na.jpg,1.5,2,39,63,10,60\n")
    convert_images(
        tmp_path / "in",
        tmp_path / "p",
        size="keep",
        store="jpeg",
        labels=Labels(tmp_path / "l.csv", boxes="l,t,r,b", keypoints="x,y"),
    )
    pack = open_pack(tmp_path / "p")
    assert np.frombuffer(pack.read_ragged("boxes")[0], "<f4").tolist() == [1.5, 2, 39, 63]
    assert pack.read("keypoints").tolist() == [[[10, 60]]]


def whole(data: bytes, size: str) -> np.ndarray:
    """The picture brought to its row's size as one of that size for all is."""
    with Image.open(io.BytesIO(data)) as image:
        upright_size = ImageOps.exif_transpose(image).size[::-1]
    spec = PixelSpec(RowSize.from_record(size).row_sides(*upright_size), "stretch")
    out = np.empty(spec.shape, np.uint8)
    DecodeResize(spec)(data, out)
    return out


SHRUNK = {
    "max=32": {"colour.jpg": (20, 32), "turned.jpg": (32, 20), "alpha.png": (20, 32), "small.png": (8, 9)},
    "min=30": {"colour.jpg": (30, 48), "turned.jpg": (48, 30), "alpha.png": (30, 48), "small.png": (8, 9)},
    "max=64": {"colour.jpg": (40, 64), "turned.jpg": (64, 40), "alpha.png": (40, 64), "small.png": (8, 9)},
}


@pytest.mark.parametrize("size", SHRUNK)
def test_whole_pictures_shrink_as_rows_of_one_size_do(mixed: Path, tmp_path: Path, size: str):
    convert_images(mixed, tmp_path / "p", size=size, store="jpeg", quality=85)
    pack, means, squares = open_pack(tmp_path / "p"), [], []
    stored = rows_of(pack)
    sizes = dict(zip(pack.keys(), zip(pack.read("height"), pack.read("width"), strict=True), strict=True))
    assert SHRUNK[size].items() <= sizes.items()
    for path in mixed.iterdir():
        data = path.read_bytes()
        if size == "max=64" and path.suffix == ".jpg":
            row, pixels = data, decode(data, 1 << 20, 3)
        else:
            pixels = whole(data, size)
            row = encode_jpeg(pixels, 85)
        if row != data or path.name != "turned.jpg":
            row = jpeg_parts.with_markers(row) or row
        assert stored[path.name] == row
        assert sizes[path.name] == pixels.shape[:2]
        means.append(pixels.mean((0, 1)) / 255)
        squares.append((pixels.astype(float) ** 2).mean((0, 1)) / 255**2)
    assert (jpeg_parts.part(stored["colour.jpg"], (0, 0, 9, 4)) is not None) == native.COMPILED
    found = pack.header.statistics["image"]
    assert found["mean"] == pytest.approx(np.mean(means, 0), abs=1e-9)
    assert found["std"] == pytest.approx(np.sqrt(np.mean(squares, 0) - np.mean(means, 0) ** 2), abs=1e-9)
    assert pack.header.field("image").about == {"layout": "HWC", "color": "rgb", "size": size}
    assert pack.header.field("image").codec == {"name": "jpeg", "shape": None}


@pytest.mark.parametrize("size", ["keep", "max=64"])
def test_what_follows_the_end_of_a_file_is_not_stored(mixed: Path, tmp_path: Path, size: str):
    convert_images(mixed, tmp_path / "p", size=size, store="jpeg")
    for path in mixed.glob("*.jpg"):
        path.write_bytes(path.read_bytes() + b"video" * 1000 + b"\xff\xd9")
    convert_images(mixed, tmp_path / "q", size=size, store="jpeg")
    assert rows_of(open_pack(tmp_path / "q")) == rows_of(open_pack(tmp_path / "p"))


def test_without_the_loops_whole_pictures_get_no_markers(
    mixed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(native, "COMPILED", False)
    plans: list[ConversionPlan] = []
    convert_images(mixed, tmp_path / "p", size="max=64", store="jpeg", on_plan=plans.append)
    assert native.without("pixels", "markers") in plans[0].notes
    assert rows_of(open_pack(tmp_path / "p"))["colour.jpg"] == (mixed / "colour.jpg").read_bytes()


def test_every_orientation_of_a_whole_picture_is_upright(tmp_path: Path, encode: Encode):
    (tmp_path / "in").mkdir()
    for orientation in range(1, 9):
        (tmp_path / "in" / f"{orientation}.jpg").write_bytes(turned(encode, orientation))
    convert_images(tmp_path / "in", tmp_path / "p", size="max=32", store="jpeg", quality=95, shuffle=False)
    pack = open_pack(tmp_path / "p")
    first = decode(pack.read_ragged("image")[0], 1 << 20).astype(int)
    for row, data in enumerate(pack.read_ragged("image")):
        pixels = decode(data, 1 << 20)
        assert pixels.shape[:2] == (pack.read("height")[row], pack.read("width")[row])
        assert np.abs(pixels.astype(int) - upright(first, row + 1)).mean() < 4


def test_grey_whole_pictures(mixed: Path, tmp_path: Path):
    convert_images(mixed, tmp_path / "p", size="max=32", store="jpeg", channels="gray")
    pack = open_pack(tmp_path / "p")
    assert {jpeg_size(data)[2] for data in pack.read_ragged("image")} == {1}
    assert len(pack.header.statistics["image"]["mean"]) == 1


@pytest.mark.parametrize("size", ["min=32", "max=32", "keep"])
def test_whole_pictures_are_not_fitted(mixed: Path, tmp_path: Path, size: str):
    with pytest.raises(UsageError) as error:
        convert_images(mixed, tmp_path / "p", size=size, store="jpeg", fit="pad")
    assert str(error.value) == (
        f"fit pad: is for rows of one size; with size {size} images keep different sizes. Leave it out."
    )


def test_boxes_and_points_shrink_with_whole_pictures(tmp_path: Path, encode: Encode):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jpg").write_bytes(turned(encode, 6))  # 40 wide, 64 high when upright
    (tmp_path / "l.csv").write_text("file,l,t,r,b,x,y\na.jpg,1.5,2,39,63,10,60\n")
    convert_images(
        tmp_path / "in",
        tmp_path / "p",
        size="max=32",
        store="jpeg",
        labels=Labels(tmp_path / "l.csv", boxes="l,t,r,b", keypoints="x,y"),
    )
    pack = open_pack(tmp_path / "p")
    assert np.frombuffer(pack.read_ragged("boxes")[0], "<f4").tolist() == [0.75, 1, 19.5, 31.5]
    assert pack.read("keypoints").tolist() == [[[5, 30]]]
    assert [f.name for f in pack.fields] == ["image", "boxes", "keypoints", "height", "width", "key"]


def coded(values: np.ndarray) -> np.ndarray:
    """An image whose pixels say what its mask holds there: three equal channels."""
    return np.repeat(values[:, :, None], 3, axis=2)


@pytest.mark.parametrize("fit", ["crop", "pad", "stretch"])
@pytest.mark.parametrize(("height", "width"), [(64, 64), (32, 96), (80, 20), (128, 128)])
def test_masks_lie_where_their_pictures_do(tmp_path: Path, fit: str, height: int, width: int):
    """Four quarters of flat grey: away from their edges, which resizing blends, image and mask must agree."""
    values = np.full((height, width), 40, np.uint8)
    values[: height // 2, width // 2 :], values[height // 2 :, : width // 2] = 100, 160
    values[height // 2 :, width // 2 :] = 220
    for folder, image in (("in", coded(values)), ("masks", values)):
        (tmp_path / folder / "a").mkdir(parents=True)
        Image.fromarray(image).save(tmp_path / folder / "a" / "1.png")
    convert_images(tmp_path / "in", tmp_path / "p", size=32, fit=fit, pairs={"mask": tmp_path / "masks"})
    pack = open_pack(tmp_path / "p")
    image, mask = pack.read("image")[0, :, :, 0].astype(int), pack.read("mask")[0].astype(int)
    assert set(np.unique(mask)) - {0} == {40, 100, 160, 220}
    differs = np.abs(image - mask) > 2
    rows, columns = np.nonzero(differs)
    assert differs.mean() < 0.2
    near = (np.abs(rows - 15.5) < 3) | (np.abs(columns - 15.5) < 3) | (fit == "pad")
    assert near.all()
    # Each mask pixel between quarters is still one of them, on the right side of the middle.
    inside = mask[:, :16] * (mask[:, :16] > 0)
    assert set(np.unique(inside)) <= {0, 40, 160}


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("size", ["16", "max=32", "keep"])
def test_masks_of_another_frame_are_skipped(tmp_path: Path, encode: Encode, size: str, soft: bool):
    sides = {"good": (40, 64), "low": (10, 16), "turned": (32, 20), "cut": (20, 64)}  # high, wide
    for folder in ("in", "masks"):
        (tmp_path / folder).mkdir()
    for name, (height, width) in sides.items():
        (tmp_path / "in" / f"{name}.jpg").write_bytes(encode(picture(), "JPEG"))
        Image.new("L", (width, height), 9).save(tmp_path / "masks" / f"{name}.png")
    (tmp_path / "in" / "exif.jpg").write_bytes(turned(encode, 6))  # 40 wide, 64 high when upright
    Image.new("L", (32, 20), 9).save(tmp_path / "masks" / "exif.png")
    pairs = {"mask": Soft(tmp_path / "masks") if soft else tmp_path / "masks"}
    report = convert_images(
        tmp_path / "in", tmp_path / "p", size=size, pairs=pairs, on_error="skip", shards=9
    )
    assert sorted(open_pack(tmp_path / "p").keys()) == ["good.jpg", "low.jpg"]
    assert {s["key"]: s["reason"].partition(";")[0] for s in report.skipped} == {
        "cut.jpg": "its mask cut.png: has 64 x 20 pixels, but its upright image has 64 x 40",
        "exif.jpg": "its mask exif.png: has 32 x 20 pixels, but its upright image has 40 x 64",
        "turned.jpg": "its mask turned.png: has 20 x 32 pixels, but its upright image has 64 x 40",
    }
    with pytest.raises(SourceError, match=r"\.png: has \d+ x \d+ pixels, but its upright image has "):
        append_images(tmp_path / "p", tmp_path / "in", pairs={"mask": tmp_path / "masks"}, duplicates="keep")


def test_masks_of_one_bit_stay_so_in_packs_made_of_their_pack(tmp_path: Path):
    for folder in ("in", "masks"):
        (tmp_path / folder).mkdir()
    bits = picture()[:, :, 0] > 127
    for name in "ab":
        Image.fromarray(picture()).save(tmp_path / "in" / f"{name}.png")
        Image.fromarray(bits).save(tmp_path / "masks" / f"{name}.png")
    pairs = {"mask": tmp_path / "masks"}
    convert_images(tmp_path / "in", tmp_path / "keep", size="keep", pairs=pairs, shards=9)
    append_images(tmp_path / "keep", tmp_path / "in", pairs=pairs, duplicates="keep")
    repack(tmp_path / "keep", tmp_path / "max", size="max=32")
    repack(tmp_path / "keep", tmp_path / "one", size=16)
    for name in ("keep", "max", "one"):
        pack = open_pack(tmp_path / name)
        assert pack.header.field("mask").about["bits"] == 1
        stored = PackStore(pack, pack.fields)
        field = pack.header.field("mask")
        masks = stored.decoded("mask", one_run(0, pack.rows)) if field.ragged else pack.read("mask")
        assert [np.unique(mask).tolist() for mask in masks] == [[0, 1]] * pack.rows


def test_a_mask_of_another_size_and_one_a_channel(tmp_path: Path):
    values = np.zeros((16, 16), np.uint8)
    values[4:8, 8:16] = 200
    for folder in ("in", "small", "large"):
        (tmp_path / folder).mkdir()
    Image.fromarray(coded(np.kron(values, np.ones((4, 4), np.uint8)))).save(tmp_path / "in" / "1.png")
    Image.fromarray(values).save(tmp_path / "small" / "1.png")
    np.save(tmp_path / "large" / "1.npy", np.kron(values, np.ones((8, 8))).astype("<f4"))
    convert_images(
        tmp_path / "in",
        tmp_path / "p",
        size=64,
        pairs={"small": tmp_path / "small", "large": tmp_path / "large"},
    )
    pack = open_pack(tmp_path / "p")
    image = pack.read("image")[0, :, :, 0]
    assert (pack.read("small")[0] == image).all()
    assert (pack.read("large")[0] == image).all()
    assert pack.header.field("large").dtype == "<f4"
    assert [f.name for f in pack.fields] == ["image", "small", "large", "key"]
    assert pack.header.provenance["options"]["pairs"] == ["large", "small"]


def test_a_turned_picture_brings_its_boxes_and_points(tmp_path: Path, encode: Encode):
    """The white square is looked for in the row itself."""
    (tmp_path / "in").mkdir()
    scene = np.zeros((64, 128, 3), np.uint8)
    scene[16:32, 40:56] = 255
    exif = Image.Exif()
    exif[EXIF_TAG] = 3  # half a turn: stored upside down
    (tmp_path / "in" / "a.jpg").write_bytes(encode(scene[::-1, ::-1].copy(), "JPEG", quality=98, exif=exif))
    (tmp_path / "l.csv").write_text("file,l,t,r,b,x,y,kind\na.jpg,40,16,56,32,48,24,cat\n")
    convert_images(
        tmp_path / "in",
        tmp_path / "p",
        size=32,
        labels=Labels(tmp_path / "l.csv", boxes="l,t,r,b", keypoints="x,y", column="kind"),
    )
    pack = open_pack(tmp_path / "p")
    rows, columns = np.nonzero(pack.read("image")[0, :, :, 0] > 128)
    left, top, right, bottom = np.frombuffer(pack.read_ragged("boxes")[0], "<f4").tolist()
    assert (left, top, right, bottom) == (4, 8, 12, 16)
    assert (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1) == (4, 8, 12, 16)
    assert pack.read("keypoints")[0].tolist() == [[8, 12]]
    assert pack.header.classes == ("cat",)
    assert np.frombuffer(pack.read_ragged("box_label")[0], "<i8").tolist() == [0]


def test_a_box_outside_its_picture_is_a_bad_input(photo_folder: Path, tmp_path: Path):
    lines = [
        "file,l,t,r,b",
        *(f"{k}.jpg,{500 if k == 3 else 5},5,{600 if k == 3 else 20},20" for k in range(8)),
    ]
    (tmp_path / "l.csv").write_text("\n".join(lines))
    report = convert_images(
        photo_folder / "red",
        tmp_path / "p",
        size=32,
        labels=Labels(tmp_path / "l.csv", boxes="l,t,r,b"),
        on_error="skip",
    )
    assert [s["key"] for s in report.skipped] == ["3.jpg"]
    assert (
        "its box 500,5,600,20 (l.csv line 5) lies outside its 48 x 40 pixels." in report.skipped[0]["reason"]
    )
    pack = open_pack(tmp_path / "p")
    assert pack.rows == len(pack.read_ragged("boxes")) == 7
    assert all(len(boxes) == 16 for boxes in pack.read_ragged("boxes"))


def test_rows_are_named_by_key_and_path(mixed: Path):
    rows = maker(mixed)
    assert rows.key(0) == "alpha.png"
    assert rows.name(0) == f"{mixed}/alpha.png"
    assert rows.ragged_bytes == 0
    assert maker(mixed, size="keep").ragged_bytes == sum(p.stat().st_size for p in mixed.iterdir()) // 6


def test_a_bad_file_says_why_without_its_name(mixed: Path):
    (mixed / "alpha.png").write_bytes(b"nothing")
    with pytest.raises(ImageError) as error:
        maker(mixed).make(0, 0, Block(rows={"image": np.empty((1, 16, 16, 3), np.uint8)}))
    assert "alpha" not in str(error.value)


def test_columns_know_the_labels(photo_folder: Path):
    rows = maker(photo_folder)
    found = rows.columns(np.array([0, 23, 9]))
    assert list(found) == ["label"]
    assert found["label"].tolist() == [0, 2, 1]
    assert found["label"].flags.c_contiguous


def test_inputs_are_known_by_names_sizes_labels_and_partners(mixed: Path, tmp_path: Path):
    masks = tmp_path / "masks"
    masks.mkdir()
    for path in mixed.iterdir():
        Image.new("L", (9, 9), 7).save(masks / f"{path.stem}.png")
    (mixed / "alpha.png").rename(mixed / "see-through.png")
    (masks / "alpha.png").rename(masks / "see-through.png")
    first = maker(mixed, pairs={"mask": masks}).fingerprint()
    assert first["images"] == 6
    assert first["bytes"] == sum(p.stat().st_size for p in mixed.iterdir())
    assert maker(mixed, pairs={"mask": masks}).fingerprint() == first
    assert maker(mixed).fingerprint() != first
    os.utime(mixed / "grey.jpg", (1, 1))
    assert maker(mixed, pairs={"mask": masks}).fingerprint() == first  # its time is no part of it
    Image.new("L", (90, 90), 7).save(masks / "grey.png")
    other = maker(mixed, pairs={"mask": masks}).fingerprint()
    assert {**other, "digest of names, sizes and labels": ""} == {
        **first,
        "digest of names, sizes and labels": "",
    }
    assert other != first
    with open(mixed / "grey.jpg", "ab") as file:
        file.write(b"x")
    assert maker(mixed, pairs={"mask": masks}).fingerprint()["bytes"] == first["bytes"] + 1


def test_the_newest_files_are_told(mixed: Path, tmp_path: Path):
    for path in mixed.iterdir():
        os.utime(path, (10, 10))
    before = maker(mixed).newest()
    os.utime(mixed / "grey.jpg", (2e9, 2e9))
    after = maker(mixed).newest()
    assert len(after) == 1
    assert after != before
    assert "grey.jpg" in after[0]
