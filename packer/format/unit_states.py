"""The states of a pack's units (rows that are made, stretches that are fetched), in a file that all processes map."""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.format.file_io import reserve

STATES, SOCKET, KEYS = "state", "socket", "keys"
"""Names in the folder of a pack that is being filled: these states, where its process listens, and the keys until it is sealed."""
MISSING = 0


def map_states(path: str, count: int, dtype: str, *, writable: bool = False) -> NDArray[Any]:
    """Map a file of states: MISSING, or what else says that a unit is there. All processes see a change at once.

    It outlives kill -9. After a power cut it may say more than is there, which whoever writes next has to find out
    before others look. writable: it is made, or made anew if its size is another. Raises OSError.
    """
    nbytes = count * np.dtype(dtype).itemsize
    flags = os.O_RDWR | os.O_CREAT if writable else os.O_RDONLY
    fd = os.open(path, flags | os.O_CLOEXEC, 0o666)
    try:
        if writable:
            if os.fstat(fd).st_size != nbytes:
                os.ftruncate(fd, 0)
                os.ftruncate(fd, nbytes)
            reserve(fd, 0, nbytes)  # on a full disk, a page that is first written to would kill the process
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        return np.frombuffer(mmap.mmap(fd, nbytes, access=access), dtype)
    finally:
        os.close(fd)
