"""PreparedDraws: the numbers of each sample that passes read, in host memory and on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(eq=False)
class PreparedDraws:
    """The columns of all stages, a row for each sample.

    host: float32 [N, P], in host memory. device: the copy on a device that `on` made, or None.
    """

    host: Tensor
    device: Tensor | None = None

    def __len__(self) -> int:
        return len(self.host)

    @classmethod
    def concatenate(cls, parts: Sequence[PreparedDraws]) -> PreparedDraws:
        """Return the concatenation of parts."""
        return parts[0] if len(parts) == 1 else cls(torch.cat([part.host for part in parts]))

    def __getitem__(self, samples: slice | tuple[slice, slice]) -> PreparedDraws:
        """Return the rows of some samples; with two slices, only some columns of these."""
        return PreparedDraws(self.host[samples], None if self.device is None else self.device[samples])

    def on(self, device: torch.device) -> Tensor:
        """Return the columns on a device, after one asynchronous copy on the current stream.

        Later slices share the copy; use them on the same stream.
        """
        if device.type == "cpu":
            return self.host
        if self.device is None or self.device.device != device:
            host = self.host.pin_memory() if device.type == "cuda" else self.host
            self.device = host.to(device, non_blocking=True)
        return self.device
