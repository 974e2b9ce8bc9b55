"""Images mixed with others of their batch, and their labels with theirs.

Which other one is drawn too: a batch in the order of its samples' `partner` is a ring, and each image is mixed with the one
before it. So none is mixed with itself, unless it is alone, and none has the same partner in every epoch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from packer.augment import kinds, validation
from packer.augment.transform import Draws, SinglePartTransform
from packer.augment.validation import Parameter
from packer.errors import UsageError

_GPU_IMAGES = 64  # mixed at a time, so that a batch need not be held twice


@dataclass(eq=False)
class MixPart(SinglePartTransform, kinds.DrawnPart):
    """Combines each image of a batch with another one of it. The last columns are the other image's share, and `partner`."""

    blends = False  # makes values between those of two images
    alpha: validation.Number = Parameter(validation.number, 1.0, 1e-3)
    num_classes: validation.OptionalWhole = Parameter(validation.whole, None, 1)

    @abstractmethod
    def mix(self, images: Tensor, columns: Tensor) -> Tensor:
        """Return the mixed images: [N, C, H, W], same dtype; images may be overwritten."""

    def mix_masks(self, masks: Tensor, columns: Tensor) -> Tensor:
        """Return mixed masks, uint8 [N, K, H, W], or soft maps, float32. Raises UsageError if masks cannot be mixed so."""
        return self.mix(masks.clone(), columns)

    def share(self, columns: Tensor) -> Tensor:
        """Return the image's own share of each result: float32 [N]."""
        return 1 - columns[:, -2]

    def partners(self, columns: Tensor) -> Tensor:
        """Return the number of the image that each is mixed with: int64 [N], on the columns' device.

        columns: float32 [N, width]. A sample whose columns are all zeros is left as it is, and still somebody's partner.
        """
        order = ring(columns)
        return torch.empty_like(order).scatter_(0, order, order.roll(1))


@dataclass(eq=False)
class MixUp(MixPart):
    """Blend each image with another one of the batch, as torchvision.transforms.v2.MixUp, each in its own proportion.

    alpha: both parameters of the beta distribution of proportions. num_classes: of the labels; None: whoever asks for mixed
    labels says it. Masks cannot be blended.

    H. Zhang, M. Cisse, Y. N. Dauphin, D. Lopez-Paz, "mixup: beyond empirical risk minimization" (arXiv:1710.09412).
    """

    width = 2
    blends = True

    def sample(self, draws: Draws, shape: kinds.Shape) -> kinds.Params:
        """Draw lam, the image's own share, and partner, which orders the batch: float64 [N] each."""
        return {"lam": draws.beta("lam", self.alpha), "partner": draws.uniform("partner")}

    def columns(self, params: kinds.Params, count: int, pixels: kinds.PixelFormat) -> kinds.Columns:
        return np.stack([1 - params["lam"], params["partner"]], axis=1).astype(np.float32)

    def mix(self, images: Tensor, columns: Tensor) -> Tensor:
        if images.device.type == "cpu":
            blended_singly(images, columns)
        else:
            blended(images, columns)
        return images

    def mix_masks(self, masks: Tensor, columns: Tensor) -> Tensor:
        if masks.dtype == torch.uint8:
            raise UsageError(
                "MixUp: there are masks, and between two classes there is no third; images and labels are allowed. "
                "Use CutMix, or pass no masks."
            )
        return super().mix_masks(masks, columns)


@dataclass(eq=False)
class CutMix(MixPart):
    """Put a rectangle of another image of the batch into each, as torchvision.transforms.v2.CutMix, each its own.

    alpha: both parameters of the beta distribution of the image's own share, before the rectangle is cut at the edges.
    num_classes: as MixUp's. Masks are mixed as the images.

    S. Yun, D. Han, S. J. Oh, S. Chun, J. Choe, Y. Yoo, "CutMix: regularization strategy to train strong classifiers with
    localizable features" (arXiv:1905.04899).
    """

    width = 6

    def sample(self, draws: Draws, shape: kinds.Shape) -> kinds.Params:
        """Draw left, top, right, bottom of the rectangle, the last two exclusive: int64 [N] each; partner: float64 [N]."""
        _, height, width = shape
        half = 0.5 * np.sqrt(1 - draws.beta("lam", self.alpha))
        x, y = draws.integers("x", width), draws.integers("y", height)
        across, down = (half * width).astype(np.int64), (half * height).astype(np.int64)
        return {
            "left": np.maximum(x - across, 0),
            "top": np.maximum(y - down, 0),
            "right": np.minimum(x + across, width),
            "bottom": np.minimum(y + down, height),
            "partner": draws.uniform("partner"),
        }

    def columns(self, params: kinds.Params, count: int, pixels: kinds.PixelFormat) -> kinds.Columns:
        left, top, right, bottom = (params[name] for name in ("left", "top", "right", "bottom"))
        area = (right - left) * (bottom - top) / (pixels.size[0] * pixels.size[1])
        return np.stack([left, top, right, bottom, area, params["partner"]], axis=1).astype(np.float32)

    def mix(self, images: Tensor, columns: Tensor) -> Tensor:
        if images.device.type == "cpu":
            copied(images, columns)
        else:
            selected(images, columns)
        return images


def ring(columns: Tensor) -> Tensor:
    """Return the images' numbers in the order of their last column: int64 [N]. Each is mixed with the one before it."""
    return columns[:, -1].argsort(stable=True)


def blended_singly(images: Tensor, columns: Tensor) -> None:
    """Blend images with others, one by one; for images on a CPU, where their shares are known.

    images: [N, C, H, W], overwritten. columns: float32 [N, 2]: the other's share, partner.
    """
    shares = columns[:, 0].tolist()
    for sample, own, other in _walk(images, columns):
        if shares[sample]:
            _blend(own, other, shares[sample])


def blended(images: Tensor, columns: Tensor) -> None:
    """Blend images with others without knowing the shares."""
    for some, own, other in _pairs(images, columns):
        share = columns.index_select(0, some)[:, :1, None, None]
        _blend(own, other, share if own.dtype == torch.uint8 else share.to(own.dtype))
        _pixels(images).index_copy_(0, some, own)


def _blend(own: Tensor, other: Tensor, share: Tensor | float) -> None:
    if own.dtype == torch.uint8:
        own.copy_(own.float().lerp_(other.float(), share).add_(0.5))
    else:
        own.lerp_(other, share)


def copied(images: Tensor, columns: Tensor) -> None:
    """Copy rectangles of others, one by one; for images on a CPU, where their places are known.

    images: [N, C, H, W], overwritten. columns: float32 [N, 6]: left, top, right, bottom, area, partner.
    """
    boxes = columns[:, :4].int().tolist()
    for sample, own, other in _walk(images, columns):
        left, top, right, bottom = boxes[sample]
        if left < right and top < bottom:
            own[top:bottom, left:right] = other[top:bottom, left:right]


def selected(images: Tensor, columns: Tensor) -> None:
    """Copy rectangles without knowing the places: each pixel of the one image or the other."""
    u = torch.arange(images.shape[3], device=images.device)[:, None]
    v = torch.arange(images.shape[2], device=images.device)[:, None, None]
    for some, own, other in _pairs(images, columns):
        left, top, right, bottom = columns.index_select(0, some)[:, :4, None, None, None].unbind(1)
        inside = (u >= left) & (u < right) & (v >= top) & (v < bottom)
        _pixels(images).index_copy_(0, some, torch.where(inside, other, own))


# Both walks begin at the ring's end, so that an image is read as somebody's partner before it is changed itself.


def _walk(images: Tensor, columns: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield the number of an image, the image itself and its partner, [H, W, C] both; the image may be overwritten then."""
    if not len(images):
        return
    order: list[int] = ring(columns).tolist()
    pixels = _pixels(images).unbind(0)
    last = pixels[order[-1]].clone()
    for at in reversed(range(len(order))):
        yield order[at], pixels[order[at]], pixels[order[at - 1]] if at else last


def _pairs(images: Tensor, columns: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Numbers of some images, and copies of these and of their partners, [n, H, W, C]; the images may be overwritten then."""
    order, pixels = ring(columns), _pixels(images)
    last = pixels.index_select(0, order[-1:])
    for start in reversed(range(0, len(order), _GPU_IMAGES)):
        some = order[start : start + _GPU_IMAGES]
        other = pixels.index_select(0, order[max(0, start - 1) : start + len(some) - 1])
        yield some, pixels.index_select(0, some), other if start else torch.cat([last, other])


def _pixels(images: Tensor) -> Tensor:
    """[N, H, W, C]: torch gathers images from that several times faster, if they are channels_last."""
    return images.permute(0, 2, 3, 1)
