"""The size and depth of an image file, from its header: nothing is decoded."""

from __future__ import annotations

import io
from typing import NamedTuple

import numpy as np
from PIL import Image, JpegImagePlugin

from packer.codecs.orientation import jpeg_orientation, swaps_sides
from packer.errors import ImageError
from packer.pixels.decode import DAMAGE, FORMATS, check_effort, loses_bits, without_pillow_limit


class Peek(NamedTuple):
    """What a header says. height, width: upright, of a JPEG file; narrowed: its values have more than 8 bits, which are not kept."""

    height: int
    width: int
    narrowed: bool


def peek(data: bytes) -> Peek | None:
    """Look at the header of an image file; None if there is none that can be read."""
    is_jpeg = data.startswith(b"\xff\xd8\xff")
    name, opens = next(
        ((name, opens) for name, opens, accepts in FORMATS if accepts(data)),
        ("JPEG", JpegImagePlugin.JpegImageFile if is_jpeg else None),
    )
    if opens is None:
        return None
    try:
        check_effort(data, name)
        with opens(io.BytesIO(data)) as image:
            width, height = image.size
            narrowed = loses_bits(image)
    except (*DAMAGE, ImageError, Image.DecompressionBombError):
        return None
    if is_jpeg and swaps_sides(jpeg_orientation(data)):
        width, height = height, width
    return Peek(height, width, narrowed)


def largest_value(data: bytes, max_pixels: int) -> int | None:
    """Return the largest value of a 16-bit grey image; None for any other, and for one of more than max_pixels."""
    opens = next((opens for _, opens, accepts in FORMATS if accepts(data)), None)
    try:
        if opens is None:
            return None
        with opens(io.BytesIO(data)) as image:
            if image.height * image.width > max_pixels or not (
                image.mode == "I" or image.mode.startswith("I;16")
            ):
                return None
            with without_pillow_limit(image):
                image.load()
            return int(np.asarray(image).max())
    except (*DAMAGE, Image.DecompressionBombError):
        return None
