"""Arrays whose rows lie in files as they are: extents into given memory, without HDF5's lock and without the GIL.

Two ways in:

* ``preadv``, a call a run. Right for cold files; keeps the resident set flat; a truncated file is an error.
* A copy from a mapping of the file, a call for all runs. Right for files in the page cache: no system call, and threads do not hand
  the GIL to each other around every row. Of memcpy's rate, 2 threads, 256 px: slices 0.95 against 0.8, rows 0.94 against 0.6.

A mapping is used for arrays that fit MAPPED_BYTES and lie in the page cache, and always for small rows in random order, where
a call a row would cost more than page faults do. Its pages count as resident memory although they are the page cache's.
"""

from __future__ import annotations

import errno
import mmap
import os
import resource
import threading
import weakref
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from packer.errors import FormatError
from packer.format.header import Extent
from packer.format.pack import Pack
from packer.machine import memory
from packer.orders.runs import Runs
from packer.read.residency import resident

Bytes = NDArray[np.uint8]
LONG_RUN_BYTES = 1 << 20  # from here on a call a run costs nothing beside the copy
SMALL_ROW_BYTES = 16 << 10  # up to here rows in random order are gathered even from cold or huge files
# An array this large stays mapped (an eighth of the memory); pages of larger ones are let go after as many bytes, and
# faulting them in again would cost what the mapping saves (0.60 of memcpy for 256 px rows).
MAPPED_BYTES = memory() // 8
_FAULT_BYTES = 64 << 10  # the kernel maps this much around a touched page
_SPARE_FILES = 64
_PROBES = 4  # runs whose pages are looked up before a copy


def check_range(runs: Runs, rows: int) -> None:
    """See that runs of rows are within [0, rows). Raises IndexError."""
    if len(runs.starts):
        _check_range(int(runs.starts.min()), int((runs.starts + runs.lengths).max()), rows)


def _check_range(start: int, stop: int, rows: int) -> None:
    if not 0 <= start <= stop <= rows:
        raise IndexError(f"rows {start} to {stop} of {rows}")


def allow_files(count: int) -> None:
    """Let this process open so many files more, and map them, as far as the system allows: packs may have many shards."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/dev/fd")) if count > 16 and os.path.isdir("/dev/fd") else 0
    wanted = used + 2 * count + _SPARE_FILES
    if count > 16 and soft != resource.RLIM_INFINITY and wanted > soft:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


class Array:
    """The extents of one array, opened. Thread-safe."""

    def __init__(self, pack: Pack, extents: Sequence[Extent]) -> None:
        extents = [e for e in extents if e.rows]
        self.rows = sum(e.rows for e in extents)
        self.row_bytes = extents[0].row_bytes if extents else 1
        self._firsts = np.cumsum([0, *(e.rows for e in extents)])
        allow_files(len(extents))
        self._files = [_File(pack.file(e), e) for e in extents]

    def read(self, runs: Runs, out: Bytes) -> None:
        """Runs of rows. out: uint8 [sum of lengths, row bytes], overwritten."""
        if not len(out):
            return
        check_range(runs, self.rows)
        if len(self._files) == 1:
            self._files[0].read(runs, out)
            return
        at = 0
        for file, part in self._by_file(runs):
            count = part.total
            file.read(part, out[at : at + count])
            at += count

    def _by_file(self, runs: Runs) -> Iterator[tuple[_File, Runs]]:
        """Neighbouring runs that lie in one file, their rows counted from its first."""
        starts, lengths = runs
        files = np.searchsorted(self._firsts, starts, "right") - 1
        if (starts + lengths > self._firsts[files + 1]).any():
            starts, lengths = self._cut(runs)
            files = np.searchsorted(self._firsts, starts, "right") - 1
        bounds = np.flatnonzero(np.diff(files, prepend=-1, append=-1))
        for a, b in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            file = int(files[a])
            yield self._files[file], Runs(starts[a:b] - self._firsts[file], lengths[a:b])

    def _cut(self, runs: Runs) -> Runs:
        """The same rows in runs that end where files do."""
        starts: list[int] = []
        ends: list[int] = []
        for start, length in zip(runs.starts.tolist(), runs.lengths.tolist(), strict=True):
            inner = self._firsts[(self._firsts > start) & (self._firsts < start + length)].tolist()
            starts += [start, *inner]
            ends += [*inner, start + length]
        return Runs(np.array(starts), np.array(ends) - np.array(starts))

    def read_run(self, start: int, out: Bytes) -> None:
        """Consecutive rows. out: uint8 [rows, row bytes]."""
        stop = start + len(out)
        if start == stop:
            return
        _check_range(start, stop, self.rows)
        for k in range(int(np.searchsorted(self._firsts, start, "right")) - 1, len(self._files)):
            first, last = int(self._firsts[k]), int(self._firsts[k + 1])
            if first >= stop:
                break
            low, high = max(start, first), min(stop, last)
            self._files[k].read_run(low - first, out[low - start : high - start])

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()


class _File:
    """One extent of one file."""

    def __init__(self, path: str, extent: Extent) -> None:
        self.path, self.extent = path, extent
        try:
            self._fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except OSError as error:
            remedy = (
                "Raise ulimit -n" if error.errno == errno.EMFILE else "Check the name and the permissions"
            )
            raise FormatError(f"{path}: cannot be read ({error.strerror}). {remedy}.") from error
        self.close = weakref.finalize(self, os.close, self._fd)
        self._map: mmap.mmap | None = None
        self._rows: Bytes | None = None
        self._touched = 0
        self._lock = threading.Lock()

    def read(self, runs: Runs, out: Bytes) -> None:
        """Runs of rows, by the way that suits them."""
        scattered = len(runs.starts) > 1 and out.nbytes // len(runs.starts) < LONG_RUN_BYTES
        if scattered and self.extent.row_bytes <= SMALL_ROW_BYTES:
            self._gather(runs, out)
        elif self._mappable and self._resident(runs):
            (self._gather if scattered else self._copy)(runs, out)
        else:
            row_bytes, view, at = self.extent.row_bytes, memoryview(out).cast("B"), 0
            offsets = (runs.starts * row_bytes + self.extent.offset).tolist()
            for offset, size in zip(offsets, (runs.lengths * row_bytes).tolist(), strict=True):
                self._read_at(offset, view[at : at + size])
                at += size

    def read_run(self, row: int, out: Bytes) -> None:
        """Consecutive rows, by a call."""
        self._read_at(self.extent.offset + row * self.extent.row_bytes, memoryview(out).cast("B"))

    def _read_at(self, offset: int, view: memoryview) -> None:
        while view:
            try:
                count = os.preadv(self._fd, [view], offset)
            except OSError as error:
                raise FormatError(
                    f"{self.path}: reading failed ({error.strerror}). Check the disk."
                ) from error
            if not count:
                raise self._cut_short()
            view, offset = view[count:], offset + count

    def _gather(self, runs: Runs, out: Bytes) -> None:
        rows, source = runs.rows(), self._source()
        # mode="raise" would copy `out` first; the caller has checked the range.
        np.take(source, rows, axis=0, out=out, mode="clip")
        if not self._mappable and self._map is not None:
            self._touched += len(rows) * max(self.extent.row_bytes, _FAULT_BYTES)
            if self._touched > MAPPED_BYTES:
                self._touched = 0
                self._map.madvise(mmap.MADV_DONTNEED)

    def _copy(self, runs: Runs, out: Bytes) -> None:
        source, at = self._source(), 0
        for start, length in zip(runs.starts.tolist(), runs.lengths.tolist(), strict=True):
            np.copyto(out[at : at + length], source[start : start + length])
            at += length

    @property
    def _mappable(self) -> bool:
        return self.extent.end - self.extent.offset <= MAPPED_BYTES

    def _resident(self, runs: Runs) -> bool:
        """Whether both ends and the middle of some of these runs are in the page cache.

        The beginning alone tells nothing: reading ahead, the kernel has brought in the first pages of what comes next.
        """
        step = -(-len(runs.starts) // _PROBES)
        first = runs.starts[::step] * self.extent.row_bytes
        last = first + runs.lengths[::step] * self.extent.row_bytes - 1
        probes = np.concatenate([last, (first + last) // 2, first])
        return resident(self._mapped().reshape(-1), probes.tolist())

    def _source(self) -> Bytes:
        """The mapped rows, uint8 [rows, row bytes], all inside the file now.

        A mapped page behind the file's end kills the process, so look first; what is left is the time of one copy.
        """
        if os.fstat(self._fd).st_size < self.extent.end:
            raise self._cut_short()
        return self._mapped()

    def _mapped(self) -> Bytes:
        with self._lock:
            if self._rows is None:
                if os.fstat(self._fd).st_size < self.extent.end:
                    raise self._cut_short()
                first = self.extent.offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
                self._map = mmap.mmap(
                    self._fd, self.extent.end - first, access=mmap.ACCESS_READ, offset=first
                )
                flat = np.frombuffer(self._map, np.uint8)[self.extent.offset - first :]
                self._rows = flat.reshape(self.extent.rows, self.extent.row_bytes)
            return self._rows

    def _cut_short(self) -> FormatError:
        return FormatError(
            f"{self.path}: is shorter than when it was opened; it was cut short. Convert the images again."
        )
