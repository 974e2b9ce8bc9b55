"""The state of each unit of a pack that is being filled, in a file, or in memory, that all processes of a node map."""

from __future__ import annotations

import mmap
import os

import numpy as np
from numpy.typing import NDArray

from packer.format.file_io import reserve

MISSING = 0


class UnitStates:
    """An array uint64 [units] that is mapped: MISSING, or a checksum of the unit's bytes (never 0), or what else says that it is there.

    One process, which holds the lock of the folder, writes it; the others see what it writes at once. It outlives kill -9. After a
    power cut it may say more than is there, so whoever writes next compares the checksums before others may look.
    """

    def __init__(self, values: NDArray[np.uint64]) -> None:
        self.values = values

    @classmethod
    def open(cls, path: str, units: int, *, writable: bool = False) -> UnitStates:
        """Map a file; with `writable` it is made, or made anew if its size is another. Raises OSError."""
        flags = os.O_RDWR | os.O_CREAT if writable else os.O_RDONLY
        fd = os.open(path, flags | os.O_CLOEXEC, 0o666)
        try:
            if writable and os.fstat(fd).st_size != 8 * units:
                os.ftruncate(fd, 0)
                os.ftruncate(fd, 8 * units)
            if writable:
                reserve(
                    fd, 0, 8 * units
                )  # on a full disk, a page that is first written to would kill the process
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            return cls(np.frombuffer(mmap.mmap(fd, 8 * units, access=access), "<u8"))
        finally:
            os.close(fd)

    def missing(self, units: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return those of the units that are missing, in the same order."""
        found: NDArray[np.int64] = units[self.values[units] == MISSING]
        return found

    def mark(self, units: NDArray[np.int64], checksums: NDArray[np.uint64]) -> None:
        """Note that units are there. checksums: of their bytes, MISSING to forget one."""
        self.values[units] = checksums
