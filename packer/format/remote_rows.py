"""The rows of a pack in a store: in the files of a cache, or passed through memory."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.format.file_io import pread_path
from packer.format.header import Extent
from packer.format.remote_pack import RemotePack
from packer.format.stretch_cache import KEPT, StretchCache
from packer.format.stretch_window import CONNECTIONS, StretchWindow
from packer.format.stretches import STRETCH_BYTES, StretchMap, StretchRuns

_TOGETHER = 32  # stretches that one read holds at a time
_NEAR, _STEPS = (
    2,
    2,
)  # stretches that a step onwards goes at most, and such steps until what follows is asked for
_LOOK = 64  # reads between looks at whether all of an array has come
_LOOKED_AT = 1 << 16  # stretches, at a time

Numbers = NDArray[np.int64]


class RemoteRows:
    """The rows of one pack. Thread-safe; works again after fork and unpickling.

    cache: keeps stretches, None without one: rows pass through memory.
    """

    def __init__(self, pack: RemotePack, cache: StretchCache | None = None) -> None:
        self.pack, self.cache = pack, cache
        self._renew()

    def __getstate__(self) -> dict[str, Any]:
        return {"pack": self.pack, "cache": self.cache}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._renew()

    def _renew(self) -> None:
        self._pid, self._lock = os.getpid(), threading.Lock()
        self._map: StretchMap | None = None
        self.window = StretchWindow(self._fetch)

    @property
    def map(self) -> StretchMap:
        """The places of the stretches."""
        if self._pid != os.getpid():
            self._renew()
        with self._lock:
            if self._map is None:
                self._map = StretchMap(self.pack)
            return self._map

    def arrival(self, extents: Sequence[Extent]) -> RemoteArrival:
        """Return the arrival of an array's rows."""
        return RemoteArrival(self, extents)

    def path(self, file: str) -> str:
        """Return the local file in which the rows of a file of the pack stand once they have arrived."""
        return os.devnull if self.cache is None else self.cache.path(self.map, file)

    def own(self) -> RemoteRows:
        """Return them for one dataset alone; see Pack."""
        return RemoteRows(self.pack, copy(self.cache))

    def close(self) -> None:
        """Forget what is in memory, and leave the cache."""
        self.window.close()
        if self.cache is not None:
            self.cache.close()

    def kept(self, numbers: Numbers) -> NDArray[np.bool_]:
        """Return of each stretch whether it is in the files of the cache."""
        if self.cache is None:
            return np.zeros(len(numbers), bool)
        found: NDArray[np.bool_] = self.cache.states(self.map)[numbers] == KEPT
        return found

    def wait(self, numbers: Numbers) -> Numbers:
        """Return once these stretches are in the cache as far as it has room; return the others. Raises PackerError."""
        missing = numbers[~self.kept(numbers)]
        if self.cache is None or self.cache.full or not len(missing):
            return missing
        for first in range(0, len(missing), _TOGETHER):
            self.window.get(missing[first : first + _TOGETHER].tolist())
        passing: Numbers = missing[~self.kept(missing)]
        return passing

    def load(self, number: int) -> memoryview:
        """Return the bytes of a stretch, wherever they are. Raises PackerError."""
        if self.kept(np.array([number]))[0]:
            return self._read(number)
        return self.window.get([number])[number] or self._read(number)

    def _read(self, number: int) -> memoryview:
        """Return the bytes of a stretch that is in the cache; none without one, where a stretch may be empty."""
        if self.cache is None:
            return memoryview(b"")
        begin, end = self.map.place(number)
        return memoryview(pread_path(self.path(self.map.file(number)), end - begin, begin))

    def _fetch(self, number: int) -> memoryview:
        """Bring a stretch into the cache, and return nothing; or its bytes."""
        if blobs := self.map.needs_offsets(number):
            # By this thread: all others may wait for offsets, too.
            self.map.find_blobs(blobs, lambda offsets: self._bring(offsets) or self._read(offsets))
        return self._bring(number)

    def _bring(self, number: int) -> memoryview:
        return self.map.fetch(number) if self.cache is None else self.cache.bring(self.map, number)


class RemoteArrival:
    """The arrival of one array's rows. See Arrival."""

    def __init__(self, rows: RemoteRows, extents: Sequence[Extent]) -> None:
        self._rows, extents = rows, [extent for extent in extents if extent.nbytes]
        stretches = rows.map
        self._blob = stretches.blob_of(extents)
        self._firsts = np.cumsum([0, *(extent.rows for extent in extents)])
        self._addresses = np.array([stretches.address(e.file) + e.offset for e in extents], np.int64)
        self._row_bytes = extents[0].row_bytes if extents else 1
        array = next(
            (n for n, own in rows.pack.header.extents.items() if own[:1] == tuple(extents[:1])), None
        )
        self._all = None if array is None else stretches.numbers(array)  # None: bytes of several arrays
        self._whole, self._reads, self._there = False, 0, 0
        self._latest, self._steps = -1, 0

    def take(self, starts: Numbers, lengths: Numbers, out: NDArray[np.uint8]) -> bool:
        """See Arrival."""
        if self._whole or not len(starts):
            return False
        begins, ends = self._bytes(starts, lengths)
        numbers = self._numbers(begins, ends)
        if not len(numbers):
            return False
        self._go_on(numbers)
        passing = self._rows.wait(numbers)
        if not len(passing):
            self._look()
            return False
        self._gather(begins, ends, set(passing.tolist()), out.reshape(-1))
        return True

    def ahead(self, starts: Numbers, lengths: Numbers) -> None:
        """See Arrival."""
        if self._whole or not len(starts):
            return
        self._ask(self._numbers(*self._bytes(starts, lengths)))

    def _go_on(self, numbers: Numbers) -> None:
        """Ask for the stretches that follow, where reads go from one to the next: orders that do so know of nothing to ask for."""
        first, last = int(numbers[0]), int(numbers[-1])
        before, self._latest = self._latest, last
        if first == before == last:
            return
        # Threads read parts of a batch in any order; several small steps onwards are no chance.
        self._steps = self._steps + 1 if last > before and -_NEAR <= first - before <= _NEAR else 0
        if self._all is not None and self._steps >= _STEPS:
            run = int(np.searchsorted(self._all.firsts, last, "right")) - 1
            near = StretchRuns(*(numbers[run : run + CONNECTIONS + 1] for numbers in self._all))
            place = last - int(near.firsts[0]) + 1
            self._ask(near.part(place, min(place + CONNECTIONS, near.total)))

    def _ask(self, numbers: Numbers) -> None:
        self._rows.window.ahead(numbers[~self._rows.kept(numbers)].tolist(), STRETCH_BYTES)

    def _look(self) -> None:
        """See, now and then, whether all of the array has come: then nobody needs to ask any more."""
        self._reads += 1
        if self._reads % _LOOK or self._rows.cache is None or self._all is None:
            return
        total = self._all.total
        numbers = self._all.part(self._there, min(self._there + _LOOKED_AT, total))
        missing = np.flatnonzero(~self._rows.kept(numbers))
        self._there += int(missing[0]) if len(missing) else len(numbers)
        self._whole = self._there == total

    def _numbers(self, begins: Numbers, ends: Numbers) -> Numbers:
        stretches = self._rows.map
        if self._blob:
            blobs = [(part, self._blob) for part in stretches.parts_of(begins, ends)]
            offsets = stretches.offsets_of(blobs)
            if len(offsets):
                self._rows.wait(offsets)  # together
                stretches.find_blobs(blobs, self._rows.load)
        return stretches.of_addresses(begins, ends)

    def _bytes(self, starts: Numbers, lengths: Numbers) -> tuple[Numbers, Numbers]:
        """Return the addresses at which runs of rows begin and end, in pieces where a run goes over several extents."""
        some = lengths > 0
        if not some.all():
            starts, lengths = starts[some], lengths[some]
        owners = np.searchsorted(self._firsts, starts, "right") - 1
        stops = starts + lengths
        if (stops > self._firsts[owners + 1]).any():
            pieces = []
            for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
                while start < stop:
                    owner = int(np.searchsorted(self._firsts, start, "right")) - 1
                    end = min(stop, int(self._firsts[owner + 1]))
                    pieces.append((owner, start, end))
                    start = end
            owners, starts, stops = np.array(pieces, np.int64).T
        begins = self._addresses[owners] + (starts - self._firsts[owners]) * self._row_bytes
        return begins, begins + (stops - starts) * self._row_bytes

    def _gather(self, begins: Numbers, ends: Numbers, passing: set[int], out: NDArray[np.uint8]) -> None:
        """Copy bytes out of stretches that are kept, and of others, which are fetched."""
        pieces = sorted(self._pieces(begins, ends))
        order = list(dict.fromkeys(number for number, *_ in pieces))
        at = 0
        for first in range(0, len(order), _TOGETHER):
            few = order[first : first + _TOGETHER]
            found = self._rows.window.get(number for number in few if number in passing)
            for number in few:
                data = found.get(number) or self._rows.load(number)
                while at < len(pieces) and pieces[at][0] == number:
                    _, to, begin, end = pieces[at]
                    out[to : to + end - begin] = np.frombuffer(data[begin:end], np.uint8)
                    at += 1

    def _pieces(self, begins: Numbers, ends: Numbers) -> Iterator[tuple[int, int, int, int]]:
        """Yield stretch, place in the output, and which of the stretch's bytes."""
        stretches, to = self._rows.map, 0
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            for number in stretches.of_addresses(np.array([begin]), np.array([end])).tolist():
                first, last = stretches.place(number)
                base = stretches.address(stretches.file(number))
                low, high = max(begin, base + first), min(end, base + last)
                yield number, to + low - begin, low - base - first, high - base - first
            to += end - begin
