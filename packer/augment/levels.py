"""Images whose values are spread by what values they have."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from packer.augment import checks
from packer.augment.chosen import changed
from packer.augment.color import colour_channels, without_alpha
from packer.augment.draws import Draws
from packer.augment.transform import Columns, Params, Part, Shape, Transform, Whole


class RandomAutocontrast(Transform):
    """Stretch each channel to 0..255 with probability p, as torchvision.transforms.v2.RandomAutocontrast.

    p: 0 <= p <= 1. uint8 images only.
    """

    def __init__(self, p: float = 0.5) -> None:
        self.p = checks.probability("RandomAutocontrast", p)

    def parts(self) -> Sequence[Part]:
        """The change."""
        return (_Levels("RandomAutocontrast", autocontrast),)

    def sample(self, draws: Draws, shape: Shape) -> Params:
        """Draw change: bool [N]."""
        return {"change": draws.happens("change", self.p)}


class RandomEqualize(Transform):
    """Equalise each channel's histogram with probability p, as torchvision.transforms.v2.RandomEqualize.

    p: 0 <= p <= 1. uint8 images only.
    """

    def __init__(self, p: float = 0.5) -> None:
        self.p = checks.probability("RandomEqualize", p)

    def parts(self) -> Sequence[Part]:
        """The change."""
        return (_Levels("RandomEqualize", equalized),)

    def sample(self, draws: Draws, shape: Shape) -> Params:
        """Draw change: bool [N]."""
        return {"change": draws.happens("change", self.p)}


class _Levels(Whole):
    """Column: 1 for images to change."""

    width = 1
    bytes_only = True

    def __init__(self, name: str, change: Callable[[Tensor], Tensor]) -> None:
        self._name, self._change = name, change

    @property
    def name(self) -> str:
        """The operation's class."""
        return self._name

    def check(self, shape: Shape) -> Shape:
        """Return the shape as it is; raises UsageError for images that are neither grey nor RGB."""
        return colour_channels(self._name, shape)

    def columns(self, params: Params, count: int) -> Columns:
        """Return change: float32 [count, 1]."""
        return params["change"].astype(np.float32)[:, None]

    def apply(self, images: Tensor, columns: Tensor, known: Columns) -> Tensor:
        """Change those that were drawn."""
        return changed(
            images, columns, known, [(known[:, 0] > 0, lambda p, c, _: without_alpha(p, self._change))]
        )


def autocontrast(pixels: Tensor) -> Tensor:
    """Stretch each channel from its least and largest value to 0..255, rounded down; one without contrast stays.

    pixels: uint8 [N, H, W, C]. Returns the same.
    """
    count, height, width, channels = pixels.shape
    rows = pixels.reshape(count, height, -1)
    # First down, over whole rows: reducing both sides at once would go through memory in steps of C.
    least = rows.amin(dim=1).view(count, width, channels).amin(dim=1).float()
    most = rows.amax(dim=1).view(count, width, channels).amax(dim=1).float()
    step = (most - least) * (1 / 255)
    flat = most == least
    least, step = least.masked_fill(flat, 0), step.masked_fill(flat, 1)
    made = rows.float().sub_(least.repeat(1, width)[:, None]).div_(step.repeat(1, width)[:, None])
    return made.clamp_(0, 255).to(torch.uint8).view(pixels.shape)


def equalized(pixels: Tensor) -> Tensor:
    """Give each channel a flat histogram by Pillow's formula; a channel with too few values for that stays.

    With n the histogram and `step` the pixels below the largest value that occurs, over 255, rounded down, value i
    becomes (n[0] + ... + n[i - 1] + step // 2) // step. pixels: uint8 [N, H, W, C]. Returns the same.
    """
    count, height, width, channels = pixels.shape
    planes = count * channels
    first = torch.arange(planes, device=pixels.device).view(count, 1, channels) * 256
    places = (pixels.reshape(count, -1, channels) + first).view(-1)
    ones = torch.ones(1, dtype=torch.int32, device=pixels.device).expand(len(places))
    histogram = torch.zeros(planes * 256, dtype=torch.int32, device=pixels.device)
    histogram = histogram.scatter_add_(0, places, ones).view(planes, 256)
    so_far = histogram.cumsum(dim=1)
    last = so_far.argmax(dim=1, keepdim=True)  # where the sum is complete for the first time
    step = (height * width - histogram.gather(1, last)) // 255
    made = (so_far - histogram + step // 2) // step.clamp(min=1)
    same = torch.arange(256, device=pixels.device)
    table = torch.where(step > 0, made.clamp(0, 255), same).to(torch.uint8)
    return table.view(-1).index_select(0, places).view(pixels.shape)
