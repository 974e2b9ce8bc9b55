"""Rows in memory, decoded, shared by all processes of a user on a machine; pinned for copies to a GPU, if need be.

Threads of each process make what is missing, and batches what they need of it, so that each row is made once, by whoever comes
first. What cannot be kept is read from the pack's own files.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Mapping
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from packer import machine
from packer.errors import PackerError
from packer.load.caches.row_memory import MAKING, MISSING, THERE, RowMemory
from packer.orders.runs import Runs
from packer.read.array_store import ArrayStore, PackStore
from packer.read.gather import Bytes
from packer.starting import Background, ThreadPool
from packer.units import size

if TYPE_CHECKING:
    import torch

_STEP_UNITS = 8  # that a thread makes at once
_LOOK_SECONDS = 0.002  # between looks at whether what others make is there
_PATIENCE_SECONDS = 1.0  # with others, who may have died
_PORTABLE = 1  # cudaHostRegisterPortable: pinned for every device

log = logging.getLogger("packer.load")


class MemoryStore(ArrayStore):
    """Rows of another store in memory, decoded: what is missing is made of it by a thread, and by who needs it first.

    failed: why some rows are read from the store below, else None.
    """

    def __init__(self, below: PackStore, *, pinned: torch.device | str | None = None) -> None:
        """pinned: a CUDA device, with which the full memory is registered, so that copies from views of it are asynchronous."""
        super().__init__(below.pack, below.fields, below.rows)
        self._below, self._kept = below, _KeptRows(below)
        self._background = Background(self, "packer-memory", partial(_keep, self._kept, pinned))

    @property
    def ready(self) -> bool:  # type: ignore[override]
        """See ArrayStore."""
        return self._kept.ready

    @property
    def viewed(self) -> bool:  # type: ignore[override]
        """See ArrayStore."""
        return self._kept.viewed

    @property
    def failed(self) -> str | None:
        """Why some rows are read from the store below, None if none are."""
        return self._kept.failed

    def copy(self, rows: Runs, out: Mapping[str, Bytes]) -> None:
        """See ArrayStore."""
        if not self._kept.copy(rows, out):
            self._below.copy(rows, out)

    def prefetch(self, rows: Runs) -> None:
        """See ArrayStore."""
        if self._kept.lacks(rows):
            self._below.prefetch(rows)

    def views(self, rows: Runs) -> dict[str, NDArray[Any]] | None:
        """See ArrayStore."""
        memory = self._kept.memory
        if memory is None or not self.viewed or len(rows.starts) != 1:
            return None
        start, count = int(rows.starts[0]), int(rows.lengths[0])
        return {
            f.name: memory.view(f.name, start, start + count).view(f.dtype).reshape(count, *(f.shape or ()))
            for f in self._kept.fields
        }

    def check(self) -> None:
        """See ArrayStore."""
        self._background.check()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all rows are in memory, or no more come; return True if they are. timeout: seconds."""
        self._kept.settled.wait(timeout)
        self.check()
        return self.ready

    def drop(self) -> None:
        """See ArrayStore."""
        self._kept.closed = True

    def leave(self) -> None:
        """Leave the memory, which is gone when the last of its processes has left it."""
        self.drop()
        self._background.end()


class _KeptRows:
    """Rows in memory as a MemoryStore and its threads share them.

    memory: None until it is opened. ready: all rows are there; viewed: and views of them are for use. closed: no more are made.
    failed: why no more are, else None. settled: set once all are there, or no more come.
    """

    def __init__(self, below: PackStore) -> None:
        self.below, self._store = below, copy(below)  # with decoded blocks of its own
        self.fields = [f.loaded for f in below.fields if not f.loaded.ragged]
        self.memory: RowMemory | None = None
        self.failed: str | None = None
        self.ready = self.viewed = self.closed = False
        self._lock, self._next = threading.Lock(), 0
        self.settled = threading.Event()

    def lacks(self, rows: Runs) -> bool:
        """Return True if some of these rows are not there."""
        memory = self.memory
        if self.ready and memory is not None:
            return False
        return memory is None or bool((memory.states[memory.units_of(rows)] != THERE).any())

    def copy(self, rows: Runs, out: Mapping[str, Bytes]) -> bool:
        """Copy rows, having made those that are missing; return False if some cannot be made, or no more are."""
        memory = self.memory
        if memory is None:
            return False
        try:
            if not self.ready and not self._bring(memory, memory.units_of(rows)):
                return False
        except PackerError as error:
            # Rows that cannot be made are the loop's concern once the files cannot give them either.
            self._fail(error)
            return False
        for name, array in out.items():
            memory.read(name, rows, array)
        return True

    def fill(self, ending: threading.Event) -> None:
        """Open the memory, and make all rows that are missing."""
        try:
            self.memory = memory = RowMemory(self._store)
            with ThreadPool(threads := max(1, machine.cores() // memory.holders)) as pool:
                for made in [pool.submit(self._make_missing, memory, ending) for _ in range(threads)]:
                    made.result()
            # What is left is what others are making.
            self.ready = not ending.is_set() and self._bring(memory, np.arange(memory.units))
            if self.ready:
                self.below.keep(0)  # its decoded blocks are not needed again
        except PackerError as error:
            self._fail(error)

    def _make_missing(self, memory: RowMemory, ending: threading.Event) -> None:
        while not (ending.is_set() or self.closed or self.failed is not None):
            with self._lock:
                states = memory.states[self._next : self._next + _STEP_UNITS]
                units = self._next + np.flatnonzero(states == MISSING)
                self._next += len(states)
                states[states == MISSING] = MAKING
            if not len(states):
                return
            try:
                memory.make(units, self._store)
            except PackerError as error:
                self._fail(error)

    def _bring(self, memory: RowMemory, units: NDArray[np.int64]) -> bool:
        """Have units there; return False if no more are made. Raises PackerError."""
        patience = time.monotonic() + _PATIENCE_SECONDS
        while len(units := units[memory.states[units] != THERE]):
            if self.closed or self.failed is not None:
                return False
            missing = units[memory.states[units] == MISSING]
            if len(missing) or time.monotonic() > patience:
                some = (missing if len(missing) else units)[:_STEP_UNITS]
                memory.make(np.unique(some), self._store)
            else:
                time.sleep(_LOOK_SECONDS)
        return True

    def _fail(self, error: PackerError) -> None:
        """Make no more rows; say so once."""
        with self._lock:
            if self.failed is not None or self.ready or self.closed:
                return
            self.failed = str(error)
        log.warning(
            "%s: not all rows are kept in memory, the others are read from the disk (%s)",
            self._store.pack.path,
            self.failed,
        )

    def leave(self) -> None:
        """Leave the memory."""
        self.memory, self.ready, self.viewed = None, False, False
        self._store.close()

    def register(self, device: torch.device | str) -> None:
        """Pin the full memory: its pages exist already, so none has to be cleared."""
        import torch

        assert self.memory is not None
        whole = self.memory.bytes
        torch.cuda.set_device(device)  # of this thread: CUDA would else begin a context on the first device
        runtime: Any = torch.cuda.cudart()
        address = whole.ctypes.data
        code = int(runtime.cudaHostRegister(address, whole.nbytes, _PORTABLE))
        if code:
            log.warning(
                "%s: CUDA cannot pin %s (error %d); batches are put together in memory that is pinned",
                self._store.pack.path,
                size(whole.nbytes),
                code,
            )
        else:
            weakref.finalize(whole.base, _unregister, runtime, address, os.getpid())
        self.viewed = not code


def _unregister(runtime: Any, address: int, pid: int) -> None:
    if os.getpid() == pid:
        runtime.cudaHostUnregister(address)


def _keep(kept: _KeptRows, pinned: torch.device | str | None, ending: threading.Event) -> None:
    """Fill the memory and, once it is full, pin it if it is to be; leave it when the store has gone, or is left."""
    try:
        kept.fill(ending)
        if kept.ready and pinned is not None:
            kept.register(pinned)
        kept.viewed |= kept.ready and pinned is None
    finally:
        kept.settled.set()
    ending.wait()
    kept.leave()
