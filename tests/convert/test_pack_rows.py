"""Rows read from packs, as a RowMaker gives them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packer.convert.image_conversion import convert_images
from packer.convert.pack_rows import PackRows
from packer.convert.repacking import merge_packs
from packer.errors import FormatError
from packer.packs.joined_pack import concatenate_packs
from packer.packs.pack import Pack
from packer.packs.pack_opening import open_pack
from packer.pixels.decode_resize import DecodeResize, PixelSpec
from packer.pixels.resampling import resize
from packer.pixels.row_placement import place


@pytest.fixture
def packs(photo_folder: Path, tmp_path: Path) -> list[Pack]:
    """One of blue and green photos in two shards, one of red photos and green ones; unshuffled."""
    for name, classes, options in (("a", ("blue", "green"), {"shards": 9}), ("b", ("green", "red"), {})):
        folder = tmp_path / f"{name} photos"
        folder.mkdir()
        for label in classes:
            (folder / label).symlink_to(photo_folder / label)
        convert_images(
            folder, tmp_path / name, size=32, shuffle=False, workers=1, **{"format": "h5", **options}
        )
    return [open_pack(tmp_path / "a"), open_pack(tmp_path / "b")]


def made(rows: PackRows, sample: int) -> dict[str, Any]:
    (block,) = rows.read(np.array([sample]))
    return {name: values[0] for name, values in {**block.rows, **block.files}.items()}


def test_several_packs_are_one_with_the_classes_of_all(packs: list[Pack]):
    pack = concatenate_packs(packs)
    assert (pack.rows, len(pack.parts)) == (32, 3)
    assert pack.path == " + ".join(p.path for p in packs)
    assert pack.header.classes == ("blue", "green", "red")
    labels = PackRows(pack).columns(np.arange(32))["label"]
    assert (labels == np.repeat([0, 1, 1, 2], 8)).all()
    assert concatenate_packs(packs[:1]).header.classes == ("blue", "green")


@pytest.mark.parametrize("classes", [("green",), ()])
def test_a_label_without_a_class_is_damage(packs: list[Pack], classes: tuple[str, ...]) -> None:
    """Labels of the classes are 0 and 1."""
    pack = concatenate_packs(packs)
    spoilt = replace(packs[1], header=replace(packs[1].header, classes=classes))
    rows = PackRows(replace(pack, shards=(packs[0], spoilt)))
    with pytest.raises(FormatError, match=r"b: it has labels without a class\. Convert the images again\.$"):
        rows.columns(np.array([31]))


def test_rows_are_found_in_their_parts(packs: list[Pack]):
    rows = PackRows(concatenate_packs(packs))
    assert [f.name for f in rows.fields] == ["image", "label", "key"]
    assert rows.ragged_bytes == 0
    keys = packs[0].keys() + packs[1].keys()
    images = np.concatenate([p.read("image") for p in packs])
    for sample in (0, 8, 9, 15, 16, 31):
        assert rows.key(sample) == keys[sample]
        assert (made(rows, sample)["image"] == images[sample]).all()
    assert rows.name(8) == f"{packs[0].path}/00000.h5, row 8"
    assert rows.name(9) == f"{packs[0].path}/00001.h5, row 0"
    assert rows.name(31) == f"{packs[1].path}, row 15"
    chosen = np.array([31, 0, 16, 9, 15])
    labels = rows.columns(chosen)["label"]
    assert labels.tolist() == [2, 0, 1, 1, 1]
    assert (labels.dtype, labels.flags.c_contiguous) == (np.dtype("<i8"), True)


def test_the_size_is_made_as_a_picture_of_that_size_would_be(packs: list[Pack]):
    spec = PixelSpec((8, 16), "pad")
    rows = PackRows(packs[1], spec)
    stored = np.ascontiguousarray(packs[1].read("image")[3])
    box, target = place("pad", (32, 32), (8, 16))
    expected = np.zeros((8, 16, 3), np.uint8)
    resize(stored, box, target.cut_view(expected))
    for _ in range(2):  # the buffers are used again
        assert (made(rows, 3)["image"] == expected).all()
    assert rows.fields[0].shape == (8, 16, 3)
    assert rows.fields[0].about["fit"] == "pad"


def test_jpeg_rows_shrink_as_their_files_would(photo_folder: Path, tmp_path: Path):
    convert_images(photo_folder, tmp_path / "j", size=32, store="jpeg", workers=1)
    pack, spec = open_pack(tmp_path / "j"), PixelSpec((16, 16))
    expected = np.empty((16, 16, 3), np.uint8)
    DecodeResize(spec)(pack.read_ragged("image")[5], expected)
    assert (made(PackRows(pack, spec), 5)["image"] == expected).all()
    passed = PackRows(pack, jpeg=True)
    assert made(passed, 5)["image"] == pack.read_ragged("image")[5]
    assert passed.fields[0].shape == (32, 32, 3)


def test_compressed_fields_are_made_uncompressed(photo_folder: Path, tmp_path: Path):
    convert_images(photo_folder, tmp_path / "g.h5", size=32, store="gzip", workers=1)
    convert_images(photo_folder, tmp_path / "r.h5", size=32, workers=1)
    rows = PackRows(open_pack(tmp_path / "g.h5"))
    assert all(f.codec is None for f in rows.fields)
    images = open_pack(tmp_path / "r.h5").read("image")
    assert all((made(rows, k)["image"] == images[k]).all() for k in (0, 11, 23))


def test_packs_are_known_by_their_seals(packs: list[Pack], tmp_path: Path):
    def source(packs: list[Pack]) -> dict[str, object]:
        merge_packs(
            [pack.path for pack in packs], tmp_path / "m.h5", overwrite=True, workers=1, duplicates="keep"
        )
        return dict(open_pack(tmp_path / "m.h5").header.provenance["source"])

    assert source(packs)["rows"] == 32
    assert source(packs) == source(packs)
    assert source(packs[::-1]) != source(packs)
