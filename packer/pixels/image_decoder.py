"""Encoded images to 8-bit pixels as stored: not turned, not resized.

JPEG is decoded by simplejpeg (libjpeg-turbo), other formats by Pillow. Pillow also decides about files that
the others refuse: it accepts harmless oddities and refuses truncated files. The simplest PNG files are
decoded by OpenCV: 8 bits, grey or RGB, without chunks that change their appearance. Its pixels equal Pillow's
to the byte, and it is faster: 5.0 against 5.8 ms for a photo of 400x533, 45 against 72 us for 32x32. Pillow
decodes files that OpenCV refuses. (OpenCV is the stricter one: of 6,000 files with a flipped bit, 16 zeroed
bytes or a missing end it accepted none that Pillow refuses, in versions 4.10, 4.11 and 5.0.) Results by
input:

    | input                        | rgb                          | gray          | rgba                |
    |------------------------------|------------------------------|---------------|---------------------|
    | RGB, YCbCr                   | unchanged                    | Rec. 601 luma | opaque              |
    | grey, 1 bit                  | replicated                   | unchanged     | replicated, opaque  |
    | palette                      | its colours                  | their luma    | its colours, opaque |
    | alpha, or a transparent key  | composited on white          | same, luma    | kept                |
    | 16 bits per channel          | the high byte (value // 256) | same          | same                |
    | 12-bit grey TIFF             | scaled to 16, high byte      | same          | same                |
    | CMYK, YCCK                   | by Pillow, no ICC profile    | same, luma    | same, opaque        |
    | 32-bit integers, floats, Lab | refused                      | refused       | refused             |
    | animated, several pages      | the first                    | the first     | the first           |

The transparent key of a 16-bit grey PNG is ignored; ICC profiles are, except in `decode_in_srgb`. EXIF
orientation is read here, and applied by the caller to the small picture.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import (
    Image,
)

from packer.channels import CHANNELS
from packer.codecs.jpeg import jpeg_orientation, swaps_sides
from packer.errors import ImageError, PackerError
from packer.opencv import cv2
from packer.pillow_settings import PillowSettings
from packer.pixels.color_profiles import in_srgb, is_srgb
from packer.pixels.image_files import (
    _HARMLESS,
    JPEG_MAGIC,
    PNG_CHUNK,
    PNG_SIGNATURE,
    TiffLevels,
    check_pixels,
    check_scans,
    exif_orientation,
    loses_bits,
    opened,
    png_chunks,
    profile_of,
)
from packer.pixels.quiet_stderr import QuietStderr

FAST_UPSAMPLING_RATIO = 1.25
"""From this ratio on, a JPEG's chroma is doubled by repetition, which saves 7 to 10 % of the decoding time.

Measured on 40 photos (4:2:0) against the float triangle resize of the smoothly upsampled picture, PSNR in dB:

    ratio             1.00    1.05    1.25    1.56    1.90
    smooth, mean     equal    57.4    57.5    57.7    57.8
    fast, mean        48.7    50.8    52.4    53.9    54.9
    fast, worst       38.0    42.1    43.8    46.0    47.9

At 1:1 and when enlarging, the difference would be visible.
"""

_DCT_SCALES = ((8, 4 / 3), (4, 7 / 6), (2, 1.0))
"""Divisors, and the smallest ratio that must remain after each.

1/2, 1/4 and 1/8 are the scales that decode faster than full size. If the coarse picture then shrinks by a
ratio near 1, the resize cannot smooth it: 40 photos had 41.8 dB (1/2), 39.1 (1/4) and 37.2 (1/8), and more
at larger ratios. With these limits the mean stays above 41 dB.
"""


KEEP_BYTES = 64 << 20
"""Largest buffer that is kept; otherwise a single huge image would hold its memory in each thread."""

_LEAST_BYTES = 4 << 20
"""Bytes from which NumPy requests huge pages, with which decoding and resizing were 1 to 2 % faster."""

_HEADER = struct.Struct(">8sI4sIIBBBBB")
_GRAY, _RGB = 0, 2
_FLAGS = {
    (_RGB, "rgb"): cv2.IMREAD_COLOR_RGB,
    (_GRAY, "rgb"): cv2.IMREAD_COLOR_RGB,
    (_GRAY, "gray"): cv2.IMREAD_GRAYSCALE,
}


_UNKNOWN = (
    "a TIFF file of bands, or of values that are not of 8, 12 or 16 bits. Pass channels='auto'"
    " to keep bands as they"
    " are, or dtype='uint16' for grey and colours of 10 or 14 bits."
)


class ScratchBuffers:
    """Named uint8 buffers that grow as needed, for reuse with the next image; for a single thread at a time.

    Fresh memory is a hidden cost of decoding: for a photo of 400x533, the page faults of a new 640 KB array
    took 240 of 970 us.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, NDArray[np.uint8]] = {}

    def array(self, name: str, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """Return the buffer named ``name`` as a C-contiguous uint8 array of ``shape``.

        Its contents are arbitrary; the same name returns the same memory.
        """
        needed = math.prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or buffer.size < needed:
            buffer = np.empty(max(needed, _LEAST_BYTES), np.uint8)
            if needed <= KEEP_BYTES:
                self._buffers[name] = buffer
        return buffer[:needed].reshape(shape)


class DecodedImage(NamedTuple):
    """A picture as stored in its file."""

    pixels: NDArray[Any]
    """uint8 [h, w, C], maybe in scratch memory. C is 1 for gray, 4 for rgba, 3 or 4 (padded) for rgb."""
    height: int
    """Rows of the picture at full size; ``pixels`` holds ceil(height / shrunk) of them."""
    width: int
    """Columns of the picture at full size; ``pixels`` holds ceil(width / shrunk) of them."""
    shrunk: int
    """1, or 2, 4, 8 if a JPEG was decoded at that fraction of its size."""
    orientation: int
    """EXIF orientation still to be applied, 1 to 8."""
    transparent: bool
    """True if the fourth channel of rgba is an alpha channel that is not opaque everywhere."""
    narrowed: bool = False
    """True if the file has more than 8 bits per channel, of which the high byte was kept."""


def decode(
    data: bytes, channels: str, max_pixels: int, ratio: Callable[[int, int], float], scratch: ScratchBuffers
) -> DecodedImage:
    """Decode an image file; decode JPEGs at a DCT scale if the caller shrinks them enough.

    data: the file; channels: "rgb", "gray" or "rgba"; max_pixels: largest allowed height times width.
    ratio: function of the upright (height, width) that returns the source pixels per pixel of the result, on
    the axis with fewer; a JPEG is never decoded at less than the result needs.
    scratch: holds the returned pixels until its next use.
    Raises: ImageError with the reason, without the file's name.
    """
    if not data:
        raise ImageError("empty (0 bytes).")
    if data.startswith(JPEG_MAGIC):
        return _decode_jpeg(data, channels, max_pixels, ratio, scratch)
    size = plain_png_size(data, channels)
    if size is not None:
        check_pixels(*size, max_pixels)
        try:
            with QuietStderr():
                plain = cv2.imdecode(np.frombuffer(data, np.uint8), _FLAGS[data[25], channels])
        except cv2.error:
            plain = None
        if plain is not None:
            pixels = np.asarray(plain, np.uint8).reshape(*size, -1)
            return DecodedImage(pixels, *size, 1, 1, False)
    return _decode_pillow(data, channels, max_pixels)


def dct_scale(ratio: float) -> int:
    """Return the divisor, 1, 2, 4 or 8, for decoding a JPEG that shrinks by ``ratio``."""
    for divisor, left in _DCT_SCALES:
        if ratio >= divisor * left:
            return divisor
    return 1


def plain_png_size(data: bytes, channels: str) -> tuple[int, int] | None:
    """Return (height, width) of a PNG file that OpenCV may decode, None for any other file.

    channels: "rgb", "gray" or "rgba".
    """
    if len(data) < _HEADER.size:
        return None
    signature, _, kind, width, height, depth, color, _, _, interlaced = _HEADER.unpack_from(data)
    if (signature, kind, depth, interlaced) != (PNG_SIGNATURE, b"IHDR", 8, 0) or (
        color,
        channels,
    ) not in _FLAGS:
        return None
    for kind, position in png_chunks(data):
        if kind == b"IEND":
            return height, width
        # Text without an orientation, which EXIF and XMP may contain.
        plain = kind == b"tEXt" and not data.startswith((b"Raw profile", b"XML:"), position + PNG_CHUNK.size)
        if not (plain or kind in _HARMLESS):
            break
    return None


def _decode_jpeg(
    data: bytes, channels: str, max_pixels: int, ratio: Callable[[int, int], float], scratch: ScratchBuffers
) -> DecodedImage:
    check_scans(data)
    orientation = jpeg_orientation(data)
    try:
        height, width, space, _ = simplejpeg.decode_jpeg_header(data)
        check_pixels(height, width, max_pixels)
        if space not in ("CMYK", "YCCK"):
            sides = (width, height) if swaps_sides(orientation) else (height, width)
            shrink = ratio(*sides)
            divisor = dct_scale(shrink)
            rows, columns = -(-height // divisor), -(-width // divisor)
            kind = CHANNELS[channels]
            pixels = simplejpeg.decode_jpeg(
                data,
                kind.jpeg,
                fastupsample=shrink >= FAST_UPSAMPLING_RATIO,
                min_height=rows,
                min_width=columns,
                buffer=scratch.array("decoded", (rows, columns, kind.jpeg_bytes)),
            )
            return DecodedImage(pixels, height, width, divisor, orientation, transparent=False)
    except (ValueError, KeyError, MemoryError):
        pass  # Pillow decides whether the file is damaged or only unusual
    return _decode_pillow(data, channels, max_pixels)._replace(orientation=orientation)


def _decode_pillow(data: bytes, channels: str, max_pixels: int) -> DecodedImage:
    """Decode a file of any format with Pillow. Raises: see `opened`."""
    with opened(data, max_pixels, _UNKNOWN) as image:
        return _decode_opened(image, channels)


def decode_in_srgb(data: bytes, channels: str, max_pixels: int, profile: bytes) -> DecodedImage:
    """Decode a file, and convert its colors from a profile to sRGB.

    Raises: see `opened`; ImageError for a profile that cannot be applied.
    """
    with opened(data, max_pixels, _UNKNOWN) as image:
        decoded = _decode_opened(image, channels, profile)
    jpeg_file = data.startswith(JPEG_MAGIC)
    return decoded._replace(orientation=jpeg_orientation(data)) if jpeg_file else decoded


def decode_pillow(image: Image.Image, channels: str, max_pixels: int, *, srgb: bool = False) -> DecodedImage:
    """Decode a Pillow image like its file. srgb: apply its profile. Raises ImageError, MemoryError."""
    check_pixels(image.height, image.width, max_pixels)
    profile = profile_of(image) if srgb else b""
    try:
        with PillowSettings():
            return _decode_opened(image, channels, b"" if is_srgb(profile) else profile)
    except (PackerError, MemoryError):
        raise
    except Exception:  # Pillow's errors for a damaged file that it has not read yet
        raise ImageError("a damaged or truncated image.") from None


def _decode_opened(image: Image.Image, channels: str, profile: bytes = b"") -> DecodedImage:
    """Decode an image opened by Pillow. profile: convert its colors from this profile to sRGB."""
    narrowed = loses_bits(image)
    image.load()
    orientation = exif_orientation(image)
    pixels, transparent = _as_bytes(image, channels, profile)
    height, width = pixels.shape[:2]
    return DecodedImage(pixels, height, width, 1, orientation, transparent, narrowed)


def _as_bytes(image: Image.Image, channels: str, profile: bytes) -> tuple[NDArray[np.uint8], bool]:
    """Convert any Pillow mode to the requested channels, according to the module's table.

    Returns: the pixels; True if some alpha is not opaque.
    """
    flat = image
    if image.mode.startswith("I;16") or (
        image.mode == "I" and image.format == "PPM"
    ):  # PGM's 16 bits have mode "I"
        values = TiffLevels.read(image).stretched(np.asarray(image).astype(np.uint16))
        flat = Image.fromarray((values >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        kind = "32-bit integers" if image.mode == "I" else "32-bit floats"
        raise ImageError(f"its pixels are {kind}; 8 and 16 bits a channel are read.")
    elif image.mode not in ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr"):
        raise ImageError(f"its colours are {image.mode}; grey, RGB, palette and CMYK are read.")
    if profile:
        flat = in_srgb(flat, profile)
    transparent = False
    if flat.has_transparency_data:
        flat = flat.convert("RGBA")
        transparent = np.asarray(flat.getchannel("A")).min() < 255
        if channels != "rgba":
            white = Image.new("RGB", flat.size, (255, 255, 255))
            white.paste(flat, mask=flat.getchannel("A"))
            flat = white
    mode = CHANNELS[channels].pillow
    pixels = np.asarray(flat if flat.mode == mode else flat.convert(mode))
    return pixels.reshape(*pixels.shape[:2], -1), bool(transparent and channels == "rgba")
