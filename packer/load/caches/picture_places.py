"""Raw images that differ in size, side by side in one memory: which pixels of it each row's are."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from packer.augment.ragged_images import RaggedImages
from packer.errors import damaged
from packer.format.header import Field
from packer.format.pack import Pack
from packer.orders.runs import Runs, Subset, one_run
from packer.read.encoded_images import EncodedImages, channels_of, dtype_of
from packer.read.picture_rows import MAX_PIXELS
from packer.read.row_reader import RowReader, picture_sizes


class PicturePlaces:
    """The places of a subset's images, in its order.

    sizes: int64 [rows, 2], heights and widths. firsts: int64 [rows + 1], each image's first pixel, and at last how many there are.
    pixels: that number. pixel_bytes, dtype: of a pixel, and of its numbers.
    """

    def __init__(self, pack: Pack, field: Field, subset: Subset) -> None:
        self.field = field
        self.sizes = picture_sizes(pack, subset.place(one_run(0, subset.rows)).rows()).astype(np.int64)
        areas = self.sizes.prod(axis=1)
        if ((self.sizes < 1).any(axis=1) | (areas > MAX_PIXELS)).any():
            raise damaged(pack.path, "its heights and widths are damaged")
        self.firsts: NDArray[np.int64] = np.concatenate([[0], areas.cumsum()])
        self.pixels = int(self.firsts[-1])
        self.pixel_bytes = channels_of(field) * np.dtype(dtype_of(field)).itemsize
        self.dtype = torch.from_numpy(np.empty(0, dtype_of(field))).dtype

    @property
    def nbytes(self) -> int:
        """Bytes of all pixels."""
        return self.pixels * self.pixel_bytes

    def images(self, pixels: torch.Tensor, rows: NDArray[np.int64]) -> RaggedImages:
        """Return rows of the subset, int64 [N], that lie in pixels, [P, C]."""
        return RaggedImages(pixels, self.firsts[rows], self.sizes[rows], np.ones(len(rows), np.int64))

    def steps(self, row_bytes: int, most: int) -> list[int]:
        """Return the bounds of runs of rows that take at most so many bytes, or are one row. row_bytes: of a row's other fields."""
        ends = self.firsts * self.pixel_bytes + np.arange(len(self.firsts)) * row_bytes
        bounds = [0]
        while bounds[-1] < len(self.sizes):
            fits = int(np.searchsorted(ends, ends[bounds[-1]] + most, "right")) - 1
            bounds.append(max(bounds[-1] + 1, fits))
        return bounds

    def read(self, reader: RowReader, runs: Runs, start: int, out: NDArray[np.uint8]) -> None:
        """Read rows start, start + 1, ... of the subset into out, uint8 [P, bytes of a pixel].

        runs: their rows in the pack. Raises FormatError.
        """
        numbers = runs.rows().tolist()
        rows = reader.read_ragged(self.field.name, runs)
        images = EncodedImages(reader.pack, self.field, rows, numbers)
        firsts = self.firsts[start : start + len(rows) + 1] - self.firsts[start]
        for i, (height, width) in enumerate(self.sizes[start : start + len(rows)].tolist()):
            pixels = out[firsts[i] : firsts[i + 1]].view(dtype_of(self.field))
            images.decode_into(i, pixels.reshape(height, width, -1))
