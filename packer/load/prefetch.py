"""A few threads that fill slots ahead of the training loop.

The loop itself asks for the batches to come, so there is no producer to stop: when the loop ends, for whatever reason,
nothing more is asked for, and what was asked for ends within one read.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from itertools import islice
from typing import Any, Protocol, TypeVar

from packer.load.lock import Lock
from packer.starting import ThreadPool, interrupt_later


class Pending(Protocol):
    """Work under way."""

    def cancel(self) -> None:
        """Drop what has not begun."""

    def advance(self) -> None:
        """Take a further step if it can be taken without waiting."""


P = TypeVar("P", bound=Pending)
T = TypeVar("T")


class Threads:
    """A pool of threads, made when first used, and made again after fork or close."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool: ThreadPool | None = None
        self._pid = -1
        self._lock = Lock()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_pool": None, "_pid": -1}

    def submit(self, function: Callable[..., T], *args: Any) -> Future[T]:
        """Run a function on one of the threads. Raises PackerError if a limit forbids a thread."""
        with self._lock:
            if self._pool is None or self._pid != os.getpid() or self._pool.ended:
                self._pool = ThreadPool(self.count, thread_name_prefix="packer-load")
                self._pid = os.getpid()
            return self._pool.submit(function, *args)

    def close(self) -> None:
        """End the threads, once what they are doing is done."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None and self._pid == os.getpid():
            pool.shutdown(wait=True, cancel_futures=True)


def ahead(starts: Iterable[Callable[[], P]], count: int) -> Iterator[P]:
    """Start each piece of work, `count` of them ahead of the one handed out; in order.

    What was started and never handed out is cancelled when the iterator is closed, collected or fails.
    """
    coming = iter(starts)
    pending: deque[P] = deque()
    try:
        pending.extend(start() for start in islice(coming, count + 1))
        while pending:
            current = pending.popleft()
            yield current
            del current
            pending.extend(start() for start in islice(coming, 1))
            for work in pending:
                work.advance()
    finally:
        try:
            for work in pending:
                work.cancel()
        except KeyboardInterrupt:  # after a break this is the iterator's destructor, where Python drops it
            interrupt_later()
