"""Where a batch ends up: in host memory as it lies, or on a GPU by an asynchronous copy from pinned memory.

Both offer the same three calls: allocate slots, send a filled slot's arrays, receive them as tensors that the current
stream may use. A CUDA copy runs on a side stream; the receiving stream waits for its event, and the slot's memory is held
until the copy has been done, however soon the batch is dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.load.slots import Bytes, allocate

Arrays = Mapping[str, NDArray[np.generic]]
Tensors = dict[str, torch.Tensor]


class Placement(Protocol):
    """A place for batches."""

    def allocate(self, nbytes: int) -> Bytes:
        """Memory for a slot, uint8 [nbytes]."""

    def send(self, arrays: Arrays) -> Any:
        """Begin to move a filled slot's arrays; returns at once."""

    def receive(self, sent: Any) -> Tensors:
        """The arrays as tensors on the device, safe to use on the current stream."""


class Host:
    """Host memory: tensors share the slot's memory, nothing is copied."""

    def allocate(self, nbytes: int) -> Bytes:
        """Memory for a slot, uint8 [nbytes]."""
        return allocate(nbytes)

    def send(self, arrays: Arrays) -> Tensors:
        """Nothing to move."""
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def receive(self, sent: Tensors) -> Tensors:
        """The tensors."""
        return sent


class Copied:
    """Any device without pinned asynchronous copies (Apple's "mps"): a plain copy when the batch is asked for."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def allocate(self, nbytes: int) -> Bytes:
        """Memory for a slot, uint8 [nbytes]."""
        return allocate(nbytes)

    def send(self, arrays: Arrays) -> Tensors:
        """Copy to the device."""
        return {name: torch.from_numpy(array).to(self._device) for name, array in arrays.items()}

    def receive(self, sent: Tensors) -> Tensors:
        """The tensors."""
        return sent


class Cuda:
    """A CUDA device: pinned slots, copies on a side stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._copying: deque[tuple[torch.cuda.Event, Tensors]] = deque()

    def allocate(self, nbytes: int) -> Bytes:
        """Pinned memory for a slot, uint8 [nbytes]."""
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True).numpy()

    def send(self, arrays: Arrays) -> tuple[torch.cuda.Event, Tensors]:
        """Queue the copies on the side stream."""
        while self._copying and self._copying[0][0].query():
            self._copying.popleft()
        host = {name: torch.from_numpy(array) for name, array in arrays.items()}
        with torch.cuda.stream(self._stream):
            tensors = {name: t.to(self._device, non_blocking=True) for name, t in host.items()}
            event = torch.cuda.Event()
            event.record(self._stream)
        self._copying.append((event, host))  # holds the slot until the copy is done
        return event, tensors

    def receive(self, sent: tuple[torch.cuda.Event, Tensors]) -> Tensors:
        """Make the current stream wait for the copy, and tell the allocator that it uses the tensors."""
        event, tensors = sent
        current = torch.cuda.current_stream(self._device)
        current.wait_event(event)
        for tensor in tensors.values():
            tensor.record_stream(current)
        return tensors


def placement(device: str | torch.device) -> Placement:
    """The placement for a torch device. Raises UsageError if this machine has no such device."""
    try:
        wanted = torch.device(device)
    except RuntimeError:
        raise UsageError(
            f"device={str(device)!r}: is no torch device. Pass for example 'cpu' or 'cuda'."
        ) from None
    if wanted.type == "cpu":
        return Host()
    if wanted.type != "cuda":
        return Copied(wanted)
    if not torch.cuda.is_available():
        raise UsageError(f"device={str(device)!r}: torch sees no CUDA device here. Pass device='cpu'.")
    index = torch.cuda.current_device() if wanted.index is None else wanted.index
    if index >= torch.cuda.device_count():
        raise UsageError(
            f"device={str(device)!r}: this machine has {torch.cuda.device_count()} CUDA devices, from cuda:0."
        )
    return Cuda(torch.device("cuda", index))
