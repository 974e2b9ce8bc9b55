"""ICC color profiles of image files, and conversion of pictures to sRGB by LittleCMS, through Pillow.

Pixels are read as stored unless ``icc="srgb"``. A profile counts as sRGB if it moves no color of a grid by
more than a few levels: names of profiles differ, and tiny ones have none.
"""

from __future__ import annotations

import io
from functools import lru_cache
from itertools import product

import numpy as np
from PIL import Image, ImageCms

from packer.errors import ImageError

ICC = ("ignore", "srgb")
"""Values of the option `icc`."""

_SAME_LEVELS = 4  # largest distance of a profile that counts as sRGB; rounding in profiles gives 1 or 2
_MARKS = {b"\xff\xd8": b"ICC_PROFILE\0", b"\x89P": b"iCCP", b"RI": b"ICCP"}
"""First bytes of JPEG, PNG and WebP files -> bytes that each profile in them follows."""
_NONE = (b"GIF", b"BM", b"P")  # GIF, BMP, PPM: Pillow reads no profile from these
_GRAY = ("1", "L", "LA")
_SPACE = slice(16, 20)  # ICC.1: the header's data color space


def may_hold_profile(data: bytes) -> bool:
    """Return False if an image file surely has no color profile; takes 1 us for a photo of 28 kB."""
    mark = _MARKS.get(data[:2])
    return mark in data if mark is not None else not data.startswith(_NONE)


def is_srgb(profile: bytes) -> bool:
    """Return True for no profile, and for one that is sRGB, or nearly so; False for a damaged one."""
    try:
        return not profile or _is_srgb(profile)
    except ImageError:
        return False


def describe(profile: bytes) -> str:
    """Return the name of a color profile."""
    try:
        return ImageCms.getProfileDescription(_open_profile(profile)).strip() or "without a name"
    except (ImageCms.PyCMSError, ImageError, UnicodeDecodeError):
        return "damaged"


def in_srgb(image: Image.Image, profile: bytes) -> Image.Image:
    """Return a picture of 8 bits with the colors of its profile as sRGB: "RGB", or "RGBA" if it has alpha.

    Raises: ImageError if the profile is damaged, or of other colors than the picture.
    """
    space = _space(profile)
    if space == "GRAY" and image.mode in _GRAY:
        alpha = image.getchannel("A") if image.mode == "LA" else None
        result = _transformed(image.convert("L"), profile)
        if alpha is not None:
            result.putalpha(alpha)
        return result
    if space == "RGB" and image.mode != "CMYK":
        return _transformed(image.convert("RGBA" if image.has_transparency_data else "RGB"), profile)
    if space == image.mode == "CMYK":
        return _transformed(image, profile)
    raise ImageError(
        f"its color profile ({describe(profile)}) is of {space} colors, its pixels are {image.mode}. Remove "
        "the"
        " profile."
    )


def _transformed(image: Image.Image, profile: bytes) -> Image.Image:
    result = ImageCms.applyTransform(image, _to_srgb(profile, image.mode))
    assert result is not None
    result.info.clear()  # the transparent key is of the old colors, and the profile is applied
    return result


def _open_profile(profile: bytes) -> ImageCms.ImageCmsProfile:
    """Open an ICC profile. Raises ImageError if it is damaged."""
    try:
        return ImageCms.ImageCmsProfile(io.BytesIO(profile))
    except (OSError, ImageCms.PyCMSError):
        raise ImageError("its color profile is damaged. Remove the profile.") from None


@lru_cache(maxsize=64)
def _space(profile: bytes) -> str:
    """Return the colors that a profile is for: "RGB", "GRAY", "CMYK" or another."""
    _open_profile(profile)
    return profile[_SPACE].decode("latin-1").strip()


@lru_cache(maxsize=64)
def _to_srgb(profile: bytes, mode: str) -> ImageCms.ImageCmsTransform:
    """Return the transform from a profile to sRGB. mode: of the picture."""
    opened, srgb = _open_profile(profile), ImageCms.createProfile("sRGB")
    try:
        return ImageCms.buildTransform(opened, srgb, mode, "RGBA" if mode == "RGBA" else "RGB")
    except ImageCms.PyCMSError:
        raise ImageError(
            f"its color profile ({describe(profile)}) cannot be applied. Remove the profile."
        ) from None


@lru_cache(maxsize=64)
def _is_srgb(profile: bytes) -> bool:
    if (space := _space(profile)) not in ("RGB", "GRAY"):
        return False
    levels = range(0, 256, 51)
    colors = np.array(
        [[*product(levels, repeat=3)] if space == "RGB" else [(x, x, x) for x in levels]], np.uint8
    )
    image = Image.fromarray(colors if space == "RGB" else np.ascontiguousarray(colors[..., 0]))
    moved = np.asarray(_transformed(image, profile)).astype(int) - colors
    return bool(abs(moved).max() <= _SAME_LEVELS)
