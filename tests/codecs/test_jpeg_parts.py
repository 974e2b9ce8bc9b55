"""Parts of JPEG files: the same pixels as of the whole file, whoever decodes them."""

from __future__ import annotations

import io
from collections.abc import Iterator

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from packer import native
from packer.codecs import jpeg, jpeg_parts
from tests.contracts.codec_contract import damaged_copies

pytestmark = pytest.mark.skipif(not native.COMPILED, reason="packer was installed without a compiler")

Pixels = NDArray[np.uint8]
HEIGHT, WIDTH = 139, 187
SAMPLINGS = {
    name: getattr(cv2, f"IMWRITE_JPEG_SAMPLING_FACTOR_{name}") for name in ("411", "420", "422", "440", "444")
}
MCUS = {"411": (8, 32), "420": (16, 16), "422": (8, 16), "440": (16, 8), "444": (8, 8), "grey": (8, 8)}
"""Pixels of an MCU: (height, width)."""


@pytest.fixture(scope="module")
def photo() -> Pixels:
    """Blobs of colour with noise, as far as 4:2:0 shows them, uint8 [139, 187, 3]."""
    coarse = np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype=np.uint8)
    pixels = cv2.resize(coarse, (WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC)
    return np.clip(pixels + np.random.default_rng(1).normal(0, 6, pixels.shape), 0, 255).astype(np.uint8)


def columns_of(photo: Pixels, sampling: str) -> int:
    """MCUs in a row."""
    return -(-photo.shape[1] // MCUS[sampling][1])


def with_markers(
    photo: Pixels, sampling: str, interval: int | None = None, quality: int = 92, optimized: int = 0
) -> bytes:
    """A JPEG with a restart marker after each tile, or after so many MCUs; 0: without."""
    if interval is None:
        interval = jpeg_parts.interval_of(columns_of(photo, sampling))
    options = [cv2.IMWRITE_JPEG_QUALITY, quality, cv2.IMWRITE_JPEG_RST_INTERVAL, interval]
    options += [cv2.IMWRITE_JPEG_OPTIMIZE, optimized]
    if sampling == "grey":
        photo = photo[..., 0]
    else:
        options += [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, SAMPLINGS[sampling]]
    return cv2.imencode(".jpg", photo, options)[1].tobytes()


def decoded(data: bytes) -> list[Pixels]:
    """By all decoders, at full size."""
    by_opencv = cv2.imdecode(
        np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED | cv2.IMREAD_IGNORE_ORIENTATION
    )
    assert by_opencv is not None
    return [jpeg.decode(data, 1 << 20), np.asarray(Image.open(io.BytesIO(data))), by_opencv]


def reduced(data: bytes, scale: int) -> Pixels:
    height, width, channels = jpeg.size(data)
    out = np.empty((-(-height // scale), -(-width // scale), channels), np.uint8)
    jpeg.decode_upright_into(data, out, reduced=scale > 1)
    return out


def boxes(count: int) -> Iterator[jpeg_parts.Box]:
    """Boxes of any size and place, of a pixel at the picture's corners too."""
    for x, y in ((0, 0), (WIDTH - 1, 0), (0, HEIGHT - 1), (WIDTH - 1, HEIGHT - 1)):
        yield x, y, x + 1, y + 1
    draws = np.random.default_rng(3)
    for most in np.tile((1, 17, 60, 187), count // 4):
        left, top = int(draws.integers(WIDTH)), int(draws.integers(HEIGHT))
        right, bottom = left + int(draws.integers(1, most + 1)), top + int(draws.integers(1, most + 1))
        yield left, top, min(right, WIDTH), min(bottom, HEIGHT)


@pytest.mark.parametrize("tile", ["usual", "two", "row"])
@pytest.mark.parametrize("sampling", MCUS)
def test_a_part_decodes_to_the_same_pixels(photo: Pixels, sampling: str, tile: str) -> None:
    columns, (high, wide) = columns_of(photo, sampling), MCUS[sampling]
    interval = {"usual": jpeg_parts.interval_of(columns), "two": 2, "row": columns}[tile]
    data = with_markers(photo, sampling, interval)
    whole, small = decoded(data), {scale: reduced(data, scale) for scale in (1, 2, 4, 8)}
    least = {"grey": 0, "444": 0, "420": 2}.get(sampling, 8)
    for box in boxes(80):
        left, top, right, bottom = box
        cut = jpeg_parts.part(data, box)
        if cut is None:
            assert right - left > WIDTH - 2 * (least + interval * wide)
            assert bottom - top > HEIGHT - 2 * (least + high)
            continue
        part, (x, y, end, low) = cut
        assert x <= left < right <= end
        assert y <= top < bottom <= low
        assert end - x < right - left + 2 * (least + interval * wide)
        assert low - y < bottom - top + 2 * (least + high)
        inside = slice(top - y, bottom - y), slice(left - x, right - x)
        for ours, all_of_it in zip(decoded(part), whole, strict=True):
            assert ours.shape[:2] == (low - y, end - x)
            assert np.array_equal(ours[inside], all_of_it[top:bottom, left:right])
        for scale, all_of_it in small.items():
            seen = slice(top // scale, -(-bottom // scale)), slice(left // scale, -(-right // scale))
            own = reduced(part, scale)[: seen[0].stop - y // scale, : seen[1].stop - x // scale]
            own = own[seen[0].start - y // scale :, seen[1].start - x // scale :]
            assert np.array_equal(own, all_of_it[seen]), (scale, box)


def test_metadata_and_what_follows_the_picture(photo: Pixels) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    buffer = io.BytesIO()
    Image.fromarray(photo).save(
        buffer, "JPEG", restart_marker_rows=1, exif=exif, icc_profile=b"profile", comment=b"\xff\xd0\xff\xd9"
    )
    part, box = jpeg_parts.part(buffer.getvalue() + b"\xff\xd8 more", (50, 40, 60, 60)) or (b"", ())
    image = Image.open(io.BytesIO(part))
    assert (*image.size, *box) == (WIDTH, 32, 0, 32, WIDTH, 64)
    assert image.getexif()[0x0112] == 6
    assert image.info["icc_profile"] == b"profile"
    assert part.endswith(b"\xff\xd9")


BOX = (70, 50, 80, 60)


def test_whole_files_are_decoded_where_nothing_can_be_left_out(photo: Pixels) -> None:
    data, columns = with_markers(photo, "420"), columns_of(photo, "420")
    assert jpeg_parts.part(data, BOX)
    x, y, right, bottom = BOX
    for box in (
        (0, 0, WIDTH, HEIGHT),
        (65, 17, 131, 127),
        (-1, y, right, bottom),
        (x, -1, right, bottom),
        (x, y, x, bottom),
        (right, y, x, bottom),
        (x, y, right, y),
        (x, bottom, right, y),
        (x, y, WIDTH + 1, bottom),
        (x, y, right, HEIGHT + 1),
    ):
        assert jpeg_parts.part(data, box) is None
    for interval in (2, 3, 4, 6, columns):
        assert jpeg_parts.part(with_markers(photo, "420", interval), BOX)
    for interval in (0, 1, 5, 8, columns - 1, columns + 1, 2 * columns):
        assert jpeg_parts.part(with_markers(photo, "420", interval), BOX) is None
    progressive = [cv2.IMWRITE_JPEG_PROGRESSIVE, 1, cv2.IMWRITE_JPEG_RST_INTERVAL, 4]
    assert jpeg_parts.part(cv2.imencode(".jpg", photo, progressive)[1].tobytes(), BOX) is None
    low = (70, HEIGHT - 9, WIDTH, HEIGHT)
    for end in range(len(data)):
        assert jpeg_parts.part(data[:end], low) is None
    interval = b"\xff\xdd\x00\x04\x00\x04"
    for good, bad in (
        (b"\xff\xd2", b"\xff\xd3"),
        (b"\xff\xd2", b"\xff\xc4"),
        (b"\xff\xd9", b"\xff\xd0"),
        (interval, interval[:-1] + b"\x06"),
    ):
        assert good in data
        assert jpeg_parts.part(data.replace(good, bad), low) is None


def test_hostile_files(photo: Pixels) -> None:
    plain = with_markers(photo, "422", 0, optimized=1)
    others = with_markers(photo, "440", 5)
    for data in (with_markers(photo, "420"), with_markers(photo, "grey", 24), plain, others):
        for _, damaged in damaged_copies(data):
            cut = jpeg_parts.part(damaged, BOX)
            if cut is not None:
                assert len(cut[0]) < len(damaged)
                assert cut[1] <= BOX
            jpeg_parts.with_markers(damaged)


def segments(data: bytes, marker: bytes) -> list[bytes]:
    """Those of a kind before the compressed pixels of a file without metadata."""
    return [part[2 : int.from_bytes(part[:2])] for part in data[: data.index(b"\xff\xda")].split(marker)[1:]]


@pytest.mark.parametrize("optimized", [0, 1])
@pytest.mark.parametrize("before", ["none", "each", "five", "row", "rows"])
@pytest.mark.parametrize("sampling", MCUS)
def test_markers_change_no_pixel(photo: Pixels, sampling: str, before: str, optimized: int) -> None:
    columns = columns_of(photo, sampling)
    interval = {"none": 0, "each": 1, "five": 5, "row": columns, "rows": 2 * columns}[before]
    rough = np.random.default_rng(2).integers(0, 256, photo.shape, dtype=np.uint8)
    for pixels, quality in ((photo, 60), (photo, 95), (rough, 100)):
        data = with_markers(pixels, sampling, interval, quality=quality, optimized=optimized)
        marked = jpeg_parts.with_markers(data)
        assert marked is not None
        tile = jpeg_parts.interval_of(columns)
        assert segments(marked, b"\xff\xdd") == [bytes((0, tile))]
        tiles = -(-HEIGHT // MCUS[sampling][0]) * columns // tile
        assert len(marked) < len(data) + 6 + 8 * tiles + 80 * optimized
        assert jpeg_parts.with_markers(marked) is marked
        assert jpeg_parts.part(marked, BOX)
        for ours, original in zip(decoded(marked), decoded(data), strict=True):
            assert np.array_equal(ours, original)
        if not optimized:  # so standard tables, and what would have been written so at once
            assert marked.replace(b"\xff\xdd\x00\x04", b"") != data
            at_once = with_markers(pixels, sampling, tile, quality=quality)
            assert marked[marked.index(b"\xff\xda") :] == at_once[at_once.index(b"\xff\xda") :]


def test_tables_get_the_codes_that_they_lack() -> None:
    """Of a picture whose neighbours are alike, and far from 0."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    pixels = np.stack([y + 60, x + 20, 250 - y], axis=2).astype(np.uint8)
    data = with_markers(pixels, "420", 0, optimized=1)
    marked = jpeg_parts.with_markers(data)
    assert marked is not None
    tables, before = segments(marked, b"\xff\xc4"), segments(data, b"\xff\xc4")
    assert tables[: len(before)] == before
    assert len(tables) == len(before) + 2
    for old, new in zip(before[::2], tables[len(before) :], strict=True):
        symbols, more = old[17:], new[17:]
        assert new[0] == old[0] in (0x00, 0x01)
        assert more.startswith(symbols)
        assert len(set(more)) == len(more) == sum(new[1:17]) > len(symbols)
        assert sum(count << (15 - bits) for bits, count in enumerate(new[1:17])) < 1 << 16
    for ours, original in zip(decoded(marked), decoded(data), strict=True):
        assert np.array_equal(ours, original)


def test_markers_leave_all_else_as_it_is(photo: Pixels) -> None:
    buffer = io.BytesIO()
    exif = Image.Exif()
    exif[0x010E] = "\xff"
    Image.fromarray(photo).save(buffer, "JPEG", exif=exif, icc_profile=b"profile", comment=b"\xff\xda")
    data = buffer.getvalue() + b"\xff\xd8 more"
    marked = jpeg_parts.with_markers(data) or b""
    scan = data.rindex(b"\xff\xda")
    assert marked[:scan] == data[:scan]
    assert marked[scan : scan + 20] == b"\xff\xdd\x00\x04\x00\x04" + data[scan : scan + 14]
    assert marked.endswith(b"\xff\xd9\xff\xd8 more")


def test_no_markers_for_what_is_damaged_or_out_of_the_ordinary(photo: Pixels) -> None:
    data = with_markers(photo, "420", 0)
    assert jpeg_parts.with_markers(data)
    for end in range(0, len(data), 97):
        assert jpeg_parts.with_markers(data[:end]) is None
        assert jpeg_parts.with_markers(data[:end] + b"\xff\xd9") is None
    assert jpeg_parts.with_markers(data[:-2] + b"\x00\xff\xd9") is None
    for pixels in (photo[:16, :32], photo[:, :16][:16], photo[:16, : 7 * 16]):  # a single tile
        assert jpeg_parts.with_markers(with_markers(pixels, "420", 0)) is None
    numbered = with_markers(photo, "420", 5)
    assert jpeg_parts.with_markers(numbered)
    for bad in (numbered.replace(b"\xff\xd2", b"\xff\xd3"), numbered.replace(b"\xff\xd7", b"")):
        assert jpeg_parts.with_markers(bad) is None
    buffer = io.BytesIO()
    Image.fromarray(photo).save(buffer, "JPEG", progressive=True)
    assert jpeg_parts.with_markers(buffer.getvalue()) is None
