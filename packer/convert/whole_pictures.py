"""Whole pictures: rows that are uncropped images of different sizes, JPEG files; their sizes and masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.codecs import jpeg, jpeg_parts, png
from packer.errors import ImageError, UsageError
from packer.format.fields import Field
from packer.pixels.decode_resize import DecodeResize, Encoded, PixelSpec
from packer.pixels.image_files import foreign_profile
from packer.pixels.row_size import RowSize

SIZES = tuple(Field(name, "<i4", (), {"of": "image"}) for name in ("height", "width"))
"""Fields of the height and width of each image."""


class WholePicture(NamedTuple):
    """A row of a whole picture.

    data: a JPEG file; pixels: [h, w, C], upright, possibly in a buffer that the
    thread's next image overwrites; source: (height, width) before shrinking, upright; narrowed: the input had
    more than 8 bits a channel.
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
    image: Field

    def __init__(
        self,
        size: RowSize,
        spec: PixelSpec,
        quality: int,
        *,
        sized: bool = False,
        encode_again: bool = False,
    ) -> None:
        """size: the size rule; spec: channels, and the most pixels of an input; quality: JPEG quality.

        sized: always store heights and widths; encode_again: encode files with this quality even if they
        could be copied.
        """
        self.of_files: bool = not encode_again
        """True if rows are made from JPEG files, if there are any, not from their pixels."""
        self.size, self._spec, self._quality = size, spec, quality
        self._pixels = DecodeResize(replace(spec, fit="stretch"))
        about: dict[str, Any] = {"layout": "HWC", "color": spec.color}
        about |= {"size": size.option} if size.limits else {}
        self.image = Field("image", "|u1", None, about, {"name": "jpeg", "shape": None})
        """The field of these rows."""
        self.sizes: tuple[Field, ...] = SIZES if size.limits or sized else ()
        """Fields of the height and width of each row, if stored."""

    def __call__(self, data: Encoded) -> WholePicture:
        """Return the row of an image file: the JPEG file unchanged if possible, else encoded.

        A JPEG file stays unchanged if it need not shrink, the loader can decode it, and its colors are not
        converted; bytes after its end are removed. If a rule limits the size, upright JPEG rows get restart
        markers, so that the loader can decode a part of them.
        Raises: ImageError with the reason, without the file's name.
        """
        converts = self._spec.icc == "srgb" and isinstance(data, bytes) and foreign_profile(data)
        if isinstance(data, bytes) and not converts:
            try:
                file = jpeg.without_trailer(data)
                height, width, _ = jpeg.size(file)
                if self.size.row_sides(height, width) == (height, width):
                    channels = self._spec.shape[2] if self.size.limits else None
                    pixels = jpeg.decode(file, self._spec.max_pixels, channels)
                    if jpeg.jpeg_orientation(file) == 1 and self.size.limits:
                        file = jpeg_parts.with_markers(file) or file
                    return WholePicture(file, pixels, (height, width), narrowed=False)
            except ValueError:
                pass  # not a JPEG file, or one that only Pillow decodes; damage raises an error below
        pixels, source = self._pixels.whole(data, self.size)
        return WholePicture(self._encode(pixels), pixels, source, self._pixels.narrowed)

    def again(self, pixels: NDArray[Any]) -> WholePicture:
        """Return the row of pixels [h, w, C], upright; not modified. Raises: ImageError as for a file."""
        height, width = source = pixels.shape[0], pixels.shape[1]
        if (size := self.size.row_sides(height, width)) != source:
            smaller = np.empty((*size, pixels.shape[2]), pixels.dtype)
            self._pixels.again(pixels, smaller)
            pixels = smaller
        return WholePicture(self._encode(np.ascontiguousarray(pixels)), pixels, source, narrowed=False)

    def fill(self, picture: WholePicture, rows: Mapping[str, Any], at: int) -> NDArray[Any] | None:
        """Write a row and its size.

        Returns: the pixels that count for mean and standard deviation, or None.
        """
        rows["image"][at] = picture.data
        if self.sizes:
            rows["height"][at], rows["width"][at] = picture.size
        return picture.pixels if self.size.limits else None

    def _encode(self, pixels: NDArray[Any]) -> bytes:
        try:
            return jpeg.encode(pixels, self._quality, restarts=bool(self.size.limits))
        except ValueError as error:
            raise ImageError(f"cannot be stored as JPEG ({error}).") from None


def check_stored(size: RowSize, store: str, channels: str | int, dtype: str = "uint8") -> None:
    """Raise UsageError unless whole pictures can be stored this way."""
    allowed = ("rgb", "gray") if size.limits else ("rgb",)
    one_size = "one size for all images, such as size=256"
    if store != "jpeg":
        raise UsageError(
            f"store={store!r}: is for rows of one size; with size {size.option} images keep"
            f" different sizes, as JPEG files. Pass store='jpeg', or {one_size}."
        )
    if channels not in allowed or dtype != "uint8":
        found = dtype if dtype != "uint8" else channels
        raise UsageError(
            f"size {size.option}: images that keep different sizes are JPEG files of 8 bits,"
            f" {' or '.join(allowed)}, not {found}. Leave it out, or pass {one_size}."
        )


def partner_versions(fields: Sequence[Field]) -> dict[str, str]:
    """Return the versions of the PNG encoder and of the writer of restart markers, if fields use them."""
    codecs = {((f.codec or {}).get("name"), f.name == "image" and "size" in f.about) for f in fields}
    return (png.versions() if ("png", False) in codecs else {}) | (
        jpeg_parts.versions() if ("jpeg", True) in codecs else {}
    )


def store_partner(field: Field, values: NDArray[Any]) -> bytes:
    """Return the bytes of a mask or soft map of a whole picture: PNG, or raw if PNG cannot hold it.

    values: [h, w] or [h, w, C].
    """
    sized = field.own_size
    assert sized is not None
    return values.astype(sized.dtype, copy=False).tobytes() if sized.codec is None else png.encode(values)
