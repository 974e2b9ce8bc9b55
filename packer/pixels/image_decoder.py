"""Encoded images to 8-bit pixels as stored: not turned, not resized. Sizes and depths without decoding.

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

The transparent key of a 16-bit grey PNG is ignored; ICC profiles are, except in `decode_in_srgb`. EXIF orientation is read here, and
applied by the caller to the small picture.
"""

from __future__ import annotations

import io
import math
import os
import re
import struct
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import (
    AvifImagePlugin,
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    ImageFile,
    JpegImagePlugin,
    PngImagePlugin,
    PpmImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from packer.channels import CHANNELS
from packer.codecs import jpeg
from packer.codecs.jpeg import EXIF_TAG, jpeg_orientation, swaps_sides
from packer.errors import ImageError, PackerError
from packer.opencv import cv2
from packer.pillow_settings import PillowSettings, keep_defaults
from packer.pixels.color_profiles import in_srgb, is_srgb, may_hold_profile
from packer.sentence import Option

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

_JPEG_MAGIC = b"\xff\xd8\xff"

MAX_SIDE = 1 << 20
"""Most pixels of a side, OpenCV's limit. Pillow needs 16 bytes and 1 us per row of a picture of width 1."""

_PPM_SPACE = rb"(?:\s|#[^\r\n]*[\r\n])+"
_PPM_HEADER = re.compile(
    rb"P(?:[14]|[2356](?=%b[0-9]+%b[0-9]+%b[0-9]))%b([0-9]{1,10})%b([0-9]{1,10})\s" % ((_PPM_SPACE,) * 5)
)
_PPM_HEADER_BYTES = 64 << 10
_PPM_COMMENTS = 1000
_SPARE_BYTES = 64 << 20
_BYTES_A_PIXEL = 16

KEEP_BYTES = 64 << 20
"""Largest buffer that is kept; otherwise a single huge image would hold its memory in each thread."""

_LEAST_BYTES = 4 << 20
"""Bytes from which NumPy requests huge pages, with which decoding and resizing were 1 to 2 % faster."""

_HEADER = struct.Struct(">8sI4sIIBBBBB")
_CHUNK = struct.Struct(">I4s")
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_GRAY, _RGB = 0, 2
_FLAGS = {
    (_RGB, "rgb"): cv2.IMREAD_COLOR_RGB,
    (_GRAY, "rgb"): cv2.IMREAD_COLOR_RGB,
    (_GRAY, "gray"): cv2.IMREAD_GRAYSCALE,
}
MAX_CHUNKS = 1 << 17
"""Most chunks of a PNG file. Pillow needs 10 us for each, even if empty. 100 MB in 8 KiB pieces: 12,800."""

_HARMLESS = {b"IHDR", b"IDAT", b"IEND", b"gAMA", b"cHRM", b"sRGB", b"pHYs", b"tIME"}
"""Chunks that both decoders ignore or treat alike. Colours are read as stored, regardless of their profile.
"""

_UNTURNED = {*_HARMLESS, b"PLTE", b"tRNS", b"iCCP", b"sBIT", b"bKGD", b"hIST"}
"""Chunks without an orientation."""

_BITS, _PHOTOMETRIC, _SAMPLES = 258, 262, 277  # TIFF tags
_ZERO_IS_WHITE = 0

_UNKNOWN = (
    f"a TIFF file of bands, or of values that are not of 8, 12 or 16 bits. Pass {Option('channels', 'auto')}"
    " to keep bands as they"
    f" are, or {Option('dtype', 'uint16')} for grey and colours of 10 or 14 bits."
)
_FOREIGN_PIXELS = frozenset(("Invalid value for samples per pixel", "unknown pixel mode"))
"""Pillow's messages for TIFF pixels that it has no mode for."""

_pillow_limit = threading.Lock()


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
    if data.startswith(_JPEG_MAGIC):
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


def check_pixels(height: int, width: int, max_pixels: int) -> None:
    """Raise ImageError if a header announces more than ``max_pixels``, before decoding."""
    if max(height, width) > MAX_SIDE and height * width <= max_pixels:
        raise ImageError(f"{width:,} x {height:,} pixels; sides of up to {MAX_SIDE:,} are read.")
    if height * width > max_pixels:
        raise ImageError(
            f"{width:,} x {height:,} pixels; at most {max_pixels:,} are allowed. Raise "
            f"{Option('max_pixels')} if the image is intended."
        )


def check_effort(data: bytes, name: str) -> None:
    """Raise ImageError for files that would keep Pillow busy for minutes without a result."""
    if name == "JPEG":
        _check_scans(data)
        if jpeg.has_too_many_segments(data):
            raise ImageError(
                f"a JPEG of more than {jpeg.MAX_SEGMENTS:,} segments before its pixels; up to that many are"
                " read."
            )
    if name == "PNG" and sum(1 for _ in _png_chunks(data)) > MAX_CHUNKS:
        raise ImageError(f"a PNG file of more than {MAX_CHUNKS:,} chunks; up to that many are read.")
    if name == "PPM":
        # Pillow reads headers byte by byte, and scans plain pixels again for each comment.
        header = _PPM_HEADER.match(data[:_PPM_HEADER_BYTES])
        plain = data[:2] in (b"P1", b"P2", b"P3")
        if header is None or (plain and data.count(b"#") > _PPM_COMMENTS):
            raise ImageError("a PPM file with a header that does not end, or thousands of comments.")
        # A plain number takes a digit and a space; Pillow reads 5 MB per second before it notices missing
        # ones.
        least = {b"P2": 2, b"P3": 6}.get(data[:2], 0) * int(header[1]) * int(header[2])
        if len(data) + 1 < least:
            raise ImageError("a damaged or truncated PPM file.")


def _check_scans(data: bytes) -> None:
    if jpeg.has_too_many_scans(data):
        raise ImageError(f"a JPEG of more than {jpeg.MAX_SCANS} scans; up to {jpeg.MAX_SCANS} are decoded.")


def is_short_of_memory(pixels: int) -> bool:
    """Return True if a picture of `pixels` may have failed to decode for lack of memory."""
    try:
        np.empty(_SPARE_BYTES + _BYTES_A_PIXEL * pixels, np.uint8)
    except MemoryError:
        return True
    return False


def plain_png_size(data: bytes, channels: str) -> tuple[int, int] | None:
    """Return (height, width) of a PNG file that OpenCV may decode, None for any other file.

    channels: "rgb", "gray" or "rgba".
    """
    if len(data) < _HEADER.size:
        return None
    signature, _, kind, width, height, depth, color, _, _, interlaced = _HEADER.unpack_from(data)
    if (signature, kind, depth, interlaced) != (_SIGNATURE, b"IHDR", 8, 0) or (color, channels) not in _FLAGS:
        return None
    for kind, position in _png_chunks(data):
        if kind == b"IEND":
            return height, width
        # Text without an orientation, which EXIF and XMP may contain.
        plain = kind == b"tEXt" and not data.startswith((b"Raw profile", b"XML:"), position + _CHUNK.size)
        if not (plain or kind in _HARMLESS):
            break
    return None


def _png_chunks(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield the kind and the position of each chunk, at most MAX_CHUNKS + 1."""
    position, last = len(_SIGNATURE), len(data) - _CHUNK.size
    for _ in range(MAX_CHUNKS + 1):
        if position > last:
            return
        length, kind = _CHUNK.unpack_from(data, position)
        yield kind, position
        position += _CHUNK.size + length + 4


def _decode_jpeg(
    data: bytes, channels: str, max_pixels: int, ratio: Callable[[int, int], float], scratch: ScratchBuffers
) -> DecodedImage:
    _check_scans(data)
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


def foreign_profile(data: bytes) -> bytes:
    """Return the color profile of a file unless it is sRGB; b"" for none, and for files that are no images."""
    if not may_hold_profile(data):
        return b""
    try:
        with opened(data) as image:
            profile = profile_of(image)
    except (ImageError, MemoryError):
        return b""
    return b"" if is_srgb(profile) else profile


def decode_in_srgb(data: bytes, channels: str, max_pixels: int, profile: bytes) -> DecodedImage:
    """Decode a file, and convert its colors from a profile to sRGB.

    Raises: see `opened`; ImageError for a profile that cannot be applied.
    """
    with opened(data, max_pixels, _UNKNOWN) as image:
        decoded = _decode_opened(image, channels, profile)
    jpeg_file = data.startswith(_JPEG_MAGIC)
    return decoded._replace(orientation=jpeg_orientation(data)) if jpeg_file else decoded


def decode_pillow(image: Image.Image, channels: str, max_pixels: int, *, srgb: bool = False) -> DecodedImage:
    """Return a Pillow image decoded like its file. srgb: apply its profile. Raises ImageError, MemoryError."""
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


@contextmanager
def opened(data: bytes, max_pixels: int = MAX_SIDE**2, unknown: str = "") -> Iterator[ImageFile.ImageFile]:
    """Open an image file with Pillow, of any size up to max_pixels, and convert Pillow's errors.

    unknown: message for a TIFF file with pixels that Pillow does not know.
    Raises: ImageError; MemoryError, because an image skipped for lack of memory would be missing silently.
    """
    name, opens = format_of_image(data)
    if opens is None:
        raise ImageError(f"not an image; {_READ}.")
    check_effort(data, name)
    pixels = 0
    try:
        # Call the plugin directly: Image.open itself warns of large pictures, or refuses them.
        with QuietStderr(), PillowSettings(), opens(io.BytesIO(data)) as image:
            check_pixels(image.height, image.width, max_pixels)
            pixels = image.height * image.width
            with _without_pillow_limit(image):
                yield image
    except PackerError:
        raise
    except Image.DecompressionBombError:
        raise ImageError(
            f"more pixels than Pillow opens in a {name} file; split it, or store it as PNG."
        ) from None
    except Exception as error:  # Pillow raises nearly every type of error for damaged or hostile files
        if is_short_of_memory(pixels):
            raise MemoryError from None
        if unknown and name == "TIFF" and str(error) in _FOREIGN_PIXELS:
            raise ImageError(unknown) from None
        # Pillow's messages contain memory addresses, and equal inputs must give equal reports.
        raise ImageError(f"a damaged or truncated {name} file.") from None


def profile_of(image: Image.Image) -> bytes:
    """Return the ICC profile of a picture opened by Pillow, or b""."""
    profile = image.info.get("icc_profile")
    return profile if isinstance(profile, bytes) else b""


def exif_orientation(image: Image.Image) -> int:
    """Return the EXIF orientation, 1 to 8, of a picture opened by Pillow (JPEG files: `jpeg_orientation`)."""
    return integer_orientation(image.getexif().get(EXIF_TAG))


def integer_orientation(value: object) -> int:
    """Return an orientation tag's value: an integer from 1 to 8, or the first of its bytes; otherwise 1."""
    if isinstance(value, bytes) and value:  # the types BYTE and UNDEFINED
        value = value[0]
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def read_orientation(data: bytes) -> int:
    """Return the EXIF orientation of an image file, 1 to 8, without decoding it; 1 if it is unreadable."""
    if data.startswith(_JPEG_MAGIC):
        return jpeg_orientation(data)
    if data.startswith(_SIGNATURE) and _UNTURNED.issuperset(kind for kind, _ in _png_chunks(data)):
        return 1  # Pillow decodes a PNG file to find its EXIF
    try:
        with opened(data) as image:
            return exif_orientation(image)
    except ImageError:
        return 1


def loses_bits(image: Image.Image) -> bool:
    """Return True if an opened, not yet loaded image has more than 8 bits per channel."""
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM"):
        return True
    # Pillow unpacks 8 bits per channel of "RGB;16B"; the last argument of its PPM decoder is the largest
    # value.
    tile = getattr(image, "tile", ())  # images from files have it until they are loaded
    arguments = tile[0].args if tile else ()
    parts = (arguments,) if isinstance(arguments, str) else tuple(arguments or ())
    if image.format == "PPM" and len(parts) > 1 and isinstance(parts[-1], int):
        return parts[-1] > 255
    return bool(parts) and isinstance(parts[0], str) and "16" in parts[0]


@contextmanager
def _without_pillow_limit(image: Image.Image) -> Iterator[None]:
    """Lift Pillow's global limit while it decodes a picture within packer's limit; for one thread at a time.

    TIFF checks the limit again while loading. Pictures below Pillow's warning threshold leave it unchanged.
    """
    if Image.MAX_IMAGE_PIXELS is None or image.height * image.width <= Image.MAX_IMAGE_PIXELS:
        yield
        return
    with _pillow_limit:
        limit = Image.MAX_IMAGE_PIXELS
        Image.MAX_IMAGE_PIXELS = None
        try:
            yield
        finally:
            Image.MAX_IMAGE_PIXELS = limit


def _as_bytes(image: Image.Image, channels: str, profile: bytes) -> tuple[NDArray[np.uint8], bool]:
    """Convert any Pillow mode to the requested channels, according to the module's table.

    Returns: the pixels; True if some alpha is not opaque.
    """
    flat = image
    if image.mode.startswith("I;16") or (
        image.mode == "I" and image.format == "PPM"
    ):  # PGM's 16 bits have mode "I"
        values = TiffLevels.of(image).stretched(np.asarray(image).astype(np.uint16))
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


_Opens: TypeAlias = Callable[[io.BytesIO], ImageFile.ImageFile]
FORMATS: dict[str, tuple[_Opens, re.Pattern[bytes]]] = {
    "JPEG": (JpegImagePlugin.JpegImageFile, re.compile(rb"\xff\xd8\xff")),
    "PNG": (PngImagePlugin.PngImageFile, re.compile(rb"\x89PNG\r\n\x1a\n")),
    "WebP": (WebPImagePlugin.WebPImageFile, re.compile(rb"RIFF.{4}WEBP", re.S)),
    "BMP": (BmpImagePlugin.BmpImageFile, re.compile(b"BM")),
    "TIFF": (TiffImagePlugin.TiffImageFile, re.compile(rb"II[*+]\0|MM\0[*+]")),
    "GIF": (GifImagePlugin.GifImageFile, re.compile(b"GIF8[79]a")),
    "AVIF": (AvifImagePlugin.AvifImageFile, re.compile(rb".{4}ftyp(avif|avis|mif1)", re.S)),
    "PPM": (PpmImagePlugin.PpmImageFile, re.compile(rb"P[1-6]")),
}
"""Name for messages, as in source_kinds.py -> Pillow's plugin, and the first bytes of its files."""
_READ = f"{', '.join(FORMATS)} and PGM are read"


def format_of_image(data: bytes) -> tuple[str, _Opens | None]:
    """Return a format's name for messages and its Pillow plugin; "" and None for other files."""
    return next(((name, opens) for name, (opens, begin) in FORMATS.items() if begin.match(data)), ("", None))


class TiffLevels(NamedTuple):
    """The scale of a grey or RGB TIFF file.

    bits: bits of its numbers, up to 16; zero_is_white: True if the tag PhotometricInterpretation is 0.
    """

    bits: int = 16
    zero_is_white: bool = False

    @classmethod
    def of(cls, image: Image.Image) -> TiffLevels:
        """Return the scale of 16-bit pixels opened by Pillow; the default for other formats."""
        if not isinstance(image, TiffImagePlugin.TiffImageFile):
            return cls()
        return cls(image.tag_v2.get(_BITS, (16,))[0], image.tag_v2.get(_PHOTOMETRIC) == _ZERO_IS_WHITE)

    def stretched(self, values: NDArray[np.uint16]) -> NDArray[np.uint16]:
        """Return grey or colours with black 0 and white 65,535, without a copy if they already are."""
        return self.scaled(((1 << self.bits) - 1) - values if self.zero_is_white else values)

    def scaled(self, values: NDArray[np.uint16]) -> NDArray[np.uint16]:
        """Scale numbers of `bits` bits to 16 bits."""
        if self.bits == 16:
            return values
        most = (1 << self.bits) - 1
        return ((values.astype(np.uint32) * 65_535 + most // 2) // most).astype(np.uint16)


class ImageHeader(NamedTuple):
    """Size, depth and kind of an image file's pixels.

    height, width: upright; narrowed: True for more than 8 bits per
    channel; mode: Pillow's; levels: scale of 16-bit pixels; all_bands: True if Pillow returns as many bands
    as a TIFF file has; profile: its ICC profile, or b"".
    """

    height: int
    width: int
    narrowed: bool
    mode: str
    levels: TiffLevels
    all_bands: bool
    profile: bytes


def read_image_header(data: bytes) -> ImageHeader | None:
    """Return the size and depth of an image file, without decoding; None if its header cannot be read."""
    try:
        with opened(data) as image:
            width, height = image.size
            tags = image.tag_v2 if isinstance(image, TiffImagePlugin.TiffImageFile) else {}
            all_bands = not tags or tags.get(_SAMPLES, 1) == len(image.getbands())
            properties = loses_bits(image), image.mode, TiffLevels.of(image), all_bands, profile_of(image)
    except (ImageError, MemoryError):
        return None
    if not tags and swaps_sides(read_orientation(data)):  # of TIFF files Pillow tells the upright size
        width, height = height, width
    return ImageHeader(height, width, *properties)


def largest_value(data: bytes, max_pixels: int) -> int | None:
    """Return the largest value of a 16-bit grey image, with white as 65,535.

    None for any other image, and for one of more than max_pixels.
    """
    try:
        with opened(data, max_pixels) as image:
            if image.mode != "I" and not image.mode.startswith("I;16"):
                return None
            return int(TiffLevels.of(image).stretched(np.asarray(image).astype(np.uint16)).max())
    except (ImageError, MemoryError):
        return None


# libpng, libtiff and Pillow print to stderr; packer reports each faulty file itself.

_STDERR = 2
_lock = threading.Lock()
_inside = 0
_saved = -1
_for_good = False


@contextmanager
def without_pillow_warnings() -> Iterator[None]:
    """Ignore Pillow's warnings about unusual files; only for a single thread and those that it starts."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\b")
        yield


def silence_process() -> None:
    """Redirect stderr and set Pillow's defaults until this worker process ends; its parent reports."""
    global _for_good
    keep_defaults()
    with suppress(OSError):
        _point_nowhere()
        _for_good = True


class QuietStderr:
    """A context in which C libraries print nothing to stderr; for any number of threads.

    Takes 5 us, in a worker process 0.3.
    """

    def __enter__(self) -> None:
        """Redirect stderr to the null device, unless another thread already did."""
        global _inside, _saved
        if _for_good:
            return
        with _lock:
            _inside += 1
            if _inside == 1:
                with suppress(OSError):  # closed, or no free descriptor: the library prints
                    _saved = os.dup(_STDERR)
                    _point_nowhere()

    def __exit__(self, *_: object) -> None:
        """Restore stderr when the last thread leaves."""
        global _inside, _saved
        if _for_good:
            return
        with _lock:
            _inside -= 1
            if not _inside and _saved >= 0:
                os.dup2(_saved, _STDERR)
                os.close(_saved)
                _saved = -1


def _point_nowhere() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(nowhere, _STDERR)
    os.close(nowhere)
