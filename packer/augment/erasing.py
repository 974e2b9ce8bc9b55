"""Rectangles that are blotted out."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from typing import Any

import numpy as np

from packer.augment import validation
from packer.augment.geometric import draw_rectangles
from packer.augment.passes import pass_spec
from packer.augment.transform import Columns, Draws, ErasePart, Params, Shape, SinglePartTransform
from packer.augment.validation import Parameter
from packer.errors import UsageError


def _erase_value(name: str, what: str, value: Any) -> float | tuple[float, ...] | None:
    """Return a number, one a channel, or None for "random"."""
    if value == "random":
        return None
    if isinstance(value, str):
        raise UsageError(
            f"{name}: {what} is {value!r}; 'random', a number, or one a channel, is allowed. Pass such."
        )
    return validation.colour(name, what, value)


@dataclass(eq=False)
class RandomErasing(SinglePartTransform, ErasePart):
    """Fill a rectangle of each image with probability p, as torchvision.transforms.v2.RandomErasing.

    p: 0 <= p <= 1. scale: least and largest area, as shares of the image's. ratio: least and largest height / width, its
    logarithm uniform. value: one number or one a channel, in the images' scale where it stands (0 to 255 before Normalize);
    "random": a draw of N(0, 1) for every number, only after Normalize. An image for which ten draws do not fit is kept.
    """

    p: validation.Number = Parameter(validation.number, 0.5, 0, 1)
    scale: validation.Interval = Parameter(validation.interval, (0.02, 0.33), 0, 1)
    ratio: validation.Interval = Parameter(validation.interval, (0.3, 3.3), 1e-3, 1e3)
    value: Any = Parameter(_erase_value, 0.0)

    def sample(self, draws: Draws, shape: Shape) -> Params:
        """Draw top, left, height and width: int64 [N] each, height and width 0 where nothing is erased; seed: of noise."""
        found = {name: np.zeros(len(draws), np.int64) for name in ("top", "left", "height", "width")}

        erased = np.flatnonzero(draws.happens("erase", self.p))
        draw_rectangles(draws, erased, shape, self.scale, self.ratio, ("height", "width"), 0, found)
        if self.value is None:
            found["seed"] = draws.integers("seed", 1 << 24)
        return found

    def erase(self, params: Params, size: tuple[int, int]) -> Columns:
        left, top = params["left"], params["top"]
        return _boxes(left, top, left + params["width"], top + params["height"], params.get("seed"))


@dataclass(eq=False)
class Cutout(SinglePartTransform, ErasePart):
    """Fill a square about a random pixel of each image.

    size: side in pixels. value: one number or one a channel, in the images' scale where it stands.

    The middle is any pixel, so a part of the square may lie outside. T. DeVries, G. W. Taylor, "Improved regularization
    of convolutional neural networks with cutout" (arXiv:1708.04552).
    """

    size: validation.Whole = Parameter(validation.whole, MISSING, 1)
    value: validation.Colour = Parameter(validation.colour, 0.0)

    def check(self, shape: Shape) -> Shape:
        if self.size >= 2 * max(shape[1:]):
            raise UsageError(
                f"Cutout: size is {self.size} and the images are {shape[1]}x{shape[2]}; less than twice their side "
                "is allowed. Pass a smaller size."
            )
        return shape

    def sample(self, draws: Draws, shape: Shape) -> Params:
        """Draw y and x, the square's middle: int64 [N] each."""
        return {"y": draws.integers("y", shape[1]), "x": draws.integers("x", shape[2])}

    def erase(self, params: Params, size: tuple[int, int]) -> Columns:
        left, top = params["x"] - self.size // 2, params["y"] - self.size // 2
        right, bottom = np.minimum(left + self.size, size[1]), np.minimum(top + self.size, size[0])
        return _boxes(np.maximum(left, 0), np.maximum(top, 0), right, bottom, None)


def _boxes(left: Columns, top: Columns, right: Columns, bottom: Columns, seed: Columns | None) -> Columns:
    boxes = np.zeros((len(left), 1, pass_spec.BOX_WIDTH), np.float32)
    boxes[:, 0, :4] = np.stack([left, top, right, bottom], axis=1)
    if seed is not None:
        boxes[:, 0, 4] = seed
    return boxes
