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
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

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
FEW_FILES = 64
"""Up to so many are opened at once, in a millisecond or two."""
_LEFT_FILES = 256  # to the rest of the process, where an array has more
_LEAST_FILES = 8  # stay open, however few there may be
_ARRAYS = 8  # of a pack share the descriptors that are left, each with files of its own
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
        self.path = path
        try:
            self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise unreadable(path, error) from error
        weakref.finalize(self, os.close, self.fd).atexit = False  # threads may read until the process ends


class _Opened(NamedTuple):
    """Some of an array's files, as the loops in C take them (see above); they stay open as long as anyone has this."""

    extents: Table
    files: Table
    opened: tuple[OpenFile, ...]


class FileArray:
    """The rows of one array, in one file or in thousands. Thread-safe.

    Up to FEW_FILES files are opened at once, so that what is wrong with one of them is told before any row is read; of more, each when
    rows of it are needed. Where the system lets the process have all of them (ulimit -n), they stay open, and once the last one has been
    opened one call reads all rows of a batch; else those stay open that were read last. A file is closed when nobody has the array, and no
    thread that reads it has it any more: closed earlier, a descriptor may become another file's while a thread still reads by its number.

    rows; row_bytes: of each. The bytes of a ragged field are an array whose rows are bytes. most: files that stay open; maps: copies come
    from mappings where that is faster.
    """

    def __init__(self, pack: Pack, extents: Sequence[Extent], *, arrival: Arrival | None = None) -> None:
        """arrival: how its rows come into the files, None if all are there. Raises FormatError."""
        if not native.COMPILED:
            native.warn("gather")
        extents = [e for e in extents if e.rows]
        self._pack, self._arrival = pack, arrival
        self.rows, self.row_bytes = sum(e.rows for e in extents), extents[0].row_bytes if extents else 1
        numbers = {file: number for number, file in enumerate(dict.fromkeys(e.file for e in extents))}
        self._places = list({e.file: e for e in extents}.values())  # an extent of each file
        owners, offsets = [numbers[e.file] for e in extents], [e.offset for e in extents]
        firsts = np.cumsum([0, *(e.rows for e in extents)])
        self._extents = np.array([firsts, [*owners, 0], [*offsets, 0]], np.int64).T.copy()
        self._ends = np.zeros(len(numbers), np.int64)
        np.maximum.at(self._ends, owners, np.array([e.end for e in extents], np.int64))
        # Runs of extents that follow each other in one file; of more files than a few, each is opened by itself.
        self._runs = np.flatnonzero(np.diff([-1, *owners, -1]))
        self._lock = threading.Lock()
        # By the number of the run; those read last at the end.
        self._open: OrderedDict[int, _Opened] = OrderedDict()
        self._maps: list[mmap.mmap] = []
        self._mapped: Table | None = None  # the files of all, with addresses
        self._floor = shared_bytes() or 0  # when this array's pages were let go
        self._touched = 0  # since then, where the system does not say how much is resident
        count = len(numbers)
        room = count * 2
        if count <= FEW_FILES:
            allow_files(count)
            self._whole: _Opened | None = self._all([OpenFile(pack.file(e)) for e in self._places])
        else:
            room, self._whole = _room(count), None
        self.most = max(_LEAST_FILES, min(count, room))
        self.maps = native.COMPILED and 2 * count <= room  # a mapping holds a descriptor of its own

    def read(self, runs: Runs, out: Bytes) -> None:
        """Read runs of rows. out: C-contiguous uint8 [sum of lengths, row bytes], overwritten."""
        if self._arrival is not None and self._arrival.take(runs.starts, runs.lengths, out):
            return
        if self._whole is not None:
            self._read(self._whole, runs, out, copies=self.maps)
            return
        for number, own, places in by_part(self._extents[self._runs, 0], runs):
            read_part(partial(self._read, self._part(number)), own, places, out.reshape(-1, self.row_bytes))
        self._join()

    def willneed(self, runs: Runs) -> None:
        """Have the system begin to read runs of rows, if it can; does not wait for them."""
        if self._arrival is not None:
            self._arrival.ahead(runs.starts, runs.lengths)
        elif self._whole is not None:
            self._willneed(self._whole, runs)
        else:
            for number, own, _ in by_part(self._extents[self._runs, 0], runs):
                self._willneed(self._part(number), own)

    def _read(self, at: _Opened, runs: Runs, out: Bytes, copies: bool = False) -> None:
        starts, lengths = np.ascontiguousarray(runs.starts), np.ascontiguousarray(runs.lengths)
        fits = self.rows * self.row_bytes <= MAPPED_BYTES
        if copies and (fits or (len(starts) > 1 and out.nbytes <= SMALL_RUN_BYTES * len(starts))):
            found = self._copy(starts, lengths, out) if fits else self._copy_some(starts, lengths, out)
            if found == DONE:
                return
            if found != COLD:
                raise _failure(at, found, errno.EFAULT if found == UNWRITABLE else errno.EIO)
        found, reason = read_rows(at.extents, at.files, starts, lengths, self.row_bytes, out)
        if found != DONE:
            raise _failure(at, found, reason)

    def _willneed(self, at: _Opened, runs: Runs) -> None:
        starts, lengths = np.ascontiguousarray(runs.starts), np.ascontiguousarray(runs.lengths)
        willneed_rows(at.extents, at.files, starts, lengths, self.row_bytes)

    def _part(self, number: int) -> _Opened:
        """Return a run of extents of one file, opened if it is not. Raises FormatError."""
        with self._lock:
            part = self._open.get(number)
            if part is not None:
                self._open.move_to_end(number)
                return part
        extents = self._extents[self._runs[number] : self._runs[number + 1] + 1].copy()
        owner = int(extents[0, 1])
        file = OpenFile(self._pack.file(self._places[owner]))
        self._pack.check_part(self._places[owner].file)  # after opening: what is open now stays the same file
        extents[:, 0] -= extents[0, 0]
        extents[:, 1] = 0
        part = _Opened(extents, np.array([[file.fd, 0, self._ends[owner]]], np.int64), (file,))
        with self._lock:
            part = self._open.setdefault(number, part)
            while len(self._open) > self.most:
                self._open.popitem(last=False)
        return part

    def _join(self) -> None:
        """Read all files by one call from now on, if all are open."""
        with self._lock:
            if self._whole is None and len(self._open) == len(self._runs) - 1:
                opened = {
                    int(self._extents[first, 1]): self._open[number].opened[0]
                    for number, first in enumerate(self._runs[:-1].tolist())
                }
                self._whole = self._all([opened[number] for number in range(len(self._places))])
                self._open = OrderedDict()

    def _all(self, opened: Sequence[OpenFile]) -> _Opened:
        files = np.zeros((len(opened), 3), np.int64)
        files[:, 0], files[:, 2] = [file.fd for file in opened], self._ends
        return _Opened(self._extents, files, tuple(opened))

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
        assert self._whole is not None
        files, firsts = self._whole.files.copy(), np.full(len(self._ends), np.iinfo(np.int64).max)
        np.minimum.at(firsts, self._extents[:-1, 1], self._extents[:-1, 2])
        firsts -= firsts % mmap.ALLOCATIONGRANULARITY
        for number, (fd, _, end) in enumerate(files.tolist()):
            first = int(firsts[number])
            try:
                mapped = mmap.mmap(fd, end - first, access=mmap.ACCESS_READ, offset=first)
            except (OSError, ValueError):  # ValueError: the file is shorter; reading it will tell
                self._maps = []
                return self._whole.files
            if self.rows * self.row_bytes > MAPPED_BYTES and hasattr(mmap, "MADV_RANDOM"):
                mapped.madvise(mmap.MADV_RANDOM)  # or a row that is missing brings in megabytes around it
            self._maps.append(mapped)
            files[number, 1] = np.frombuffer(mapped, np.uint8).ctypes.data - first
        return files


def open_array(pack: Pack, array: str, extents: Sequence[Extent] | None = None) -> FileArray:
    """Open an array of a pack.

    extents: where its elements lie, if they are not rows but the bytes of compressed blocks (see Arrival).
    """
    extents = pack.header.extents[array] if extents is None else extents
    return FileArray(pack, extents, arrival=pack.arrival(array))


def _failure(at: _Opened, number: int, reason: int) -> Exception:
    """Return the error for a file that could not be read; or, with EFAULT, for memory that could not be written."""
    if reason == errno.EFAULT:
        return SpaceError(
            "shared memory: a batch did not fit; it is full, or was cut short. Give it more room (docker run --shm-size)."
        )
    file, end = at.opened[number], int(at.files[number, 2])
    with suppress(OSError):
        reason = reason if os.fstat(file.fd).st_size >= end else 0
    if reason:
        return FormatError(f"{file.path}: reading failed ({os.strerror(reason)}). Check the disk.")
    return damaged(file.path, "is shorter than when it was opened; it was cut short")


def _room(count: int) -> int:
    """Return how many descriptors an array of so many files may hold, having asked the system for enough for all arrays of a pack."""
    allow_files(_ARRAYS * count)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 2 * count
    used = len(os.listdir("/dev/fd")) if os.path.isdir("/dev/fd") else 0
    return (soft - used - _LEFT_FILES) // _ARRAYS


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
    """Read the rows of one part into their places among all. out: as of FileArray.read."""
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
