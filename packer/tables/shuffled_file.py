"""Records of one size out of a file in another order than they lie in, in bounded memory.

While all of them fit into the memory, or are wanted as they lie, they are copied one by one from a mapping of the file: 40 ns each
for 116 bytes (11 million, one core of a Xeon), as fast as memory gives them. When they do not, that would be a trip to the disk for
each. Then they are first dealt to buckets: the file is read once from its beginning to its end, and each record goes to the bucket
of the rows in the new order that it belongs to, in a second file. A bucket fits, and is read as the whole file would have been.

The second file holds the buckets' records, as they come, and behind them all for each record, uint32, which row of its bucket it is.
"""

from __future__ import annotations

import mmap
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.format.file_io import pread_into, pwrite_all, remove, reserve
from packer.read import gather
from packer.read.page_cache import resident
from packer.tables.table_order import SegmentedOrder

_PLACE = np.dtype("<u4")  # of a record in its bucket
_PLACE_COST = (
    2 * _PLACE.itemsize
)  # bytes held a record beside it: where it is, and while that is found out, what it was
_DEAL_COST = 48  # bytes held a record beside it and its copy, while it is dealt
_LEAST_SHARES = (
    8  # a bucket is this part of the memory, or less: a few workers, each at a bucket of its own, fit
)
_MOST_BUCKETS = 1 << 15  # which a stable sort of 16 bits does without comparing
_WARM_BYTES = 4 << 20
_KEPT = 2  # buckets a process keeps: workers that are threads are not all in the same one where one ends


class ShuffledFile:
    """A file of records, read in the order of a SegmentedOrder; a context manager that removes its own file.

    prepare() comes first, and once. take() then serves any number of threads and of processes forked afterwards.
    OSError is raised as it comes (the disk may be full).
    """

    def __init__(
        self, path: str, itemsize: int, order: SegmentedOrder, *, memory: int, work: str, workers: int = 1
    ) -> None:
        """path: of the records, of itemsize bytes each, as many as the order has, which gives each of them one row.

        memory: bytes to hold at most, about, in all workers together; work: path of the second file, if one is needed; workers:
        threads that deal, and processes or threads that will read.
        """
        self.itemsize, self.rows, self._order = itemsize, len(order), order
        self._path, self._work, self._workers = path, work, workers
        nbytes = self.rows * itemsize
        # What rises is read from the beginning to the end anyway.
        self._rises = all(s.deck.key is None or s.members is not None for s in order.segments)
        self.direct = self._rises or nbytes <= memory
        share = memory // max(_LEAST_SHARES, 2 * workers)
        bucket_rows = max(1, share // (itemsize + _PLACE_COST), -(-self.rows // _MOST_BUCKETS))
        self._bucket_rows = self.rows if self.direct else min(bucket_rows, (1 << 32) - 1)
        self._deal_rows = max(1, memory // (2 * workers * (2 * itemsize + _DEAL_COST)))
        self._kept: dict[int, _Bucket] = {}
        self._lock = threading.Lock()
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        if os.fstat(self._fd).st_size < nbytes:
            self.close()
            raise _cut_short(path)

    def __enter__(self) -> ShuffledFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the files; remove the second one. Called again, it does nothing."""
        self._kept = {}
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)
            remove(self._work)

    def prepare(self) -> None:
        """Deal the records to buckets, unless they fit into the memory as they are."""
        if self.direct:
            if not self._rises:
                _warm(self._path, self._fd, 0, self.rows * self.itemsize)
            self._kept[0] = _Bucket(self._path, self._fd, 0, self.rows, self.itemsize, None)
            return
        fd = os.open(self._work, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            nbytes = self.rows * (self.itemsize + _PLACE.itemsize)
            if not reserve(fd, 0, nbytes):
                os.ftruncate(fd, nbytes)
            self._deal(fd)
        except BaseException:
            os.close(fd)
            raise
        os.close(self._fd)
        self._fd, self._path = fd, self._work

    def take(self, sources: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return the records that stand at these places of the first file, uint8 [n, itemsize].

        sources: int64 [n]. Neighbours in the order are fast; others cost a bucket each.
        """
        if self.direct:
            if self._rises and len(sources):
                low, high = int(sources.min()), int(sources.max()) + 1
                _warm(self._path, self._fd, low * self.itemsize, (high - low) * self.itemsize)
            return self._kept[0].gather(sources, np.empty((len(sources), self.itemsize), np.uint8))
        return self._rows(self._order.positions(sources))

    def _rows(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return the records of these rows of the order."""
        out = np.empty((len(rows), self.itemsize), np.uint8)
        if not len(rows):
            return out
        buckets = rows // self._bucket_rows
        low = int(buckets.min())
        for number in (low + np.flatnonzero(np.bincount(buckets - low))).tolist():
            at = np.flatnonzero(buckets == number)
            bucket, places = self._bucket(number), rows[at] - number * self._bucket_rows
            if at[-1] - at[0] + 1 == len(at):
                bucket.gather(places, out[at[0] : at[-1] + 1])
            else:
                out[at] = bucket.gather(places, np.empty((len(at), self.itemsize), np.uint8))
        return out

    def _bucket(self, number: int) -> _Bucket:
        with self._lock:
            if number not in self._kept:
                while len(self._kept) >= _KEPT:
                    self._kept.pop(next(iter(self._kept)))
                first = number * self._bucket_rows
                count = min(self._bucket_rows, self.rows - first)
                places = _read(
                    self._fd, self.rows * self.itemsize + first * _PLACE.itemsize, count * _PLACE.itemsize
                )
                if len(places) < count * _PLACE.itemsize:
                    raise _cut_short(self._path)
                index = np.empty(count, _PLACE)
                index[places.view(_PLACE)] = np.arange(count, dtype=_PLACE)
                self._kept[number] = _Bucket(self._path, self._fd, first, count, self.itemsize, index)
            return self._kept[number]

    def _deal(self, fd: int) -> None:
        buckets = -(-self.rows // self._bucket_rows)
        filled = np.zeros(buckets, np.int64)
        claiming = threading.Lock()

        def deal(start: int) -> None:
            stop = min(start + self._deal_rows, self.rows)
            records = _read(self._fd, start * self.itemsize, (stop - start) * self.itemsize)
            if len(records) < (stop - start) * self.itemsize:
                raise _cut_short(self._path)
            owners, places = np.divmod(self._order.positions(np.arange(start, stop)), self._bucket_rows)
            grouped = np.argsort(owners.astype("<u2"), kind="stable")
            counts = np.bincount(owners, minlength=buckets)
            places = places[grouped].astype(_PLACE)
            records = np.take(records.view(f"V{self.itemsize}"), grouped).view(np.uint8)
            with claiming:
                firsts = filled.copy()
                np.add(filled, counts, out=filled)
            ends = np.cumsum(counts)
            for number in np.flatnonzero(counts).tolist():
                low, high = int(ends[number] - counts[number]), int(ends[number])
                row = number * self._bucket_rows + int(firsts[number])
                pwrite_all(fd, records[low * self.itemsize : high * self.itemsize].data, row * self.itemsize)
                pwrite_all(fd, places[low:high].data, self.rows * self.itemsize + row * _PLACE.itemsize)

        with ThreadPoolExecutor(self._workers, thread_name_prefix="packer-deal") as pool:
            try:
                for _ in pool.map(deal, range(0, self.rows, self._deal_rows)):
                    pass
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise


class _Bucket:
    """Neighbouring records of a file, mapped, to be copied in any order.

    index: for each row, uint32, which of these records is its; None: the record of the same number.
    """

    def __init__(
        self, path: str, fd: int, first: int, count: int, itemsize: int, index: NDArray[np.uint32] | None
    ) -> None:
        self._path, self._itemsize, self._index = path, itemsize, index
        start, nbytes = first * itemsize, count * itemsize
        if index is not None:
            _warm(path, fd, start, nbytes)
        self._mapped, page = _map(path, fd, start, nbytes)
        # Where the file's first byte would be, were all of it mapped; nothing before the bucket is touched.
        address = self._mapped.ctypes.data - page
        self._extents = np.array([[0, 0, start], [count, 0, 0]], np.int64)
        self._files = np.array([[fd, address, start + nbytes]], np.int64)

    def gather(self, rows: NDArray[np.int64], out: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Copy the records of these rows. out: [n, itemsize], C-contiguous, returned."""
        places = rows if self._index is None else self._index[rows].astype(np.int64)
        ones = np.ones_like(places)
        found = gather.copy(self._extents, self._files, places, ones, self._itemsize, out.reshape(-1))
        if found == gather.COLD:
            found, _ = gather.read(self._extents, self._files, places, ones, self._itemsize, out.reshape(-1))
        if found != gather.DONE:
            raise _cut_short(self._path)
        return out


def _map(path: str, fd: int, start: int, nbytes: int) -> tuple[NDArray[np.uint8], int]:
    """Map part of a file, from the beginning of a page on, which is returned. Raises SourceError if the file ends before."""
    page = start // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    try:
        mapped = mmap.mmap(fd, start + nbytes - page, prot=mmap.PROT_READ, offset=page)
    except ValueError:
        raise _cut_short(path) from None
    return np.frombuffer(mapped, np.uint8), page


def _warm(path: str, fd: int, start: int, nbytes: int) -> None:
    """Have a part of a file in the page cache: read from its beginning to its end, if some of its pages seem not to be there."""
    mapped, page = _map(path, fd, start, nbytes)
    probes = np.linspace(start - page, len(mapped) - 1, 64).astype(np.int64).tolist()
    if resident(mapped, probes):
        return
    buffer = bytearray(min(nbytes, _WARM_BYTES))
    for at in range(start, start + nbytes, len(buffer)):
        pread_into(fd, buffer, at)


def _read(fd: int, start: int, nbytes: int) -> NDArray[np.uint8]:
    """Read bytes of a file, fewer only where it ends."""
    out = np.empty(nbytes, np.uint8)
    return out[: pread_into(fd, out, start)]


def _cut_short(path: str) -> SourceError:
    return SourceError(f"{path}: has been cut short while it was read. Run the same command again.")
