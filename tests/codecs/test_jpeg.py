from __future__ import annotations

import io
from collections.abc import Callable

import cv2
import numpy as np
import pytest
import simplejpeg
from numpy.typing import NDArray
from PIL import Image, ImageOps

from packer import native
from packer.codecs import jpeg, jpeg_parts
from tests.codecs import jpeg_coefficients as oracle
from tests.codecs.damage import complaint, refused
from tests.contracts.codec_contract import damaged_copies

Pixels = NDArray[np.uint8]


def pillow(pixels: Pixels, **options: object) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels).save(file, "JPEG", **options)
    return file.getvalue()


def scans(picture: Pixels, count: int) -> bytes:
    """A progressive JPEG whose second scan comes that many times more."""
    data = pillow(picture, progressive=True)
    first = data.index(b"\xff\xda")
    second = data.index(b"\xff\xda", first + 1)
    third = data.index(b"\xff\xda", second + 1)
    return data[:second] + data[second:third] * count + data[second:]


def segments(data: bytes) -> dict[int, list[bytes]]:
    """The segments before the pixels, by marker; of Huffman and quantisation tables one entry each, in any order."""
    found: dict[int, list[bytes]] = {}
    at = 2
    while data[at + 1] != 0xDA:
        length = int.from_bytes(data[at + 2 : at + 4], "big")
        found.setdefault(data[at + 1], []).append(data[at + 4 : at + 2 + length])
        at += 2 + length
    return {marker: sorted(parts) for marker, parts in found.items()}


def as_picture(blocks: Pixels) -> Pixels:
    """Lay blocks [n, 8, 8] out side by side in rows of 10: uint8 [8 n / 10, 80, 1]."""
    return np.ascontiguousarray(blocks.reshape(-1, 10, 8, 8).swapaxes(1, 2).reshape(-1, 80, 1))


def random_blocks(count: int, draws: np.random.Generator) -> dict[str, Pixels]:
    """Pictures of so many 8x8 blocks of each kind."""
    levels, chosen = draws.integers(0, 256, (count, 2)), draws.integers(0, 2, (count, 8, 8))
    two = np.take_along_axis(levels, chosen.reshape(-1, 64), 1).reshape(-1, 8, 8)
    left = np.repeat(draws.choice([0, 32, 223, 255], (count, 8, 1)), 4, axis=2)
    return {
        "noise": as_picture(draws.integers(0, 256, (count, 8, 8)).astype(np.uint8)),
        "two levels": as_picture(two.astype(np.uint8)),
        "black and white": as_picture((255 * chosen).astype(np.uint8)),
        "a half and its negative": as_picture(np.concatenate([left, 255 - left], axis=2).astype(np.uint8)),
    }


def quantised(data: bytes, planes: list[NDArray[np.float64]]) -> list[float]:
    """By how much each plane's coefficients are farther from the exact ones than half a step, at most."""
    found = zip(oracle.components(data), planes, strict=True)
    return [
        float((np.abs(own.coefficients * own.steps - oracle.forward(plane)) - own.steps / 2).max())
        for own, plane in found
    ]


def psnr(one: Pixels, other: Pixels) -> float:
    return float(10 * np.log10(255**2 / np.mean((one.astype(float) - other) ** 2)))


@pytest.mark.parametrize("channels", [1, 3])
def test_what_was_encoded_decodes_to_nearly_the_same(picture: Pixels, channels: int) -> None:
    pixels = np.ascontiguousarray(picture[..., :channels])
    data = jpeg.encode(pixels, 95)
    assert data == jpeg.encode(pixels, 95)
    assert jpeg.size(data) == pixels.shape
    out = np.zeros_like(pixels)
    jpeg.decode_into(data, out)
    assert psnr(out, pixels) > 38
    assert np.array_equal(jpeg.decode(data, pixels.size), out)


def test_colours_are_subsampled_and_the_accurate_ways_decode(picture: Pixels) -> None:
    noisy = np.random.default_rng(0).integers(0, 256, picture.shape, dtype=np.uint8)
    data = jpeg.encode(noisy, 90)
    assert simplejpeg.decode_jpeg_header(data)[2:] == ("YCbCr", "420")
    out = np.zeros_like(noisy)
    jpeg.decode_into(data, out)
    assert np.array_equal(out, simplejpeg.decode_jpeg(data, "RGB"))
    assert not np.array_equal(out, simplejpeg.decode_jpeg(data, "RGB", fastdct=True))
    assert not np.array_equal(out, simplejpeg.decode_jpeg(data, "RGB", fastupsample=True))


STEEP = np.array([0, 32, 223, 223, 32, 32, 223, 255], np.uint8)


@pytest.mark.parametrize(("quality", "most"), [(50, 27), (75, 14), (90, 5), (95, 2), (100, 0)])
def test_a_block_of_high_contrast_stays_the_right_way_up(quality: int, most: int) -> None:
    """An encoder with the fast DCT wrote this one upside down."""
    block = np.repeat(np.stack([STEEP, 255 - STEEP], 1), 4, axis=1)[..., None]
    out = np.empty_like(block)
    jpeg.decode_into(jpeg.encode(block, quality), out)
    assert np.abs(out.astype(int) - block).max() <= most


def check_blocks(count: int, seed: int) -> None:
    """Encode and decode random blocks; both within what rounding allows of the exact cosine transform."""
    draws = np.random.default_rng(seed)
    for quality in (30, 50, 75, 90, 95, 99):
        for kind, pixels in random_blocks(count, draws).items():
            data = jpeg.encode(pixels, quality)
            assert quantised(data, [pixels[..., 0].astype(float)])[0] < 0.25, kind
            (plane,) = oracle.components(data)
            out = np.empty_like(pixels)
            jpeg.decode_into(data, out)
            exact = oracle.backward(plane.coefficients * plane.steps)
            assert np.abs(out[..., 0] - exact).max() < 0.75, kind


def test_random_blocks_are_within_the_quantisers_bound() -> None:
    check_blocks(200, 0)


@pytest.mark.soak
def test_many_random_blocks_are_within_the_quantisers_bound() -> None:
    for seed in range(1, 7):
        check_blocks(5_000, seed)


@pytest.mark.parametrize("quality", [50, 90, 95])
def test_colours_are_within_the_quantisers_bound(picture: Pixels, quality: int) -> None:
    """Colours are converted in whole numbers, half a level a pixel, and averaged with half a level more."""
    noisy = np.random.default_rng(0).integers(0, 256, (64, 96, 3), dtype=np.uint8)
    for pixels in (np.ascontiguousarray(picture[:32, :48]), noisy, noisy // 128 * 255):
        red, green, blue = np.moveaxis(pixels.astype(float), 2, 0)
        luma = 0.299 * red + 0.587 * green + 0.114 * blue
        chroma = [128 + (blue - luma) / 1.772, 128 + (red - luma) / 1.402]
        halved = [c.reshape(len(c) // 2, 2, -1, 2).mean((1, 3)) for c in chroma]
        beyond = quantised(jpeg.encode(pixels, quality), [luma, *halved])
        assert beyond[0] < 8 * 0.5 + 0.25
        assert max(beyond[1:]) < 8 + 0.25


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("quality", [1, 50, 90, 100])
def test_tables_and_sampling_are_the_standard_ones(picture: Pixels, quality: int, channels: int) -> None:
    pixels = np.ascontiguousarray(picture[..., :channels])
    expected = segments(pillow(pixels, quality=quality, subsampling=2 if channels == 3 else -1))
    found = segments(jpeg.encode(pixels, quality))
    assert {marker: found[marker] for marker in (0xC0, 0xC4, 0xDB)} == {
        marker: expected[marker] for marker in (0xC0, 0xC4, 0xDB)
    }


@pytest.mark.skipif(not native.COMPILED, reason="needs the compiled loops")
def test_restart_markers_are_those_that_files_get() -> None:
    shapes = [(40, 56, 3), (40, 56, 1), (17, 16, 3), (16, 17, 3), (9, 8, 1), (8, 9, 1), (8, 48, 1)]
    for shape in shapes + [(9, 8 * columns, 1) for columns in range(1, 60)]:
        pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
        plain = jpeg.encode(pixels, 90)
        assert jpeg.encode(pixels, 90, restarts=True) == (jpeg_parts.with_markers(plain) or plain), shape


@pytest.mark.parametrize("form", [bytes, bytearray, memoryview, lambda data: np.frombuffer(data, np.uint8)])
def test_any_buffer_is_read(picture: Pixels, form: Callable[[bytes], jpeg.Data]) -> None:
    data = jpeg.encode(picture, 90)
    out = np.zeros_like(picture)
    jpeg.decode_into(form(data), out)
    assert np.array_equal(jpeg.decode(form(data), 10_000), out)
    assert jpeg.size(form(data)) == picture.shape


@pytest.mark.parametrize(
    ("shape", "quality", "message"),
    [
        ((8, 8), 90, "pixels are [8, 8]; contiguous [H, W, 1] and [H, W, 3] are encoded"),
        ((8, 8, 4), 90, "pixels are [8, 8, 4]; contiguous [H, W, 1] and [H, W, 3] are encoded"),
        ((0, 8, 3), 90, "pixels are [0, 8, 3]; contiguous [H, W, 1] and [H, W, 3] are encoded"),
        ((8, 8, 3), 0, "quality is 0; 1 to 100 are allowed"),
        ((8, 8, 3), 101, "quality is 101; 1 to 100 are allowed"),
        ((1, 65501, 3), 90, "65,501 x 1 pixels; a side of a JPEG has at most 65,500"),
    ],
)
def test_what_cannot_be_encoded(shape: tuple[int, ...], quality: int, message: str) -> None:
    with refused(message):
        jpeg.encode(np.zeros(shape, np.uint8), quality)


def test_rows_with_gaps_are_not_encoded(picture: Pixels) -> None:
    with refused("pixels are [40, 28, 3]; contiguous [H, W, 1] and [H, W, 3] are encoded"):
        jpeg.encode(picture[:, ::2], 90)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((40, 55, 3), "a JPEG of 56 x 40 pixels in 3 channels; the row has 55 x 40 pixels in 3 channels"),
        ((56, 40, 3), "a JPEG of 56 x 40 pixels in 3 channels; the row has 40 x 56 pixels in 3 channels"),
        ((80, 112, 3), "a JPEG of 56 x 40 pixels in 3 channels; the row has 112 x 80 pixels in 3 channels"),
        ((40, 56, 1), "a JPEG of 56 x 40 pixels in 3 channels; the row has 56 x 40 pixels in 1 channel"),
    ],
)
def test_another_size_is_refused_before_decoding(
    picture: Pixels, shape: tuple[int, ...], message: str
) -> None:
    out = np.full(shape, 7, np.uint8)
    with refused(message):
        jpeg.decode_into(jpeg.encode(picture, 90), out)
    assert np.all(out == 7)


def test_a_grey_jpeg_is_no_colour_row_but_decodes_to_one(picture: Pixels) -> None:
    grey = np.ascontiguousarray(picture[..., :1])
    data = jpeg.encode(grey, 90)
    with pytest.raises(ValueError, match="in 1 channel; the row has 56 x 40 pixels in 3 channels"):
        jpeg.decode_into(data, np.zeros_like(picture))
    assert jpeg.decode(data, 10_000).shape == (40, 56, 1)
    assert np.array_equal(jpeg.decode(data, 10_000, 3), np.repeat(jpeg.decode(data, 10_000), 3, axis=2))
    assert jpeg.decode(jpeg.encode(picture, 90), 10_000, 1).shape == (40, 56, 1)


def test_too_many_pixels_are_refused_before_memory_is_taken() -> None:
    data = bytearray(jpeg.encode(np.zeros((8, 8, 3), np.uint8), 90))
    size = data.index(b"\xff\xc0") + 5
    data[size : size + 4] = (60_000).to_bytes(2, "big") * 2
    with refused("a JPEG of 60,000 x 60,000 pixels; at most 10,000 are allowed"):
        jpeg.decode(data, 10_000)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_kept_originals_are_turned_upright(picture: Pixels, orientation: int) -> None:
    tags = Image.Exif()
    tags[0x0112] = orientation
    data = pillow(picture, exif=tags)
    pixels = jpeg.decode(data, 10_000)
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(ImageOps.exif_transpose(image))
    assert jpeg.size(data) == pixels.shape == expected.shape
    assert np.abs(pixels.astype(int) - expected).max() <= 3
    assert pixels.flags.c_contiguous
    stored = np.zeros_like(picture)
    jpeg.decode_into(data, stored)
    assert stored.shape == picture.shape


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("shape", [(1, 5, 3), (5, 1, 3), (1, 1, 3)])
def test_turned_pictures_of_a_pixel_a_side_have_no_negative_strides(
    shape: tuple[int, ...], orientation: int
) -> None:
    """NumPy takes those of a side of one pixel for contiguous, and torch refuses them."""
    tags = Image.Exif()
    tags[0x0112] = orientation
    pixels = jpeg.decode(pillow(np.full(shape, 77, np.uint8), exif=tags), 100)
    assert min(pixels.strides) > 0
    assert (pixels == 77).all()


@pytest.mark.parametrize("options", [{"progressive": True}, {"optimize": True}, {"subsampling": 0}])
def test_other_encoders_files_decode(picture: Pixels, options: dict[str, object]) -> None:
    out = np.zeros_like(picture)
    jpeg.decode_into(pillow(picture, quality=90, **options), out)
    assert psnr(out, picture) > 30


def test_cmyk_is_refused(picture: Pixels) -> None:
    file = io.BytesIO()
    Image.fromarray(picture).convert("CMYK").save(file, "JPEG")
    message = r"^a JPEG in (CMYK|YCCK); grey and colour ones are decoded\Z"
    with pytest.raises(ValueError, match=message):
        jpeg.size(file.getvalue())
    with pytest.raises(ValueError, match=message):
        jpeg.decode(file.getvalue(), 10_000)


def test_many_scans_are_refused(picture: Pixels) -> None:
    with refused("a JPEG of more than 100 scans; up to 100 are decoded"):
        jpeg.decode(scans(picture, jpeg.MAX_SCANS), 10_000)
    with pytest.raises(ValueError, match="a damaged or truncated JPEG"):
        jpeg.decode(scans(picture, jpeg.MAX_SCANS - 20), 10_000)


@pytest.mark.parametrize(
    "options",
    [{}, {"progressive": True}, {"restart_marker_rows": 1}, {"progressive": True, "optimize": True}],
)
def test_what_follows_the_end_is_cut_off(picture: Pixels, options: dict[str, object]) -> None:
    thumbnail = pillow(picture[:8, :8])
    data = pillow(picture, quality=90, exif=b"Exif\0\0" + thumbnail, **options)
    assert jpeg.without_trailer(data) is data
    for trailer in (b"\0", b"\xff", b"\xff\xd9", data, bytes(range(256)) * 40 + b"\xff\xd9"):
        assert jpeg.without_trailer(data + trailer) == data
    for length in range(len(data)):  # those without an end stay
        assert jpeg.without_trailer(data[:length]) == data[:length]
    assert jpeg.without_trailer(b"\x89PNG\xff\xd9\0") == b"\x89PNG\xff\xd9\0"


def test_a_baseline_picture_ends_with_its_scan(picture: Pixels) -> None:
    data = jpeg.encode(picture, 90)
    scan = data[data.index(b"\xff\xda") : -2]
    with refused("a damaged or truncated JPEG (Didn't expect more than one scan)"):
        jpeg.decode(data[:-2] + scan * 1000 + data[-2:], 10_000)


@pytest.mark.parametrize("progressive", [False, True])
def test_every_truncation_is_seen(picture: Pixels, progressive: bool) -> None:
    data = pillow(picture, quality=90, progressive=progressive)
    out = np.zeros_like(picture)
    for length in range(len(data)):
        with pytest.raises(ValueError, match=r"^(empty; a JPEG|not a JPEG that|a damaged or truncated JPEG)"):
            jpeg.decode_into(data[:length], out)
    jpeg.decode_into(data, out)


def test_damage_raises_nothing_but_value_errors(picture: Pixels) -> None:
    data = jpeg.encode(picture, 90)
    progressive = pillow(picture, progressive=True)
    guarded = np.full((3, *picture.shape), 7, np.uint8)
    messages = []
    for _, damaged in (*damaged_copies(data), *damaged_copies(progressive)):
        messages.append(complaint(lambda: jpeg.decode_into(damaged, guarded[1])))  # noqa: B023
        complaint(lambda: jpeg.decode(damaged, 10_000))  # noqa: B023
        complaint(lambda: jpeg.size(damaged))  # noqa: B023
    assert all(len(message) < 200 for message in messages if message)
    assert sum(message is not None for message in messages) > 400
    assert np.all(guarded[[0, 2]] == 7)


def test_what_makes_the_bytes_is_named() -> None:
    assert jpeg.versions() == {"opencv": cv2.__version__}
