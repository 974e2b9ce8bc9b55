"""A stand-in for torch.cuda on machines without a GPU, which runs copies and kernels as late as CUDA may.

Each stream is a queue. Its operations run in order, those of different streams in any, drawn at random; only
events order them. Memory of the "device" is memory of the host under the rules of torch's allocators: a
tensor's block is free once its last view is gone, a kernel in a queue keeps nothing, a free block serves the
stream that it was allocated for at once, and others when the streams that `record_stream` named have come so
far. A kernel of the tests (`check`, `write`) reads or writes the memory of a tensor when it runs.

So a slot or buffer that is used again too early shows as a check that finds other values.
"""

from __future__ import annotations

import contextlib
import random
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

DEVICE = torch.device("cuda", 1)
"""The device of the tests; the first GPU belongs to another process."""
_EMPTY, _ONES = torch.empty, torch.ones
_TO, _COPY, _CLONE, _SELECT = (getattr(torch.Tensor, n) for n in ("to", "copy_", "clone", "index_select"))


class Stream:
    """A queue of operations. Operations are (ready, run): two functions."""

    def __init__(self, cuda: StandIn, number: int) -> None:
        self.cuda, self.number, self.queue = cuda, number, deque[tuple[Callable[[], bool], Any]]()
        self.queued = self.ran = 0

    def add(self, run: Callable[[], None], ready: Callable[[], bool] = lambda: True) -> None:
        self.cuda.note("work was queued")
        with self.cuda.lock:
            self.queue.append((ready, run))
            self.queued += 1

    def ticket(self) -> Callable[[], bool]:
        """Tell whether everything has run that is in the queue now."""
        number = self.queued
        return lambda: self.ran >= number

    def wait_event(self, event: Event) -> None:
        self.add(lambda: None, event.ticket)
        self.cuda.turn()

    def wait_stream(self, stream: Stream) -> None:
        self.wait_event(stream.record_event())

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        self.record_event().synchronize()


class Event:
    cuda: StandIn

    def __init__(self, enable_timing: bool = False, blocking: bool = False) -> None:
        self.ticket: Callable[[], bool] = lambda: True

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or self.cuda.current_stream()
        stream.add(lambda: None)
        self.ticket = stream.ticket()

    def query(self) -> bool:
        self.cuda.turn()
        return self.ticket()

    def synchronize(self) -> None:
        self.cuda.run_until(self.ticket)

    def elapsed_time(self, other: Event) -> float:
        assert self.ticket()
        assert other.ticket()
        return 1.0


class Block:
    """Memory of the device, or pinned memory (stream None)."""

    def __init__(self, nbytes: int, stream: Stream | None) -> None:
        self.memory, self.stream = np.full(nbytes, 0xCD, np.uint8), stream
        self.used_on: set[Stream] = set()
        self.busy: list[Callable[[], bool]] = []
        self.kept = False  # by torch until its copies have run, as pinned memory of Tensor.pin_memory is

    def lend(self, freed: Callable[[Block], object]) -> torch.Tensor:
        lent = np.frombuffer(memoryview(self.memory), np.uint8)
        weakref.finalize(lent, freed, self).atexit = False
        return torch.from_numpy(lent)


class StandIn:
    """The state of the stand-in: streams, memory, what checks found.

    mallocs: "native" for torch's allocator, "async" for cudaMallocAsync, whose free blocks serve every stream
    once the stream of their allocation has come so far. most: bytes of the device. slow: nothing runs before
    Python waits for it.
    """

    def __init__(self, seed: int = 0, *, mallocs: str = "native", most: int = 1 << 40, slow: bool = False):
        self.draws, self.mallocs, self.most, self.slow = random.Random(seed), mallocs, most, slow
        self.lock = threading.RLock()
        self.streams: list[Stream] = []
        self.default = self.new_stream()
        self.blocks: list[Block] = []
        self.free: defaultdict[tuple[Stream | None, int], list[Block]] = defaultdict(list)
        self.freed: deque[Block] = deque()
        self.found: list[str] = []
        self.pending_error = ""
        self.registered: set[int] = set()
        self.thread, self.elsewhere = threading.current_thread(), set[str]()
        self.failing: Callable[[str], Exception | None] = lambda name: None
        self._here = threading.local()

    def new_stream(self, device: Any = None) -> Stream:
        self.streams.append(Stream(self, len(self.streams)))
        return self.streams[-1]

    def current_stream(self, device: Any = None) -> Stream:
        assert device is None or torch.device(device).index == DEVICE.index
        return getattr(self._here, "stream", None) or self.default

    @contextlib.contextmanager
    def stream(self, stream: Stream | None) -> Iterator[None]:
        before, self._here.stream = self.current_stream(), stream or self.current_stream()
        try:
            yield
        finally:
            self._here.stream = before

    @contextlib.contextmanager
    def checked_stream(self, stream: Stream | None) -> Iterator[None]:
        """Enter a stream as torch.cuda.stream, which sets the thread's device when it is left."""
        with self.stream(stream):
            yield
        self.touch("a stream was left")

    def turn(self, most: int = 3) -> None:
        """Let up to so many operations run."""
        if not self.slow:
            for _ in range(self.draws.randint(0, most)):
                self.step()

    def step(self) -> bool:
        """Run the next operation of a stream that can go on; return False if there is none."""
        with self.lock:
            able = [s for s in self.streams if s.queue and s.queue[0][0]()]
            if not able:
                return False
            stream = self.draws.choice(able)
            _, run = stream.queue.popleft()
            run()
            stream.ran += 1
            return True

    def run_until(self, done: Callable[[], bool]) -> None:
        while not done():
            assert self.step(), "waits for ever"

    def finish(self) -> None:
        while self.step():
            pass
        assert not any(s.queue for s in self.streams)

    @contextlib.contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        before, self._here.device = getattr(self._here, "device", 0), torch.device(device).index
        try:
            yield
        finally:
            self._here.device = before

    def note(self, what: str) -> None:
        """Note a call by another thread than that of the loop: it must not disturb a graph that is captured."""
        if threading.current_thread() is not self.thread:
            self.elsewhere.add(what)

    def touch(self, what: str) -> None:
        """Note that a call creates a context on the first GPU, which belongs to another process."""
        self.note(what)
        if getattr(self._here, "device", 0) == 0:
            self.found.append(f"{what} with the first GPU as the thread's device")

    def cudart(self) -> Any:
        def register(address: int, nbytes: int, flags: int) -> int:
            self.touch("memory was registered")
            if error := self.failing("register"):
                self.pending_error = str(error)
                return 2
            self.registered.add(address)
            return 0

        def unregister(address: int) -> None:
            self.touch("memory was unregistered")
            self.registered.remove(address)

        return SimpleNamespace(cudaHostRegister=register, cudaHostUnregister=unregister)

    def launch(self, name: str) -> None:
        """Raise what CUDA would when something is launched."""
        if error := self.failing(name):
            raise error
        if self.pending_error:
            error, self.pending_error = RuntimeError(f"CUDA error: {self.pending_error}"), ""
            raise error

    # Memory

    def allocate(self, nbytes: int, stream: Stream | None) -> torch.Tensor:
        nbytes = max(512, -(-nbytes // 512) * 512)
        with self.lock:
            for block in [self.freed.popleft() for _ in range(len(self.freed))]:
                if all(done() for done in block.busy) or (
                    block.stream is not None and self.mallocs == "async" and not block.used_on
                ):
                    self.free[block.stream, nbytes_of(block)].append(block)
                else:
                    self.freed.append(block)
            fits = self.free[stream, nbytes]
            if stream is not None and self.mallocs == "async":
                others = [
                    b
                    for (s, n), bs in self.free.items()
                    if n == nbytes and s not in (None, stream)
                    for b in bs
                ]
                fits = fits or [b for b in others if all(done() for done in b.busy)]
            if fits:
                block = self.draws.choice(fits)
                self.free[block.stream, nbytes].remove(block)
            else:
                if stream is not None and self.device_bytes + nbytes > self.most:
                    unused = [block for blocks in self.free.values() for block in blocks]
                    self.blocks = [block for block in self.blocks if block not in unused]
                    self.free.clear()
                    if self.device_bytes + nbytes > self.most:
                        raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
                block = Block(nbytes, stream)
                self.blocks.append(block)
            block.stream, block.used_on, block.busy, block.kept = stream, set(), [], False
            return block.lend(self._freed)

    @property
    def device_bytes(self) -> int:
        """Bytes that the device has given, as torch.cuda.memory_reserved."""
        return sum(nbytes_of(block) for block in self.blocks if block.stream is not None)

    def _freed(self, block: Block) -> None:
        if block.stream is not None and self.mallocs == "async":
            block.busy = [block.stream.ticket()]
        block.busy += [stream.ticket() for stream in block.used_on]
        if block.stream is None and not block.kept and not all(done() for done in block.busy):
            self.found.append("pinned memory was freed before it was copied")
        self.freed.append(block)

    def block(self, tensor: torch.Tensor) -> Block | None:
        """Return the block of a tensor's memory; None for other memory."""
        at = tensor.data_ptr()
        with self.lock:
            for block in self.blocks:
                begin = block.memory.ctypes.data
                if begin <= at < begin + len(block.memory):
                    return block
        return None

    def on_device(self, tensor: torch.Tensor) -> bool:
        return (block := self.block(tensor)) is not None and block.stream is not None

    def raw(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the same memory as a tensor that keeps nothing but the block."""
        block = self.block(tensor)
        if block is None or not tensor.numel():
            return tensor
        at = tensor.data_ptr() - block.memory.ctypes.data
        end = len(block.memory) - (len(block.memory) - at) % tensor.element_size()
        return (
            torch.from_numpy(block.memory[at:end])
            .view(tensor.dtype)
            .as_strided(tensor.shape, tensor.stride())
        )

    # What torch does

    def empty(self, *size: Any, device: Any = None, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        there = device is not None and torch.device(device).type == "cuda"
        if not (there or pin_memory):
            return _EMPTY(*size, device=device, **options)
        if pin_memory:
            self.touch("memory was pinned")
            if error := self.failing("pin"):
                raise error
        meta = _EMPTY(*size, device="meta", **options)
        memory = self.allocate(meta.nbytes, self.current_stream() if there else None)
        return memory[: meta.nbytes].view(meta.dtype).view(meta.shape)

    def to(self, tensor: torch.Tensor, *given: Any, **options: Any) -> torch.Tensor:
        where = given[0] if given else options.get("device")
        if not isinstance(where, torch.device) or where.type != "cuda":
            return _TO(tensor, *given, **options)
        if self.on_device(tensor):
            return tensor
        memory = self.empty(tensor.numel(), dtype=tensor.dtype, device=where)
        moved = (
            memory.as_strided(tensor.shape, tensor.stride()) if tensor.numel() else memory.view(tensor.shape)
        )
        return self.copy(moved, tensor, options.get("non_blocking", False))

    def copy(self, to: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        if not self.on_device(to):
            assert not self.on_device(source), "a copy from the device would wait"
            return _COPY(to, source)
        self.launch("copy")
        stream, block = self.current_stream(), self.block(source)
        target, given = self.raw(to), self.raw(source)
        if block is None:  # CUDA copies pageable memory aside first
            given = _CLONE(source)
        stream.add(lambda: _COPY(target, given))
        if block is not None and block.stream is None:
            block.busy.append(stream.ticket())
        if not non_blocking:
            stream.synchronize()
        self.turn()
        return to

    def clone(self, tensor: torch.Tensor, **options: Any) -> torch.Tensor:
        if not self.on_device(tensor):
            return _CLONE(tensor, **options)
        made = self.empty(tensor.shape, dtype=tensor.dtype, device="cuda")
        return self.copy(made, tensor, non_blocking=True)

    def index_select(self, tensor: torch.Tensor, axis: int, rows: torch.Tensor) -> torch.Tensor:
        if not self.on_device(tensor):
            return _SELECT(tensor, axis, rows)
        self.launch("index_select")
        made = self.empty((len(rows), *tensor.shape[1:]), dtype=tensor.dtype, device="cuda")
        target, given, numbers = self.raw(made), self.raw(tensor), self.raw(rows)
        self.current_stream().add(lambda: _COPY(target, _SELECT(given, axis, numbers)))
        self.turn()
        return made

    def pin_memory(self, tensor: torch.Tensor) -> torch.Tensor:
        pinned = self.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        if (block := self.block(pinned)) is not None:
            block.kept = True
        return _COPY(pinned, tensor)

    def record_stream(self, tensor: torch.Tensor, stream: Stream) -> None:
        if (block := self.block(tensor)) is not None:
            block.used_on.add(stream)

    def ones(self, *size: Any, device: Any = None, **options: Any) -> torch.Tensor:
        if device is not None and torch.device(device).type == "cuda":
            self.launch("ones")
        return _ONES(*size, **options)

    # Kernels of the tests

    def check(self, tensor: torch.Tensor, expected: torch.Tensor, what: str) -> None:
        """Queue a kernel that compares a tensor with what it must hold, and keeps no reference to it."""
        raw = self.raw(tensor)

        def compare() -> None:
            if not torch.equal(raw, expected):
                self.found.append(f"{what}: other values")

        self.current_stream().add(compare)

    def write(self, tensor: torch.Tensor, value: int) -> None:
        """Queue a kernel that overwrites a tensor."""
        raw = self.raw(tensor)
        self.current_stream().add(lambda: raw.fill_(value))

    def scribble(self) -> None:
        """Let other code of the program write to all memory that is free, on each stream."""
        for stream in tuple(self.streams):
            with self.lock, self.stream(stream):
                self.allocate(1, stream)  # looks at what was freed
                for nbytes in [n for (s, n), blocks in self.free.items() if s is stream for _ in blocks]:
                    self.write(self.allocate(nbytes, stream), 0xEE)


def nbytes_of(block: Block) -> int:
    return len(block.memory)


def install(cuda: StandIn, patch: pytest.MonkeyPatch) -> StandIn:
    """Put a stand-in in the place of torch.cuda."""
    Event.cuda = cuda
    replaced = {
        "is_available": lambda: True,
        "device_count": lambda: 2,
        "current_device": lambda: 0,
        "mem_get_info": lambda device: (cuda.most - cuda.device_bytes, cuda.most),
        "Stream": cuda.new_stream,
        "Event": Event,
        "current_stream": cuda.current_stream,
        "stream": cuda.checked_stream,
        "device": cuda.device,
        "cudart": cuda.cudart,
    }
    for name, value in replaced.items():
        patch.setattr(torch.cuda, name, value)
    patch.setattr(torch, "empty", cuda.empty)
    patch.setattr(torch, "ones", cuda.ones)
    methods = {
        "to": cuda.to,
        "copy_": cuda.copy,
        "clone": cuda.clone,
        "index_select": cuda.index_select,
        "pin_memory": cuda.pin_memory,
        "record_stream": cuda.record_stream,
    }
    for name, function in methods.items():
        patch.setattr(torch.Tensor, name, partialmethod_of(function))
    return cuda


def partialmethod_of(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(tensor: torch.Tensor, *given: Any, **options: Any) -> Any:
        return function(tensor, *given, **options)

    return method
