from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from packer import convert_images
from packer.bench.image_comparison import check_same, source_indices
from packer.errors import PackerError
from packer.format.pack import open_pack
from packer.inputs.image_sources import open_source
from packer.inputs.image_targets import read_targets
from packer.pixels.decode_resize import PixelSpec

SPEC = PixelSpec((32, 32))


def check(images: Path, pack: Path, labels: Path | None = None) -> int:
    opened = open_pack(pack)
    with open_source(images, labelled=labels is not None) as source:
        if labels is not None:
            source.labels = read_targets(str(labels), source.keys).fixed["label"]
        return check_same(source, opened, source_indices(source, opened), SPEC)


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
