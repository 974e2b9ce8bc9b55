"""The process that keeps rows of a pack in memory, decoded, for all processes of a user that load the same rows.

It makes the rows that are asked for first and then all others, and serves on until its last client has left: it holds the memory
for those that come later. If it dies, the next one gets the memory from a client, with all that is in it.
"""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import BusyError, PackerError, SpaceError
from packer.filling.cache_folder import LOCK, locked
from packer.filling.filling_messages import (
    SOCKET,
    Link,
    connect,
    let_go_of_output,
    listen,
    serve,
)
from packer.filling.filling_server import FillingServer
from packer.filling.row_memory import MemoryLayout, RowMemory
from packer.format.file_io import pread_all, remove
from packer.machine import cores
from packer.orders.runs import Subset, one_run
from packer.read.row_reader import RowReader
from packer.starting import ThreadPool

KEPT = np.uint64(1)


def main(fd: int) -> None:
    """Keep the rows that the client at a socket's descriptor names."""
    serve(fd, _fill)


def _fill(link: Link[Any, Any], job: Mapping[str, Any]) -> None:
    folder = job["folder"]
    lock = None if connect(folder) is not None else locked(folder)
    if lock is None:
        raise BusyError(f"{folder}: is being filled by another process.")
    made_of, memory_fd = job["passed"]
    reader, subset, layout = pickle.loads(pread_all(made_of, os.fstat(made_of).st_size, 0))
    with ExitStack() as ending:
        ending.callback(_remove, folder)
        memory = _memory(layout, memory_fd)
        source = ending.enter_context(DecodedRows(reader, subset, memory))
        ready = {"units": layout.units, "place": os.fstat(memory.fd).st_ino}
        remove(os.path.join(folder, SOCKET))
        listener = ending.enter_context(listen(folder))

        def hello(job: Mapping[str, Any]) -> dict[str, Any]:
            source.widen(job["cores"])
            return {"ready": ready}

        server = FillingServer(memory.states, source, hello, lasting=True, descriptor=memory.fd)
        server.adopt(link, job)
        let_go_of_output()
        server.run(listener)


def _remove(folder: str) -> None:
    """Remove the folder: the lock last, since another process has the folder from then on."""
    with suppress(OSError):
        for name in (SOCKET, LOCK):
            remove(os.path.join(folder, name))
        os.rmdir(folder)


def _memory(layout: MemoryLayout, fd: int | None) -> RowMemory:
    try:
        return RowMemory(layout, fd)
    except (OSError, OverflowError) as error:
        raise SpaceError(
            f"memory for rows: cannot be had ({getattr(error, 'strerror', None) or error}). Pass placement='disk'."
        ) from None


class DecodedRows:
    """Rows of a subset of a pack, read and decoded into memory by threads. See UnitSource.

    workers: threads, one for each core that one of the clients may run on.
    """

    def __init__(self, reader: RowReader, subset: Subset, memory: RowMemory) -> None:
        self._reader, self._subset, self._memory = reader, subset, memory
        self._cores: set[int] = set()
        self._bound = threading.local()
        self.workers = cores()
        self._pool = ThreadPool(self.workers, thread_name_prefix="packer-decode")

    def __enter__(self) -> DecodedRows:
        return self

    def __exit__(self, *exc: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._reader.close()

    def widen(self, numbers: Sequence[int]) -> None:
        """Use these cores, too: ranks are often bound to some of a node's each."""
        self._cores = self._cores | set(numbers)
        if len(self._cores) > self.workers:
            self.workers = len(self._cores)
            self._pool.shutdown(wait=False)  # when it has done what it was given
            self._pool = ThreadPool(self.workers, thread_name_prefix="packer-decode")

    def start(self, units: NDArray[np.int64]) -> Future[Any]:
        """See UnitSource."""
        return self._pool.submit(self._make, units)

    def arrived(self, units: NDArray[np.int64], result: Any) -> None:
        """See UnitSource."""
        self._memory.states.mark(units, np.full(len(units), KEPT))

    def open(self) -> bool:
        """See UnitSource."""
        return False

    def broken(self, error: BaseException) -> PackerError:
        """See UnitSource."""
        return PackerError(f"{self._reader.pack.path}: {type(error).__name__}: {error}.")

    def _make(self, units: NDArray[np.int64]) -> None:
        """Bring the rows of units into the memory."""
        if self._cores and getattr(self._bound, "to", None) is not self._cores:
            self._bound.to = self._cores
            with suppress(OSError):  # another container's
                os.sched_setaffinity(0, self._cores)  # of this thread
        layout, edges = self._memory.layout, np.flatnonzero(np.diff(units) != 1) + 1
        for part in np.split(units, edges):
            start = int(part[0]) * layout.unit_rows
            stop = min(int(part[-1] + 1) * layout.unit_rows, layout.rows)
            self._memory.reserve(start, stop)
            runs = self._subset.place(one_run(start, stop))
            for name in layout.extents:
                self._reader.read(name, runs, self._memory.rows(name, start, stop))
