"""A pipeline of augmentations at work on batches: drawn by row, applied on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packer.load.slots import Slots, allocate

Draws = list[dict[str, NDArray[Any]]]


class Augmenter:
    """Draws for rows and augments their images. Thread-safe in `draw`.

    pipeline: of packer.augment. shape: (H, W, C) of the images. rows: at most in a batch. spare: batches at hand.
    """

    def __init__(self, pipeline: Any, shape: tuple[int, ...], rows: int, spare: int) -> None:
        height, width, channels = shape
        self._pipeline, self._shape, self._rows, self._spare = (
            pipeline,
            (channels, height, width),
            rows,
            spare,
        )
        self._slots: Slots | None = None
        self._like: torch.Tensor | None = None

    def draw(self, rows: NDArray[np.int64], seed: int, epoch: int) -> Draws:
        """The parameters for these rows of the pack."""
        drawn: Draws = self._pipeline.sample(rows, seed, epoch, self._shape)
        return drawn

    def apply(self, images: torch.Tensor, draws: Draws, first: int) -> torch.Tensor:
        """The augmented images, whose draws begin at number `first` of these.

        On the CPU from the second batch on in memory used before: half the time of new memory.
        """
        draws = [{name: drawn[first : first + len(images)] for name, drawn in each.items()} for each in draws]
        if self._slots is None or self._like is None:
            made: torch.Tensor = self._pipeline.apply(images, draws)
            if made.device.type == "cpu":
                row_bytes = made[0].numel() * made.itemsize
                self._slots, self._like = (
                    Slots(row_bytes * self._rows, allocate, self._spare),
                    made[:1].clone(),
                )
            return made
        like = self._like
        channels, height, width = like.shape[1:]
        memory = torch.from_numpy(self._slots.lend())[: len(images) * like.numel() * like.itemsize]
        out = memory.view(like.dtype).view(len(images), height, width, channels).permute(0, 3, 1, 2)
        result: torch.Tensor = self._pipeline.apply(images, draws, out)
        return result
