"""Values turned round or made coarser, each by itself."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from packer.augment import checks
from packer.augment.checks import whole
from packer.augment.color import colour_channels, matrix
from packer.augment.draws import Draws
from packer.augment.passes import spec
from packer.augment.transform import Colour, Columns, Params, Shape, Single
from packer.errors import UsageError


class RandomSolarize(Single, Colour):
    """Invert all values from a threshold up, with probability p, as torchvision.transforms.v2.RandomSolarize.

    threshold: in the images' scale where it stands. p: 0 <= p <= 1.
    """

    def __init__(self, threshold: float, p: float = 0.5) -> None:
        self.threshold = checks.number("RandomSolarize", "threshold", threshold, 0, 255)
        self.p = checks.probability("RandomSolarize", p)

    def check(self, shape: Shape) -> Shape:
        """Return the shape as it is; raises UsageError for images that are neither grey nor RGB."""
        return colour_channels("RandomSolarize", shape)

    def sample(self, draws: Draws, shape: Shape) -> Params:
        """Draw change: bool [N]."""
        return {"change": draws.happens("change", self.p)}

    def accept(self, limit: float) -> None:
        """Raise UsageError for a threshold that no value can reach."""
        if self.threshold > limit:
            raise UsageError(
                f"RandomSolarize: threshold is {self.threshold:g} and the images' values are 0 to {limit:g}; those are "
                "allowed. Pass it in the images' own scale."
            )

    def colour(self, params: Params, count: int, limit: float) -> Columns:
        """A step for those whose change is true."""
        return chosen(solarize(np.full(count, self.threshold)), params["change"])


class RandomPosterize(Single, Colour):
    """Keep the upper bits of each value, with probability p, as torchvision.transforms.v2.RandomPosterize.

    bits: how many, 0 to 8. p: 0 <= p <= 1. uint8 images only.
    """

    def __init__(self, bits: int, p: float = 0.5) -> None:
        self.bits = whole("RandomPosterize", "bits", bits, 0, 8)
        self.p = checks.probability("RandomPosterize", p)

    def check(self, shape: Shape) -> Shape:
        """Return the shape as it is; raises UsageError for images that are neither grey nor RGB."""
        return colour_channels("RandomPosterize", shape)

    def sample(self, draws: Draws, shape: Shape) -> Params:
        """Draw change: bool [N]."""
        return {"change": draws.happens("change", self.p)}

    def accept(self, limit: float) -> None:
        """Raise UsageError for images that are not uint8."""
        bytes_needed("RandomPosterize", limit)

    def colour(self, params: Params, count: int, limit: float) -> Columns:
        """A step for those whose change is true."""
        return chosen(posterize(np.full(count, self.bits)), params["change"])


class RandomInvert(Single, Colour):
    """Turn light into dark with probability p, as torchvision.transforms.v2.RandomInvert.

    p: 0 <= p <= 1.
    """

    def __init__(self, p: float = 0.5) -> None:
        self.p = checks.probability("RandomInvert", p)

    def check(self, shape: Shape) -> Shape:
        """Return the shape as it is; raises UsageError for images that are neither grey nor RGB."""
        return colour_channels("RandomInvert", shape)

    def sample(self, draws: Draws, shape: Shape) -> Params:
        """Draw change: bool [N]."""
        return {"change": draws.happens("change", self.p)}

    def colour(self, params: Params, count: int, limit: float) -> Columns:
        """A matrix for those whose change is true."""
        inverted = matrix(np.repeat(-np.eye(3)[None], count, axis=0), np.full(3, limit))
        return chosen(inverted, params["change"])


def bytes_needed(name: str, limit: float) -> None:
    """Raise UsageError unless 255 is the images' largest value."""
    if limit != 255:
        raise UsageError(
            f"{name}: the images' values are 0 to {limit:g}; uint8, 0 to 255, is allowed. "
            "Put it before ToDtype and Normalize."
        )


def solarize(threshold: NDArray[np.float64]) -> Columns:
    """Invert values from the threshold up. threshold: [N], in the images' scale. Returns float32 [N, 13]."""
    step = np.zeros((len(threshold), spec.STEP_WIDTH), np.float32)
    step[:, 0], step[:, 1] = spec.SOLARIZE, threshold
    return step


def posterize(bits: NDArray[np.int64]) -> Columns:
    """Keep the upper bits of uint8 values. bits: [N], 0 to 8. Returns float32 [N, 13]."""
    step = np.zeros((len(bits), spec.STEP_WIDTH), np.float32)
    step[:, 0], step[:, 1] = spec.POSTERIZE, 2.0 ** (8 - bits)
    return step


def chosen(step: Columns, change: NDArray[np.bool_]) -> Columns:
    """The step for some samples, none for the others. step: float32 [N, 13]. Returns float32 [N, 1, 13]."""
    return np.where(change[:, None], step, np.float32(0))[:, None]
