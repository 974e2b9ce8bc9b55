"""Image files that rows of a pack are exported to: PNG, or the JPEG files that are stored.

OpenCV writes PNG files with its defaults, level 1 with filter "sub". A photo of 256 px, ms on one core and
kB: 2.6 and 110; OpenCV without filters 2.2 and 171; Pillow at level 1 5.7 and 98, at level 0 2.9 and 197, at
its default 20 and 91.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.channels import COLORS
from packer.errors import UsageError
from packer.format.fields import Field
from packer.inputs.image_pairs import RESERVED
from packer.opencv import cv2
from packer.orders.runs import one_run
from packer.packs.pack import Pack
from packer.read.array_store import PackStore
from packer.read.row_selection import Splits, select_rows

_PIECE_PICTURES = 16  # images of unknown, different sizes that a worker reads at once
_PIECE_BYTES, _PIECE_ROWS = 4 << 20, 256  # most that a worker reads at once
_SAMPLES = 16  # rows encoded to estimate the size of the files


class ImageFiles:
    """The images and masks of a pack's rows, or of some splits, as files. Thread-safe.

    rows: their numbers, int64; image, masks: fields that become files; ending: suffix of the image files.
    """

    rows: NDArray[np.int64]
    image: Field
    masks: list[Field]
    ending: str
    reader: PackStore

    def __init__(self, pack: Pack, split: Splits) -> None:
        """Raises UsageError if the pack has nothing to export."""
        if pack.parts[0].header.table is not None:
            raise UsageError(
                f"{pack.path}: was made from a table; image files are exported. Read its fields with h5py, or"
                " packer.PackedDataset, and write them with pandas, as docs/guides/tables.md shows."
            )
        self._spans = select_rows(pack, split)
        self.rows = np.concatenate([np.arange(0), *(np.arange(*span) for span in self._spans)])
        if not len(self.rows):
            raise UsageError(f"{pack.path}: has no rows to export. Pass another pack or split.")
        fields = {f.name: f for f in pack.fields}
        image = fields.get("image")
        jpeg = image is not None and image.ragged and (image.codec or {}).get("name") == "jpeg"
        if image is None or "key" not in fields or not (jpeg or fits_png(image) or _is_color(image)):
            raise UsageError(
                f"{pack.path}: holds no images with keys that image files hold; uint8 or uint16 [H, W, 1, 3"
                " or 4], or JPEG files, are exported, each with its key. Pass a pack of images."
            )
        self.image, self.ending = image, ".jpg" if jpeg else ".png"
        self.masks = [f for f in pack.fields if f.name not in RESERVED and fits_png(f)]
        self.reader = PackStore(pack, pack.fields, verify=True)

    def pieces(self) -> Iterator[tuple[int, int, int]]:
        """Yield (position, first row, number of rows) of runs that a worker reads at once."""
        row_bytes = max(1, self.image.loaded.row_bytes + sum(f.row_bytes for f in self.masks))
        step = max(1, min(_PIECE_ROWS, _PIECE_BYTES // row_bytes))
        step = step if self.image.loaded.shape else _PIECE_PICTURES
        position = 0
        for start, stop in self._spans:
            for first in range(start, stop, step):
                yield position, first, min(step, stop - first)
                position += min(step, stop - first)

    def files(
        self, position: int, first: int, count: int
    ) -> Iterator[tuple[int, str, str, bytes | memoryview]]:
        """Yield position, field, suffix and content of each file of rows first..first+count-1.

        Raises FormatError.
        """
        run = one_run(first, first + count)
        if self.ending == ".jpg":
            for i, data in enumerate(self.reader.ragged("image", run)):
                yield position + i, "image", ".jpg", data
        for f in self.masks if self.ending == ".jpg" else (self.image, *self.masks):
            # pictures of different sizes are decoded one at a time
            rows = self.reader.decoded(f.name, run) if f.ragged else self.reader.array(f.name, run)
            for i, values in enumerate(rows):
                yield position + i, f.name, ".png", png(values)

    def estimate(self) -> int:
        """Return the estimated bytes of all files, from a sample of rows."""
        chosen = np.unique(np.linspace(0, len(self.rows) - 1, _SAMPLES).astype(int))
        sizes = [sum(len(data) for *_, data in self.files(0, int(self.rows[i]), 1)) for i in chosen]
        return int(np.mean(sizes) * len(self.rows))


def fits_png(f: Field) -> bool:
    """Return True if packer convert reads rows of a field back exactly from PNG files, as masks."""
    sized, shape = f.own_size, f.shape or ()
    if sized is None and len(shape) not in (2, 3):
        return False
    dtype, channels = (f.dtype, (*shape, 1)[2]) if sized is None else (sized.dtype, sized.channels or 1)
    return (dtype, channels) in (("|u1", 1), ("|u1", 3), ("|u1", 4), ("<u2", 1))


def _is_color(f: Field) -> bool:
    """Return True for images of 8 or 16 bits of which PNG files hold every channel."""
    return f.pixels and (f.shape or ())[2] in COLORS


def png(values: NDArray[Any]) -> memoryview:
    """Encode a PNG file. values: uint8 or uint16 [H, W], [H, W, 1], RGB or RGBA."""
    if values.ndim == 3 and values.shape[2] > 1:
        turned = cv2.COLOR_RGB2BGR if values.shape[2] == 3 else cv2.COLOR_RGBA2BGRA
        values = cv2.cvtColor(values, turned)
    encoded: NDArray[np.uint8] = cv2.imencode(".png", values)[1]
    return memoryview(encoded).cast("B")
