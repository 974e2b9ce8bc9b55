"""The page cache: emptying it of some files, and seeing whether that worked."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence

import numpy as np

from packer.format.file_io import resident

PROBES = 64  # pages looked at
CAN_DROP = hasattr(os, "posix_fadvise")
"""Whether this system can be asked to forget a file's pages; macOS cannot."""


def drop(paths: Sequence[str]) -> None:
    """Have the kernel forget files' pages. Needs CAN_DROP. Dirty and mapped pages stay, so the files are flushed first."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def resident_share(path: str) -> float | None:
    """About which share of a file's pages is in the page cache; None where the system does not say.

    mincore(2) is asked, which touches nothing, but tells the truth only to those who may write the file. Others' reads are tried
    with RWF_NOWAIT, which fail where they would go to the disk, though the kernel may then begin to read ahead.
    """
    if not hasattr(os, "RWF_NOWAIT"):  # Linux only
        return None
    fd = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        offsets = [size * probe // PROBES // mmap.PAGESIZE * mmap.PAGESIZE for probe in range(PROBES)]
        if size and os.access(path, os.W_OK):
            with mmap.mmap(fd, size, access=mmap.ACCESS_READ) as mapped:
                pages = np.frombuffer(mapped, np.uint8)
                found = sum(resident(pages, [offset]) for offset in offsets)
                del pages  # or the map could not be closed
            return found / PROBES
        return sum(_can_read(fd, offset) for offset in offsets) / PROBES
    except OSError:
        return None
    finally:
        os.close(fd)


def _can_read(fd: int, offset: int) -> bool:
    """Return True if a page can be read without going to the disk. Raises OSError where the system does not say."""
    try:
        os.preadv(fd, [bytearray(mmap.PAGESIZE)], offset, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    return True
