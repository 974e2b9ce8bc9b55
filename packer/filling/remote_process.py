"""The process that fills a cache with the stretches of a remote pack, for all processes of a node that load from it."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import BusyError, PackerError, SpaceError
from packer.filling.cache_folder import CacheBudget, CacheFolder, cost, path_of
from packer.filling.filling_messages import (
    SOCKET,
    STATES,
    Link,
    connect,
    let_go_of_output,
    listen,
    serve,
)
from packer.filling.filling_server import FillingServer
from packer.filling.unit_states import MISSING, UnitStates
from packer.format.file_io import FULL, open_sparse, pread_path, pwrite_all, remove
from packer.format.remote_pack import RemotePack, open_remote
from packer.format.remote_rows import PASSING
from packer.format.stretch_window import CONNECTIONS
from packer.format.stretches import StretchMap
from packer.remote import access
from packer.remote.object_store import replaced

KEPT = np.uint64(1)
_SPARE = 4  # stretches handed to the threads besides those being fetched; more would keep those that are waited for waiting
_OVERHEAD = 64 << 10  # bytes of small files


def main(fd: int) -> None:
    """Fill the cache that the client at a socket's descriptor names."""
    serve(fd, _fill)


def _fill(link: Link[Any, Any], job: Mapping[str, Any]) -> None:
    access.serve_here()
    other = connect(job["folder"])
    if other is not None:
        other.close()
        raise BusyError(f"{job['folder']}: is being filled by another process.")
    pack = open_remote(job["out"])
    if pack.seal.hex() != job["seal"]:
        raise replaced(pack.path)
    folder = CacheFolder(job["folder"], pack)
    stretches = StretchMap(pack)
    states = UnitStates.open(os.path.join(folder.path, STATES), stretches.count, writable=True)
    with StretchSource(pack, folder, stretches, states, job["cache_size"]) as source:
        ready = {"units": stretches.count, "nonce": folder.nonce, "pid": os.getpid()}
        remove(os.path.join(folder.path, SOCKET))
        with listen(folder.path) as listener:
            server = FillingServer(
                states,
                source,
                lambda job: {"ready": ready},
                background=False,
                lasting=True,
                tasks=CONNECTIONS + _SPARE,
                most_units=1,
            )
            server.adopt(link, job)
            let_go_of_output()
            server.run(listener)


class _FullError(SpaceError):
    """The disk is full, which the rows can do without."""


class StretchSource:
    """Fetches stretches into the files of a cache. See UnitSource."""

    workers = CONNECTIONS

    def __init__(
        self, pack: RemotePack, folder: CacheFolder, stretches: StretchMap, states: UnitStates, most: int
    ) -> None:
        self._pack, self._folder, self._stretches, self._states = pack, folder.path, stretches, states
        # Opened for each stretch: there may be more of them than a process may have open.
        self._paths = {file: path_of(folder.path, file) for file in pack.files}
        self._suspects = UnitStates.open(
            os.path.join(folder.path, "suspects"), stretches.count, writable=True
        )
        least = _OVERHEAD + 16 * stretches.count
        there = folder.files
        taken = sum(stat.st_blocks * 512 for stat in there.values())
        values, suspects = states.values, self._suspects.values
        values[values == PASSING] = MISSING
        # A file that was lost would be made anew, and its stretches read as zeros.
        lost = not folder.fresh and any(
            file not in there and (values[first:last].any() or suspects[first:last].any())
            for file, (first, last) in ((file, stretches.of_file(file)) for file in pack.files)
        )
        if folder.fresh or lost or taken + least > most:
            taken = 0
            for states_of in (values, suspects):
                states_of[states_of != MISSING] = (
                    MISSING  # those alone: a page that is written to takes memory
                )
            for file in there:
                os.truncate(self._paths[file], 0)
                os.truncate(self._paths[file], pack.files[file].info.size)
        if folder.boot_changed():  # the system may have gone down between a state and its bytes
            suspects |= values
            values[:] = MISSING
            folder.note_boot()
        self._budget = CacheBudget(folder.path, most, taken, least)
        self._pool = ThreadPoolExecutor(CONNECTIONS, "packer-fetch")
        self._writing = (
            threading.Lock()
        )  # threads that write to one file at a time would wait in a loop, in the system

    def __enter__(self) -> StretchSource:
        return self

    def __exit__(self, *exc: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def start(self, units: NDArray[np.int64]) -> Future[Any]:
        """See UnitSource."""
        return _all([self._pool.submit(self._make, unit) for unit in units.tolist()])

    def arrived(self, units: NDArray[np.int64], result: Any) -> None:
        """See UnitSource."""
        self._states.mark(units, np.array(result, np.uint64))
        self._suspects.values[units] = 0

    def open(self) -> bool:
        """See UnitSource."""
        return False

    def broken(self, error: BaseException) -> PackerError:
        """See UnitSource."""
        return PackerError(f"{self._pack.path}: {type(error).__name__}: {error}.")

    def _make(self, number: int) -> int:
        """Bring a stretch into its file; return its state."""
        stretches = self._stretches
        if blobs := stretches.needs_offsets(number):
            stretches.find_blobs(blobs, self._offsets)
        begin, end = stretches.place(number)
        file = stretches.file(number)
        if self._suspects.values[number]:
            data = memoryview(pread_path(self._paths[file], end - begin, begin))
            if len(data) == end - begin and not stretches.damaged(number, data):
                return int(KEPT)
        if not self._budget.take(cost(begin, end)):
            return int(PASSING)

        def write(at: int, piece: memoryview) -> None:
            try:
                with self._writing:
                    pwrite_all(fd, piece, begin + at)
            except OSError as error:
                raise self._refused(error) from None

        try:
            fd = self._opened(file)
        except _FullError:
            self._budget.end()
            return int(PASSING)
        try:
            stretches.fetch(number, write)
        except _FullError:
            self._budget.end()
            return int(PASSING)
        finally:
            os.close(fd)
        return int(KEPT)

    def _opened(self, file: str) -> int:
        """Return a descriptor of a file of the cache, which is made if need be. Raises SpaceError."""
        try:
            return open_sparse(self._paths[file], self._pack.files[file].info.size)
        except OSError as error:
            raise self._refused(error) from None

    def _refused(self, error: OSError) -> SpaceError:
        kind = _FullError if error.errno in FULL else SpaceError
        return kind(
            f"{self._folder}: cannot be written ({error.strerror}). Pass another cache=, with room in it."
        )

    def _offsets(self, number: int) -> memoryview:
        """Return a stretch of offsets, which its clients have asked for before."""
        if self._states.values[number] == KEPT:
            begin, end = self._stretches.place(number)
            return memoryview(pread_path(self._paths[self._stretches.file(number)], end - begin, begin))
        return self._stretches.fetch(number)


def _all(futures: list[Future[int]]) -> Future[Any]:
    """Return a future of the results of several."""
    together: Future[Any] = Future()
    left, lock = len(futures), threading.Lock()

    def one(_: Future[int]) -> None:
        nonlocal left
        with lock:
            left -= 1
            last = not left
        if last:
            try:
                together.set_result([future.result() for future in futures])
            except BaseException as error:
                together.set_exception(error)

    for future in futures:
        future.add_done_callback(one)
    return together
