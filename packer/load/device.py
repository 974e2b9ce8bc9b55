"""Devices of batches: host memory without a copy, or a GPU by an asynchronous copy from pinned memory.

A CUDA copy runs on a side stream. The receiving stream waits for its event, and the slot is held until the
copy is done, even if the batch is dropped earlier.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.load.batch import Bytes, Host
from packer.load.ranks import local_rank

Arrays = Mapping[str, NDArray[np.generic]]
Tensors = dict[str, torch.Tensor]
_PORTABLE = 1  # cudaHostRegisterPortable: pinned for every device


class CopyingDevice(Host):
    """Any device without pinned asynchronous copies (Apple's "mps"): a plain copy of each filled slot.

    place: the device, with its index where it has one.
    """

    on_host = False

    def __init__(self, place: torch.device) -> None:
        super().__init__()
        self.place = place

    def send(self, arrays: Arrays) -> Any:
        """Copy to the device."""
        return {name: torch.from_numpy(array).to(self.place) for name, array in arrays.items()}


class CudaDevice(CopyingDevice):
    """A CUDA device: pinned slots, copies on a side stream."""

    copy_seconds: float

    def __init__(self, place: torch.device) -> None:
        super().__init__(place)
        self._stream = torch.cuda.Stream(place)
        self._copying: deque[tuple[torch.cuda.Event, torch.cuda.Event, dict[str, torch.Tensor]]] = deque()
        self._lock = threading.Lock()
        self.copy_seconds = 0.0
        # Copies may still read slots: wait for them before the memory can be reused.
        weakref.finalize(self, _finish, self._copying)

    def allocate(self, nbytes: int) -> Bytes:
        """Return pinned memory for a slot, uint8 [nbytes]."""
        # Pinned for this device's context, whichever context the calling thread has.
        with torch.cuda.device(self.place):
            return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True).numpy()

    def hold(self, array: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return a copy in pinned memory."""
        pinned = self.allocate(array.nbytes).view(np.int64).reshape(array.shape)
        pinned[:] = array
        return pinned

    def adopt(self, memory: Bytes) -> Bytes:
        """Pin memory until it is freed. If CUDA refuses, copies from it are synchronous."""
        pin(memory, self.place)
        return memory

    def send(self, arrays: Arrays) -> tuple[torch.cuda.Event, Tensors]:
        """Queue the copies on the side stream. arrays: pinned, not written before the copies are done."""
        with self._lock:
            while self._copying and self._copying[0][1].query():
                began, ended, _ = self._copying.popleft()
                self.copy_seconds += began.elapsed_time(ended) / 1e3
        host = {name: torch.from_numpy(array) for name, array in arrays.items()}
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(self._stream):
            began.record(self._stream)
            tensors: Tensors = {name: t.to(self.place, non_blocking=True) for name, t in host.items()}
            ended.record(self._stream)
        self._copying.append((began, ended, host))  # holds the slot until the copy is done
        return ended, tensors

    def finish(self) -> None:
        """Wait for pending copies."""
        _finish(self._copying)

    def receive(self, sent: tuple[torch.cuda.Event, Tensors]) -> Tensors:
        """Make the current stream wait for the copy, and tell the allocator that it uses the tensors."""
        event, tensors = sent
        current = torch.cuda.current_stream(self.place)
        current.wait_event(event)
        for tensor in tensors.values():
            tensor.record_stream(current)
        return tensors


def pin(memory: Bytes, device: torch.device | str) -> int:
    """Pin memory until its last view is gone; return CUDA's error code, 0 for success.

    memory: the array that all views of it are based on.
    """
    runtime: Any = torch.cuda.cudart()
    with torch.cuda.device(device):
        code = int(runtime.cudaHostRegister(memory.ctypes.data, memory.nbytes, _PORTABLE))
    if not code:
        weakref.finalize(memory, _unpin, runtime, memory.ctypes.data, os.getpid()).atexit = False
    return code


def _unpin(runtime: Any, address: int, pid: int) -> None:
    if os.getpid() == pid:
        runtime.cudaHostUnregister(address)


def _finish(copying: deque[tuple[torch.cuda.Event, torch.cuda.Event, dict[str, torch.Tensor]]]) -> None:
    for _, ended, _ in tuple(copying):
        ended.synchronize()


def device_of(name: str) -> Host:
    """Return the device for a torch device's name or "auto". Raises UsageError if this machine lacks it."""
    name = auto_device() if name == "auto" else name
    try:
        wanted = torch.device(name)
    except RuntimeError:
        raise UsageError(f"device={name!r}: is no torch device. Pass for example 'cpu' or 'cuda'.") from None
    if wanted.type != "cuda":
        host = Host() if wanted.type == "cpu" else CopyingDevice(wanted)
    elif not torch.cuda.is_available():
        raise UsageError(f"device={name!r}: torch sees no CUDA device here. Pass device='cpu'.")
    else:
        index = torch.cuda.current_device() if wanted.index is None else wanted.index
        if index >= (count := torch.cuda.device_count()):
            raise UsageError(f"device={name!r}: this machine has {count} CUDA devices, from cuda:0.")
        host = CudaDevice(torch.device("cuda", index))
    host.name = name
    return host


def auto_device() -> str:
    """Return the device that "auto" means: "cuda" if torch sees one, else "cpu".

    "cuda" is torch's current device, the one that ``model.to("cuda")`` uses. A torchrun process that has not
    set its current device would share the first GPU with all others: it gets the GPU of its LOCAL_RANK.
    """
    if not torch.cuda.is_available():
        return "cpu"
    local = local_rank() or 0
    chosen = torch.cuda.current_device() != 0 or not 0 < local < torch.cuda.device_count()
    return "cuda" if chosen else f"cuda:{local}"
