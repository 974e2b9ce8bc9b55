"""Image files: formats, limits, sizes, depths, orientations and color profiles, mostly without decoding."""

from __future__ import annotations

import io
import re
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

import numpy as np
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

from packer.codecs import jpeg
from packer.codecs.jpeg import EXIF_TAG, jpeg_orientation, swaps_sides
from packer.errors import ImageError, PackerError
from packer.pillow_settings import PillowSettings
from packer.pixels.color_profiles import is_srgb, may_hold_profile
from packer.pixels.quiet_stderr import QuietStderr

JPEG_MAGIC = b"\xff\xd8\xff"

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

PNG_CHUNK = struct.Struct(">I4s")
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"

MAX_CHUNKS = 1 << 17
"""Most chunks of a PNG file. Pillow needs 10 us for each, even if empty. 100 MB in 8 KiB pieces: 12,800."""

_HARMLESS = {b"IHDR", b"IDAT", b"IEND", b"gAMA", b"cHRM", b"sRGB", b"pHYs", b"tIME"}
"""Chunks that both decoders ignore or treat alike. Colours are read as stored, regardless of their profile.
"""

_UNTURNED = {*_HARMLESS, b"PLTE", b"tRNS", b"iCCP", b"sBIT", b"bKGD", b"hIST"}
"""Chunks without an orientation."""


_BITS, _PHOTOMETRIC, _SAMPLES = 258, 262, 277  # TIFF tags

_ZERO_IS_WHITE = 0

_FOREIGN_PIXELS = frozenset(("Invalid value for samples per pixel", "unknown pixel mode"))
"""Pillow's messages for TIFF pixels that it has no mode for."""

_pillow_limit = threading.Lock()


def check_pixels(height: int, width: int, max_pixels: int) -> None:
    """Raise ImageError if a header announces more than ``max_pixels``, before decoding."""
    if max(height, width) > MAX_SIDE and height * width <= max_pixels:
        raise ImageError(f"{width:,} x {height:,} pixels; sides of up to {MAX_SIDE:,} are read.")
    if height * width > max_pixels:
        raise ImageError(
            f"{width:,} x {height:,} pixels; at most {max_pixels:,} are allowed. Raise "
            "max_pixels= if the image is intended."
        )


def check_effort(data: bytes, name: str) -> None:
    """Raise ImageError for files that would keep Pillow busy for minutes without a result."""
    if name == "JPEG":
        check_scans(data)
        if jpeg.has_too_many_segments(data):
            raise ImageError(
                f"a JPEG of more than {jpeg.MAX_SEGMENTS:,} segments before its pixels; up to that many are"
                " read."
            )
    if name == "PNG" and sum(1 for _ in png_chunks(data)) > MAX_CHUNKS:
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


def check_scans(data: bytes) -> None:
    """Raise ImageError for a JPEG of more scans than are decoded."""
    if jpeg.has_too_many_scans(data):
        raise ImageError(f"a JPEG of more than {jpeg.MAX_SCANS} scans; up to {jpeg.MAX_SCANS} are decoded.")


def is_short_of_memory(pixels: int) -> bool:
    """Return True if a picture of `pixels` may have failed to decode for lack of memory."""
    try:
        np.empty(_SPARE_BYTES + _BYTES_A_PIXEL * pixels, np.uint8)
    except MemoryError:
        return True
    return False


def png_chunks(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield the kind and the position of each chunk, at most MAX_CHUNKS + 1."""
    position, last = len(PNG_SIGNATURE), len(data) - PNG_CHUNK.size
    for _ in range(MAX_CHUNKS + 1):
        if position > last:
            return
        length, kind = PNG_CHUNK.unpack_from(data, position)
        yield kind, position
        position += PNG_CHUNK.size + length + 4


def foreign_profile(data: bytes) -> bytes:
    """Return the color profile of a file unless it is sRGB; b"" for none, and for other files."""
    if not may_hold_profile(data):
        return b""
    try:
        with opened(data) as image:
            profile = profile_of(image)
    except (ImageError, MemoryError):
        return b""
    return b"" if is_srgb(profile) else profile


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
    if data.startswith(JPEG_MAGIC):
        return jpeg_orientation(data)
    if data.startswith(PNG_SIGNATURE) and _UNTURNED.issuperset(kind for kind, _ in png_chunks(data)):
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
    def read(cls, image: Image.Image) -> TiffLevels:
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
            properties = loses_bits(image), image.mode, TiffLevels.read(image), all_bands, profile_of(image)
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
            return int(TiffLevels.read(image).stretched(np.asarray(image).astype(np.uint16)).max())
    except (ImageError, MemoryError):
        return None
