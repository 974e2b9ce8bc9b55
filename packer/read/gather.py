"""Reads rows of files into caller-supplied memory, one call a batch, without HDF5's lock or the GIL.

One call reads all runs of a batch, in one of two ways:

* A copy from mappings of the files, for pages in the page cache: no system call per row. Rates relative to
  memcpy, 2 threads, 256 px: slices 0.95 (0.8 by system calls), rows 0.94 (0.6 to 0.87); rows of 112 bytes at
  15 times the rate of system calls.
* System calls, for other pages: they keep the resident set flat, and request all rows before the first wait.

Mapped pages count as resident memory although they belong to the page cache. An array of up to MAPPED_BYTES
stays mapped; of larger ones only small rows are copied from mappings, whose pages are released now and then.

Both are loops in C (``native/gather.c``): one call for any number of rows and files, without the GIL; a file
that is truncated during a copy from its mapping raises an error. Without the compiled form Python makes the
system calls, one a run, and copies nothing from mappings. Each loop takes the same five arguments for the
rows:

    extents    int64 [n + 1, 3]: first row of each extent, number of its file, its byte offset; the last
               entry's first row is the total number of rows
    files      int64 [m, 3]: descriptor, address of the mapped file's first byte (0: not mapped), bytes that
               the file must have
    starts, lengths    int64 [k]: the runs, in any order
    row_bytes  bytes per row, at least 1

and raises IndexError for rows that do not exist, ValueError for an ``out`` of another size than the rows. The
C form also raises ValueError for inconsistent tables, or tables of another dtype.
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
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer import native
from packer.errors import FormatError, PackerError, SpaceError, damaged
from packer.format.fields import Extent
from packer.format.file_io import pread_into
from packer.machine import memory
from packer.orders.runs import Runs, cut
from packer.packs.pack import Arrival, Pack, unreadable
from packer.units import size

Bytes = NDArray[np.uint8]
Table = NDArray[np.int64]

DONE, COLD, UNWRITABLE = -1, -2, -3
_ADVICE = 128 << 10  # bytes: of a larger request, Linux drops what exceeds the device's read-ahead

SMALL_RUN_BYTES = 16 << 10  # runs up to this average size are copied from mappings of huge files too
# An array up to this size stays mapped (a quarter of the memory). Pages of larger ones are released, and
# faulting them in again would cost what the mapping saves (0.60 of memcpy for 256 px rows if the page cache
# has single pages).
MAPPED_BYTES = memory() // 4
GROWTH_BYTES = (
    64 << 20
)  # growth of the process's resident mappings before those of a larger array are released
_RUNS_AT_ONCE = 64  # of a larger array: a fault may map 2 MiB, in each of several threads
_FAULT_BYTES = 64 << 10  # assumed bytes per fault if the system does not report them
_SPARE_FILES = 64
FEW_FILES = 64
"""Up to this number of files are opened at once, in a millisecond or two."""
_LEFT_FILES = 256  # descriptors left to the rest of the process, if an array has more
_LEAST_FILES = 8  # least number of open files of an array
_ARRAYS = 8  # arrays of a pack that share the remaining descriptors, each with its own files
_MACOS_FILES = 10_240  # OPEN_MAX: even without a hard limit, macOS refuses more


def check_range(runs: Runs, rows: int) -> None:
    """Raise IndexError unless runs of rows are within [0, rows)."""
    starts, lengths = runs
    bad = np.flatnonzero((starts < 0) | (lengths < 0) | (starts > rows) | (lengths > rows - starts))
    if len(bad):
        start, length = int(starts[bad[0]]), int(lengths[bad[0]])
        raise IndexError(f"rows {start} to {start + length} of {rows}")


def allow_files(count: int) -> None:
    """Raise this process's limits by `count` open and mapped files (for many shards), if the system
    allows.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/dev/fd")) if count > 16 and os.path.isdir("/dev/fd") else 0
    wanted = used + 2 * count + _SPARE_FILES
    if count > 16 and soft != resource.RLIM_INFINITY and wanted > soft:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        for limit in (most, min(most, _MACOS_FILES)):
            with suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, limit), hard))
                return


def empty(path: str, field: str, shape: tuple[int, ...], dtype: str = "|u1") -> NDArray[Any]:
    """Allocate memory for rows of a pack. Raises PackerError if the system refuses."""
    try:
        return np.empty(shape, dtype)
    except (MemoryError, ValueError):
        nbytes = prod(shape) * np.dtype(dtype).itemsize
        raise PackerError(
            f"{path}: some rows of {field!r} take {size(nbytes)}, and the system refuses so much memory."
            " Read fewer rows at once, or use a machine with more memory."
        ) from None


class OpenFile:
    """A file open for reading, closed once nobody holds this object. fd: its descriptor."""

    def __init__(self, path: str) -> None:
        """Open it. Raises FormatError."""
        self.path = path
        try:
            self.fd: int = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise unreadable(path, error) from error
        weakref.finalize(self, os.close, self.fd).atexit = False  # threads may read until the process ends


class _Opened(NamedTuple):
    """Tables of some of an array's files for the loops in C (see above); holding them keeps the files
    open.
    """

    extents: Table
    files: Table
    opened: tuple[OpenFile, ...]


class FileArray:
    """The rows of one array, in one file or in thousands. Thread-safe.

    Up to FEW_FILES files are opened at once, so that a bad file is reported before any row is read; if there
    are more, each is opened when its rows are needed. If the process may have all of them open (ulimit -n),
    they stay open, and after the last one was opened a single call reads all rows of a batch; else the most
    recently read ones stay open. A file is closed once neither the array nor any reading thread holds it:
    closed earlier, its descriptor might become another file's while a thread still reads.

    rows: number of rows. row_bytes: bytes per row. The bytes of a ragged field are an array with rows of one
    byte. most: number of files that stay open. maps: True if rows are copied from mappings where that is
    faster.
    """

    rows: int
    row_bytes: int

    def __init__(self, pack: Pack, extents: Sequence[Extent], *, arrival: Arrival | None = None) -> None:
        """arrival: how its rows get into the files; None if all are there. Raises FormatError."""
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
        # Runs of consecutive extents in one file; of more than FEW_FILES files, each is opened by itself.
        self._runs = np.flatnonzero(np.diff([-1, *owners, -1]))
        self._lock = threading.Lock()
        # By run number; the most recently read at the end.
        self._open: OrderedDict[int, _Opened] = OrderedDict()
        self._maps: list[mmap.mmap] = []
        self._mapped: Table | None = None  # all files, with addresses
        self._floor = shared_bytes() or 0  # resident bytes when this array's pages were last released
        self._touched = 0  # bytes since then, if the system does not report resident bytes
        count = len(numbers)
        room = count * 2
        if count <= FEW_FILES:
            allow_files(count)
            self._whole: _Opened | None = self._all([OpenFile(pack.file(e)) for e in self._places])
        else:
            room, self._whole = _room(count), None
        self.most: int = max(_LEAST_FILES, min(count, room))
        self.maps: bool = native.COMPILED and 2 * count <= room  # a mapping holds a descriptor too

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
        """Ask the system to read runs of rows ahead, if it can; do not wait for them."""
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
        """Return a run of extents of one file; open it if necessary. Raises FormatError."""
        with self._lock:
            part = self._open.get(number)
            if part is not None:
                self._open.move_to_end(number)
                return part
        extents = self._extents[self._runs[number] : self._runs[number + 1] + 1].copy()
        owner = int(extents[0, 1])
        file = OpenFile(self._pack.file(self._places[owner]))
        self._pack.check_part(self._places[owner].file)  # after opening: an open file cannot be replaced
        extents[:, 0] -= extents[0, 0]
        extents[:, 1] = 0
        part = _Opened(extents, np.array([[file.fd, 0, self._ends[owner]]], np.int64), (file,))
        with self._lock:
            part = self._open.setdefault(number, part)
            while len(self._open) > self.most:
                self._open.popitem(last=False)
        return part

    def _join(self) -> None:
        """Read all files by a single call from now on, if all are open."""
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
        """Copy a few runs at a time, and release pages before they become many."""
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
                # Another thread may have faulted pages in meanwhile: account for other arrays' pages slowly.
                self._touched = 0
                self._floor = min(shared_bytes() or 0, self._floor + GROWTH_BYTES // 8)
        return DONE

    def _map(self) -> Table:
        """Return the files with the addresses of their mappings; 0 if the system refuses to map."""
        assert self._whole is not None
        files, firsts = self._whole.files.copy(), np.full(len(self._ends), np.iinfo(np.int64).max)
        np.minimum.at(firsts, self._extents[:-1, 1], self._extents[:-1, 2])
        firsts -= firsts % mmap.ALLOCATIONGRANULARITY
        for number, (fd, _, end) in enumerate(files.tolist()):
            first = int(firsts[number])
            try:
                mapped = mmap.mmap(fd, end - first, access=mmap.ACCESS_READ, offset=first)
            except (OSError, ValueError):  # ValueError: the file is shorter; reading it will report that
                self._maps = []
                return self._whole.files
            if self.rows * self.row_bytes > MAPPED_BYTES and hasattr(mmap, "MADV_RANDOM"):
                mapped.madvise(mmap.MADV_RANDOM)  # otherwise a missing row would bring in megabytes around it
            self._maps.append(mapped)
            files[number, 1] = np.frombuffer(mapped, np.uint8).ctypes.data - first
        return files


def open_array(pack: Pack, array: str, extents: Sequence[Extent] | None = None) -> FileArray:
    """Open an array of a pack.

    extents: extents of its elements, if these are bytes of compressed blocks instead of rows (see Arrival).
    """
    extents = pack.header.extents[array] if extents is None else extents
    return FileArray(pack, extents, arrival=pack.arrival(array))


def _failure(at: _Opened, number: int, reason: int) -> Exception:
    """Return the error of a failed read: of the file, or, for EFAULT, of the memory that is written."""
    if reason == errno.EFAULT:
        return SpaceError(
            "shared memory: a batch does not fit; it is full, or was truncated. Make it larger (docker run"
            " --shm-size)."
        )
    file, end = at.opened[number], int(at.files[number, 2])
    with suppress(OSError):
        reason = reason if os.fstat(file.fd).st_size >= end else 0
    if reason:
        return FormatError(f"{file.path}: reading failed ({os.strerror(reason)}). Check the disk.")
    return damaged(file.path, "is shorter than when it was opened; it was cut short")


def _room(count: int) -> int:
    """Raise the limit for all arrays of a pack; return how many descriptors one of `count` files may hold."""
    allow_files(_ARRAYS * count)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 2 * count
    used = len(os.listdir("/dev/fd")) if os.path.isdir("/dev/fd") else 0
    return (soft - used - _LEFT_FILES) // _ARRAYS


def shared_bytes() -> int | None:
    """Return the resident bytes of files mapped by this process; None if the system does not report them."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return int(file.read(100).split()[2]) * mmap.PAGESIZE
    except OSError:
        return None


def copy_rows(extents: Table, files: Table, starts: Table, lengths: Table, row_bytes: int, out: Bytes) -> int:
    """Copy runs of rows of mapped files, if they are in the page cache.

    out: C-contiguous uint8, overwritten; nobody else may read it meanwhile.
    Returns: DONE; COLD (nothing was copied; always without the compiled form); UNWRITABLE (out lies in a
    truncated file); or the number of a file that is too short, or whose page could not be read.
    """
    if not native.COMPILED:
        return COLD
    return int(native.loops.copy_rows(extents, files, starts, lengths, row_bytes, out))


def read_rows(
    extents: Table, files: Table, starts: Table, lengths: Table, row_bytes: int, out: Bytes
) -> tuple[int, int]:
    """Read runs of rows by a system call each, after requesting everything that is not in the page cache.

    out: C-contiguous uint8, overwritten.
    Returns: DONE and 0; or the number of a file and its errno, 0 if the file ended.
    """
    form = native.loops.read_rows if native.COMPILED else read_numpy
    return form(extents, files, starts, lengths, row_bytes, out)


def willneed_rows(extents: Table, files: Table, starts: Table, lengths: Table, row_bytes: int) -> None:
    """Ask the system to read runs of rows ahead, unless they seem to be cached; do not wait for them."""
    form = native.loops.willneed_rows if native.COMPILED else willneed_numpy
    form(extents, files, starts, lengths, row_bytes)


def read_numpy(
    extents: Table, files: Table, starts: Table, lengths: Table, row_bytes: int, out: Bytes
) -> tuple[int, int]:
    """Read as ``read_rows`` does, without the compiled form."""
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
    """Ask as ``willneed_rows`` does, without the compiled form."""
    check_range(Runs(starts, lengths), int(extents[-1, 0]))
    if not hasattr(os, "posix_fadvise"):  # macOS
        return
    for file, offset, nbytes in _pieces(extents, starts, lengths, row_bytes):
        for at in range(offset, offset + nbytes, _ADVICE):
            length = min(_ADVICE, offset + nbytes - at)
            os.posix_fadvise(int(files[file, 0]), at, length, os.POSIX_FADV_WILLNEED)


def by_part(firsts: Table, runs: Runs) -> Iterator[tuple[int, Runs, Table]]:
    """Yield each part with some of these rows, its runs counted from its first row, and their positions.

    firsts: see `cut`. Raises IndexError.
    """
    check_range(runs, int(firsts[-1]))
    runs, owners = cut(firsts, runs)
    places = np.cumsum(runs.lengths) - runs.lengths
    for number, some in _groups(owners) if len(owners) else ():
        yield number, Runs(runs.starts[some] - firsts[number], runs.lengths[some]), places[some]


def read_part(read: Callable[[Runs, Bytes], None], runs: Runs, places: Table, out: Bytes) -> None:
    """Read the rows of one part into their places in `out`, which is as FileArray.read takes it."""
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
    """Yield each owner, and its positions in ``owners``."""
    if (owners == owners[0]).all():
        yield int(owners[0]), slice(None)
        return
    order = np.argsort(owners, kind="stable")
    for group in np.split(order, np.flatnonzero(np.diff(owners[order])) + 1):
        yield int(owners[group[0]]), group


def _pieces(extents: Table, starts: Table, lengths: Table, row_bytes: int) -> Iterator[tuple[int, int, int]]:
    """Yield file, byte offset and bytes of each piece; none is empty."""
    (starts, lengths), owners = cut(extents[:, 0], Runs(starts, lengths))
    offsets = extents[owners, 2] + (starts - extents[owners, 0]) * row_bytes
    yield from zip(extents[owners, 1].tolist(), offsets.tolist(), (lengths * row_bytes).tolist(), strict=True)
