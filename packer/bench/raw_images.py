"""The usual baseline, honestly done: image files or members of an archive, decoded whenever they are asked for."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from packer.inputs.image_sources import ImageSource
from packer.pixels.decode_resize import DecodeResize, PixelSpec


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
        pixels = np.empty(self._spec.shape, np.uint8)
        self._make(self._source.read(index), pixels)
        if self._augment:
            pixels = _crop_and_flip(pixels)
        labels = self._source.labels
        return torch.from_numpy(pixels), -1 if labels is None else int(labels[index])


def _crop_and_flip(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Cut an image of the same size out of it and a black border at random; mirror it half of the time."""
    height, width, channels = pixels.shape
    down, right = height // 8, width // 8
    canvas = np.zeros((height + 2 * down, width + 2 * right, channels), np.uint8)
    canvas[down : down + height, right : right + width] = pixels
    top, left, flip = (int(torch.randint(n, ())) for n in (2 * down + 1, 2 * right + 1, 2))
    cut = canvas[top : top + height, left : left + width]
    return np.ascontiguousarray(cut[:, ::-1] if flip else cut)
