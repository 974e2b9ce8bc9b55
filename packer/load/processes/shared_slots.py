"""Memory shared by a process and its children, allocated in pieces.

Each process maps one sparse unnamed file, as large as the machine's memory, once. A piece is an offset in it,
so nothing has to be sent when a piece is allocated or freed, and one descriptor serves all pieces. Where a
process may not have that much address space (``ulimit -v``), the file is smaller. Pages are allocated when
they are written, and return to the system, for all processes at once, when their piece is freed. Unlike POSIX
shared memory it is not limited by the size of /dev/shm, which is 64 MB in most containers.
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

    Its first page is reserved for the owner; thread-safe, but only the process that created it allocates.

    Raises UsageError if the process may map next to nothing.
    """

    def __init__(self, descriptor: int | None = None, nbytes: int = 0) -> None:
        """descriptor: a file of nbytes that another process created; this object closes it."""
        if descriptor is None:
            nbytes = _mappable(memory())
            descriptor = _sparse_file()
            os.ftruncate(descriptor, nbytes)
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor).atexit = False
        self._mapping = mmap.mmap(descriptor, nbytes)
        self._base = self.at(0, _PAGE).ctypes.data
        self._next, self._nbytes = _PAGE, nbytes
        # Offsets of free pieces, by size.
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

        Raises MemoryError if the held pieces fill the file.
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
                    f"transform: the batches held take {self._next:,} bytes of shared memory, all there is."
                    " Hold fewer."
                )
        # Based on a memoryview, so that every view of the piece keeps this array alive (see batch.py).
        piece = np.frombuffer(memoryview(self._mapping)[offset : offset + nbytes], np.uint8)
        # The callback may run inside the garbage collector, on any thread: it takes no lock.
        weakref.finalize(piece, _give_back, self._mapping, free, os.getpid(), offset, size).atexit = False
        return piece

    def offset(self, piece: Bytes) -> int:
        """Return the offset of a piece, which may be given as any array that covers it."""
        offset = piece.ctypes.data - self._base
        if not _PAGE <= offset <= self._nbytes - len(piece):
            raise ValueError("not a piece of this shared memory")
        return int(offset)


def _give_back(mapping: mmap.mmap, free: deque[int], owner: int, offset: int, size: int) -> None:
    if os.getpid() != owner:
        return  # a forked child's copy of the array: the parent still owns the memory
    with suppress(OSError, AttributeError):  # pages that cannot be freed are reused
        mapping.madvise(mmap.MADV_REMOVE, offset, size)
    free.append(offset)


def _attached(descriptor: Any, nbytes: int) -> SharedSlots:
    return SharedSlots(descriptor.detach(), nbytes)


def _mappable(nbytes: int) -> int:
    """Return nbytes in full pages, or half of the address space left: other code needs some too."""
    wanted = nbytes = -(-nbytes // _PAGE) * _PAGE
    while True:
        try:
            mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE, mmap.PROT_READ).close()  # reserves no memory
            return nbytes if nbytes == wanted else nbytes // 2 // _PAGE * _PAGE
        except OSError:
            nbytes = nbytes // 2 // _PAGE * _PAGE
            if nbytes < 2 * _LEAST:
                raise UsageError(
                    f"transform: this process cannot map even {units.size(2 * _LEAST)} of shared memory for"
                    " its batches. Raise its address space limit (ulimit -v), or do without a transform."
                ) from None


def _sparse_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("packer")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
