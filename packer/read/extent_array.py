"""Arrays whose rows lie in files as they are: extents into given memory, without HDF5's lock and without the GIL.

Two ways in, each one call for all runs of a batch (``gather.py``):

* A copy from mappings of the files, for what is in the page cache: no system call a row. Of memcpy's rate, 2 threads, 256 px:
  slices 0.95 against 0.8 by calls, rows 0.94 against 0.6 to 0.87; rows of 112 bytes at 15 times the rate of calls.
* Calls, for what is not: they keep the resident set flat, and all rows are asked for before the first is waited for.

Mapped pages count as resident memory although they are the page cache's. An array of up to MAPPED_BYTES stays mapped; of larger
ones only small rows are copied from mappings, whose pages are let go now and then.
"""

from __future__ import annotations

import errno
import mmap
import os
import resource
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from packer import native
from packer.errors import FormatError, SpaceError, damaged
from packer.format.header import Extent
from packer.format.pack import Pack, unreadable
from packer.orders.runs import Runs
from packer.read import gather
from packer.read.gather import Bytes, Table
from packer.starting import memory

SMALL_RUN_BYTES = 16 << 10  # up to here, on average, runs are copied from mappings of huge files too
# An array this large stays mapped (a quarter of the memory); pages of larger ones are let go, and faulting them in again would
# cost what the mapping saves (0.60 of memcpy for 256 px rows where the page cache is made of single pages).
MAPPED_BYTES = memory() // 4
GROWTH_BYTES = 64 << 20  # of the resident mappings of the process, before those of a larger array are let go
_RUNS_AT_ONCE = 64  # of such an array: a fault may bring in 2 MiB, in each of several threads
_FAULT_BYTES = 64 << 10  # that it brings in at least, where the system does not say
_SPARE_FILES = 64
_MACOS_FILES = 10_240  # OPEN_MAX: where there is no hard limit, macOS still refuses more


def check_range(runs: Runs, rows: int) -> None:
    """See that runs of rows are within [0, rows). Raises IndexError."""
    starts, lengths = runs
    if len(starts) and not (int(starts.min()) >= 0 and int((starts + lengths).max()) <= rows):
        raise IndexError(f"rows {starts.min()} to {(starts + lengths).max()} of {rows}")


def allow_files(count: int) -> None:
    """Let this process open so many files more, and map them, as far as the system allows: packs may have many shards."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/dev/fd")) if count > 16 and os.path.isdir("/dev/fd") else 0
    wanted = used + 2 * count + _SPARE_FILES
    if count > 16 and soft != resource.RLIM_INFINITY and wanted > soft:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        for limit in (most, min(most, _MACOS_FILES)):
            with suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, limit), hard))
                return


class ExtentArray:
    """The extents of one array, opened. Thread-safe.

    Its files are closed when nobody has it any more: closed earlier, a descriptor may become another file's while a thread
    still reads by its number.

    rows; row_bytes: of each. The bytes of a ragged field are an array whose rows are bytes.
    """

    def __init__(self, pack: Pack, extents: Sequence[Extent]) -> None:
        if not native.COMPILED:
            native.warn("gather")
        extents = [e for e in extents if e.rows]
        paths = [pack.file(e) for e in extents]
        numbers = {path: number for number, path in enumerate(dict.fromkeys(paths))}
        self.rows = sum(e.rows for e in extents)
        self.row_bytes = extents[0].row_bytes if extents else 1
        self._paths = tuple(numbers)
        firsts = np.cumsum([0, *(e.rows for e in extents)])
        owners, offsets = [numbers[path] for path in paths], [e.offset for e in extents]
        self._extents = np.array([firsts, [*owners, 0], [*offsets, 0]], np.int64).T.copy()
        self._files = np.zeros((len(numbers), 3), np.int64)
        np.maximum.at(self._files[:, 2], owners, np.array([e.end for e in extents], np.int64))
        self._maps: list[mmap.mmap] = []
        self._mapped: Table | None = None  # _files, with addresses
        self._lock = threading.Lock()
        self._floor = shared_bytes() or 0  # when this array's pages were let go
        self._touched = 0  # since then, where the system does not say how much is resident
        allow_files(len(numbers))
        descriptors: list[int] = []
        weakref.finalize(self, _close, descriptors).atexit = False  # threads may read until the process ends
        try:
            for number, path in enumerate(self._paths):
                descriptors.append(_open(path))
                self._files[number, 0] = descriptors[-1]
        except BaseException:  # which keeps this object alive, as long as somebody keeps the error
            _close(descriptors)
            raise

    def read(self, runs: Runs, out: Bytes) -> None:
        """Read runs of rows. out: C-contiguous uint8 [sum of lengths, row bytes], overwritten."""
        starts, lengths = np.ascontiguousarray(runs.starts), np.ascontiguousarray(runs.lengths)
        fits = self.rows * self.row_bytes <= MAPPED_BYTES
        if fits or (len(starts) > 1 and out.nbytes <= SMALL_RUN_BYTES * len(starts)):
            found = self._copy(starts, lengths, out) if fits else self._copy_some(starts, lengths, out)
            if found == gather.DONE:
                return
            if found != gather.COLD:
                raise self._failure(found, errno.EFAULT if found == gather.UNWRITABLE else errno.EIO)
        found, reason = gather.read(self._extents, self._files, starts, lengths, self.row_bytes, out)
        if found != gather.DONE:
            raise self._failure(found, reason)

    def willneed(self, runs: Runs) -> None:
        """Have the system begin to read runs of rows, if it can; does not wait for them."""
        starts, lengths = np.ascontiguousarray(runs.starts), np.ascontiguousarray(runs.lengths)
        gather.willneed(self._extents, self._files, starts, lengths, self.row_bytes)

    def _copy(self, starts: Table, lengths: Table, out: Bytes) -> int:
        files = self._mapped
        if files is None:
            with self._lock:
                files = self._mapped = self._map() if self._mapped is None else self._mapped
        return gather.copy(self._extents, files, starts, lengths, self.row_bytes, out)

    def _copy_some(self, starts: Table, lengths: Table, out: Bytes) -> int:
        """Copy a few runs at a time, letting pages go before they are many."""
        ends, at = np.cumsum(lengths), 0
        for first in range(0, len(starts), _RUNS_AT_ONCE):
            some = slice(first, first + _RUNS_AT_ONCE)
            stop = int(ends[some][-1])
            found = self._copy(starts[some], lengths[some], out[at:stop])
            if found != gather.DONE:
                return found
            at, shared = stop, shared_bytes()
            self._touched += _RUNS_AT_ONCE * _FAULT_BYTES if shared is None else 0
            if (self._touched if shared is None else shared - self._floor) > GROWTH_BYTES:
                for mapped in self._maps:
                    mapped.madvise(mmap.MADV_DONTNEED)
                # Another thread may have faulted pages in meanwhile: what other arrays hold is let in slowly.
                self._touched = 0
                self._floor = min(shared_bytes() or 0, self._floor + GROWTH_BYTES // 8)
        return gather.DONE

    def _map(self) -> Table:
        """Return the files with the addresses of their mappings; without, where the system does not map them."""
        files, firsts = self._files.copy(), np.full(len(self._files), np.iinfo(np.int64).max)
        np.minimum.at(firsts, self._extents[:-1, 1], self._extents[:-1, 2])
        firsts -= firsts % mmap.ALLOCATIONGRANULARITY
        for number, (fd, _, end) in enumerate(files.tolist()):
            first = int(firsts[number])
            try:
                mapped = mmap.mmap(fd, end - first, access=mmap.ACCESS_READ, offset=first)
            except (OSError, ValueError):  # ValueError: the file is shorter; reading it will tell
                self._maps = []
                return self._files
            if self.rows * self.row_bytes > MAPPED_BYTES and hasattr(mmap, "MADV_RANDOM"):
                mapped.madvise(mmap.MADV_RANDOM)  # or a row that is missing brings in megabytes around it
            self._maps.append(mapped)
            files[number, 1] = np.frombuffer(mapped, np.uint8).ctypes.data - first
        return files

    def _failure(self, number: int, reason: int) -> Exception:
        if reason == errno.EFAULT:
            return SpaceError(
                "shared memory: a batch did not fit; it is full, or was cut short. Give it more room (docker run --shm-size)."
            )
        path, (fd, _, end) = self._paths[number], self._files[number].tolist()
        with suppress(OSError):
            reason = reason if os.fstat(fd).st_size >= end else 0
        if reason:
            return FormatError(f"{path}: reading failed ({os.strerror(reason)}). Check the disk.")
        return damaged(path, "is shorter than when it was opened; it was cut short")


def shared_bytes() -> int | None:
    """Return the bytes of files that this process has mapped and that are resident; None where the system does not say."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return int(file.read(100).split()[2]) * mmap.PAGESIZE
    except OSError:
        return None


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise unreadable(path, error) from error


def _close(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())
