"""File operations beyond ``os``: complete reads and writes, disk space, page cache, atomic renames.

Every file that packer writes is created by `create`, or opened by `open_own`: neither follows a link. Every
folder is created by `make_folder`. `foreign` finds what others could have put into a folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import math
import mmap
import os
import shlex
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
PRIVATE, SHARED, PUBLIC = 0o600, 0o660, 0o666
"""Modes of a file: of unfinished work and caches; of a cache that a group shares, whatever the umask; of what
is published, where the umask applies.
"""
PROBE = ".packer-"
"""Prefix of files to be renamed, and of folders that show which owner and mode new ones get."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a full disk, an exhausted quota or a file at its largest size."""

_LOOK_SECONDS = 0.005  # interval between attempts to take a lock
_READ_BYTES = 1 << 30  # a call for more than 2 GiB fails on macOS and stops early on Linux
# A single 8 MB call ran at 0.4 to 4.7 GB/s (ext4, Linux 6.18), calls of 1 MB at 4 to 5 GB/s.
_WRITE_BYTES = 1 << 20

_SYNC_FILE_RANGE: Any = getattr(ctypes.CDLL(None), "sync_file_range", None)
_RENAMEAT2: Any = getattr(ctypes.CDLL(None), "renameat2", None)


def create(path: str | bytes, mode: int = PRIVATE) -> int:
    """Create a file that does not exist, and return a read-write descriptor; a link is never followed.

    Raises OSError.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(path, flags, mode)
    if mode == SHARED:
        _set_mode(fd, mode)
    return fd


def _set_mode(path: str | bytes | int, mode: int) -> None:
    """Set the mode of a file or folder, where the file system has modes."""
    with contextlib.suppress(PermissionError):
        os.chmod(path, mode)


def create_anew(path: str, mode: int = PRIVATE) -> int:
    """Create a file, after removing an old one or a link of that name. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return create(path, mode)


def open_own(path: str, *, mode: int | None = None, flags: int = os.O_RDWR) -> int:
    """Return a descriptor of an existing regular file, to write to it; a link is not followed.

    mode: create a missing file with this mode; None: raise FileNotFoundError. Raises OSError.
    """
    while True:
        try:
            fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            if mode is None:
                raise
            try:
                os.close(create(path, mode))
            except FileExistsError:
                if os.path.islink(path):
                    raise
            continue
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a regular file", path)


def make_folder(path: str | bytes, mode: int = 0o700) -> None:
    """Create a folder unless it exists, with missing parents. Raises OSError if something else is there.

    mode: 0o770 is set whatever the umask, for a group that shares the folder.
    """
    try:
        os.makedirs(path, mode)
        if mode == 0o770:
            _set_mode(path, os.stat(path).st_mode | mode)
    except FileExistsError:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            raise


def foreign(folder: str, *, private: bool = True, inside: bool = True, shared: bool = False) -> str:
    """Return the first entry of a folder that others could have written, as "PATH: reason"; "" if none.

    Everything has to belong to this user, and links are not allowed. A file system that gives all files
    another owner or mode (root squash, FAT) is recognized by what it gives to a new folder.
    private: refuse what the group may write to, and files with several names; else only what everybody may
    write to, unless the umask makes that usual. What lies in a folder that others cannot enter may have any
    mode. The folder itself may be a link of this user. inside: look at everything below the folder too.
    shared: refuse only links. Raises OSError.
    """
    if os.path.islink(folder) and os.lstat(folder).st_uid in (os.geteuid(), 0):
        folder = os.path.realpath(folder)
    writers, visitors = (0o022, 0o011) if private else (0o002, 0o001)
    usual: tuple[int, int] | None = None
    pending = [(folder, True)]
    while pending:
        path, reached = pending.pop()
        try:
            found = os.lstat(path)
            if stat.S_ISLNK(found.st_mode):
                return f"{path}: is a link"
            if private and reached and not shared and stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
                return f"{path}: has a second name elsewhere (a hard link)"
            others = found.st_mode & writers if reached else 0
            if (found.st_uid != os.geteuid() or others) and not shared:
                where = folder if os.path.isdir(folder) else os.path.dirname(folder)
                usual = usual or _usual(where, 0o700 if private else 0o777)
                if found.st_uid != usual[0]:
                    return f"{path}: belongs to user {found.st_uid}, and you are user {os.geteuid()}"
                if others & ~usual[1]:
                    return f"{path}: others can write to it (mode {stat.S_IMODE(found.st_mode):o})"
            if inside and stat.S_ISDIR(found.st_mode):
                reached = reached and bool(found.st_mode & visitors)
                pending += ((entry.path, reached) for entry in os.scandir(path))
        except FileNotFoundError:  # another process of this user has just removed it
            if path == folder:
                raise
    return ""


def _usual(folder: str, mode: int) -> tuple[int, int]:
    """Return the owner and the mode that a new folder gets here."""
    try:
        new = _new_folder(folder, mode)
    except OSError:  # it cannot be created here
        return os.geteuid(), 0
    return new.st_uid, new.st_mode


def _new_folder(folder: str, mode: int) -> os.stat_result:
    """Return the owner and mode of a folder that this user creates in another. Raises OSError."""
    path = os.path.join(folder, PROBE + os.urandom(8).hex())
    os.mkdir(path, mode)
    try:
        return os.lstat(path)
    finally:
        os.rmdir(path)


def usual_mode(folder: str) -> int:
    """Return the mode that the umask gives to a new folder in another. Raises OSError."""
    return _new_folder(folder, 0o777).st_mode & 0o777


def publish_modes(path: str, mode: int) -> None:
    """Give a private file, or a folder and all in it, the modes of public ones. mode: see usual_mode.

    Raises OSError.
    """
    if not os.path.isdir(path):
        _set_mode(path, mode & PUBLIC)
    for where, _, files in os.walk(path):
        for name in files:
            _set_mode(os.path.join(where, name), mode & PUBLIC)
        _set_mode(where, os.stat(where).st_mode & 0o7000 | mode)


def open_sparse(path: str, nbytes: int, mode: int = PRIVATE) -> int:
    """Return a read-write descriptor of a file of `nbytes` bytes; a new file is sparse (zeros).

    Raises OSError.
    """
    fd = open_own(path, mode=mode)
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
    path: str,
    needless: Callable[[], bool] = lambda: False,
    patience: float = math.inf,
    mode: int = PRIVATE,
) -> Iterator[bool]:
    """Lock a file or folder and yield True, or False once `needless()` is True or `patience` seconds are
    over.

    mode: of a file that is created. The lock ends with its holder. Raises OSError.
    """
    if os.path.isdir(path):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    else:
        fd = open_own(path, mode=mode)
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
                " If you trust it, copy the pack with the files that it links to: cp -rL "
                f"{shlex.quote(folder)} COPY."
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


def write_aside(path: str, pieces: Iterable[bytes]) -> None:
    """Write the next version of a file under a temporary name, and flush it to disk.

    It is as readable as the present version, or as its folder. Raises OSError.
    """
    like = os.stat(path if os.path.exists(path) else os.path.dirname(path))
    with open(create_anew(path + ASIDE, like.st_mode & PUBLIC), "wb") as file:
        _set_mode(file.fileno(), like.st_mode & PUBLIC)
        file.writelines(pieces)
        file.flush()
        os.fsync(file.fileno())


def write_synced(path: str, pieces: Iterable[bytes]) -> None:
    """Write a file under a temporary name, flush it to disk, and rename it. Raises OSError."""
    write_aside(path, pieces)
    os.replace(path + ASIDE, path)
    fsync_path(os.path.dirname(path))


def write_file(path: str, data: bytes) -> None:
    """Write a small file of the user, under a temporary name, and rename it.

    It replaces an old file, whose mode it keeps, or a link. Devices and the user's pipes (/dev/stdout) are
    written to. Raises PackerError if it cannot be written.
    """
    try:
        if _is_stream(path):
            # Not created, and a pipe not followed if it has become a link.
            flags = os.O_WRONLY | (os.O_NOFOLLOW if stat.S_ISFIFO(os.lstat(path).st_mode) else os.O_TRUNC)
            with open(os.open(path, flags), "wb") as file:
                file.write(data)
            return
        aside = os.path.join(os.path.dirname(path), f"{PROBE}{os.urandom(8).hex()}{ASIDE}")
        try:
            with open(create(aside, PUBLIC), "wb") as file:
                if os.path.isfile(path) and not os.path.islink(path):
                    _set_mode(file.fileno(), stat.S_IMODE(os.lstat(path).st_mode))
                file.write(data)
            os.replace(aside, path)
        except BaseException:
            remove(aside)
            raise
    except OSError as error:
        raise PackerError(f"{path}: cannot be written ({error.strerror}). Pass another name.") from error


def _is_stream(path: str) -> bool:
    """Return True for the names of open files (/dev/stdout, /dev/fd/3), devices, and this user's pipes."""
    folder = os.path.realpath(os.path.dirname(os.path.abspath(path)))
    if folder in ("/dev", "/dev/fd") or folder.startswith("/proc/"):
        return os.path.exists(path)
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISFIFO(found.st_mode) and found.st_uid == os.geteuid()


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
        found = foreign(folder, inside=False)
    except OSError as error:
        raise PackerError(
            f"{folder}: cannot be created ({error.strerror}). Set TMPDIR to another folder."
        ) from None
    if found or os.path.islink(folder) or not os.path.isdir(folder):
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
