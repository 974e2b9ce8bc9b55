"""The order of the rows of a table in its pack, and the staged rows read in it.

The order is an array of row numbers, splits one after the other, in a file of its own where there are many. The rows are records of
one size in a file (ShuffledFile), copied in bounded memory. While all of them fit into it, or are wanted as they lie, they are copied
one by one from a mapping of the file: 45 ns each for 116 bytes (3 million, one core of a Xeon). When they do not, that would be a trip
to the disk for each. Then they are first dealt to buckets: the file is read once from its beginning to its end, and each record goes
to the bucket of the rows in the new order that it belongs to, in a second file. A bucket fits, and is read as a whole.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer import randomness
from packer.convert.sample_order import SampleOrder
from packer.errors import SourceError, UsageError
from packer.format.file_io import pread_into, pwrite_all, remove, reserve

Numbers = NDArray[np.int64]
_DRAWN = 1 << 20  # row numbers drawn at once


def parse_parts(text: str | Mapping[str, Any]) -> dict[str, float | str]:
    """Parse how a table's rows are dealt to splits: "train=0.9,val=0.1", "train=rest,test=last:500000" or a mapping.

    A share is of the rows that no "first:N" or "last:N" takes; "rest", for one split, is what the shares leave of 1.
    Returns: name -> share, "rest", "first:N" or "last:N", as plain JSON values, sorted by name. Raises UsageError.
    """
    pairs = [part.split("=") for part in text.split(",")] if isinstance(text, str) else list(text.items())
    parts = {str(pair[0]).strip(): _part(pair[1]) for pair in pairs if len(pair) == 2}
    ends = [str(value).partition(":")[0] for value in parts.values() if isinstance(value, str)]
    total = sum(value for value in parts.values() if isinstance(value, float))
    full = total < 1 - 1e-9 if "rest" in ends else abs(total - 1) <= 1e-6 or len(ends) == len(parts)
    named = len(parts) == len(pairs) > 0 and all(parts) and None not in parts.values()
    if not named or len(set(ends)) < len(ends) or not full:
        raise UsageError(
            f"split {text}: is not a list of names, each with a positive share, rest, first:N or last:N; the shares"
            f" make {total:g}, and 1 is needed, or less with a rest. Pass for example train=0.9,val=0.1 or"
            " train=rest,test=last:500000."
        )
    return {name: value for name, value in sorted(parts.items()) if value is not None}


def _part(value: Any) -> float | str | None:
    """Return a share, "rest", "first:N" or "last:N"; None for anything else."""
    word, colon, number = (part.strip() for part in str(value).partition(":"))
    if colon:
        known = word in ("first", "last") and number.isdecimal() and int(number) > 0
        return f"{word}:{int(number)}" if known else None
    try:
        return word if word == "rest" else share if (share := float(word)) > 0 else None
    except ValueError:
        return None


def table_order(
    rows: int, *, split: str | Mapping[str, Any] | None, shuffle: bool, seed: int, path: str | None = None
) -> SampleOrder:
    """Return the rows of a table: splits one after the other, by name.

    rows: of the source; split: see parse_parts; shares are drawn from the seed, each row as likely as any other. shuffle: the rows
    of each split in a random order, drawn from the seed; else in the source's. path: of a file, overwritten, that the row numbers are
    mapped from; None: they are in memory.
    Raises UsageError when a split would be empty, or a row in none; OSError.
    """
    splits: dict[str, tuple[int, int]] = {}
    pieces = _pieces(rows, split, shuffle, seed, splits)
    if path is None:
        return SampleOrder(np.concatenate(list(pieces)), splits)
    with open(path, "wb") as file:
        for piece in pieces:
            piece.tofile(file)
    return SampleOrder(np.memmap(path, np.int64, "r"), splits)


def _pieces(
    rows: int,
    split: str | Mapping[str, Any] | None,
    shuffle: bool,
    seed: int,
    splits: dict[str, tuple[int, int]],
) -> Iterator[Numbers]:
    """Yield the row numbers in order. splits: filled in."""
    if split is None:
        yield from _drawn(0, rows, 0, rows, randomness.key(seed, "convert") if shuffle else None)
        return
    parts = parse_parts(split)
    sizes = {end: int(n) for end, _, n in (str(v).partition(":") for v in parts.values()) if n}
    first, last = sizes.get("first", 0), sizes.get("last", 0)
    left = rows - first - last
    if left < 0:
        raise UsageError(
            f"split {split}: takes {first + last:,} rows from the ends; there are {rows:,}. Pass fewer."
        )
    shares = {name: value for name, value in parts.items() if ":" not in str(value)}
    if left and not shares:
        raise UsageError(
            f"split {split}: leaves {left:,} of {rows:,} rows in no split. Add one with rest, as in train=rest."
        )
    dealt = _deal(shares, left, split)
    drawn = len(shares) > 1
    at = taken = 0
    for name, value in parts.items():
        key = randomness.key(seed, "convert", name) if shuffle else None
        low, count = (first, dealt[name]) if name in shares else (0, first)
        if str(value).startswith("last"):
            low, count = rows - last, last
        splits[name] = (at, at + count)
        at += count
        if name in shares and drawn:
            pieces = _drawn(first, left, taken, count, randomness.key(seed, "split"))
            # What stands together in a random order is in a random order.
            yield from pieces if shuffle else [np.sort(np.concatenate(list(pieces)))]
            taken += count
        else:
            yield from _drawn(low, count, 0, count, key)


def _drawn(low: int, rows: int, start: int, count: int, key: int | None) -> Iterator[Numbers]:
    """Yield the numbers at positions start..start+count-1 of the range low..low+rows-1, permuted by the key, None: as it is."""
    for at in range(start, start + count, _DRAWN):
        positions = np.arange(at, min(at + _DRAWN, start + count))
        yield low + (positions if key is None else randomness.permute(positions, rows, key))


def _deal(parts: Mapping[str, float | str], rows: int, split: object) -> dict[str, int]:
    """Return the rows of each split that has a share; those that rounding leaves go, one each, to the splits most short-changed."""
    given = sum(value for value in parts.values() if isinstance(value, float))
    share = np.array([value if isinstance(value, float) else 1 - given for value in parts.values()])
    counts = np.floor(share * rows + 1e-9).astype(np.int64)
    most = np.argsort(counts - share * rows, kind="stable")[: rows - int(counts.sum())]
    counts[most] += 1
    dealt = dict(zip(parts, counts.tolist(), strict=True))
    for name, count in dealt.items():
        if not count:
            raise UsageError(
                f"split {split}: none of {rows:,} rows falls to {name}. Pass a larger share, or fewer rows for the others."
            )
    return dealt


_DEAL_COST = 48  # bytes held a record beside it and its copy, while it is dealt
_LEAST_SHARES = 8  # a bucket is this part of the memory, or less: a few workers, each at one of its own, fit
_MOST_BUCKETS = 1 << 15  # which a stable sort of 16 bits does without comparing
_KEPT = 2  # buckets a process keeps: workers that are threads are not all in the same one where one ends


class ShuffledFile(AbstractContextManager["ShuffledFile"]):
    """A file of records, read in the order of a SampleOrder; a context manager that removes its own file.

    prepare() comes first, and once. take() then serves any number of threads and of processes forked afterwards.
    OSError is raised as it comes (the disk may be full).
    """

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
        """path: of the records, of itemsize bytes each; samples: the record of each row, each record once.

        rising: the records are wanted about as they lie; memory: bytes to hold at most, about, in all workers together; mapped: bytes
        of a file that may be read in any order where they lie, if that is more: in pages that the kernel can let go of; work: path of
        the second file, if one is needed; workers: threads that deal, and processes or threads that will read.
        """
        self.itemsize, self.rows, self._samples, self._rising = itemsize, len(samples), samples, rising
        self._path, self._work, self._workers = path, work, workers
        nbytes = self.rows * itemsize
        self.direct = rising or nbytes <= max(memory, mapped)
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
        """Deal the records to buckets, unless they fit into the memory as they are."""
        if self.direct:
            mapping = mmap.mmap(self._fd, self.rows * self.itemsize, prot=mmap.PROT_READ)
            if not self._rising:
                mapping.madvise(mmap.MADV_WILLNEED)
            self._whole: NDArray[Any] = np.frombuffer(mapping, f"V{self.itemsize}")
            return
        self._owners = np.empty(self.rows, np.uint16)
        for number, start in enumerate(range(0, self.rows, self._bucket_rows)):
            self._owners[self._samples[start : start + self._bucket_rows]] = number
        fd = os.open(self._work, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
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
        """Return these records, uint8 [n, itemsize]. Neighbours in the order are fast; others cost a bucket each."""
        out = np.empty(len(samples), f"V{self.itemsize}")
        if self.direct:
            np.take(self._whole, samples, out=out, mode="clip")
        else:
            owners = self._owners[samples]
            for number in np.unique(owners).tolist():
                at = np.flatnonzero(owners == number)
                held, records = self._bucket(number)
                out[at] = records[np.searchsorted(held, samples[at])]
        return out.view(np.uint8).reshape(len(out), self.itemsize)

    def _bucket(self, number: int) -> tuple[Numbers, NDArray[Any]]:
        """Return which records a bucket holds, rising, and them."""
        with self._lock:
            if number not in self._kept:
                while len(self._kept) >= _KEPT:
                    self._kept.pop(next(iter(self._kept)))
                first = number * self._bucket_rows
                held = np.sort(self._samples[first : first + self._bucket_rows])
                self._kept[number] = held, self._read(first, len(held))
            return self._kept[number]

    def _deal(self, fd: int) -> None:
        """Put each record behind those of its bucket that stand before it in the first file."""
        filled = np.arange(0, self.rows, self._bucket_rows)

        def grouped(start: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
            records = self._read(start, min(self._deal_rows, self.rows - start))
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

    def _read(self, first: int, count: int) -> NDArray[Any]:
        """Return records of the file, by their places in it. Raises SourceError if it ends before."""
        out = np.empty(count, f"V{self.itemsize}")
        if pread_into(self._fd, out.view(np.uint8), first * self.itemsize) < out.nbytes:
            raise _cut_short(self._path)
        return out


def _cut_short(path: str) -> SourceError:
    return SourceError(f"{path}: has been cut short while it was read. Run the same command again.")
