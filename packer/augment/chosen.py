"""Some images of a batch changed, the others as they were."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from packer.augment.transform import Columns

# Images changed at a time: a CPU's cache then holds them and what is worked out between; a GPU's memory holds them easily.
_CPU_BYTES, _GPU_BYTES = 512 << 10, 64 << 20

Change = Callable[[Tensor, Tensor, Columns], Tensor]
"""(pixels [n, H, W, C], contiguous; their columns float32 [n, P]; the same on the host) -> changed pixels, a new tensor."""


def changed(
    images: Tensor, columns: Tensor, known: Columns, changes: Sequence[tuple[NDArray[np.bool_], Change]]
) -> Tensor:
    """Change the images that were chosen; each by at most one of the changes.

    images: [N, C, H, W], channels_last; not modified. columns: float32 [N, P], same device. known: the same on the host.
    changes: for each which images it is for, bool [N] on the host (so nothing waits for the device), and what it does.
    Returns: the same shape and dtype, channels_last; the images themselves if none is chosen.
    """
    if not any(chosen.any() for chosen, _ in changes):
        return images
    pixels = images.permute(0, 2, 3, 1).contiguous()
    every = any(chosen.all() for chosen, _ in changes)
    result = torch.empty_like(pixels) if every else pixels.clone()
    step = max(1, (_CPU_BYTES if images.device.type == "cpu" else _GPU_BYTES) // pixels[:1].nbytes)
    for chosen, change in changes:
        numbers = np.flatnonzero(chosen)
        index = _sent(numbers, images.device)
        for start in range(0, len(numbers), step):
            part = slice(start, start + step)
            mine = known[numbers[part]]
            if every:
                result[part] = change(pixels[part], columns[part], mine)
            else:
                some = index[part]
                made = change(pixels.index_select(0, some), columns.index_select(0, some), mine)
                result.index_copy_(0, some, made)
    return result.permute(0, 3, 1, 2)


def _sent(numbers: NDArray[np.int64], device: torch.device) -> Tensor:
    sent = torch.from_numpy(numbers)
    if device.type == "cuda":
        sent = sent.pin_memory()
    return sent.to(device, non_blocking=True)
