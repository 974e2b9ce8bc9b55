"""Operations one after the other: draw for every row first, then apply without chance.

Draws are made on the host, keyed by (seed, epoch, place in the pipeline, name of the operation) and counted
by row, so a row gets the same flip and the same crop in whichever batch, on whichever rank it is processed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from packer import randomness
from packer.errors import UsageError

# Images of one pass through all operations on a CPU, in bytes. What lies between two operations then stays
# in the cache, and in memory that is mapped already: a new block of more than 32 MB costs a page fault every
# 4 KiB. Measured, flip + crop + normalise of 256 images, 256 to 224 px, 2 cores: 33 ms at 1.5 to 3 MB, 58 ms
# at 6 MB, 75 ms and more from 12 MB on.
_CPU_PASS_BYTES = 2 << 20

Shape = tuple[int, int, int]
"""Channels, height and width of an image."""


class Transform(Protocol):
    """One operation on a batch of images; its class name names it in errors and in the keys of its draws."""

    def output_shape(self, shape: Shape) -> Shape:
        """Return the shape of the images it makes of such ones; raises UsageError if it cannot take them."""

    def sample(self, rows: NDArray[np.int64], key: int, shape: Shape) -> dict[str, NDArray[Any]]:
        """Draw what `apply` needs, for images of this shape.

        rows: int64 [N], the images' row numbers; key: 0 <= key < 2**64.
        Returns arrays whose first dimension is N; the same row and key give the same entries. May be empty.
        """

    def apply(self, images: Tensor, params: dict[str, Tensor]) -> Tensor:
        """Change the images as drawn; no chance, and no wait for the device.

        images: [N, C, H, W], any device, best with channels_last strides; not modified.
        params: the drawn arrays as tensors on the same device; their values are not checked (it would wait).
        Returns: [N, *output_shape], channels_last.
        """


class Pipeline:
    """Transforms applied in order.

    transforms: any number; an empty pipeline returns the images themselves.
    """

    def __init__(self, transforms: Sequence[Transform]) -> None:
        self.transforms = tuple(transforms)

    def output_shape(self, shape: Shape) -> Shape:
        """Return the (C, H, W) it makes of images of this one; raises UsageError if an operation cannot."""
        for transform in self.transforms:
            shape = transform.output_shape(shape)
        return shape

    def sample(
        self, rows: NDArray[np.int64], seed: int, epoch: int, shape: Shape
    ) -> list[dict[str, NDArray[Any]]]:
        """Draw for these rows of an epoch, one dictionary a transform.

        rows: int64 [N]; shape: (C, H, W) of the images that go in.
        Raises UsageError if a transform cannot take the images it would get.
        """
        draws = []
        for place, transform in enumerate(self.transforms):
            key = randomness.key(seed, epoch, "augment", place, type(transform).__name__)
            draws.append(transform.sample(rows, key, shape))
            shape = transform.output_shape(shape)
        return draws

    def apply(
        self, images: Tensor, params: list[dict[str, NDArray[Any]]], out: Tensor | None = None
    ) -> Tensor:
        """Apply what was drawn.

        images: [N, C, H, W], N at least 1, any device; not modified.
        params: what `sample` returned for these images; moved to their device here.
        out: takes the result if given: the result's shape and dtype, channels_last, same device. A CPU fills
            memory it has used before about twice as fast as new memory.
        Returns: out, or a new tensor (for an empty pipeline the images themselves).
        Raises UsageError if images, params and out do not fit together or a transform cannot take the images.
        """
        for transform, draws in zip(self.transforms, params, strict=True):
            for name, draw in draws.items():
                if len(draw) != len(images):
                    raise UsageError(
                        f"{type(transform).__name__}: {name} was drawn for {len(draw)} rows and there are "
                        f"{len(images)} images; one draw an image is allowed. Sample the batch's rows."
                    )
        on_device = [{name: _upload(draw, images.device) for name, draw in draws.items()} for draws in params]
        step = len(images)
        if images.device.type == "cpu":
            step = max(1, _CPU_PASS_BYTES // max(1, images[:1].nbytes))
        if out is None and (len(images) <= step or not self.transforms):
            return self._pass(images, on_device)
        for start in range(0, len(images), step):
            part = slice(start, start + step)
            draws_of_part = [{name: draw[part] for name, draw in draws.items()} for draws in on_device]
            done = self._pass(images[part], draws_of_part)
            shape = (len(images), *done.shape[1:])
            if out is None:
                out = torch.empty(
                    shape, dtype=done.dtype, device=done.device, memory_format=torch.channels_last
                )
            elif (out.shape, out.dtype, out.device) != (shape, done.dtype, done.device):
                raise UsageError(
                    f"out: it is {out.dtype} {list(out.shape)} on {out.device}; "
                    f"{done.dtype} {list(shape)} on {done.device} is allowed. Allocate that, or pass none."
                )
            out[part] = done
        assert out is not None
        return out

    def __call__(self, images: Tensor, rows: NDArray[np.int64], seed: int = 0, epoch: int = 0) -> Tensor:
        """Draw and apply: images [N, C, H, W] of these rows, int64 [N]."""
        channels, height, width = images.shape[1:]
        return self.apply(images, self.sample(rows, seed, epoch, (channels, height, width)))

    def _pass(self, images: Tensor, params: list[dict[str, Tensor]]) -> Tensor:
        for transform, draws in zip(self.transforms, params, strict=True):
            images = transform.apply(images, draws)
        return images


def _upload(draw: NDArray[Any], device: torch.device) -> Tensor:
    """Bring one array of draws to the device, without waiting for the device."""
    tensor = torch.from_numpy(draw)
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
