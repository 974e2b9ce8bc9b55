"""Whole pictures with masks and soft maps: converted, made anew, verified, exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from packer import append_images, convert_images, export_images, merge_packs, repack, split_pack, verify_pack
from packer.errors import UsageError
from packer.format.fields import Field
from packer.format.own_size import partner_storage
from packer.inputs.image_pairs import Soft
from packer.inputs.label_options import Labels
from packer.orders.runs import one_run
from packer.packs.pack import Pack
from packer.packs.pack_opening import open_pack
from packer.read.array_store import PackStore
from packer.writing.pack_writer import PackWriter

DRAWS = np.random.default_rng(0)
SIDES = [(40, 64), (30, 20), (24, 24), (8, 50)]
NAMES = ("mask", "alpha", "depth")


def smooth(height: int, width: int) -> NDArray[np.uint8]:
    y, x = np.mgrid[:height, :width]
    return np.stack([255 * y // height, 255 * x // width, (x + y) % 256], axis=-1).astype(np.uint8)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures that PNG keeps exactly; a mask, half as large, a 16-bit and a float32 map of each; boxes."""
    root = tmp_path_factory.mktemp("own")
    for name in ("image", *NAMES):
        (root / name).mkdir()
    lines = ["file,l,t,r,b"]
    for i, (height, width) in enumerate(SIDES):
        Image.fromarray(smooth(height, width)).save(root / "image" / f"{i}.png")
        mask = DRAWS.integers(0, 9, (height // 2, width // 2)).astype(np.uint8)
        Image.fromarray(mask).save(root / "mask" / f"{i}.png")
        np.save(root / "alpha" / f"{i}.npy", DRAWS.integers(0, 1 << 16, (height, width)).astype("<u2"))
        np.save(root / "depth" / f"{i}.npy", DRAWS.random((height, width)).astype("<f4"))
        lines.append(f"{i}.png,0,0,{width},{height // 2}")
    (root / "boxes.csv").write_text("\n".join(lines))
    return root


def pairs_of(folder: Path) -> dict[str, Path | Soft]:
    return {name: folder / name if name == "mask" else Soft(folder / name) for name in NAMES}


def convert(data: Path, out: Path, **options: Any) -> Pack:
    convert_images(data / "image", out, shuffle=False, workers=1, **{"pairs": pairs_of(data), **options})
    return open_pack(out)


def rows(pack: Pack, name: str) -> list[NDArray[Any]]:
    field = pack.header.field(name)
    if not field.loaded.ragged:
        return list(np.asarray(pack.read(name)))
    return list(PackStore(pack, ()).decoded(name, one_run(0, pack.rows)))


def nearest(values: NDArray[Any], height: int, width: int) -> NDArray[Any]:
    y = ((np.arange(height) + 0.5) * values.shape[0] / height).astype(int)
    x = ((np.arange(width) + 0.5) * values.shape[1] / width).astype(int)
    return values[np.ix_(y, x)]


def test_the_store_is_jpeg_by_default(data: Path, tmp_path: Path):
    report = convert_images(data / "image", tmp_path / "p.h5", size="max=32")
    assert "Images of size max=32 keep different sizes, so all are stored as JPEG files." in report.notes
    assert (open_pack(tmp_path / "p.h5").header.field("image").codec or {})["name"] == "jpeg"
    for given in ({"store": "jpeg"}, {"like": tmp_path / "p.h5", "size": None}):
        options = {"size": "max=32", **given, "overwrite": True}
        convert_images(data / "image", tmp_path / "q.h5", **options)
        images = [open_pack(tmp_path / name).read_ragged("image") for name in ("p.h5", "q.h5")]
        assert images[0] == images[1]


@pytest.mark.parametrize(
    ("size", "sides"),
    [("keep", SIDES), ("max=32", [(20, 32), (30, 20), (24, 24), (5, 32)]), ("min=20", [(20, 32), (30, 20), (20, 20), (8, 50)])],
)  # fmt: skip
def test_masks_and_soft_maps_have_the_size_of_their_image(
    data: Path, tmp_path: Path, size: str, sides: list[tuple[int, int]]
):
    labels = {"labels": Labels(data / "boxes.csv", boxes="l,t,r,b")}
    pack = convert(data, tmp_path / "p.h5", size=size, **labels)
    images = rows(pack, "image")
    assert [image.shape[:2] for image in images] == sides
    for i, (mask, alpha, depth) in enumerate(zip(*(rows(pack, name) for name in NAMES), strict=True)):
        with Image.open(data / "mask" / f"{i}.png") as picture:
            assert np.array_equal(mask, nearest(np.asarray(picture), *sides[i]))
        for found, dtype, name in ((alpha, "<u2", "alpha"), (depth, "<f4", "depth")):
            given = np.load(data / name / f"{i}.npy")
            whole = Image.fromarray(given.astype(np.float32)).resize(
                sides[i][::-1], Image.Resampling.BILINEAR
            )
            assert found.dtype == dtype
            assert found.shape == sides[i]
            assert np.abs(found - np.asarray(whole)).max() <= (0.5001 if dtype == "<u2" else 1e-6)
        box = np.frombuffer(pack.read_ragged("boxes")[i], "<f4")
        height, width = sides[i]
        assert box.tolist() == pytest.approx([0, 0, width, height * (SIDES[i][0] // 2) / SIDES[i][0]])
    for name, dtype, channels in (("mask", "|u1", 1), ("alpha", "<u2", 1), ("depth", "<f4", 1)):
        field = pack.header.field(name)
        wanted = partner_storage(dtype, channels, soft=name != "mask")
        assert (field.about, field.codec) == wanted
        assert field.by_default
    assert verify_pack(tmp_path / "p.h5").ok
    assert "zlib" in pack.header.provenance["versions"]


def test_rows_shrink_and_turn_as_rows_of_one_size_do(tmp_path: Path):
    (tmp_path / "in").mkdir()
    (tmp_path / "m").mkdir()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(smooth(40, 64)).save(tmp_path / "in" / "a.jpg", quality=95, exif=exif)
    mask = DRAWS.integers(0, 5, (64, 40)).astype(np.uint8)
    Image.fromarray(mask).save(tmp_path / "m" / "a.png")
    convert_images(tmp_path / "in", tmp_path / "p", size="max=32", pairs={"mask": tmp_path / "m"})
    convert_images(tmp_path / "in", tmp_path / "one", size="32x20", fit="stretch", store="jpeg")
    pack = open_pack(tmp_path / "p")
    (one,) = PackStore(open_pack(tmp_path / "one"), ()).array("image", one_run(0, 1))
    assert np.array_equal(rows(pack, "image")[0], one)
    assert np.array_equal(rows(pack, "mask")[0], nearest(mask, 32, 20))


@pytest.mark.parametrize(
    "options", [{}, {"store": "jpeg"}, {"size": "max=30"}, {"size": 16, "fit": "stretch", "store": "raw"}]
)
def test_packs_are_made_anew(data: Path, tmp_path: Path, options: dict[str, Any]):
    before = convert(data, tmp_path / "p.h5", size="keep")
    repack(tmp_path / "p.h5", tmp_path / "q.h5", workers=1, **options)
    pack = open_pack(tmp_path / "q.h5")
    assert verify_pack(tmp_path / "q.h5").ok
    sides = {"max=30": [(18, 30), (30, 20), (24, 24), (4, 30)], 16: [(16, 16)] * 4}.get(
        options.get("size"), SIDES
    )
    if options.get("size") != 16:
        assert [image.shape[:2] for image in rows(pack, "image")] == sides
        assert list(zip(pack.read("height"), pack.read("width"), strict=True)) == sides
        assert (pack.header.field("mask").codec or {})["name"] == "png"
        assert pack.header.field("depth").codec is None
        assert ("size" in options) or pack.read_ragged("image") == before.read_ragged("image")
    for name in ("mask", "depth"):
        for i, (found, given) in enumerate(zip(rows(pack, name), rows(before, name), strict=True)):
            if name == "mask" or sides is SIDES:
                assert np.array_equal(found, nearest(given, *sides[i]))
            assert found.shape == sides[i]
            assert found.dtype == given.dtype


def test_shards_are_appended_to_merged_and_split(data: Path, tmp_path: Path):
    pairs = {name: data / name for name in NAMES}
    pack = convert(data, tmp_path / "p", size="max=32", shards=3, format="h5")
    append_images(tmp_path / "p", data / "image", pairs=pairs, duplicates="keep")
    merge_packs([tmp_path / "p", tmp_path / "p"], tmp_path / "m.h5", shuffle=False, duplicates="keep")
    split_pack(tmp_path / "m.h5", "a=0.5,b=0.5")
    merged = open_pack(tmp_path / "m.h5")
    for name in ("image", *NAMES):
        assert merged.read_ragged(name) == pack.read_ragged(name) * 4
    assert sum(open_pack(tmp_path / f"m.{part}.h5").rows for part in "ab") == 16


def test_exported_files_bring_the_pack_back(data: Path, tmp_path: Path):
    pack = convert(data, tmp_path / "p.h5", size="max=32", pairs={"mask": data / "mask"})
    export_images(tmp_path / "p.h5", tmp_path / "out")
    out, pairs = tmp_path / "out", {"mask": tmp_path / "out/mask"}
    convert_images(out / "image", tmp_path / "q.h5", size="max=32", shuffle=False, pairs=pairs)
    for name in ("image", "mask"):
        assert open_pack(tmp_path / "q.h5").read_ragged(name) == pack.read_ragged(name)


def test_bytes_that_are_not_those_of_a_size_are_reported(tmp_path: Path):
    fields = (
        Field("image", "|u1", None, {"layout": "HWC", "color": "rgb"}),
        *(Field(side, "<i4", (), {"of": "image"}) for side in ("height", "width")),
    )
    wrong = {
        "image": [bytes(12), bytes(12)],
        "height": np.array([2, 2], "<i4"),
        "width": np.array([2, 3], "<i4"),
    }
    with PackWriter(str(tmp_path / "p.h5"), fields=fields, rows=2, block_rows=2, format="h5") as writer:
        writer.write_block(0, wrong)
        writer.finish(rows=2, ragged={})
    (problem,) = verify_pack(tmp_path / "p.h5").problems
    assert problem.text == (
        f"{tmp_path}/p.h5: row 1 of 'image' has 12 bytes, not those of its height 2 and width 3, although the checksums agree."
        " Convert the images again."
    )


HELD = "images that keep different sizes are JPEG files of 8 bits"
REMEDY = "Leave it out, or pass one size for all images, such as size=256."


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": "keep", "channels": "gray"}, f"size keep: {HELD}, rgb, not gray. {REMEDY}"),
        ({"size": "max=32", "channels": "rgba"}, f"size max=32: {HELD}, rgb or gray, not rgba. {REMEDY}"),
        ({"size": "max=32", "dtype": "uint16"}, f"size max=32: {HELD}, rgb or gray, not uint16. {REMEDY}"),
        *(({"size": "max=32", "store": store}, f"store={store!r}: is for rows of one size; with size max=32 images keep "
         "different sizes, as JPEG files. Pass store='jpeg', or one size for all images, such as size=256.")
          for store in ("gzip", "raw")),
    ],
)  # fmt: skip
def test_what_whole_pictures_do_not_go_with(
    data: Path, tmp_path: Path, options: dict[str, Any], message: str
):
    with pytest.raises(UsageError) as error:
        convert(data, tmp_path / "p.h5", **options)
    assert str(error.value) == message
