"""Decoded rows in memory, shared by all processes of a user on a machine.

Threads of each process load missing rows, and batches load the missing rows that they need, so that each row
is loaded once, by the first process that needs it. Rows that cannot be kept are read from the pack's files.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from copy import copy

import numpy as np
from numpy.typing import NDArray

from packer import machine
from packer.errors import PackerError
from packer.load.caches.row_memory import MAKING, MISSING, THERE, RowMemory
from packer.orders.runs import Runs
from packer.read.array_store import ArrayStore, PackStore
from packer.read.gather import Bytes
from packer.starting import Background, ThreadPool

_STEP_UNITS = 8  # units that a thread loads at once
_LOOK_SECONDS = 0.002  # between checks for units that other processes load
_PATIENCE_SECONDS = 1.0  # before loading units of other processes, which may have died

_LOG = logging.getLogger("packer.load")


class MemoryStore(ArrayStore):
    """Decoded rows of another store in memory; threads, and batches that need them, load missing rows.

    For one process: it cannot be pickled or used in a forked child.

    memory: the shared memory; None before the thread opened it and after close. failed: why no more rows are
    cached, else None. closed: True once close was called.
    """

    ready: bool

    def __init__(self, below: PackStore) -> None:
        super().__init__(below.pack, below.fields, below.rows)
        self._below, self._source = below, copy(below)  # with its own decoded blocks
        self.memory: RowMemory | None = None
        self.failed: str | None = None
        self.closed = False
        self._lock, self._next = threading.Lock(), 0
        self._background: Background | None = None

    def open(self, owner: object) -> None:
        """See ArrayStore."""
        self._background = Background(owner, "packer-keep", self._work)

    def copy(self, rows: Runs, out: Mapping[str, Bytes]) -> None:
        """See ArrayStore. Loads missing rows; re-raises the error of the thread, if any."""
        if self._background is not None:
            self._background.check()
        memory = self.memory
        if memory is None or not (self.ready or self._bring(memory, memory.units_of(rows))):
            self._below.copy(rows, out)
            return
        for name, array in out.items():
            memory.read(name, rows, array)

    def prefetch(self, rows: Runs) -> None:
        """See ArrayStore."""
        memory = self.memory
        if memory is None or not (self.ready or (memory.states[memory.units_of(rows)] == THERE).all()):
            self._below.prefetch(rows)

    def close(self, wait: bool = True) -> None:
        """See ArrayStore."""
        self.closed = True
        if wait:
            if self._background is not None:
                self._background.end()
            self._free()  # an error may have ended the thread before it did

    def _work(self, ending: threading.Event) -> None:
        """Run the thread: cache all rows; free them once the owner is gone, or the store is closed."""
        try:
            self._fill(ending)
            if self.ready:
                self._below.cache_blocks(0)  # its decoded blocks are not needed again
        except PackerError as error:
            self._fail(error)
        ending.wait()
        self._free()

    def _fail(self, error: PackerError) -> None:
        """Cache no more rows; log it once."""
        with self._lock:
            if self.failed is not None or self.ready or self.closed:
                return
            why = str(error)  # a kept log record with the error itself would keep the memory
            lost = "not all rows are kept in memory, the others are read from the disk"
            _LOG.warning("%s: %s (%s)", self.pack.path, lost, why)
            self.failed = why

    def _fill(self, ending: threading.Event) -> None:
        self.memory = memory = RowMemory(self._source)
        with ThreadPool(threads := max(1, machine.cores() // memory.holders)) as pool:
            for made in [pool.submit(self._make_missing, memory, ending) for _ in range(threads)]:
                made.result()
        # The remaining units are being loaded by other processes.
        self.ready = not ending.is_set() and self._bring(memory, np.arange(memory.units))

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
                memory.make(units, self._source)
            except PackerError as error:
                self._fail(error)

    def _bring(self, memory: RowMemory, units: NDArray[np.int64]) -> bool:
        """Load units, or wait for others to load them; return False if not all will be loaded."""
        patience = time.monotonic() + _PATIENCE_SECONDS
        while len(units := units[memory.states[units] != THERE]):
            if self.closed or self.failed is not None:
                return False
            missing = units[memory.states[units] == MISSING]
            if len(missing) or time.monotonic() > patience:
                some = (missing if len(missing) else units)[:_STEP_UNITS]
                try:
                    memory.make(np.unique(some), self._source)
                except PackerError as error:  # the loop fails too if the files cannot be read
                    self._fail(error)
            else:
                time.sleep(_LOOK_SECONDS)
        return True

    def _free(self) -> None:
        self.memory, self.ready = None, False
        self._source.close()
