"""Exact sums over pixels, for the mean and standard deviation of a pack's images."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer import native
from packer.format.header import TRAIN

_MEAN_BITS = 32
_PIXELS_AT_ONCE = 1 << 14


@dataclass
class PixelSums:
    """Exact sums over images of 8 or 16 bits, independent of the order of addition; not thread-safe.

    For images of one shape every pixel has equal weight. For images of different sizes every image has equal
    weight: its mean values are added like one pixel, in units of 1 / 2**32.
    """

    channels: int
    pixels: int = 0
    sums: list[int] = field(default_factory=list)
    squares: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sums = self.sums or [0] * self.channels
        self.squares = self.squares or [0] * self.channels

    def add(self, images: NDArray[Any], good: int) -> None:
        """Add images, uint8 or uint16 [N, H, W, C], C-contiguous.

        good: number of images that count; the others are all zero.
        """
        sums, squares = channel_sums(images)
        self.sums = [a + b for a, b in zip(self.sums, sums, strict=True)]
        self.squares = [a + b for a, b in zip(self.squares, squares, strict=True)]
        self.pixels += good * images.shape[1] * images.shape[2]

    def add_mean(self, image: NDArray[np.uint8]) -> None:
        """Add the means of one image, uint8 [H, W, C], C-contiguous."""
        pixels = image.shape[0] * image.shape[1]
        sums, squares = (
            [(value << _MEAN_BITS) // pixels for value in values] for values in channel_sums(image)
        )
        self.sums = [a + b for a, b in zip(self.sums, sums, strict=True)]
        self.squares = [a + b for a, b in zip(self.squares, squares, strict=True)]
        self.pixels += 1 << _MEAN_BITS

    def merge(self, other: PixelSums) -> None:
        """Add another's sums."""
        self.pixels += other.pixels
        self.sums = [a + b for a, b in zip(self.sums, other.sums, strict=True)]
        self.squares = [a + b for a, b in zip(self.squares, other.squares, strict=True)]

    def mean_std(self, most: int) -> dict[str, list[float]]:
        """Return {"mean": [C], "std": [C]}, divided by `most`, the largest pixel value (255 or 65,535).

        The standard deviation is that of the population.
        """
        n = self.pixels
        mean = [s / n / most for s in self.sums]
        std = [
            math.sqrt(max(0, n * q - s * s)) / n / most for s, q in zip(self.sums, self.squares, strict=True)
        ]
        return {"mean": mean, "std": std}


def statistics_of(name: str, sums: Mapping[str, PixelSums], most: int) -> dict[str, Any]:
    """Return the members `statistics` and `train_statistics` of a header for one field.

    sums: of the rows of the split train (TRAIN), and of the others (""). most: as for `mean_std`.
    """
    every = PixelSums(next(iter(sums.values())).channels)
    for one in sums.values():
        every.merge(one)
    train = sums.get(TRAIN, every)
    measured = {"statistics": {name: every.mean_std(most)}, "train_statistics": {}}
    if 0 < train.pixels < every.pixels:
        measured["train_statistics"] = {name: train.mean_std(most)}
    return measured


def channel_sums(pixels: NDArray[Any]) -> tuple[list[int], list[int]]:
    """Return the sums of each channel's values and of their squares.

    pixels: uint8 or uint16 [..., C], C-contiguous. uint8 with 1, 3 or 4 channels runs in C
    (``native/resample.c``).
    Returns: C sums and C sums of squares, exact.
    """
    if native.COMPILED and pixels.dtype == np.uint8 and pixels.shape[-1] in (1, 3, 4):
        return native.loops.channel_sums(pixels)
    return channel_sums_numpy(pixels)


def channel_sums_numpy(pixels: NDArray[Any]) -> tuple[list[int], list[int]]:
    """Compute ``channel_sums`` of uint8 or uint16 [..., C] with NumPy; 32 bits hold each square."""
    pixels = pixels.reshape(-1, pixels.shape[-1])
    sums, squares = np.zeros((2, pixels.shape[1]), np.uint64)
    for first in range(0, len(pixels), _PIXELS_AT_ONCE):
        some = pixels[first : first + _PIXELS_AT_ONCE].astype(np.uint32)
        sums += some.sum(axis=0, dtype=np.uint64)
        squares += np.square(some, out=some).sum(axis=0, dtype=np.uint64)
    return sums.tolist(), squares.tolist()
