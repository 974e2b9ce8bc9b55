"""File operations beyond ``os``: complete reads and writes, disk space, page cache, atomic renames."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import math
import mmap
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timezone
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import FormatError, PackerError

ASIDE = ".new"
"""Suffix of a file's name until the file is complete."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a full disk, an exhausted quota or a file at its largest size."""

_LOOK_SECONDS = 0.005  # interval between attempts to take a lock
_READ_BYTES = 1 << 30  # a call for more than 2 GiB fails on macOS and stops early on Linux
# A single 8 MB call ran at 0.4 to 4.7 GB/s (ext4, Linux 6.18), calls of 1 MB at 4 to 5 GB/s.
_WRITE_BYTES = 1 << 20

_SYNC_FILE_RANGE: Any = getattr(ctypes.CDLL(None), "sync_file_range", None)
_RENAMEAT2: Any = getattr(ctypes.CDLL(None), "renameat2", None)


def open_sparse(path: str, nbytes: int) -> int:
    """Return a read-write descriptor of a file of `nbytes` bytes; a new file is sparse (zeros).

    Raises OSError.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        if os.fstat(fd).st_size != nbytes:
            os.ftruncate(fd, nbytes)
    except BaseException:
        os.close(fd)
        raise
    return fd


def pread_all(fd: int, count: int, offset: int) -> bytes:
    """Return `count` bytes at an offset, fewer only at the file's end."""
    pieces = []
    while count:
        piece = os.pread(fd, min(count, _READ_BYTES), offset)
        if not piece:
            break
        pieces.append(piece)
        count, offset = count - len(piece), offset + len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def pread_into(fd: int, out: memoryview | bytearray | NDArray[np.uint8], offset: int) -> int:
    """Fill `out` (contiguous bytes) from an offset; return the bytes read, fewer only at the file's end."""
    view, done = memoryview(out), 0
    while done < len(view):
        count = os.preadv(fd, [view[done : done + _READ_BYTES]], offset + done)
        if not count:
            break
        done += count
    return done


def pread_path(path: str, count: int, offset: int) -> bytes:
    """Open a file and return `count` bytes at an offset, fewer only at its end."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return pread_all(fd, count, offset)
    except OSError as error:
        error.filename = path
        raise
    finally:
        os.close(fd)


def pwrite_all(fd: int, data: bytes | memoryview, offset: int) -> None:
    """Write all bytes at an offset; ``os.pwrite`` may stop early."""
    view = memoryview(data).cast("B")
    while view:
        written = os.pwrite(fd, view[:_WRITE_BYTES], offset)
        view, offset = view[written:], offset + written


def reserve(fd: int, offset: int, count: int) -> bool:
    """Reserve disk space for a byte range of a file, which grows to hold it.

    Returns False if the system or the file system cannot reserve. Raises OSError if there is too little
    space.
    """
    try:
        os.posix_fallocate(fd, offset, count)
    except AttributeError:
        return False  # macOS has no posix_fallocate
    except OSError as error:
        if error.errno in FULL:
            raise
        return False
    return True


def inode_of(path: str) -> int:
    """Return the inode number of a path, -1 if there is none.

    It tells a file from later ones of the same name.
    """
    try:
        return os.stat(path).st_ino
    except OSError:
        return -1


@contextlib.contextmanager
def locked(
    path: str, needless: Callable[[], bool] = lambda: False, patience: float = math.inf
) -> Iterator[bool]:
    """Lock a file or folder and yield True, or False once `needless()` is True or `patience` seconds are
    over.

    The lock ends with its holder. Raises OSError.
    """
    flags = os.O_RDONLY if os.path.isdir(path) else os.O_RDWR | os.O_CREAT
    fd = os.open(path, flags | os.O_CLOEXEC, 0o666)
    deadline, mine = time.monotonic() + patience, False
    try:
        while not mine and not needless():
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                mine = True
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    break
                time.sleep(_LOOK_SECONDS)
        yield mine
    finally:
        if mine:
            fcntl.flock(fd, fcntl.LOCK_UN)  # a child forked in between holds it too
        os.close(fd)


def start_writeback(fd: int, offset: int, count: int) -> None:
    """Start writing these bytes back to disk without waiting, so that the final flush has little left to do.

    Does nothing where sync_file_range(2) is missing; the call is only a hint.
    """
    if _SYNC_FILE_RANGE is not None:
        _SYNC_FILE_RANGE(fd, ctypes.c_int64(offset), ctypes.c_int64(count), 2)  # SYNC_FILE_RANGE_WRITE


def check_inside(folder: str, name: str) -> str:
    """Return the path of a file in a pack's folder, after checking that it belongs to the pack.

    A folder from a stranger may contain links to the user's other files, or a pipe that blocks whoever opens
    it. A subfolder is a shard. Raises FormatError; OSError if there is no such file.
    """
    path = os.path.join(folder, name)
    if os.path.islink(path):
        inside, found = os.path.realpath(folder), os.path.realpath(path)
        if os.path.commonpath((inside, found)) != inside:
            raise FormatError(
                f"{path}: is a link that leads out of the pack, to {found}; packer reads nothing there."
                f" If you trust it, copy the pack with the files that it links to: cp -rL {folder} COPY."
            )
    mode = os.stat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise not_regular(path)
    return path


def not_regular(path: str) -> FormatError:
    """Return the error for a pipe, a device or a socket where a file is expected."""
    return FormatError(f"{path}: is not a regular file. Pass what packer convert wrote.")


def exchange(path: str, other: str) -> bool:
    """Swap two files or folders atomically; return False if the system or the file system cannot."""
    if _RENAMEAT2 is None:
        return False
    here = -100  # AT_FDCWD
    return bool(_RENAMEAT2(here, os.fsencode(path), here, os.fsencode(other), 2) == 0)  # RENAME_EXCHANGE


def fsync_path(path: str) -> None:
    """Flush a file, or a folder's entries, to disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_synced(path: str, pieces: Iterable[bytes]) -> None:
    """Write a file under a temporary name, flush it to disk, and rename it. Raises OSError."""
    with open(path + ASIDE, "wb") as file:
        file.writelines(pieces)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ASIDE, path)
    fsync_path(os.path.dirname(path))


def write_file(path: str, data: bytes) -> None:
    """Write a small file, replacing an old one. Raises PackerError if it cannot be written."""
    try:
        with open(path, "wb") as file:
            file.write(data)
    except OSError as error:
        raise PackerError(f"{path}: cannot be written ({error.strerror}). Pass another name.") from error


def own_folder() -> str:
    """Create or check this user's folder for temporary files and return it.

    Raises PackerError if another user owns the folder or may write to it: everybody may write to /tmp, so
    someone else may have put a link or a folder of that name there.
    """
    try:
        folder = os.path.join(tempfile.gettempdir(), f"packer-{os.getuid()}")
    except OSError as error:
        raise PackerError(f"{error.strerror}. Set TMPDIR to a folder that can be written.") from None
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        found = os.lstat(folder)
    except OSError as error:
        raise PackerError(
            f"{folder}: cannot be created ({error.strerror}). Set TMPDIR to another folder."
        ) from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PackerError(
            f"{folder}: is not a folder, belongs to another user, or is writable for others."
            " Remove it, or set TMPDIR to another folder."
        )
    return folder


def remove(path: str) -> None:
    """Remove a file or folder that packer wrote, if it exists."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


# PyDLL keeps the GIL: the call takes a microsecond, releasing and retaking the GIL takes tens.
_LIBRARY = ctypes.PyDLL(None, use_errno=True)
_PAGE = mmap.PAGESIZE


def resident(mapped: NDArray[np.uint8], starts: list[int]) -> bool:
    """Return True if the page cache holds the pages of all these byte offsets of a mapped array (uint8, 1-D).

    Returns True where the system cannot say. Source: mincore(2).
    """
    if not hasattr(_LIBRARY, "mincore"):
        return True
    base, flag = mapped.ctypes.data, ctypes.c_ubyte()
    for start in starts:
        page = (base + start) // _PAGE * _PAGE
        if (
            _LIBRARY.mincore(ctypes.c_void_p(page), ctypes.c_size_t(1), ctypes.byref(flag)) == 0
            and not flag.value & 1
        ):
            return False
    return True


class InputFile(NamedTuple):
    """An input file of a conversion. time: last modification, nanoseconds since 1970."""

    name: str
    time: int

    def __str__(self) -> str:
        """Return the name and the time (UTC)."""
        seconds, rest = divmod(self.time, 10**9)
        when = datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
        return f"{self.name} of {when}.{rest:09d}"


def newest_file(names: Sequence[str], times: NDArray[np.int64]) -> InputFile:
    """Return the most recently modified file; times: int64 [N], nanoseconds since 1970."""
    index = int(times.argmax()) if len(times) else 0
    return InputFile(names[index], int(times[index])) if len(times) else InputFile("", 0)
