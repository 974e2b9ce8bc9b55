"""Images of 16 bits a channel, or of any number of bands: decoded with their values as they are, and resized.

    | input                            | gray, rgb in uint16                           | a number of bands                |
    |----------------------------------|-----------------------------------------------|----------------------------------|
    | PNG, TIFF: 16-bit grey           | as it is; replicated for rgb                  | as it is                         |
    | PNG, TIFF: 16-bit RGB            | as it is; Rec. 601 luma for gray              | as it is                         |
    | TIFF of 9 to 15 bits             | stretched to 0 to 65,535, then so             | as it is                         |
    | TIFF in which 0 is white         | inverted                                      | as it is                         |
    | alpha                            | composited on white                           | a band                           |
    | PGM of more than 255 levels      | stretched to 0 to 65,535                      | so                               |
    | TIFF of bands, .npy [h, w, C]    | refused                                       | as they are                      |
    | 8 bits a channel, JPEG among it  | as in image_decoder.py, times 257             | as they are; their rows are uint8 |
    | palette, CMYK                    | its colours, as 8 bits                        | refused                          |
    | AVIF, 16-bit PPM, other types    | refused                                       | refused                          |

Times 257: 255, the most of 8 bits, becomes 65,535, and 0 stays 0. It is what PNG's specification says of a change of depth, and
undoes what optimizers do to 16-bit files in which no value needs more than 8. TIFF files of 9 to 15 bits tell their depth, too, and
their largest number becomes 65,535; of 12 bits in a file that says 16 nothing is known. Bands have no white, so theirs are never changed:
a file of another number of bands, or another type, is refused.

TIFF files that Pillow does not read exactly are left to tifffile and imagecodecs. PNG files of 16-bit colours are left to OpenCV,
which refuses damaged and truncated ones, as plain_png.py says. Of several pages, the first is read. EXIF orientation is applied.

Resizing is that of soft maps (soft_maps.py): the triangle filter of images in float32, rounded once. What has its size already is
copied exactly.
"""

from __future__ import annotations

import io
import threading
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from packer.codecs.jpeg import EXIF_TAG, upright
from packer.errors import ImageError
from packer.opencv import cv2
from packer.pixels.decode_resize import DecodeResize, ImagePlacement, PixelSpec
from packer.pixels.image_decoder import (
    DAMAGE,
    QuietStderr,
    ScratchBuffers,
    TiffLevels,
    check_pixels,
    decode,
    exif_orientation,
    format_of_image,
    integer_orientation,
    is_short_of_memory,
    loses_bits,
    opened,
    read_image_header,
)
from packer.pixels.mask_decoder import decode_npy, decode_picture
from packer.pixels.row_size import RowSize
from packer.pixels.soft_maps import place_soft
from packer.sentence import Option

_TYPES = (np.dtype(np.uint8), np.dtype(np.uint16))
_MOST = 65_535
_DEPTH_AT, _COLOR_AT = 24, 25  # of a PNG file: bytes of its first chunk
_PNG_COLORS = {
    2: 3,
    4: 2,
    6: 4,
}  # PNG's number for a kind of pixels -> channels, those of grey alone left out
_COLOR_MODES = {
    "P": "a picture of palette colours",
    "PA": "a picture of palette colours",
    "CMYK": "a picture in CMYK",
    "YCbCr": "a picture in YCbCr",
}
"""Modes of Pillow that are no bands -> what such a file is."""
_LUMA = (19_595, 38_470, 7_471)  # 65536ths, as Pillow has them
_UNASSOCIATED_ALPHA = 2  # TIFF 6.0, section 18


class DeepPixels:
    """Turn image files into rows of 16 bits or of bands; one object serves any number of threads. Called as DecodeResize is."""

    def __init__(self, spec: PixelSpec, rgba: bool = False) -> None:
        """rgba: the last of four channels is alpha, by which colors weigh where rows are made of pixels (`again`)."""
        self.spec, self._rgba = spec, rgba
        self._state = _WidenedState()

    def __reduce__(self) -> tuple[Any, ...]:
        return DeepPixels, (self.spec, self._rgba)

    def __call__(self, data: bytes, out: NDArray[Any]) -> tuple[int, int]:
        """Decode ``data`` and fill ``out``, [H, W, C] of the type and shape of ``spec``; rows may lie apart.

        Returns: (height, width) of the whole picture, upright.
        Raises: ImageError with the reason, but not the file's name.
        """
        values = self._values(data)
        self.again(values, out)
        return values.shape[0], values.shape[1]

    def whole(self, data: bytes, size: RowSize) -> tuple[NDArray[Any], tuple[int, int]]:
        """Decode ``data`` whole, at the size that its row has; as of DecodeResize, in memory of its own."""
        values = self._values(data)
        source = values.shape[0], values.shape[1]
        out = np.empty((*size.of(*source), values.shape[2]), values.dtype)
        self.again(values, out)
        return out, source

    def again(self, pixels: NDArray[Any], out: NDArray[Any]) -> None:
        """Fill ``out`` with the pixels of a row, [h, w, C], upright; not modified."""
        size = out.shape[0], out.shape[1]
        geometry = ImagePlacement.of(self.spec.fit, pixels.shape[:2], size)
        if geometry.target[2:] != size:
            out[...] = 0
        place_soft(pixels, geometry, out)
        if self._rgba:
            _place_weighted(pixels, geometry, out)

    def _values(self, data: bytes) -> NDArray[Any]:
        """Return what a file holds, [h, w, C], upright."""
        spec, self._state.widened = self.spec, False
        if isinstance(spec.channels, int):
            return _bands(data, spec.channels, np.dtype(spec.dtype), spec.max_pixels)
        values, self._state.widened = _colors(data, spec.channels, spec.max_pixels)
        return values

    @property
    def narrowed(self) -> bool:
        """True if the last image that this thread made had 8 bits a channel, and was widened to 16."""
        return self._state.widened


class _WidenedState(threading.local):
    def __init__(self) -> None:
        self.widened = False


def _place_weighted(pixels: NDArray[Any], geometry: ImagePlacement, out: NDArray[Any]) -> None:
    """Fill the colors of ``out``, already resized each by itself, with colors that weigh as much as they are opaque."""
    weighted, alpha = np.zeros(out.shape, np.float32), pixels[..., 3:].astype(np.float32)
    place_soft(np.concatenate([pixels[..., :3] * alpha, alpha], 2), geometry, weighted)
    seen = weighted[..., 3:] > 0  # elsewhere colors stay as they are
    colors = np.divide(weighted[..., :3], weighted[..., 3:], where=seen, out=weighted[..., :3])
    np.copyto(out[..., :3], np.rint(colors), where=seen, casting="unsafe")


def pixels_of(spec: PixelSpec, rgba: bool = False) -> DecodeResize | DeepPixels:
    """Return what makes such pixels of image files, and of pixels. rgba: four channels of 16 bits are colors and alpha."""
    return DeepPixels(spec, rgba) if spec.deep else DecodeResize(spec)


def count_bands(data: bytes, max_pixels: int) -> int:
    """Return the number of bands of an image file. Raises ImageError."""
    return int(_read(data, max_pixels).values.shape[2])


class _Values(NamedTuple):
    """Values as a file has them, upright.

    values: [h, w, C], uint8 or uint16. alpha: the last channel is one, 0 where nothing is seen. levels: of a TIFF file.
    """

    values: NDArray[Any]
    alpha: bool = False
    levels: TiffLevels = TiffLevels()


def _bands(data: bytes, bands: int, dtype: np.dtype[Any], max_pixels: int) -> NDArray[Any]:
    values = _read(data, max_pixels).values
    if values.dtype != dtype:
        raise ImageError(
            f"its values are {values.dtype.name}, and {dtype.name} is packed; one type is kept, as it "
            f"is. Pass {Option('dtype', values.dtype.name)} for such files."
        )
    if values.shape[2] != bands:
        many = "channel" if values.shape[2] == 1 else "channels"
        raise ImageError(f"it has {values.shape[2]:,} {many}, and {bands:,} are packed.")
    return values


def _colors(data: bytes, channels: str, max_pixels: int) -> tuple[NDArray[np.uint16], bool]:
    """Return uint16 [h, w, 1 or 3], upright, and True if they were widened."""
    name, _ = format_of_image(data)
    header = read_image_header(data)
    if name == "AVIF":
        raise ImageError("an AVIF file, of which 8 bits a channel are read, whatever it has.")
    if not (header is None or header.narrowed):
        image = decode(data, channels, max_pixels, _whole, ScratchBuffers())
        pixels = upright(image.pixels[..., : 1 if channels == "gray" else 3], image.orientation)
        return pixels.astype(np.uint16) * np.uint16(257), True
    values, alpha, levels = _read(data, max_pixels)
    count = values.shape[2] - alpha
    if values.dtype != np.uint16 or count not in (1, 3):
        raise ImageError(
            f"it has {values.shape[2]:,} channels of {values.dtype.name}; grey and RGB of 16 bits "
            f"become {channels}. Pass {Option('channels', values.shape[2])} to keep them as they are."
        )
    opacity, values = values[..., count:], levels.stretched(values[..., :count])
    if alpha:
        values = _on_white(values, levels.scaled(opacity))
    if count == 3 and channels == "gray":
        red, green, blue = (values[..., i].astype(np.uint32) * np.uint32(_LUMA[i]) for i in range(3))
        return ((red + green + blue + np.uint32(1 << 15)) >> 16).astype(np.uint16)[..., None], False
    return np.repeat(values, 3, axis=2) if count == 1 and channels == "rgb" else values, False


def _whole(height: int, width: int) -> float:
    """Have a JPEG file decoded at its full size."""
    return 1.0


def _on_white(colors: NDArray[np.uint16], opacity: NDArray[np.uint16]) -> NDArray[np.uint16]:
    alpha = opacity.astype(np.uint64)
    mixed = colors * alpha + np.uint64(_MOST) * (np.uint64(_MOST) - alpha)
    return ((mixed + np.uint64(_MOST // 2)) // np.uint64(_MOST)).astype(np.uint16)


# Files, with their values as they are


def _read(data: bytes, max_pixels: int) -> _Values:
    if not data:
        raise ImageError("empty (0 bytes).")
    if data.startswith(npy.MAGIC_PREFIX):
        return _Values(_with_channels(decode_npy(data, max_pixels)))
    name, opens = format_of_image(data)
    if opens is None:
        raise ImageError(
            "not a PNG, TIFF, BMP, WebP, GIF, JPEG, PPM, PGM or npy file; those are read with their values."
        )
    if name == "PNG" and data[_DEPTH_AT : _DEPTH_AT + 1] == b"\x10" and data[_COLOR_AT] in _PNG_COLORS:
        return _read_png(data, max_pixels)
    if name == "PPM":
        return _read_ppm(data, max_pixels)
    if name == "AVIF":
        raise _no_bands("an AVIF file")
    header = read_image_header(data)
    # Pillow does not open it, or would leave out bands, or the low bytes of several.
    if name == "TIFF" and (
        header is None
        or header.samples != header.bands
        or (header.narrowed and not header.mode.startswith("I;16"))
    ):
        return _read_tiff(data, max_pixels)
    if header is not None and header.mode in _COLOR_MODES:
        raise _no_bands(_COLOR_MODES[header.mode])
    if header is not None and header.mode in ("I", "F"):
        raise ImageError("its pixels are signed, or of 32 bits; uint8 and uint16 are packed.")
    values, orientation = decode_picture(data, max_pixels, palettes=False)
    alpha = values.ndim == 3 and values.shape[2] in (2, 4)
    return _Values(
        _with_channels(upright(values, orientation)), alpha, TiffLevels() if header is None else header.levels
    )


def _no_bands(kind: str) -> ImageError:
    return ImageError(
        f"{kind}, of which the colours are read, and no bands. Pass {Option('channels', 'rgb')} for "
        "such files."
    )


def _with_channels(values: NDArray[Any]) -> NDArray[Any]:
    """Return [h, w, C] of [h, w] too, in the byte order of this machine. Raises ImageError for values of another type."""
    native = values.dtype.newbyteorder("=")
    if native not in _TYPES:
        raise ImageError(f"its values are {native.name}; uint8 and uint16 are packed.")
    return (values[..., None] if values.ndim == 2 else values).astype(native, copy=False)


def _read_png(data: bytes, max_pixels: int) -> _Values:
    """Read a PNG file of 16 bits in each of several channels, which Pillow would narrow."""
    found = None
    with opened(data, max_pixels) as image:
        with suppress(cv2.error):
            found = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
        if found is None or found.dtype != np.uint16 or found.ndim != 3:
            raise ValueError
        orientation = exif_orientation(image)
    stored = found[..., [2, 1, 0, 3][: found.shape[2]]]
    if data[_COLOR_AT] == 4:  # OpenCV makes grey and alpha four channels
        stored = stored[..., [0, 3]]
    return _Values(upright(np.asarray(stored, np.uint16), orientation), stored.shape[2] in (2, 4))


def _read_ppm(data: bytes, max_pixels: int) -> _Values:
    """Read PPM and PGM; Pillow stretches levels to 8 bits, those of PGM of more than 255 to 16."""
    with opened(data, max_pixels) as image:
        if image.mode == "RGB" and loses_bits(image):
            raise ImageError("a PPM file of colours of 16 bits; those are read from PNG and TIFF.")
        image.load()
        values = np.asarray(image.convert("L") if image.mode == "1" else image)
        return _Values(_with_channels(values.astype(np.uint16) if image.mode == "I" else values))


def _read_tiff(data: bytes, max_pixels: int) -> _Values:
    """Read the first page of a TIFF file: any number of bands, of 8 or 16 bits."""
    try:
        import tifffile
    except ImportError:
        raise _needs("tifffile") from None
    try:
        with QuietStderr(), tifffile.TiffFile(io.BytesIO(data)) as file:
            page = file.pages.first
            check_pixels(page.imagelength, page.imagewidth, max_pixels)
            if page.axes not in ("YX", "YXS", "SYX") or page.dtype not in _TYPES:
                kind = "of no known type" if page.dtype is None else page.dtype.name
                raise ImageError(
                    f"its pixels are {kind} [{', '.join(map(str, page.shape))}]; uint8 and uint16 [h, w, bands] are packed."
                )
            values = page.asarray(maxworkers=1)
            values = np.moveaxis(values, 0, -1) if page.axes == "SYX" else values
            alpha = values.ndim == 3 and page.extrasamples[-1:] == (_UNASSOCIATED_ALPHA,)
            tag = page.tags.get(EXIF_TAG)
            orientation = integer_orientation(None if tag is None else tag.value)
            bits = page.bitspersample if isinstance(page.bitspersample, int) else page.dtype.itemsize * 8
            levels = TiffLevels(bits, page.photometric == tifffile.PHOTOMETRIC.MINISWHITE)
    except (*DAMAGE, tifffile.TiffFileError) as error:
        if "imagecodecs" in str(error):
            raise _needs("imagecodecs") from None
        if is_short_of_memory(0):
            raise MemoryError from None
        raise ImageError("a damaged or truncated TIFF file.") from None
    return _Values(upright(_with_channels(values), orientation), alpha, levels)


def _needs(package: str) -> ImageError:
    return ImageError(
        f"a TIFF file that is read with {package}, which is not installed; 'pip install {package}' installs it."
    )
