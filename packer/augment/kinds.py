"""Kinds of parts that transforms consist of, which a pass can take together, and the types of what they hand on.

Part kinds, in the order in which one pass takes them:

    GeometryPart   where each pixel of the result comes from
    ColorPart      what a pixel's colour becomes, by itself
    ScalePart      what pixels are worth: ToDtype, Normalize
    ErasePart      boxes that are filled (before ScalePart or after it)

and two that stand alone between passes: WholeImagePart works on the images as a batch of tensors, each by itself (a blur),
MixPart (mixing.py) combines the images of a batch, and their labels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from packer.augment import validation
from packer.augment.passes import pass_spec
from packer.augment.passes.pass_spec import Outside, Sampling
from packer.augment.placement import AffinePlacement

Shape = tuple[int, int, int]
"""Channels, height and width of an image. Of images that differ in size, height and width are int64 [N]; only operations that do
not turn get such."""

ANY_SIDES: NDArray[np.int64] = np.full(2, 1 << 20)
"""Heights or widths of images whose sizes `Pipeline.sample` is told: none is too small for anything."""

Params = Mapping[str, NDArray[Any]]
"""What one operation drew: arrays with an entry for each row."""

Columns = NDArray[np.float32]
Factors = tuple[Sequence[float], Sequence[float], float | None]


class TransformPart:
    """Something a pipeline can do to images; `name` is what errors call it."""

    @property
    def name(self) -> str:
        """The operation's class."""
        return type(self).__name__

    def check(self, shape: Shape) -> Shape:
        """Return the shape of the images it makes of such ones; raises UsageError if it cannot take them."""
        return shape


class GeometryPart(TransformPart, ABC):
    """sampling: "shift" if it moves whole pixels.

    antialias: whether the filter widens when it shrinks, None if it does not resize.
    turns: whether it may leave rows that are no longer level. One that does not takes images that differ in size too.
    outside: what is seen beyond the image's edges, None if it never looks there.
    fill: for "fill", one number or one a channel, in the image's scale.
    """

    sampling: Sampling = "shift"
    antialias: Any = None
    turns: bool = False
    outside: Outside | None = None
    fill: Any = 0.0

    @abstractmethod
    def place(self, placement: AffinePlacement, params: Params) -> None:
        """Move the images' placements as drawn."""

    def place_some(self, placement: AffinePlacement, params: Params) -> None:
        """Move the placements of those images for which RandomApply or RandomChoice decided so."""
        before = placement.copy() if "apply" in params else None
        self.place(placement, params)
        if before is not None:
            placement.restore(~params["apply"], before)


@dataclass(frozen=True)
class PixelFormat:
    """The size, channels and type of images between two stages. limit: their largest value, None after Normalize.

    size: (h, w); of images that differ in size arrays, whose numbers mean nothing.
    """

    channels: int
    size: tuple[int, int]
    dtype: torch.dtype
    limit: float | None


class DrawnPart(TransformPart, ABC):
    """A part that works by numbers of each sample, as geometry does by its placement. width: how many."""

    width: int = 0

    @abstractmethod
    def columns(self, params: Params, count: int, pixels: PixelFormat) -> Columns:
        """Return the numbers: float32 [count, width]; zeros leave an image as it is. pixels: what it works on."""


class ColorPart(DrawnPart):
    """Columns are colour steps as pass_spec.py has them. needs_means: whether one may be CONTRAST."""

    width = pass_spec.STEP_WIDTH
    needs_means: bool = False

    def check(self, shape: Shape) -> Shape:
        validation.check_channels(self.name, shape)
        return shape

    def accept(self, limit: float) -> None:
        """Raise UsageError if it does not work on images of values 0 to limit, 255 (uint8), 65535 (uint16) or 1 (floating point)."""


class ScalePart(TransformPart, ABC):
    """Changes pixels' scale and number type, the same for all images."""

    dtype: Any

    @abstractmethod
    def factors(self, limit: float | None, channels: int) -> Factors:
        """x -> x * scale + shift, by channel, and the limit after it.

        limit: the largest value of a pixel, 255, 65535 or 1; None after Normalize.
        """


class ErasePart(DrawnPart):
    """Columns are a box as pass_spec.py has it. value: what it is filled with, one number or one a channel; None for noise."""

    width = pass_spec.BOX_WIDTH
    value: Any = 0.0


class WholeImagePart(DrawnPart):
    """bytes_only: whether it takes uint8 images alone, grey or RGB."""

    bytes_only: bool = False

    def check(self, shape: Shape) -> Shape:
        if self.bytes_only:
            validation.check_channels(self.name, shape)
        return shape

    @abstractmethod
    def change(self, images: Tensor, columns: Tensor, known: Columns) -> Tensor:
        """Return the changed images.

        images: [N, C, H, W], channels_last, uint8 or floating point; not modified. columns: float32 [N, width] on their
        device. known: the same numbers on the host, for what must be known without waiting for the device.
        Returns: the same shape and dtype.
        """
