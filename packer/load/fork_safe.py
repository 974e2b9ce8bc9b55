"""A lock and a pool of threads that a fork or a pickle leaves usable."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from packer.starting import ThreadPool

T = TypeVar("T")


class ForkSafeLock:
    """A lock for ``with``: free in a forked child whoever held it, and pickled as a new one."""

    def __init__(self) -> None:
        self._lock, self._pid = threading.RLock(), os.getpid()

    def __enter__(self) -> None:
        if self._pid != os.getpid():
            self._lock, self._pid = threading.RLock(), os.getpid()
        self._lock.acquire()

    def __exit__(self, *exc: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return ForkSafeLock, ()


class ForkSafeThreads:
    """`count` threads, started when first used, and again after fork, unpickling or close."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool: ThreadPool | None = None
        self._pid = -1
        self._lock = ForkSafeLock()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_pool": None, "_pid": -1}

    def submit(self, function: Callable[..., T], *args: Any) -> Future[T]:
        """Run a function on one of the threads. Raise PackerError if a limit forbids a thread."""
        with self._lock:
            if self._pool is None or self._pid != os.getpid() or self._pool.ended:
                self._pool = ThreadPool(self.count, thread_name_prefix="packer-load")
                self._pid = os.getpid()
            return self._pool.submit(function, *args)

    def close(self) -> None:
        """End the threads once they have done what they are doing."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None and self._pid == os.getpid():
            pool.shutdown(wait=True, cancel_futures=True)
