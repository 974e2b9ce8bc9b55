"""The rows of a pack as image files: a PNG or JPEG file of each image, a PNG or .npy file of each of its masks.

PNG files are written by OpenCV at its default, level 1 with filter "sub". A photo of 256 px, ms of one core and kB: 2.6 and 110;
Pillow at level 1 5.7 and 98, at level 0 2.9 and 197, at its default 20 and 91; OpenCV without filters 2.2 and 171.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from packer.codecs import jpeg
from packer.convert.exportlabels import TargetFields, read_fixed
from packer.errors import UsageError
from packer.format.header import Field
from packer.format.pack import Pack
from packer.inputs.image_pairs import RESERVED
from packer.orders.runs import Runs
from packer.read.loaded_fields import decode_ragged, select_rows
from packer.read.row_reader import RowReader

CHANNELS = {1: "gray", 3: "rgb", 4: "rgba"}
"""Channels of an image -> the name that packer convert has for them."""

_PIECE_BYTES, _PIECE_ROWS = 4 << 20, 256  # read at once by each worker
_SAMPLES = 16  # rows encoded to see how large the files will be


class ExportedFile(NamedTuple):
    """A file to be written. position: of its row among those exported; field: whose rows it holds."""

    position: int
    field: str
    data: bytes | memoryview


class ExportRows:
    """The rows of a pack, or of one split, as files. Thread-safe."""

    def __init__(self, pack: Pack, format: str, quality: int, split: str | None) -> None:
        """Raises UsageError when there is nothing to export."""
        self.pack, self.format, self.split, self._quality = pack, format, split, quality
        self.spans = select_rows(pack, split)
        self.rows = np.concatenate([np.arange(0), *(np.arange(*span) for span in self.spans)])
        if not len(self.rows):
            raise UsageError(f"{pack.path}: has no rows to export. Pass another pack or split.")
        fields = {f.name: f for f in pack.fields}
        image = fields.get("image")
        self.encoded = image is not None and image.ragged and (image.codec or {}).get("name") == "jpeg"
        """True if rows are JPEG files."""
        if image is None or "key" not in fields or not (self.encoded or _is_picture(image)):
            raise UsageError(
                f"{pack.path}: holds no images with names; uint8 [H, W, C] of 1, 3 or 4 channels, or JPEG files, are exported,"
                " each with its key. Pass a pack of images."
            )
        self.image = image.loaded
        color = self.image.about.get("color")
        self.channels = self.image.shape[2] if self.image.shape else 3 if color == "rgb" else 1
        if format == "jpeg" and self.channels == 4:
            raise UsageError("format jpeg: JPEG has no transparency. Pass png.")
        self.masks = [f for f in pack.fields if _is_mask(f)]
        self.targets = TargetFields.of(pack)
        used = {"image", "key", *self.targets.names, *(f.name for f in self.masks)}
        self.left = [f.name for f in pack.fields if f.name not in used]
        """Fields that are not exported."""
        self.reader = RowReader(pack, pack.fields, verify=all(part.sealed for part in pack.parts))

    def ending(self, f: Field) -> str:
        """Return the ending of a mask's files."""
        return ".png" if _fits_png(f) else ".npy"

    def pieces(self) -> Iterator[tuple[int, int, int]]:
        """Yield (position, first row, rows) of runs that are read at once."""
        row_bytes = max(1, self.image.row_bytes + sum(f.row_bytes for f in self.masks))
        step = 16 if self.image.shape is None else max(1, min(_PIECE_ROWS, _PIECE_BYTES // row_bytes))
        position = 0
        for start, stop in self.spans:
            for first in range(start, stop, step):
                count = min(step, stop - first)
                yield position, first, count
                position += count

    def files(self, position: int, first: int, count: int) -> Iterator[ExportedFile]:
        """Yield the files of rows [first, first + count), images first. Raises FormatError."""
        run = Runs(np.array([first]), np.array([count]))
        for i, data in enumerate(self._images(run, first)):
            yield ExportedFile(position + i, "image", data)
        rows = np.arange(first, first + count)
        for f in self.masks:
            for i, values in enumerate(read_fixed(self.reader, f, rows)):
                yield ExportedFile(position + i, f.name, _png(values) if _fits_png(f) else _npy(values))

    def estimate(self) -> int:
        """Return the estimated bytes of all files, from a sample."""
        chosen = np.unique(np.linspace(0, len(self.rows) - 1, _SAMPLES).astype(int))
        sizes = [sum(len(file.data) for file in self.files(0, int(self.rows[i]), 1)) for i in chosen]
        return int(np.mean(sizes) * len(self.rows))

    def _images(self, run: Runs, first: int) -> Iterator[bytes | memoryview]:
        if self.encoded and (self.format == "jpeg" or self.image.shape is None):
            stored = self.reader.read_ragged("image", run)
            if self.format == "jpeg":
                yield from stored
                return
            for number, data in enumerate(stored, first):
                (image,) = decode_ragged(self.pack, self.pack.header.field("image"), [data], [number])
                yield _png(image)
            return
        shape = self.image.shape
        assert shape is not None
        pixels = np.empty((run.total, *shape), np.uint8)
        self.reader.read("image", run, pixels.reshape(run.total, -1))
        for image in pixels:
            yield _png(image) if self.format == "png" else self._jpeg(image)

    def _jpeg(self, image: NDArray[np.uint8]) -> bytes:
        try:
            return jpeg.encode(image, self._quality)
        except ValueError as error:
            raise UsageError(f"format jpeg: {error}. Pass png.") from None


def _is_picture(f: Field) -> bool:
    """True if rows of a field are images that packer convert could have made."""
    return f.dtype == "|u1" and f.shape is not None and len(f.shape) == 3 and f.shape[2] in CHANNELS


def _is_mask(f: Field) -> bool:
    """True if rows of a field are pixels that packer convert reads as pairs."""
    return f.dtype in ("|u1", "<u2", "<f4") and len(f.shape or ()) in (2, 3) and f.name not in RESERVED


def _fits_png(f: Field) -> bool:
    """True if packer convert reads rows of a field back exactly from PNG files."""
    channels = (f.shape or ())[2:] or (1,)
    return (f.dtype, channels[0]) in (("|u1", 1), ("|u1", 3), ("|u1", 4), ("<u2", 1))


def _png(values: NDArray[Any]) -> memoryview:
    """Encode a PNG file. values: uint8 [H, W], [H, W, 1], RGB or RGBA, or uint16 [H, W], [H, W, 1]."""
    if values.ndim == 3 and values.shape[2] > 1:
        turned = cv2.COLOR_RGB2BGR if values.shape[2] == 3 else cv2.COLOR_RGBA2BGRA
        values = cv2.cvtColor(values, turned)
    encoded: NDArray[np.uint8] = cv2.imencode(".png", values)[1]
    return memoryview(encoded).cast("B")


def _npy(values: NDArray[Any]) -> memoryview:
    file = io.BytesIO()
    np.lib.format.write_array(file, values, version=(1, 0), allow_pickle=False)
    return file.getbuffer()
