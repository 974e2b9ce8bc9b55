"""Operations of detection recipes that give each image a size of its own: ScaleJitter, RandomZoomOut.

One after them makes the images alike again, and all of them are one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from packer.augment import validation
from packer.augment.geometric import AffinePlacement, resize_sampling
from packer.augment.passes.pass_spec import Outside
from packer.augment.transform import (
    ANY_SIDES,
    Draws,
    GeometryPart,
    Params,
    RandomChange,
    Shape,
    SinglePartTransform,
)
from packer.errors import UsageError


class DrawnSize(SinglePartTransform, GeometryPart):
    """An operation that draws `height` and `width` of its result for each image, whole numbers [N]."""

    any_size = True

    def check(self, shape: Shape) -> Shape:
        sides: Any = ANY_SIDES
        return shape[0], sides, sides

    def drawn_shape(self, shape: Shape, params: Params) -> Shape:
        height: Any = params["height"]
        width: Any = params["width"]
        return shape[0], height, width


class ScaleJitter(DrawnSize):
    """Resize each image by a random factor, its proportion kept, as torchvision.transforms.v2.ScaleJitter.

    The factor times min(target_size[0] / width, target_size[1] / height), rounded down to pixels, one at least. Results differ in
    size: RandomCrop(size, pad_if_needed=True) after it makes them alike.

    target_size: (width, height), as torchvision has it. scale_range: least and largest factor. interpolation: "bilinear",
    "bicubic" (Pillow's, a = -0.5) or "nearest". antialias: widen the filter when it shrinks.
    """

    def __init__(
        self,
        target_size: Sequence[int],
        scale_range: Sequence[float] = (0.1, 2.0),
        interpolation: str = "bilinear",
        antialias: bool = True,
    ) -> None:
        if not isinstance(target_size, Sequence) or len(target_size) != 2:
            raise UsageError(
                f"ScaleJitter: target_size is {target_size!r}; two whole numbers from 1 up are allowed. Pass (width, height)."
            )
        self.target_size = validation.sides("ScaleJitter", "target_size", target_size)
        self.scale_range = validation.interval("ScaleJitter", "scale_range", scale_range, 0)
        self.interpolation, self.sampling = resize_sampling("ScaleJitter", interpolation, antialias)
        self.antialias = validation.flag("ScaleJitter", "antialias", antialias)

    def sample(self, draws: Draws, shape: Shape) -> Params:
        """Draw height and width of the result: int64 [N] each."""
        _, height, width = shape
        across, down = self.target_size
        factor = np.minimum(down / height, across / width) * draws.uniform("scale", *self.scale_range)
        return {
            name: np.maximum(side * factor, 1).astype(np.int64)
            for name, side in (("height", height), ("width", width))
        }

    def place(self, placement: AffinePlacement, params: Params) -> None:
        height, width = placement.size
        nothing = np.zeros(len(placement))
        size = params["height"], params["width"]
        antialias = bool(self.antialias)
        placement.stretch(nothing, nothing, nothing + width, nothing + height, size, antialias, self.sampling)


class RandomZoomOut(RandomChange, DrawnSize):
    """Lay each image somewhere on a larger canvas with probability p, as torchvision.transforms.v2.RandomZoomOut.

    Results differ in size: Resize((height, width)) after it, or RandomIoUCrop and that, makes them alike.

    fill: of the canvas, one number or one a channel, in the images' own scale; masks get the pipeline's mask_fill. side_range:
    least and largest factor of the sides, from 1 up. p: 0 <= p <= 1.
    """

    outside: Outside | None = "fill"

    def __init__(
        self,
        fill: float | Sequence[float] = 0,
        side_range: Sequence[float] = (1.0, 4.0),
        p: float = 0.5,
    ) -> None:
        self.fill = validation.colour("RandomZoomOut", "fill", fill)
        self.side_range = validation.interval("RandomZoomOut", "side_range", side_range, 1)
        super().__init__(p)

    def sample(self, draws: Draws, shape: Shape) -> Params:
        """Draw height and width of the canvas, left and top of the image on it: int64 [N] each; where none: the image's own."""
        _, height, width = shape
        factor = np.where(draws.happens("change", self.p), draws.uniform("side", *self.side_range), 1.0)
        tall, wide = (np.floor(side * factor).astype(np.int64) for side in (height, width))
        return {
            "height": tall,
            "width": wide,
            "left": np.floor((wide - width) * draws.uniform("left")).astype(np.int64),
            "top": np.floor((tall - height) * draws.uniform("top")).astype(np.int64),
        }

    def place(self, placement: AffinePlacement, params: Params) -> None:
        size = params["height"], params["width"]
        placement.cut_padded(-params["left"], -params["top"], size, self.outside)
