"""The whole way from a file to an array: sizes, fits, orientation, DCT scales, threads."""

from __future__ import annotations

import io
import runpy
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image, ImageOps

from packer import native
from packer.codecs import jpeg as codec
from packer.codecs.jpeg import EXIF_TAG
from packer.errors import ImageError, UsageError
from packer.pixels import decode_resize
from packer.pixels.decode_resize import DecodeResize, PixelSpec, decoder_versions
from packer.pixels.row_placement import FITS

Encode = Callable[..., bytes]


def make(data: bytes, height: int, width: int, fit: str = "crop", channels: str = "rgb") -> NDArray[np.uint8]:
    spec = PixelSpec((height, width), fit, channels)
    out = np.full(spec.shape, 77, np.uint8)
    DecodeResize(spec)(data, out)
    return out


def triangle(pixels: NDArray[np.uint8], height: int, width: int) -> NDArray[np.float64]:
    """Resize in float32 with Pillow's BILINEAR, which is the antialiased triangle filter."""
    bands = [Image.fromarray(pixels[..., c].astype(np.float32)) for c in range(pixels.shape[2])]
    small = [np.asarray(band.resize((width, height), Image.Resampling.BILINEAR)) for band in bands]
    return np.stack(small, axis=-1).astype(np.float64)


def psnr(pixels: NDArray[np.uint8], target: NDArray[np.float64]) -> float:
    return float(10 * np.log10(255**2 / np.mean((np.asarray(pixels, np.float64) - target) ** 2)))


def decoded(data: bytes) -> NDArray[np.uint8]:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image)


def quarters(height: int, width: int) -> NDArray[np.uint8]:
    """Red, green, blue and white quarters; red at the top left."""
    picture = np.zeros((height, width, 3), np.uint8)
    picture[: height // 2, : width // 2] = (255, 0, 0)
    picture[: height // 2, width // 2 :] = (0, 255, 0)
    picture[height // 2 :, : width // 2] = (0, 0, 255)
    picture[height // 2 :, width // 2 :] = 255
    return picture


@pytest.mark.parametrize(
    "side", [480, 400, 328, 256, 250, 220, 192, 160, 128, 112, 96, 64, 56, 48, 40, 32, 24]
)
def test_shrunk_jpegs_keep_40_db_at_every_dct_scale(
    encode: Encode, photo: NDArray[np.uint8], side: int
) -> None:
    data = encode(photo, "JPEG", quality=92, subsampling=2)
    target = triangle(decoded(data), side, side)
    assert psnr(make(data, side, side), target) >= 40


@pytest.mark.parametrize("channels", ["rgb", "gray", "rgba"])
@pytest.mark.parametrize("format", ["PNG", "JPEG", "BMP"])
def test_one_to_one_copies_exactly(
    encode: Encode, photo: NDArray[np.uint8], format: str, channels: str
) -> None:
    data = encode(photo[:37, :53], format)
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(image.convert({"rgb": "RGB", "gray": "L", "rgba": "RGBA"}[channels]))
    error = np.abs(make(data, 37, 53, channels=channels).astype(int) - expected.reshape(37, 53, -1))
    assert error.max() <= (2 if format == "JPEG" else 0)  # two builds of libjpeg may round apart
    assert error.mean() < 0.5


def test_one_to_one_jpegs_are_simplejpegs_own_pixels(encode: Encode, photo: NDArray[np.uint8]) -> None:
    import simplejpeg

    data = encode(photo[:61, :33], "JPEG", subsampling=2)
    assert np.array_equal(make(data, 61, 33), simplejpeg.decode_jpeg(data, "RGB"))


def plain_and_odd(encode: Encode) -> dict[str, bytes]:
    """JPEG files of 37x45: some with which nothing has to be done but decoding them, others with which more has to be done."""
    pixels = np.random.default_rng(3).integers(0, 256, (37, 45, 3), dtype=np.uint8)
    turned = Image.Exif()
    turned[EXIF_TAG] = 6
    cmyk = Image.fromarray(pixels).convert("CMYK")
    return {
        "4:2:0": encode(pixels, "JPEG"),
        "4:2:2": encode(pixels, "JPEG", subsampling=1),
        "4:4:4": encode(pixels, "JPEG", subsampling=0),
        "RGB": encode(pixels, "JPEG", keep_rgb=True),
        "grey": encode(pixels[..., 0], "JPEG"),
        "progressive": encode(pixels, "JPEG", progressive=True),
        "turned": encode(pixels, "JPEG", exif=turned),
        "CMYK": encode(cmyk, "JPEG"),
    }


@pytest.mark.skipif(not native.COMPILED, reason="the loops in C are not there")
def test_plain_jpegs_are_decoded_in_place_to_the_same_pixels(
    encode: Encode, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = plain_and_odd(encode)
    filled = {name for name, data in files.items() if codec.fill_plain(data, np.empty((37, 45, 3), np.uint8))}
    assert filled == {"4:2:0", "4:2:2", "4:4:4", "RGB", "grey"}
    assert not codec.fill_plain(files["4:2:0"], np.empty((45, 37, 3), np.uint8))
    made = {
        (name, c): make(data, 37, 45, channels=c) for name, data in files.items() for c in ("rgb", "gray")
    }
    monkeypatch.setattr(decode_resize, "fill_plain", lambda *_: False)
    for (name, channels), pixels in made.items():
        assert np.array_equal(pixels, make(files[name], 37, 45, channels=channels)), (name, channels)


@pytest.mark.skipif(not native.COMPILED, reason="the loops in C are not there")
@pytest.mark.parametrize("name", ["4:2:0", "grey"])
def test_damaged_plain_jpegs_end_as_others_do(
    encode: Encode, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def end(data: bytes) -> bytes | str:
        try:
            return make(data, 37, 45).tobytes()
        except ImageError as error:
            return str(error)

    data, draws = plain_and_odd(encode)[name], np.random.default_rng(0)
    damaged = [data[:length] for length in range(0, len(data), 9)] + [data + b"\xff\xda" * 200]
    for place in draws.integers(0, 700, 300).tolist():
        damaged.append(data[:place] + bytes([data[place] ^ int(draws.integers(1, 256))]) + data[place + 1 :])
    ends = [end(bad) for bad in damaged]
    monkeypatch.setattr(decode_resize, "fill_plain", lambda *_: False)
    assert ends == [end(bad) for bad in damaged]


@pytest.mark.parametrize(("side", "least"), [(150, 42), (120, 42), (64, 40), (48, 42), (28, 40), (20, 44)])
def test_a_shrunk_jpeg_is_cut_where_the_whole_one_would_be(
    encode: Encode, photo: NDArray[np.uint8], side: int, least: float
) -> None:
    """The box of 301x301 begins at 101, which no divisor divides."""
    wide = np.ascontiguousarray(photo[:301, :503])
    data = encode(wide, "JPEG", quality=95, subsampling=0)
    target = triangle(np.ascontiguousarray(decoded(data)[:, 101:402]), side, side)
    assert psnr(make(data, side, side), target) >= least


@pytest.mark.parametrize("format", ["PNG", "JPEG"])
@pytest.mark.parametrize("size", [(600, 300), (301, 613), (97, 50), (80, 40)])
def test_crop_is_resize_and_centre_crop(encode: Encode, format: str, size: tuple[int, int]) -> None:
    out = make(encode(quarters(*size), format), 32, 32).astype(int)
    corners = [(0, 0, (255, 0, 0)), (0, 31, (0, 255, 0)), (31, 0, (0, 0, 255)), (31, 31, (255, 255, 255))]
    for row, column, colour in corners:
        assert np.abs(out[row, column] - colour).max() <= 12
    across = np.abs(out[8, :, 0] - out[8, 0, 0]) > 128
    down = np.abs(out[:, 8, 0] - out[0, 8, 0]) > 128
    assert 15 <= int(across.argmax()) <= 17
    assert 15 <= int(down.argmax()) <= 17


def test_crop_cuts_the_longer_side(encode: Encode) -> None:
    picture = np.zeros((30, 90, 3), np.uint8)
    picture[:, 30:60] = 200
    assert (make(encode(picture, "PNG"), 30, 30) == 200).all()


@pytest.mark.parametrize("channels", ["rgb", "gray", "rgba"])
def test_pad_adds_bars_of_black_or_nothing(encode: Encode, channels: str) -> None:
    data = encode(np.full((40, 20, 3), 180, np.uint8), "PNG")
    out = make(data, 16, 16, "pad", channels)
    assert not out[:, :4].any()
    assert not out[:, 12:].any()
    assert (out[:, 4:12, : 3 if channels == "rgba" else None] == 180).all()
    assert channels != "rgba" or (out[:, 4:12, 3] == 255).all()


def test_stretch_fills_everything_with_everything(encode: Encode) -> None:
    out = make(encode(quarters(40, 200), "PNG"), 20, 20, "stretch")
    expected = quarters(20, 20)
    assert np.array_equal(out[[0, 0, -1, -1], [0, -1, 0, -1]], expected[[0, 0, -1, -1], [0, -1, 0, -1]])
    assert np.abs(out.astype(int) - expected).mean() < 15


@pytest.mark.parametrize("fit", ["crop", "pad", "stretch"])
@pytest.mark.parametrize("format", ["JPEG", "PNG"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_comes_out_upright(encode: Encode, orientation: int, format: str, fit: str) -> None:
    tags = Image.Exif()
    tags[EXIF_TAG] = orientation
    data = encode(quarters(96, 160), format, exif=tags)
    with Image.open(io.BytesIO(data)) as image:
        turned = ImageOps.exif_transpose(image)
    out, expected = make(data, 24, 32, fit), make(encode(turned, "PNG"), 24, 32, fit)
    # A JPEG is shrunk while it is decoded, and turned after that: edges may differ a little.
    assert np.abs(out.astype(int) - expected).mean() < 4
    assert np.abs(out[::23, ::31].astype(int) - expected[::23, ::31]).max() <= 12


@pytest.mark.parametrize("fit", ["crop", "pad", "stretch"])
@pytest.mark.parametrize("size", [(1, 300), (300, 1), (1, 1), (2, 3), (31, 1000)])
@pytest.mark.parametrize("format", ["JPEG", "PNG"])
def test_odd_sizes_and_extreme_aspects(encode: Encode, size: tuple[int, int], fit: str, format: str) -> None:
    out = make(encode(np.full((*size, 3), 150, np.uint8), format), 24, 16, fit)
    assert set(np.unique(out).tolist()) <= {0, 149, 150, 151}
    assert np.abs(out[11:13, 7:9].max(axis=(0, 1)).astype(int) - 150).max() <= 1


@pytest.mark.parametrize("format", ["JPEG", "PNG"])
def test_enlarging_is_linear(encode: Encode, photo: NDArray[np.uint8], format: str) -> None:
    data = encode(photo[:20, :20], format)
    assert np.abs(make(data, 64, 64) - triangle(decoded(data), 64, 64)).max() <= 3


def test_colours_of_invisible_pixels_do_not_bleed(encode: Encode) -> None:
    picture = np.zeros((64, 64, 4), np.uint8)
    picture[:, :31] = (200, 40, 40, 255)
    picture[:, 31:] = (0, 255, 0, 0)
    out = make(encode(picture, "PNG"), 16, 16, channels="rgba").astype(int)
    visible = out[..., 3] > 8
    assert np.abs(out[visible][:, :3] - (200, 40, 40)).max() <= 8
    assert 0 < out[0, 7, 3] < 255


def test_colours_where_nothing_is_seen_are_kept(encode: Encode) -> None:
    """Of invisible pixels alone each channel is resampled by itself, as of an image without alpha; edges stay clean."""
    picture = np.random.default_rng(3).integers(0, 256, (64, 96, 4), dtype=np.uint8)
    picture[:, :31, 3], picture[:, 31:, 3] = 255, 0
    picture[:, :31, :3] = (200, 40, 40)
    for fit in FITS:
        out = make(encode(picture, "PNG"), 16, 16, fit, channels="rgba").astype(int)
        opaque = make(encode(picture[..., :3], "PNG"), 16, 16, fit).astype(int)
        bars = make(encode(np.full_like(picture, 255), "PNG"), 16, 16, fit, channels="rgba")[..., 3] == 0
        hidden = (out[..., 3] == 0) & ~bars
        assert hidden.sum() > 60
        assert np.array_equal(out[hidden][:, :3], opaque[hidden])
        assert len(np.unique(out[hidden][:, :3])) > 30
        assert (out[bars] == 0).all()
        visible = out[..., 3] > 8
        assert np.abs(out[visible][:, :3] - (200, 40, 40)).max() <= 8


MEETING = [
    ("PNG", "LA", {}),
    ("PNG", "RGBA", {}),
    ("PNG", "P", {"transparency": 3}),
    ("PNG", "P", {"transparency": bytes([0, 128])}),
    ("PNG", "L", {"transparency": 40}),
    ("WEBP", "RGBA", {"lossless": True, "exact": True}),
    ("TIFF", "LA", {}),
    ("TIFF", "RGBA", {}),
    ("TIFF", "CMYK", {}),
    ("TIFF", "1", {}),
    ("JPEG", "CMYK", {"quality": 100}),
    ("JPEG", "L", {"quality": 100}),
]
"""Format, mode and options of files that are to be turned as well."""


@pytest.mark.parametrize("channels", ["rgb", "gray", "rgba"])
@pytest.mark.parametrize(("format", "mode", "options"), MEETING)
def test_alpha_palettes_and_cmyk_of_turned_files_are_pillows(
    encode: Encode, format: str, mode: str, options: dict[str, object], channels: str
) -> None:
    y, x = np.mgrid[:24, :32]
    alpha = np.where((x - 16) ** 2 + (y - 12) ** 2 < 80, 255, 0)
    alpha[:, 4:8] = 128
    layered = Image.fromarray(np.stack([7 * x, 9 * y, 4 * (x + y), alpha], -1).astype(np.uint8))
    flat = layered if mode in ("RGBA", "LA") else layered.convert("RGB")
    image = flat.quantize(16) if mode == "P" else flat.convert(mode)
    tags = Image.Exif()
    tags[EXIF_TAG] = 6
    data = encode(image, format, exif=tags, **options)
    with Image.open(io.BytesIO(data)) as opened:
        upright = ImageOps.exif_transpose(opened)
    if upright.has_transparency_data and channels != "rgba":
        white = Image.new("RGBA", upright.size, "white")
        white.alpha_composite(upright.convert("RGBA"))
        upright = white.convert("RGB")
    expected = upright.convert({"rgb": "RGB", "gray": "L", "rgba": "RGBA"}[channels])
    whole = make(data, 32, 24, channels=channels)
    assert np.array_equal(whole, np.asarray(expected).reshape(whole.shape))
    small = make(data, 16, 12, channels=channels).astype(int)
    halved = np.asarray(expected.resize((12, 16), Image.Resampling.BILINEAR)).reshape(small.shape)
    seen = halved[..., 3] > 40 if channels == "rgba" else np.True_  # below, weighted colors are coarse
    assert np.abs(small[..., -1] - halved[..., -1]).max() <= 2
    assert np.abs(small - halved)[seen].max() <= 5


def test_alpha_survives_one_to_one(encode: Encode) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (9, 9, 4), dtype=np.uint8)
    assert np.array_equal(make(encode(picture, "PNG"), 9, 9, channels="rgba"), picture)


def test_alpha_is_composited_before_resizing(encode: Encode) -> None:
    picture = np.zeros((32, 32, 4), np.uint8)
    picture[:, ::2] = (0, 0, 0, 255)
    assert np.abs(make(encode(picture, "PNG"), 8, 8)[:, 1:-1].astype(int) - 127).max() <= 1


@settings(max_examples=40)
@given(
    size=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    result=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    fit=st.sampled_from(["crop", "pad", "stretch"]),
    channels=st.sampled_from(["rgb", "gray", "rgba"]),
    format=st.sampled_from(["JPEG", "PNG", "WEBP"]),
    orientation=st.integers(1, 8),
)
def test_any_image_fills_any_array(
    encode: Encode,
    size: tuple[int, int],
    result: tuple[int, int],
    fit: str,
    channels: str,
    format: str,
    orientation: int,
) -> None:
    tags = Image.Exif()
    tags[EXIF_TAG] = orientation
    data = encode(np.full((*size, 3), 160, np.uint8), format, exif=tags)
    out = make(data, *result, fit, channels)
    colour = out[..., :3] if channels == "rgba" else out
    assert np.isin(colour, [0, *range(157, 164)]).all()
    assert fit == "pad" or (colour > 0).all()


def test_the_result_may_be_a_view(encode: Encode, photo: NDArray[np.uint8]) -> None:
    data = encode(photo[:100, :80], "JPEG")
    sheet = np.zeros((32, 70, 3), np.uint8)
    DecodeResize(PixelSpec((32, 32)))(data, sheet[:, 5:37])
    assert np.array_equal(sheet[:, 5:37], make(data, 32, 32))
    assert not sheet[:, :5].any()
    assert not sheet[:, 37:].any()


def test_threads_share_one_maker(encode: Encode, photo: NDArray[np.uint8]) -> None:
    maker = DecodeResize(PixelSpec((48, 48)))
    files = [encode(photo[n : n + 100 + 40 * n, : 150 + n], f) for n, f in enumerate(["JPEG", "PNG"] * 3)]
    expected = [make(data, 48, 48) for data in files]
    wrong = []

    def work() -> None:
        out = np.empty((48, 48, 3), np.uint8)
        for _ in range(8):
            for number, data in enumerate(files):
                maker(data, out)
                if not np.array_equal(out, expected[number]):
                    wrong.append(number)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_pixels_do_not_depend_on_intels_primitives(encode: Encode, photo: NDArray[np.uint8]) -> None:
    data = encode(photo[:200], "JPEG")
    expected = make(data, 64, 64)
    cv2.ipp.setUseIPP(True)
    assert np.array_equal(make(data, 64, 64), expected)


def test_a_bad_image_is_an_image_error_and_the_next_one_is_read(encode: Encode, jpeg: bytes) -> None:
    maker = DecodeResize(PixelSpec((8, 8)))
    out = np.empty((8, 8, 3), np.uint8)
    with pytest.raises(ImageError) as error:
        maker(jpeg[:200], out)
    assert str(error.value) == "a damaged or truncated JPEG file."
    maker(jpeg, out)
    assert np.array_equal(out, make(jpeg, 8, 8))


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (np.empty((8, 8), np.uint8), "out: uint8 [8, 8]; uint8 [8, 8, 3] is needed."),
        (np.empty((8, 8, 3), np.float32), "out: float32 [8, 8, 3]; uint8 [8, 8, 3] is needed."),
    ],
)
def test_an_array_of_another_kind_is_refused(jpeg: bytes, out: NDArray[np.uint8], message: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011 the whole sentence is compared
        DecodeResize(PixelSpec((8, 8)))(jpeg, out)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((0, 8),), "size 0x8: has no pixels; 1x1 is the smallest size. Pass a larger one."),
        (((8, 8), "zoom"), "fit='zoom': is not one of 'crop', 'pad', 'stretch'. Pass one of them."),
        (
            ((8, 8), "pad", "bgr"),
            "channels 'bgr': unknown; rgb, gray, rgba and 1 to 1024 are allowed. Pass one of them.",
        ),
        (((8, 8), "pad", "rgb", 0), "max_pixels 0: too few; at least 1 is needed. Pass a larger number."),
    ],
)
def test_wrong_specs_are_refused(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(UsageError) as error:
        PixelSpec(*arguments)  # type: ignore[arg-type]
    assert str(error.value) == message


@pytest.mark.parametrize(("channels", "count"), [("rgb", 3), ("gray", 1), ("rgba", 4)])
def test_shape(channels: str, count: int) -> None:
    assert PixelSpec((3, 5), channels=channels).shape == (3, 5, count)


def test_versions_name_every_library_that_makes_pixels() -> None:
    versions = decoder_versions()
    assert list(versions) == ["opencv", "simplejpeg", "pillow"]
    assert all(versions.values())


def test_the_benchmark_runs(photo_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "decode_resize.py"))
    assert script["main"]([str(photo_folder), "--count", "3", "--rounds", "1", "--size", "32"]) == 0
    assert [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()[-5:]] == [
        "bare decode",
        "DecodeResize",
        "DecodeResize + sums",
        "decode + INTER_AREA",
        "decode + INTER_LINEAR",
    ]


def test_making_pixels_needs_no_torch() -> None:
    code = "import sys, packer.pixels.decode_resize, packer.inputs.image_sources; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
