"""Memory for loaded rows of a pack, shared by all processes of a user that load the same rows.

It is a memfd: no file system limits its size (Docker gives /dev/shm 64 MB), and the kernel frees it after its
last holder, however that ends (kill -9 included). A file in the user's private folder lists the processes
that have it open; another process opens it through /proc. Without memfd (macOS), each process has its own
memory.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import mmap
import os
import tempfile
import weakref
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from packer.errors import PackerError, SpaceError
from packer.format.file_io import create_anew, own_folder, remove, reserve
from packer.orders.runs import Runs, one_run
from packer.packs.pack import Pack
from packer.packs.remote_pack import RemotePack
from packer.read.array_store import PackStore
from packer.read.gather import COLD, DONE, copy_rows, read_rows
from packer.units import size

MISSING, MAKING, THERE = 0, 1, 2
_COPIED_BYTES = 256 << 10  # size of a unit
_DECODED_BYTES = 16 << 10  # size of a unit of JPEG rows
_PAGE = 4096


class RowMemory:
    """Loaded rows 0..n-1 of a subset of a pack. Arrays of it stay valid when this object is gone.

    states: uint8 [units], MISSING, MAKING (a process is about to write it) or THERE for each unit. units:
    their number; each has unit_rows rows, the last perhaps fewer. All processes write, and write the same
    bytes.
    holders: number of processes that had it open when it was opened here.
    """

    rows: int
    unit_rows: int
    fd: int
    holders: int

    def __init__(self, store: PackStore) -> None:
        """store: its fixed fields will be held. Raises PackerError if memory is lacking."""
        fields = store.fixed
        self.rows, self.unit_rows = store.rows, _unit_rows(store)
        self.units: int = -(-self.rows // self.unit_rows)
        self._row_bytes = {f.name: f.row_bytes for f in fields}
        self._offsets: dict[str, int] = {}
        nbytes = _pages(self.units)
        for f in fields:
            self._offsets[f.name] = nbytes
            nbytes += _pages(self.rows * f.row_bytes)
        try:
            self.path: str = _listing(store)
            self.fd, self.holders = _shared(self.path, nbytes)
            # Without atexit: threads may read until the process ends.
            weakref.finalize(self, os.close, self.fd).atexit = False
            weakref.finalize(self, _leave, self.path, self.fd, os.getpid())
            reserve(self.fd, 0, self.units)
            mapped = mmap.mmap(self.fd, nbytes)
        except (OSError, OverflowError) as error:
            raise self._refused(nbytes, error) from None
        if hasattr(mmap, "MADV_HUGEPAGE"):
            # Some kernels refuse. Gathering 192 KiB rows: 1.0 to 1.15 of the rate on small pages.
            with contextlib.suppress(OSError):
                mapped.madvise(mmap.MADV_HUGEPAGE)
        self.bytes: NDArray[np.uint8] = np.frombuffer(mapped, np.uint8)
        self.states: NDArray[np.uint8] = self.bytes[: self.units]
        self._files = np.array([[self.fd, self.bytes.ctypes.data, nbytes]], np.int64)
        self._extents = {n: np.array([[0, 0, at], [self.rows, 0, 0]]) for n, at in self._offsets.items()}

    def units_of(self, runs: Runs) -> NDArray[np.int64]:
        """Return the units that contain these rows."""
        rows = runs.rows()
        return rows if self.unit_rows == 1 else np.unique(rows // self.unit_rows)

    def view(self, name: str, start: int, stop: int) -> NDArray[np.uint8]:
        """Return a view of rows of a field, uint8 [rows, row bytes].

        Only the process that loads them writes to it.
        """
        at, row_bytes = self._offsets[name], self._row_bytes[name]
        return self.bytes[at + start * row_bytes : at + stop * row_bytes].reshape(stop - start, row_bytes)

    def read(self, name: str, runs: Runs, out: NDArray[np.uint8]) -> None:
        """Copy runs of loaded rows. out: C-contiguous uint8 [sum of lengths, row bytes].

        Raises SpaceError.
        """
        starts, lengths = np.ascontiguousarray(runs.starts), np.ascontiguousarray(runs.lengths)
        asked = self._extents[name], self._files, starts, lengths, self._row_bytes[name], out
        found = copy_rows(*asked)
        if found == COLD:  # swapped out
            found = read_rows(*asked)[0]
        if found != DONE:
            raise SpaceError("memory for rows: cannot be read. Pass placement='disk'.")

    def make(self, units: NDArray[np.int64], store: PackStore) -> None:
        """Read units from the store. Raises PackerError; units that could not be read are MISSING then."""
        self.states[units] = MAKING
        try:
            for part in np.split(units, np.flatnonzero(np.diff(units) != 1) + 1) if len(units) else ():
                start, stop = (
                    int(part[0]) * self.unit_rows,
                    min(int(part[-1] + 1) * self.unit_rows, self.rows),
                )
                made = {
                    name: np.empty((stop - start, row_bytes), np.uint8)
                    for name, row_bytes in self._row_bytes.items()
                }
                store.copy(one_run(start, stop), made)
                for name, rows in made.items():
                    self._reserve(self._offsets[name] + start * self._row_bytes[name], rows.nbytes)
                    # One assignment: others may read a unit that is loaded again after a slow first loader.
                    self.view(name, start, stop)[:] = rows
                self.states[part] = THERE
        finally:
            self.states[units[self.states[units] == MAKING]] = MISSING

    def _reserve(self, offset: int, nbytes: int) -> None:
        """Allocate pages: the kernel kills a process that touches a page it cannot provide.

        Raises SpaceError.
        """
        try:
            reserve(self.fd, offset, nbytes)
        except OSError as error:
            raise self._refused(len(self.bytes), error) from None

    def _refused(self, nbytes: int, error: Exception) -> SpaceError:
        reason = getattr(error, "strerror", None) or error
        return SpaceError(
            f"memory for rows: {size(nbytes)} are not available ({reason}). Pass placement='disk'."
        )


def in_memory(store: PackStore) -> bool:
    """Return True if a process of this user has these rows in memory, so that sharing costs nothing."""
    try:
        with _holders(_listing(store)) as links:
            return bool(links)
    except (PackerError, OSError):
        return False


def _listing(store: PackStore) -> str:
    """Return the file that lists the holders of these rows.

    Its name is a hash of the pack's files as they are now, fields, subset and `verify`.
    Raises PackerError if there is no folder for temporary files, or this user's folder is not safe.
    """
    content = hashlib.blake2b(digest_size=16)
    for part in (part for pack in store.pack.packs for part in pack.parts):
        content.update(part.seal or part.header.to_bytes())
        content.update(repr(_files(part)).encode("utf-8", "surrogateescape"))
    kept = [(f.name, f.dtype, f.shape, store.pack.origin(f.name)) for f in store.fixed]
    content.update(repr(kept).encode())
    content.update(f"{store.rows} {_unit_rows(store)} {store.subset.fingerprint} {store.verify}".encode())
    return os.path.join(own_folder(), content.hexdigest())


def _unit_rows(store: PackStore) -> int:
    stored = [f for f in store.fields if not f.loaded.ragged]
    if any(f.compressed for f in stored):
        rows = store.pack.header.block_rows
    else:
        nbytes = _DECODED_BYTES if any(f.ragged for f in stored) else _COPIED_BYTES
        rows = nbytes // max(1, sum(f.loaded.row_bytes for f in stored))
    return max(1, min(rows, store.rows))


def _files(pack: Pack) -> list[tuple[int, ...]]:
    """Return (device, inode, size, modification time) of each file of a pack's rows; [] for a remote pack.

    For files that are still being filled only device and inode.
    """
    if isinstance(pack, RemotePack):  # its seal identifies the opened version, wherever its rows are
        return []
    one_each = {e.file: e for es in pack.header.extents.values() for e in es}
    found = []
    for _, extent in sorted(one_each.items()):
        try:
            status = os.stat(pack.place(extent))
        except OSError:  # the reader will report it
            continue
        changed = () if pack.pending else (status.st_size, status.st_mtime_ns)
        found.append((status.st_dev, status.st_ino, *changed))
    return found


def _shared(path: str, nbytes: int) -> tuple[int, int]:
    """Return a descriptor of the listed memory, or of new zeroed memory, and its number of holders.

    Raises OSError.
    """
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryFile(buffering=0) as file:
            os.ftruncate(file.fileno(), nbytes)
            return os.dup(file.fileno()), 1
    with _holders(path) as links:
        for link in links:
            with contextlib.suppress(OSError):  # its process has just ended
                fd = os.open(link, os.O_RDWR | os.O_CLOEXEC)
                break
        else:
            fd = os.memfd_create(os.path.basename(path), os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(fd, nbytes)
            # Nobody can shorten it while others have it mapped.
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        links.append(f"/proc/{os.getpid()}/fd/{fd}")
        return fd, len(links)


def _leave(path: str, fd: int, pid: int) -> None:
    if os.getpid() == pid:
        with contextlib.suppress(OSError), _holders(path) as links:
            links[:] = [link for link in links if link != f"/proc/{pid}/fd/{fd}"]


@contextlib.contextmanager
def _holders(path: str) -> Iterator[list[str]]:
    """Yield the descriptors of a memory that processes have open; write the changed list back.

    Raises OSError.
    """
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        lines: list[str] = []
        with contextlib.suppress(FileNotFoundError), open(path, encoding="ascii") as file:
            lines = file.read().split()
        links = [line for line in lines if _named(line) == f"/memfd:{os.path.basename(path)} (deleted)"]
        yield links
        with contextlib.suppress(OSError):  # a full disk: others do not find the memory, and use their own
            if links:
                with open(create_anew(path), "w", encoding="ascii") as file:
                    file.write("\n".join(links))
            else:
                remove(path)
    finally:
        fcntl.flock(folder, fcntl.LOCK_UN)  # a child forked meanwhile holds the lock too
        os.close(folder)


def _named(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:  # its process has ended, or the number belongs to another user's process now
        return ""


def _pages(nbytes: int) -> int:
    return -(-nbytes // _PAGE) * _PAGE
