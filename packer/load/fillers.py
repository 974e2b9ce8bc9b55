"""Fillers copy rows of a store into the slot of a request, in parts, by threads.

Crops of images that differ in size (ragged_rows.py), padded images (padded_batches.py) and the processes of a
Python transform (processes/workers.py) are fillers with the same interface.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.format.fields import Field
from packer.load.batch import Bytes, Filled, Host, LentSlot, Scratch, SlotLayout
from packer.orders.epochs import ReadRequest
from packer.orders.runs import consecutive
from packer.read.array_store import ArrayStore, PackStore
from packer.read.row_selection import ROW, stored
from packer.starting import ForkSafeThreads

SPLIT_BYTES = 4 << 20  # larger requests are read by several threads
SPLIT_CODED_BYTES = 64 << 10  # larger requests of encoded rows are decoded by several threads


class Reading(NamedTuple):
    """The parts that fill slots.

    files: store of the pack's files, with the ragged fields. store: store of the fixed fields: the files, or
    a cache of their rows. threads: reading threads. device: device of the batches; it allocates the slots.
    """

    files: PackStore
    store: ArrayStore
    threads: ForkSafeThreads
    device: Host


class RowFiller:
    """A filler that copies rows of fixed fields by threads, and reads ragged ones into lists.

    Base class of all fillers.

    fields: of the batches. draws: True if tasks draw augmentation parameters. processes: how many fill slots.
    ahead: least number of pending batches. slow: True for one batch per request.
    """

    draws: bool
    slow: bool
    ahead: int
    processes: int
    files: PackStore
    store: ArrayStore
    threads: ForkSafeThreads
    device: Host

    draws, slow, ahead, processes = False, False, 0, 1

    def __init__(self, reading: Reading, fields: Sequence[Field]) -> None:
        self.files, self.store, self.threads, self.device = reading
        self.fields: tuple[Field, ...] = tuple(fields)
        self._numbered = ROW in self.fields
        self._ragged = [f for f in stored(fields) if f.ragged]
        self._row_bytes = sum(f.row_bytes for f in stored(fields) if not f.ragged)
        self._scratch = Scratch()
        coded = any(f.codec for f in self.files.fields)
        self._split_bytes = SPLIT_CODED_BYTES if coded else SPLIT_BYTES
        self._decodes = coded and self.store is self.files

    def allocate(self, nbytes: int) -> Bytes:
        """Return memory for a slot, uint8 [nbytes]."""
        return self.device.allocate(nbytes)

    def tasks(self, request: ReadRequest, slot: LentSlot) -> Sequence[Future[Filled]]:
        """Start to fill a slot, a large one in parts."""
        count, raw = request.count, slot.raw
        parts = min(self.threads.count, count) if count * self._row_bytes > self._split_bytes else 1
        return [
            self.threads.submit(self.fill, request, a, b, {name: rows[a:b] for name, rows in raw.items()})
            for a, b in pairwise(count * k // parts for k in range(parts + 1))
        ]

    def ragged(self, request: ReadRequest) -> Sequence[Future[Filled]]:
        """Start to read the ragged fields, if there are any."""
        return [self.threads.submit(self.fill, request, 0, request.count, {})] if self._ragged else ()

    def fill(self, request: ReadRequest, start: int, stop: int, out: dict[str, Bytes]) -> Filled:
        """Read fixed fields of entries start..stop-1 into `out`, ragged ones into lists.

        out: sections of a slot; that of the row numbers is written and removed.
        """
        began = time.perf_counter()
        rows = request.within(start, stop)
        if self._numbered and out:
            out.pop(ROW.name).view(np.int64)[:, 0] = request.rows(start, stop).rows()
        if out and request.order.span > 1 and self._decodes:
            self._copy_once(rows.rows(), out)
        elif out:
            self.store.copy(rows, out)
        ragged = {f.name: list(self.files.decoded(f.name, rows)) for f in self._ragged}
        return Filled(ragged, time.perf_counter() - began)

    def _copy_once(self, rows: NDArray[np.int64], out: dict[str, Bytes]) -> None:
        """Copy the rows of windows; rows that several of them share are decoded once."""
        some, where = np.unique(rows, return_inverse=True)
        if len(some) == len(rows):
            self.store.copy(consecutive(rows), out)
            return
        read = SlotLayout(self.store.fixed, len(some))
        memory = read.raw(self._scratch.memory(read.nbytes), len(some))
        self.store.copy(consecutive(some), {name: memory[name] for name in out})
        for name, array in out.items():
            np.take(memory[name], where, axis=0, out=array, mode="clip")  # "raise" would copy twice

    def close(self, wait: bool = True) -> None:
        """End its threads and processes, and free cached rows. wait: False only ends reads not yet begun."""
        self.threads.close(wait)  # first: they read from the store
        if self.store is not self.files:  # these stay open
            self.store.close(wait)
