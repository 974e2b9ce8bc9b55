"""The files that rows of a pack are exported to: a PNG or JPEG file of each image, a PNG or .npy file of each of its masks.

Images of 2 bands, or of 5 and more, are TIFF files.
PNG files are written by OpenCV at its default, level 1 with filter "sub". A photo of 256 px, ms of one core and kB: 2.6 and 110;
Pillow at level 1 5.7 and 98, at level 0 2.9 and 197, at its default 20 and 91; OpenCV without filters 2.2 and 171.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.channels import COLORS
from packer.codecs import jpeg
from packer.errors import MissingDependencyError, UsageError
from packer.format.header import Field
from packer.format.pack import Pack
from packer.inputs.image_pairs import RESERVED
from packer.opencv import cv2
from packer.orders.runs import one_run
from packer.read.row_reader import RowReader, decode_ragged
from packer.read.row_selection import select_rows

_PIECE_PICTURES = 16  # whole ones, of which the sizes are not known beforehand
_PIECE_BYTES, _PIECE_ROWS = 4 << 20, 256  # read at once by each worker
_SAMPLES = 16  # rows encoded to see how large the files will be


class ExportRows:
    """The rows of a pack, or of one split, as files. Thread-safe."""

    def __init__(self, pack: Pack, encoding: str, quality: int, split: str | None) -> None:
        """Raises UsageError when there is nothing to export."""
        self.pack, self._quality = pack, quality
        if pack.parts[0].header.table is not None:
            raise UsageError(
                f"{pack.path}: was made of a table; image files are exported. Read its fields with h5py, or"
                " packer.PackedDataset, and write them with pandas, as docs/guides/tables.md shows."
            )
        self._spans = select_rows(pack, split)
        self.rows = np.concatenate([np.arange(0), *(np.arange(*span) for span in self._spans)])
        if not len(self.rows):
            raise UsageError(f"{pack.path}: has no rows to export. Pass another pack or split.")
        fields = {f.name: f for f in pack.fields}
        image = fields.get("image")
        files = image is not None and image.ragged and (image.codec or {}).get("name") == "jpeg"
        if (
            image is None
            or "key" not in fields
            or not (image.own_size is not None or files or _is_picture(image))
        ):
            raise UsageError(
                f"{pack.path}: holds no images with names; uint8 or uint16 [H, W, C], or JPEG files, are exported,"
                " each with its key. Pass a pack of images."
            )
        self.image = image.loaded
        own = self.image.own_size
        channels = (own.channels if own else None) or (self.image.shape or (0, 0, 1))[2]
        if encoding == "jpeg" and (self.image.deep or channels == 4):
            raise UsageError(
                "encoding jpeg: JPEG files hold 8 bits, and neither transparency nor bands. Pass png."
            )
        self._untouched = files and encoding == "jpeg"
        self._encode = _tiff if channels not in COLORS else png if encoding == "png" else self._jpeg
        self.ending = ".tif" if channels not in COLORS else ".png" if encoding == "png" else ".jpg"
        """Ending of the images' files."""
        self.masks = [f for f in pack.fields if _is_mask(f)]
        self.reader = RowReader(pack, pack.fields, verify=True)

    def pieces(self) -> Iterator[tuple[int, int, int]]:
        """Yield (position, first row, rows) of runs that are read at once."""
        row_bytes = max(1, self.image.row_bytes + sum(f.row_bytes for f in self.masks))
        step = max(1, min(_PIECE_ROWS, _PIECE_BYTES // row_bytes)) if self.image.shape else _PIECE_PICTURES
        position = 0
        for start, stop in self._spans:
            for first in range(start, stop, step):
                yield position, first, min(step, stop - first)
                position += min(step, stop - first)

    def files(
        self, position: int, first: int, count: int
    ) -> Iterator[tuple[int, str, str, bytes | memoryview]]:
        """Yield the files of rows [first, first + count): position, field, ending and content of each. Raises FormatError."""
        images: Iterable[bytes | memoryview] = (
            self.reader.read_ragged("image", one_run(first, first + count))
            if self._untouched
            else map(self._encode, self._pictures(self.image, first, count))
        )
        for i, data in enumerate(images):
            yield position + i, "image", self.ending, data
        for f in self.masks:
            encode, ending = (png, ".png") if fits_png(f) else (_npy, ".npy")
            for i, values in enumerate(self._pictures(f, first, count)):
                yield position + i, f.name, ending, encode(values)

    def estimate(self) -> int:
        """Return the estimated bytes of all files, from a sample."""
        chosen = np.unique(np.linspace(0, len(self.rows) - 1, _SAMPLES).astype(int))
        sizes = [sum(len(data) for *_, data in self.files(0, int(self.rows[i]), 1)) for i in chosen]
        return int(np.mean(sizes) * len(self.rows))

    def _pictures(self, f: Field, first: int, count: int) -> Iterator[NDArray[Any]]:
        """Yield rows of a field of pixels; those of sizes of their own are decoded one by one."""
        run = one_run(first, first + count)
        if f.own_size is None:
            yield from self.reader.array(f, run)
            return
        sides = [self.reader.array(side, run) for side in self.pack.fields if side.measures]
        sizes = np.stack(sides, axis=1) if sides else None
        for i, data in enumerate(self.reader.read_ragged(f.name, run)):
            size = None if sizes is None else sizes[i : i + 1]
            yield from decode_ragged(self.pack, f, [data], [first + i], size)

    def _jpeg(self, image: NDArray[np.uint8]) -> bytes:
        try:
            return jpeg.encode(image, self._quality)
        except ValueError as error:
            raise UsageError(f"encoding jpeg: {error}. Pass png.") from None


def _is_picture(f: Field) -> bool:
    """True if rows of a field are images that packer convert could have made."""
    shape = f.shape or ()
    return f.pixels or (f.dtype == "|u1" and len(shape) == 3 and shape[2] in COLORS)


def _is_mask(f: Field) -> bool:
    """True if rows of a field are pixels that packer convert reads as pairs."""
    fixed = f.dtype in ("|u1", "<u2", "<f4") and len(f.shape or ()) in (2, 3)
    return (fixed or f.own_size is not None) and f.name not in RESERVED


def fits_png(f: Field) -> bool:
    """True if packer convert reads rows of a field back exactly from PNG files."""
    own = f.own_size
    dtype, channels = (
        (f.dtype, ((f.shape or ())[2:] or (1,))[0]) if own is None else (own.dtype, own.channels or 1)
    )
    return (dtype, channels) in (("|u1", 1), ("|u1", 3), ("|u1", 4), ("<u2", 1))


def png(values: NDArray[Any]) -> memoryview:
    """Encode a PNG file. values: uint8 or uint16 [H, W], [H, W, 1], RGB or RGBA."""
    if values.ndim == 3 and values.shape[2] > 1:
        turned = cv2.COLOR_RGB2BGR if values.shape[2] == 3 else cv2.COLOR_RGBA2BGRA
        values = cv2.cvtColor(values, turned)
    encoded: NDArray[np.uint8] = cv2.imencode(".png", values)[1]
    return memoryview(encoded).cast("B")


def _tiff(values: NDArray[Any]) -> memoryview:
    """Encode a TIFF file of bands. values: uint8 or uint16 [H, W, C]. Raises MissingDependencyError."""
    try:
        import tifffile
    except ImportError:
        raise MissingDependencyError("tifffile", "A TIFF file of bands") from None
    file = io.BytesIO()
    tifffile.imwrite(
        file, values, photometric="minisblack", planarconfig="contig", metadata=None, software=False
    )
    return file.getbuffer()


def _npy(values: NDArray[Any]) -> memoryview:
    file = io.BytesIO()
    np.lib.format.write_array(file, values, version=(1, 0), allow_pickle=False)
    return file.getbuffer()
