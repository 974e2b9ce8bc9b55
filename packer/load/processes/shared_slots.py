"""Memory shared by a process and its children, allocated in pieces.

One sparse file without a name, as large as the machine's memory, is mapped once by each process: a piece is a place in it, so
nothing needs to be sent when one is made or given back, and there is one descriptor however many pieces are held. Where
processes may not have that much address space (``ulimit -v``), it is smaller. Pages
come into being when they are written, and go back to the system, for all processes at once, when a piece is let go.
Unlike POSIX shared memory it is not limited by the size of /dev/shm, which is 64 MB in most containers.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
import weakref
from collections import defaultdict, deque
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer import units
from packer.errors import UsageError
from packer.machine import memory

Bytes = NDArray[np.uint8]
_PAGE = mmap.PAGESIZE
_LEAST = 1 << 20


class SharedSlots:
    """Memory for slots that a process shares with its children.

    Its first page is for the owner's own use; thread-safe, but only the process that made it allocates.

    Raises UsageError where the process may map next to nothing.
    """

    def __init__(self, descriptor: int | None = None, nbytes: int = 0) -> None:
        """descriptor: of the file that another process made, of nbytes; it becomes this object's."""
        if descriptor is None:
            nbytes = _mappable(memory())
            descriptor = _sparse_file()
            os.ftruncate(descriptor, nbytes)
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor).atexit = False
        self._mapping = mmap.mmap(descriptor, nbytes)
        self._base = self.at(0, _PAGE).ctypes.data
        self._next, self._nbytes = _PAGE, nbytes
        # Offsets of pieces given back, by their size.
        self._free: defaultdict[int, deque[int]] = defaultdict(deque)
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        from multiprocessing.reduction import DupFd  # works while a process is being started

        return _attached, (DupFd(self._descriptor), self._nbytes)

    def at(self, offset: int, nbytes: int) -> Bytes:
        """Return a view of the bytes at an offset, uint8 [nbytes]."""
        return np.frombuffer(self._mapping, np.uint8, nbytes, offset)

    def allocate(self, nbytes: int) -> Bytes:
        """Allocate a page-aligned, uninitialized piece, uint8 [nbytes]; freed when its last view is gone.

        Raises MemoryError when pieces as large as the whole are held.
        """
        size = -(-max(nbytes, 1) // _PAGE) * _PAGE
        with self._lock:
            free = self._free[size]
            if free:
                offset = free.pop()
            elif self._next + size <= self._nbytes:
                offset, self._next = self._next, self._next + size
            else:
                raise MemoryError(
                    f"transform: the batches held take {self._next:,} bytes of shared memory, all there is. Hold fewer."
                )
        # Based on a memoryview, so that every view of the piece keeps this very array (see batch.py).
        piece = np.frombuffer(memoryview(self._mapping)[offset : offset + nbytes], np.uint8)
        # It may run inside the garbage collector, on any thread: it takes no lock.
        weakref.finalize(piece, _give_back, self._mapping, free, os.getpid(), offset, size).atexit = False
        return piece

    def offset(self, piece: Bytes) -> int:
        """Return the offset of a piece, or of an array over the whole of it."""
        offset = piece.ctypes.data - self._base
        if not _PAGE <= offset <= self._nbytes - len(piece):
            raise ValueError("not a piece of this shared memory")
        return int(offset)


def _give_back(mapping: mmap.mmap, free: deque[int], owner: int, offset: int, size: int) -> None:
    if os.getpid() != owner:
        return  # a forked child's copy of the array: the memory is still the parent's
    with suppress(OSError, AttributeError):  # where pages cannot be freed, they are used again
        mapping.madvise(mmap.MADV_REMOVE, offset, size)
    free.append(offset)


def _attached(descriptor: Any, nbytes: int) -> SharedSlots:
    return SharedSlots(descriptor.detach(), nbytes)


def _mappable(nbytes: int) -> int:
    """Return nbytes in whole pages, or half of what this process can map: it needs address space for other things too."""
    wanted = nbytes = -(-nbytes // _PAGE) * _PAGE
    while True:
        try:
            mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE, mmap.PROT_READ).close()  # which reserves no memory
            return nbytes if nbytes == wanted else nbytes // 2 // _PAGE * _PAGE
        except OSError:
            nbytes = nbytes // 2 // _PAGE * _PAGE
            if nbytes < 2 * _LEAST:
                raise UsageError(
                    f"transform: this process cannot map even {units.size(2 * _LEAST)} of shared memory, which batches lie in."
                    " Raise the limit of its address space (ulimit -v), or do without a transform."
                ) from None


def _sparse_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("packer")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
