"""Whole reads and writes at an offset, and room on the disk for them: what ``os`` leaves to the caller."""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a disk, a quota or a file system that has no more room."""

_READ_BYTES = 1 << 30  # a call for more than 2 GiB fails on macOS and stops early on Linux
# One call for 8 MB ran at anything from 0.4 to 4.7 GB/s (ext4, Linux 6.18), calls of 1 MB at 4 to 5 GB/s.
_WRITE_BYTES = 1 << 20

_SYNC_FILE_RANGE: Any = getattr(ctypes.CDLL(None), "sync_file_range", None)


def pread_all(fd: int, count: int, offset: int) -> bytes:
    """Return the bytes at that offset, fewer only at the file's end."""
    pieces = []
    while count:
        piece = os.pread(fd, min(count, _READ_BYTES), offset)
        if not piece:
            break
        pieces.append(piece)
        count, offset = count - len(piece), offset + len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def pread_into(fd: int, out: memoryview | bytearray | NDArray[np.uint8], offset: int) -> int:
    """Fill `out`, contiguous bytes, from that offset; returns how many were read, fewer only at the file's end."""
    view, done = memoryview(out), 0
    while done < len(view):
        count = os.preadv(fd, [view[done : done + _READ_BYTES]], offset + done)
        if not count:
            break
        done += count
    return done


def pread_path(path: str, count: int, offset: int) -> bytes:
    """Open a file and return the bytes at that offset, fewer only at its end."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return pread_all(fd, count, offset)
    finally:
        os.close(fd)


def pwrite_all(fd: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of the bytes at that offset; ``os.pwrite`` may stop early."""
    view = memoryview(data).cast("B")
    while view:
        written = os.pwrite(fd, view[:_WRITE_BYTES], offset)
        view, offset = view[written:], offset + written


def pwrite_path(path: str, data: bytes, offset: int) -> None:
    """Open an existing file, write the bytes at that offset, and flush them to the disk."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        pwrite_all(fd, data, offset)
        os.fsync(fd)
    finally:
        os.close(fd)


def reserve(fd: int, offset: int, count: int) -> bool:
    """Have the system promise room for these bytes of a file, which grows to hold them.

    Returns False where the system or the file system cannot promise. Raises OSError if there is no room.
    """
    try:
        os.posix_fallocate(fd, offset, count)
    except AttributeError:
        return False  # macOS has none
    except OSError as error:
        if error.errno in (*FULL, errno.ENOMEM):
            raise
        return False
    return True


def start_writeback(fd: int, offset: int, count: int) -> None:
    """Have the system begin to write these bytes to the disk, without waiting: the flush at the end then finds little to do.

    Does nothing where there is no sync_file_range(2), which is a hint and no promise.
    """
    if _SYNC_FILE_RANGE is not None:
        _SYNC_FILE_RANGE(fd, ctypes.c_int64(offset), ctypes.c_int64(count), 2)  # SYNC_FILE_RANGE_WRITE
