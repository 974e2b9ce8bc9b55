"""A user's own operation as a stage: its draws travel as columns of float32, and come back in their shapes and dtypes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from packer.augment.chosen import changed
from packer.augment.transform import Columns, Params, Transform, Whole
from packer.errors import UsageError

Layout = Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
"""Name of a draw -> its shape but for the first dimension, and its dtype."""


class Custom(Whole):
    """transform: that has `apply`. layout: of its draws.

    The first column says whether an image is changed at all: RandomApply makes it 0.
    """

    def __init__(self, transform: Transform, layout: Layout) -> None:
        self._transform = transform
        self._layout = {name: kept for name, kept in layout.items() if name != "apply"}
        self.width = 1 + sum(math.prod(shape) for shape, _ in self._layout.values())

    @property
    def name(self) -> str:
        """The operation's class."""
        return type(self._transform).__name__

    def columns(self, params: Params, count: int) -> Columns:
        """All draws side by side; raises UsageError for numbers that float32 does not hold."""
        pieces = [np.ones((count, 1), np.float32)]
        for name, (shape, dtype) in self._layout.items():
            drawn = np.asarray(params[name])
            if np.issubdtype(dtype, np.integer) and drawn.size and np.abs(drawn).max() > 1 << 24:
                raise UsageError(
                    f"{self.name}: {name} holds {np.abs(drawn).max():,}; whole numbers up to 2**24 are allowed. "
                    "Draw smaller ones."
                )
            pieces.append(_rounded_in(drawn.reshape(count, math.prod(shape))))
        return np.concatenate(pieces, axis=1)

    def apply(self, images: Tensor, columns: Tensor, known: Columns) -> Tensor:
        """What the user's `apply` makes; raises UsageError if its shape or dtype is another."""
        chosen = known[:, 0] != 0
        if chosen.all():
            return self._made(images, columns)

        def change(pixels: Tensor, mine: Tensor, _: Columns) -> Tensor:
            return self._made(pixels.permute(0, 3, 1, 2), mine).permute(0, 2, 3, 1)

        return changed(images, columns, known, [(chosen, change)])

    def _made(self, images: Tensor, columns: Tensor) -> Tensor:
        params, at = {}, 1
        for name, (shape, dtype) in self._layout.items():
            width = math.prod(shape)
            like = torch.from_numpy(np.empty(0, dtype)).dtype
            params[name] = columns[:, at : at + width].reshape(len(columns), *shape).to(like)
            at += width
        tracked = not images.is_inference()
        version = images._version if tracked else 0
        made: Any = self._transform.apply(images, params)
        if tracked and images._version != version:
            raise UsageError(f"{self.name}: apply changed the images that it was given. Return new ones.")
        if not isinstance(made, Tensor) or made.shape != images.shape or made.dtype != images.dtype:
            found = f"{made.dtype} {list(made.shape)}" if isinstance(made, Tensor) else type(made).__name__
            raise UsageError(
                f"{self.name}: apply returned {found} for {images.dtype} {list(images.shape)}; the same shape and dtype "
                "are allowed. Return those."
            )
        return made


def _rounded_in(drawn: NDArray[Any]) -> Columns:
    """As float32, towards zero: a fraction below 1 must not become 1."""
    with np.errstate(over="ignore"):
        near = drawn.astype(np.float32)
    further = np.abs(near.astype(np.float64)) > np.abs(drawn.astype(np.float64))
    near[further] = np.nextafter(near[further], np.float32(0))
    return near
