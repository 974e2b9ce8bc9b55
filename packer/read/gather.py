"""Rows out of files into given memory, a whole batch a call, without HDF5's lock and without the GIL.

Two ways, each one call for all runs of a batch:

* A copy from mappings of the files, for what is in the page cache: no system call a row. Of memcpy's rate, 2 threads, 256 px:
  slices 0.95 against 0.8 by calls, rows 0.94 against 0.6 to 0.87; rows of 112 bytes at 15 times the rate of calls.
* Calls, for what is not: they keep the resident set flat, and all rows are asked for before the first is waited for.

Mapped pages count as resident memory although they are the page cache's. An array of up to MAPPED_BYTES stays mapped; of larger
ones only small rows are copied from mappings, whose pages are let go now and then.

Both are loops in C (``native/gather.c``): one call for any number of rows and files, without the GIL; a file that is cut short during a
copy from its mapping is an error. Where that was not compiled, Python makes the calls, one a run, and nothing is copied from mappings.
Each of these loops takes the same five arguments that say which rows:

    extents    int64 [n + 1, 3]: the first row of each extent, its file's number, its byte offset there; at the end all rows
    files      int64 [m, 3]: descriptor, address of the mapped file's first byte (0: not mapped), bytes it must have
    starts, lengths    int64 [k]: the runs, in any order
    row_bytes  of each row, at least 1

and raises IndexError for rows that are not there, ValueError for an ``out`` of another size than the rows take. The C form
raises ValueError too for tables that do not go together, or are of another dtype.
"""

from __future__ import annotations

import errno
import mmap
import os
import resource
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from packer import native
from packer.errors import FormatError, SpaceError, damaged
from packer.format.file_io import pread_into
from packer.format.header import Extent
from packer.format.pack import Arrival, Pack, unreadable
from packer.machine import memory
from packer.orders.runs import Runs, cut

Bytes = NDArray[np.uint8]
Table = NDArray[np.int64]

DONE, COLD, UNWRITABLE = -1, -2, -3
_ADVICE = 128 << 10  # bytes: of more at once, Linux forgets what exceeds a device's reading ahead

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
    bad = np.flatnonzero((starts < 0) | (lengths < 0) | (starts > rows) | (lengths > rows - starts))
    if len(bad):
        start, length = int(starts[bad[0]]), int(lengths[bad[0]])
        raise IndexError(f"rows {start} to {start + length} of {rows}")


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


class OpenFile:
    """A file that is open for reading, until nobody has this any more. fd: its descriptor."""

    def __init__(self, path: str) -> None:
        """Open it. Raises FormatError."""
        try:
            self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise unreadable(path, error) from error
        weakref.finalize(self, os.close, self.fd).atexit = False  # threads may read until the process ends


class ExtentArray:
    """The extents of one array, opened. Thread-safe.

    Its files are closed when nobody has it any more: closed earlier, a descriptor may become another file's while a thread
    still reads by its number.

    rows; row_bytes: of each. The bytes of a ragged field are an array whose rows are bytes.
    """

    def __init__(
        self,
        pack: Pack,
        extents: Sequence[Extent],
        *,
        arrival: Arrival | None = None,
        opened: Sequence[OpenFile] | None = None,
        maps: bool = True,
    ) -> None:
        """arrival: how its rows come into the files, None if all are there. opened: the files, in the order of the extents.

        maps: copy from mappings of the files where that is faster.
        """
        if not native.COMPILED:
            native.warn("gather")
        extents = [e for e in extents if e.rows]
        self._arrival = arrival
        self._copies = maps and native.COMPILED
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
        self._floor = (shared_bytes() or 0) if maps else 0  # when this array's pages were let go
        self._touched = 0  # since then, where the system does not say how much is resident
        if opened is None:
            allow_files(len(numbers))
            opened = [OpenFile(path) for path in self._paths]
        self.opened = tuple(opened)
        self._files[:, 0] = [file.fd for file in opened]

    def read(self, runs: Runs, out: Bytes) -> None:
        """Read runs of rows. out: C-contiguous uint8 [sum of lengths, row bytes], overwritten."""
        if self._arrival is not None and self._arrival.take(runs.starts, runs.lengths, out):
            return
        starts, lengths = np.ascontiguousarray(runs.starts), np.ascontiguousarray(runs.lengths)
        fits = self.rows * self.row_bytes <= MAPPED_BYTES
        if self._copies and (fits or (len(starts) > 1 and out.nbytes <= SMALL_RUN_BYTES * len(starts))):
            found = self._copy(starts, lengths, out) if fits else self._copy_some(starts, lengths, out)
            if found == DONE:
                return
            if found != COLD:
                raise self._failure(found, errno.EFAULT if found == UNWRITABLE else errno.EIO)
        found, reason = read_rows(self._extents, self._files, starts, lengths, self.row_bytes, out)
        if found != DONE:
            raise self._failure(found, reason)

    def willneed(self, runs: Runs) -> None:
        """Have the system begin to read runs of rows, if it can; does not wait for them."""
        if self._arrival is not None:
            self._arrival.ahead(runs.starts, runs.lengths)
            return
        starts, lengths = np.ascontiguousarray(runs.starts), np.ascontiguousarray(runs.lengths)
        willneed_rows(self._extents, self._files, starts, lengths, self.row_bytes)

    def _copy(self, starts: Table, lengths: Table, out: Bytes) -> int:
        files = self._mapped
        if files is None:
            with self._lock:
                files = self._mapped = self._map() if self._mapped is None else self._mapped
        return copy_rows(self._extents, files, starts, lengths, self.row_bytes, out)

    def _copy_some(self, starts: Table, lengths: Table, out: Bytes) -> int:
        """Copy a few runs at a time, letting pages go before they are many."""
        ends, at = np.cumsum(lengths), 0
        for first in range(0, len(starts), _RUNS_AT_ONCE):
            some = slice(first, first + _RUNS_AT_ONCE)
            stop = int(ends[some][-1])
            found = self._copy(starts[some], lengths[some], out[at:stop])
            if found != DONE:
                return found
            at, shared = stop, shared_bytes()
            self._touched += _RUNS_AT_ONCE * _FAULT_BYTES if shared is None else 0
            if (self._touched if shared is None else shared - self._floor) > GROWTH_BYTES:
                for mapped in self._maps:
                    mapped.madvise(mmap.MADV_DONTNEED)
                # Another thread may have faulted pages in meanwhile: what other arrays hold is let in slowly.
                self._touched = 0
                self._floor = min(shared_bytes() or 0, self._floor + GROWTH_BYTES // 8)
        return DONE

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


def copy_rows(extents: Table, files: Table, starts: Table, lengths: Table, row_bytes: int, out: Bytes) -> int:
    """Copy runs of rows of mapped files, if they are in the page cache.

    out: C-contiguous uint8, overwritten; nobody else reads it meanwhile.
    Returns: DONE; COLD (nothing was copied; always, without the compiled form); UNWRITABLE (out lies in a file that was cut short); or
    the number of a file that is too short, or whose page could not be read.
    """
    if not native.COMPILED:
        return COLD
    return int(native.loops.copy_rows(extents, files, starts, lengths, row_bytes, out))


def read_rows(
    extents: Table, files: Table, starts: Table, lengths: Table, row_bytes: int, out: Bytes
) -> tuple[int, int]:
    """Read runs of rows by a system call each, having asked for all that is not in the page cache before.

    out: C-contiguous uint8, overwritten.
    Returns: DONE and 0; or the number of a file and the errno of what failed, 0 if the file ended.
    """
    form = native.loops.read_rows if native.COMPILED else read_numpy
    return form(extents, files, starts, lengths, row_bytes, out)


def willneed_rows(extents: Table, files: Table, starts: Table, lengths: Table, row_bytes: int) -> None:
    """Ask the system to read runs of rows ahead, unless they seem to be in the page cache; do not wait for them."""
    form = native.loops.willneed_rows if native.COMPILED else willneed_numpy
    form(extents, files, starts, lengths, row_bytes)


def read_numpy(
    extents: Table, files: Table, starts: Table, lengths: Table, row_bytes: int, out: Bytes
) -> tuple[int, int]:
    """Do what ``read_rows`` does, without the compiled form."""
    check_range(Runs(starts, lengths), int(extents[-1, 0]))
    if out.nbytes != int(lengths.sum()) * row_bytes or not out.flags.c_contiguous:
        raise ValueError("out: is not as large as the rows in the runs.")
    view = memoryview(out.reshape(-1))
    at = 0
    for file, offset, nbytes in _pieces(extents, starts, lengths, row_bytes):
        try:
            count = pread_into(int(files[file, 0]), view[at : at + nbytes], offset)
        except OSError as error:
            return file, error.errno or errno.EIO
        if count < nbytes:
            return file, 0
        at += nbytes
    return DONE, 0


def willneed_numpy(extents: Table, files: Table, starts: Table, lengths: Table, row_bytes: int) -> None:
    """Do what ``willneed_rows`` does, without the compiled form."""
    check_range(Runs(starts, lengths), int(extents[-1, 0]))
    if not hasattr(os, "posix_fadvise"):  # macOS
        return
    for file, offset, nbytes in _pieces(extents, starts, lengths, row_bytes):
        for at in range(offset, offset + nbytes, _ADVICE):
            length = min(_ADVICE, offset + nbytes - at)
            os.posix_fadvise(int(files[file, 0]), at, length, os.POSIX_FADV_WILLNEED)


def by_part(firsts: Table, runs: Runs) -> Iterator[tuple[int, Runs, Table]]:
    """Yield each part that has some of these rows, its runs, counted from its own first row, and where each begins among all rows.

    firsts: see `cut`. Raises IndexError.
    """
    check_range(runs, int(firsts[-1]))
    runs, owners = cut(firsts, runs)
    places = np.cumsum(runs.lengths) - runs.lengths
    for number, some in _groups(owners) if len(owners) else ():
        yield number, Runs(runs.starts[some] - firsts[number], runs.lengths[some]), places[some]


def read_part(read: Callable[[Runs, Bytes], None], runs: Runs, places: Table, out: Bytes) -> None:
    """Read the rows of one part into their places among all. out: as of ExtentArray.read."""
    total, row_bytes = runs.total, out.shape[-1]
    if total == len(out):
        read(runs, out)
    elif len(runs.starts) == 1:
        read(runs, out[places[0] : places[0] + total])
    else:
        found = np.empty((total, row_bytes), np.uint8)
        read(runs, found)
        out[Runs(places, runs.lengths).rows()] = found


def _groups(owners: Table) -> Iterator[tuple[int, Table | slice]]:
    """Yield each owner, and where among ``owners`` it is."""
    if (owners == owners[0]).all():
        yield int(owners[0]), slice(None)
        return
    order = np.argsort(owners, kind="stable")
    for group in np.split(order, np.flatnonzero(np.diff(owners[order])) + 1):
        yield int(owners[group[0]]), group


def _pieces(extents: Table, starts: Table, lengths: Table, row_bytes: int) -> Iterator[tuple[int, int, int]]:
    """Yield each piece's file, byte offset and bytes; none is empty."""
    (starts, lengths), owners = cut(extents[:, 0], Runs(starts, lengths))
    offsets = extents[owners, 2] + (starts - extents[owners, 0]) * row_bytes
    yield from zip(extents[owners, 1].tolist(), offsets.tolist(), (lengths * row_bytes).tolist(), strict=True)
