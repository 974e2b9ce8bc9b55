"""A lock that a fork or a pickle does not leave locked."""

from __future__ import annotations

import os
import threading
from typing import Any


class Lock:
    """A lock for ``with``: free in a forked child whoever held it, and travelling as a new one."""

    def __init__(self) -> None:
        self._lock, self._pid = threading.RLock(), os.getpid()

    def __enter__(self) -> None:
        if self._pid != os.getpid():
            self._lock, self._pid = threading.RLock(), os.getpid()
        self._lock.acquire()

    def __exit__(self, *exc: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return Lock, ()
