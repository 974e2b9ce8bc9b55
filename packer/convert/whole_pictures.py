"""Rows that are whole pictures, each of a size of its own, as JPEG files; and how large each of them is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from numpy.typing import NDArray

from packer.codecs import jpeg
from packer.errors import ImageError
from packer.format.header import Field
from packer.pixels.decode_resize import DecodeResize, PixelSpec
from packer.pixels.row_size import RowSize

SIZES = tuple(Field(name, "<i4", (), {"of": "image"}) for name in ("height", "width"))
"""Fields of the height and width of each image, where a rule made them."""


class WholePicture(NamedTuple):
    """A row. data: a JPEG file; pixels: uint8 [h, w, C], upright; source: (height, width) before it shrank, upright.

    narrowed: the input had more than 8 bits a channel. The pixels may lie in memory that the thread's next picture takes.
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
    """A function from image files to such rows; one object serves any number of threads, with equal results."""

    def __init__(self, size: RowSize, spec: PixelSpec, quality: int) -> None:
        """size: of sizes of their own; spec: the channels and the most pixels; quality: of rows that are not the file itself."""
        self.size, self._spec, self._quality = size, spec, quality
        self._pixels = DecodeResize(spec)
        about = {"layout": "HWC", "color": spec.channels} | ({"size": size.option} if size.limits else {})
        self.image = Field("image", "|u1", None, about, {"name": "jpeg", "shape": None})
        """The field of these rows."""
        self.sizes = SIZES if size.limits else ()
        """Fields that say how large each row is."""

    def __call__(self, data: bytes) -> WholePicture:
        """Return a JPEG file as it is, if it need not shrink and the loader can decode it; anything else as one of the row's size.

        Raises: ImageError with the reason, but not the file's name.
        """
        try:
            height, width, _ = jpeg.size(data)
            if self.size.of(height, width) == (height, width):
                channels = self._spec.shape[2] if self.size.limits else None
                pixels = jpeg.decode(data, self._spec.max_pixels, channels)
                return WholePicture(data, pixels, (height, width), narrowed=False)
        except ValueError:
            pass  # no JPEG, or one for Pillow; what is damaged is found there, too
        pixels, source = self._pixels.whole(data, self.size)
        try:
            encoded = jpeg.encode(pixels, self._quality)
        except ValueError as error:
            raise ImageError(f"cannot be stored as JPEG ({error}).") from None
        return WholePicture(encoded, pixels, source, self._pixels.narrowed)

    def note(self, picture: WholePicture, row: Mapping[str, NDArray[Any]]) -> NDArray[Any] | None:
        """Fill in how large a row is. Returns: the pixels that count for mean and standard deviation, or None."""
        if not self.size.limits:
            return None
        row["height"][...], row["width"][...] = picture.size
        return picture.pixels
