"""Views of images at test time, and a model's mean over them.

A view is a crop, a mirrored or a moved copy of each image of a batch. Views can be taken of views: the shifts of both
mirrored forms, for example. Crops are windows into the images' own memory; nothing is copied for them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from math import isfinite, prod
from typing import Any

import torch
from torch import Tensor

from packer.augment import validation
from packer.errors import UsageError


class Views(ABC):
    """Some views of a batch, always as many, in one order; `len` says how many."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def each(self, images: Tensor) -> Iterator[Tensor]:
        """Yield the views one after the other, each made when it is asked for.

        images: [N, C, H, W] (or [C, H, W]), any device, uint8 or floating point; not modified.
        Views have the same dtype and device, and channels_last strides if the images have them.
        """

    def __call__(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return all views; see `each`."""
        return tuple(self.each(images))


class FiveCrop(Views):
    """Top left, top right, bottom left, bottom right, centre, as torchvision.transforms.v2.FiveCrop.

    size: side in pixels, or (height, width), at most the images'. Views are windows: [N, C, height, width], not contiguous.
    """

    def __init__(self, size: int | Sequence[int]) -> None:
        self.height, self.width = validation.sides(type(self).__name__, "size", size)

    def __len__(self) -> int:
        return 5

    def each(self, images: Tensor) -> Iterator[Tensor]:
        """Yield the five windows. Raises UsageError if they do not fit."""
        height, width = images.shape[-2:]
        if self.height > height or self.width > width:
            raise UsageError(
                f"{type(self).__name__}: size is {self.height}x{self.width} and the images are {height}x{width}; "
                f"up to {height}x{width} is allowed. Pass a smaller size."
            )
        bottom, right = height - self.height, width - self.width
        middle = round(bottom / 2), round(right / 2)
        for top, left in ((0, 0), (0, right), (bottom, 0), (bottom, right), middle):
            yield images[..., top : top + self.height, left : left + self.width]


class TenCrop(FiveCrop):
    """The five of FiveCrop, then those of the mirrored images, as torchvision.transforms.v2.TenCrop.

    size: as FiveCrop's. vertical_flip: mirror top to bottom instead of left to right. The images are copied once, to mirror them.
    """

    def __init__(self, size: int | Sequence[int], vertical_flip: bool = False) -> None:
        super().__init__(size)
        self.vertical_flip = validation.flag("TenCrop", "vertical_flip", vertical_flip)

    def __len__(self) -> int:
        return 10

    def each(self, images: Tensor) -> Iterator[Tensor]:
        """Yield the ten windows. Raises UsageError if they do not fit."""
        yield from super().each(images)
        yield from super().each(images.flip(-2 if self.vertical_flip else -1))


class HorizontalFlips(Views):
    """The images themselves, and mirrored left to right."""

    def __len__(self) -> int:
        return 2

    def each(self, images: Tensor) -> Iterator[Tensor]:
        """Yield the images and their mirrored forms."""
        yield images
        yield images.flip(-1)


class Shifts(Views):
    """The images themselves, and seen through a window that lies `pixels` further up and left, and down and right.

    pixels: 1 <= pixels < the images' height and width. Beyond the edges images are mirrored without repeating the edge.

    K. Jordan, "94% on CIFAR-10 in 3.29 seconds on a single GPU" (arXiv:2404.00498, section 3.5) takes Shifts(1) and
    HorizontalFlips() with weights (2, 2, 1, 1, 1, 1).
    """

    def __init__(self, pixels: int = 1) -> None:
        self.pixels = validation.side("Shifts", "pixels", pixels)

    def __len__(self) -> int:
        return 3

    def each(self, images: Tensor) -> Iterator[Tensor]:
        """Yield the images and both shifted forms. Raises UsageError if the images are too small."""
        height, width = images.shape[-2:]
        if self.pixels >= min(height, width):
            raise UsageError(
                f"Shifts: pixels is {self.pixels} and the images are {height}x{width}; less than their height and "
                "width is allowed. Pass fewer."
            )
        yield images
        yield _shifted(images, -self.pixels)
        yield _shifted(images, self.pixels)


def averaged(
    model: Callable[[Tensor], Tensor],
    images: Tensor,
    views: Views | Sequence[Views],
    weights: Sequence[float] | None = None,
) -> Tensor:
    """Run a model on each view and take the mean of what it returns, logits or shares.

    model: takes a batch of images, returns a tensor; called once a view, so that memory holds one view's activations.
    images: [N, C, H, W]; see Views.each. views: or several, each taken of the views of those before it:
        ``[Shifts(1), HorizontalFlips()]`` is six views, the image and its mirrored form first.
    weights: one a view, from 0 up, not all 0; None: all alike. They need not add up to 1.
    Returns: the (weighted) mean, with the shape and dtype of the model's results; half precision is summed up in float32.
    Use it within torch.inference_mode().
    """
    chain: list[Any] = (
        list(views) if isinstance(views, Sequence) and not isinstance(views, str | Views) else [views]
    )
    for one in chain:
        if not isinstance(one, Views):
            of_views = isinstance(one, type) and issubclass(one, Views)
            raise UsageError(
                f"averaged: {one!r} is among the views; FiveCrop, TenCrop, HorizontalFlips, Shifts and other Views "
                f"are allowed. Pass {f'{one.__name__}(), an instance' if of_views else 'such'}."
            )
    count = prod(len(one) for one in chain)
    shares = _shares(weights, count)
    total, dtype = None, None
    for share, view in zip(shares, _chained(images, chain), strict=True):
        if share == 0:
            continue
        made = model(view)
        if not isinstance(made, Tensor) or not made.is_floating_point():
            found = made.dtype if isinstance(made, Tensor) else type(made).__name__
            raise UsageError(
                f"averaged: the model returned {found}; a floating-point tensor is allowed. Pass a function that returns "
                "the logits alone."
            )
        dtype = made.dtype
        if made.dtype in (torch.float16, torch.bfloat16):
            made = made.float()
        total = made * share if total is None else torch.add(total, made, alpha=share)
    assert total is not None
    return total.to(dtype)


def _chained(images: Tensor, chain: Sequence[Views]) -> Iterator[Tensor]:
    """Views of views, those of the last kind next to each other."""
    if not chain:
        yield images
        return
    for view in chain[0].each(images):
        yield from _chained(view, chain[1:])


def _shares(weights: Sequence[float] | None, count: int) -> list[float]:
    """Weights that add up to 1."""
    if weights is None:
        return [1 / count] * count
    numbers: list[Any] = list(weights)
    good = len(numbers) == count and all(
        isinstance(w, int | float) and isfinite(w) and w >= 0 for w in numbers
    )
    if not good or not sum(numbers):
        raise UsageError(
            f"averaged: weights is {numbers!r} and there are {count} views; one number a view, from 0 up and not all 0, "
            f"is allowed. Pass {count} of them, or None."
        )
    return [w / sum(numbers) for w in numbers]


def _shifted(images: Tensor, by: int) -> Tensor:
    """Images through a window that lies `by` pixels further down and right, mirrored at the edges."""
    rows, columns = (_mirrored(side, by, images.device) for side in images.shape[-2:])
    if images.ndim == 4 and images.stride(1) == 1 and images.shape[1] > 1:
        # index_select returns contiguous tensors: of [N, H, W, C] those are channels_last.
        return images.permute(0, 2, 3, 1).index_select(1, rows).index_select(2, columns).permute(0, 3, 1, 2)
    return images.index_select(-2, rows).index_select(-1, columns)


def _mirrored(side: int, by: int, device: torch.device) -> Tensor:
    """Pixels by..by+side-1 of a side, those beyond the ends mirrored: int64 [side]."""
    places = torch.arange(by, by + side, device=device).abs()
    return (side - 1) - (side - 1 - places).abs()
