"""Plain PNG: the same pixels as Pillow's, or none."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin

from packer.codecs.jpeg import EXIF_TAG
from packer.pixels import image_decoder
from packer.pixels.image_decoder import ScratchBuffers, decode, plain_png_size

Encode = Callable[..., bytes]
RGB = np.random.default_rng(5).integers(0, 256, (9, 14, 3), dtype=np.uint8)
GRAY = RGB[..., 0]


def decode_plain_png(data: bytes, channels: str) -> Any:
    """The pixels that OpenCV gives, None where they are left to Pillow."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(image_decoder, "_decode_pillow", lambda *_: None)
        image = decode(data, channels, 1 << 20, lambda *_: 1.0, ScratchBuffers())
    return None if image is None else image.pixels


def with_chunk(data: bytes, kind: bytes, body: bytes, *, late: bool = False) -> bytes:
    """The file with one chunk more, after its header or before its end."""
    chunk = struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    at = len(data) - 12 if late else 33
    return data[:at] + chunk + data[at:]


@pytest.mark.parametrize(("picture", "channels"), [(RGB, "rgb"), (GRAY, "rgb"), (GRAY, "gray")])
@pytest.mark.parametrize(
    "chunk",
    [
        None,
        (b"gAMA", struct.pack(">I", 100000)),
        (b"sRGB", b"\1"),
        (b"pHYs", struct.pack(">IIB", 9, 9, 1)),
        (b"tEXt", b"Software\0packer"),
    ],
)
def test_plain_files_are_pillows_pixels(
    encode: Encode, picture: Any, channels: str, chunk: tuple[bytes, bytes] | None
) -> None:
    data = encode(picture, "PNG")
    if chunk is not None:
        data = with_chunk(data, *chunk)
    assert plain_png_size(data, channels) == (9, 14)
    pixels = decode_plain_png(data, channels)
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(image.convert({"rgb": "RGB", "gray": "L"}[channels]))
    assert pixels is not None
    assert pixels.dtype == np.uint8
    assert np.array_equal(pixels, expected.reshape(9, 14, -1))


def exif(orientation: int) -> bytes:
    tags = Image.Exif()
    tags[EXIF_TAG] = orientation
    return tags.tobytes()[6:]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    "chunk",
    [
        (b"tRNS", struct.pack(">HHH", 1, 2, 3)),
        (b"eXIf", exif(6)),
        (b"iCCP", b"name\0\0" + zlib.compress(b"profile")),
        (b"acTL", struct.pack(">II", 1, 0)),
        (b"tEXt", b"Raw profile type exif\0\n"),
        (b"tEXt", b"XML:com.adobe.xmp\0<x/>"),
        (b"zTXt", b"Comment\0\0" + zlib.compress(b"hello")),
        (b"abCd", b""),
    ],
)
def test_files_with_more_to_say_are_left_to_pillow(
    encode: Encode, chunk: tuple[bytes, bytes], late: bool
) -> None:
    assert plain_png_size(with_chunk(encode(RGB, "PNG"), *chunk, late=late), "rgb") is None


@pytest.mark.parametrize("channels", ["rgb", "gray", "rgba"])
def test_other_kinds_of_png_are_left_to_pillow(encode: Encode, channels: str) -> None:
    others = [
        encode(np.dstack([RGB, GRAY]), "PNG"),
        encode(np.dstack([GRAY, GRAY]), "PNG"),
        encode(GRAY.astype(np.uint16) * 256, "PNG"),
        encode(Image.fromarray(RGB).quantize(8), "PNG"),
        encode(Image.fromarray(GRAY).convert("1"), "PNG"),
        encode(RGB, "JPEG"),
        b"",
        encode(RGB, "PNG")[:-12],
    ]
    assert [plain_png_size(data, channels) for data in others] == [None] * len(others)
    assert plain_png_size(encode(RGB, "PNG"), channels) == {"rgb": (9, 14)}.get(channels)
    assert plain_png_size(encode(GRAY, "PNG"), "rgba") is None


@settings(max_examples=150)
@given(data=st.data())
def test_damage_that_opencv_overlooks_pillow_overlooks_alike(encode: Encode, data: st.DataObject) -> None:
    whole = bytearray(encode(RGB, "PNG"))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(8, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    damaged = bytes(whole[: data.draw(st.integers(33, len(whole)))])
    size = plain_png_size(damaged, "rgb")
    pixels = None if size is None or size[0] * size[1] > 10_000 else decode_plain_png(damaged, "rgb")
    if pixels is not None:
        with PngImagePlugin.PngImageFile(io.BytesIO(damaged)) as image:
            assert np.array_equal(pixels, np.asarray(image.convert("RGB")))
