"""Devices of batches: a plain copy of each slot, or a GPU by asynchronous copies from pinned memory.

A slot goes to a CUDA device by one copy on a side stream, into a buffer there of which the batch is a view.
See CudaDevice for when slots and buffers are used again.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import torch

from packer.errors import UsageError
from packer.load.batch import Bytes, Host, LentSlot, allocate
from packer.load.ranks import local_rank
from packer.units import size

Tensors = dict[str, torch.Tensor]
_PORTABLE = 1  # cudaHostRegisterPortable: pinned for every device
_MOST_COPIES = 8  # pending copies, each of which holds a pinned slot

_LOG = logging.getLogger("packer.load")


class CopyingDevice(Host):
    """Any device without pinned asynchronous copies, such as "mps" and "xpu": a plain copy of each slot.

    place: the device, with its index where it has one.
    """

    def __init__(self, place: torch.device) -> None:
        super().__init__()
        self.place = place

    def send(self, slot: LentSlot) -> Any:
        """Copy to the device."""
        return {name: torch.from_numpy(array).to(self.place) for name, array in slot.arrays.items()}

    def receive(self, sent: Any) -> Tensors:
        """Return the tensors."""
        tensors: Tensors = sent
        return tensors

    def move(self, rows: list[Any]) -> list[Any]:
        """Return a ragged field with its tensors on the device; texts stay.

        Rows of numbers, such as boxes, go together in one copy; images of different sizes one by one.
        """
        tensors = [row for row in rows if isinstance(row, torch.Tensor)]
        if len(tensors) < max(len(rows), 1):
            return rows
        if not all(row.is_contiguous() and row.dtype == rows[0].dtype for row in tensors):
            return [row.to(self.place) for row in tensors]
        sizes = [row.numel() for row in tensors]
        joined = self.put(torch.cat([row.view(-1) for row in tensors]))
        return [flat.view(row.shape) for flat, row in zip(joined.split(sizes), tensors, strict=True)]

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy a tensor to the device, for the current stream."""
        return tensor.to(self.place)


class _Copy(NamedTuple):
    """A pending copy of a slot. The events were recorded before and after it."""

    began: torch.cuda.Event
    ended: torch.cuda.Event
    slot: torch.Tensor


class _Buffer(NamedTuple):
    """Memory on the device. references: those of `_references` while there is no view of it."""

    memory: torch.Tensor
    references: tuple[int, int]


class CudaDevice(CopyingDevice):
    """A CUDA device: pinned slots, and buffers on the device that are filled on a side stream.

    The events on the way of a batch, all waited for by streams, not by Python:

    * Slot to buffer. The receiving stream waits for the copy. The slot is held until the copy has ended.
      Of several batches in a slot, those asked for on another stream `follow` the receiving one.
    * Buffer to the next copy. A batch is a view of its buffer. Once no view is left, all kernels that read
      the batch are in the queues of the streams that received batches. `receive` finds such buffers and
      records an event on each of these streams; `send` makes the side stream wait for the events before it
      frees the buffers, and allocates from the side stream's own memory, which are these buffers again.
      So at most two buffers more than those of held and prefetched batches take memory, however far
      Python is ahead of the GPU.
    * A loop that uses a batch on a stream that received none, as a prefetcher of its own does, must call
      ``record_stream`` on it, as with any tensor: torch's allocator then keeps a freed buffer from `send`
      until that stream has come so far.

    Python is at most some copies ahead of the GPU: then `send` waits, as each copy holds a pinned slot.
    """

    copy_seconds: float

    def __init__(self, place: torch.device) -> None:
        super().__init__(place)
        self.copy_seconds = 0.0
        self._stream = torch.cuda.Stream(place)
        self._lock = threading.Lock()
        self._copies: deque[_Copy] = deque()
        self._receivers: set[torch.cuda.Stream] = set()
        self._buffers: list[_Buffer] = []
        # Buffers without views, and events after their last use.
        self._unused: list[_Buffer] = []
        self._used: list[torch.cuda.Event] = []
        self._warned = False
        self._end = partial(_finish, os.getpid(), self._copies, self._receivers, self._buffers, self._unused)
        weakref.finalize(self, self._end)

    def allocate(self, nbytes: int) -> Bytes:
        """Return pinned memory for a slot, uint8 [nbytes]; other memory if CUDA refuses."""
        try:
            # Pinned for this device's context, whichever context the calling thread has.
            with torch.cuda.device(self.place):
                return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True).numpy()
        except RuntimeError as error:
            self._warn(nbytes, str(error).partition("\n")[0])
            return allocate(nbytes)

    def adopt(self, memory: Bytes) -> Bytes:
        """Pin memory until its last view is gone, if CUDA does not refuse.

        memory: the array that all views of it are based on.
        """
        runtime: Any = torch.cuda.cudart()
        with torch.cuda.device(self.place):
            if code := int(runtime.cudaHostRegister(memory.ctypes.data, memory.nbytes, _PORTABLE)):
                self._warn(memory.nbytes, f"cudaHostRegister: error {code}")
                with suppress(RuntimeError):  # CUDA would report its error again after the next kernel
                    torch.ones(1, dtype=torch.uint8, device=self.place)
                return memory
        free = weakref.finalize(memory, _unpin, runtime, memory.ctypes.data, self.place, os.getpid())
        free.atexit = False
        return memory

    def send(self, slot: LentSlot) -> tuple[torch.cuda.Event, Tensors, set[str]]:
        """Queue the copy of a slot on the side stream; return its event, the tensors, names of small ones."""
        layout, host = slot.layout, torch.from_numpy(slot.memory)
        # The device first: leaving the stream of another device would make a context on the first GPU.
        with self._lock, torch.cuda.device(self.place), torch.cuda.stream(self._stream):
            self._count_copies()
            for event in self._used:
                self._stream.wait_event(event)
            self._unused.clear()
            memory = torch.empty(len(host), dtype=torch.uint8, device=self.place)
            _references(memory)  # the first call makes the storage's Python object
            self._buffers.append(_Buffer(memory, _references(memory)))
            began, ended = (torch.cuda.Event(enable_timing=True, blocking=True) for _ in range(2))
            began.record(self._stream)
            memory[: layout.nbytes].copy_(host[: layout.nbytes], non_blocking=True)
            ended.record(self._stream)
            self._copies.append(_Copy(began, ended, host))
            # Views, so that the buffer counts as used until the batch is received.
            return ended, layout.tensors(memory, slot.rows), layout.small

    def receive(self, sent: tuple[torch.cuda.Event, Tensors, set[str]]) -> Tensors:
        """Make the current stream wait for the copy; return its tensors, small fields as copies."""
        event, tensors, small = sent
        current = self.current_stream()
        current.wait_event(event)
        with self._lock:
            self._receivers.add(current)
            held: list[_Buffer] = []
            unused = [*self._unused]
            for one in self._buffers:
                (unused if _references(one.memory) == one.references else held).append(one)
            events = [stream.record_event() for stream in self._receivers]
            # At once: Ctrl-C between two of them would have a buffer freed before its last use.
            self._buffers[:], self._unused[:], self._used = held, unused, events
        return {name: t.clone() if name in small else t for name, t in tensors.items()}

    def current_stream(self) -> torch.cuda.Stream:
        """Return torch's current stream."""
        return torch.cuda.current_stream(self.place)

    def follow(self, batch: Iterable[Any], stream: torch.cuda.Stream) -> None:
        """Make the current stream wait for the other, and torch's allocator for the current one."""
        current = self.current_stream()
        current.wait_stream(stream)
        for value in batch:
            if isinstance(value, torch.Tensor):  # lists are not on the device yet
                value.record_stream(current)

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy a tensor to the device, for the current stream, without waiting."""
        with torch.cuda.device(self.place), suppress(RuntimeError):  # if CUDA refuses, the copy waits
            tensor = tensor.pin_memory()
        return tensor.to(self.place, non_blocking=True)

    def finish(self) -> None:
        """Wait for pending copies."""
        self._end()

    def _count_copies(self) -> None:
        """Release the slots of copies that have ended; wait for the oldest if there are too many."""
        while self._copies and (len(self._copies) > _MOST_COPIES or self._copies[0].ended.query()):
            began, ended, _ = self._copies.popleft()
            ended.synchronize()
            self.copy_seconds += began.elapsed_time(ended) / 1e3

    def _warn(self, nbytes: int, why: str) -> None:
        if not self._warned:
            self._warned = True
            _LOG.warning(
                "device=%r: CUDA refuses to pin %s (%s), so copies to the GPU take longer. Raise the limit of"
                " locked memory (ulimit -l), or pass a smaller batch_size or prefetch.",
                *(self.name, size(nbytes), why),
            )


def _references(memory: torch.Tensor) -> tuple[int, int]:
    """Return the references to a tensor's storage: of tensors, and of Python variables."""
    storage = memory.untyped_storage()
    return torch._C._storage_Use_Count(storage._cdata), sys.getrefcount(storage)


def _finish(
    pid: int,
    copies: deque[_Copy],
    receivers: set[torch.cuda.Stream],
    buffers: list[_Buffer],
    unused: list[_Buffer],
) -> None:
    """Wait for copies, which read slots; leave the buffers to torch's allocator."""
    if os.getpid() != pid:  # a fork cannot use CUDA: freeing a recorded buffer would abort it
        return
    for copy in tuple(copies):
        copy.ended.synchronize()
    for one in (*buffers, *unused):
        for stream in receivers:
            one.memory.record_stream(stream)
    buffers.clear()
    unused.clear()


def _unpin(runtime: Any, address: int, place: torch.device, pid: int) -> None:
    if os.getpid() == pid:
        with torch.cuda.device(place):  # a thread without a device would get a context on the first
            runtime.cudaHostUnregister(address)


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
