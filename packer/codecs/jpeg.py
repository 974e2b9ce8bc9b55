"""Rows stored as JPEG bytes: written by OpenCV, read by simplejpeg; EXIF orientation, which way up a picture is.

Both contain libjpeg-turbo. OpenCV writes, because simplejpeg has no option for the accurate DCT: TurboJPEG, which it calls,
takes the fast one below quality 96 unless a flag forbids it. The fast DCT overflows in blocks of high contrast, and writes
some of them upside down: at quality 90, 41 of 4,000 random blocks of two halves that are each other's negative.

We write 4:2:0, and read with the accurate DCT and smooth upsampling. Measured at quality 90 on 256 photos of 256 px, one
core of an EPYC that others used too, PSNR of the RGB pixels against the raw ones:

                              kB a photo    PSNR mean    worst    encoded    decoded
    4:2:0                        17.9        39.7 dB     32.2     6,320/s    5,290/s
    4:2:0, fastupsample                      38.9        30.9                5,340/s
    4:2:0, fastdct                           38.9        31.9                5,390/s
    4:2:2                        19.3        40.4        34.3     5,240/s    4,700/s
    4:4:4                        21.2        41.4        36.7     4,170/s    4,050/s
    4:4:4, quality 85            17.1        39.4        33.8     4,390/s    4,410/s
    4:2:0 by simplejpeg          18.0        39.6        32.0     6,640/s    5,280/s

So 4:2:0 decodes a fifth faster than 4:4:4 of the same size and fidelity, and the fast variants of decoding save 1 to 2 %
for 0.8 dB.

The orientation tag's eight values (Exif 2.32, tag 0x0112) say how the picture is stored: 1 upright, 2 mirrored, 3 turned
by 180 degrees, 4 upside down, 5 transposed, 6 to be turned 90 degrees clockwise, 7 transversed, 8 to be
turned 90 degrees anticlockwise.
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

# simplejpeg is imported where it is used: raw rows need none of it, and a Python without the GIL has no wheel of it.

Data: TypeAlias = "bytes | bytearray | memoryview | NDArray[np.uint8]"

MAX_SCANS = 100
"""Each scan passes over the whole picture, so thousands of empty ones would keep a decoder busy; encoders write up to 10."""

MAX_SEGMENTS = 1 << 16
"""Before the pixels: 64 KiB each hold 4 GiB; Pillow goes through them, and through fill bytes, one by one."""

_FILL = b"\xff" * MAX_SEGMENTS
_BEGIN = b"\xff\xd8"
_SCAN = b"\xff\xda"
_END = b"\xff\xd9"
_MARKER = re.compile(rb"\xff+[^\x00\xd0-\xd8\xff]")
"""A marker that begins a segment, or the last one: in compressed pixels 0xFF is followed by 0, or by D0 to D7."""
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
"""TIFF's types of integers, and bytes of no declared meaning (7), as `struct` has them."""

_FILL_BYTES = re.compile(b"\xff+")


def encode(pixels: NDArray[np.uint8], quality: int, restarts: bool = False) -> bytes:
    """Encode one image as a baseline JPEG of 4:2:0; equal pixels give equal bytes under one version of OpenCV.

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
    from packer.opencv import cv2  # here: loading decodes, and never needs OpenCV

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
    """Decode one image of a known size.

    data: a whole JPEG file. out: uint8 [H, W, C], C 1 or 3, C-contiguous; filled, unless an error is raised.
    Raises: ValueError if the JPEG is damaged or truncated, or its size or channels are not those of ``out``. That is seen
        from its header, 2 us, before a pixel is decoded. EXIF orientation is not looked at.

    Notes: A flipped bit inside the compressed pixels often decodes, to other pixels; only a checksum finds it.
    """
    data = _bytes(data)
    found = _header(data)
    if found != out.shape:
        raise ValueError(f"a JPEG of {_words(*found)}; the row has {_words(*out.shape)}")
    _decode(data, out)


def fill_plain(data: bytes, out: NDArray[np.uint8]) -> bool:
    """Decode a JPEG file with which nothing else has to be done: of the size of ``out``, without Exif data, baseline, in one scan.

    data: a file. out: uint8 [H, W, C], C 1 or 3, C-contiguous. Returns: False, ``out`` undefined, for any other file, damaged ones among
    them; so takes a picture of 32x32 half the time that it takes to look at all that a file may ask for.
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
    """Read (height, width, channels) of a baseline JPEG in one scan without Exif data, so upright; None for any other file.

    Takes 0.3 us. Without the loops in C it is None of every file.
    """
    return native.loops.jpeg_plain_shape(data) if native.COMPILED else None


def decode(data: Data, max_pixels: int, channels: int | None = None) -> NDArray[np.uint8]:
    """Decode one image of any size, and turn it upright as its EXIF orientation says.

    data: a whole JPEG file; max_pixels: the most that height times width may be, checked before memory is taken.
    channels: 1 (luma) or 3 (grey replicated); None keeps the JPEG's own.
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
    return (
        turned if turned is pixels else turned.copy()
    )  # a side of one pixel would keep a negative stride else


def decode_upright_into(data: Data, out: NDArray[np.uint8], reduced: bool = False) -> None:
    """Decode one image of known size, and turn it upright as its EXIF orientation says.

    data: a whole JPEG file. out: uint8 [h, w, C], C 1 or 3, C-contiguous, of the size that `size` tells; filled, unless an error is
    raised. C 4 is RGB and a number without meaning; it takes 0.84 of the time of 3. reduced: out is 1/2, 1/4 or 1/8 of that size,
    rounded up; the file is upright and has at least 16 pixels a side.
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
    """Read (height, width, channels) of what ``decode`` returns, from the header alone. Raises: ValueError."""
    if plain := plain_shape(data):
        return plain
    data = _bytes(data)
    height, width, channels = _header(data)
    if swaps_sides(jpeg_orientation(data)):
        height, width = width, height
    return height, width, channels


def versions() -> dict[str, str]:
    """Return the name and version of what makes the bytes."""
    from packer.opencv import cv2

    return {"opencv": cv2.__version__}


def _header(data: bytes) -> tuple[int, int, int]:
    """Read height and width as stored, and channels."""
    if len(data) == 0:  # simplejpeg reads the first byte of whatever it is given
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

    # Whole pictures name no least size: of less than 8 pixels two scales would have the same.
    least = (False, False, *out.shape[:2]) if reduced else ()
    if has_too_many_scans(data):
        raise ValueError(f"a JPEG of more than {MAX_SCANS} scans; up to {MAX_SCANS} are decoded")
    try:
        # strict: without it 95 % of the places where a file can be cut go unnoticed. It costs nothing.
        simplejpeg.decode_jpeg(data, _COLORSPACES[out.shape[2]], *least, buffer=out, strict=True)
    except ValueError as error:
        raise ValueError(f"a damaged or truncated JPEG ({_reason(error)})") from None


def has_too_many_scans(data: bytes) -> bool:
    """Say whether a JPEG file has more than MAX_SCANS."""
    if plain_shape(data) or _only_scan(data) or data.count(_SCAN) <= MAX_SCANS:
        return False
    scans = 0  # a thumbnail in the metadata has scans of its own
    for marker, _ in _markers(data):
        scans += marker == _SCAN[1]
        if scans > MAX_SCANS:
            return True
    return False


def without_trailer(data: bytes) -> bytes:
    """Return a JPEG file without what follows its end, such as a phone's video; `data` itself if nothing does, or it has no end."""
    if not data.startswith(_BEGIN):
        return data
    if pixels := _only_scan(data):
        end = data.find(_END, pixels) + len(_END)
        return data[:end] if end >= len(_END) else data
    return next((data[:end] for marker, end in _markers(data) if marker == _END[1]), data)


def _markers(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the markers after the first one, up to the end of the picture, and where each marker ends."""
    position = 2
    while found := _MARKER.search(data, position):
        marker, position = found[0][-1], found.end()
        yield marker, position
        if marker == _END[1]:
            return
        if marker != 0x01 and position + 2 <= len(data):
            position += max(2, data[position] << 8 | data[position + 1])


def has_too_many_segments(data: bytes) -> bool:
    """Say whether a JPEG file has more than MAX_SEGMENTS before its pixels, or as many fill bytes before one of them."""
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
    """Return where the first scan begins if the markers say that it holds the whole picture: libjpeg-turbo then refuses a second one.

    Takes 2 us; counting the scans of 14 kB takes 14. Returns 0 for whatever is out of the ordinary.
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
    """Return libjpeg-turbo's own words."""
    return str(error).rpartition("(): ")[2]


def jpeg_orientation(data: Data) -> int:
    """Read the EXIF orientation of a JPEG file from its APP1 segment; integers of any type count, though SHORT is the standard's.

    data: the whole file, or at least everything before its pixels.
    Returns: 1 to 8; 1 where there is none, or none that can be read (as viewers do).

    A photo without EXIF takes about 1 us, one with it 2 us; Pillow takes 59 us to say the same.
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
    """Say whether turning upright exchanges height and width (orientations 5 to 8)."""
    return orientation >= 5


def upright(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Turn a stored picture the right way up, as a view.

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
