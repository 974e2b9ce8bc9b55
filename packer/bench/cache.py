"""The page cache: emptying it of some files, and seeing whether that worked."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence

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
    """About which share of a file's pages is in the page cache; None where the system does not say."""
    if not hasattr(os, "RWF_NOWAIT"):  # Linux only
        return None
    page = memoryview(bytearray(mmap.PAGESIZE))
    fd = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        found = 0
        for probe in range(PROBES):
            offset = size * probe // PROBES // mmap.PAGESIZE * mmap.PAGESIZE
            try:
                # Fails with EAGAIN instead of going to the disk; it starts no readahead either.
                os.preadv(fd, [page], offset, os.RWF_NOWAIT)
                found += 1
            except BlockingIOError:
                pass
            except OSError:
                return None
        return found / PROBES
    finally:
        os.close(fd)
