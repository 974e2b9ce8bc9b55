"""Images of 16 bits and of bands: every kind of file, read as it is, resized as Pillow resizes floats."""

from __future__ import annotations

import importlib.util
import io
import pickle
import struct
import sys
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import pytest
import tifffile
from numpy.typing import NDArray
from PIL import Image

from packer.errors import ImageError, UsageError
from packer.pixels.decode_resize import DecodeResize, PixelSpec
from packer.pixels.exact_values import count_bands
from packer.pixels.image_files import TiffLevels

Encode = Callable[..., bytes]
draws = np.random.default_rng(5)
GRAY = draws.integers(0, 65_536, (6, 9), dtype=np.uint16)
RGB = draws.integers(0, 65_536, (6, 9, 3), dtype=np.uint16)
BANDS = draws.integers(0, 65_536, (6, 9, 5), dtype=np.uint16)
SMALL = draws.integers(0, 256, (6, 9, 3), dtype=np.uint8)


def tiff(values: NDArray[Any], **options: Any) -> bytes:
    file = io.BytesIO()
    tifffile.imwrite(file, values, **{"photometric": "minisblack", "planarconfig": "contig", **options})
    return file.getvalue()


def npy(values: NDArray[Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def png(values: NDArray[Any]) -> bytes:
    """A PNG of 16 bits; colours as OpenCV has them, blue first."""
    turned = values if values.ndim == 2 else values[..., [2, 1, 0, 3][: values.shape[2]]]
    return bytes(cv2.imencode(".png", turned)[1])


def turned(values: NDArray[Any]) -> bytes:
    """A 16-bit TIFF whose EXIF orientation is 6: to be turned clockwise."""
    file = io.BytesIO()
    Image.fromarray(values).save(file, "TIFF", tiffinfo={274: 6})
    return file.getvalue()


def made(
    data: bytes, channels: str | int, dtype: str = "uint16", size: tuple[int, int] = (6, 9)
) -> NDArray[Any]:
    spec = PixelSpec(size, "stretch", channels, dtype=dtype)
    out = np.full(spec.shape, 7, spec.dtype)
    DecodeResize(spec)(data, out)  # type: ignore[arg-type]
    return out


LUMA = (RGB @ np.array([0.299, 0.587, 0.114]))[..., None]


@pytest.mark.parametrize(
    ("data", "channels", "expected"),
    [
        (png(GRAY), "gray", GRAY[..., None]),
        (png(GRAY), "rgb", np.stack([GRAY] * 3, -1)),
        (png(RGB), "rgb", RGB),
        (png(RGB), 3, RGB),
        (png(np.dstack([RGB, GRAY])), 4, np.dstack([RGB, GRAY])),
        (tiff(GRAY), "gray", GRAY[..., None]),
        (tiff(GRAY, byteorder=">"), "gray", GRAY[..., None]),
        (tiff(GRAY), 1, GRAY[..., None]),
        (tiff(RGB, photometric="rgb"), "rgb", RGB),
        (tiff(RGB, photometric="rgb", byteorder=">", compression="zlib", predictor=True), "rgb", RGB),
        (tiff(BANDS), 5, BANDS),
        (tiff(BANDS, tile=(16, 16), compression="zlib"), 5, BANDS),
        (tiff(np.moveaxis(BANDS, -1, 0), planarconfig="separate", byteorder=">"), 5, BANDS),
        (tiff(np.dstack([RGB, RGB]) >> 8, photometric="rgb"), 6, np.dstack([RGB, RGB]) >> 8),
        (npy(BANDS), 5, BANDS),
        (npy(np.asfortranarray(BANDS).astype(">u2")), 5, BANDS),
        (npy(GRAY), 1, GRAY[..., None]),
        (turned(np.rot90(GRAY)), "gray", GRAY[..., None]),
        (b"P5 9 6 65535\n" + GRAY.astype(">u2").tobytes(), "gray", GRAY[..., None]),
    ],
)  # fmt: skip
def test_values_are_kept(data: bytes, channels: str | int, expected: NDArray[Any]):
    found = made(data, channels)
    assert found.dtype == np.uint16
    assert np.array_equal(found, expected)


def test_colours_become_what_is_asked_for(encode: Encode):
    assert np.abs(made(png(RGB), "gray") - LUMA).max() <= 1
    share = GRAY[..., None] / 65_535
    white = RGB * share + 65_535 * (1 - share)
    for data in (
        png(np.dstack([RGB, GRAY])),
        tiff(np.dstack([RGB, GRAY]), photometric="rgb", extrasamples=["unassalpha"]),
    ):
        assert np.abs(made(data, "rgb") - white).max() <= 0.5
    for data in (encode(SMALL, "PNG"), encode(SMALL, "TIFF"), encode(SMALL, "WebP", lossless=True)):
        assert np.array_equal(made(data, "rgb"), SMALL * np.uint16(257))
    jpeg = encode(np.full((6, 9), 200, np.uint8), "JPEG", quality=100)
    assert np.array_equal(made(jpeg, "gray"), np.full((6, 9, 1), 200 * 257))


def test_bands_of_8_bits_stay_as_they_are(encode: Encode):
    assert np.array_equal(made(encode(SMALL, "PNG"), 3, "uint8"), SMALL)
    five = (BANDS >> 8).astype(np.uint8)
    assert np.array_equal(made(tiff(five), 5, "uint8"), five)
    assert count_bands(tiff(five), 100) == 5


def test_it_says_whether_8_bits_were_widened(encode: Encode):
    maker, out = (
        DecodeResize(PixelSpec((6, 9), channels="gray", dtype="uint16")),
        np.empty((6, 9, 1), np.uint16),
    )
    for data, widened in ((encode(SMALL, "PNG"), True), (png(GRAY), False), (encode(SMALL, "PNG"), True)):
        assert maker(data, out) == (6, 9)
        assert maker.narrowed is widened
    assert isinstance(pickle.loads(pickle.dumps(maker)), DecodeResize)


@pytest.mark.parametrize("fit", ["crop", "pad", "stretch"])
@pytest.mark.parametrize("size", [(16, 16), (10, 7), (80, 60)])
@pytest.mark.parametrize("channels", ["gray", 5])
def test_resizing_is_pillows_of_floats(fit: str, size: tuple[int, int], channels: str | int):
    count = 1 if channels == "gray" else 5
    values = np.random.default_rng(6).integers(0, 65_536, (48, 36, count), dtype=np.uint16)
    spec = PixelSpec(size, fit, channels, dtype="uint16")
    out = np.full(spec.shape, 9, np.uint16)
    DecodeResize(spec)(png(values[..., 0]) if count == 1 else npy(values), out)
    eight = PixelSpec(size, fit, "gray")  # where it lies is what 8 bits say
    box, target = places(fit, size)
    for channel in range(count):
        whole = Image.fromarray(values[..., channel].astype(np.float32))
        sides = (target[3], target[2])
        area = (box[1], box[0], box[1] + box[3], box[0] + box[2])
        expected = np.zeros(size)
        top, left, height, width = target
        expected[top : top + height, left : left + width] = np.asarray(
            whole.crop(area).resize(sides, Image.Resampling.BILINEAR)
        )
        assert np.abs(out[..., channel] - expected).max() <= 0.51
    small = np.zeros(eight.shape, np.uint8)
    DecodeResize(eight).again((values[..., :1] >> 8).astype(np.uint8), small)
    assert np.abs(small[..., 0] - out[..., 0] / 256).max() <= 2


def places(fit: str, size: tuple[int, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    from packer.pixels.row_placement import place

    box, target = place(fit, (48, 36), size)
    return tuple(box), tuple(target)


@pytest.mark.parametrize(
    ("data", "channels", "message"),
    [
        (npy(BANDS), 4, "it has 5 channels, and 4 are packed."),
        (npy(BANDS >> 8).replace(b"<u2", b"|u1", 1)[: 128 + 270], 5, "its values are uint8, and uint16 is packed; one type is kept, as it "
         "is. Pass dtype='uint8' for such files."),
        (npy(BANDS.astype(np.int16)), 5, "its values are int16; uint8, uint16 and float32 are read."),
        (npy(BANDS.astype(np.float32)), 5, "its values are float32; uint8 and uint16 are packed."),
        (tiff(BANDS), "rgb", "it has 5 channels of uint16; grey and RGB of 16 bits become rgb. Pass channels=5 to keep them as they are."),
        (tiff(np.dstack([RGB, GRAY])), "rgb", "it has 4 channels of uint16; grey and RGB of 16 bits become rgb. Pass channels=4 to keep "
         "them as they are."),
        (tiff(BANDS.astype(np.int16)), 5, "its pixels are int16 [6, 9, 5]; uint8 and uint16 [h, w, bands] are packed."),
        (tiff(BANDS)[:-200], 5, "a damaged or truncated TIFF file."),
        (tiff(BANDS, compression="zlib")[:300], 5, "a damaged or truncated TIFF file."),
        (tiff(BANDS).replace(b"\0\1\4\0", b"\0\x11\4\0", 1), 5, "a damaged or truncated TIFF file."),  # without a width
        (png(RGB)[:-60], "rgb", "a damaged or truncated PNG file."),
        (png(GRAY)[:-60], "gray", "a damaged or truncated PNG file."),
        (png(RGB)[:25], "rgb", "a damaged or truncated PNG file."),
        (b"P6 9 6 65535\n" + RGB.astype(">u2").tobytes(), "rgb", "a PPM file with 16-bit colours; these are read only from PNG and "
         "TIFF."),
        (b"", 5, "empty (0 bytes)."),
        (b"nothing", 5, "not a PNG, TIFF, BMP, WebP, GIF, JPEG or npy file; those are read."),
    ],
)  # fmt: skip
def test_what_is_refused(data: bytes, channels: str | int, message: str):
    with pytest.raises(ImageError) as error:
        made(data, channels)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("format", "mode"), [("PNG", "P"), ("GIF", "P"), ("JPEG", "CMYK"), ("TIFF", "CMYK"), ("AVIF", "RGB")]
)
def test_colours_that_are_no_bands_are_refused_as_such(encode: Encode, format: str, mode: str):
    image = Image.fromarray(SMALL)
    data = encode(image.quantize(4) if mode == "P" else image.convert(mode), format)
    for channels in (1, 3):
        with pytest.raises(ImageError) as error:
            made(data, channels, "uint8")
        assert str(error.value) == (
            "its colours (a palette, CMYK, YCbCr or AVIF) can be read, but not as bands. Pass channels='rgb' for such files."
        )


@pytest.mark.parametrize(("header", "values"), [(b"P6 9 6 255\n", SMALL), (b"P5 9 6 255\n", SMALL[..., :1])])
def test_ppm_files_of_8_bits_are_bands(header: bytes, values: NDArray[Any]):
    assert np.array_equal(made(header + values.tobytes(), values.shape[2], "uint8"), values)


def test_a_file_for_tifffile_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "tifffile", None)
    sentence = (
        r"^a TIFF file that needs tifffile, which is not installed; 'pip install tifffile' installs it\.$"
    )
    with pytest.raises(ImageError, match=sentence):
        made(tiff(BANDS), 5)
    assert np.array_equal(made(tiff(GRAY), "gray")[..., 0], GRAY)


def tiff_bits(values: NDArray[Any], bits: int, *, photometric: int = 1) -> bytes:
    """A grey TIFF file of any depth, little-endian, its rows padded to whole bytes."""
    height, width = values.shape
    digits = (values[..., None] >> np.arange(bits - 1, -1, -1)) & 1
    data = np.packbits(digits.reshape(height, -1).astype(np.uint8), axis=1).tobytes()
    tags = {256: width, 257: height, 258: bits, 259: 1, 262: photometric, 273: 8, 277: 1, 278: height, 279: len(data)}  # fmt: skip
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    data += bytes(len(data) % 2)
    return (
        b"II*\0" + struct.pack("<I", 8 + len(data)) + data + struct.pack("<H", len(tags)) + entries + bytes(4)
    )


def test_the_depth_of_a_tiff_file_is_its_scale(encode: Encode):
    """White is 65,535, and 255, whatever the depth of the file beside."""
    twelve = GRAY >> 4
    for data, expected in (
        (tiff_bits(twelve, 12), twelve / 4095),
        (tiff(GRAY), GRAY / 65_535),
        (tiff(GRAY, photometric="miniswhite"), 1 - GRAY / 65_535),
        (tiff(GRAY, photometric="miniswhite", byteorder=">"), 1 - GRAY / 65_535),
        (tiff(SMALL[..., 0]), SMALL[..., 0] / 255),
        (tiff(SMALL[..., 0], photometric="miniswhite"), 1 - SMALL[..., 0] / 255),
    ):
        found = made(data, "gray")[..., 0]
        assert np.array_equal(found, np.round(expected * 65_535))
        if data[:2] == b"II":  # Pillow has no mode for the big-endian one
            assert np.array_equal(made(data, "gray", "uint8")[..., 0], found >> 8)
    assert np.array_equal(made(tiff_bits(twelve, 12), 1)[..., 0], twelve)  # bands have no white
    assert np.array_equal(made(tiff(GRAY, photometric="miniswhite"), 1)[..., 0], GRAY)


@pytest.mark.parametrize("bits", range(9, 16))
def test_every_depth_is_stretched_from_0_to_65535(bits: int):
    most = (1 << bits) - 1
    values = np.arange(most + 1, dtype=np.uint16)
    stretched = np.round(values * (65_535 / most))
    assert np.array_equal(TiffLevels(bits).stretched(values), stretched)
    assert np.array_equal(TiffLevels(bits, zero_is_white=True).stretched(values), stretched[::-1])


@pytest.mark.parametrize("bits", [10, 14])
def test_depths_for_imagecodecs(bits: int):
    values = GRAY >> (16 - bits)
    if importlib.util.find_spec("imagecodecs"):
        expected = np.round(values * (65_535 / ((1 << bits) - 1)))
        assert np.array_equal(made(tiff_bits(values, bits), "gray")[..., 0], expected)
    else:
        with pytest.raises(ImageError, match="'pip install imagecodecs' installs it"):
            made(tiff_bits(values, bits), "gray")


def test_sizes_are_checked_before_pixels_are_decoded():
    for data in (png(RGB), tiff(BANDS), npy(BANDS), png(GRAY)):
        spec = PixelSpec((6, 9), channels=3, max_pixels=53, dtype="uint16")
        with pytest.raises(ImageError, match="9 x 6 pixels; at most 53 are allowed"):
            DecodeResize(spec)(data, np.empty(spec.shape, np.uint16))


@pytest.mark.parametrize(
    ("channels", "dtype", "message"),
    [
        ("rgba", "uint16", "channels rgba: is only for uint8; uint16 takes gray, rgb and numbers of bands. Pass channels=4 to keep"),
        (0, "uint16", "channels 0: unknown; rgb, gray, rgba and 1 to 1024 are allowed"),
        ("rgb", "int16", "dtype 'int16': is not one of uint8, uint16"),
    ],
)  # fmt: skip
def test_options_that_do_not_go_together(channels: str | int, dtype: str, message: str):
    with pytest.raises(UsageError) as error:
        PixelSpec((8, 8), channels=channels, dtype=dtype)
    assert message in str(error.value)


def test_bands_that_pillow_would_leave_out_are_counted():
    many = np.dstack([SMALL, SMALL])  # Pillow opens it as RGB
    assert count_bands(tiff(many, photometric="rgb"), 100) == 6
    assert np.array_equal(made(tiff(many, photometric="rgb"), 6, "uint8"), many)
