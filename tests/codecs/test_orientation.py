from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from packer.codecs.jpeg import EXIF_TAG, jpeg_orientation, swaps_sides, upright

ORIENTATIONS = range(1, 9)


def exif(orientation: int, endian: str = "<") -> Image.Exif:
    tags = Image.Exif()
    tags.endian = endian
    tags[0x010F] = "maker"
    tags[EXIF_TAG] = orientation
    return tags


@pytest.mark.parametrize("endian", ["<", ">"])
@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_reads_what_pillow_wrote(encode: Callable[..., bytes], orientation: int, endian: str) -> None:
    data = encode(np.zeros((8, 8, 3), np.uint8), "JPEG", exif=exif(orientation, endian))
    assert jpeg_orientation(data) == orientation


@pytest.mark.parametrize("value", [0, 9, 65535])
def test_values_without_meaning_count_as_upright(encode: Callable[..., bytes], value: int) -> None:
    assert jpeg_orientation(encode(np.zeros((8, 8, 3), np.uint8), "JPEG", exif=exif(value))) == 1


def test_no_exif_is_upright(jpeg: bytes) -> None:
    assert jpeg_orientation(jpeg) == 1


def test_exif_of_another_type_is_upright() -> None:
    entry = bytes.fromhex("12010400010000000600")  # the tag as LONG
    tiff = b"II*\0" + (8).to_bytes(4, "little") + (1).to_bytes(2, "little") + entry + bytes(4)
    body = b"Exif\0\0" + tiff
    data = b"\xff\xd8\xff\xe1" + (len(body) + 2).to_bytes(2, "big") + body + b"\xff\xd9" + bytes(8)
    assert jpeg_orientation(data) == 1
    assert jpeg_orientation(data.replace(b"\x12\x01\x04", b"\x12\x01\x03")) == 6


@given(st.binary(max_size=200))
def test_any_bytes_give_an_orientation(data: bytes) -> None:
    body = b"Exif\0\0II*\0" + data
    head = b"\xff\xd8\xff\xe1" + (len(body) + 2).to_bytes(2, "big") + body
    assert jpeg_orientation(data) in ORIENTATIONS
    assert jpeg_orientation(head + data) in ORIENTATIONS


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_upright_is_what_pillow_makes_of_it(orientation: int) -> None:
    pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    image = Image.fromarray(pixels)
    image.getexif()[EXIF_TAG] = orientation
    turned = upright(pixels, orientation)
    assert np.array_equal(turned, np.asarray(ImageOps.exif_transpose(image)))
    assert (turned.shape[:2] == (3, 2)) == swaps_sides(orientation)
