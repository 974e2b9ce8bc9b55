"""Many reads of a file in one system call, by Linux's io_submit(2).

Threads that read row by row hand the GIL to each other around every read, which costs more than the reads; submitted
together, they cost one handover. From the page cache the kernel copies while it takes the submission, exactly as for
``preadv``; from a cold file it reads one after the other, also as for ``preadv``. Memory stays flat, and a truncated
file is a short read. Where the system offers no such call (macOS, some sandboxes), callers read one by one.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

MANY = 256  # reads of a submission
_CALLS = {
    "x86_64": (206, 207, 209, 208),
    "aarch64": (0, 1, 2, 4),
}  # io_setup, io_destroy, io_submit, io_getevents
_READ = np.dtype(  # struct iocb of linux/aio_abi.h, little-endian
    [
        ("data", "<u8"), ("key", "<u4"), ("flags", "<u4"), ("opcode", "<u2"), ("priority", "<i2"), ("file", "<u4"),
        ("memory", "<u8"), ("size", "<u8"), ("offset", "<i8"), ("reserved", "<u8"), ("more_flags", "<u4"), ("event", "<u4"),
    ]
)  # fmt: skip
_DONE = np.dtype([("data", "<u8"), ("read", "<u8"), ("result", "<i8"), ("result2", "<i8")])  # struct io_event


class _Queue:
    """A thread's context in the kernel, and the arrays that describe a submission."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._context = ctypes.c_ulong(0)
        self._reads = np.zeros(MANY, _READ)
        self._pointers = self._reads.ctypes.data + _READ.itemsize * np.arange(MANY, dtype="<u8")
        self._done = np.zeros(MANY, _DONE)
        self._open = False
        _call(0, MANY, ctypes.byref(self._context))
        self._open = True

    def read(
        self, fd: int, offsets: NDArray[np.int64], sizes: NDArray[np.int64], places: NDArray[np.int64]
    ) -> None:
        count = len(offsets)
        reads = self._reads[:count]
        reads["file"], reads["offset"], reads["size"], reads["memory"] = fd, offsets, sizes, places
        begun = finished = 0
        while finished < count:
            if begun < count:
                pointers = ctypes.c_void_p(int(self._pointers[begun:].ctypes.data))
                begun += _call(2, self._context, ctypes.c_long(count - begun), pointers)
            waiting = ctypes.c_long(begun - finished)
            events = ctypes.c_void_p(int(self._done[finished:].ctypes.data))
            finished += _call(3, self._context, waiting, waiting, events, None)
        if (self._done["result"][:count].sum(), self._done["result"][:count].min()) != (
            sizes.sum(),
            sizes.min(),
        ):
            raise OSError("a read came back short")

    def __del__(self) -> None:
        if self._open and self.pid == os.getpid():  # a forked child never had the context
            _call(1, self._context)


_queues = threading.local()
_library: Any = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
_numbers = _CALLS.get(platform.machine()) if sys.platform == "linux" else None


def read_many(fd: int, offsets: NDArray[np.int64], sizes: NDArray[np.int64], out: NDArray[np.uint8]) -> bool:
    """Read sizes[k] bytes at offsets[k] of the file, one after the other into `out`; False if it cannot be done this way.

    offsets, sizes: int64 [k], sizes at least 1; out: C-contiguous uint8 of at least sum(sizes) bytes.
    After False, `out` is undefined and the caller reads one by one, which finds out why.
    """
    if _numbers is None:
        return False
    places = out.ctypes.data + np.cumsum(sizes) - sizes
    try:
        queue = getattr(_queues, "queue", None)
        if queue is None or queue.pid != os.getpid():
            queue = _queues.queue = _Queue()
        for start in range(0, len(offsets), MANY):
            part = slice(start, start + MANY)
            queue.read(fd, offsets[part], sizes[part], places[part])
    except OSError:
        _queues.queue = None
        return False
    return True


def _call(which: int, *arguments: Any) -> int:
    """A system call. Raises OSError."""
    assert _numbers is not None
    result = _library.syscall(ctypes.c_long(_numbers[which]), *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), "io_submit")
    return int(result)
