"""Rows from the files into given memory, without HDF5's lock and without the GIL.

Two ways in. ``preadv``, one call a run: runs beside memcpy from the page cache, keeps the resident set flat, and a truncated file
is an error, not a crash. A gather from a mapping of the file, one call for all runs: threads that hand the GIL to each
other around every short read lose a third to it (256 px rows in random order: 0.65 of memcpy by preadv, 0.8 to 0.9 by gathering).
So short runs are gathered when their pages are in the page cache, or when rows are so small that calls would cost more
than the faults; the mapping's pages are let go now and then, to keep the resident set bounded.
"""

from __future__ import annotations

import itertools
import mmap
import os
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import FormatError
from packer.format.header import OFFSETS, Extent, Field
from packer.format.pack import Pack
from packer.load.order import Runs
from packer.load.residency import resident
from packer.load.submit import read_many

Bytes = NDArray[np.uint8]
LONG_RUN_BYTES = 1 << 20  # from here on a call a run costs nothing beside the copy
SMALL_ROW_BYTES = 16 << 10  # up to here rows are gathered even from cold files
# Touched pages of a mapping that are kept: letting go and faulting in again costs a tenth (0.91 against 0.80 of memcpy).
MAPPED_BYTES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 8
_FAULT_BYTES = 64 << 10  # the kernel maps this much around a touched page
_PROBES = 8  # rows whose pages are looked up before a gather


class Reader:
    """Reads rows of some fields of a pack. Thread-safe; works again after fork and after unpickling.

    Raises FormatError when a file is shorter than it was when the pack was opened, or cannot be read.
    """

    def __init__(self, pack: Pack, fields: Sequence[Field]) -> None:
        self.pack, self.fields = pack, tuple(fields)
        self._lock = threading.Lock()
        self._pid = -1
        self._arrays: dict[str, _Array] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"pack": self.pack, "fields": self.fields}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["pack"], state["fields"])  # type: ignore[misc]

    def read(self, name: str, runs: Runs, out: Bytes) -> None:
        """Read runs of rows of a fixed field. out: C-contiguous uint8 [sum of lengths, row bytes], overwritten."""
        self._array(name).read(runs, out)

    def read_ragged(self, name: str, runs: Runs) -> list[bytes]:
        """The bytes of each row of a ragged field."""
        blob, offsets = self._array(name), self._array(name + OFFSETS)
        rows: list[bytes] = []
        for start, count in zip(runs.starts.tolist(), runs.lengths.tolist(), strict=True):
            raw = np.empty((count + 1, 8), np.uint8)
            offsets.read_run(start, raw)
            bounds = raw.view("<i8")[:, 0]
            size = int(bounds[-1] - bounds[0])
            if (np.diff(bounds) < 0).any() or not 0 <= size <= blob.rows:
                raise FormatError(
                    f"{self.pack.path}: offsets of {name!r} are damaged. Convert the images again."
                )
            data = np.empty((size, 1), np.uint8)
            blob.read_run(int(bounds[0]), data)
            whole, at = data.tobytes(), (bounds - bounds[0]).tolist()
            rows += [whole[a:b] for a, b in itertools.pairwise(at)]
        return rows

    def close(self) -> None:
        """Close the files; reading opens them again."""
        with self._lock:
            for array in self._arrays.values():
                array.close()
            self._arrays = {}

    def _array(self, name: str) -> _Array:
        if (
            self._pid != os.getpid()
        ):  # in a forked child: the parent's lock may be held for ever, its offsets are its own
            self._lock, self._arrays, self._pid = threading.Lock(), {}, os.getpid()
        array = self._arrays.get(name)
        if array is None:
            with self._lock:
                array = self._arrays.get(name)
                if array is None:
                    array = self._arrays[name] = _Array(self.pack, name)
        return array


class _Array:
    """The extents of one array, opened."""

    def __init__(self, pack: Pack, name: str) -> None:
        extents = [e for e in pack.header.extents[name] if e.rows]
        self.rows = sum(e.rows for e in extents)
        self.row_bytes = extents[0].row_bytes if extents else 1
        self._firsts = np.cumsum([0, *(e.rows for e in extents)])
        self._files = [_File(pack.file(e), e) for e in extents]

    def read(self, runs: Runs, out: Bytes) -> None:
        count = len(runs.starts)
        if count > 1 and out.nbytes // count < LONG_RUN_BYTES and self._gatherable(runs):
            self._gather(runs.rows(), out)
            return
        if len(self._files) == 1 and count > 1:
            self._check(int(runs.starts.min()), int((runs.starts + runs.lengths).max()))
            self._files[0].read_runs(runs, out)
            return
        at = 0
        for start, length in zip(runs.starts.tolist(), runs.lengths.tolist(), strict=True):
            self.read_run(start, out[at : at + length])
            at += length

    def read_run(self, start: int, out: Bytes) -> None:
        """Consecutive rows. out: uint8 [rows, row bytes]."""
        stop = start + len(out)
        self._check(start, stop)
        for k in range(int(np.searchsorted(self._firsts, start, "right")) - 1, len(self._files)):
            first, last = int(self._firsts[k]), int(self._firsts[k + 1])
            if first >= stop:
                break
            low, high = max(start, first), min(stop, last)
            self._files[k].read(low - first, out[low - start : high - start])

    def _gatherable(self, runs: Runs) -> bool:
        if self.row_bytes <= SMALL_ROW_BYTES:
            return True
        probes = runs.starts[:: -(-len(runs.starts) // _PROBES)].tolist()
        return len(self._files) == 1 and self._files[0].resident(probes)

    def _gather(self, rows: NDArray[np.int64], out: Bytes) -> None:
        if len(self._files) == 1:
            self._files[0].gather(rows, out)
            return
        which = np.searchsorted(self._firsts, rows, "right") - 1
        for k in np.unique(which).tolist():
            chosen = np.flatnonzero(which == k)
            part = np.empty((len(chosen), self.row_bytes), np.uint8)
            self._files[k].gather(rows[chosen] - self._firsts[k], part)
            out[chosen] = part

    def _check(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= self.rows:
            raise IndexError(f"rows {start} to {stop} of {self.rows}")

    def close(self) -> None:
        for file in self._files:
            file.close()


class _File:
    """One extent of one file."""

    def __init__(self, path: str, extent: Extent) -> None:
        self.path, self.extent = path, extent
        try:
            self._fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except OSError as error:
            raise FormatError(
                f"{path}: cannot be read ({error.strerror}). Check the name and the permissions."
            ) from error
        self.close = weakref.finalize(self, os.close, self._fd)
        self._map: mmap.mmap | None = None
        self._rows: Bytes | None = None
        self._touched = 0
        self._lock = threading.Lock()

    def read(self, row: int, out: Bytes) -> None:
        self._read_at(self.extent.offset + row * self.extent.row_bytes, memoryview(out).cast("B"))

    def read_runs(self, runs: Runs, out: Bytes) -> None:
        """Several runs: the loop holds the GIL between reads, so it does as little as it can."""
        row_bytes, view, at = self.extent.row_bytes, memoryview(out).cast("B"), 0
        if read_many(self._fd, runs.starts * row_bytes + self.extent.offset, runs.lengths * row_bytes, out):
            return
        offsets = (runs.starts * row_bytes + self.extent.offset).tolist()
        for offset, size in zip(offsets, (runs.lengths * row_bytes).tolist(), strict=True):
            if os.preadv(self._fd, (view[at : at + size],), offset) != size:
                self._read_at(offset, view[at : at + size])
            at += size

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

    def gather(self, rows: NDArray[np.int64], out: Bytes) -> None:
        source = self._mapped()
        # A mapped page behind the file's end kills the process: look first. What is left is the time of one gather.
        if os.fstat(self._fd).st_size < self.extent.end:
            raise self._cut_short()
        # mode="raise" would copy `out` first; rows come from an order, within range.
        np.take(source, rows, axis=0, out=out, mode="clip")
        self._touched += len(rows) * max(self.extent.row_bytes, _FAULT_BYTES)
        if self._touched > MAPPED_BYTES and source.nbytes > MAPPED_BYTES and self._map is not None:
            self._touched = 0
            self._map.madvise(mmap.MADV_DONTNEED)

    def resident(self, rows: list[int]) -> bool:
        """Whether the first bytes of these rows are in the page cache."""
        mapped = self._mapped()
        return resident(mapped.reshape(-1), [row * self.extent.row_bytes for row in rows])

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
