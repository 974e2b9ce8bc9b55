"""StretchWindow: stretches of a remote pack in this process's memory, while they are used."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from typing import Generic, TypeVar

from packer.machine import memory
from packer.starting import ForkSafeThreads

K = TypeVar("K")
CONNECTIONS = 16
_SPARE = 4  # more stretches queued to the threads; a longer queue would delay those that a caller waits for
# Holds two windows of the order "blocks", 256 MB each, and prefetched stretches.
WINDOW_BYTES = min(1 << 30, memory() // 8)
STRETCH_BYTES = 8 << 20  # approximate; smaller stretches cost requests, larger ones transfer unneeded bytes
_MOST_AHEAD = max(1, WINDOW_BYTES // 2 // STRETCH_BYTES)


class StretchWindow(Generic[K]):
    """Recently used and prefetched stretches, up to WINDOW_BYTES. Thread-safe; empty in a forked child.

    fetch: returns the bytes of a stretch, given its number or another key; b"" if it has stored them
    elsewhere.
    """

    def __init__(self, fetch: Callable[[K], memoryview]) -> None:
        self._fetch = fetch
        self._threads = ForkSafeThreads(CONNECTIONS)
        self._renew()

    def _renew(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[K, Future[memoryview]] = OrderedDict()
        self._later: deque[K] = deque()
        self._coming = 0
        self._nbytes = 0
        # Last: another thread of a forked child would wait for what its parent fetches.
        self._pid = os.getpid()

    def get(self, numbers: Iterable[K]) -> dict[K, memoryview]:
        """Return stretches by number; missing ones are fetched concurrently. Raises PackerError."""
        futures = {number: self._future(number) for number in numbers}
        return {number: future.result() for number, future in futures.items()}

    def ahead(self, numbers: Iterable[K]) -> None:
        """Start to prefetch stretches; only the first ones if there are many."""
        if self._pid != os.getpid():
            self._renew()
        for number in numbers:
            if self._coming + len(self._later) >= _MOST_AHEAD:
                break
            if number not in self._kept and number not in self._later:
                self._later.append(number)
        self._go_on()

    def _go_on(self) -> None:
        while self._coming < CONNECTIONS + _SPARE:
            try:
                number = self._later.popleft()
            except IndexError:
                return
            self._future(number)

    def close(self) -> None:
        """End the threads and drop all stretches."""
        self._later.clear()
        self._threads.close()
        self._renew()

    def _future(self, number: K) -> Future[memoryview]:
        if self._pid != os.getpid():
            self._renew()
        with self._lock:
            future = self._kept.get(number)
            if future is not None:
                self._kept.move_to_end(number)
                return future
            future = self._kept[number] = self._threads.submit(self._fetch, number)
            self._coming += 1
        future.add_done_callback(lambda done: self._came(number, done))
        return future

    def _came(self, number: K, future: Future[memoryview]) -> None:
        failed = future.cancelled() or future.exception() is not None
        with self._lock:
            self._coming -= 1
            # the next request fetches it again, or finds it in the cache
            if failed or not len(future.result()):
                if self._kept.get(number) is future:
                    del self._kept[number]
            else:
                self._nbytes += len(future.result())
                self._drop_old(future)
        self._go_on()

    def _drop_old(self, latest: Future[memoryview]) -> None:
        for old in list(self._kept):
            if self._nbytes <= WINDOW_BYTES:
                return
            one = self._kept[old]
            if one.done() and one is not latest:
                del self._kept[old]
                with suppress(Exception):
                    self._nbytes -= len(one.result())
