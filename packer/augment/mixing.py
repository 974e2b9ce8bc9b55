"""MixUp and CutMix: mix each image of a batch, and its label, with another image of the batch.

The draws decide the partners: sorted by the draw `partner`, the samples of a batch form a ring, and each
image is mixed with its predecessor. No image is mixed with itself, unless the batch has a single image, and
partners change between epochs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from packer.augment import kinds, validation
from packer.augment.validation import Parameter
from packer.errors import UsageError

_GPU_IMAGES = 64  # images mixed at a time, which avoids a second copy of the batch


@dataclass(eq=False)
class MixPart(kinds.WholeImagePart):
    """A part that combines each image of a batch with another image of it.

    The last two columns are the weight of the other image and `partner`.

    alpha, num_classes: see MixUp. blends: True if results interpolate between two images.
    """

    blends = False
    alpha: validation.Number = Parameter(validation.number, 1.0, 1e-3)
    num_classes: validation.OptionalInteger = Parameter(validation.integer, None, 1)

    @abstractmethod
    def mix_image(self, image: Tensor, other: Tensor, numbers: Sequence[float]) -> None:
        """Mix an image with another in place, on a CPU. image, other: [H, W, C]. numbers: its columns."""

    @abstractmethod
    def mix_images(self, images: Tensor, other: Tensor, columns: Tensor) -> Tensor:
        """Return mixed images, without synchronising. images (may be overwritten), other: [n, H, W, C]."""

    def change(self, images: Tensor, columns: Tensor, known: kinds.Columns) -> Tensor:
        return self.mix(images, columns)

    def mix(self, images: Tensor, columns: Tensor) -> Tensor:
        """Mix images in place and return them: [N, C, H, W]."""
        (self.mix_on_cpu if images.device.type == "cpu" else self.mix_on_gpu)(images, columns)
        return images

    # Both methods start at the end of the ring, so that an image is read as a partner before it is changed.
    # Both work on [N, H, W, C], from which torch gathers channels_last images several times faster.

    def mix_on_cpu(self, images: Tensor, columns: Tensor) -> None:
        """Mix images one by one; on a CPU, which can read the columns."""
        order, numbers = ring(columns).tolist(), columns.tolist()
        pixels = images.permute(0, 2, 3, 1).unbind(0)
        last = [pixels[at].clone() for at in order[-1:]]
        for at in reversed(range(len(order))):
            other = pixels[order[at - 1]] if at else last[0]
            self.mix_image(pixels[order[at]], other, numbers[order[at]])

    def mix_on_gpu(self, images: Tensor, columns: Tensor) -> None:
        """Mix many images at a time; on a GPU, where reading the columns would synchronise."""
        order, pixels = ring(columns), images.permute(0, 2, 3, 1)
        last = pixels.index_select(0, order[-1:])
        for start in reversed(range(0, len(order), _GPU_IMAGES)):
            some = order[start : start + _GPU_IMAGES]
            other = pixels.index_select(0, order[max(0, start - 1) : start + len(some) - 1])
            other = other if start else torch.cat([last, other])
            mixed = self.mix_images(pixels.index_select(0, some), other, columns.index_select(0, some))
            pixels.index_copy_(0, some, mixed)

    def mix_masks(self, masks: Tensor, columns: Tensor) -> Tensor:
        """Return mixed masks, uint8 [N, K, H, W], or soft maps, float32. Raises UsageError if unsupported."""
        return self.mix(masks.clone(), columns)

    def share(self, columns: Tensor) -> Tensor:
        """Return the weight of the image itself in each result: float32 [N]."""
        return 1 - columns[:, -2]

    def partners(self, columns: Tensor) -> Tensor:
        """Return the index of each image's partner: int64 [N], on the columns' device.

        columns: float32 [N, width]. A sample whose columns are all zeros is unchanged, but still serves as a
            partner.
        """
        order = ring(columns)
        return torch.empty_like(order).scatter_(0, order, order.roll(1))


@dataclass(eq=False)
class MixUp(MixPart):
    """Blend each image with another image of the batch, with a weight drawn for each image.

    Otherwise as torchvision.transforms.v2.MixUp, which draws a weight for a batch. Masks cannot be blended.

    alpha: both parameters of the beta distribution of the weight.
    num_classes: number of classes of the labels; None if the caller of `apply_labels` passes it.

    H. Zhang, M. Cisse, Y. N. Dauphin, D. Lopez-Paz, "mixup: beyond empirical risk minimization"
    (arXiv:1710.09412).
    """

    width = 2
    blends = True

    def sample(self, draws: kinds.Draws, shape: kinds.Shape) -> kinds.Params:
        """Draw lam, the weight of the image itself, and partner, which sorts the batch: float64 [N] each."""
        return {"lam": draws.beta("lam", self.alpha), "partner": draws.uniform("partner")}

    def columns(self, params: kinds.Params, count: int, pixels: kinds.PixelFormat) -> kinds.Columns:
        return np.stack([1 - params["lam"], params["partner"]], axis=1).astype(np.float32)

    def mix_image(self, image: Tensor, other: Tensor, numbers: Sequence[float]) -> None:
        if numbers[0]:
            _blend(image, other, numbers[0])

    def mix_images(self, images: Tensor, other: Tensor, columns: Tensor) -> Tensor:
        share = columns[:, :1, None, None]
        return _blend(images, other, share if images.dtype == torch.uint8 else share.to(images.dtype))

    def mix_masks(self, masks: Tensor, columns: Tensor) -> Tensor:
        if masks.dtype == torch.uint8:
            raise UsageError(
                "MixUp: there are masks, whose classes cannot be blended; images and labels are allowed. "
                "Use CutMix, or pass no masks."
            )
        return super().mix_masks(masks, columns)


@dataclass(eq=False)
class CutMix(MixPart):
    """Paste a rectangle of another image of the batch into each image, with a rectangle drawn for each image.

    Otherwise as torchvision.transforms.v2.CutMix, which draws a rectangle for a batch. Masks are mixed like
    images.

    alpha: both parameters of the beta distribution of the unreplaced area, before the rectangle is clipped to
        the image.
    num_classes: as MixUp's.

    S. Yun, D. Han, S. J. Oh, S. Chun, J. Choe, Y. Yoo, "CutMix: regularization strategy to train strong
    classifiers with localizable features" (arXiv:1905.04899).
    """

    width = 6

    def sample(self, draws: kinds.Draws, shape: kinds.Shape) -> kinds.Params:
        """Draw left, top, right, bottom of the rectangle, int64 [N] each, and partner, float64 [N].

        right and bottom are exclusive.
        """
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

    def mix_image(self, image: Tensor, other: Tensor, numbers: Sequence[float]) -> None:
        left, top, right, bottom = map(int, numbers[:4])
        image[top:bottom, left:right] = other[top:bottom, left:right]

    def mix_images(self, images: Tensor, other: Tensor, columns: Tensor) -> Tensor:
        form: Any = {"dtype": torch.int64, "device": images.device}
        u = torch.arange(images.shape[2], **form)[:, None]
        v = torch.arange(images.shape[1], **form)[:, None, None]
        left, top, right, bottom = columns[:, :4, None, None, None].unbind(1)
        return torch.where((u >= left) & (u < right) & (v >= top) & (v < bottom), other, images)


def ring(columns: Tensor) -> Tensor:
    """Return the indices of images sorted by their last column: int64 [N]. Predecessors are partners."""
    return columns[:, -1].argsort(stable=True)


def _blend(images: Tensor, other: Tensor, share: Any) -> Tensor:
    """Blend images in place and return them. share: weight of `other`, a number or a tensor."""
    if images.dtype == torch.uint8:
        return images.copy_(images.float().lerp_(other.float(), share).add_(0.5))
    return images.lerp_(other, share)
