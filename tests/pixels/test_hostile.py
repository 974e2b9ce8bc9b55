"""Images that were made to keep a decoder busy, to fill the memory, or to have a library print."""

from __future__ import annotations

import contextlib
import io
import struct
import threading
import time
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from packer.codecs import jpeg
from packer.codecs.jpeg import jpeg_orientation
from packer.errors import ImageError
from packer.pixels.decode_resize import MAX_PIXELS
from packer.pixels.image_decoder import ScratchBuffers, decode
from packer.pixels.image_files import MAX_CHUNKS, is_short_of_memory, read_image_header
from packer.pixels.quiet_stderr import QuietStderr
from tests.open_files import open_files

SECONDS = 20.0  # of work that took minutes, on a busy machine; most of these take milliseconds


def decoded(data: bytes) -> tuple[int, int]:
    image = decode(data, "rgb", MAX_PIXELS, lambda height, width: 1.0, ScratchBuffers())
    return image.height, image.width


def refused(data: bytes) -> str:
    began = time.process_time()
    with pytest.raises(ImageError) as error:
        decoded(data)
    assert time.process_time() - began < SECONDS
    return str(error.value)


def saved(format: str, size: tuple[int, int] = (40, 30), **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, (9, 99, 199)).save(buffer, format, **options)
    return buffer.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(chunks: bytes, width: int = 40, height: int = 30, rows: int = 30) -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    pixels = zlib.compress(b"".join(b"\0" + b"\7\x80\x20" * 40 for _ in range(rows)))
    return b"\x89PNG\r\n\x1a\n" + header + chunks + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def in_scans(times: int) -> bytes:
    """A progressive JPEG whose second scan is there so many times more."""
    data = saved("JPEG", progressive=True)
    first = data.index(b"\xff\xda")
    second = data.index(b"\xff\xda", first + 1)
    third = data.index(b"\xff\xda", second + 1)
    second = data.index(b"\xff\xc4", first) if b"\xff\xc4" in data[first:second] else second
    return data[:third] + data[second:third] * times + data[third:]


def test_a_jpeg_of_thousands_of_scans_is_refused_everywhere() -> None:
    bomb, sentence = in_scans(10_000), "a JPEG of more than 100 scans; up to 100 are decoded"
    assert refused(bomb) == sentence + "."
    with pytest.raises(ValueError, match=sentence):
        jpeg.decode(bomb, MAX_PIXELS)
    assert decoded(in_scans(50)) == (30, 40)


def test_scans_inside_the_metadata_do_not_count() -> None:
    photo = saved("JPEG", progressive=True)
    note = b"\xff\xda" * 1000
    data = photo[:2] + b"\xff\xfe" + struct.pack(">H", len(note) + 2) + note + photo[2:]
    assert not jpeg.has_too_many_scans(data)
    assert decoded(data) == (30, 40)


@pytest.mark.parametrize(("segment", "times"), [(b"\xff", 30_000_000), (b"\xff\xe1\0\2", 5_000_000)])
def test_millions_of_empty_segments_cost_no_minutes(segment: bytes, times: int) -> None:
    photo, filling = saved("JPEG"), segment * times
    began = time.process_time()
    assert jpeg_orientation(photo[:2] + filling + photo[2:]) == 1
    assert not jpeg.has_too_many_scans(photo[:2] + filling + photo[2:])
    sentence = "a JPEG of more than 65,536 segments before its pixels; up to that many are read."
    assert refused(b"\xff\xd8" + filling) == sentence
    assert time.process_time() - began < SECONDS


def test_fill_bytes_hide_no_orientation() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    photo = saved("JPEG", exif=exif)
    assert jpeg_orientation(photo[:2] + b"\xff" * 9 + photo[2:]) == 6


def test_a_png_of_millions_of_chunks_is_refused() -> None:
    sentence = "a PNG file of more than 131,072 chunks; up to that many are read."
    for kind in (b"xXxx", b"IDAT", b"tEXt"):
        assert refused(png(chunk(kind, b"") * (MAX_CHUNKS + 1))) == sentence
    assert decoded(png(chunk(b"IDAT", b"") * 1000)) == (30, 40)


@pytest.mark.parametrize("kind", [b"zTXt", b"iCCP"])
def test_a_gigabyte_in_a_compressed_chunk_is_not_inflated(kind: bytes) -> None:
    compressor, zeros = zlib.compressobj(9), bytes(1 << 24)
    bomb = b"".join(compressor.compress(zeros) for _ in range(8)) + compressor.flush()
    assert refused(png(chunk(kind, b"k\0\0" + bomb))) == "a damaged or truncated PNG file."


def test_a_picture_of_one_pixel_by_millions_is_refused() -> None:
    assert refused(png(b"", 1, 9_000_000)) == "1 x 9,000,000 pixels; sides of up to 1,048,576 are read."
    assert refused(png(b"", 9_000_000, 1)) == "9,000,000 x 1 pixels; sides of up to 1,048,576 are read."


@pytest.mark.parametrize(
    ("before", "repeated", "after"),
    [
        (b"P6\n#", b"c", b""),
        (b"P6\n", b"#\n", b"1 1 255\n\0\0\0"),
        (b"P6 1 1\n#", b"c", b"\n255\n\0\0\0"),
        (b"P3\n4 4 255\n", b"#\n", b""),
        (b"P6\n", b"0", b"1 1 255\n\0\0\0"),
    ],
    ids=["one comment", "comments", "before the last number", "in plain pixels", "zeros"],
)
def test_ppm_headers_without_end(before: bytes, repeated: bytes, after: bytes) -> None:
    assert (
        refused(before + repeated * 3_000_000 + after)
        == "a PPM file with a header that does not end, or thousands of comments."
    )


@pytest.mark.parametrize(
    "data",
    [
        b"P6\n# by hand\n#\n1 1\n255\n\1\2\3",
        b"P5 1 1 255 \7",
        b"P3 1 1 255\n1 2 #\n3\n",
        b"P4\n1 1\n\x80",
        b"P1 1 1\n1",
    ],
)
def test_ordinary_ppm_files_are_read(data: bytes) -> None:
    assert decoded(data) == (1, 1)


def cyclic_tiff() -> bytes:
    """Its only directory names itself as the next one."""
    tags = [(256, 8), (257, 8), (258, 8), (259, 1), (262, 1), (273, 200), (277, 1), (278, 8), (279, 64)]
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    head = b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + struct.pack("<I", 8)
    return head.ljust(200, b"\0") + bytes(64)


def test_a_tiff_whose_directories_form_a_ring_and_a_gif_of_many_frames() -> None:
    assert decoded(cyclic_tiff()) == (8, 8)
    frame = b"\x2c\0\0\0\0\4\0\4\0\0\2\2\4\1\0"
    assert decoded(b"GIF89a\4\0\4\0\xf0\0\0\0\0\0\xff\xff\xff" + frame * 100_000 + b";") == (4, 4)


@pytest.mark.parametrize(
    "data", [b"<svg xmlns='x'/>", b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", b"hello", b"%PDF-1.4", b"\0" * 99]
)
def test_what_is_no_image(data: bytes) -> None:
    assert refused(data) == "not an image; JPEG, PNG, WebP, BMP, TIFF, GIF, AVIF, PPM and PGM are read."


def lzw_tiff() -> bytes:
    data = bytearray(cyclic_tiff())
    data[data.index(struct.pack("<HHII", 259, 4, 1, 1)) + 8] = 5
    data[200:] = b"\x99" * 64
    return bytes(data)


@pytest.mark.parametrize(
    "make",
    [
        lambda: png(chunk(b"gAMA", b"\0\0") + chunk(b"sRGB", b"\x09")),
        lambda: png(b"", rows=10),
        lambda: png(b"", width=0),
        lambda: png(b"", rows=90),
        lzw_tiff,
    ],
    ids=["gAMA", "too short", "no width", "too long", "LZW"],
)
def test_libpng_and_libtiff_print_nothing(
    make: Callable[[], bytes], capfd: pytest.CaptureFixture[str]
) -> None:
    with contextlib.suppress(ImageError):
        decoded(make())
    assert capfd.readouterr() == ("", "")


def test_stderr_is_back_whatever_threads_do(capfd: pytest.CaptureFixture[str]) -> None:
    import os

    def work() -> None:
        for _ in range(200):
            with QuietStderr():
                os.write(2, b"noise")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    before = open_files()
    with pytest.raises(KeyError), QuietStderr():
        raise KeyError
    assert open_files() <= before
    os.write(2, b"heard")
    assert capfd.readouterr().err == "heard"


def test_an_image_is_not_called_damaged_for_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_short_of_memory(100)
    assert is_short_of_memory(1 << 55)
    data = saved("BMP")

    def lack(self: object, *_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("PIL.BmpImagePlugin.BmpImageFile.load", lack)
    assert refused(data) == "a damaged or truncated BMP file."
    monkeypatch.setattr("packer.pixels.image_files.np.empty", lack)
    with pytest.raises(MemoryError):
        decoded(data)
    assert np.empty is not None


@pytest.mark.parametrize(
    "make",
    [
        lambda: b"\xff\xd8" + b"\xff" * 30_000_000,
        lambda: b"P6\n#" + b"c" * 30_000_000,
        lambda: b"P3\n13000 13000 255\n" + b"1 " * 9_000_000,
        lambda: png(chunk(b"xXxx", b"") * 1_000_000),
    ],
    ids=["JPEG", "PPM", "plain PPM", "PNG"],
)
def test_a_look_at_the_header_alone_costs_no_minutes(make: Callable[[], bytes]) -> None:
    data = make()
    began = time.process_time()
    assert read_image_header(data) is None
    assert time.process_time() - began < SECONDS
