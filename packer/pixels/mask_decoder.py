"""Masks and the like: one file -> its values, exactly as they are.

    | file                           | row              | values                                            |
    |--------------------------------|------------------|---------------------------------------------------|
    | PNG, TIFF, BMP: grey           | uint8 [H, W]     | as they are; 2 and 4 bits spread over 0 to 255    |
    | PNG, TIFF, BMP: 1 bit          | uint8 [H, W]     | 0 and 255, as viewers and OpenCV have them        |
    | PNG, TIFF, BMP: palette        | uint8 [H, W]     | the indices, as in Pascal VOC; not the colours    |
    | PNG, TIFF: 16-bit grey         | uint16 [H, W]    | as they are                                       |
    | TIFF: 32-bit floats            | float32 [H, W]   | as they are                                       |
    | RGB, RGBA, grey with alpha     | uint8 [H, W, C]  | as they are, C = 3, 4, 2                          |
    | GIF                            | uint8 [H, W]     | the palette's indices, or greys as they are       |
    | WebP, JPEG                     | uint8 [H, W, C]  | as decoded; [H, W] where the channels are equal   |
    | .npy [h, w] or [h, w, C]       | [H, W(, C)]      | uint8, uint16 or float32, as they are             |

Anything else is refused, also what Pillow would narrow (16-bit RGB, 64-bit floats), and a palette where values are averaged. Of
several pages, the first is read. EXIF orientation is applied, the mask's own to the mask.
"""

from __future__ import annotations

import io
import math
import tokenize
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from PIL import ImageFile, TiffImagePlugin

from packer.codecs.jpeg import upright
from packer.errors import ImageError
from packer.pixels.image_decoder import DAMAGE, check_pixels, exif_orientation, format_of_image, opened

_FORMATS_READ = frozenset(("PNG", "TIFF", "BMP", "WebP", "GIF", "JPEG"))
_KINDS = ("|u1", "<u2", "<f4")
_MODES = frozenset(("1", "L", "P", "I;16", "I;16B", "F", "LA", "RGB", "RGBA"))
_SAMPLE_FORMAT, _SIGNED = 339, 2  # TIFF 6.0, section 19


class MaskKind(NamedTuple):
    """The type of a mask's values. dtype: numpy type string, one of _KINDS; channels: 1 or more."""

    dtype: str
    channels: int

    @classmethod
    def of(cls, values: NDArray[Any]) -> MaskKind:
        """Return the type of [h, w] or [h, w, C]."""
        return cls(values.dtype.newbyteorder("<").str, 1 if values.ndim == 2 else values.shape[2])

    def __str__(self) -> str:
        """Return the type as a message has it."""
        name = np.dtype(self.dtype).name
        return name if self.channels == 1 else f"{name} in {self.channels} channels"


def decode_mask(data: bytes, max_pixels: int, channels: int | None, *, palettes: bool = True) -> NDArray[Any]:
    """Read one file, upright.

    channels: how many are expected, None: any. palettes: False refuses indices of a palette.
    Returns: [h, w], or [h, w, C] for several channels, of a dtype in _KINDS, of either byte order. Raises: ImageError.
    """
    if not data:
        raise ImageError("empty (0 bytes).")
    if data.startswith(npy.MAGIC_PREFIX):
        return decode_npy(data, max_pixels)
    name, _ = format_of_image(data)
    if name not in _FORMATS_READ:
        raise ImageError("not a PNG, TIFF, BMP, WebP, GIF, JPEG or npy file; those are read.")
    values, orientation = decode_picture(data, max_pixels, palettes)
    # WebP has no grey of its own, and JPEG files of masks are often in colour.
    colored = name in ("WebP", "JPEG") and values.ndim == 3
    if colored and channels in (1, None) and (values == values[..., :1]).all():
        values = values[..., 0]
    return upright(values, orientation)


def decode_npy(data: bytes, max_pixels: int) -> NDArray[Any]:
    """Read an array as a view of the file's bytes: whatever its header announces, nothing is allocated."""
    stream = io.BytesIO(data)
    try:
        version = npy.read_magic(stream)
        reads = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        shape, fortran, dtype = reads(stream)
    except (*DAMAGE, tokenize.TokenError):
        raise ImageError("a damaged or truncated npy file.") from None
    if dtype.newbyteorder("<").str not in _KINDS:
        raise ImageError(f"its values are {dtype.name}; uint8, uint16 and float32 are read.")
    if len(shape) not in (2, 3) or min(shape) < 1:
        raise ImageError(
            f"its shape is {list(shape)}; [height, width] and [height, width, channels] are read."
        )
    check_pixels(shape[0], shape[1], max_pixels)
    if len(data) - stream.tell() != math.prod(shape) * dtype.itemsize:
        raise ImageError("a damaged or truncated npy file.")
    values = np.frombuffer(data, dtype, offset=stream.tell()).reshape(shape, order="F" if fortran else "C")
    return values[..., 0] if values.shape[2:] == (1,) else values


def decode_picture(data: bytes, max_pixels: int, palettes: bool) -> tuple[NDArray[Any], int]:
    """Read a picture as it is stored. Returns: [h, w] or [h, w, C], and its EXIF orientation."""
    with opened(data, max_pixels, _inexact) as image:
        if not _is_exact(image):
            raise _inexact()
        if image.mode == "P" and not palettes:
            raise ImageError(
                "holds indices of a palette, and between two of these there is no third; soft values are grey. "
                "Save it as grey."
            )
        image.load()
        return np.asarray(image.convert("L") if image.mode == "1" else image), exif_orientation(image)


def _is_exact(image: ImageFile.ImageFile) -> bool:
    """Say whether Pillow would give the values of an opened file as they are."""
    if image.mode not in _MODES:
        return False
    if isinstance(image, TiffImagePlugin.TiffImageFile) and _SIGNED in image.tag_v2.get(_SAMPLE_FORMAT, ()):
        return False
    # The raw mode says what Pillow unpacks: of "RGB;16B" it keeps 8 bits a channel.
    arguments = image.tile[0].args if image.tile else ""
    raw = arguments if isinstance(arguments, str) else str((arguments or ("",))[0])
    return "16" not in raw or image.mode.startswith("I;16")


def _inexact() -> ImageError:
    return ImageError(
        "its pixels cannot be read exactly; grey of 8 and 16 bits, palettes, 8-bit RGB and 32-bit floats can. Store it as .npy."
    )
