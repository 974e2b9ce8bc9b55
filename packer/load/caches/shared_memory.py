"""Memory that the processes of one user on one machine share when they open the same thing; it is gone with the last of them.

The memory is a memfd: no file system limits it (Docker gives /dev/shm 64 MB), and however its holders end, kill -9 included,
the kernel frees it after the last. So that they find each other there is a small file in the folder for temporary files, which
lists who holds the memory: ``process number, descriptor, start time`` a line. A newcomer opens ``/proc/<process>/fd/<descriptor>``
of one who lives, or makes the memory. Lines of the dead are dropped by whoever comes next, and the last to leave deletes the file;
one that killed processes left behind is a few bytes that mean nothing.

Locks are fcntl's: they die with their process, and unlike flock's they are not inherited by forked children, who would hold on
to them after the process that took them was killed. They do not exclude the threads of one process from each other, and closing
any descriptor of the file drops them; hence one object a memory in each process, and one lock around all visits to the files.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import mmap
import os
import stat
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.format.file_io import reserve

_PATIENCE_SECONDS = (
    5.0  # for the lock of a list, which is held for microseconds, unless its holder was stopped
)
_LIST_BYTES = 1 << 20  # at most
# Of a list: anybody may have put something else in its place, and opening a FIFO would wait for a writer.
_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Memory:
    """Memory, zeroed when new. Use open_memory to make one.

    bytes: uint8 [nbytes]; arrays made from it stay valid when this object is gone. fd: its descriptor, None if it has none.
    why_private: why no other process finds it, else None. Forked children share it in any case.
    at_end: called when this object is collected, and at exit. registered: whether CUDA has pinned it, to be changed under
    `registering`.
    """

    def __init__(self, nbytes: int, fd: int | None, why_private: str | None) -> None:
        self.fd, self.why_private = fd, why_private
        self.at_end: list[Callable[[], None]] = []
        mapped = mmap.mmap(-1 if fd is None else fd, nbytes)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            # Refused where the kernel knows none. Gathering 192 KiB rows: 1.0 to 1.15 of the rate on small pages.
            with contextlib.suppress(OSError):
                mapped.madvise(mmap.MADV_HUGEPAGE)
        self.bytes: NDArray[np.uint8] = np.frombuffer(mapped, np.uint8)
        self.renew()
        weakref.finalize(self, _end, os.getpid(), self.at_end)

    def renew(self) -> None:
        """Reset what a forked child does not inherit: locks and the registration with CUDA."""
        self.registered, self.registering = False, threading.Lock()
        self._threads = threading.Lock()

    def lock(self) -> bool:
        """Take the memory's lock if no thread of any process holds it; it is free again when this process dies."""
        if not self._threads.acquire(blocking=False):
            return False
        try:
            if self.fd is not None:
                fcntl.lockf(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._threads.release()
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return False
            raise
        return True

    def unlock(self) -> None:
        """Release the lock."""
        if self.fd is not None:
            fcntl.lockf(self.fd, fcntl.LOCK_UN)
        self._threads.release()

    def reserve(self, start: int, stop: int) -> None:
        """Allocate the pages of bytes[start:stop]. Raises MemoryError.

        Touching a page that the system cannot provide would kill the process.
        """
        if self.fd is None or start == stop:
            return
        try:
            promised = reserve(self.fd, start, stop - start)
        except OSError as error:
            raise MemoryError(error.strerror) from None
        if not promised:
            raise MemoryError("the system cannot promise memory")


def open_memory(key: str, nbytes: int) -> Memory:
    """Open the memory with this key, or create it. nbytes: at least 1; part of the key."""
    name = _name(key, nbytes)
    with _inside():
        here = _here.get(name)
        if here is None:
            here = _here[name] = _join(name, nbytes)
        return here


def held(key: str, nbytes: int) -> bool:
    """Return True if a process holds the memory with this key."""
    name = _name(key, nbytes)
    with _inside():
        if name in _here:
            return True
        try:
            fd = os.open(_path(name), os.O_RDONLY | _OPEN)
        except OSError:
            return False
        try:
            return _is_list(os.fstat(fd)) and any(_lives(holder, name) for holder in _listed(fd))
        except OSError:
            return False
        finally:
            os.close(fd)


_here: weakref.WeakValueDictionary[str, Memory] = weakref.WeakValueDictionary()
_lock = threading.Lock()
_visitor = threading.local()


def _after_fork() -> None:
    """Reset locks and CUDA registrations in a forked child, which has none of its parent's other threads."""
    global _lock, _visitor
    _lock, _visitor = threading.Lock(), threading.local()
    for memory in list(_here.values()):
        memory.renew()


os.register_at_fork(after_in_child=_after_fork)


@contextlib.contextmanager
def _inside() -> Iterator[None]:
    """Hold the lock of this module: one thread at a time."""
    _visitor.here = True  # before the lock is taken: what is collected from then on must not ask for it
    try:
        with _lock:
            yield
    finally:
        _visitor.here = False


class _Holder(NamedTuple):
    pid: int
    fd: int
    born: int  # in clock ticks since the machine started: process numbers are used again


def _name(key: str, nbytes: int) -> str:
    """Return the memory's name, which differs between users, PID namespaces and boots."""
    where = [key, str(nbytes)]
    with contextlib.suppress(OSError):
        where.append(os.readlink("/proc/self/ns/pid"))
        with open("/proc/sys/kernel/random/boot_id") as file:
            where.append(file.read())
    digest = hashlib.blake2b("\0".join(where).encode("utf-8", "surrogateescape"), digest_size=16)
    return f"packer-{os.getuid()}-{digest.hexdigest()}"


def _path(name: str) -> str:
    return os.path.join(tempfile.gettempdir(), name)


def _join(name: str, nbytes: int) -> Memory:
    """Open the memory of a living process on its list, or create the memory and its list."""
    if not hasattr(os, "memfd_create") or not os.path.isdir("/proc/self/fd"):
        return Memory(nbytes, None, "only Linux offers what it takes")
    try:
        path = _path(name)
        with _list(path) as file:
            holders = [holder for holder in _listed(file) if _lives(holder, name)]
            fd = next((f for f in (_opened(h, nbytes) for h in holders) if f is not None), None)
            # Others may hold it and yet not be looked into: processes that changed their user, or that guard themselves.
            why_private = (
                "the processes that hold it cannot be looked into" if holders and fd is None else None
            )
            if fd is None:
                fd = _made(name, nbytes)
            try:
                _write(file, [*holders, _Holder(os.getpid(), fd, _born(os.getpid()))])
                memory = Memory(nbytes, fd, why_private)
            except BaseException:
                os.close(fd)
                raise
    except OSError as error:
        return Memory(nbytes, None, str(error))
    weakref.finalize(memory, _leave, path, name, os.getpid(), fd)
    return memory


def _made(name: str, nbytes: int) -> int:
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, nbytes)
        # Nobody can shorten it under those who have mapped it.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _end(pid: int, at_end: list[Callable[[], None]]) -> None:
    """Run the calls of `at_end`, but not in a forked child for its parent."""
    if os.getpid() == pid:
        for call in at_end:
            call()


def _leave(path: str, name: str, pid: int, fd: int) -> None:
    """Remove this process from the list, since its Memory was collected.

    This may run inside the garbage collector in the middle of a visit to the lists, by the same thread; then the line stays, and
    whoever comes next finds that it leads nowhere.
    """
    if os.getpid() != pid or getattr(_visitor, "here", False):
        os.close(fd)
        return
    with _inside(), contextlib.suppress(OSError):
        os.close(fd)
        with _list(path) as file:
            holders = [holder for holder in _listed(file) if _lives(holder, name)]
            if holders:
                _write(file, holders)
            else:
                os.unlink(path)


@contextlib.contextmanager
def _list(path: str) -> Iterator[int]:
    """Open and lock a list; yield its descriptor.

    Raises OSError: there is no such folder, the file is another user's, or a stopped process holds the lock.
    """
    until = time.monotonic() + _PATIENCE_SECONDS
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | _OPEN, 0o600)
        try:
            found = os.fstat(fd)
            if not _is_list(found):
                raise PermissionError(
                    errno.EPERM,
                    "it belongs to another user, others may write it, or it is no file of its own",
                    path,
                )
            while True:
                try:
                    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError as error:
                    if error.errno not in (errno.EACCES, errno.EAGAIN) or time.monotonic() > until:
                        raise
                time.sleep(0.002)
            if _is(path, found):
                yield fd
                return
        finally:
            os.close(fd)


def _is_list(found: os.stat_result) -> bool:
    """Return True if the file can be a list: a regular file of this user, not writable by others, without hard links."""
    mine = found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return mine and stat.S_ISREG(found.st_mode) and found.st_nlink <= 1


def _is(path: str, found: os.stat_result) -> bool:
    """Return True if a path still leads to that file; if it was deleted meanwhile, its lock protects nothing."""
    try:
        return os.path.samestat(os.stat(path), found)
    except FileNotFoundError:
        return False


def _listed(fd: int) -> list[_Holder]:
    holders = []
    for line in os.pread(fd, _LIST_BYTES, 0).splitlines():
        with contextlib.suppress(ValueError, TypeError):
            holders.append(_Holder(*map(int, line.split())))
    return holders


def _write(fd: int, holders: list[_Holder]) -> None:
    """Replace a list's content. Raises OSError, and leaves it as it was, when the disk is full.

    `held` reads without the lock: never is there a moment without the lines of those who live.
    """
    before = os.pread(fd, _LIST_BYTES, 0)
    text = "".join(f"{h.pid} {h.fd} {h.born}\n" for h in holders).encode()
    written = os.pwrite(fd, text, 0)
    if written != len(text):
        os.pwrite(fd, before[:written], 0)
        os.ftruncate(fd, len(before))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.ftruncate(fd, len(text))


def _lives(holder: _Holder, name: str) -> bool:
    """Return True if the process that wrote the entry lives and its descriptor is still the memory."""
    try:
        # First, since its number may be that of another user's process by now, which cannot be looked into either.
        if _born(holder.pid) != holder.born:
            return False
    except (OSError, ValueError, IndexError):
        return False
    try:
        return os.readlink(f"/proc/{holder.pid}/fd/{holder.fd}") == f"/memfd:{name} (deleted)"
    except PermissionError:
        return True  # it shields itself; its entry is not ours to drop
    except OSError:
        return False


def _opened(holder: _Holder, nbytes: int) -> int | None:
    """Open a holder's memory and return the descriptor; None if that is not possible."""
    try:
        fd = os.open(f"/proc/{holder.pid}/fd/{holder.fd}", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    if os.fstat(fd).st_size != nbytes:
        os.close(fd)
        return None
    return fd


def _born(pid: int) -> int:
    """Return the start time of a process in clock ticks since boot. Source: proc_pid_stat(5)."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])
