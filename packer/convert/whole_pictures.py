"""Whole pictures: rows that are uncropped images of different sizes, JPEG or raw; their sizes and masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.codecs import jpeg, jpeg_parts, png
from packer.errors import ImageError, UsageError
from packer.format.header import Field
from packer.pixels.decode_resize import DecodeResize, Encoded, PixelSpec
from packer.pixels.image_files import foreign_profile
from packer.pixels.row_size import RowSize
from packer.sentence import Option

SIZES = tuple(Field(name, "<i4", (), {"of": "image"}) for name in ("height", "width"))
"""Fields of the height and width of each image."""

RAW_BYTES = 10
"""Estimated bytes of pixels per byte of an image file."""


class WholePicture(NamedTuple):
    """A row of a whole picture.

    data: a JPEG file, or the bytes of the pixels; pixels: [h, w, C], upright, possibly in a buffer that the
    thread's next image overwrites; source: (height, width) before shrinking, upright; narrowed: the input had
    more than 8 bits a channel, or 8 bits for a row of 16.
    """

    data: bytes
    pixels: NDArray[Any]
    source: tuple[int, int]
    narrowed: bool

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the row."""
        return self.pixels.shape[0], self.pixels.shape[1]


class WholePictures:
    """A function from image files to rows of whole pictures; thread-safe, with equal results."""

    size: RowSize
    raw: bool
    image: Field

    def __init__(
        self,
        size: RowSize,
        spec: PixelSpec,
        quality: int,
        *,
        raw: bool = False,
        sized: bool = False,
        encode_again: bool = False,
    ) -> None:
        """size: the size rule; spec: channels, and the most pixels of an input; quality: JPEG quality.

        raw: rows are pixels, not JPEG files; sized: always store heights and widths; encode_again: encode
        files with this quality even if they could be copied.
        """
        self.of_files: bool = not encode_again
        """True if rows are made from JPEG files, if there are any, not from their pixels."""
        self.size, self.raw, self._spec, self._quality = size, raw, spec, quality
        self._pixels = DecodeResize(replace(spec, fit="stretch"))
        about: dict[str, Any] = {"layout": "HWC", "color": spec.color}
        about |= {"channels": spec.channels} if isinstance(spec.channels, int) else {}
        about |= {"dtype": "<u2"} if spec.dtype != "uint8" else {}
        about |= {"size": size.option} if size.limits else {}
        self.image = Field("image", "|u1", None, about, None if raw else {"name": "jpeg", "shape": None})
        """The field of these rows."""
        self.sizes: tuple[Field, ...] = SIZES if size.limits or raw or sized else ()
        """Fields of the height and width of each row, if stored."""

    def __call__(self, data: Encoded) -> WholePicture:
        """Return the row of an image file: the JPEG file unchanged if possible, else encoded, or raw pixels.

        A JPEG file stays unchanged if it need not shrink, the loader can decode it, and its colors are not
        converted; bytes after its end are removed. If a rule limits the size, upright JPEG rows get restart markers, so that the loader can
        decode a part of them.
        Raises: ImageError with the reason, without the file's name.
        """
        converts = self._spec.icc == "srgb" and isinstance(data, bytes) and foreign_profile(data)
        if not self.raw and isinstance(data, bytes) and not converts:
            try:
                file = jpeg.without_trailer(data)
                height, width, _ = jpeg.size(file)
                if self.size.of(height, width) == (height, width):
                    channels = self._spec.shape[2] if self.size.limits else None
                    pixels = jpeg.decode(file, self._spec.max_pixels, channels)
                    if jpeg.jpeg_orientation(file) == 1 and self.size.limits:
                        file = jpeg_parts.with_markers(file) or file
                    return WholePicture(file, pixels, (height, width), narrowed=False)
            except ValueError:
                pass  # not a JPEG file, or one that only Pillow decodes; damage raises an error below
        pixels, source = self._pixels.whole(data, self.size)
        return WholePicture(self._stored(pixels), pixels, source, self._pixels.narrowed)

    def again(self, pixels: NDArray[Any]) -> WholePicture:
        """Return the row of pixels [h, w, C], upright; not modified. Raises: ImageError as for a file."""
        height, width = source = pixels.shape[0], pixels.shape[1]
        if (size := self.size.of(height, width)) != source:
            smaller = np.empty((*size, pixels.shape[2]), pixels.dtype)
            self._pixels.again(pixels, smaller)
            pixels = smaller
        return WholePicture(self._stored(np.ascontiguousarray(pixels)), pixels, source, narrowed=False)

    def fill(self, picture: WholePicture, rows: Mapping[str, Any], at: int) -> NDArray[Any] | None:
        """Write a row and its size.

        Returns: the pixels that count for mean and standard deviation, or None.
        """
        rows["image"][at] = picture.data
        if self.sizes:
            rows["height"][at], rows["width"][at] = picture.size
        return picture.pixels if self.size.limits or self.raw else None

    def usual_bytes(self, given: int) -> int:
        """Return the estimated bytes of a row. given: average bytes of the files."""
        if not self.raw:
            return self.size.usual_bytes(given)
        most = self.size.height * self.size.width * self._spec.shape[2] * np.dtype(self._spec.dtype).itemsize
        return min(RAW_BYTES * given, most) if self.size.limits else RAW_BYTES * given

    def _stored(self, pixels: NDArray[Any]) -> bytes:
        if self.raw:
            return pixels.tobytes()
        try:
            return jpeg.encode(pixels, self._quality, restarts=bool(self.size.limits))
        except ValueError as error:
            raise ImageError(f"cannot be stored as JPEG ({error}).") from None


def check_stored(size: RowSize, store: str, channels: str | int) -> None:
    """Raise UsageError unless whole pictures can be stored this way."""
    allowed = ("rgb", "gray") if size.limits else ("rgb",)
    if store == "jpeg" and channels not in allowed:
        raise UsageError(
            f"size {size.option}: JPEG rows of this size are {' or '.join(allowed)}, not {channels}. Pass "
            f"{Option('store', 'raw')}, or {Option('channels', 'rgb')}."
        )
    if store not in ("raw", "jpeg"):
        raise UsageError(
            f"{Option('store', store)}: is for rows of one size; with size {size.option} images keep"
            f" different sizes. Pass {Option('store', 'jpeg')}, or {Option('store', 'raw')}."
        )


def partner_versions(fields: Sequence[Field]) -> dict[str, str]:
    """Return the versions of the PNG encoder and of the writer of restart markers, if fields use them."""
    codecs = {((f.codec or {}).get("name"), f.name == "image" and "size" in f.about) for f in fields}
    return (png.versions() if ("png", False) in codecs else {}) | (
        jpeg_parts.versions() if ("jpeg", True) in codecs else {}
    )


def store_partner(field: Field, values: NDArray[Any]) -> bytes:
    """Return the bytes of a mask or soft map of a whole picture, raw or PNG. values: [h, w] or [h, w, C]."""
    sized = field.own_size
    assert sized is not None
    return values.astype(sized.dtype, copy=False).tobytes() if sized.codec is None else png.encode(values)
