"""The order of the rows of a table in its pack, and the staged rows read in it.

The order is computed, at no cost a row: splits one after the other. The rows are records of one size in a file (ShuffledFile), copied
in bounded memory. While all of them fit into it, or are wanted as they lie, they are copied one by one from a mapping of the
file: 40 ns each for 116 bytes (11 million, one core of a Xeon), as fast as memory gives them. When they do not, that would be a trip
to the disk for each. Then they are first dealt to buckets: the file is read once from its beginning to its end, and each record goes
to the bucket of the rows in the new order that it belongs to, in a second file. A bucket fits, and is read as the whole file would
have been. The second file holds the buckets' records, as they come, and behind them all for each record, uint32, which row of its
bucket it is.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from packer import randomness
from packer.convert.sample_order import SampleOrder
from packer.errors import SourceError, UsageError
from packer.format.file_io import pread_into, pwrite_all, remove, reserve, resident
from packer.read import gather

Numbers = NDArray[np.int64]


class PermutedRange(NamedTuple):
    """The source rows low..low+rows-1, permuted by the key, or in their order where that is None."""

    low: int
    rows: int
    key: int | None

    def samples(self, positions: Numbers) -> Numbers:
        """Return the source rows at these positions, 0..rows-1."""
        if self.key is None or not len(positions):
            return self.low + positions
        return self.low + randomness.permute(positions, self.rows, self.key)

    def positions(self, sources: Numbers) -> Numbers:
        """Return the positions at which these source rows stand."""
        if self.key is None or not len(sources):
            return sources - self.low
        return randomness.unpermute(sources - self.low, self.rows, self.key)


class OrderSegment(NamedTuple):
    """Rows of a permuted range, at least one: those at its positions start..start+rows-1; or `members`, rising, int64 [rows]."""

    deck: PermutedRange
    start: int
    rows: int
    members: Numbers | None = None

    def samples(self, positions: Numbers) -> Numbers:
        """Return the source rows at these positions of the segment."""
        return self.deck.samples(self.start + positions) if self.members is None else self.members[positions]

    def part(self, start: int, stop: int) -> OrderSegment:
        """Return the rows at its positions start..stop-1."""
        members = None if self.members is None else self.members[start:stop]
        return OrderSegment(self.deck, self.start + start, stop - start, members)


class SegmentedOrder:
    """A sequence of source rows, made of segments one after the other, no source row twice.

    Slices and picks (int64 arrays of positions, from 0) give int64 arrays. Thread-safe; works in forked processes.
    """

    def __init__(self, segments: Sequence[OrderSegment]) -> None:
        self.segments = tuple(segments)
        self._firsts = np.cumsum([0, *(s.rows for s in self.segments)])

    def __len__(self) -> int:
        return int(self._firsts[-1])

    @overload
    def __getitem__(self, rows: int) -> np.int64: ...

    @overload
    def __getitem__(self, rows: slice | Numbers) -> Numbers: ...

    def __getitem__(self, rows: int | slice | Numbers) -> np.int64 | Numbers:
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            return (
                self._slice(start, max(start, stop)) if step == 1 else self._at(np.arange(start, stop, step))
            )
        if isinstance(rows, np.ndarray):
            return self._at(rows)
        one: np.int64 = self._at(np.array([range(len(self))[rows]]))[0]
        return one

    def part(self, start: int, stop: int) -> SegmentedOrder:
        """Return the rows at positions start..stop-1, computed as these are."""
        found = []
        for first, segment in zip(self._firsts.tolist(), self.segments, strict=False):
            low, high = max(start - first, 0), min(stop - first, segment.rows)
            if low < high:
                found.append(segment.part(low, high))
        return SegmentedOrder(found)

    def positions(self, sources: Numbers) -> Numbers:
        """Return the positions of these source rows, int64 [n]; -1 for those that are not in the sequence."""
        found = np.full(len(sources), -1)
        for first, (mine, at) in zip(self._firsts.tolist(), self._places(sources), strict=False):
            found[mine] = first + at[mine]
        return found

    def owner(self, sources: Numbers) -> Numbers:
        """Return the number of the segment that holds each of these source rows, int64 [n]; -1 for none."""
        found = np.full(len(sources), -1)
        for number, (mine, _) in enumerate(self._places(sources)):
            found[mine] = number
        return found

    def _slice(self, start: int, stop: int) -> Numbers:
        found = np.empty(stop - start, np.int64)
        for first, segment in zip(self._firsts.tolist(), self.segments, strict=False):
            low, high = max(start, first), min(stop, first + segment.rows)
            if low < high:
                found[low - start : high - start] = segment.samples(np.arange(low - first, high - first))
        return found

    def _at(self, positions: Numbers) -> Numbers:
        found = np.empty(positions.shape, np.int64)
        owners = np.searchsorted(self._firsts, positions, "right") - 1
        for number, segment in enumerate(self.segments):
            mine = owners == number
            found[mine] = segment.samples(positions[mine] - self._firsts[number])
        if ((positions < 0) | (positions >= len(self))).any():
            raise IndexError(f"positions beyond {len(self)} rows")
        return found

    def _places(self, sources: Numbers) -> Iterator[tuple[NDArray[np.bool_], Numbers]]:
        """Yield which of the rows each segment holds, and where these stand in it (of the others: anything)."""
        decks: dict[PermutedRange, Numbers] = {}  # what several segments share is computed once
        for segment in self.segments:
            if segment.members is not None:
                at = np.searchsorted(segment.members, sources).clip(max=segment.rows - 1)
                yield segment.members[at] == sources, at
                continue
            deck = segment.deck
            if deck not in decks:
                inside = (sources >= deck.low) & (sources < deck.low + deck.rows)
                decks[deck] = np.full(len(sources), -1)
                decks[deck][inside] = deck.positions(sources[inside])
            at = decks[deck] - segment.start
            yield (decks[deck] >= 0) & (at >= 0) & (at < segment.rows), at


@dataclass(frozen=True)
class TableOrder(SampleOrder):
    """A SampleOrder whose samples are computed."""

    samples: SegmentedOrder

    def part(self, start: int, stop: int) -> TableOrder:
        """Return the order of the rows start..stop-1, with what each split has of them."""
        return TableOrder(self.samples.part(start, stop), self._within(start, stop))

    def owner(self, sources: Numbers) -> Numbers:
        """Return the split of each of these samples, int64 [n]: its number in `splits`, 0 without splits, -1 for none."""
        return self.samples.owner(sources)


def parse_parts(text: str | Mapping[str, Any]) -> dict[str, float | str]:
    """Parse how a table's rows are dealt to splits: "train=0.9,val=0.1", "train=rest,test=last:500000" or a mapping.

    A share is of the rows that no "first:N" or "last:N" takes; "rest", for one split, is what the shares leave of 1.
    Returns: name -> share, "rest", "first:N" or "last:N", as plain JSON values, sorted by name. Raises UsageError.
    """
    pairs = [part.split("=") for part in text.split(",")] if isinstance(text, str) else list(text.items())
    parts: dict[str, float | str] = {}
    for pair in pairs:
        name, value = str(pair[0]).strip(), _part(pair[1]) if len(pair) == 2 else None
        if not name or value is None or name in parts:
            raise _no_parts(text)
        parts[name] = value
    ends = [str(value).partition(":")[0] for value in parts.values() if isinstance(value, str)]
    if not parts or len(set(ends)) < len(ends):
        raise _no_parts(text)
    shares = sum(value for value in parts.values() if isinstance(value, float))
    shared = any(isinstance(value, float) for value in parts.values())
    if "rest" in ends and shares >= 1 - 1e-9:
        raise UsageError(
            f"split {text}: the shares make {shares:g} and leave nothing for the rest; less than 1 is needed."
            " Pass smaller shares, or no rest."
        )
    if shared and "rest" not in ends and abs(shares - 1) > 1e-6:
        raise UsageError(
            f"split {text}: the shares make {shares:g}; 1 is needed. Pass for example train=0.9,val=0.1."
        )
    return dict(sorted(parts.items()))


def _part(value: Any) -> float | str | None:
    """Return a share, "rest", "first:N" or "last:N"; None for anything else."""
    word, colon, number = str(value).strip().partition(":")
    if colon:
        known = word.strip() in ("first", "last") and number.strip().isdecimal() and int(number) > 0
        return f"{word.strip()}:{int(number)}" if known else None
    if word == "rest":
        return word
    try:
        share = float(word)
    except ValueError:
        return None
    return share if share > 0 else None


def _no_parts(text: object) -> UsageError:
    return UsageError(
        f"split {text}: is not a list of names, each with a positive share, rest, first:N or last:N."
        " Pass for example train=0.9,val=0.1 or train=rest,test=last:500000."
    )


def table_order(rows: int, *, split: str | Mapping[str, Any] | None, shuffle: bool, seed: int) -> TableOrder:
    """Return the rows of a table: splits one after the other, by name.

    rows: of the source; split: see parse_parts; shares are drawn from the seed, each row as likely as any other. shuffle: the rows
    of each split in a random order, drawn from the seed; else in the source's.
    With shuffle, or without shares, nothing is stored for a row; without shuffle,
    what shares deal is sorted: 8 bytes for each of these rows are stored, and twice that while it is made.
    Raises UsageError when a split would be empty, or a row in none.
    """
    if split is None:
        whole = PermutedRange(0, rows, randomness.key(seed, "convert") if shuffle else None)
        return TableOrder(SegmentedOrder([OrderSegment(whole, 0, rows)]), {})
    parts = parse_parts(split)
    sizes = {end: int(n) for end, _, n in (str(v).partition(":") for v in parts.values()) if n}
    first, last = sizes.get("first", 0), sizes.get("last", 0)
    if first + last > rows:
        raise UsageError(
            f"split {split}: takes {first + last:,} rows from the ends; there are {rows:,}. Pass fewer."
        )
    left = rows - first - last
    shares = {name: value for name, value in parts.items() if ":" not in str(value)}
    if left and not shares:
        raise UsageError(
            f"split {split}: leaves {left:,} of {rows:,} rows in no split. Add one with rest, as in train=rest."
        )
    dealt = _deal(shares, left, split)
    drawn = len(shares) > 1
    deck = PermutedRange(first, left, randomness.key(seed, "split") if drawn else None)
    segments, splits, at, taken = [], {}, 0, 0
    for name, value in parts.items():
        if name in shares:
            count = dealt[name]
            if drawn and shuffle:  # what stands together in a random order is in a random order
                segments.append(OrderSegment(deck, taken, count))
            elif drawn:
                members = np.sort(deck.samples(np.arange(taken, taken + count)))
                segments.append(OrderSegment(deck, taken, count, members))
            else:
                segments.append(_range(first, count, name, shuffle, seed))
            taken += count
        else:
            low, count = (0, first) if str(value).startswith("first") else (rows - last, last)
            segments.append(_range(low, count, name, shuffle, seed))
        splits[name] = (at, at + count)
        at += count
    return TableOrder(SegmentedOrder(segments), splits)


def _range(low: int, count: int, name: str, shuffle: bool, seed: int) -> OrderSegment:
    """Return neighbours in the source, as one split."""
    return OrderSegment(
        PermutedRange(low, count, randomness.key(seed, "convert", name) if shuffle else None), 0, count
    )


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


_PLACE = np.dtype("<u4")  # of a record in its bucket
_PLACE_COST = 2 * _PLACE.itemsize  # bytes held a record beside it: where it is; for a while, what it was
_DEAL_COST = 48  # bytes held a record beside it and its copy, while it is dealt
_LEAST_SHARES = (
    8  # a bucket is this part of the memory, or less: a few workers, each at a bucket of its own, fit
)
_MOST_BUCKETS = 1 << 15  # which a stable sort of 16 bits does without comparing
_WARM_BYTES = 4 << 20
_KEPT = 2  # buckets a process keeps: workers that are threads are not all in the same one where one ends


class ShuffledFile(AbstractContextManager["ShuffledFile"]):
    """A file of records, read in the order of a SegmentedOrder; a context manager that removes its own file.

    prepare() comes first, and once. take() then serves any number of threads and of processes forked afterwards.
    OSError is raised as it comes (the disk may be full).
    """

    def __init__(
        self,
        path: str,
        itemsize: int,
        order: SegmentedOrder,
        *,
        memory: int,
        work: str,
        mapped: int = 0,
        workers: int = 1,
    ) -> None:
        """path: of the records, of itemsize bytes each, as many as the order has, which gives each of them one row.

        memory: bytes to hold at most, about, in all workers together; mapped: bytes of a file that may be read in any order where
        they lie, if that is more: in pages that the kernel can let go of; work: path of the second file, if one is needed;
        workers: threads that deal, and processes or threads that will read.
        """
        self.itemsize, self.rows, self._order = itemsize, len(order), order
        self._path, self._work, self._workers = path, work, workers
        nbytes = self.rows * itemsize
        # What rises is read from the beginning to the end anyway.
        self._rises = all(s.deck.key is None or s.members is not None for s in order.segments)
        self.direct = self._rises or nbytes <= max(memory, mapped)
        share = memory // max(_LEAST_SHARES, 2 * workers)
        bucket_rows = max(1, share // (itemsize + _PLACE_COST), -(-self.rows // _MOST_BUCKETS))
        self._bucket_rows = self.rows if self.direct else min(bucket_rows, (1 << 32) - 1)
        self._deal_rows = max(1, memory // (2 * workers * (2 * itemsize + _DEAL_COST)))
        self._kept: dict[int, _Bucket] = {}
        self._lock = threading.Lock()
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        if os.fstat(self._fd).st_size < nbytes:
            os.close(self._fd)
            raise _cut_short(path)

    def __exit__(self, *raised: object) -> None:
        self._kept = {}
        os.close(self._fd)
        remove(self._work)

    def prepare(self) -> None:
        """Deal the records to buckets, unless they fit into the memory as they are."""
        if self.direct:
            self._bucket(0)
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
            whole = self._bucket(0)
            if self._rises and len(sources):
                low, high = int(sources.min()), int(sources.max()) + 1
                _warm(self._path, self._fd, low * self.itemsize, (high - low) * self.itemsize)
            return whole.gather(sources, np.empty((len(sources), self.itemsize), np.uint8))
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
            if number not in self._kept and self.direct:
                if not self._rises:
                    _warm(self._path, self._fd, 0, self.rows * self.itemsize)
                self._kept[0] = _Bucket(self._path, self._fd, 0, self.rows, self.itemsize, None)
            elif number not in self._kept:
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
        found = gather.copy_rows(self._extents, self._files, places, ones, self._itemsize, out.reshape(-1))
        if found == gather.COLD:
            found, _ = gather.read_rows(
                self._extents, self._files, places, ones, self._itemsize, out.reshape(-1)
            )
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
