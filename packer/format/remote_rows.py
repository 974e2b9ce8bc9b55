"""The rows of a pack in a store: in the files of a cache, or passed through memory."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.format.file_io import pread_path
from packer.format.remote_file import StoredPack
from packer.format.stretch_cache import KEPT, StretchCache
from packer.format.stretch_window import CONNECTIONS, StretchWindow
from packer.format.stretches import STRETCH_BYTES, Numbers, StretchMap
from packer.orders.runs import Runs, one_run

_TOGETHER = 32  # stretches that one read holds at a time
# Stretches that a step onwards goes at most, and such steps until what follows is asked for.
_NEAR, _STEPS = 2, 2
_LOOK = 64  # reads between looks at whether all of an array has come
_LOOKED_AT = 1 << 16  # stretches, at a time


class RemoteRows:
    """The rows of one pack. Thread-safe; works again after fork and unpickling.

    cache: keeps stretches, None without one: rows pass through memory.
    """

    def __init__(self, pack: StoredPack, cache: StretchCache | None = None) -> None:
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

    def arrival(self, array: str) -> RemoteArrival:
        """Return the arrival of an array's rows."""
        return RemoteArrival(self, array)

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
        array, unknown = self.map.unknown_of(number)
        for part in unknown:  # by this thread: all others may wait for offsets, too
            self.map.find(array, part, lambda offsets: self._bring(offsets) or self._read(offsets))
        return self._bring(number)

    def _bring(self, number: int) -> memoryview:
        return self.map.fetch(number) if self.cache is None else self.cache.bring(self.map, number)


class RemoteArrival:
    """The arrival of one array's rows. See Arrival."""

    def __init__(self, rows: RemoteRows, array: str) -> None:
        self._rows, self._array = rows, array
        self._all = rows.map.numbers(array)
        self._ends = np.cumsum(self._all.lengths)
        self._whole, self._reads, self._there = False, 0, 0
        self._latest, self._steps = -1, 0

    def take(self, starts: Numbers, lengths: Numbers, out: NDArray[np.uint8]) -> bool:
        """See Arrival."""
        numbers = self._numbers(Runs(starts, lengths))
        if not len(numbers):
            return False
        self._go_on(numbers)
        passing = self._rows.wait(numbers)
        if not len(passing):
            self._look()
            return False
        self._gather(Runs(starts, lengths), set(passing.tolist()), out)
        return True

    def ahead(self, starts: Numbers, lengths: Numbers) -> None:
        """See Arrival."""
        self._ask(self._numbers(Runs(starts, lengths)))

    def _go_on(self, numbers: Numbers) -> None:
        """Ask for the stretches that follow, where reads go from one to the next: orders that do so know of nothing to ask for."""
        first, last = int(numbers[0]), int(numbers[-1])
        before, self._latest = self._latest, last
        if first == before == last:
            return
        # Threads read parts of a batch in any order; several small steps onwards are no chance.
        self._steps = self._steps + 1 if last > before and -_NEAR <= first - before <= _NEAR else 0
        if self._steps >= _STEPS:
            run = int(np.searchsorted(self._all.starts, last, "right")) - 1
            place = int(self._ends[run] - self._all.lengths[run] - self._all.starts[run]) + last + 1
            self._ask(self._counted(place, place + CONNECTIONS))

    def _ask(self, numbers: Numbers) -> None:
        if len(numbers):
            self._rows.window.ahead(numbers[~self._rows.kept(numbers)].tolist(), STRETCH_BYTES)

    def _counted(self, start: int, stop: int) -> Numbers:
        """Return the array's stretches start..stop-1, counted over all parts; fewer at the end."""
        return self._all.part(start, min(stop, int(self._ends[-1])), self._ends).rows()

    def _look(self) -> None:
        """See, now and then, whether all of the array has come: then nobody needs to ask any more."""
        self._reads += 1
        if self._reads % _LOOK or self._rows.cache is None:
            return
        numbers = self._counted(self._there, self._there + _LOOKED_AT)
        missing = np.flatnonzero(~self._rows.kept(numbers))
        self._there += int(missing[0]) if len(missing) else len(numbers)
        self._whole = self._there == self._ends[-1]

    def _numbers(self, runs: Runs) -> Numbers:
        """Return the stretches that hold these elements; none once all are in the cache."""
        if self._whole or not len(runs.starts):
            return np.empty(0, np.int64)
        stretches = self._rows.map
        if unknown := stretches.unknown(self._array, runs):
            offsets = [stretches.offsets(self._array, part) for part in unknown]
            self._rows.wait(np.concatenate(offsets))  # together
            for part in unknown:
                stretches.find(self._array, part, self._rows.load)
        return stretches.of(self._array, runs)

    def _gather(self, runs: Runs, passing: set[int], out: NDArray[np.uint8]) -> None:
        """Copy rows out of stretches that are kept, and of others, which are fetched."""
        pieces = sorted(self._pieces(runs))
        order = list(dict.fromkeys(number for number, *_ in pieces))
        rows, at = out.reshape(-1, self._rows.map.element_bytes(self._array)), 0
        for first in range(0, len(order), _TOGETHER):
            few = order[first : first + _TOGETHER]
            found = self._rows.window.get(number for number in few if number in passing)
            for number in few:
                data = np.frombuffer(found.get(number) or self._rows.load(number), np.uint8)
                while at < len(pieces) and pieces[at][0] == number:
                    _, to, begin, end = pieces[at]
                    rows[to : to + end - begin] = data.reshape(-1, rows.shape[1])[begin:end]
                    at += 1

    def _pieces(self, runs: Runs) -> Iterator[tuple[int, int, int, int]]:
        """Yield stretch, place in the output, and which of the stretch's elements."""
        stretches, to = self._rows.map, 0
        for start, length in zip(runs.starts.tolist(), runs.lengths.tolist(), strict=True):
            for number in stretches.of(self._array, one_run(start, start + length)).tolist():
                first, last = stretches.span(number)
                low, high = max(start, first), min(start + length, last)
                yield number, to + low - start, low - first, high - first
            to += length
