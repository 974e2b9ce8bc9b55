"""Whether images are what a pipeline was made for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from packer.augment.transform import Shape
from packer.errors import UsageError


def check_images(who: str, images: Any, shape: Shape, dtype: torch.dtype) -> None:
    """Raise UsageError for another type, layout or size. who: begins the sentence."""
    if not isinstance(images, Tensor):
        raise UsageError(
            f"{who}: the images are a {type(images).__name__}; a tensor [N, {', '.join(map(str, shape))}] is allowed. "
            "Pass torch.from_numpy(images) or the like."
        )
    if images.ndim != 4 or tuple(images.shape[1:]) != tuple(shape):
        found = tuple(images.shape[1:])
        turned = len(found) == 3 and (found[2], found[0], found[1]) == tuple(shape)
        remedy = (
            "They look channels-last: pass images.permute(0, 3, 1, 2)." if turned else "Pass such a batch."
        )
        raise UsageError(
            f"{who}: the images are {list(images.shape)}; [N, {', '.join(map(str, shape))}] is allowed. {remedy}"
        )
    if images.dtype != dtype:
        raise UsageError(
            f"{who}: the images are {images.dtype}; {dtype} is allowed. Pass such, or make the pipeline with "
            f"dtype={images.dtype}."
        )


def check_range(who: str, images: Tensor) -> None:
    """Raise UsageError unless floating-point images are from 0 to 1. Waits for the device."""
    if not images.numel():
        return
    low, high = (float(end) for end in images.aminmax())
    if not (low >= 0 and high <= 1):
        raise UsageError(
            f"{who}: the images' values go from {low:g} to {high:g}; floating-point images from 0 to 1 are allowed. "
            "Divide them by 255, or pass uint8; normalise last."
        )


def check_rows(rows: Any) -> None:
    """Raise UsageError unless these are row numbers, int64 [N]."""
    if not isinstance(rows, Tensor) or rows.dtype != torch.int64 or rows.ndim != 1:
        found = f"{rows.dtype} {list(rows.shape)}" if isinstance(rows, Tensor) else f"a {type(rows).__name__}"
        raise UsageError(f"Pipeline: rows are {found}; a tensor int64 [N] is allowed. Pass such.")
