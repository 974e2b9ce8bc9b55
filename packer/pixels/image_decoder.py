"""Encoded image -> 8-bit pixels as they are stored: not turned, not resized. And its size and depth, undecoded.

JPEG goes through simplejpeg (libjpeg-turbo), everything else through Pillow,
which also has the last word on each file that others refuse: it puts up with harmless oddities and refuses truncated
files. The plainest PNG files go through OpenCV: 8 bits, grey or RGB, nothing in them that changes how they look. Its pixels are
Pillow's to the byte, sooner: 5.0 against 5.8 ms for a photo of 400x533, 45 against 72 us for 32x32. Files that OpenCV refuses are
left to Pillow (it is the stricter of the two: of 6,000 files with a flipped bit, 16 zeroed bytes or a missing end it took none that
Pillow refuses, in versions 4.10, 4.11 and 5.0). What becomes of each kind of image:

    | input                        | rgb                          | gray          | rgba                |
    |------------------------------|------------------------------|---------------|---------------------|
    | RGB, YCbCr                   | as it is                     | Rec. 601 luma | opaque              |
    | grey, 1 bit                  | replicated                   | as it is      | replicated, opaque  |
    | palette                      | its colours                  | their luma    | its colours, opaque |
    | alpha, or a transparent key  | composited on white          | so, then luma | kept                |
    | 16 bits a channel            | the high byte (value // 256) | so            | so                  |
    | 12-bit grey TIFF             | stretched to 16, then so     | so            | so                  |
    | CMYK, YCCK                   | by Pillow, no ICC profile    | so, then luma | so, opaque          |
    | 32-bit integers, floats, Lab | refused                      | refused       | refused             |
    | animated, several pages      | the first                    | the first     | the first           |

The transparent key of a 16-bit grey PNG is ignored, and so are ICC profiles. EXIF orientation is read here
and applied by the caller, on the small picture.
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
from packer.sentence import Option

FAST_UPSAMPLING_RATIO = 1.25
"""From this ratio on a JPEG's chroma is doubled by repetition, which saves 7 to 10 % of the decoding.

Measured on 40 photos (4:2:0) against the float triangle resize of the smoothly upsampled picture, PSNR in dB:

    ratio             1.00    1.05    1.25    1.56    1.90
    smooth, mean     equal    57.4    57.5    57.7    57.8
    fast, mean        48.7    50.8    52.4    53.9    54.9
    fast, worst       38.0    42.1    43.8    46.0    47.9

At 1:1 and when enlarging it would show.
"""

_DCT_SCALES = ((8, 4 / 3), (4, 7 / 6), (2, 1.0))
"""Divisors and the least ratio that must be left after them.

1/2, 1/4 and 1/8 are the scales that decode faster than full size. When the coarse picture shrinks by little
more than 1, nothing is left to smooth it with: 40 photos measured 41.8 dB (1/2), 39.1 (1/4) and 37.2 (1/8)
there, and better with each step above; with these limits the mean stays above 41 dB.
"""

_JPEG_MAGIC = b"\xff\xd8\xff"

MAX_SIDE = 1 << 20
"""Pixels of a side, OpenCV's own limit: a picture one pixel wide takes Pillow 16 bytes a row, and a microsecond."""

_PPM_SPACE = rb"(?:\s|#[^\r\n]*[\r\n])+"
_PPM_HEADER = re.compile(
    rb"P(?:[14]|[2356](?=%b[0-9]+%b[0-9]+%b[0-9]))%b([0-9]{1,10})%b([0-9]{1,10})\s" % ((_PPM_SPACE,) * 5)
)
_PPM_HEADER_BYTES = 64 << 10
_PPM_COMMENTS = 1000
_SPARE_BYTES = 64 << 20
_BYTES_A_PIXEL = 16

KEEP_BYTES = 64 << 20
"""Larger buffers are not kept, or one huge image would pin its size in each thread until the end."""

_LEAST_BYTES = 4 << 20
"""From this size on NumPy asks the kernel for huge pages, which made decoding and resizing 1 to 2 % faster."""

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
"""Each chunk costs Pillow 10 us, whatever it holds, and a file may have millions of empty ones; 100 MB in pieces of 8 KiB has 12,800."""

_HARMLESS = {b"IHDR", b"IDAT", b"IEND", b"gAMA", b"cHRM", b"sRGB", b"pHYs", b"tIME"}
"""Chunks that both decoders ignore, or read alike. Colours are taken as they are stored, whatever their profile."""

_BITS, _PHOTOMETRIC, _SAMPLES = 258, 262, 277  # tags of TIFF
_ZERO_IS_WHITE = 0

_UNKNOWN = (
    f"a TIFF file of bands, or of values that are not of 8, 12 or 16 bits. Pass {Option('channels', 'auto')} to keep bands as they"
    f" are, or {Option('dtype', 'uint16')} for grey and colours of 10 or 14 bits."
)
_FOREIGN_PIXELS = frozenset(("Invalid value for samples per pixel", "unknown pixel mode"))
"""Pillow's words for pixels of a TIFF file that it has no mode for."""

_pillow_limit = threading.Lock()


class ScratchBuffers:
    """Named uint8 buffers that grow as needed and are used again for the next image; for one thread at a time.

    New memory is the hidden cost of decoding: for a photo of 400x533 the page faults of a fresh 640 KB array took 240 of 970 us.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, NDArray[np.uint8]] = {}

    def array(self, name: str, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """Return the buffer called ``name`` as a C-contiguous uint8 array of ``shape``.

        Its contents are whatever was left there; the same name again gives the same memory.
        """
        needed = math.prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or buffer.size < needed:
            buffer = np.empty(max(needed, _LEAST_BYTES), np.uint8)
            if needed <= KEEP_BYTES:
                self._buffers[name] = buffer
        return buffer[:needed].reshape(shape)


class DecodedImage(NamedTuple):
    """A picture as it is stored in its file."""

    pixels: NDArray[Any]
    """uint8 [h, w, C], perhaps in the scratch memory. C is 1 for gray, 4 for rgba, 3 or 4 (padded) for rgb."""
    height: int
    """Rows of the whole picture; ``pixels`` holds ceil(height / shrunk) of them."""
    width: int
    """Columns of the whole picture; ``pixels`` holds ceil(width / shrunk) of them."""
    shrunk: int
    """1, or 2, 4, 8 when a JPEG was decoded at that fraction of its size."""
    orientation: int
    """EXIF orientation that is still to be applied, 1 to 8."""
    transparent: bool
    """True if the fourth channel of rgba is an alpha that is not opaque everywhere."""
    narrowed: bool = False
    """True if its file has more than 8 bits a channel, of which the high byte was kept."""


def decode(
    data: bytes, channels: str, max_pixels: int, ratio: Callable[[int, int], float], scratch: ScratchBuffers
) -> DecodedImage:
    """Decode one image file, JPEGs at a DCT scale where the caller shrinks them enough.

    data: the file; channels: "rgb", "gray" or "rgba"; max_pixels: the most that height times width may be.
    ratio: of the upright (height, width), how many source pixels one pixel of the result covers, along the side
        where they are fewer; a JPEG is never decoded to less than the result needs.
    scratch: holds the returned pixels, until its next use.
    Raises: ImageError with the reason, but not the file's name.
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
    """Return the divisor, 1, 2, 4 or 8, at which a JPEG is decoded that is to shrink by ``ratio``."""
    for divisor, left in _DCT_SCALES:
        if ratio >= divisor * left:
            return divisor
    return 1


def check_pixels(height: int, width: int, max_pixels: int) -> None:
    """Refuse a picture whose header announces more than ``max_pixels``, before any of them is decoded."""
    if max(height, width) > MAX_SIDE and height * width <= max_pixels:
        raise ImageError(f"{width:,} x {height:,} pixels; sides of up to {MAX_SIDE:,} are read.")
    if height * width > max_pixels:
        raise ImageError(
            f"{width:,} x {height:,} pixels; at most {max_pixels:,} are allowed. Raise "
            f"{Option('max_pixels')} if the image is meant."
        )


def check_effort(data: bytes, name: str) -> None:
    """Refuse files that would keep Pillow busy for minutes, or longer, over nothing. Raises: ImageError."""
    if name == "JPEG":
        _check_scans(data)
        if jpeg.has_too_many_segments(data):
            raise ImageError(
                f"a JPEG of more than {jpeg.MAX_SEGMENTS:,} segments before its pixels; as many are read."
            )
    if name == "PNG" and sum(1 for _ in _png_chunks(data)) > MAX_CHUNKS:
        raise ImageError(f"a PNG file of more than {MAX_CHUNKS:,} chunks; as many are read.")
    if name == "PPM":
        # Pillow reads headers byte by byte, and goes through plain pixels once for each comment.
        header = _PPM_HEADER.match(data[:_PPM_HEADER_BYTES])
        plain = data[:2] in (b"P1", b"P2", b"P3")
        if header is None or (plain and data.count(b"#") > _PPM_COMMENTS):
            raise ImageError("a PPM file with a header that does not end, or thousands of comments.")
        # A plain number takes a digit and a space; Pillow reads 5 MB of them a second before it misses the rest.
        least = {b"P2": 2, b"P3": 6}.get(data[:2], 0) * int(header[1]) * int(header[2])
        if len(data) + 1 < least:
            raise ImageError("a damaged or truncated PPM file.")


def _check_scans(data: bytes) -> None:
    if jpeg.has_too_many_scans(data):
        raise ImageError(f"a JPEG of more than {jpeg.MAX_SCANS} scans; up to {jpeg.MAX_SCANS} are decoded.")


def is_short_of_memory(pixels: int) -> bool:
    """Return True if memory, not the file, may be why a picture of so many pixels was not decoded."""
    try:
        np.empty(_SPARE_BYTES + _BYTES_A_PIXEL * pixels, np.uint8)
    except MemoryError:
        return True
    return False


def plain_png_size(data: bytes, channels: str) -> tuple[int, int] | None:
    """Return (height, width) of a PNG file that OpenCV may try, None for any other file. channels: "rgb", "gray" or "rgba"."""
    if len(data) < _HEADER.size:
        return None
    signature, _, kind, width, height, depth, color, _, _, interlaced = _HEADER.unpack_from(data)
    if (signature, kind, depth, interlaced) != (_SIGNATURE, b"IHDR", 8, 0) or (color, channels) not in _FLAGS:
        return None
    for kind, position in _png_chunks(data):
        if kind == b"IEND":
            return height, width
        # Of text, that holds no orientation, as EXIF or XMP would.
        plain = kind == b"tEXt" and not data.startswith((b"Raw profile", b"XML:"), position + _CHUNK.size)
        if not (plain or kind in _HARMLESS):
            break
    return None


def _png_chunks(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield the kind and the place of each chunk, MAX_CHUNKS and one more at most."""
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
        pass  # Pillow decides whether the file is damaged or only odd
    return _decode_pillow(data, channels, max_pixels)._replace(orientation=orientation)


def _decode_pillow(data: bytes, channels: str, max_pixels: int) -> DecodedImage:
    """Decode a file of any format with Pillow. Raises: as `opened`."""
    with opened(data, max_pixels, _UNKNOWN) as image:
        return _decode_opened(image, channels)


def decode_pillow(image: Image.Image, channels: str, max_pixels: int) -> DecodedImage:
    """Return an image of Pillow as its file's would be. Raises: ImageError; MemoryError."""
    check_pixels(image.height, image.width, max_pixels)
    try:
        return _decode_opened(image, channels)
    except (PackerError, MemoryError):
        raise
    except Exception:  # what Pillow raises on a damaged file that it has not read yet
        raise ImageError("a damaged or truncated image.") from None


def _decode_opened(image: Image.Image, channels: str) -> DecodedImage:
    narrowed = loses_bits(image)
    image.load()
    orientation = exif_orientation(image)
    pixels, transparent = _as_bytes(image, channels)
    height, width = pixels.shape[:2]
    return DecodedImage(pixels, height, width, 1, orientation, transparent, narrowed)


@contextmanager
def opened(data: bytes, max_pixels: int = MAX_SIDE**2, unknown: str = "") -> Iterator[ImageFile.ImageFile]:
    """Open an image file with Pillow, of any size up to max_pixels, and word what it raises meanwhile.

    unknown: said of a TIFF file of pixels that Pillow does not know.
    Raises: ImageError; MemoryError, as an image that was left out for lack of memory would be missing silently.
    """
    name, opens = format_of_image(data)
    if opens is None:
        raise ImageError(f"not an image; {_READ}.")
    check_effort(data, name)
    pixels = 0
    try:
        # The plugin is called directly because Image.open warns of large pictures, or refuses them, by itself.
        with QuietStderr(), opens(io.BytesIO(data)) as image:
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
    except Exception as error:  # Pillow raises nearly all there are on damaged or hostile files
        if is_short_of_memory(pixels):
            raise MemoryError from None
        if unknown and name == "TIFF" and str(error) in _FOREIGN_PIXELS:
            raise ImageError(unknown) from None
        # Pillow's own words name memory addresses, and equal inputs must give equal reports.
        raise ImageError(f"a damaged or truncated {name} file.") from None


def exif_orientation(image: Image.Image) -> int:
    """Return the EXIF orientation of a picture that Pillow opened, 1 to 8, as `jpeg_orientation` does for JPEG files."""
    return integer_orientation(image.getexif().get(EXIF_TAG))


def integer_orientation(value: object) -> int:
    """Return the value of an orientation tag, 1 unless it is an integer from 1 to 8, or bytes that begin with one."""
    if isinstance(value, bytes) and value:  # the types BYTE and UNDEFINED
        value = value[0]
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def loses_bits(image: Image.Image) -> bool:
    """Return True if an opened, not yet loaded, image has more than 8 bits a channel, of which the high byte is kept."""
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM"):
        return True
    # Of "RGB;16B" Pillow unpacks 8 bits a channel; the last argument of its PPM decoder is the largest value.
    tile = getattr(image, "tile", ())  # of one from a file, until it is loaded
    arguments = tile[0].args if tile else ()
    parts = (arguments,) if isinstance(arguments, str) else tuple(arguments or ())
    if image.format == "PPM" and len(parts) > 1 and isinstance(parts[-1], int):
        return parts[-1] > 255
    return bool(parts) and isinstance(parts[0], str) and "16" in parts[0]


@contextmanager
def _without_pillow_limit(image: Image.Image) -> Iterator[None]:
    """Lift Pillow's limit, a global, while it decodes a picture that ours let through; one thread at a time.

    TIFF checks it again while loading. Pictures below its warning threshold leave it alone.
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


def _as_bytes(image: Image.Image, channels: str) -> tuple[NDArray[np.uint8], bool]:
    """Convert any mode of Pillow's to the wanted channels, as the module's table says. Return whether some alpha is not opaque, too."""
    flat = image
    if image.mode.startswith("I;16") or (
        image.mode == "I" and image.format == "PPM"
    ):  # PGM's 16 bits come as "I"
        values = TiffLevels.of(image).stretched(np.asarray(image).astype(np.uint16))
        flat = Image.fromarray((values >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        kind = "32-bit integers" if image.mode == "I" else "32-bit floats"
        raise ImageError(f"its pixels are {kind}; 8 and 16 bits a channel are read.")
    elif image.mode not in ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr"):
        raise ImageError(f"its colours are {image.mode}; grey, RGB, palette and CMYK are read.")
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
"""Name for messages, as in source_kinds.py -> Pillow's plugin, and how its files begin."""
_READ = f"{', '.join(FORMATS)} and PGM are read"


def format_of_image(data: bytes) -> tuple[str, _Opens | None]:
    """Return a format's name for messages, and Pillow's plugin for it; "" and None if the file begins as none does."""
    return next(((name, opens) for name, (opens, begin) in FORMATS.items() if begin.match(data)), ("", None))


class TiffLevels(NamedTuple):
    """The scale of a grey or RGB TIFF file. bits: of its numbers, up to 16; zero_is_white: its tag PhotometricInterpretation is 0."""

    bits: int = 16
    zero_is_white: bool = False

    @classmethod
    def of(cls, image: Image.Image) -> TiffLevels:
        """Return the scale of 16-bit pixels that Pillow opened; of other formats it is plain."""
        if not isinstance(image, TiffImagePlugin.TiffImageFile):
            return cls()
        return cls(image.tag_v2.get(_BITS, (16,))[0], image.tag_v2.get(_PHOTOMETRIC) == _ZERO_IS_WHITE)

    def stretched(self, values: NDArray[np.uint16]) -> NDArray[np.uint16]:
        """Return grey or colours with black 0 and white 65,535: `values` themselves where they are so."""
        return self.scaled(((1 << self.bits) - 1) - values if self.zero_is_white else values)

    def scaled(self, values: NDArray[np.uint16]) -> NDArray[np.uint16]:
        """Return numbers of so many bits as such of 16."""
        if self.bits == 16:
            return values
        most = (1 << self.bits) - 1
        return ((values.astype(np.uint32) * 65_535 + most // 2) // most).astype(np.uint16)


class ImageHeader(NamedTuple):
    """Size, depth and kind of the pixels of an image file.

    height, width: upright, of a JPEG file; narrowed: it has more than 8 bits a channel; mode: Pillow's; levels: of 16-bit pixels;
    all_bands: Pillow gives as many as a TIFF file says it has.
    """

    height: int
    width: int
    narrowed: bool
    mode: str
    levels: TiffLevels
    all_bands: bool


def read_image_header(data: bytes) -> ImageHeader | None:
    """Read the size and depth of an image file, undecoded; None if it has no header that can be read."""
    try:
        with opened(data) as image:
            width, height = image.size
            tags = image.tag_v2 if isinstance(image, TiffImagePlugin.TiffImageFile) else {}
            all_bands = not tags or tags.get(_SAMPLES, 1) == len(image.getbands())
            found = loses_bits(image), image.mode, TiffLevels.of(image), all_bands
    except (ImageError, MemoryError):
        return None
    if data.startswith(_JPEG_MAGIC) and swaps_sides(jpeg_orientation(data)):
        width, height = height, width
    return ImageHeader(height, width, *found)


def largest_value(data: bytes, max_pixels: int) -> int | None:
    """Return the largest value of a 16-bit grey image, where white is 65,535; None for any other, and for one of more than max_pixels."""
    try:
        with opened(data, max_pixels) as image:
            if image.mode != "I" and not image.mode.startswith("I;16"):
                return None
            return int(TiffLevels.of(image).stretched(np.asarray(image).astype(np.uint16)).max())
    except (ImageError, MemoryError):
        return None


# What libpng, libtiff and Pillow print by themselves: packer says once what is wrong with a file.

_STDERR = 2
_lock = threading.Lock()
_inside = 0
_saved = -1
_for_good = False


@contextmanager
def without_pillow_warnings() -> Iterator[None]:
    """Ignore Pillow's warnings about odd files; one thread enters it, for all that it starts."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\b")
        yield


def silence_process() -> None:
    """Send stderr nowhere for the rest of this process: a worker, which tells its parent everything."""
    global _for_good
    with suppress(OSError):
        _point_nowhere()
        _for_good = True


class QuietStderr:
    """A context in which C libraries print nothing to stderr; for any number of threads. Takes 5 us, in a worker process 0.3."""

    def __enter__(self) -> None:
        """Send stderr nowhere, unless another thread has done so."""
        global _inside, _saved
        if _for_good:
            return
        with _lock:
            _inside += 1
            if _inside == 1:
                with suppress(OSError):  # it is closed, or no descriptor is left: the library prints
                    _saved = os.dup(_STDERR)
                    _point_nowhere()

    def __exit__(self, *_: object) -> None:
        """Give stderr back when the last thread leaves."""
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
