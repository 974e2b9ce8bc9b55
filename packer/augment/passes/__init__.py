"""Implementations of one pass over a batch: sample, colour, scale, erase, cast, lay out.

    pass_spec.py       Pass, and the columns of numbers that each sample has
    torch_pass.py      the reference: torch operations, on any device
    native_pass.py     on the CPU, in C (native/augment.c), where that was compiled
    triton_pass.py     on CUDA: one kernel, and how it is launched
    triton_kernels.py  that kernel, in Triton

Start with pass_spec.py. Imports: augment.
"""

from __future__ import annotations

import math
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from packer import native
from packer.augment.passes import native_pass, torch_pass
from packer.augment.passes.pass_spec import Pass

IMPLEMENTATIONS = ("auto", "plain", "compiled", "cuda")


def run(
    what: Pass,
    images: Tensor,
    columns: Tensor,
    rows: Tensor | None = None,
    out: Tensor | None = None,
    implementation: str = "auto",
) -> Tensor:
    """Make the results of one pass.

    images: [M, C, H, W], uint8 or floating point, best with channels_last strides; not modified.
    columns: float32 [N, P], on the images' device; values are not checked (it would wait for the device).
    rows: int64 [N] on the same device, which of the images each sample is made of (not checked); None: M is N, in order.
    out: [N, C, h, w] of the pass's dtype, channels_last, same device; made if None.
    implementation: one of IMPLEMENTATIONS; "auto" is the fastest that can do it here.
    Returns out.
    """
    if out is None:
        out = new((len(columns), *what.size, what.channels), getattr(torch, what.dtype), images.device)
    if len(columns):
        _module(implementation, what, images, out).run(what, images, columns, rows, out)
    return out


def new(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Images [N, C, h, w], channels_last, not filled. shape: (N, h, w, C).

    On the CPU in memory from NumPy, which asks for huge pages: a pass into it takes half as long as into torch's own.
    """
    if device.type == "cpu" and 0 not in shape:  # NumPy gives an empty array no strides
        memory = torch.from_numpy(np.empty(math.prod(shape) * dtype.itemsize, np.uint8))
        return memory.view(dtype).view(shape).permute(0, 3, 1, 2)
    return torch.empty(shape, dtype=dtype, device=device).permute(0, 3, 1, 2)


def _module(name: str, what: Pass, images: Tensor, out: Tensor) -> ModuleType:
    if name == "compiled" or (
        name == "auto" and images.device.type == "cpu" and native_pass.can(what, images, out)
    ):
        return native_pass
    if name == "cuda" or (name == "auto" and images.device.type == "cuda"):
        from packer.augment.passes import triton_pass  # Triton is loaded where there is a GPU

        if name == "cuda" or triton_pass.can(what, images, out):
            return triton_pass
    if images.device.type == "cpu" and not native.COMPILED and name == "auto":
        native.warn("augment")
    return torch_pass
