"""Images made sharper or softer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from packer.augment import checks
from packer.augment.chosen import changed
from packer.augment.color import colour_channels, without_alpha
from packer.augment.draws import Draws
from packer.augment.transform import Columns, Params, Part, Shape, Transform, Whole


class RandomAdjustSharpness(Transform):
    """Change the sharpness of each image with probability p, as torchvision.transforms.v2.RandomAdjustSharpness.

    sharpness_factor: from 0 up: 0 is smoothed, 1 as it is, 2 twice as sharp. p: 0 <= p <= 1. uint8 images only.
    """

    def __init__(self, sharpness_factor: float, p: float = 0.5) -> None:
        self.sharpness_factor = checks.number(
            "RandomAdjustSharpness", "sharpness_factor", sharpness_factor, 0
        )
        self.p = checks.probability("RandomAdjustSharpness", p)

    def parts(self) -> Sequence[Part]:
        """The change."""
        return (_Sharpness(1 - self.sharpness_factor),)

    def sample(self, draws: Draws, shape: Shape) -> Params:
        """Draw sharpen: bool [N]."""
        return {"sharpen": draws.happens("sharpen", self.p)}


class _Sharpness(Whole):
    """Column: the smoothed image's share, which is below 0 for a sharper one; 0 for images that stay as they are."""

    width = 1
    bytes_only = True

    def __init__(self, share: float) -> None:
        self._share = share

    @property
    def name(self) -> str:
        """The operation's class."""
        return "RandomAdjustSharpness"

    def check(self, shape: Shape) -> Shape:
        """Return the shape as it is; raises UsageError for images that are neither grey nor RGB."""
        return colour_channels(self.name, shape)

    def columns(self, params: Params, count: int) -> Columns:
        """Return the shares: float32 [count, 1]."""
        return np.where(params["sharpen"], np.float32(self._share), np.float32(0))[:, None]

    def apply(self, images: Tensor, columns: Tensor, known: Columns) -> Tensor:
        """Change those whose share is not 0."""
        return changed(images, columns, known, [(known[:, 0] != 0, _sharpened)])


def _sharpened(pixels: Tensor, columns: Tensor, known: Columns) -> Tensor:
    return without_alpha(pixels, lambda some: smoothed_by(some, columns[:, 0]))


def smoothed_by(pixels: Tensor, share: Tensor) -> Tensor:
    """Blend images with themselves smoothed by [[1, 1, 1], [1, 5, 1], [1, 1, 1]] / 13.

    pixels: uint8 [N, H, W, C]. share: of the smoothed image, float32 [N]; below 0 sharpens.
    Returns: uint8, rounded as torchvision's adjust_sharpness does: the smoothed image to the nearest, the result down.
    Pixels at the edges stay as they are.
    """
    count, height, width, channels = pixels.shape
    if min(height, width) < 3:
        return pixels.clone()
    source = pixels.reshape(count, height, -1).float()
    rows = source[:, :-2] + source[:, 1:-1]
    rows += source[:, 2:]
    middle = source[:, 1:-1, channels:-channels]
    smooth = rows[:, :, : -2 * channels] + rows[:, :, channels:-channels]
    smooth += rows[:, :, 2 * channels :]
    smooth.add_(middle, alpha=4).mul_(1 / 13).round_()  # a 13th is never half way between two numbers
    smooth.sub_(middle).mul_(share[:, None, None]).add_(middle).clamp_(0, 255)
    result = pixels.clone()
    result[:, 1:-1, 1:-1] = smooth.view(count, height - 2, width - 2, channels)
    return result
