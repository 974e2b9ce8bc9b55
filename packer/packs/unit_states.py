"""States of a pack's fetched stretches, in a file that all processes map."""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.format.file_io import PRIVATE, open_own, reserve

STATES = "state"
MISSING = 0


def map_states(
    path: str, count: int, dtype: str, *, writable: bool = False, mode: int = PRIVATE
) -> NDArray[Any]:
    """Map a file of states: MISSING, or any other value for a unit that is there.

    All processes see a change at once.
    States survive kill -9. After a power cut they may claim units that are not there; the next writer must
    correct that before others read. writable: create the file with this mode, and reset it if its size
    differs. Raises OSError.
    """
    nbytes = count * np.dtype(dtype).itemsize
    fd = open_own(path, mode=mode) if writable else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if writable:
            if os.fstat(fd).st_size != nbytes:
                os.ftruncate(fd, 0)
                os.ftruncate(fd, nbytes)
            reserve(fd, 0, nbytes)  # on a full disk the first write to a page would kill the process
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        return np.frombuffer(mmap.mmap(fd, nbytes, access=access), dtype)
    finally:
        os.close(fd)
