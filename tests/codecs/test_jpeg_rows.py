"""Parts of JPEG files: the same pixels as of the whole file, whoever decodes them."""

from __future__ import annotations

import io

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from packer import native
from packer.codecs import jpeg, jpeg_rows
from tests.codecs.damage import flipped, noise

pytestmark = pytest.mark.skipif(not native.COMPILED, reason="packer was installed without a compiler")

Pixels = NDArray[np.uint8]
HEIGHT, WIDTH = 139, 75
SAMPLINGS = {
    name: getattr(cv2, f"IMWRITE_JPEG_SAMPLING_FACTOR_{name}") for name in ("411", "420", "422", "440", "444")
}
MCUS = {"411": (8, 32), "420": (16, 16), "422": (8, 16), "440": (16, 8), "444": (8, 8), "grey": (8, 8)}
"""Pixels of an MCU: (height, width)."""


@pytest.fixture(scope="module")
def photo() -> Pixels:
    """Blobs of colour with noise, as far as 4:2:0 shows them, uint8 [139, 75, 3]."""
    coarse = np.random.default_rng(0).integers(0, 256, (24, 13, 3), dtype=np.uint8)
    pixels = cv2.resize(coarse, (WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC)
    return np.clip(pixels + np.random.default_rng(1).normal(0, 6, pixels.shape), 0, 255).astype(np.uint8)


def with_markers(
    photo: Pixels, sampling: str, interval: int | None = None, quality: int = 92, optimized: int = 0
) -> bytes:
    """A JPEG with a restart marker after each row of MCUs, or after so many MCUs; 0: without."""
    if interval is None:
        interval = -(-photo.shape[1] // MCUS[sampling][1])
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


@pytest.mark.parametrize("sampling", MCUS)
def test_a_part_decodes_to_the_same_pixels(photo: Pixels, sampling: str) -> None:
    data = with_markers(photo, sampling)
    whole, small = decoded(data), {scale: reduced(data, scale) for scale in (1, 2, 4, 8)}
    least = {(16, 16): 2, (16, 8): 8}.get(MCUS[sampling], 0)
    for first in range(0, HEIGHT, 3):
        for stop in sorted({min(first + rows, HEIGHT) for rows in (1, 16, 41, HEIGHT)}):
            cut = jpeg_rows.part(data, first, stop)
            if cut is None:
                assert first < 24
                assert stop > HEIGHT - 24
                continue
            part, start, end = cut
            assert start <= first < stop <= end
            assert end - start < stop - first + 2 * (least + MCUS[sampling][0])
            for ours, all_of_it in zip(decoded(part), whole, strict=True):
                assert len(ours) == end - start
                assert np.array_equal(ours[first - start : stop - start], all_of_it[first:stop])
            if end - start >= 16:
                for scale, all_of_it in small.items():
                    rows = slice(first // scale, -(-stop // scale))
                    own = reduced(part, scale)[rows.start - start // scale : rows.stop - start // scale]
                    assert np.array_equal(own, all_of_it[rows]), (scale, first, stop)


def test_metadata_and_what_follows_the_picture(photo: Pixels) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    buffer = io.BytesIO()
    Image.fromarray(photo).save(
        buffer, "JPEG", restart_marker_rows=1, exif=exif, icc_profile=b"profile", comment=b"\xff\xd0\xff\xd9"
    )
    part, start, end = jpeg_rows.part(buffer.getvalue() + b"\xff\xd8 more", 40, 60) or (b"", 0, 0)
    image = Image.open(io.BytesIO(part))
    assert (image.height, start, end) == (32, 32, 64)
    assert image.getexif()[0x0112] == 6
    assert image.info["icc_profile"] == b"profile"
    assert part.endswith(b"\xff\xd9")


def test_whole_files_are_decoded_where_nothing_can_be_left_out(photo: Pixels) -> None:
    data, columns = with_markers(photo, "420"), -(-WIDTH // 16)
    assert jpeg_rows.part(data, 50, 60)
    for first, stop in ((0, HEIGHT), (17, 127), (-1, 9), (9, 9), (60, 50), (50, HEIGHT + 1)):
        assert jpeg_rows.part(data, first, stop) is None
    for interval in (0, 1, columns - 1, columns + 1, 2 * columns):
        assert jpeg_rows.part(with_markers(photo, "420", interval), 50, 60) is None
    progressive = [cv2.IMWRITE_JPEG_PROGRESSIVE, 1, cv2.IMWRITE_JPEG_RST_INTERVAL, columns]
    assert jpeg_rows.part(cv2.imencode(".jpg", photo, progressive)[1].tobytes(), 50, 60) is None
    for end in range(len(data)):
        assert jpeg_rows.part(data[:end], 50, 60) is None
    interval = b"\xff\xdd\x00\x04" + bytes((0, columns))
    for good, bad in (
        (b"\xff\xd2", b"\xff\xd3"),
        (b"\xff\xd2", b"\xff\xc4"),
        (b"\xff\xd9", b"\xff\xd0"),
        (interval, interval[:-1] + b"\x09"),
    ):
        assert good in data
        assert jpeg_rows.part(data.replace(good, bad), 50, 60) is None


def test_hostile_files(photo: Pixels) -> None:
    data = with_markers(photo, "420")
    plain = with_markers(photo, "422", 0)
    for damaged in (*flipped(data, 1000), *flipped(plain, 1000), *noise(200)):
        cut = jpeg_rows.part(damaged, 50, 60)
        if cut is not None:
            assert len(cut[0]) < len(damaged)
            assert cut[1] <= 50
            assert cut[2] >= 60


@pytest.mark.parametrize("optimized", [0, 1])
@pytest.mark.parametrize("sampling", MCUS)
def test_markers_change_no_pixel(photo: Pixels, sampling: str, optimized: int) -> None:
    rough = np.random.default_rng(2).integers(0, 256, photo.shape, dtype=np.uint8)
    for pixels, quality in ((photo, 60), (photo, 95), (rough, 100)):
        data = with_markers(pixels, sampling, 0, quality=quality, optimized=optimized)
        marked = jpeg_rows.with_markers(data)
        if marked is None:  # tables of this picture's codes alone need not have one for a row's first value
            assert optimized
            continue
        rows = -(-HEIGHT // MCUS[sampling][0])
        assert len(marked) < len(data) + 6 + 8 * rows
        assert jpeg_rows.with_markers(marked) is marked
        assert jpeg_rows.part(marked, 50, 60)
        for ours, before in zip(decoded(marked), decoded(data), strict=True):
            assert np.array_equal(ours, before)


def test_markers_leave_all_else_as_it_is(photo: Pixels) -> None:
    buffer = io.BytesIO()
    exif = Image.Exif()
    exif[0x010E] = "\xff"
    Image.fromarray(photo).save(buffer, "JPEG", exif=exif, icc_profile=b"profile", comment=b"\xff\xda")
    data = buffer.getvalue() + b"\xff\xd8 more"
    marked = jpeg_rows.with_markers(data) or b""
    scan = data.rindex(b"\xff\xda")
    assert marked[:scan] == data[:scan]
    assert marked[scan : scan + 20] == b"\xff\xdd\x00\x04\x00\x05" + data[scan : scan + 14]
    assert marked.endswith(b"\xff\xd9\xff\xd8 more")


def test_no_markers_for_what_is_damaged_or_out_of_the_ordinary(photo: Pixels) -> None:
    data = with_markers(photo, "420", 0)
    assert jpeg_rows.with_markers(data)
    for end in range(0, len(data), 97):
        assert jpeg_rows.with_markers(data[:end]) is None
        assert jpeg_rows.with_markers(data[:end] + b"\xff\xd9") is None
    assert jpeg_rows.with_markers(data[:-2] + b"\x00\xff\xd9") is None
    assert jpeg_rows.with_markers(with_markers(photo[:16], "420", 0)) is None
    assert jpeg_rows.with_markers(with_markers(photo, "420", 2)) is None
    buffer = io.BytesIO()
    Image.fromarray(photo).save(buffer, "JPEG", progressive=True)
    assert jpeg_rows.with_markers(buffer.getvalue()) is None
