"""Staging of rows of unknown number: append them as they come, then read them in the pack's order.

Two files in the working folder hold them: records of fixed size, and the bytes of values of variable size,
whose place and length the record holds. If the folder keeps a journal, each appended piece is recorded there:
an interrupted run continues after the last piece whose bytes match their checksums.

The order of the pack is an array of row numbers (ShuffledFile). If all records fit into memory, or are read
in file order, they are copied one by one from a mapping of the file: 45 ns each for 116 bytes (3 million, one
core of a Xeon). Otherwise each copy would be a disk access, so the records are first distributed to buckets:
the file is read once, sequentially, and each record goes to the bucket of its position in the new order, in a
second file. A bucket fits into memory and is read at once.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer import machine
from packer.errors import SourceError
from packer.format.checksums import block_checksum
from packer.format.file_io import (
    PRIVATE,
    create_anew,
    make_folder,
    open_own,
    pread_all,
    pread_into,
    pwrite_all,
    remove,
    reserve,
)
from packer.format.write_errors import writing
from packer.writing.working_folder import WorkingFolder

Numbers = NDArray[np.int64]
SHUFFLE_BYTES = 256 << 20
"""Most bytes of records in memory while they are shuffled."""
_MAPPED_SHARE = 4  # 1 / 4 of the available memory for records in the page cache; the pack needs as much again


class StagedRows:
    """Staged rows: `append` writes them, `in_order` reads them. Not thread-safe.

    dtype: dtype of the records; a member with the members `at` and `length` locates a value in the blob;
    name: name of the output in messages; path, blob: the two files; rows, blob_bytes: size so far.
    """

    dtype: np.dtype[Any]
    name: str
    path: str
    blob: str
    rows: int
    blob_bytes: int

    def __init__(self, place: WorkingFolder, dtype: np.dtype[Any], name: str) -> None:
        """Raises PackerError."""
        self._place, self.dtype, self.name = place, dtype, name
        self._placed = [member for member in dtype.names or () if dtype[member].names]
        folder = os.path.join(place.path, "staging")
        self.path, self.blob = os.path.join(folder, "records"), os.path.join(folder, "blob")
        with writing(name):
            make_folder(folder)
            self._fds = [open_own(path, mode=PRIVATE) for path in (self.path, self.blob)]
        self.rows = self.blob_bytes = self._pieces = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.rows * self.dtype.itemsize + self.blob_bytes

    def take_over(self, accepts: Callable[[Mapping[str, Any]], bool]) -> tuple[list[dict[str, Any]], bool]:
        """Take over the journalled pieces of an interrupted run, up to the first damaged or unaccepted piece.

        accepts: returns True for the note of a usable piece. Returns: the notes of the pieces, and True if
        they are all.
        """
        pieces: list[dict[str, Any]] = []
        done = False
        for record in self._place.resumed:
            if record == "staged":
                done = True
            elif isinstance(record, dict) and "piece" in record:
                done = False
                del pieces[record["piece"] :]  # overwritten by this piece
                pieces.append(record)
        for number, piece in enumerate(pieces):
            if not self._same(piece) or not accepts(piece):
                return pieces[:number], False
            self._count(piece["rows"], piece["blob"])
        return pieces, done

    def append(
        self, records: NDArray[Any], blob: bytes | bytearray, note: Mapping[str, Any] | None = None
    ) -> None:
        """Append a piece. records: [n], with places relative to the start of `blob`; modified.

        note: values to journal with the piece; None disables resuming. Raises SpaceError, PackerError.
        """
        for member in self._placed:
            records[member]["at"] += self.blob_bytes
        data = records.view(np.uint8) if len(records) else np.empty(0, np.uint8)
        with writing(self.name):
            pwrite_all(self._fds[0], data.data, self.rows * self.dtype.itemsize)
            pwrite_all(self._fds[1], memoryview(blob), self.blob_bytes)
        if note is not None:
            sums = [block_checksum(data), block_checksum(np.frombuffer(blob, np.uint8))]
            piece = {"piece": self._pieces, "rows": len(records), "blob": len(blob), "sums": sums}
            self._place.record({**piece, **note})
        self._count(len(records), len(blob))

    def finish(self) -> None:
        """Record that all pieces are written."""
        self._place.record("staged")

    def close(self) -> None:
        """Close the files; closing again does nothing."""
        while self._fds:
            os.close(self._fds.pop())

    def scratch(self, name: str) -> str:
        """Return the path of another file; remove an old one, which a killed run may still read."""
        path = f"{self.path}.{name}"
        remove(path)
        return path

    @contextmanager
    def in_order(self, samples: Numbers, *, shuffled: bool, workers: int) -> Iterator[ShuffledFile]:
        """Yield the records, to be read in the order `samples`, each row once.

        Raises SourceError, SpaceError, PackerError.
        """
        with ShuffledFile(
            self.path,
            self.dtype.itemsize,
            samples,
            rising=not shuffled,
            memory=SHUFFLE_BYTES,
            mapped=machine.available_memory() // _MAPPED_SHARE,
            work=self.scratch("shuffled"),
            workers=workers,
        ) as records:
            with writing(self.name):
                records.prepare()
            yield records

    def mapped_blob(self) -> memoryview:
        """Return a mapping of the blob. Raises SourceError."""
        if os.path.getsize(self.blob) < self.blob_bytes:
            raise _cut_short(self.blob)
        if not self.blob_bytes:
            return memoryview(b"")
        with open(self.blob, "rb") as file:
            return memoryview(mmap.mmap(file.fileno(), self.blob_bytes, access=mmap.ACCESS_READ))

    def _count(self, rows: int, blob_bytes: int) -> None:
        self.rows += rows
        self.blob_bytes += blob_bytes
        self._pieces += 1

    def _same(self, piece: Mapping[str, Any]) -> bool:
        """Return True if the bytes of a journalled piece match their checksums."""
        size = self.dtype.itemsize
        data = pread_all(self._fds[0], piece["rows"] * size, self.rows * size)
        blob = pread_all(self._fds[1], piece["blob"], self.blob_bytes)
        sums = [block_checksum(np.frombuffer(part, np.uint8)) for part in (data, blob)]
        return len(data) == piece["rows"] * size and bool(sums == piece["sums"])


_DEAL_COST = 48  # bytes of memory per record, beside it and its copy, while records are distributed
_LEAST_SHARES = (
    8  # a bucket takes at most 1 / 8 of the memory, so that several workers fit with a bucket each
)
_MOST_BUCKETS = 1 << 15  # NumPy's stable sort of 16-bit numbers is a radix sort
_KEPT = 2  # buckets cached per process: worker threads are in different buckets around the end of one


class ShuffledFile(AbstractContextManager["ShuffledFile"]):
    """A file of records, read in the order of a SampleOrder; a context manager that removes its second file.

    Call prepare() first, once. After it, take() is thread-safe, and works in processes forked later.
    OSError passes through (the disk may be full).
    """

    itemsize: int
    rows: int

    def __init__(
        self,
        path: str,
        itemsize: int,
        samples: Numbers,
        *,
        rising: bool,
        memory: int,
        work: str,
        mapped: int = 0,
        workers: int = 1,
    ) -> None:
        """path: file of records of itemsize bytes each; samples: the record of each row, each record once.

        rising: True if records are read roughly in file order; memory: approximate limit of bytes in memory,
        over all workers; mapped: size up to which a file is mapped and read in any order (if larger than
        memory), in pages that the kernel can evict; work: path of the second file, if one is needed; workers:
        threads that distribute, and threads or processes that will read.
        """
        self.itemsize, self.rows, self._samples, self._rising = itemsize, len(samples), samples, rising
        self._path, self._work, self._workers = path, work, workers
        nbytes = self.rows * itemsize
        self.direct: bool = rising or nbytes <= max(memory, mapped)
        share = memory // max(_LEAST_SHARES, 2 * workers)
        self._bucket_rows = max(1, share // (itemsize + 8), -(-self.rows // _MOST_BUCKETS))
        self._deal_rows = max(1, memory // (2 * workers * (2 * itemsize + _DEAL_COST)))
        self._kept: dict[int, tuple[Numbers, NDArray[Any]]] = {}
        self._lock = threading.Lock()
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        if os.fstat(self._fd).st_size < nbytes:
            os.close(self._fd)
            raise _cut_short(path)

    def __exit__(self, *raised: object) -> None:
        os.close(self._fd)
        remove(self._work)

    def prepare(self) -> None:
        """Distribute the records to buckets, unless they can be read directly."""
        if self.direct:
            mapping = mmap.mmap(self._fd, self.rows * self.itemsize, prot=mmap.PROT_READ)
            if not self._rising:
                mapping.madvise(mmap.MADV_WILLNEED)
            self._mapped: NDArray[Any] = np.frombuffer(mapping, f"V{self.itemsize}")
            return
        self._owners = np.empty(self.rows, np.uint16)
        for number, start in enumerate(range(0, self.rows, self._bucket_rows)):
            self._owners[self._samples[start : start + self._bucket_rows]] = number
        fd = create_anew(self._work)
        try:
            if not reserve(fd, 0, self.rows * self.itemsize):
                os.ftruncate(fd, self.rows * self.itemsize)
            self._deal(fd)
        except BaseException:
            os.close(fd)
            raise
        os.close(self._fd)
        self._fd, self._path = fd, self._work

    def take(self, samples: Numbers) -> NDArray[np.uint8]:
        """Return records, uint8 [n, itemsize].

        Records that are neighbours in the order are fast; others read a bucket each.
        """
        out = np.empty(len(samples), f"V{self.itemsize}")
        if self.direct:
            np.take(self._mapped, samples, out=out, mode="clip")
        else:
            owners = self._owners[samples]
            for number in np.unique(owners).tolist():
                at = np.flatnonzero(owners == number)
                held, records = self._bucket(number)
                out[at] = records[np.searchsorted(held, samples[at])]
        return out.view(np.uint8).reshape(len(out), self.itemsize)

    def _bucket(self, number: int) -> tuple[Numbers, NDArray[Any]]:
        """Return the ascending record numbers of a bucket, and its records."""
        with self._lock:
            if number not in self._kept:
                while len(self._kept) >= _KEPT:
                    self._kept.pop(next(iter(self._kept)))
                first = number * self._bucket_rows
                held = np.sort(self._samples[first : first + self._bucket_rows])
                self._kept[number] = held, self._read_records(first, len(held))
            return self._kept[number]

    def _deal(self, fd: int) -> None:
        """Write each record to its bucket; within a bucket records keep the order of the first file."""
        filled = np.arange(0, self.rows, self._bucket_rows)

        def grouped(start: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
            records = self._read_records(start, min(self._deal_rows, self.rows - start))
            owners = self._owners[start : start + len(records)]
            order = np.argsort(owners, kind="stable")
            return np.take(records, order), np.bincount(owners, minlength=len(filled))

        with ThreadPoolExecutor(self._workers, thread_name_prefix="packer-deal") as pool:
            step = self._deal_rows * self._workers
            for begin in range(0, self.rows, step):
                for records, counts in pool.map(
                    grouped, range(begin, min(begin + step, self.rows), self._deal_rows)
                ):
                    low = 0
                    for number in np.flatnonzero(counts).tolist():
                        high = low + int(counts[number])
                        data = records[low:high].view(np.uint8).data
                        pwrite_all(fd, data, int(filled[number]) * self.itemsize)
                        low = high
                    filled += counts

    def _read_records(self, first: int, count: int) -> NDArray[Any]:
        """Return records first..first+count-1 of the file. Raises SourceError if the file is shorter."""
        out = np.empty(count, f"V{self.itemsize}")
        if pread_into(self._fd, out.view(np.uint8), first * self.itemsize) < out.nbytes:
            raise _cut_short(self._path)
        return out


def _cut_short(path: str) -> SourceError:
    return SourceError(f"{path}: was truncated while it was read. Run the same command again.")
