"""Files whose values are kept exactly: images of 16 bits per channel or of any number of bands, and masks.

Images (`decode_deep`):

    | input                         | gray, rgb in uint16                  | a number of bands               |
    |-------------------------------|--------------------------------------|---------------------------------|
    | PNG, TIFF: 16-bit grey        | unchanged; replicated for rgb        | unchanged                       |
    | PNG, TIFF: 16-bit RGB         | unchanged; Rec. 601 luma for gray    | unchanged                       |
    | TIFF of 9 to 15 bits          | scaled to 0 to 65,535, then as above | unchanged                       |
    | TIFF in which 0 is white      | inverted                             | unchanged                       |
    | alpha                         | composited on white                  | a band                          |
    | PGM of more than 255 levels   | scaled to 0 to 65,535                | scaled to 0 to 65,535           |
    | TIFF of bands, .npy [h, w, C] | refused                              | unchanged                       |
    | 8 bits per channel, also JPEG | as in image_decoder.py, times 257    | unchanged; their rows are uint8 |
    | palette, CMYK                 | its colours, as 8 bits               | refused                         |
    | AVIF, 16-bit PPM, other types | refused                              | refused                         |

Times 257 maps 255, the largest 8-bit value, to 65,535, and 0 to 0. PNG's specification prescribes this for a
change of depth; it also reverts optimizers that reduce 16-bit files to 8 bits if no value needs more. TIFF
files of 9 to 15 bits state their depth, and their largest number becomes 65,535; 12-bit values in a file that
states 16 bits cannot be recognised. Bands have no white and are never changed: files with another number of
bands, or another type, are refused.

tifffile and imagecodecs read TIFF files that Pillow does not read exactly. OpenCV reads PNG files with 16-bit
colours; it refuses damaged and truncated ones (see image_decoder.py). The first of several pages is read.
EXIF orientation is applied.

Masks and similar files (`decode_mask`):

    | file                           | row              | values                                            |
    |--------------------------------|------------------|---------------------------------------------------|
    | PNG, TIFF, BMP: grey           | uint8 [H, W]     | unchanged; 2 and 4 bits scaled to 0 to 255        |
    | PNG, TIFF, BMP: 1 bit          | uint8 [H, W]     | 0 and 1, as NumPy reads it; 0 and 255 if averaged |
    | PNG, TIFF, BMP: palette        | uint8 [H, W]     | the indices, as in Pascal VOC; not the colours    |
    | PNG, TIFF: 16-bit grey         | uint16 [H, W]    | unchanged                                         |
    | TIFF: 32-bit floats            | float32 [H, W]   | unchanged                                         |
    | RGB, RGBA, grey with alpha     | uint8 [H, W, C]  | unchanged, C = 3, 4, 2                            |
    | GIF                            | uint8 [H, W]     | the palette's indices, or unchanged greys         |
    | WebP, JPEG                     | uint8 [H, W, C]  | as decoded; [H, W] if the channels are equal      |
    | .npy [h, w] or [h, w, C]       | [H, W(, C)]      | uint8, uint16 or float32, unchanged               |

Other files are refused, also those that Pillow would narrow (16-bit RGB, 64-bit floats), and a palette where
values are averaged. The first of several pages is read. EXIF orientation is applied; a mask has its own.
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
    ScratchBuffers,
    decode,
)
from packer.pixels.image_files import (
    TiffLevels,
    check_pixels,
    exif_orientation,
    format_of_image,
    integer_orientation,
    is_short_of_memory,
    loses_bits,
    opened,
    read_image_header,
)
from packer.pixels.quiet_stderr import QuietStderr

_MASK_FORMATS = frozenset(("PNG", "TIFF", "BMP", "WebP", "GIF", "JPEG"))
_KINDS = ("|u1", "<u2", "<f4")
_MODES = frozenset(("1", "L", "P", "I;16", "I;16B", "F", "LA", "RGB", "RGBA"))
_INEXACT = (
    "its pixels cannot be read exactly; grey of 8 and 16 bits, palettes, 8-bit RGB and 32-bit floats can."
    " Store it as .npy."
)
_SAMPLE_FORMAT, _SIGNED = 339, 2  # TIFF 6.0, section 19
_TYPES = (np.dtype(np.uint8), np.dtype(np.uint16))
_MOST = 65_535
_DEPTH_AT, _COLOR_AT = 24, 25  # of a PNG file: bytes of its first chunk
_DEEP_PNG = (b"\x10\2", b"\x10\4", b"\x10\6")  # 16 bits, and PNG's codes for several channels
_COLOR_MODES = frozenset(("P", "PA", "CMYK", "YCbCr"))
"""Pillow modes whose channels are not bands."""
_LUMA = np.array((19_595, 38_470, 7_471), np.uint32)  # in units of 1/65536, as in Pillow
_UNASSOCIATED_ALPHA = 2  # TIFF 6.0, section 18


def decode_deep(data: bytes, channels: str | int, dtype: str, max_pixels: int) -> DecodedImage:
    """Decode an image of 16 bits or of bands, upright. Raises ImageError.

    channels, dtype: as in PixelSpec. `narrowed` of the result: the image had 8 bits per channel, and was
    widened to 16.
    """
    if isinstance(channels, int):
        values, widened = _read_bands(data, channels, np.dtype(dtype), max_pixels), False
    else:
        values, widened = _colors(data, channels, max_pixels)
    height, width = values.shape[:2]
    return DecodedImage(values, height, width, 1, 1, False, widened)


def count_bands(data: bytes, max_pixels: int) -> int:
    """Return the number of bands of an image file. Raises ImageError."""
    return int(_read_values(data, max_pixels).values.shape[2])


class _Values(NamedTuple):
    """A file's values, upright.

    values: [h, w, C], uint8 or uint16; alpha: True if the last channel is alpha (0: invisible); levels: of a
    TIFF file.
    """

    values: NDArray[Any]
    alpha: bool = False
    levels: TiffLevels = TiffLevels()


def _read_bands(data: bytes, bands: int, dtype: np.dtype[Any], max_pixels: int) -> NDArray[Any]:
    """Return the values [h, w, bands] of a file. Raises ImageError for another dtype or number of bands."""
    values = _read_values(data, max_pixels).values
    if values.dtype != dtype:
        raise ImageError(
            f"its values are {values.dtype.name}, and {dtype.name} is packed; one type is kept, as it "
            f"is. Pass dtype={values.dtype.name!r} for such files."
        )
    if values.shape[2] != bands:
        many = "channel" if values.shape[2] == 1 else "channels"
        raise ImageError(f"it has {values.shape[2]:,} {many}, and {bands:,} are packed.")
    return values


def _colors(data: bytes, channels: str, max_pixels: int) -> tuple[NDArray[np.uint16], bool]:
    """Return uint16 [h, w, 1 or 3], upright, and True if 8-bit values were widened."""
    name, _ = format_of_image(data)
    header = read_image_header(data)
    if name == "AVIF":
        raise ImageError("an AVIF file; only 8 bits per channel of it can be read.")
    if not (header is None or header.narrowed):
        image = decode(data, channels, max_pixels, lambda *_: 1.0, ScratchBuffers())  # JPEG at full size
        pixels = upright(image.pixels[..., : 1 if channels == "gray" else 3], image.orientation)
        return pixels.astype(np.uint16) * np.uint16(257), True
    values, alpha, levels = _read_values(data, max_pixels)
    count = values.shape[2] - alpha
    if values.dtype != np.uint16 or count not in (1, 3):
        raise ImageError(
            f"it has {values.shape[2]:,} channels of {values.dtype.name}; grey and RGB of 16 bits "
            f"become {channels}. Pass channels={values.shape[2]!r} to keep them as they are."
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


# Reading files without changing values


def _read_values(data: bytes, max_pixels: int) -> _Values:
    """Decode a PNG, PPM, TIFF or other grey or RGB file without changing its values. Raises ImageError."""
    name, _ = format_of_image(data)
    if name == "PNG" and data[_DEPTH_AT : _COLOR_AT + 1] in _DEEP_PNG:
        return _read_png(data, max_pixels)
    if name == "PPM":
        return _read_ppm(data, max_pixels)
    header = read_image_header(data)
    # Pillow cannot open it, or would drop bands, or the low bytes of several channels.
    if name == "TIFF" and (
        header is None or not header.all_bands or (header.narrowed and not header.mode.startswith("I;16"))
    ):
        return _read_tiff(data, max_pixels)
    if name == "AVIF" or (header is not None and header.mode in _COLOR_MODES):
        raise ImageError(
            "its colours (a palette, CMYK, YCbCr or AVIF) can be read, but not as bands."
            " Pass channels='rgb' for such files."
        )
    if header is not None and header.mode in ("I", "F"):
        raise ImageError("its pixels are signed, or of 32 bits; uint8 and uint16 are packed.")
    values = _with_channels(decode_mask(data, max_pixels, None, classes=False, exact=True))
    return _Values(values) if header is None else _Values(values, values.shape[2] in (2, 4), header.levels)


def _with_channels(values: NDArray[Any]) -> NDArray[Any]:
    """Return [h, w, C], also for [h, w], in this machine's byte order. Raises ImageError for other dtypes."""
    native = values.dtype.newbyteorder("=")
    if native not in _TYPES:
        raise ImageError(f"its values are {native.name}; uint8 and uint16 are packed.")
    return (values[..., None] if values.ndim == 2 else values).astype(native, copy=False)


def _read_png(data: bytes, max_pixels: int) -> _Values:
    """Read a PNG file with several channels of 16 bits, which Pillow would narrow to 8."""
    decoded = None
    with opened(data, max_pixels) as image:
        with suppress(cv2.error):
            decoded = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
        if decoded is None or decoded.dtype != np.uint16 or decoded.ndim != 3:
            raise ValueError
        orientation = exif_orientation(image)
    stored = decoded[..., [2, 1, 0, 3][: decoded.shape[2]]]
    if data[_COLOR_AT] == 4:  # OpenCV expands grey with alpha to four channels
        stored = stored[..., [0, 3]]
    return _Values(upright(np.asarray(stored, np.uint16), orientation), stored.shape[2] in (2, 4))


def _read_ppm(data: bytes, max_pixels: int) -> _Values:
    """Read PPM and PGM. Pillow scales levels to 8 bits; for PGM with more than 255 levels to 16."""
    with opened(data, max_pixels) as image:
        if image.mode == "RGB" and loses_bits(image):
            raise ImageError("a PPM file with 16-bit colours; these are read only from PNG and TIFF.")
        image.load()
        values = np.asarray(image.convert("L") if image.mode == "1" else image)
        return _Values(_with_channels(values.astype(np.uint16) if image.mode == "I" else values))


def _read_tiff(data: bytes, max_pixels: int) -> _Values:
    """Read the first page of a TIFF file with any number of bands, of 8 or 16 bits."""
    try:
        import tifffile
    except ImportError:
        raise _package_missing("tifffile") from None
    try:
        with QuietStderr(), tifffile.TiffFile(io.BytesIO(data)) as file:
            page = file.pages.first
            check_pixels(page.imagelength, page.imagewidth, max_pixels)
            if page.axes not in ("YX", "YXS", "SYX") or page.dtype not in _TYPES:
                kind = "of no known type" if page.dtype is None else page.dtype.name
                raise ImageError(
                    f"its pixels are {kind} [{', '.join(map(str, page.shape))}]; uint8 and uint16 [h, w,"
                    " bands] are packed."
                )
            values = page.asarray(maxworkers=1)
            if values.ndim != len(page.axes):
                raise ValueError("no pixels")  # tifffile returned an empty array
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
            raise _package_missing("imagecodecs") from None
        if is_short_of_memory(0):
            raise MemoryError from None
        raise ImageError("a damaged or truncated TIFF file.") from None
    return _Values(upright(_with_channels(values), orientation), alpha, levels)


def _package_missing(package: str) -> ImageError:
    return ImageError(
        f"a TIFF file that needs {package}, which is not installed; 'pip install {package}' installs it."
    )


class MaskKind(NamedTuple):
    """The type of a mask's values. dtype: NumPy type string, one of _KINDS or "|b1"; channels: 1 or more."""

    dtype: str
    channels: int

    @classmethod
    def from_values(cls, values: NDArray[Any]) -> MaskKind:
        """Return the type of values [h, w] or [h, w, C]."""
        return cls(values.dtype.newbyteorder("<").str, 1 if values.ndim == 2 else values.shape[2])

    def __str__(self) -> str:
        """Return the type in words, for messages."""
        name = "1 bit a pixel" if self.dtype == "|b1" else np.dtype(self.dtype).name
        return name if self.channels == 1 else f"{name} in {self.channels} channels"


def decode_mask(
    data: bytes, max_pixels: int, channels: int | None, *, classes: bool = True, exact: bool = False
) -> NDArray[Any]:
    """Read a mask file, upright. Raises ImageError.

    channels: expected number, None for any. classes: values are classes, so palette indices are read and
    1 bit is bool; otherwise palettes are refused and 1 bit is 0 and 255. exact: keep several channels even
    if they are equal.
    Returns: [h, w], or [h, w, C] for several channels, with a dtype in _KINDS in either byte order, or bool.
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
        if image.mode == "P" and not classes:
            raise ImageError(
                "holds palette indices, which cannot be averaged; soft values are grey. Save it as grey."
            )
        image.load()
        values = np.asarray(image.convert("L") if image.mode == "1" else image)
        if image.mode == "1" and classes:
            values = values > 0  # NumPy's view of such an image has the bytes 0 and 255
        orientation = exif_orientation(image)
    # WebP has no grey mode, and JPEG masks are often saved in colour.
    colored = name in ("WebP", "JPEG") and values.ndim == 3 and not exact
    if colored and channels in (1, None) and (values == values[..., :1]).all():
        values = values[..., 0]
    return upright(values, orientation)


def decode_npy(data: bytes, max_pixels: int) -> NDArray[Any]:
    """Read an array as a view of the file's bytes; its header cannot cause an allocation."""
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
    """Return True if Pillow returns the values of an opened file unchanged."""
    if image.mode not in _MODES:
        return False
    if isinstance(image, TiffImagePlugin.TiffImageFile) and _SIGNED in image.tag_v2.get(_SAMPLE_FORMAT, ()):
        return False
    return image.mode.startswith("I;16") or not loses_bits(image)
