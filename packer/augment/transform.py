"""What an operation is: it draws for rows, and consists of parts that a pass can take together.

Part kinds, in the order in which one pass takes them:

    Geometry   where each pixel of the result comes from
    Colour     what a pixel's colour becomes, by itself
    Scale      what pixels are worth: ToDtype, Normalize
    Erase      boxes that are filled (before Scale or after it)

and two that stand alone between passes: Whole works on the images as a batch of tensors, each by itself (a blur), Mix
combines the images of a batch, and their labels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from packer.augment.draws import Draws
from packer.augment.passes.spec import Outside, Sampling
from packer.augment.placement import Placement
from packer.errors import UsageError

Shape = tuple[int, int, int]
"""Channels, height and width of an image."""

Params = Mapping[str, NDArray[Any]]
"""What one operation drew: arrays with an entry for each row."""

Columns = NDArray[np.float32]


class Part:
    """Something a pipeline can do to images; `name` is what errors call it."""

    @property
    def name(self) -> str:
        """The operation's class."""
        return type(self).__name__

    def check(self, shape: Shape) -> Shape:
        """The shape of the images it makes of such ones; raises UsageError if it cannot take them."""
        return shape


class Geometry(Part, ABC):
    """sampling: "shift" if it moves whole pixels.

    antialias: whether the filter widens when it shrinks, None if it does not resize.
    turns: whether it may leave rows that are no longer level.
    outside: what is seen beyond the image's edges, None if it never looks there.
    fill: for "fill", one number or one a channel, in the image's scale.
    """

    sampling: Sampling = "shift"
    antialias: bool | None = None
    turns: bool = False
    outside: Outside | None = None
    fill: float | Sequence[float] = 0.0

    @abstractmethod
    def place(self, placement: Placement, params: Params) -> None:
        """Move the images' placements as drawn."""


class Colour(Part, ABC):
    """steps: how many colour steps a sample may need. contrast: whether one may be CONTRAST."""

    steps: int = 1
    contrast: bool = False

    @abstractmethod
    def colour(self, params: Params, count: int, limit: float) -> Columns:
        """Colour steps as spec.py has them: float32 [count, steps, 13]. limit: the largest value of a pixel."""


class Scale(Part, ABC):
    """Changes pixels' scale and number type, the same for all images."""

    dtype: torch.dtype | None = None

    @abstractmethod
    def scale(
        self, limit: float | None, channels: int
    ) -> tuple[Sequence[float], Sequence[float], float | None]:
        """x -> x * scale + shift, by channel, and the limit after it.

        limit: the largest value of a pixel, 255 or 1; None after Normalize.
        """


class Erase(Part, ABC):
    """value: what boxes are filled with, one number or one a channel, in the image's scale; None for noise."""

    value: float | Sequence[float] | None = 0.0
    boxes: int = 1

    @abstractmethod
    def erase(self, params: Params, size: tuple[int, int]) -> Columns:
        """Boxes as spec.py has them: float32 [N, boxes, 5]. size: (h, w) of the images."""


class Whole(Part, ABC):
    """width: columns a sample."""

    width: int = 0

    @abstractmethod
    def columns(self, params: Params, count: int) -> Columns:
        """What `apply` needs: float32 [count, width]; all zeros leave an image as it is."""

    @abstractmethod
    def apply(self, images: Tensor, columns: Tensor, known: Columns) -> Tensor:
        """The changed images.

        images: [N, C, H, W], channels_last, uint8 or floating point; not modified. columns: float32 [N, width] on their
        device. known: the same numbers on the host, for what must be known without waiting for the device.
        Returns: the same shape and dtype.
        """


class Mix(Part, ABC):
    """Combines each image with the batch's previous one (the first with the last)."""

    num_classes: int | None = None
    width: int = 0

    @abstractmethod
    def columns(self, params: Params, count: int, size: tuple[int, int]) -> Columns:
        """What `mix` and `share` need: float32 [count, width]. size: (h, w) of the images."""

    @abstractmethod
    def mix(self, images: Tensor, columns: Tensor) -> Tensor:
        """The mixed images: [N, C, H, W], same dtype; images may be overwritten."""

    @abstractmethod
    def mix_masks(self, masks: Tensor, columns: Tensor) -> Tensor:
        """The mixed masks, uint8 [N, K, H, W]. Raises UsageError if masks cannot be mixed so."""

    @abstractmethod
    def share(self, columns: Tensor) -> Tensor:
        """How much of each result is the image's own: float32 [N]."""


class Transform:
    """One operation, as users name it. To write your own, derive from this and give `sample` and `apply`.

    `sample` draws numbers for rows; `apply` changes images by them, without chance. An operation that packer brings
    gives `parts` instead of `apply`, so that one pass can take it together with its neighbours.
    """

    def output_shape(self, shape: Shape) -> Shape:
        """The (C, H, W) of what it makes of such images; raises UsageError if it cannot take them."""
        for part in self.parts():
            shape = part.check(shape)
        return shape

    def sample(self, draws: Draws, shape: Shape) -> Params:
        """Draw for the rows of `draws`, for images of this shape: arrays whose first dimension is N. May be empty."""
        return {}

    def parts(self) -> Sequence[Part]:
        """What it consists of, in order; each gets all that `sample` drew."""
        return (Custom(self),)

    def apply(self, images: Tensor, params: Mapping[str, Tensor]) -> Tensor:
        """Change images as drawn.

        images: [N, C, H, W], any device, channels_last, uint8 or floating point; not modified.
        params: what `sample` drew, as tensors on the same device. Returns: the same shape and dtype.
        """
        raise NotImplementedError(f"{type(self).__name__}: has neither parts nor apply")


class Custom(Whole):
    """A user's own operation: its draws travel as columns of float32 and are given back in their shapes and dtypes."""

    def __init__(self, transform: Transform) -> None:
        self._transform = transform
        self._layout: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}

    @property
    def name(self) -> str:
        """The operation's class."""
        return type(self._transform).__name__

    def columns(self, params: Params, count: int) -> Columns:
        """All draws side by side; raises UsageError for numbers that float32 does not hold."""
        flat = []
        for name, drawn in params.items():
            columns = np.asarray(drawn).reshape(count, -1).astype(np.float32)
            if np.issubdtype(drawn.dtype, np.integer) and drawn.size and np.abs(drawn).max() > 1 << 24:
                raise UsageError(
                    f"{self.name}: {name} holds {np.abs(drawn).max():,}; whole numbers up to 2**24 are allowed. "
                    "Draw smaller ones."
                )
            self._layout[name] = drawn.shape[1:], drawn.dtype
            flat.append(columns)
        joined = np.concatenate(flat, axis=1) if flat else np.zeros((count, 0), np.float32)
        self.width = joined.shape[1]
        return joined

    def apply(self, images: Tensor, columns: Tensor, known: Columns) -> Tensor:
        """What the user's `apply` makes; raises UsageError if its shape or dtype is another."""
        params, at = {}, 0
        for name, (shape, dtype) in self._layout.items():
            width = int(np.prod(shape))
            like = torch.from_numpy(np.empty(0, dtype)).dtype
            params[name] = columns[:, at : at + width].reshape(-1, *shape).to(like)
            at += width
        made = self._transform.apply(images, params)
        if made.shape != images.shape or made.dtype != images.dtype:
            raise UsageError(
                f"{self.name}: apply returned {made.dtype} {list(made.shape)} for {images.dtype} {list(images.shape)}; "
                "the same shape and dtype are allowed. Return those."
            )
        return made
