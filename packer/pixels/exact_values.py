"""Files whose values are kept: images of 16 bits a channel or of any number of bands, and masks, exactly as they are.

Images (`decode_deep`):

    | input                            | gray, rgb in uint16                           | a number of bands                |
    |----------------------------------|-----------------------------------------------|----------------------------------|
    | PNG, TIFF: 16-bit grey           | as it is; replicated for rgb                  | as it is                         |
    | PNG, TIFF: 16-bit RGB            | as it is; Rec. 601 luma for gray              | as it is                         |
    | TIFF of 9 to 15 bits             | stretched to 0 to 65,535, then so             | as it is                         |
    | TIFF in which 0 is white         | inverted                                      | as it is                         |
    | alpha                            | composited on white                           | a band                           |
    | PGM of more than 255 levels      | stretched to 0 to 65,535                      | so                               |
    | TIFF of bands, .npy [h, w, C]    | refused                                       | as they are                      |
    | 8 bits a channel, JPEG among it  | as in image_decoder.py, times 257             | as they are; their rows are uint8 |
    | palette, CMYK                    | its colours, as 8 bits                        | refused                          |
    | AVIF, 16-bit PPM, other types    | refused                                       | refused                          |

Times 257: 255, the most of 8 bits, becomes 65,535, and 0 stays 0. It is what PNG's specification says of a change of depth, and
undoes what optimizers do to 16-bit files in which no value needs more than 8. TIFF files of 9 to 15 bits tell their depth, too, and
their largest number becomes 65,535; of 12 bits in a file that says 16 nothing is known. Bands have no white, so theirs are never changed:
a file of another number of bands, or another type, is refused.

TIFF files that Pillow does not read exactly are left to tifffile and imagecodecs. PNG files of 16-bit colours are left to OpenCV,
which refuses damaged and truncated ones, as image_decoder.py says. Of several pages, the first is read. EXIF orientation is applied.

Masks and the like (`decode_mask`):

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
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from PIL import ImageFile, TiffImagePlugin

from packer.codecs.jpeg import EXIF_TAG, upright
from packer.errors import ImageError, PackerError
from packer.opencv import cv2
from packer.pixels.image_decoder import (
    DecodedImage,
    QuietStderr,
    ScratchBuffers,
    TiffLevels,
    check_pixels,
    decode,
    exif_orientation,
    format_of_image,
    integer_orientation,
    is_short_of_memory,
    loses_bits,
    opened,
    read_image_header,
)
from packer.sentence import Option

_MASK_FORMATS = frozenset(("PNG", "TIFF", "BMP", "WebP", "GIF", "JPEG"))
_KINDS = ("|u1", "<u2", "<f4")
_MODES = frozenset(("1", "L", "P", "I;16", "I;16B", "F", "LA", "RGB", "RGBA"))
_INEXACT = "its pixels cannot be read exactly; grey of 8 and 16 bits, palettes, 8-bit RGB and 32-bit floats can. Store it as .npy."
_SAMPLE_FORMAT, _SIGNED = 339, 2  # TIFF 6.0, section 19
_TYPES = (np.dtype(np.uint8), np.dtype(np.uint16))
_MOST = 65_535
_DEPTH_AT, _COLOR_AT = 24, 25  # of a PNG file: bytes of its first chunk
_DEEP_PNG = (b"\x10\2", b"\x10\4", b"\x10\6")  # 16 bits, and PNG's numbers for pixels of several channels
_COLOR_MODES = frozenset(("P", "PA", "CMYK", "YCbCr"))
"""Modes of Pillow that are no bands."""
_LUMA = np.array((19_595, 38_470, 7_471), np.uint32)  # 65536ths, as Pillow has them
_UNASSOCIATED_ALPHA = 2  # TIFF 6.0, section 18


def decode_deep(data: bytes, channels: str | int, dtype: str, max_pixels: int) -> DecodedImage:
    """Decode an image of 16 bits or of bands, upright. channels, dtype: as of PixelSpec. Raises: ImageError.

    narrowed: it had 8 bits a channel, and was widened to 16.
    """
    if isinstance(channels, int):
        values, widened = _bands(data, channels, np.dtype(dtype), max_pixels), False
    else:
        values, widened = _colors(data, channels, max_pixels)
    height, width = values.shape[:2]
    return DecodedImage(values, height, width, 1, 1, False, widened)


def count_bands(data: bytes, max_pixels: int) -> int:
    """Return the number of bands of an image file. Raises ImageError."""
    return int(_read(data, max_pixels).values.shape[2])


class _Values(NamedTuple):
    """Values as a file has them, upright.

    values: [h, w, C], uint8 or uint16. alpha: the last channel is one, 0 where nothing is seen. levels: of a TIFF file.
    """

    values: NDArray[Any]
    alpha: bool = False
    levels: TiffLevels = TiffLevels()


def _bands(data: bytes, bands: int, dtype: np.dtype[Any], max_pixels: int) -> NDArray[Any]:
    values = _read(data, max_pixels).values
    if values.dtype != dtype:
        raise ImageError(
            f"its values are {values.dtype.name}, and {dtype.name} is packed; one type is kept, as it "
            f"is. Pass {Option('dtype', values.dtype.name)} for such files."
        )
    if values.shape[2] != bands:
        many = "channel" if values.shape[2] == 1 else "channels"
        raise ImageError(f"it has {values.shape[2]:,} {many}, and {bands:,} are packed.")
    return values


def _colors(data: bytes, channels: str, max_pixels: int) -> tuple[NDArray[np.uint16], bool]:
    """Return uint16 [h, w, 1 or 3], upright, and True if they were widened."""
    name, _ = format_of_image(data)
    header = read_image_header(data)
    if name == "AVIF":
        raise ImageError("an AVIF file, of which 8 bits a channel are read, whatever it has.")
    if not (header is None or header.narrowed):
        image = decode(data, channels, max_pixels, lambda *_: 1.0, ScratchBuffers())  # JPEG at its full size
        pixels = upright(image.pixels[..., : 1 if channels == "gray" else 3], image.orientation)
        return pixels.astype(np.uint16) * np.uint16(257), True
    values, alpha, levels = _read(data, max_pixels)
    count = values.shape[2] - alpha
    if values.dtype != np.uint16 or count not in (1, 3):
        raise ImageError(
            f"it has {values.shape[2]:,} channels of {values.dtype.name}; grey and RGB of 16 bits "
            f"become {channels}. Pass {Option('channels', values.shape[2])} to keep them as they are."
        )
    opacity, values = values[..., count:], levels.stretched(values[..., :count])
    if alpha:
        values = _on_white(values, levels.scaled(opacity))
    if count == 3 and channels == "gray":
        luma = values.astype(np.uint32) @ _LUMA
        return ((luma + np.uint32(1 << 15)) >> 16).astype(np.uint16)[..., None], False
    return np.repeat(values, 3, axis=2) if count == 1 and channels == "rgb" else values, False


def _on_white(colors: NDArray[np.uint16], opacity: NDArray[np.uint16]) -> NDArray[np.uint16]:
    alpha = opacity.astype(np.uint64)
    mixed = colors * alpha + np.uint64(_MOST) * (np.uint64(_MOST) - alpha)
    return ((mixed + np.uint64(_MOST // 2)) // np.uint64(_MOST)).astype(np.uint16)


# Files, with their values as they are


def _read(data: bytes, max_pixels: int) -> _Values:
    name, _ = format_of_image(data)
    if name == "PNG" and data[_DEPTH_AT : _COLOR_AT + 1] in _DEEP_PNG:
        return _read_png(data, max_pixels)
    if name == "PPM":
        return _read_ppm(data, max_pixels)
    header = read_image_header(data)
    # Pillow does not open it, or would leave out bands, or the low bytes of several.
    if name == "TIFF" and (
        header is None or not header.all_bands or (header.narrowed and not header.mode.startswith("I;16"))
    ):
        return _read_tiff(data, max_pixels)
    if name == "AVIF" or (header is not None and header.mode in _COLOR_MODES):
        raise ImageError(
            "its colours (a palette, CMYK, YCbCr or AVIF) are read, and no bands."
            f" Pass {Option('channels', 'rgb')} for such files."
        )
    if header is not None and header.mode in ("I", "F"):
        raise ImageError("its pixels are signed, or of 32 bits; uint8 and uint16 are packed.")
    values = _with_channels(decode_mask(data, max_pixels, None, palettes=False, exact=True))
    return _Values(values) if header is None else _Values(values, values.shape[2] in (2, 4), header.levels)


def _with_channels(values: NDArray[Any]) -> NDArray[Any]:
    """Return [h, w, C] of [h, w] too, in the byte order of this machine. Raises ImageError for values of another type."""
    native = values.dtype.newbyteorder("=")
    if native not in _TYPES:
        raise ImageError(f"its values are {native.name}; uint8 and uint16 are packed.")
    return (values[..., None] if values.ndim == 2 else values).astype(native, copy=False)


def _read_png(data: bytes, max_pixels: int) -> _Values:
    """Read a PNG file of 16 bits in each of several channels, which Pillow would narrow."""
    found = None
    with opened(data, max_pixels) as image:
        with suppress(cv2.error):
            found = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
        if found is None or found.dtype != np.uint16 or found.ndim != 3:
            raise ValueError
        orientation = exif_orientation(image)
    stored = found[..., [2, 1, 0, 3][: found.shape[2]]]
    if data[_COLOR_AT] == 4:  # OpenCV makes grey and alpha four channels
        stored = stored[..., [0, 3]]
    return _Values(upright(np.asarray(stored, np.uint16), orientation), stored.shape[2] in (2, 4))


def _read_ppm(data: bytes, max_pixels: int) -> _Values:
    """Read PPM and PGM; Pillow stretches levels to 8 bits, those of PGM of more than 255 to 16."""
    with opened(data, max_pixels) as image:
        if image.mode == "RGB" and loses_bits(image):
            raise ImageError("a PPM file of colours of 16 bits; those are read from PNG and TIFF.")
        image.load()
        values = np.asarray(image.convert("L") if image.mode == "1" else image)
        return _Values(_with_channels(values.astype(np.uint16) if image.mode == "I" else values))


def _read_tiff(data: bytes, max_pixels: int) -> _Values:
    """Read the first page of a TIFF file: any number of bands, of 8 or 16 bits."""
    try:
        import tifffile
    except ImportError:
        raise _needs("tifffile") from None
    try:
        with QuietStderr(), tifffile.TiffFile(io.BytesIO(data)) as file:
            page = file.pages.first
            check_pixels(page.imagelength, page.imagewidth, max_pixels)
            if page.axes not in ("YX", "YXS", "SYX") or page.dtype not in _TYPES:
                kind = "of no known type" if page.dtype is None else page.dtype.name
                raise ImageError(
                    f"its pixels are {kind} [{', '.join(map(str, page.shape))}]; uint8 and uint16 [h, w, bands] are packed."
                )
            values = page.asarray(maxworkers=1)
            if values.ndim != len(page.axes):
                raise ValueError("no pixels")  # tifffile gives an empty array
            values = np.moveaxis(values, 0, -1) if page.axes == "SYX" else values
            alpha = values.ndim == 3 and page.extrasamples[-1:] == (_UNASSOCIATED_ALPHA,)
            tag = page.tags.get(EXIF_TAG)
            orientation = integer_orientation(None if tag is None else tag.value)
            bits = page.bitspersample if isinstance(page.bitspersample, int) else page.dtype.itemsize * 8
            levels = TiffLevels(bits, page.photometric == tifffile.PHOTOMETRIC.MINISWHITE)
    except PackerError:
        raise
    except Exception as error:
        if "imagecodecs" in str(error):
            raise _needs("imagecodecs") from None
        if is_short_of_memory(0):
            raise MemoryError from None
        raise ImageError("a damaged or truncated TIFF file.") from None
    return _Values(upright(_with_channels(values), orientation), alpha, levels)


def _needs(package: str) -> ImageError:
    return ImageError(
        f"a TIFF file that is read with {package}, which is not installed; 'pip install {package}' installs it."
    )


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


def decode_mask(
    data: bytes, max_pixels: int, channels: int | None, *, palettes: bool = True, exact: bool = False
) -> NDArray[Any]:
    """Read one file, upright.

    channels: how many are expected, None: any. palettes: False refuses indices of a palette. exact: equal channels stay several.
    Returns: [h, w], or [h, w, C] for several channels, of a dtype in _KINDS, of either byte order. Raises: ImageError.
    """
    if not data:
        raise ImageError("empty (0 bytes).")
    if data.startswith(npy.MAGIC_PREFIX):
        return decode_npy(data, max_pixels)
    name, _ = format_of_image(data)
    if name not in _MASK_FORMATS:
        raise ImageError("not a PNG, TIFF, BMP, WebP, GIF, JPEG or npy file; those are read.")
    with opened(data, max_pixels, _INEXACT) as image:
        if not _is_exact(image):
            raise ImageError(_INEXACT)
        if image.mode == "P" and not palettes:
            raise ImageError(
                "holds indices of a palette, and between two of these there is no third; soft values are grey. "
                "Save it as grey."
            )
        image.load()
        values = np.asarray(image.convert("L") if image.mode == "1" else image)
        orientation = exif_orientation(image)
    # WebP has no grey of its own, and JPEG files of masks are often in colour.
    colored = name in ("WebP", "JPEG") and values.ndim == 3 and not exact
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
    except Exception:
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


def _is_exact(image: ImageFile.ImageFile) -> bool:
    """Say whether Pillow would give the values of an opened file as they are."""
    if image.mode not in _MODES:
        return False
    if isinstance(image, TiffImagePlugin.TiffImageFile) and _SIGNED in image.tag_v2.get(_SAMPLE_FORMAT, ()):
        return False
    return image.mode.startswith("I;16") or not loses_bits(image)
