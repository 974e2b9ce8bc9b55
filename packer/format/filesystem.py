"""Names of files and folders: links that lead out of a pack, swapping, removing, flushing to the disk."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import stat
from typing import Any

from packer.errors import FormatError

_RENAMEAT2: Any = getattr(ctypes.CDLL(None), "renameat2", None)


def check_inside(folder: str, name: str) -> str:
    """Return the path of a file in a pack's folder, having seen that to read it is to read the pack.

    A stranger's folder may hold links to the user's other files, and what opening waits for. A folder there is a shard's.
    Raises FormatError; OSError where there is nothing.
    """
    path = os.path.join(folder, name)
    if os.path.islink(path):
        inside, found = os.path.realpath(folder), os.path.realpath(path)
        if os.path.commonpath((inside, found)) != inside:
            raise FormatError(
                f"{path}: is a link that leads out of the pack, to {found}; nothing is read there."
                f" If you trust it, copy the pack with what its links lead to: cp -rL {folder} COPY."
            )
    mode = os.stat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise not_regular(path)
    return path


def not_regular(path: str) -> FormatError:
    """Return the error for a pipe, a device or a socket where a file is expected."""
    return FormatError(f"{path}: is not a regular file. Pass what packer convert wrote.")


def exchange(path: str, other: str) -> bool:
    """Swap two names, files or folders, in one step; returns False where the system or the file system cannot."""
    if _RENAMEAT2 is None:
        return False
    here = -100  # AT_FDCWD
    return bool(_RENAMEAT2(here, os.fsencode(path), here, os.fsencode(other), 2) == 0)  # RENAME_EXCHANGE


def fsync_path(path: str) -> None:
    """Flush a file, or a folder's entries, to the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def remove(path: str) -> None:
    """Remove a file or folder of ours, if it is there."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
