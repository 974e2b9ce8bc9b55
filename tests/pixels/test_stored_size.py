"""Sizes and points of pictures that EXIF turns, against turning the picture itself."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image, ImageOps

from packer.codecs.jpeg import upright
from packer.pixels.image_files import read_orientation
from packer.pixels.stored_size import StoredSize, read_stored_size, turn_points


@pytest.mark.parametrize("orientation", range(1, 9))
def test_points_turn_as_pixels_do(orientation: int) -> None:
    stored = np.zeros((4, 7), np.uint8)
    stored[1, 5] = 1
    turned = upright(stored, orientation)
    (row,), (column,) = np.nonzero(turned)
    found = turn_points(np.array([[5.5, 1.5]]), orientation, turned.shape)
    assert found.tolist() == [[column + 0.5, row + 0.5]]
    assert StoredSize(4, 7, orientation).upright == turned.shape
    assert StoredSize.from_upright(turned.shape, orientation).stored == (4, 7)


@pytest.mark.parametrize("suffix", ["jpeg", "png", "webp", "tiff", "bmp"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_size_of_a_file(suffix: str, orientation: int) -> None:
    image, file, exif = Image.new("RGB", (7, 4)), io.BytesIO(), Image.Exif()
    exif[274] = orientation
    if suffix == "bmp":
        orientation = 1
    tags = {"tiffinfo": {274: orientation}} if suffix == "tiff" else {"exif": exif}
    image.save(file, suffix, **({} if suffix == "bmp" else tags))
    data = file.getvalue()
    size = read_stored_size(data)
    assert size == StoredSize(4, 7, orientation)
    assert read_orientation(data) == orientation
    assert size.upright == ImageOps.exif_transpose(Image.open(io.BytesIO(data))).size[::-1]
    assert read_stored_size(b"no image") is None
    assert read_orientation(b"no image") == 1
