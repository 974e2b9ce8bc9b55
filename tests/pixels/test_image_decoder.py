"""One test per row of the table in image_decoder.py, one per kind of bad input, and random damage to every format."""

from __future__ import annotations

import contextlib
import io
import struct
import threading
import warnings
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import PIL
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import BmpImagePlugin, GifImagePlugin, Image, ImageFile, PngImagePlugin, TiffImagePlugin

from packer.codecs.jpeg import EXIF_TAG
from packer.errors import ImageError
from packer.pixels.exact_values import decode_mask
from packer.pixels.image_decoder import DecodedImage, ScratchBuffers, dct_scale
from packer.pixels.image_decoder import decode as decode_with

Encode = Callable[..., bytes]
LOSSLESS: dict[str, dict[str, Any]] = {
    "PNG": {},
    "BMP": {},
    "TIFF": {},
    "PPM": {},
    "WEBP": {"lossless": True},
    "AVIF": {"quality": 100},
}
READ = "JPEG, PNG, WebP, BMP, TIFF, GIF, AVIF, PPM and PGM are read"


def decode(data: bytes, channels: str = "rgb", max_pixels: int = 1 << 24, ratio: float = 1.0) -> DecodedImage:
    return decode_with(data, channels, max_pixels, lambda height, width: ratio, ScratchBuffers())


def pixels(data: bytes, channels: str = "rgb") -> NDArray[np.uint8]:
    count = {"rgb": 3, "gray": 1, "rgba": 4}[channels]
    return decode(data, channels).pixels[..., :count]


def noise(*shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(3).integers(0, 256, shape, dtype=np.uint8)


def luma(rgb: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Rec. 601: 0.299 R + 0.587 G + 0.114 B."""
    return np.asarray(rgb.astype(np.float64) @ np.array([0.299, 0.587, 0.114]))


def png16(array: NDArray[np.uint16], color_type: int) -> bytes:
    """A PNG of 16 bits a channel, which Pillow cannot write; color_type 2 is RGB, 4 grey + alpha, 6 RGBA."""
    height, width = array.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in array)

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 16, color_type, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("format", LOSSLESS)
def test_rgb(encode: Encode, format: str) -> None:
    picture = noise(9, 14, 3) if format != "AVIF" else np.full((9, 14, 3), (200, 100, 50), np.uint8)
    data = encode(picture, format, **LOSSLESS[format])
    found = pixels(data)
    assert np.abs(found.astype(int) - picture).max() <= (2 if format == "AVIF" else 0)
    assert np.abs(pixels(data, "gray")[..., 0] - luma(found)).max() <= 1
    rgba = pixels(data, "rgba")
    assert np.array_equal(rgba[..., :3], found)
    assert (rgba[..., 3] == 255).all()


@pytest.mark.parametrize("subsampling", [0, 2])
def test_jpeg(encode: Encode, photo: NDArray[np.uint8], subsampling: int) -> None:
    data = encode(photo[:45, :77], "JPEG", quality=95, subsampling=subsampling)
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(image)
    assert np.abs(pixels(data).astype(int) - expected).max() <= 1
    assert np.abs(pixels(data, "gray")[..., 0] - luma(expected)).max() <= 2
    rgba = pixels(data, "rgba")
    assert np.array_equal(rgba[..., :3], pixels(data))
    assert (rgba[..., 3] == 255).all()


@pytest.mark.parametrize("format", ["PNG", "BMP", "TIFF", "PPM", "GIF", "JPEG"])
def test_grey_is_replicated(encode: Encode, format: str) -> None:
    data = encode(noise(9, 14), format)
    grey = pixels(data, "gray")
    assert np.array_equal(pixels(data), np.repeat(grey, 3, axis=2))
    if format != "JPEG":
        assert np.array_equal(grey[..., 0], noise(9, 14))


def test_one_bit(encode: Encode) -> None:
    bits = Image.fromarray(noise(9, 14)).convert("1")
    expected = np.asarray(bits).astype(np.uint8) * 255
    for format in ("PNG", "TIFF", "PPM"):
        assert np.array_equal(pixels(encode(bits, format), "gray")[..., 0], expected)


def test_palette(encode: Encode) -> None:
    image = Image.fromarray(noise(9, 14, 3)).quantize(16)
    expected = np.asarray(image.convert("RGB"))
    for format in ("PNG", "GIF", "BMP", "TIFF"):
        assert np.array_equal(pixels(encode(image, format)), expected)


def test_a_transparent_palette_entry_becomes_white_or_stays_transparent(encode: Encode) -> None:
    image = Image.fromarray(np.array([[0, 1], [1, 0]], np.uint8), "L").convert("P")
    image.putpalette([200, 0, 0, 0, 0, 200])
    for format in ("PNG", "GIF"):
        data = encode(image, format, transparency=1)
        assert pixels(data).tolist() == [[[200, 0, 0], [255] * 3], [[255] * 3, [200, 0, 0]]]
        assert pixels(data, "rgba")[..., 3].tolist() == [[255, 0], [0, 255]]


def test_a_transparent_colour_becomes_white(encode: Encode) -> None:
    picture = np.array([[[1, 2, 3], [4, 5, 6]]], np.uint8)
    data = encode(picture, "PNG", transparency=(4, 5, 6))
    assert pixels(data).tolist() == [[[1, 2, 3], [255, 255, 255]]]


@pytest.mark.parametrize("format", ["PNG", "TIFF", "WEBP"])
def test_alpha_is_composited_on_white_or_kept(encode: Encode, format: str) -> None:
    picture = noise(9, 14, 4)
    picture[..., 3] = np.arange(9)[:, None] * 31
    data = encode(picture, format, **({"lossless": True, "exact": True} if format == "WEBP" else {}))
    alpha = picture[..., 3:] / 255
    white = picture[..., :3] * alpha + 255 * (1 - alpha)
    assert np.abs(pixels(data) - white).max() <= 1
    assert np.abs(pixels(data, "gray")[..., 0] - white @ [0.299, 0.587, 0.114]).max() <= 2
    assert np.array_equal(pixels(data, "rgba"), picture)
    assert decode(data, "rgba").transparent
    assert not decode(data, "rgb").transparent


def test_grey_with_alpha(encode: Encode) -> None:
    image = Image.fromarray(np.array([[[100, 255], [100, 0], [100, 51]]], np.uint8), "LA")
    data = encode(image, "PNG")
    assert pixels(data, "gray")[..., 0].tolist() == [[100, 255, 224]]
    assert pixels(data, "rgba").tolist() == [[[100, 100, 100, 255], [100, 100, 100, 0], [100, 100, 100, 51]]]


@pytest.mark.parametrize("format", ["PNG", "TIFF", "PPM"])
def test_16_bit_grey_keeps_its_high_byte(encode: Encode, format: str) -> None:
    values = np.array([[0, 255, 256, 511], [32767, 32768, 65279, 65535]], np.uint16)
    data = encode(Image.fromarray(values), format)
    assert np.array_equal(pixels(data, "gray")[..., 0], values >> 8)
    assert np.array_equal(pixels(data)[..., 2], values >> 8)


def test_big_endian_16_bit_tiff(encode: Encode) -> None:
    values = np.array([[256, 65535]], ">u2")
    data = encode(Image.frombytes("I;16B", (2, 1), values.tobytes()), "TIFF")
    assert pixels(data, "gray")[..., 0].tolist() == [[1, 255]]


def test_16_bit_colours_keep_their_high_byte() -> None:
    values = np.random.default_rng(4).integers(0, 65536, (3, 5, 4)).astype(np.uint16)
    assert np.array_equal(pixels(png16(values[..., :3], 2)), values[..., :3] >> 8)
    assert np.array_equal(pixels(png16(values, 6), "rgba"), values >> 8)
    assert np.array_equal(pixels(png16(values[..., :2], 4), "rgba")[..., [0, 3]], values[..., :2] >> 8)


@pytest.mark.parametrize("format", ["JPEG", "TIFF"])
def test_cmyk(encode: Encode, format: str) -> None:
    image = Image.fromarray(np.full((8, 8, 3), (200, 100, 50), np.uint8)).convert("CMYK")
    found = pixels(encode(image, format, **({"quality": 100} if format == "JPEG" else {})))
    assert np.abs(found.astype(int) - (200, 100, 50)).max() <= 3


@pytest.mark.parametrize("format", ["GIF", "PNG", "WEBP", "TIFF"])
def test_the_first_frame_or_page(encode: Encode, format: str) -> None:
    frames = [Image.new("RGB", (8, 6), colour) for colour in ("red", "lime", "blue")]
    options = {"lossless": True} if format == "WEBP" else {}
    data = encode(frames[0], format, save_all=True, append_images=frames[1:], **options)
    assert pixels(data).reshape(-1, 3).tolist() == [[255, 0, 0]] * 48


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        ("F", "its pixels are 32-bit floats; 8 and 16 bits a channel are read."),
        ("I", "its pixels are 32-bit integers; 8 and 16 bits a channel are read."),
        ("LAB", "its colours are LAB; grey, RGB, palette and CMYK are read."),
    ],
)
def test_what_has_no_meaning_in_8_bits_is_refused(encode: Encode, mode: str, kind: str) -> None:
    with pytest.raises(ImageError) as error:
        decode(encode(Image.new(mode, (4, 4)), "TIFF"))
    assert str(error.value) == kind


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
def test_orientation_is_handed_on_or_already_applied(encode: Encode, format: str, orientation: int) -> None:
    tags = Image.Exif()
    tags[EXIF_TAG] = orientation
    image = decode(encode(np.zeros((8, 24, 3), np.uint8), format, exif=tags))
    if format == "TIFF":  # Pillow turns these while it loads them
        assert image.orientation == 1
        assert (image.height, image.width) == ((24, 8) if orientation >= 5 else (8, 24))
    else:
        assert image.orientation == orientation
        assert (image.height, image.width) == (8, 24)


@pytest.mark.parametrize(
    ("ratio", "divisor"),
    [(0.3, 1), (1.99, 1), (2.0, 2), (4.6, 2), (4.7, 4), (10.6, 4), (10.7, 8), (900.0, 8)],
)
def test_dct_scale(ratio: float, divisor: int) -> None:
    assert dct_scale(ratio) == divisor


@pytest.mark.parametrize("channels", ["rgb", "gray", "rgba"])
@pytest.mark.parametrize(("ratio", "divisor"), [(1.5, 1), (2.0, 2), (5.0, 4), (11.0, 8)])
@pytest.mark.parametrize("size", [(64, 48), (61, 83), (1, 100), (5, 1)])
def test_jpegs_are_decoded_at_the_scale_that_suffices(
    encode: Encode, channels: str, ratio: float, divisor: int, size: tuple[int, int]
) -> None:
    image = decode(encode(noise(*size, 3), "JPEG"), channels, ratio=ratio)
    assert (image.height, image.width, image.shrunk) == (*size, divisor)
    assert image.pixels.shape[:2] == (-(-size[0] // divisor), -(-size[1] // divisor))


def test_the_ratio_is_asked_of_the_upright_picture(encode: Encode) -> None:
    tags = Image.Exif()
    tags[EXIF_TAG] = 6
    asked = []

    def ratio(height: int, width: int) -> float:
        asked.append((height, width))
        return 1.0

    decode_with(encode(noise(8, 24, 3), "JPEG", exif=tags), "rgb", 1000, ratio, ScratchBuffers())
    assert asked == [(24, 8)]


def test_an_odd_jpeg_that_pillow_accepts_is_read(encode: Encode) -> None:
    whole = encode(noise(32, 32, 3), "JPEG")
    scan = whole.index(b"\xff\xda")
    odd = whole[:scan] + b"\0\0" + whole[scan:]  # stray bytes before a marker are a warning to libjpeg
    assert np.abs(pixels(odd).astype(int) - pixels(whole)).max() <= 1


@pytest.mark.parametrize("data", [b"hello, world\n" * 9, b"<svg/>", b"\x89PN", b"RIFFxxxxWAVE", b"\0" * 64])
def test_other_files_are_not_images(data: bytes) -> None:
    with pytest.raises(ImageError) as error:
        decode(data)
    assert str(error.value) == f"not an image; {READ}."


def test_an_empty_file_is_said_to_be_empty() -> None:
    with pytest.raises(ImageError) as error:
        decode(b"")
    assert str(error.value) == "empty (0 bytes)."


@pytest.mark.parametrize("format", ["JPEG", "PNG", "GIF", "WebP", "BMP", "TIFF", "AVIF", "PPM"])
def test_truncated_files_are_refused(encode: Encode, format: str) -> None:
    data = encode(noise(64, 64, 3), format)
    for end in (len(data) // 8, len(data) // 2, len(data) - 100):
        with pytest.raises(ImageError) as error:
            decode(data[:end])
        assert str(error.value) == f"a damaged or truncated {format} file."


@pytest.mark.parametrize("format", ["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "AVIF", "PPM"])
def test_too_many_pixels_are_refused(encode: Encode, format: str) -> None:
    data = encode(noise(20, 30, 3), format)
    assert decode(data, max_pixels=600).width == 30
    with pytest.raises(ImageError) as error:
        decode(data, max_pixels=599)
    assert str(error.value) == (
        "30 x 20 pixels; at most 599 are allowed. Raise max_pixels= if the image is intended."
    )


def test_a_bomb_is_refused_undecoded(encode: Encode) -> None:
    head = bytearray(encode(noise(2, 2), "PNG"))
    head[16:24] = struct.pack(">II", 30_000, 30_000)
    head[29:33] = struct.pack(">I", zlib.crc32(head[12:29]))
    with pytest.raises(ImageError) as error:
        decode(bytes(head), max_pixels=178_956_970)
    assert str(error.value) == (
        "30,000 x 30,000 pixels; at most 178,956,970 are allowed. Raise max_pixels= if the image is intended."
    )


def test_pillows_own_limit_neither_warns_nor_refuses_and_is_restored(
    encode: Encode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for format in ("PNG", "TIFF", "BMP", "PPM", "JPEG"):
            assert decode(encode(noise(20, 30, 3), format)).width == 30
    assert Image.MAX_IMAGE_PIXELS == 100


@pytest.mark.skipif(
    int(PIL.__version__.partition(".")[0]) < 13,
    reason="Pillow's plugins have no limit of their own before 13",
)
def test_what_pillow_refuses_by_its_own_limit_is_an_image_error() -> None:
    side = (16_383).to_bytes(3, "little")
    canvas = b"WEBPVP8X" + struct.pack("<I", 10) + bytes(4) + side + side
    with pytest.raises(ImageError) as error:
        decode(b"RIFF" + struct.pack("<I", len(canvas)) + canvas, max_pixels=1 << 30)
    assert str(error.value) == "more pixels than Pillow opens in a WebP file; split it, or store it as PNG."


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        (Image, "MAX_IMAGE_PIXELS", 10),
        (ImageFile, "LOAD_TRUNCATED_IMAGES", True),
        (PngImagePlugin, "MAX_TEXT_CHUNK", 4),
        (PngImagePlugin, "MAX_TEXT_MEMORY", 4),
        (GifImagePlugin, "LOADING_STRATEGY", GifImagePlugin.LoadingStrategy.RGB_ALWAYS),
        (TiffImagePlugin, "READ_LIBTIFF", True),
        (BmpImagePlugin, "USE_RAW_ALPHA", True),
    ],
)
def test_settings_of_pillow_change_no_result_and_stay(
    encode: Encode, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, value: Any
) -> None:
    text = PngImagePlugin.PngInfo()
    text.add_text("Comment", "a" * 100, zip=True)
    picture = noise(40, 50, 3)
    files = [encode(picture, format) for format in ("JPEG", "GIF", "WEBP", "BMP", "TIFF", "AVIF", "PPM")]
    files += [encode(picture, "PNG", pnginfo=text), encode(noise(40, 50, 4), "BMP")]
    mask = encode(noise(40, 50), "GIF")

    def rows() -> list[bytes]:
        return [*(pixels(data).tobytes() for data in files), decode_mask(mask, 1 << 20, None).tobytes()]

    clean = rows()
    monkeypatch.setattr(module, name, value)
    assert rows() == clean
    for data in files:
        with pytest.raises(ImageError, match="a damaged or truncated"):
            decode(data[: len(data) * 3 // 4])
    assert getattr(module, name) == value


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("format", ["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "AVIF", "PPM"])
@settings(max_examples=60)
@given(data=st.data())
def test_damage_raises_nothing_but_image_errors(encode: Encode, format: str, data: Any) -> None:
    whole = bytearray(encode(noise(24, 17, 3), format))
    near_the_start = st.integers(0, min(len(whole), 200) - 1)
    for place in data.draw(st.lists(st.one_of(near_the_start, st.integers(0, len(whole) - 1)), max_size=6)):
        whole[place] = data.draw(st.integers(0, 255))
    end = data.draw(st.one_of(st.just(len(whole)), st.integers(0, len(whole))))
    channels = data.draw(st.sampled_from(["rgb", "gray", "rgba"]))
    ratio = data.draw(st.sampled_from([1.0, 5.0]))
    with contextlib.suppress(ImageError):
        image = decode(bytes(whole[:end]), channels, 1 << 20, ratio)
        assert image.pixels.dtype == np.uint8
        assert image.orientation in range(1, 9)


def test_threads_decode_alike(encode: Encode, photo: NDArray[np.uint8]) -> None:
    files = [encode(photo[: 40 + 7 * n, :64], format) for n, format in enumerate(("JPEG", "PNG", "WEBP"))]
    expected = [pixels(data) for data in files]
    wrong = []

    def work() -> None:
        scratch = ScratchBuffers()
        for _ in range(10):
            for data, pixel in zip(files, expected, strict=True):
                found = decode_with(data, "rgb", 1 << 20, lambda *_: 1.0, scratch).pixels[..., :3]
                if not np.array_equal(found, pixel):
                    wrong.append(data[:4])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
