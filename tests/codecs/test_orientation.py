from __future__ import annotations

import io
import struct
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from packer.codecs.jpeg import EXIF_TAG, jpeg_orientation, swaps_sides, upright
from packer.pixels.image_files import exif_orientation

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


INTEGERS = {1: "B", 3: "H", 4: "I", 6: "b", 8: "h", 9: "i"}
"""TIFF's types: BYTE, SHORT, LONG, SBYTE, SSHORT, SLONG."""


def exif_bytes(kind: int, values: list[float], endian: str, letter: str = "") -> bytes:
    """EXIF data whose orientation has a type of TIFF's."""
    data = struct.pack(f"{endian}{len(values)}{letter or INTEGERS[kind]}", *values)
    head = {"<": b"II*\0", ">": b"MM\0*"}[endian] + struct.pack(f"{endian}I", 8)
    entry = struct.pack(f"{endian}HHHI", 1, EXIF_TAG, kind, len(values))
    if len(data) <= 4:
        return b"Exif\0\0" + head + entry + data.ljust(4, b"\0") + bytes(4)
    return b"Exif\0\0" + head + entry + struct.pack(f"{endian}I", 26) + bytes(4) + data


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WebP"])
@pytest.mark.parametrize("endian", ["<", ">"])
@pytest.mark.parametrize("kind", INTEGERS)
def test_an_integer_of_any_type_is_read(
    encode: Callable[..., bytes], kind: int, endian: str, format: str
) -> None:
    pixels = np.zeros((8, 12, 3), np.uint8)
    for value in (6, 9, 0):
        data = encode(pixels, format, exif=exif_bytes(kind, [value], endian))
        expected = value if 1 <= value <= 8 else 1
        with Image.open(io.BytesIO(data)) as image:
            assert exif_orientation(image) == expected
            if kind != 1:  # Pillow returns BYTE as bytes, and leaves the picture as it is
                assert (ImageOps.exif_transpose(image).size == (8, 12)) == (expected > 1)
        if format == "JPEG":
            assert jpeg_orientation(data) == expected
            several = encode(pixels, format, exif=exif_bytes(kind, [value, 1], endian))
            assert jpeg_orientation(several) == expected


@pytest.mark.parametrize("endian", ["<", ">"])
def test_numbers_that_are_no_integers_count_as_upright(encode: Callable[..., bytes], endian: str) -> None:
    data = encode(np.zeros((8, 12, 3), np.uint8), "JPEG", exif=exif_bytes(11, [6.0], endian, "f"))
    assert jpeg_orientation(data) == 1


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
