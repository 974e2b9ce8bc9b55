"""A caller's images as input of conversion: bytes of a file, or a Pillow image."""

from __future__ import annotations

import io
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from packer.errors import ImageError, UsageError
from packer.inputs.image_sources import MOST_BYTES_A_PIXEL, check_bytes
from packer.pixels.decode_resize import Encoded, PixelSpec

_PNG_MODES = frozenset(("1", "L", "LA", "P", "I;16", "RGB", "RGBA"))


def decodable(image: Any, spec: PixelSpec) -> Encoded:
    """Return an image as input of DecodeResize. Raises ImageError for a file that cannot be read, UsageError.

    image: a path; the bytes of a file; a Pillow image; or an array, RGB as everywhere. Images and arrays
        become lossless files.
    """
    if isinstance(image, str | os.PathLike):
        try:
            with open(image, "rb") as file:
                image = file.read(MOST_BYTES_A_PIXEL * spec.max_pixels + 1)
        except OSError as error:
            raise ImageError(f"cannot be read ({error.strerror}). Check the name.") from None
    if isinstance(image, bytes | bytearray | memoryview):
        check_bytes(len(image), spec.max_pixels)
        return bytes(image)
    if isinstance(image, np.ndarray):
        return _of_array(image, spec)
    if isinstance(image, Image.Image):
        return _png(image) if spec.deep else image
    raise UsageError(
        f"images: a {type(image).__name__} is given; a path, the bytes of a file, a Pillow image, an array"
        " uint8 [h, w, 3] in RGB order, or a list of these are allowed. Pass one of them."
    )


def _of_array(array: NDArray[Any], spec: PixelSpec) -> Encoded:
    """Return an array as input of conversion: a .npy or PNG file, or a Pillow image."""
    bands = isinstance(spec.channels, int)
    deep = array.dtype == np.uint16 and (spec.deep or array.ndim == 2)
    shaped = array.ndim == 2 or (array.ndim == 3 and (bands or array.shape[2] in (1, 3, 4)))
    if not (shaped and (deep or array.dtype == np.uint8) and array.size):
        count = spec.shape[2]
        raise UsageError(
            f"images: an array {array.dtype} {list(array.shape)} is given; {spec.dtype} [h, w, {count}]"
            f"{'' if bands or count == 1 else ', channels last, in RGB order,'} is allowed. Convert it."
        )
    array = array[..., 0] if array.shape[2:] == (1,) and not bands else np.ascontiguousarray(array)
    if bands or (deep and spec.deep):
        file = io.BytesIO()
        np.save(file, array)
        return file.getvalue()
    image = Image.fromarray(np.ascontiguousarray(array))
    return _png(image) if spec.deep else image


def _png(image: Image.Image) -> bytes:
    """Return an image as a PNG file, with its EXIF orientation. Raises ImageError."""
    file = io.BytesIO()
    exif = image.getexif()
    if image.mode in ("I", "F"):
        raise ImageError("its pixels have 32 bits; 8 and 16 bits a channel are read.")
    if image.mode not in _PNG_MODES:
        image = image.convert("RGBA" if image.has_transparency_data else "RGB")
    image.save(file, "PNG", compress_level=1, exif=exif)
    return file.getvalue()
