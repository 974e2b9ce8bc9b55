"""What colours become, one pixel at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from packer.augment import checks
from packer.augment.draws import Draws
from packer.augment.passes import spec
from packer.augment.transform import Colour, Columns, Params, Shape, Single
from packer.errors import UsageError

_ADJUSTMENTS = ("brightness", "contrast", "saturation", "hue")


class ColorJitter(Single, Colour):
    """Change brightness, contrast, saturation and hue, in random order, as torchvision.transforms.v2.ColorJitter.

    brightness, contrast, saturation: (least, most) factor, from 0 up; one number v stands for (max(0, 1 - v), 1 + v).
    hue: (least, most) in turns of the colour circle, from -0.5 to 0.5; one number v stands for (-v, v). None: unchanged.

    Values are clamped after each of the four but not rounded between them. The mean that contrast keeps is taken over at
    least 48 x 48 pixels of the result, all of a small one's, not over all of a large one's: over photographs that moved
    results by 0.1 of 255 at the median, 0.7 at most, with a factor of 0.6 (600 photographs at 224 px).
    """

    def __init__(
        self,
        brightness: float | Sequence[float] | None = None,
        contrast: float | Sequence[float] | None = None,
        saturation: float | Sequence[float] | None = None,
        hue: float | Sequence[float] | None = None,
    ) -> None:
        name = "ColorJitter"
        self.ranges: dict[str, tuple[float, float]] = {}
        for what, value in zip(_ADJUSTMENTS, (brightness, contrast, saturation, hue), strict=True):
            if value is None or value == 0:
                continue
            if what == "hue":
                found = checks.around(name, what, value, 0, -0.5, 0.5)
            else:
                found = checks.around(name, what, value, 1, 0)
            if found[0] != 1 or found[1] != 1:
                self.ranges[what] = found
        self.steps = len(self.ranges)
        self.contrast = "contrast" in self.ranges

    def check(self, shape: Shape) -> Shape:
        """Return the shape as it is; raises UsageError for images that are neither grey nor RGB."""
        return colour_channels("ColorJitter", shape)

    def sample(self, draws: Draws, shape: Shape) -> Params:
        """Draw those of brightness, contrast, saturation and hue that vary: float64 [N] each, and order: int64 [N, k].

        order says which of them comes first, second …, numbered in the order of the arguments, without those that are None.
        """
        params: dict[str, NDArray[np.float64] | NDArray[np.int64]] = {
            what: draws.uniform(what, *limits) for what, limits in self.ranges.items()
        }
        if self.ranges:
            params["order"] = draws.permutations("order", len(self.ranges))
        return params

    def colour(self, params: Params, count: int, limit: float) -> Columns:
        """One step for each of them, in the drawn order."""
        if not self.ranges:
            return np.zeros((count, 0, spec.STEP_WIDTH), np.float32)
        made = np.stack([STEPS[what](params[what]) for what in self.ranges], axis=1)
        return np.take_along_axis(made, params["order"][:, :, None], axis=1)


class RandomGrayscale(Single, Colour):
    """Take the colours of each image with probability p, as torchvision.transforms.v2.RandomGrayscale.

    p: 0 <= p <= 1. Grey is 0.2989 red + 0.587 green + 0.114 blue, in all channels.
    """

    def __init__(self, p: float = 0.1) -> None:
        self.p = checks.probability("RandomGrayscale", p)

    def check(self, shape: Shape) -> Shape:
        """Return the shape as it is; raises UsageError for images that are neither grey nor RGB."""
        return colour_channels("RandomGrayscale", shape)

    def sample(self, draws: Draws, shape: Shape) -> Params:
        """Draw gray: bool [N]."""
        return {"gray": draws.happens("gray", self.p)}

    def colour(self, params: Params, count: int, limit: float) -> Columns:
        """A matrix for those whose gray is true."""
        step = saturation(np.zeros(count))
        step[~params["gray"]] = 0
        return step[:, None]


def colour_channels(name: str, shape: Shape) -> Shape:
    """Colour needs 1 channel, 3, or 4, of which the last is kept."""
    if shape[0] not in (1, 3, 4):
        raise UsageError(
            f"{name}: the images have {shape[0]} channels; 1, 3 and 4 are allowed. "
            "Convert with --channels gray, rgb or rgba."
        )
    return shape


def without_alpha(pixels: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Change colours, and keep a fourth channel. pixels: [N, H, W, C]."""
    if pixels.shape[-1] != 4:
        return change(pixels)
    return torch.cat([change(pixels[..., :3].contiguous()), pixels[..., 3:]], dim=-1)


def brightness(factor: NDArray[np.float64]) -> Columns:
    """x -> factor x. Returns float32 [N, 13]; so do all below."""
    return matrix(factor[:, None, None] * np.eye(3), np.zeros(3))


def contrast(factor: NDArray[np.float64]) -> Columns:
    """x -> factor x + (1 - factor) times the image's mean grey."""
    step = np.zeros((len(factor), spec.STEP_WIDTH), np.float32)
    step[:, 0], step[:, 1] = spec.CONTRAST, factor
    return step


def saturation(factor: NDArray[np.float64]) -> Columns:
    """x -> factor x + (1 - factor) times the pixel's grey."""
    weights = factor[:, None, None]
    return matrix(weights * np.eye(3) + (1 - weights) * np.array(spec.GREY), np.zeros(3))


def hue(turns: NDArray[np.float64]) -> Columns:
    """Move the hue, in HSV."""
    step = np.zeros((len(turns), spec.STEP_WIDTH), np.float32)
    step[:, 0], step[:, 1] = spec.HUE, turns
    return step


def matrix(factors: NDArray[np.float64], offsets: NDArray[np.float64]) -> Columns:
    """Any 3x4 matrix: factors [N, 3, 3], offsets [N, 3] or [3]."""
    step = np.empty((len(factors), spec.STEP_WIDTH), np.float32)
    step[:, 0] = spec.MATRIX
    numbers = step[:, 1:].reshape(-1, 3, 4)
    numbers[:, :, :3], numbers[:, :, 3] = factors, offsets
    step[:, 1:] = numbers.reshape(-1, 12)
    return step


STEPS = {"brightness": brightness, "contrast": contrast, "saturation": saturation, "hue": hue}
