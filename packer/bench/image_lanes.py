"""Baselines for images: files decoded whenever they are asked for, and a pack read item by item through h5py."""

from __future__ import annotations

import math
import os
import threading

import h5py
import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from packer.codecs.jpeg import swaps_sides, upright
from packer.errors import FormatError
from packer.inputs.opened_source import ImageSource
from packer.pixels.decode_resize import Box, DecodeResize, PixelSpec, resize
from packer.pixels.image_decoder import ScratchBuffers, decode


class RawImages(Dataset[tuple[torch.Tensor, int]]):
    """Images read, decoded and brought to size whenever they are asked for, as torchvision's ImageFolder does it.

    Decoder and resize, and so the pixels, are those of convert. source: open; indices: int64 [N], the source's
    index of each item; augment: pad by an eighth, cut the size out at random, mirror half of them, image by image.
    """

    def __init__(
        self, source: ImageSource, indices: NDArray[np.int64], spec: PixelSpec, *, augment: bool = False
    ) -> None:
        self._source, self._indices, self._spec, self._augment = source, indices, spec, augment
        self._make = DecodeResize(spec)

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self._indices)

    def __getitem__(self, item: int) -> tuple[torch.Tensor, int]:
        """Pixels, uint8 [H, W, C], and the label, -1 if there are none."""
        index = int(self._indices[item])
        pixels = self.pixels(self._source.read(index))
        labels = self._source.labels
        return torch.from_numpy(pixels), -1 if labels is None else int(labels[index])

    def pixels(self, data: bytes) -> NDArray[np.uint8]:
        """Make an item's pixels of an image file; any number of threads may call it."""
        pixels = np.empty(self._spec.shape, np.uint8)
        self._make(data, pixels)
        return _crop_and_flip(pixels) if self._augment else pixels


class _ThreadBuffers(threading.local):
    def __init__(self) -> None:
        self.scratch = ScratchBuffers()


class CroppedImages(RawImages):
    """Images read, decoded, cut and resized whenever they are asked for: RandomResizedCrop to the size of the spec, and a random flip.

    The rectangles are torchvision's by default, decoder and filter those of convert; a JPEG is decoded at 1/2, 1/4 or 1/8 where its
    rectangle needs no more, as packer does it.
    """

    def __init__(self, source: ImageSource, indices: NDArray[np.int64], spec: PixelSpec) -> None:
        super().__init__(source, indices, spec)
        self._local = _ThreadBuffers()

    def pixels(self, data: bytes) -> NDArray[np.uint8]:
        """See RawImages."""
        spec, box = self._spec, None

        def ratio(height: int, width: int) -> float:
            nonlocal box
            box = random_box(height, width)
            return min(box.height / spec.size[0], box.width / spec.size[1])

        image = decode(data, str(spec.channels), spec.max_pixels, ratio, self._local.scratch)
        swapped = swaps_sides(image.orientation)
        if box is None:  # no JPEG
            box = random_box(*((image.width, image.height) if swapped else (image.height, image.width)))
        if swapped:  # its mirror image at the diagonal is drawn as often
            box = Box(box.left, box.top, box.width, box.height)
        pixels = np.empty(spec.shape, np.uint8)
        resize(image.pixels, box, pixels, image.shrunk)
        pixels = upright(pixels, image.orientation)
        return np.ascontiguousarray(pixels[:, ::-1] if int(torch.randint(2, ())) else pixels)


def random_box(height: int, width: int) -> Box:
    """Draw a rectangle as torchvision's RandomResizedCrop does: 8 to 100 % of the area, 3:4 to 4:3."""
    least, most = 3 / 4, 4 / 3
    for _ in range(10):
        area, proportion = torch.rand(2).tolist()
        area = (0.08 + 0.92 * area) * height * width
        proportion = least * (most / least) ** proportion
        down, across = round(math.sqrt(area / proportion)), round(math.sqrt(area * proportion))
        if 0 < down <= height and 0 < across <= width:
            top, left = (int(torch.randint(n, ())) for n in (height - down + 1, width - across + 1))
            return Box(top, left, down, across)
    proportion = min(max(width / height, least), most)
    down, across = (
        min(height, max(1, round(width / proportion))),
        min(width, max(1, round(height * proportion))),
    )
    return Box((height - down) // 2, (width - across) // 2, down, across)


def _crop_and_flip(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Cut an image of the same size out of it and a black border at random; mirror it half of the time."""
    height, width, channels = pixels.shape
    down, right = height // 8, width // 8
    canvas = np.zeros((height + 2 * down, width + 2 * right, channels), np.uint8)
    canvas[down : down + height, right : right + width] = pixels
    top, left, flip = (int(torch.randint(n, ())) for n in (2 * down + 1, 2 * right + 1, 2))
    cut = canvas[top : top + height, left : left + width]
    return np.ascontiguousarray(cut[:, ::-1] if flip else cut)


class Hdf5Items(Dataset[tuple[torch.Tensor, int]]):
    """Rows of an HDF5 file as most people would read them, which each process opens for itself.

    close() closes this process's.

    Raises FormatError if h5py would read rows from another file.
    """

    def __init__(self, path: str, rows: int, *, labels: bool) -> None:
        self._path, self._rows, self._labels = path, rows, labels
        with h5py.File(path, "r") as file:
            for name in ["image", "label"][: 1 + labels]:
                _check_own(file, name, path)
        self._file: h5py.File | None = None
        self._pid = -1

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._rows

    def __getitem__(self, item: int) -> tuple[torch.Tensor, int]:
        """Pixels, uint8 [H, W, C], and the label, -1 if there are none."""
        if (
            self._file is None or self._pid != os.getpid()
        ):  # a file opened before a fork must not be read after it
            self._file, self._pid = h5py.File(self._path, "r"), os.getpid()
        return torch.from_numpy(self._file["image"][item]), int(
            self._file["label"][item]
        ) if self._labels else -1

    def close(self) -> None:
        """Close the file, if this process opened one."""
        if self._file is not None and self._pid == os.getpid():
            self._file.close()
        self._file = None


def _check_own(file: h5py.File, name: str, path: str) -> None:
    """Raise FormatError unless a dataset's rows lie in this very file: HDF5 follows links, and packer never does."""
    own = isinstance(file.get(name, getlink=True), h5py.HardLink) and isinstance(file[name], h5py.Dataset)
    if not own or file[name].is_virtual or file[name].external:
        raise FormatError(
            f"{path}: its dataset {name!r} leads to another file; bench reads rows of the pack's own. Convert the images again."
        )
