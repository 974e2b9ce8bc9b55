"""Memory that holds rows of a pack as they are loaded, shared by the processes that have its descriptor.

It is a memfd: no file system limits it (Docker gives /dev/shm 64 MB), and however its holders end, kill -9 included, the kernel
frees it after the last. Where the system has none it is a file without a name, in the folder for temporary files.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer.errors import SpaceError
from packer.filling.unit_states import UnitStates
from packer.format.file_io import reserve
from packer.format.header import Extent, Field
from packer.units import size

_PAGE = 4096


@dataclass(frozen=True)
class MemoryLayout:
    """The places of rows in the memory: the states of the units, uint64 [units], then each field's rows from a page on.

    unit_rows: rows of a unit, which are made together. extents: field name -> its rows, as those of a file.
    """

    rows: int
    unit_rows: int
    extents: dict[str, Extent]
    nbytes: int

    @property
    def units(self) -> int:
        """Number of units, the last of which may have fewer rows."""
        return -(-self.rows // self.unit_rows)


def memory_layout(fields: Sequence[Field], rows: int, unit_rows: int) -> MemoryLayout:
    """Return the layout for rows of fields of fixed length, as they are loaded."""
    extents, at = {}, _pages(8 * -(-rows // unit_rows))
    for f in fields:
        extents[f.name] = Extent("", at, rows, f.row_bytes)
        at += _pages(rows * f.row_bytes)
    return MemoryLayout(rows, unit_rows, extents, at)


class RowMemory:
    """The memory, mapped. fd: its descriptor. bytes: uint8 [nbytes], only written by the process that makes the rows.

    Arrays of it stay valid when this object, which closes the descriptor at its end, is gone.
    """

    def __init__(self, layout: MemoryLayout, fd: int | None = None) -> None:
        """fd: of memory with this layout, which is this object's from now on; None: it is created. Raises OSError."""
        self.layout = layout
        self.fd = create_memory(layout.nbytes) if fd is None else fd
        weakref.finalize(self, os.close, self.fd).atexit = False  # threads may read until the process ends
        mapped = mmap.mmap(self.fd, layout.nbytes)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            # Refused where the kernel knows none. Gathering 192 KiB rows: 1.0 to 1.15 of the rate on small pages.
            with contextlib.suppress(OSError):
                mapped.madvise(mmap.MADV_HUGEPAGE)
        self.bytes: NDArray[np.uint8] = np.frombuffer(mapped, np.uint8)
        self.states = UnitStates(self.bytes[: 8 * layout.units].view("<u8"))

    def rows(self, name: str, start: int, stop: int) -> NDArray[np.uint8]:
        """Return a view of rows of a field, uint8 [rows, row bytes]."""
        extent = self.layout.extents[name]
        at = extent.offset
        part = self.bytes[at + start * extent.row_bytes : at + stop * extent.row_bytes]
        return part.reshape(stop - start, extent.row_bytes)

    def reserve(self, start: int, stop: int) -> None:
        """Allocate the pages of rows start..stop-1 and of their states. Raises SpaceError.

        Touching a page that the system cannot provide would kill the process.
        """
        places = [
            (extent.offset + start * extent.row_bytes, (stop - start) * extent.row_bytes)
            for extent in self.layout.extents.values()
        ]
        first, last = start // self.layout.unit_rows, (stop - 1) // self.layout.unit_rows
        try:
            for offset, nbytes in [(8 * first, 8 * (last - first + 1)), *places]:
                reserve(self.fd, offset, nbytes)
        except OSError as error:
            raise SpaceError(
                f"memory for rows: {size(self.layout.nbytes)} cannot be had ({error.strerror}). Pass placement='disk'."
            ) from None


def create_memory(nbytes: int) -> int:
    """Return the descriptor of new memory, all zero. Raises OSError."""
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryFile(buffering=0) as file:
            fd = os.dup(file.fileno())
        os.ftruncate(fd, nbytes)
        return fd
    fd = os.memfd_create("packer-rows", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, nbytes)
        # Nobody can shorten it under those who have mapped it.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _pages(nbytes: int) -> int:
    return -(-nbytes // _PAGE) * _PAGE
