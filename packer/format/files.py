"""Whole writes and reads at an offset, and flushing a name to the disk: what ``os`` leaves to the caller."""

from __future__ import annotations

import os


def pwrite_all(fd: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of the bytes at that offset; ``os.pwrite`` may stop early (and does at 2 GiB)."""
    view = memoryview(data).cast("B")
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written


def pread_all(fd: int, count: int, offset: int) -> bytes:
    """The bytes at that offset, fewer only at the file's end."""
    pieces = []
    while count:
        piece = os.pread(fd, count, offset)
        if not piece:
            break
        pieces.append(piece)
        count, offset = count - len(piece), offset + len(piece)
    return b"".join(pieces)


def fsync_path(path: str) -> None:
    """Flush a file, or a folder's entries, to the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
