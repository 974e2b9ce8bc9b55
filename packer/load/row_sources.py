"""Sources of rows: the device's cache, the memory's cache, transform processes, and the pack's files.

Each is asked in turn: `fetch(request, lend)` returns rows, or None where the source cannot serve them. A source that fills
host memory asks for a slot with `lend()`; rows that lie in memory or on the device already need none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import NDArray

from packer.format.header import Field
from packer.load.batch import Bytes, LentSlot
from packer.orders.epochs import Epoch
from packer.orders.runs import Runs
from packer.read.row_reader import RowReader, decode_ragged
from packer.read.row_selection import ROW, stored
from packer.starting import ForkSafeThreads

if TYPE_CHECKING:
    from packer.load.caches.gpu_cache import GpuCache
    from packer.load.caches.memory_cache import MemoryCache
    from packer.load.device import Device
    from packer.load.processes.workers import Filled, Workers

SPLIT_BYTES = 4 << 20  # a request larger than this is read by several threads at once
SPLIT_CODED_BYTES = 64 << 10  # and one larger than this is decoded by several

Lend = Callable[[], LentSlot]


@dataclass
class ReadRequest:
    """Batches that are read together. The order is evaluated once, by the thread that needs the rows first.

    positions: positions of all batches in the epoch. sizes: rows of each batch. reach: (start, stop) of the positions that all
    ranks read at this point. begins: True for the first request of an iteration.
    """

    epoch: Epoch
    positions: Runs
    sizes: list[int]
    reach: tuple[int, int]
    begins: bool
    _within: Runs | None = field(default=None, repr=False)

    @property
    def count(self) -> int:
        """Number of rows of all batches."""
        return sum(self.sizes)

    def within(self, start: int = 0, stop: int | None = None) -> Runs:
        """Return the row numbers of entries start..stop-1 (all by default) within the subset."""
        if stop is not None and (start, stop) != (0, self.count):
            return self.epoch.within(self.positions.part(start, stop))
        if self._within is None:
            self._within = self.epoch.within(self.positions)
        return self._within

    def rows(self, start: int = 0, stop: int | None = None) -> Runs:
        """Return the row numbers of entries start..stop-1 (all by default) within the pack."""
        return self.epoch.subset.place(self.within(start, stop))

    def counters(self) -> Runs:
        """Return the numbers that key the augmentation draws: rows of the pack, or positions where the order repeats rows."""
        return self.positions if self.epoch.order.repeats else self.rows()


class ReadResult(NamedTuple):
    """Result of a read: ragged fields by name, and seconds. kept: number of rows that a transform left unchanged (see Filled)."""

    ragged: dict[str, list[Any]]
    read_seconds: float
    transform_seconds: float = 0.0
    kept: int = 0


ReadFixed = Callable[[ReadRequest, int, int, dict[str, Bytes]], None]


@dataclass
class FetchedRows:
    """Rows of a request: complete once all `reads` are done.

    arrays: fixed fields in host memory. sent: the same as tensors on the device, once their copies have begun.
    """

    arrays: dict[str, NDArray[Any]]
    reads: Sequence[Future[ReadResult] | Future[Filled]] = ()
    sent: Any = None


class RowSource:
    """A source of rows; thread-safe. ready: True once it holds all rows."""

    ready = False

    def fetch(self, request: ReadRequest, lend: Lend) -> FetchedRows | None:
        """Start to fetch the rows of a request; return None if this source does not have them. lend: allocates a slot."""
        raise NotImplementedError

    def close(self) -> None:
        """End its threads and processes, and free its memory."""


class FileRows(RowSource):
    """The pack's files, read (and decoded) by threads.

    fields: fields that are loaded. The other sources read their ragged fields here, too.
    """

    def __init__(self, reader: RowReader, fields: Sequence[Field], threads: ForkSafeThreads) -> None:
        self.reader, self.threads = reader, threads
        self._ragged = [f for f in stored(fields) if f.ragged]
        self._row_bytes = sum(f.row_bytes for f in stored(fields) if not f.ragged)
        self._split_bytes = SPLIT_CODED_BYTES if any(f.codec for f in reader.fields) else SPLIT_BYTES
        self._asking = ForkSafeThreads(1)  # apart: a busy disk makes one wait until it has taken the requests

    def fetch(self, request: ReadRequest, lend: Lend) -> FetchedRows:
        """Start threads that read the rows into a slot."""
        self.look_ahead(request)
        return self.fill(request, lend(), self.read_fixed)

    def look_ahead(self, request: ReadRequest) -> None:
        """Ask the disk for the rows after the request, if the order knows them."""
        if (soon := request.epoch.ahead(*request.reach, begin=request.begins)).starts.size:
            for f in self.reader.fields:
                self._asking.submit(self.reader.willneed, f.name, soon)

    def fill(
        self,
        request: ReadRequest,
        slot: LentSlot,
        read: ReadFixed,
    ) -> FetchedRows:
        """Start threads that fill a slot, a large one in parts. read: writes the fixed fields of entries start..stop-1."""
        count, raw = request.count, slot.raw
        parts = min(self.threads.count, count) if count * self._row_bytes > self._split_bytes else 1
        bounds = [count * k // parts for k in range(parts + 1)]
        reads = [
            self.threads.submit(
                self._read_part, request, a, b, {name: rows[a:b] for name, rows in raw.items()}, read
            )
            for a, b in pairwise(bounds)
        ]
        return FetchedRows(slot.typed, reads)

    def ragged(self, request: ReadRequest) -> list[Future[ReadResult]]:
        """Start to read the ragged fields, if there are any."""
        if not self._ragged:
            return []
        return [self.threads.submit(self._read_part, request, 0, request.count, {}, self.read_fixed)]

    def close(self) -> None:
        """End the threads."""
        self._asking.close()
        self.threads.close()

    def read_fixed(self, request: ReadRequest, start: int, stop: int, out: dict[str, Bytes]) -> None:
        """Read fixed fields of entries start..stop-1."""
        rows = request.rows(start, stop)
        for name, array in out.items():
            self.reader.read(name, rows, array)

    def _read_part(
        self,
        request: ReadRequest,
        start: int,
        stop: int,
        out: dict[str, Bytes],
        read: ReadFixed,
    ) -> ReadResult:
        """Read fixed fields into `out`, ragged ones into lists."""
        began = time.perf_counter()
        if out:
            read(request, start, stop, out)
        ragged: dict[str, list[Any]] = {}
        if self._ragged:
            rows = request.rows(start, stop)
            numbers = rows.rows().tolist()
            ragged = {
                f.name: decode_ragged(self.reader.pack, f, self.reader.read_ragged(f.name, rows), numbers)
                for f in self._ragged
            }
        return ReadResult(ragged, time.perf_counter() - began)


class MemoryRows(RowSource):
    """Rows of a MemoryCache: copied into a slot; or, on their way to a device, views if they are one contiguous run."""

    def __init__(self, cache: MemoryCache, files: FileRows, fields: Sequence[Field], *, copied: bool) -> None:
        """copied: True if batches are copied to a device."""
        self._cache, self._files, self._copied = cache, files, copied
        self._fixed = [f for f in stored(fields) if not f.ragged]

    @property
    def ready(self) -> bool:  # type: ignore[override]
        """True once all rows are in memory."""
        return self._cache.ready

    def fetch(self, request: ReadRequest, lend: Lend) -> FetchedRows:
        """Return views of the cache, or start threads that copy its rows into a slot and read missing rows from the files."""
        if self._copied and (views := self._views(request)) is not None:
            return FetchedRows(views, self._files.ragged(request))
        if self._cache.ready:
            self._files.reader.keep(0)
        else:
            self._files.look_ahead(request)
        return self._files.fill(request, lend(), self._read_fixed)

    def close(self) -> None:
        """Free the cache."""
        self._cache.close()

    def _read_fixed(self, request: ReadRequest, start: int, stop: int, out: dict[str, Bytes]) -> None:
        within = request.within(start, stop)
        absent = {name: array for name, array in out.items() if not self._cache.read(name, within, array)}
        if absent:
            self._files.read_fixed(request, start, stop, absent)

    def _views(self, request: ReadRequest) -> dict[str, NDArray[Any]] | None:
        within = request.within()
        if len(within.starts) != 1:
            return None
        start = int(within.starts[0])
        views = {}
        for f in self._fixed:
            rows = self._cache.view(f.name, start, start + int(within.lengths[0]))
            if rows is None:
                return None
            views[f.name] = rows.view(f.dtype).reshape(len(rows), *(f.shape or ()))
        return views


class GpuRows(RowSource):
    """Rows that a GpuCache holds, gathered on the device."""

    def __init__(
        self,
        cache: GpuCache,
        files: FileRows,
        fields: Sequence[Field],
        device: Device,
        *,
        leave: Collection[str],
    ) -> None:
        """leave: fields whose rows are only indexed, not gathered."""
        self._cache, self._files, self._device, self._leave = cache, files, device, leave
        self._numbered = ROW in fields

    @property
    def ready(self) -> bool:  # type: ignore[override]
        """True once all rows are on the device."""
        return self._cache.ready

    def fetch(self, request: ReadRequest, lend: Lend) -> FetchedRows | None:
        """Queue a gather on the current stream."""
        tensors = self._cache.gather(request.within(), leave=self._leave)
        if tensors is None:
            return None
        self._files.reader.keep(0)
        if self._numbered:
            tensors[ROW.name] = self._cache.upload(request.rows().rows())
        return FetchedRows({}, self._files.ragged(request), self._device.made(tensors))

    def close(self) -> None:
        """Free the memory on the device."""
        self._cache.close()


class TransformedRows(RowSource):
    """Output rows of a Python transform, written into slots by worker processes."""

    def __init__(self, workers: Workers, files: FileRows) -> None:
        self._workers, self._files = workers, files

    def fetch(self, request: ReadRequest, lend: Lend) -> FetchedRows:
        """Start to fill a slot by the worker processes."""
        slot = lend()
        self._files.look_ahead(request)
        epoch = request.epoch
        made = self._workers.submit(
            slot.memory, slot.layout, 0, request.rows(), seed=epoch.seed, epoch=epoch.number
        )
        return FetchedRows(slot.typed, [made])

    def close(self) -> None:
        """End the processes."""
        self._workers.close()
