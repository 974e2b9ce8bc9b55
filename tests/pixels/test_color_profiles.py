"""Conversion to sRGB: the colors of profiles, the modes of pictures, and files through the whole path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms

from packer import Preprocess, append_images, convert_images, open_pack
from packer.errors import ImageError, UsageError
from packer.pixels.color_profiles import describe, in_srgb, is_srgb, may_hold_profile
from packer.pixels.decode_resize import DecodeResize, PixelSpec
from tests.pixels.profiles import ADOBE, P3, PROPHOTO, SRGB, cmyk, grey, rgb

Encode = Callable[..., bytes]
EXIF_TAG = 0x0112
PROFILE = rgb(P3, name="Display P3")
TO_SRGB = np.array([[1.2249, -0.2247, 0], [-0.0420, 1.0419, 0], [-0.0197, -0.0786, 1.0979]])  # of linear P3


def picture(height: int = 48, width: int = 64) -> Image.Image:
    y, x = np.mgrid[0:height, 0:width]
    values = np.stack([255 * y // height, 255 * x // width, np.full((height, width), 90)], -1)
    return Image.fromarray(values.astype(np.uint8))


def expected(values: np.ndarray) -> np.ndarray:
    """The colors of P3 with gamma 2.2 as sRGB, computed."""
    linear = np.clip((values / 255) ** 2.2 @ TO_SRGB.T, 0, 1)
    coded = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return np.rint(255 * coded)


def test_srgb_is_known_by_its_colors() -> None:
    own = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    assert all(map(is_srgb, (b"", own, rgb(SRGB), grey(2.2))))
    assert not any(map(is_srgb, (PROFILE, rgb(ADOBE), rgb(PROPHOTO, 1.8), grey(1.5), cmyk(), b"damaged")))
    assert (describe(PROFILE), describe(b"damaged")) == ("Display P3", "damaged")


def test_colors_are_those_of_the_matrix() -> None:
    found = np.asarray(in_srgb(picture(), PROFILE)).astype(int)
    assert abs(found - expected(np.asarray(picture()))).max() <= 3


@pytest.mark.parametrize(
    ("mode", "profile", "result"),
    [
        ("RGBA", PROFILE, "RGBA"),
        ("P", PROFILE, "RGB"),
        ("L", PROFILE, "RGB"),
        ("1", PROFILE, "RGB"),
        ("L", grey(1.5), "RGB"),
        ("LA", grey(1.5), "RGBA"),
        ("CMYK", cmyk(), "RGB"),
    ],
)
def test_modes(mode: str, profile: bytes, result: str) -> None:
    image = picture().convert(mode)
    found = in_srgb(image, profile)
    assert (found.mode, found.size) == (result, image.size)
    if "A" in mode:
        assert np.array_equal(found.getchannel("A"), image.getchannel("A"))


@pytest.mark.parametrize(
    ("mode", "profile", "sentence"),
    [
        ("RGB", grey(1.5, "Dots"), "its color profile (Dots) is of GRAY colors, its pixels are RGB."),
        ("CMYK", PROFILE, "its color profile (Display P3) is of RGB colors, its pixels are CMYK."),
        ("RGB", b"no profile" * 20, "its color profile is damaged."),
        (
            "RGB",
            PROFILE.replace(b"RGB ", b"RG\xeb ", 1),
            "its color profile (Display P3) is of RG\xeb colors, its pixels are RGB.",
        ),
    ],
)
def test_profiles_that_cannot_be_applied(encode: Encode, mode: str, profile: bytes, sentence: str) -> None:
    data = encode(Image.new(mode, (8, 8)), "JPEG", icc_profile=profile)
    make = DecodeResize(PixelSpec((8, 8), icc="srgb"))
    with pytest.raises(ImageError) as error:
        make(data, np.empty((8, 8, 3), np.uint8))
    assert str(error.value) == f"{sentence} Remove the profile."


def rows(data: bytes, icc: str, channels: str = "rgb", size: tuple[int, int] = (48, 64)) -> np.ndarray:
    spec = PixelSpec(size, "stretch", channels, icc=icc)
    out = np.empty(spec.shape, np.uint8)
    DecodeResize(spec)(data, out)
    return out


@pytest.mark.parametrize("format", ["PNG", "TIFF", "WebP", "JPEG"])
def test_files_of_every_format_are_converted(encode: Encode, format: str) -> None:
    options = (
        {"lossless": True}
        if format == "WebP"
        else {"quality": 95, "subsampling": 0}
        if format == "JPEG"
        else {}
    )
    data = encode(picture(), format, icc_profile=PROFILE, **options)
    assert may_hold_profile(data)
    apart = abs(rows(data, "srgb").astype(int) - expected(rows(data, "ignore")))
    assert np.quantile(apart, 0.99) <= 3
    assert (rows(data, "srgb", "gray") != rows(data, "ignore", "gray")).any()


@pytest.mark.parametrize("format", ["PNG", "TIFF", "WebP", "JPEG", "BMP", "GIF", "PPM"])
def test_other_files_keep_their_bytes(encode: Encode, format: str) -> None:
    plain = [encode(picture(), format)]
    if format in ("PNG", "TIFF", "WebP", "JPEG"):
        plain.append(encode(picture(), format, icc_profile=rgb(SRGB)))
    else:
        assert not may_hold_profile(plain[0])
    for data in plain:
        assert np.array_equal(rows(data, "srgb"), rows(data, "ignore"))
        assert np.array_equal(rows(data, "srgb", size=(20, 30)), rows(data, "ignore", size=(20, 30)))


def test_transparent_and_turned_pictures(encode: Encode) -> None:
    image = picture().convert("RGBA")
    image.putalpha(128)
    data = encode(image, "PNG", icc_profile=PROFILE)
    found = rows(data, "srgb", "rgba")
    assert (found[..., 3] == 128).all()
    assert abs(found[..., :3] - expected(np.asarray(picture()))).max() <= 3
    exif = Image.Exif()
    exif[EXIF_TAG] = 6
    data = encode(picture(), "JPEG", quality=95, icc_profile=PROFILE, exif=exif)
    assert (
        np.quantile(
            abs(rows(data, "srgb", size=(64, 48)) - expected(rows(data, "ignore", size=(64, 48)))), 0.95
        )
        <= 4
    )


@pytest.mark.parametrize("options", [{"dtype": "uint16"}, {"channels": 3}])
def test_deep_images_are_not_converted(options: dict[str, object]) -> None:
    with pytest.raises(UsageError) as error:
        PixelSpec((8, 8), icc="srgb", **options)  # type: ignore[arg-type]
    dtype, channels = options.get("dtype", "uint8"), options.get("channels", "rgb")
    assert str(error.value) == (
        f"icc srgb: converts rgb, gray, rgba of uint8, not {dtype} with channels {channels}. Leave it out."
    )
    with pytest.raises(UsageError, match=r"^icc='p3': is not one of 'ignore', 'srgb'\. Pass one of them\.$"):
        PixelSpec((8, 8), icc="p3")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "images"
    place.mkdir()
    picture().save(place / "wide.jpg", quality=95, icc_profile=PROFILE)
    picture().save(place / "plain.jpg", quality=95)
    picture().save(place / "wide.png", icc_profile=PROFILE)
    return place


@pytest.mark.parametrize(
    "options",
    [{"size": 32}, {"size": 32, "store": "jpeg"}, {"size": "keep", "store": "jpeg"}, {"size": "max=40"}],
    ids=str,
)
def test_packs_for_any_number_of_workers(folder: Path, tmp_path: Path, options: dict[str, object]) -> None:
    for workers in (1, 2):
        convert_images(folder, tmp_path / f"{workers}.h5", icc="srgb", workers=workers, **options)  # type: ignore[arg-type]
    assert (tmp_path / "1.h5").read_bytes() == (tmp_path / "2.h5").read_bytes()
    pack = open_pack(tmp_path / "1.h5")
    assert pack.header.provenance["options"]["icc"] == "srgb"
    made = Preprocess(pack)
    again = Preprocess(made.to_dict())
    sized = made(folder / "wide.jpg")
    assert np.array_equal(sized, again(folder / "wide.jpg"))
    convert_images(folder, tmp_path / "ignored.h5", **options)  # type: ignore[arg-type]
    ignored = Preprocess(tmp_path / "ignored.h5")
    assert not np.array_equal(ignored(folder / "wide.jpg"), sized)
    assert np.array_equal(ignored(folder / "plain.jpg"), made(folder / "plain.jpg"))
    old = {name: value for name, value in ignored.to_dict().items() if name != "icc"}
    assert np.array_equal(Preprocess(old)(folder / "wide.jpg"), ignored(folder / "wide.jpg"))


def test_a_pack_that_grows_or_is_matched_converts_alike(folder: Path, tmp_path: Path) -> None:
    convert_images(folder, tmp_path / "p", size=32, icc="srgb", shards=2)
    convert_images(folder, tmp_path / "like.h5", like=tmp_path / "p")
    assert open_pack(tmp_path / "like.h5").header.provenance["options"]["icc"] == "srgb"
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "x.jpg").write_bytes((folder / "wide.jpg").read_bytes())
    append_images(tmp_path / "p", tmp_path / "more")
    pack = open_pack(tmp_path / "p")
    images = dict(zip(pack.keys(), pack.read("image"), strict=True))
    assert np.array_equal(images["x.jpg"], images["wide.jpg"])


def test_pillow_images_are_converted_like_their_files(folder: Path, tmp_path: Path) -> None:
    convert_images(folder, tmp_path / "p.h5", size=32, icc="srgb")
    made = Preprocess(tmp_path / "p.h5")
    with Image.open(folder / "wide.png") as image:
        assert np.array_equal(made(image), made(folder / "wide.png"))
