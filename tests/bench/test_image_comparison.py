from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from packer import convert_images, pack_dataset, repack
from packer.bench.image_comparison import check_same, image_field, source_indices
from packer.errors import ImageError, PackerError, UsageError
from packer.format.pack import open_pack
from packer.inputs.image_sources import open_source
from packer.inputs.image_targets import read_targets
from tests.bench.conftest import STORED


def check(images: Path, pack: Path, labels: Path | None = None) -> int:
    opened = open_pack(pack)
    with open_source(images, labelled=labels is not None) as source:
        if labels is not None:
            source.labels = read_targets(str(labels), source.keys).fixed["label"]
        return check_same(source, opened, source_indices(source, opened))


def test_each_row_is_found_in_the_source(photo_folder: Path, pack: Path) -> None:
    opened = open_pack(pack)
    with open_source(photo_folder) as source:
        indices = source_indices(source, opened)
        assert [source.keys[index] for index in indices.tolist()] == opened.keys()
        assert sorted(indices.tolist()) == list(range(24))


def test_what_was_packed_is_the_same(photo_folder: Path, pack: Path) -> None:
    assert check(photo_folder, pack) == 24


def test_an_image_that_is_gone_is_named(photo_folder: Path, pack: Path) -> None:
    (photo_folder / "green" / "3.jpg").unlink()
    row = open_pack(pack).keys().index("green/3.jpg")
    message = (
        f"{pack}: row {row} is 'green/3.jpg', which {photo_folder} does not hold;"
        " a pack is compared with the images it was made from. Pass those."
    )
    with pytest.raises(PackerError, match=re.escape(message)):
        check(photo_folder, pack)


def test_an_image_that_changed_is_named(photo_folder: Path, pack: Path) -> None:
    Image.fromarray(np.zeros((40, 48, 3), np.uint8)).save(photo_folder / "red" / "0.jpg")
    row = open_pack(pack).keys().index("red/0.jpg")
    message = (
        f"{pack}: row {row} has other pixels than 'red/0.jpg' in {photo_folder} gives now;"
        " a comparison needs the same on both sides. Convert the images again."
    )
    with pytest.raises(PackerError, match=re.escape(message)):
        check(photo_folder, pack)


def test_a_label_that_changed_is_named(photo_folder: Path, pack: Path) -> None:
    (photo_folder / "aqua").mkdir()
    Image.fromarray(np.zeros((40, 48, 3), np.uint8)).save(photo_folder / "aqua" / "0.jpg")
    key = open_pack(pack).keys()[0]
    message = (
        f"{pack}: row 0 has another label than {key!r} in {photo_folder} gives now;"
        " a comparison needs the same on both sides."
        " Pass the CSV it was made with as labels=, or convert the images again."
    )
    with pytest.raises(PackerError, match=re.escape(message)):
        check(photo_folder, pack)


def test_labels_that_the_pack_lacks_are_named(photo_folder: Path, tmp_path: Path) -> None:
    convert_images(photo_folder / "red", tmp_path / "red.h5", size=32)
    labels = tmp_path / "labels.csv"
    labels.write_text("".join(f"{number}.jpg,{number}\n" for number in range(8)))
    message = (
        f"{tmp_path / 'red.h5'}: has no labels, and {photo_folder / 'red'} is given some;"
        " a comparison needs the same on both sides. Drop labels=, or convert the images again."
    )
    with pytest.raises(PackerError, match=f"^{re.escape(message)}$"):
        check(photo_folder / "red", tmp_path / "red.h5", labels)


def odd_files(folder: Path) -> None:
    """Add files that need more than a JPEG decoder, or have to be turned or enlarged."""
    draws = np.random.default_rng(1)
    exif = Image.Exif()
    exif[0x0112] = 6
    pixels = draws.integers(0, 255, (44, 60, 4), dtype=np.uint8)
    Image.fromarray(pixels[..., :3]).save(folder / "red" / "turned.jpg", exif=exif)
    Image.fromarray(pixels[..., 0]).save(folder / "red" / "gray.jpg")
    Image.fromarray(pixels).save(folder / "red" / "clear.png")
    Image.fromarray(pixels[:9, :7, :3]).save(folder / "red" / "small.webp")


@pytest.mark.parametrize("name", STORED)
def test_rows_stored_otherwise_are_the_same(photo_folder: Path, tmp_path: Path, name: str) -> None:
    odd_files(photo_folder)
    convert_images(photo_folder, tmp_path / "p", **STORED[name])
    assert check(photo_folder, tmp_path / "p") == 28


def test_another_way_of_storing_is_the_same(photo_folder: Path, pack: Path, tmp_path: Path) -> None:
    odd_files(photo_folder)
    convert_images(photo_folder, tmp_path / "raw.h5", size=32)
    repack(tmp_path / "raw.h5", tmp_path / "jpeg.h5", store="jpeg", quality=60)
    assert check(photo_folder, tmp_path / "jpeg.h5") == 28


@pytest.mark.parametrize("changed", ["pixels", "quality"])
def test_other_pixels_of_rows_stored_otherwise_are_found(
    photo_folder: Path, stored: Path, changed: str
) -> None:
    """A little noise, or the file encoded anew, is enough."""
    path = photo_folder / "green" / "3.jpg"
    pixels = np.array(Image.open(path))
    if changed == "pixels":
        pixels[20:24, 20:24] ^= 8
    Image.fromarray(pixels).save(path, quality=100 if changed == "pixels" else 85)
    row = open_pack(stored).keys().index("green/3.jpg")
    message = (
        f"{stored}: row {row} has other pixels than 'green/3.jpg' in {photo_folder} gives now;"
        " a comparison needs the same on both sides. Convert the images again."
    )
    with pytest.raises(PackerError, match=f"^{re.escape(message)}$"):
        check(photo_folder, stored)


@pytest.mark.parametrize("name", ["whole jpeg", "kept jpeg", "whole raw"])
def test_another_size_is_found(photo_folder: Path, tmp_path: Path, name: str) -> None:
    convert_images(photo_folder, tmp_path / "p.h5", **STORED[name])
    path = photo_folder / "green" / "3.jpg"
    Image.open(path).crop((0, 0, 48, 30)).save(path)
    with pytest.raises(PackerError, match=r"row \d+ has another size than 'green/3.jpg' in "):
        check(photo_folder, tmp_path / "p.h5")


def test_an_image_that_is_damaged_now_is_named(photo_folder: Path, stored: Path) -> None:
    (photo_folder / "green" / "3.jpg").write_bytes(b"\xff\xd8\xff\xe0 nothing")
    with pytest.raises(
        ImageError, match=f"^{re.escape(str(photo_folder))}/green/3.jpg: a damaged or truncated JPEG"
    ):
        check(photo_folder, stored)


def test_packs_that_cannot_be_compared_are_refused(photo_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.h5"
    convert_images(photo_folder, out, size=32, store="gzip")
    with pytest.raises(UsageError) as error:
        check(photo_folder, out)
    assert str(error.value) == (
        f"{out}: its images are compressed in blocks (gzip); bench compares raw and JPEG rows."
        " Repack it with store='raw', or pass another pack."
    )
    for size in (32, "max=40"):
        convert_images(photo_folder, out, size=size, dtype="uint16", overwrite=True)
        with pytest.raises(UsageError) as error:
            check(photo_folder, out)
        assert str(error.value) == (
            f"{out}: its images have 16 bits or are bands; bench compares gray, rgb and rgba of 8 bits. Pass another pack."
        )


def test_packs_that_were_not_made_of_files_are_refused(tmp_path: Path) -> None:
    pack_dataset({"image": np.zeros((4, 8, 8, 3), np.uint8)}, tmp_path / "a.h5")
    pack_dataset({"features": np.zeros((4, 8))}, tmp_path / "f.h5")
    with pytest.raises(UsageError) as error:
        image_field(open_pack(tmp_path / "a.h5"))
    assert str(error.value) == (
        f"{tmp_path}/a.h5: does not say how its images were made from files; bench compares packs made by packer convert."
        " Pass another pack."
    )
    with pytest.raises(UsageError) as error:
        image_field(open_pack(tmp_path / "f.h5"))
    assert str(error.value) == (
        f"{tmp_path}/f.h5: has no field 'image'; bench compares images with the pack made from them. Pass another pack."
    )
