"""Masks as PNG files without filters: what any decoder reads, and refusal of what was written otherwise or is damaged."""

from __future__ import annotations

import io
import zlib

import cv2
import numpy as np
import pytest
from PIL import Image

from packer.codecs import png

RNG = np.random.default_rng(0)
MASK = RNG.integers(0, 4, (37, 21)).astype(np.uint8)


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_opencv_reads_what_is_written(channels: int, dtype: type) -> None:
    array = RNG.integers(0, np.iinfo(dtype).max, (5, 7, channels), endpoint=True).astype(dtype)
    array = array[:, :, 0] if channels == 1 else array
    data = png.encode(array)
    read = png.decode(data)
    assert read.dtype == dtype
    assert np.array_equal(read, array)
    assert read.flags.writeable or read.base is not None
    assert png.size(data) == (5, 7, channels)
    seen = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    seen = seen if channels == 1 else seen[..., [2, 1, 0, 3][:channels]]
    assert np.array_equal(seen, array)


@pytest.mark.parametrize(
    "array", [MASK.astype(np.int32), np.zeros((2, 2, 2), np.uint8), np.zeros((0, 2), np.uint8)]
)
def test_what_png_does_not_hold_is_refused(array: np.ndarray) -> None:
    with pytest.raises(ValueError, match="are encoded"):
        png.encode(array)


def saved(mode: str, **options: object) -> bytes:
    file = io.BytesIO()
    Image.fromarray(RNG.integers(0, 200, (40, 30)).astype(np.uint8)).convert(mode).save(
        file, "PNG", **options
    )
    return file.getvalue()


def test_files_of_others_are_refused() -> None:
    for data in (saved("P"), saved("1"), saved("LA"), b"", b"\x89PNG\r\n\x1a\n", b"x" * 99):
        with pytest.raises(ValueError, match="PNG file"):
            png.size(data)
    with pytest.raises(ValueError, match="filters"):
        png.decode(cv2.imencode(".png", np.tile(np.arange(90, dtype=np.uint8), (50, 1)))[1].tobytes())


def test_damage_is_seen() -> None:
    data = png.encode(MASK)
    for at in range(len(data)):
        flipped = data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]
        with pytest.raises(ValueError, match="PNG"):
            png.decode(flipped)
        with pytest.raises(ValueError, match="PNG"):
            png.decode(data[:at])
    taller = png.encode(np.zeros((400, 21), np.uint8))
    with pytest.raises(ValueError, match="more or fewer pixels"):
        png.decode(taller[:33] + data[33:])


@pytest.mark.parametrize("array", [MASK, np.dstack([MASK.astype(np.uint16) * 900] * 3)])
def test_rows_of_the_result_may_lie_apart(array: np.ndarray) -> None:
    apart = np.zeros((37, 23, *array.shape[2:]), array.dtype)
    png.decode_into(png.encode(array), apart[:, 1:-1])
    assert np.array_equal(apart[:, 1:-1], array)
    assert not apart[:, [0, -1]].any()


@pytest.mark.parametrize("row", [np.zeros((21, 37), np.uint8), np.zeros((37, 21), np.uint16)])
def test_another_size_is_refused(row: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"^a PNG file of 8 bits, \[37, 21\]; the row is uint"):
        png.decode_into(png.encode(MASK), row)


@pytest.mark.parametrize(("place", "value"), [(28, 1), (25, 3), (24, 4)])
def test_an_interlaced_file_and_a_palette_are_refused(place: int, value: int) -> None:
    data = bytearray(png.encode(MASK))
    data[place] = value
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    with pytest.raises(ValueError, match="a PNG file with a palette, interlaced, or otherwise not packer's"):
        png.decode(bytes(data))
