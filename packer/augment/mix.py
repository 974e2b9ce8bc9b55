"""Images mixed with the batch's previous ones, and their labels with theirs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from packer.augment import checks
from packer.augment.checks import whole
from packer.augment.draws import Draws
from packer.augment.transform import Columns, Mix, Params, Part, Shape, Transform
from packer.errors import UsageError

_CPU_IMAGES, _GPU_IMAGES = 4, 64  # mixed at a time: what is copied then stays in a CPU's cache


class MixUp(Transform, Mix):
    """Blend each image with the batch's previous one, as torchvision.transforms.v2.MixUp, each in its own proportion.

    alpha: both parameters of the beta distribution of proportions. num_classes: of the labels; None: whoever asks for mixed
    labels says it. Masks cannot be blended.

    H. Zhang, M. Cisse, Y. N. Dauphin, D. Lopez-Paz, "mixup: beyond empirical risk minimization" (arXiv:1710.09412).
    """

    width = 1

    def __init__(self, alpha: float = 1.0, num_classes: int | None = None) -> None:
        self.alpha = checks.number("MixUp", "alpha", alpha, 1e-3)
        self.num_classes = None if num_classes is None else whole("MixUp", "num_classes", num_classes, 1)

    def parts(self) -> Sequence[Part]:
        """Itself."""
        return (self,)

    def sample(self, draws: Draws, shape: Shape) -> Params:
        """Draw lam, the image's own share: float64 [N]."""
        return {"lam": draws.beta("lam", self.alpha)}

    def columns(self, params: Params, count: int, size: tuple[int, int]) -> Columns:
        """Return the other image's share: float32 [count, 1]."""
        return (1 - params["lam"]).astype(np.float32)[:, None]

    def mix(self, images: Tensor, columns: Tensor) -> Tensor:
        """Blend the images, in their own memory."""
        step = _CPU_IMAGES if images.device.type == "cpu" else _GPU_IMAGES
        for some, own, other in _pairs(images, step):
            share = columns[some, :, None, None]
            if images.is_floating_point():
                own.add_(other.sub_(own).mul_(share.to(images.dtype)))
            else:
                own.copy_(other.float().sub_(own).mul_(share).add_(own).add_(0.5))
        return images

    def mix_masks(self, masks: Tensor, columns: Tensor) -> Tensor:
        """Raise UsageError."""
        raise UsageError(
            "MixUp: there are masks, and between two classes there is no third; images and labels are allowed. "
            "Use CutMix, or pass no masks."
        )

    def share(self, columns: Tensor) -> Tensor:
        """Return lam."""
        return 1 - columns[:, 0]


class CutMix(Transform, Mix):
    """Put a rectangle of the batch's previous image into each, as torchvision.transforms.v2.CutMix, each its own.

    alpha: both parameters of the beta distribution of the image's own share, before the rectangle is cut at the edges.
    num_classes: as MixUp's. Masks are mixed as the images.

    S. Yun, D. Han, S. J. Oh, S. Chun, J. Choe, Y. Yoo, "CutMix: regularization strategy to train strong classifiers with
    localizable features" (arXiv:1905.04899).
    """

    width = 5

    def __init__(self, alpha: float = 1.0, num_classes: int | None = None) -> None:
        self.alpha = checks.number("CutMix", "alpha", alpha, 1e-3)
        self.num_classes = None if num_classes is None else whole("CutMix", "num_classes", num_classes, 1)

    def parts(self) -> Sequence[Part]:
        """Itself."""
        return (self,)

    def sample(self, draws: Draws, shape: Shape) -> Params:
        """Draw left, top, right, bottom of the rectangle, the last two exclusive: int64 [N] each."""
        _, height, width = shape
        half = 0.5 * np.sqrt(1 - draws.beta("lam", self.alpha))
        x, y = draws.integers("x", width), draws.integers("y", height)
        across, down = (half * width).astype(np.int64), (half * height).astype(np.int64)
        return {
            "left": np.maximum(x - across, 0),
            "top": np.maximum(y - down, 0),
            "right": np.minimum(x + across, width),
            "bottom": np.minimum(y + down, height),
        }

    def columns(self, params: Params, count: int, size: tuple[int, int]) -> Columns:
        """Return the rectangles and their share of the image: float32 [count, 5]."""
        left, top, right, bottom = (params[name] for name in ("left", "top", "right", "bottom"))
        area = (right - left) * (bottom - top) / (size[0] * size[1])
        return np.stack([left, top, right, bottom, area], axis=1).astype(np.float32)

    def mix(self, images: Tensor, columns: Tensor) -> Tensor:
        """Copy the rectangles, in the images' own memory."""
        if images.device.type == "cpu":
            copied(images, columns)
        else:
            selected(images, columns)
        return images

    def mix_masks(self, masks: Tensor, columns: Tensor) -> Tensor:
        """Copy the rectangles into a copy of the masks."""
        return self.mix(masks.clone(), columns)

    def share(self, columns: Tensor) -> Tensor:
        """Return what the rectangle leaves of the image."""
        return 1 - columns[:, 4]


def copied(images: Tensor, columns: Tensor) -> None:
    """Copy rectangles of the previous images, one by one; for images on a CPU, where their places are known.

    images: [N, C, H, W], overwritten. columns: float32 [N, 4 or more]: left, top, right, bottom.
    """
    last = images[-1:].clone()
    boxes = columns[:, :4].int().tolist()
    # From the end, so that an image is read as somebody's previous one before it is changed itself.
    for i in reversed(range(len(images))):
        left, top, right, bottom = boxes[i]
        other = images[i - 1] if i else last[0]
        images[i, :, top:bottom, left:right] = other[:, top:bottom, left:right]


def selected(images: Tensor, columns: Tensor) -> None:
    """The same without knowing the places: each pixel of the one image or the other."""
    u = torch.arange(images.shape[3], device=images.device)
    v = torch.arange(images.shape[2], device=images.device)[:, None]
    for some, own, other in _pairs(images, _GPU_IMAGES):
        left, top, right, bottom = columns[some, :4, None, None, None].unbind(1)
        inside = (u >= left) & (u < right) & (v >= top) & (v < bottom)
        own.copy_(torch.where(inside, other, own))


def _pairs(images: Tensor, step: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Which images, themselves, and a copy of their previous ones, so many at a time.

    From the end, so that an image is read as somebody's previous one before it is changed itself.
    """
    last = images[-1:].clone()
    for start in reversed(range(0, len(images), step)):
        some = slice(start, start + step)
        own = images[some]
        yield some, own, torch.cat([images[start - 1 : start] if start else last, own[:-1]])
