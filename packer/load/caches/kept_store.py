"""A store whose rows a thread copies from another store: base of memory_cache.py and gpu_cache.py."""

from __future__ import annotations

import logging
import threading
from typing import ClassVar

from packer.errors import PackerError
from packer.read.array_store import ArrayStore, PackStore
from packer.starting import Background

log = logging.getLogger("packer.load")


class KeptStore(ArrayStore):
    """A cache of another store's fixed fields; rows that are not cached are read from the store below.

    Subclasses define `_fill` and `_free`. For one process: it cannot be pickled or used in a forked child.

    failed: why no more rows are cached, else None. closed: True once the store was left.
    """

    _lost: ClassVar[str]  # log text for rows that are not cached

    def __init__(self, below: PackStore) -> None:
        super().__init__(below.pack, below.fields, below.rows)
        self._below, self._lock, self._settled = below, threading.Lock(), threading.Event()
        self.failed: str | None = None
        self.closed: bool = False
        self._background: Background | None = None

    def begin(self, owner: object) -> None:
        """See ArrayStore."""
        self._background = Background(owner, "packer-keep", self._keep)

    def check(self) -> None:
        """See ArrayStore."""
        if self._background is not None:
            self._background.check()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all rows are cached, or no more will be; return True if all are. timeout: seconds."""
        settled = self._settled.wait(timeout)
        if settled and self._background is not None and not (self.ready or self.closed or self.failed):
            self._background.join()  # an error has ended the work, and now ends the thread
        self.check()
        return self.ready

    def drop(self) -> None:
        """See ArrayStore."""
        self.closed = True

    def leave(self) -> None:
        """See ArrayStore."""
        self.drop()
        if self._background is not None:
            self._background.end()
        self._free()  # an error may have ended the thread before it did

    def _keep(self, ending: threading.Event) -> None:
        """Run the thread: cache all rows; free them once the owner is gone, or the store is left."""
        try:
            self._fill(ending)
            if self.ready:
                self._below.keep(0)  # its decoded blocks are not needed again
        except PackerError as error:
            self._fail(str(error))
        finally:
            self._settled.set()
        ending.wait()
        self._free()

    def _fail(self, why: str) -> None:
        """Cache no more rows; log it once."""
        with self._lock:
            if self.failed is not None or self.ready or self.closed:
                return
            self.failed = why
        log.warning("%s: %s (%s)", self.pack.path, self._lost, why)

    def _fill(self, ending: threading.Event) -> None:
        """Cache all rows. Raises PackerError."""
        raise NotImplementedError

    def _free(self) -> None:
        """Free the cached rows."""
        raise NotImplementedError
