"""Reusable buffers for batches, each valid for as long as anyone holds anything made from it.

New memory for every batch costs more than the copy into it (the kernel clears each page first: 9,400 against 36,500
images/s at 256 px), so buffers are used again; and a batch that is still in use must not be overwritten, so a buffer
comes back when the last array, tensor or view of it is gone. Nothing waits for one: if all are held, another is made.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from packer.format.header import Field

Bytes = NDArray[np.uint8]
ALIGNMENT = 64


class Slots:
    """Buffers of one size. Thread-safe."""

    def __init__(self, nbytes: int, allocate: Callable[[int], Bytes]) -> None:
        """nbytes: of a slot; allocate: makes one, uint8 [nbytes]."""
        self._nbytes, self._allocate = nbytes, allocate
        self._free: deque[Bytes] = deque()
        self.made = 0

    def lend(self) -> Bytes:
        """A buffer, uint8 [nbytes], content arbitrary; it is used again when the last view of it is gone.

        Notes: the returned array is new and based on a memoryview. On a view of an ndarray the finalizer would fire
        early, since NumPy lets views of views skip their intermediate bases.
        """
        try:
            memory = self._free.pop()
        except IndexError:
            memory = self._allocate(self._nbytes)
            self.made += 1
        lent = np.frombuffer(memoryview(memory), np.uint8)
        # The callback may run inside the garbage collector, on any thread: it only appends, which takes no lock.
        weakref.finalize(lent, self._free.append, memory).atexit = False
        return lent


def allocate(nbytes: int) -> Bytes:
    """Host memory with every page in place (large requests on huge pages where the system offers them)."""
    memory = np.empty(nbytes, np.uint8)
    memory[::4096] = 0
    return memory


class Layout:
    """How a batch's fixed fields share one slot: a section a field, each aligned.

    nbytes: of a slot that holds `rows` rows.
    """

    def __init__(self, fields: Sequence[Field], rows: int) -> None:
        self._fields = [f for f in fields if not f.ragged]
        self._offsets: list[int] = []
        self.nbytes = 0
        for f in self._fields:
            self._offsets.append(self.nbytes)
            self.nbytes += -(-rows * f.row_bytes // ALIGNMENT) * ALIGNMENT

    def raw(self, slot: Bytes, rows: int) -> dict[str, Bytes]:
        """Each field's section as uint8 [rows, row bytes]."""
        return {
            f.name: slot[at : at + rows * f.row_bytes].reshape(rows, f.row_bytes)
            for f, at in zip(self._fields, self._offsets, strict=True)
        }

    def typed(self, slot: Bytes, rows: int) -> dict[str, NDArray[np.generic]]:
        """Each field's section as an array [rows, *shape] of its dtype."""
        return {
            f.name: slot[at : at + rows * f.row_bytes].view(f.dtype).reshape(rows, *(f.shape or ()))
            for f, at in zip(self._fields, self._offsets, strict=True)
        }
