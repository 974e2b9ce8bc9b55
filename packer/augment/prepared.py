"""The numbers that a pipeline's stages need, on the host and on the device."""

from __future__ import annotations

import torch
from torch import Tensor


class Prepared:
    """One row of numbers a sample; slices are batches of fewer samples.

    host: float32 [N, P].
    """

    def __init__(self, host: Tensor) -> None:
        self.host = host
        self._device: Tensor | None = None

    def __len__(self) -> int:
        return len(self.host)

    def __getitem__(self, samples: slice) -> Prepared:
        part = Prepared(self.host[samples])
        if self._device is not None:
            part._device = self._device[samples]
        return part

    def on(self, device: torch.device) -> Tensor:
        """The same on a device; copied there once, on the current stream, without waiting.

        Slices that are made afterwards share that copy, and are to be used on the same stream.
        """
        if device.type == "cpu":
            return self.host
        if self._device is None or self._device.device != device:
            host = self.host.pin_memory() if device.type == "cuda" else self.host
            self._device = host.to(device, non_blocking=True)
        return self._device
