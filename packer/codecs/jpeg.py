"""Rows stored as JPEG bytes: written by OpenCV, read by simplejpeg; EXIF orientation.

Both contain libjpeg-turbo. OpenCV writes, because simplejpeg has no option for the accurate DCT: TurboJPEG,
which it calls, uses the fast DCT below quality 96 unless a flag forbids it. The fast DCT overflows in blocks
of high contrast and inverts some of them: at quality 90, 41 of 4,000 random blocks whose halves are each
other's negative.

packer writes 4:2:0, and reads with the accurate DCT and smooth upsampling. Measured at quality 90 on 256
photos of 256 px, one core of a shared EPYC, PSNR of the RGB pixels against the raw ones:

                              kB per photo  PSNR mean    worst    encoded    decoded
    4:2:0                        17.9        39.7 dB     32.2     6,320/s    5,290/s
    4:2:0, fastupsample                      38.9        30.9                5,340/s
    4:2:0, fastdct                           38.9        31.9                5,390/s
    4:2:2                        19.3        40.4        34.3     5,240/s    4,700/s
    4:4:4                        21.2        41.4        36.7     4,170/s    4,050/s
    4:4:4, quality 85            17.1        39.4        33.8     4,390/s    4,410/s
    4:2:0 by simplejpeg          18.0        39.6        32.0     6,640/s    5,280/s

So 4:2:0 decodes a fifth faster than 4:4:4 of the same size and fidelity, and the fast variants of decoding
save 1 to 2 % for 0.8 dB.

The orientation tag's eight values (Exif 2.32, tag 0x0112) describe the stored picture: 1 upright, 2 mirrored,
3 turned by 180 degrees, 4 upside down, 5 transposed, 6 to be turned 90 degrees clockwise, 7 transversed, 8 to
be turned 90 degrees anticlockwise.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from packer import native
from packer.codecs.jpeg_parts import interval_of

# simplejpeg is imported where it is used: raw rows do not need it, and it has no wheel for Python without the
# GIL.

Data: TypeAlias = "bytes | bytearray | memoryview | NDArray[np.uint8]"

MAX_SCANS = 100
"""Limit on scans.

Each passes over the entire picture, so thousands of empty ones would occupy a decoder; encoders write up to
10.
"""

MAX_SEGMENTS = 1 << 16
"""Limit on segments (of 64 KiB) before the pixels; Pillow reads segments and fill bytes one by one."""

_FILL = b"\xff" * MAX_SEGMENTS
_BEGIN = b"\xff\xd8"
_SCAN = b"\xff\xda"
_END = b"\xff\xd9"
_MARKER = re.compile(rb"\xff+[^\x00\xd0-\xd8\xff]")
"""A marker of a segment, or the last marker. In compressed pixels 0, or D0 to D7, follows 0xFF."""
_MAX_SEGMENTS = 1 << 10
_CHANNELS = {"Gray": 1, "YCbCr": 3, "RGB": 3}
_COLORSPACES = {1: "GRAY", 3: "RGB", 4: "RGBX"}
_MCU_SIDES = {1: 8, 3: 16}
_MAX_SIDE = 65_500

EXIF_TAG = 0x0112
_APP1 = 0xE1
_START_OF_SCAN = 0xDA
_ENTRY_BYTES = 12
_INTEGERS = {1: "B", 3: "H", 4: "I", 6: "b", 7: "B", 8: "h", 9: "i", 13: "I", 16: "Q"}
"""TIFF's types of integers, and bytes without a declared meaning (7), as `struct` codes."""

_FILL_BYTES = re.compile(b"\xff+")


def encode(pixels: NDArray[np.uint8], quality: int, restarts: bool = False) -> bytes:
    """Encode one image as a baseline JPEG in 4:2:0.

    Equal pixels give equal bytes under the same version of OpenCV.

    pixels: uint8 [H, W, C], C 1 or 3, C-contiguous, sides at most 65,500; not modified. quality: 1 to 100.
    restarts: write restart markers, as jpeg_parts.py needs them. Raises: ValueError.
    """
    if (
        pixels.ndim != 3
        or pixels.shape[2] not in _MCU_SIDES
        or not (pixels.size and pixels.flags.c_contiguous)
    ):
        raise ValueError(f"pixels are {list(pixels.shape)}; contiguous [H, W, 1] and [H, W, 3] are encoded")
    if not 1 <= quality <= 100:
        raise ValueError(f"quality is {quality}; 1 to 100 are allowed")
    height, width, channels = pixels.shape
    if max(height, width) > _MAX_SIDE:
        raise ValueError(f"{width:,} x {height:,} pixels; a side of a JPEG has at most {_MAX_SIDE:,}")
    from packer.opencv import cv2  # imported here: loading decodes without OpenCV

    options = [cv2.IMWRITE_JPEG_QUALITY, quality]
    side = _MCU_SIDES[channels]
    rows, columns = -(-height // side), -(-width // side)
    if restarts and rows * columns > (interval := interval_of(columns)):
        options += [cv2.IMWRITE_JPEG_RST_INTERVAL, interval]
    encoded = cv2.imencode(
        ".jpg", cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR) if channels == 3 else pixels, options
    )[1]
    return encoded.tobytes()


def decode_into(data: Data, out: NDArray[np.uint8]) -> None:
    """Decode one image of known size.

    data: a complete JPEG file. out: uint8 [H, W, C], C 1 or 3, C-contiguous; filled, unless an error is
    raised.
    Raises: ValueError if the JPEG is damaged or truncated, or its size or channels differ from ``out``. The
        header shows this in 2 us, before a pixel is decoded. EXIF orientation is ignored.

    Notes: A flipped bit in the compressed pixels often decodes to other pixels; only a checksum detects it.
    """
    data = _bytes(data)
    found = _header(data)
    if found != out.shape:
        raise ValueError(f"a JPEG of {_words(*found)}; the row has {_words(*out.shape)}")
    _decode(data, out)


def fill_plain(data: bytes, out: NDArray[np.uint8]) -> bool:
    """Decode a plain JPEG file: of the size of ``out``, without Exif data, baseline, in one scan.

    data: a file. out: uint8 [H, W, C], C 1 or 3, C-contiguous. Returns: False, with ``out`` undefined, for
    any other file, also for a damaged one. For a picture of 32x32 this takes half the time of checking
    everything that a file may require.
    """
    if (shape := plain_shape(data)) is None or shape[:2] != out.shape[:2]:
        return False
    import simplejpeg

    try:
        simplejpeg.decode_jpeg(data, _COLORSPACES[out.shape[2]], buffer=out)
    except ValueError:
        return False
    return True


def plain_shape(data: Data) -> tuple[int, int, int] | None:
    """Return (height, width, channels) of a plain JPEG; None for any other file.

    Plain: baseline, in one scan, without Exif data, so upright. Takes 0.3 us. Without the compiled loops it
    returns None for every file.
    """
    return native.loops.jpeg_plain_shape(data) if native.COMPILED else None


def decode(data: Data, max_pixels: int, channels: int | None = None) -> NDArray[np.uint8]:
    """Decode one image of any size, and turn it upright by its EXIF orientation.

    data: a complete JPEG file; max_pixels: limit on height times width, checked before memory is allocated.
    channels: 1 (luma) or 3 (grey replicated); None keeps the JPEG's number.
    Returns: uint8 [h, w, C], C-contiguous.
    Raises: ValueError if the JPEG is damaged, truncated, CMYK or too large.
    """
    data = _bytes(data)
    height, width, own = _header(data)
    if height * width > max_pixels:
        raise ValueError(f"a JPEG of {width:,} x {height:,} pixels; at most {max_pixels:,} are allowed")
    pixels = np.empty((height, width, channels or own), np.uint8)
    _decode(data, pixels)
    turned = upright(pixels, jpeg_orientation(data))
    # Always a copy: with a side of 1 pixel, ascontiguousarray would keep a negative stride.
    return turned if turned is pixels else turned.copy()


def decode_upright_into(data: Data, out: NDArray[np.uint8], reduced: bool = False) -> None:
    """Decode one image of known size, and turn it upright by its EXIF orientation.

    data: a complete JPEG file. out: uint8 [h, w, C], C 1 or 3, C-contiguous, of the size that `size` returns;
    filled, unless an error is raised. C 4 is RGB and a meaningless fourth number; it takes 0.84 of the time
    of 3. reduced: out is 1/2, 1/4 or 1/8 of that size, rounded up; the file is upright and has at least 16
    pixels per side.
    Raises: ValueError if the JPEG is damaged, truncated or CMYK.
    """
    data = _bytes(data)
    if reduced:
        _decode(data, out, reduced)
        return
    orientation = jpeg_orientation(data)
    if orientation == 1:
        _decode(data, out)
        return
    height, width, channels = out.shape
    pixels = np.empty((width, height, channels) if swaps_sides(orientation) else out.shape, np.uint8)
    _decode(data, pixels)
    np.copyto(out, upright(pixels, orientation))


def size(data: Data) -> tuple[int, int, int]:
    """Return the (height, width, channels) that ``decode`` returns, from the header alone.

    Raises: ValueError.
    """
    if plain := plain_shape(data):
        return plain
    data = _bytes(data)
    height, width, channels = _header(data)
    if swaps_sides(jpeg_orientation(data)):
        height, width = width, height
    return height, width, channels


def versions() -> dict[str, str]:
    """Return the name and version of the library that produces the bytes."""
    from packer.opencv import cv2

    return {"opencv": cv2.__version__}


def _header(data: bytes) -> tuple[int, int, int]:
    """Return height and width as stored, and channels."""
    if len(data) == 0:  # simplejpeg reads the first byte of any input
        raise ValueError("empty; a JPEG is expected")
    import simplejpeg

    try:
        height, width, colorspace, _ = simplejpeg.decode_jpeg_header(data)
    except (ValueError, KeyError) as error:
        raise ValueError(f"not a JPEG that can be decoded ({_reason(error)})") from None
    if colorspace not in _CHANNELS:
        raise ValueError(f"a JPEG in {colorspace}; grey and colour ones are decoded")
    return int(height), int(width), _CHANNELS[colorspace]


def _decode(data: bytes, out: NDArray[np.uint8], reduced: bool = False) -> None:
    import simplejpeg

    # Full decoding sets no minimum size: below 8 pixels two scales would have the same size.
    least = (False, False, *out.shape[:2]) if reduced else ()
    if has_too_many_scans(data):
        raise ValueError(f"a JPEG of more than {MAX_SCANS} scans; up to {MAX_SCANS} are decoded")
    try:
        # strict: without it 95 % of the places where a file can be truncated go undetected. It costs nothing.
        simplejpeg.decode_jpeg(data, _COLORSPACES[out.shape[2]], *least, buffer=out, strict=True)
    except ValueError as error:
        raise ValueError(f"a damaged or truncated JPEG ({_reason(error)})") from None


def has_too_many_scans(data: bytes) -> bool:
    """Return True if a JPEG file has more than MAX_SCANS."""
    if plain_shape(data) or _only_scan(data) or data.count(_SCAN) <= MAX_SCANS:
        return False
    scans = 0  # a thumbnail in the metadata has scans too
    for marker, _ in _markers(data):
        scans += marker == _SCAN[1]
        if scans > MAX_SCANS:
            return True
    return False


def without_trailer(data: bytes) -> bytes:
    """Return a JPEG file without bytes behind its end, such as a phone's video.

    Returns `data` itself if there are none, or if the file has no end.
    """
    if not data.startswith(_BEGIN):
        return data
    if pixels := _only_scan(data):
        end = data.find(_END, pixels) + len(_END)
        return data[:end] if end >= len(_END) else data
    return next((data[:end] for marker, end in _markers(data) if marker == _END[1]), data)


def _markers(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield each marker after the first, up to the end of the picture, and the position behind it."""
    position = 2
    while found := _MARKER.search(data, position):
        marker, position = found[0][-1], found.end()
        yield marker, position
        if marker == _END[1]:
            return
        if marker != 0x01 and position + 2 <= len(data):
            position += max(2, data[position] << 8 | data[position + 1])


def has_too_many_segments(data: bytes) -> bool:
    """Return True if a JPEG file has more than MAX_SEGMENTS before its pixels, or as many fill bytes in a
    row.
    """
    position, end = 2, len(data) - 4
    for _ in range(MAX_SEGMENTS):
        if position >= end or data[position] != 0xFF or data[position + 1] == _SCAN[1]:
            return False
        if data[position + 1] == 0xFF:
            if data.startswith(_FILL, position):
                return True
            position += 1
            continue
        position += 2 + (data[position + 2] << 8 | data[position + 3])
    return True


def _only_scan(data: bytes) -> int:
    """Return the offset of the first scan if the markers promise that it holds the entire picture, else 0.

    libjpeg-turbo then refuses a second scan. Takes 2 us; counting the scans of 14 kB takes 14. Also 0 for
    unusual files.
    """
    position, components = 2, 0
    for _ in range(_MAX_SEGMENTS):
        if position + 9 >= len(data) or data[position] != 0xFF:
            return 0
        marker = data[position + 1]
        if marker == 0xDA:
            return position if data[position + 4] == components > 0 else 0
        if marker in (0xC0, 0xC1):  # baseline and extended sequential
            components = data[position + 9]
        elif marker not in (0xC4, 0xDB, 0xDD, 0xFE) and not 0xE0 <= marker <= 0xEF:
            return 0
        position += 2 + (data[position + 2] << 8 | data[position + 3])
    return 0


def _bytes(data: Data) -> bytes:
    return data if isinstance(data, bytes) else bytes(data)


def _words(height: int, width: int, channels: int) -> str:
    return f"{width:,} x {height:,} pixels in {channels} channel{'s' * (channels > 1)}"


def _reason(error: Exception) -> str:
    """Return libjpeg-turbo's message."""
    return str(error).rpartition("(): ")[2]


def jpeg_orientation(data: Data) -> int:
    """Return the EXIF orientation of a JPEG file from its APP1 segment.

    data: the complete file, or at least everything before its pixels. Integers of any type are read; the
    standard has SHORT.
    Returns: 1 to 8; 1 if there is none or an unreadable one (as viewers do).

    A photo without EXIF takes about 1 us, with EXIF 2 us; Pillow takes 59 us.
    """
    if plain_shape(data):
        return 1
    data = _bytes(data)
    position, end = 2, len(data) - 4
    for _ in range(MAX_SEGMENTS):
        if position >= end or data[position] != 0xFF:
            break
        marker = data[position + 1]
        if marker == 0xFF:
            fill = _FILL_BYTES.match(data, position)
            position = fill.end() - 1 if fill else end
            continue
        if marker == _START_OF_SCAN:
            break
        length = data[position + 2] << 8 | data[position + 3]
        if marker == _APP1 and data[position + 4 : position + 10] == b"Exif\0\0":
            return _tiff_orientation(data[position + 10 : position + 2 + length])
        position += 2 + length
    return 1


def _tiff_orientation(tiff: bytes) -> int:
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None:
        return 1
    try:
        (first,) = struct.unpack_from(order + "I", tiff, 4)
        (count,) = struct.unpack_from(order + "H", tiff, first)
        for entry in range(first + 2, first + 2 + count * _ENTRY_BYTES, _ENTRY_BYTES):
            tag, kind, values = struct.unpack_from(order + "HHI", tiff, entry)
            if tag == EXIF_TAG and kind in _INTEGERS and values:
                integer = order + _INTEGERS[kind]
                at = entry + 8
                if values * struct.calcsize(integer) > 4:
                    (at,) = struct.unpack_from(order + "I", tiff, at)
                (value,) = struct.unpack_from(integer, tiff, at)
                return value if 1 <= value <= 8 else 1
    except struct.error:
        pass
    return 1


def swaps_sides(orientation: int) -> bool:
    """Return True if turning upright exchanges height and width (orientations 5 to 8)."""
    return orientation >= 5


def upright(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Return a stored picture turned upright, as a view.

    pixels: [h, w, ...]; orientation: 1 to 8.
    Returns: a view, [w, h, ...] for orientations 5 to 8, [h, w, ...] otherwise.
    """
    if swaps_sides(orientation):
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return pixels
