"""Per-channel mean and standard deviation over a whole pack, from exact integer sums.

Sums of integers do not depend on the order in which threads add them, so equal inputs give equal headers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from packer.pixels.kernels import channel_sums


@dataclass
class PixelSums:
    """Sums over uint8 images of one shape; one object is used by one worker."""

    channels: int
    pixels: int = 0
    sums: list[int] = field(default_factory=list)
    squares: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sums = self.sums or [0] * self.channels
        self.squares = self.squares or [0] * self.channels

    def add(self, images: NDArray[np.uint8], good: int) -> None:
        """Add images, uint8 [N, H, W, C], C-contiguous, of which `good` count and the others are all zero."""
        sums, squares = channel_sums(images)
        self.sums = [a + b for a, b in zip(self.sums, sums, strict=True)]
        self.squares = [a + b for a, b in zip(self.squares, squares, strict=True)]
        self.pixels += good * images.shape[1] * images.shape[2]

    def merge(self, other: PixelSums) -> None:
        """Add another's sums."""
        self.pixels += other.pixels
        self.sums = [a + b for a, b in zip(self.sums, other.sums, strict=True)]
        self.squares = [a + b for a, b in zip(self.squares, other.squares, strict=True)]

    def mean_std(self) -> dict[str, list[float]]:
        """{"mean": [C], "std": [C]} on the scale where 255 is 1.0; the standard deviation over the population."""
        n = self.pixels
        mean = [s / n / 255 for s in self.sums]
        std = [math.sqrt(n * q - s * s) / n / 255 for s, q in zip(self.sums, self.squares, strict=True)]
        return {"mean": mean, "std": std}
