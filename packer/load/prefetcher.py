"""From read requests to batches: rows are fetched ahead of the loop, sent to the device, and handed out batch by batch.

Rows come from the first source that has them: a cache (caches/), transform processes (processes/workers.py), or the pack's files.

A request is a batch, or several where batches are small: reading, slots and copies cost some 100 us each however little they
move, which would be twice the copy itself for 256 thumbnails. The loop itself asks for the batches to come, so there is no
producer to stop: when the loop ends, for whatever reason, nothing more is asked for, and what was asked for ends within one read.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.format.header import Field
from packer.load.batch import (
    Batched,
    Bytes,
    IndexedRows,
    LentSlot,
    SlotLayout,
    Slots,
    allocate,
    as_tensor,
    batch_type,
)
from packer.load.stats import Stats
from packer.orders.epochs import ReadRequest
from packer.read.array_store import PackStore
from packer.read.row_selection import ROW, stored
from packer.starting import ForkSafeThreads, interrupt_later

if TYPE_CHECKING:
    from packer.load.augmenting import Augmenter, Draws
    from packer.load.device import Device
    from packer.load.processes.workers import Workers

REQUEST_BYTES = 4 << 20  # batches are read together up to here
REQUEST_BATCHES = 64
SPLIT_BYTES = 4 << 20  # a request larger than this is read by several threads at once
SPLIT_CODED_BYTES = 64 << 10  # and one larger than this is decoded by several

_MOST_AHEAD = 1 << 18  # rows that are placed before they are read

Lend = Callable[[], LentSlot]


class ReadResult(NamedTuple):
    """Result of a read: rows of ragged fields by name, and the seconds it took, of all threads or processes together.

    draws: what was drawn for its images, where they were augmented as they were read.
    """

    ragged: dict[str, list[Any]]
    read_seconds: float
    transform_seconds: float = 0.0
    draws: Draws | None = None


ReadFixed = Callable[[ReadRequest, int, int, dict[str, Bytes]], None]


@dataclass
class FetchedRows:
    """Rows of a request: complete once all `reads` are done.

    arrays: fixed fields in host memory. sent: the same as tensors on the device, once their copies have begun.
    """

    arrays: dict[str, NDArray[Any]]
    reads: Sequence[Future[ReadResult]] = ()
    sent: Any = None


class RowSource:
    """A source of rows; thread-safe. ready: True once it holds all rows."""

    ready = False

    def fetch(self, request: ReadRequest, lend: Lend) -> FetchedRows | None:
        """Start to fetch the rows of a request; return None if this source does not have them. lend: allocates a slot."""
        raise NotImplementedError

    def drop(self) -> None:
        """Begin no more reads."""

    def close(self) -> None:
        """End its threads and processes, and free its memory."""


class FileRows(RowSource):
    """The pack's files, read (and decoded) by threads.

    fields: fields that are loaded. The other sources read their ragged fields here, too.
    draws: True if a read draws for its images.
    """

    draws = False

    def __init__(self, reader: PackStore, fields: Sequence[Field], threads: ForkSafeThreads) -> None:
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
        """Ask the disk, or whoever makes or fetches them, for rows that are read after the request."""
        for rows in request.upcoming():
            self._asking.submit(self.reader.prefetch, rows)

    @property
    def ahead_rows(self) -> int | None:
        """Rows to be asked for before they are read, where they have yet to come; None where all are there."""
        pack = self.reader.pack
        if pack.ahead_bytes is None:
            return None
        return min(pack.ahead_bytes * pack.rows // max(1, pack.nbytes), _MOST_AHEAD)

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

    def drop(self) -> None:
        """See RowSource."""
        self._asking.drop()
        self.threads.drop()

    def close(self) -> None:
        """End the threads."""
        self._asking.close()
        self.threads.close()

    def read_fixed(self, request: ReadRequest, start: int, stop: int, out: dict[str, Bytes]) -> None:
        """Read fixed fields of entries start..stop-1."""
        self.reader.copy(request.within(start, stop), out)

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
        ragged = {
            f.name: list(self.reader.decoded(f.name, request.within(start, stop))) for f in self._ragged
        }
        return ReadResult(ragged, time.perf_counter() - began)


@dataclass
class PendingBatches:
    """A request under way: its rows are fetched, then copied to `device` (None: no copy)."""

    request: ReadRequest
    rows: FetchedRows
    draws: Future[Draws] | None
    device: Device | None

    def cancel(self) -> None:
        """Drop reads that have not begun."""
        for future in self.rows.reads:
            future.cancel()
        if self.draws is not None:
            self.draws.cancel()

    def advance(self) -> None:
        """Start the copies to the device if all rows have been read, without waiting."""
        rows = self.rows
        if rows.sent is None and all(
            f.done() and not f.cancelled() and not f.exception() for f in rows.reads
        ):
            rows.sent = self.device.send(rows.arrays) if self.device else rows.arrays


class Prefetcher:
    """Batches of some fields of a pack, fetched ahead of the loop. For one process; thread-safe.

    files: source that reads the pack's files. fields: fields of the batches, possibly with ROW. batch_rows: most rows in a batch.
    prefetch: number of batches to read ahead. device: device of the batches, None for NumPy arrays. augmenter: augments the images.
    source: asked before the files. workers: processes that run the transform, if they are the source.
    """

    def __init__(
        self,
        files: FileRows,
        fields: Sequence[Field],
        *,
        batch_rows: int,
        prefetch: int,
        device: Device | None = None,
        augmenter: Augmenter | None = None,
        source: RowSource | None = None,
        workers: Workers | None = None,
    ) -> None:
        self.pid, self._closed = os.getpid(), False
        self._fields, self._numbered = tuple(fields), ROW in fields
        self._path, self._files = files.reader.pack.path, files
        self._threads, self._device, self._augmenter, self._workers = (
            files.threads,
            device,
            augmenter,
            workers,
        )
        self._sources: list[RowSource] = [files] if source is None else [source, files]
        self._type = batch_type(tuple(f.name for f in fields), Batched)
        fixed = [f for f in stored(fields) if not f.ragged]
        self.row_bytes = sum(f.row_bytes for f in fixed)
        self.batches = max(1, min(REQUEST_BYTES // max(batch_rows * self.row_bytes, 1), REQUEST_BATCHES))
        if len(fixed) < len(stored(fields)) or workers:  # rows of unknown size, or made by slow functions
            self.batches = 1
        # Of small batches a request for each thread, since none of them is read by several.
        self._depth = -(-(max(prefetch, workers.ahead) if workers else prefetch) // self.batches)
        if prefetch and self.batches > 1:
            self._depth = max(self._depth, self._threads.count)
        self._layout = SlotLayout(fixed, self.batches * batch_rows)
        self._slots = Slots(self._layout.nbytes, partial(_allocate, workers, device), spare=self._depth + 2)

    @property
    def ahead_rows(self) -> int | None:
        """See FileRows."""
        return self._files.ahead_rows

    @property
    def resident(self) -> bool:
        """True once all rows are in memory, or on the device."""
        return any(source.ready for source in self._sources)

    def batches_of(self, requests: Iterable[ReadRequest], stats: Stats) -> Iterator[Any]:
        """Yield the batches of the requests in order; add the time of each stage to `stats`."""
        clock, row_bytes = time.perf_counter, self.row_bytes
        began, copied = clock(), self._copy_seconds
        stats.processes = self._workers.processes if self._workers else 1
        for pending in ahead((partial(self._start, request) for request in requests), self._depth):
            asked = clock()
            batches, draws = self._receive(pending, stats)
            sizes, first = pending.request.sizes, 0
            stats.wait_seconds += clock() - asked
            stats.copy_seconds = self._copy_seconds - copied
            del pending
            for size in sizes:
                batch = batches.pop()
                if draws is not None and self._augmenter is not None:
                    asked = clock()
                    batch = self._augmenter.apply(batch, draws, first)
                    stats.augment_seconds += clock() - asked
                first += size
                stats.batches += 1
                stats.rows += size
                stats.nbytes += size * row_bytes
                returned = clock()
                stats.seconds = returned - began
                yield batch
                del batch  # held here, the slot would come back one batch later
                self._check_open()
                asked = clock()
                stats.step_seconds += asked - returned
                stats.seconds = asked - began

    def batch_of(self, request: ReadRequest) -> Any:
        """Fetch a request of one batch now; return the batch."""
        batches, draws = self._receive(self._start(request), Stats())
        if draws is None or self._augmenter is None:
            return batches[0]
        return self._augmenter.apply(batches[0], draws, 0)

    def drop(self) -> None:
        """Begin no more reads; those under way may be waiting for rows, which others then stop."""
        self._closed = True
        if self.pid == os.getpid():
            for source in self._sources:
                source.drop()

    def close(self) -> None:
        """End threads and processes, and free the caches."""
        self._closed = True
        if self.pid == os.getpid():
            if self._device is not None:
                self._device.finish()
            for source in reversed(self._sources):  # the files' threads first, which read from the others
                source.close()

    @property
    def _copy_seconds(self) -> float:
        return self._device.copy_seconds if self._device else 0.0

    def _start(self, request: ReadRequest) -> PendingBatches:
        """Start to fetch the rows of a request, from the first source that has them, and to draw its augmentation parameters."""
        self._check_open()
        draws = None
        if self._augmenter and not self._files.draws:
            draws = self._threads.submit(self._augmenter.draw, request)

        def lend() -> LentSlot:
            return LentSlot(self._slots.lend(), self._layout, request.count)

        rows = next(filter(None, (source.fetch(request, lend) for source in self._sources)))
        if rows.sent is None and self._numbered:
            rows.arrays |= self._numbers(request)
        if self._closed:  # by another thread meanwhile: what was started after that ends, too
            self.close()
            self._check_open()
        return PendingBatches(request, rows, draws, self._device)

    def _numbers(self, request: ReadRequest) -> dict[str, NDArray[np.int64]]:
        """Return the row numbers of a request, int64 [N], in pinned memory if they are copied to a GPU."""
        rows = request.rows().rows()
        if self._device is not None and not self._device.on_host:
            memory = self._device.allocate(rows.nbytes).view(np.int64)
            memory[:] = rows
            rows = memory
        return {ROW.name: rows}

    def _receive(self, pending: PendingBatches, stats: Stats) -> tuple[list[Any], Draws | None]:
        """Wait for a request; return its batches, the last one first, and their draws. Re-raises the error of a thread."""
        ragged: dict[str, list[Any]] = {}
        drawn: list[Draws] = []
        reads, pending.rows.reads = deque(pending.rows.reads), ()
        try:
            while reads:
                read = reads.popleft().result()
                stats.read_seconds += read.read_seconds
                stats.transform_seconds += read.transform_seconds
                for name, rows in read.ragged.items():
                    ragged.setdefault(name, []).extend(rows)
                if read.draws is not None:
                    drawn.append(read.draws)
            draws = pending.draws.result() if pending.draws is not None else None
            if drawn and self._augmenter is not None:
                draws = self._augmenter.joined(drawn)
        except BaseException as error:
            # Its traceback refers to this frame: the slot would stay held until the garbage collector runs.
            pending.rows, pending.draws = FetchedRows({}), None
            if isinstance(error, CancelledError):
                self._check_open()
            raise
        pending.advance()
        sent, sizes = pending.rows.sent, pending.request.sizes
        pending.rows = FetchedRows({})  # the loop holds the request longer than it should hold the batch
        values = self._device.receive(sent) if self._device else sent
        columns = [
            _cut([as_tensor(row, f) for row in ragged[f.name]] if self._device else ragged[f.name], sizes)
            if f.ragged and f.name not in values
            else self._column(f, values[f.name], sizes)
            for f in self._fields
        ]
        make: Callable[[tuple[Any, ...]], Any] = self._type._make  # type: ignore[attr-defined]
        batches = [make(each) for each in zip(*columns, strict=True)]
        batches.reverse()
        return batches, draws

    def _column(self, field: Field, value: Any, sizes: list[int]) -> Sequence[Any]:
        """Split a field into batches: views of `value`, but copies of fields that are small (SlotLayout.small)."""
        channels_last = field.about.get("layout") == "HWC"
        if isinstance(value, np.ndarray):
            value = value.copy() if field.name in self._layout.small else value
            if self._device is None:
                return _cut(value, sizes)
            if channels_last:
                value = value.transpose(0, 3, 1, 2)
            # Cut by NumPy: torch's own views let go of the GIL, and to get it back from a thread that reads took 70 us.
            return _as_tensors(_cut(value, sizes))
        if isinstance(value, IndexedRows):
            images = value.field.permute(0, 3, 1, 2)
            return [IndexedRows(images, rows) for rows in value.rows.split(sizes)]
        if channels_last:
            value = value.permute(0, 3, 1, 2)
        split: Sequence[Any] = value.split(sizes) if len(sizes) > 1 else (value,)
        return split

    def _check_open(self) -> None:
        """Raise UsageError for an iterator that outlived its dataset's close(), or that came with a fork."""
        if self._closed or self.pid != os.getpid():
            how = "was closed" if self._closed else "is another process's: it came with a fork"
            raise UsageError(f"{self._path}: the dataset of this iterator {how}. Iterate anew.")


def ahead(starts: Iterable[Callable[[], PendingBatches]], count: int) -> Iterator[PendingBatches]:
    """Start each request, `count` of them ahead of the one handed out; in order.

    What was started and never handed out is cancelled when the iterator is closed, collected or fails.
    """
    coming = iter(starts)
    pending: deque[PendingBatches] = deque()
    try:
        pending.extend(start() for start in itertools.islice(coming, count + 1))
        while pending:
            current = pending.popleft()
            yield current
            del current
            pending.extend(start() for start in itertools.islice(coming, 1))
            for work in pending:
                work.advance()
    finally:
        try:
            for work in pending:
                work.cancel()
        except KeyboardInterrupt:  # after a break this is the iterator's destructor, where Python drops it
            interrupt_later()


def _as_tensors(arrays: list[NDArray[Any]]) -> list[Any]:
    import torch

    return [torch.from_numpy(array) for array in arrays]


def _cut(values: Any, sizes: list[int]) -> list[Any]:
    """Split a list or array into pieces of these sizes."""
    if len(sizes) == 1:
        return [values]
    return [values[stop - size : stop] for size, stop in zip(sizes, itertools.accumulate(sizes), strict=True)]


def _allocate(workers: Workers | None, device: Device | None, nbytes: int) -> Bytes:
    """Allocate a slot: shared with the worker processes if there are some, pinned if it is copied to a GPU."""
    if workers is not None:
        memory = workers.allocate(nbytes)
        return device.adopt(memory) if device else memory
    return device.allocate(nbytes) if device else allocate(nbytes)
