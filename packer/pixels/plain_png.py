"""The plainest PNG files through OpenCV: 8 bits, grey or RGB, nothing in them that changes how they look.

Pillow's pixels to the byte, sooner: 5.0 against 5.8 ms for a photo of 400x533, 45 against 72 us for 32x32. Everything else is
left to Pillow, and so is each file that OpenCV refuses (it is the stricter of the two: of 6,000 files with a flipped bit,
16 zeroed bytes or a missing end it took none that Pillow refuses, in versions 4.10, 4.11 and 5.0).
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from packer.opencv import cv2

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


def plain_png_size(data: bytes, channels: str) -> tuple[int, int] | None:
    """Return (height, width) of a file that ``decode_plain_png`` may try, None for any other.

    data: a file of any kind; channels: "rgb", "gray" or "rgba".
    """
    if len(data) < _HEADER.size:
        return None
    signature, _, kind, width, height, depth, color, _, _, interlaced = _HEADER.unpack_from(data)
    if (signature, kind, depth, interlaced) != (_SIGNATURE, b"IHDR", 8, 0) or (color, channels) not in _FLAGS:
        return None
    position = len(_SIGNATURE)
    for _ in range(MAX_CHUNKS):
        if position + _CHUNK.size > len(data):
            return None
        length, kind = _CHUNK.unpack_from(data, position)
        if kind == b"IEND":
            return height, width
        if kind not in _HARMLESS and not _is_harmless_text(data, position):
            return None
        position += _CHUNK.size + length + 4
    return None


def has_too_many_chunks(data: bytes) -> bool:
    """Return True if a PNG file has more than MAX_CHUNKS."""
    position = len(_SIGNATURE)
    for _ in range(MAX_CHUNKS):
        if position + _CHUNK.size > len(data):
            return False
        position += _CHUNK.size + _CHUNK.unpack_from(data, position)[0] + 4
    return position + _CHUNK.size <= len(data)


def _is_harmless_text(data: bytes, position: int) -> bool:
    """Return True if a chunk is text that holds no orientation, as EXIF or XMP would."""
    kind, text = data[position + 4 : position + 8], position + 8
    return kind == b"tEXt" and not data.startswith((b"Raw profile", b"XML:"), text)


def decode_plain_png(data: bytes, channels: str) -> NDArray[np.uint8] | None:
    """Decode a file for which ``plain_png_size`` gave a size.

    Returns: uint8 [h, w, C], C as ``channels`` asks; None if OpenCV refuses the file: ask Pillow.
    """
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), _FLAGS[data[25], channels])
    except cv2.error:
        return None
    if pixels is None:
        return None
    return pixels.astype(np.uint8, copy=False).reshape(*pixels.shape[:2], -1)
