"""From positions of an epoch to batches: requests that threads read into slots, and that are handed out batch by batch.

A request is a batch, or several where batches are small: reading, slots and copies cost some 100 us each however little they
move, which would be twice the copy itself for 256 thumbnails.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.format.header import Field
from packer.load.batch import as_tensor, batch_type
from packer.load.prefetch import Threads
from packer.load.slots import Bytes, SlotLayout, Slots, allocate
from packer.orders.epoch import Epoch
from packer.orders.runs import Runs
from packer.read.loaded_fields import ROW, decode_ragged, stored
from packer.read.row_reader import RowReader

if TYPE_CHECKING:
    from packer.load.augmenting import Augmenter, Draws
    from packer.load.caches.gpu_cache import GpuCache
    from packer.load.caches.memory_cache import MemoryCache
    from packer.load.device import Device
    from packer.load.processes.workers import Filled, Workers

REQUEST_BYTES = 4 << 20  # batches are read together up to here
REQUEST_BATCHES = 64
SPLIT_BYTES = 4 << 20  # a request larger than this is read by several threads at once
SPLIT_CODED_BYTES = 64 << 10  # and one larger than this is decoded by several


@dataclass(frozen=True)
class ReadRequest:
    """Batches that are read together.

    positions: of all of them; sizes: rows in each. reach: positions of all ranks that come up with it; begins: whether
    it is the first one of an iteration.
    """

    epoch: Epoch
    positions: Runs
    sizes: list[int]
    reach: tuple[int, int]
    begins: bool


class Read(NamedTuple):
    """What was read of a request: rows of ragged fields, and how long it took. kept: of transforms, see Filled."""

    ragged: dict[str, list[Any]]
    read_seconds: float
    transform_seconds: float = 0.0
    kept: int = 0


class Prefetcher:
    """Reads requests of some fields of a pack and makes batches of them. For one process; thread-safe.

    fields: that are handed out, what `workers` makes of the reader's if there are some; ROW may be among them.
    batch_rows: most in a batch.
    prefetch: batches. device: where batches go, None for NumPy arrays. augmenter: of images.
    resident, ongpu: that hold the rows, or will.
    """

    def __init__(
        self,
        reader: RowReader,
        fields: Sequence[Field],
        threads: Threads,
        *,
        batch_rows: int,
        prefetch: int,
        device: Device | None = None,
        augmenter: Augmenter | None = None,
        resident: MemoryCache | None = None,
        ongpu: GpuCache | None = None,
        workers: Workers | None = None,
    ) -> None:
        self.pid, self._closed = os.getpid(), False
        self._handed, fields = tuple(fields), stored(fields)
        self._reader, self._fields, self._threads = reader, fields, threads
        self._asking = Threads(1)  # apart: a busy disk makes one wait until it has taken the requests
        self._device, self._augmenter = device, augmenter
        self._resident, self._ongpu, self._workers = resident, ongpu, workers
        # The pass that augments takes images from where they lie: no batch of them is put together before.
        self._left = ("image",) if augmenter is not None else ()
        self._type = batch_type(tuple(f.name for f in self._handed))
        self._ragged = [f for f in fields if f.ragged]
        self.row_bytes = sum(f.row_bytes for f in fields if not f.ragged)
        self.batches = max(1, min(REQUEST_BYTES // max(batch_rows * self.row_bytes, 1), REQUEST_BATCHES))
        if self._ragged or workers:  # rows of unknown size, or made by slow functions
            self.batches = 1
        # Of small batches a request for each thread, since none of them is read by several.
        self.depth = -(-(max(prefetch, workers.ahead) if workers else prefetch) // self.batches)
        if prefetch and self.batches > 1:
            self.depth = max(self.depth, threads.count)
        self._layout = SlotLayout(fields, self.batches * batch_rows)
        self._split_bytes = SPLIT_CODED_BYTES if any(f.codec for f in reader.fields) else SPLIT_BYTES
        self._slots = Slots(self._layout.nbytes, partial(_allocate, workers, device), spare=self.depth + 2)

    @property
    def resident(self) -> bool:
        """Whether all rows are in memory, or on the device, by now."""
        held = self._resident or self._ongpu
        return held is not None and held.ready

    @property
    def processes(self) -> int:
        """That transform rows; 1 if there are none."""
        return self._workers.processes if self._workers else 1

    def watch(self, kept: int) -> str:
        """Take note of rows that a transform left as they were (Filled.kept); returns a warning to give."""
        return self._workers.watch(kept) if self._workers else ""

    @property
    def copy_seconds(self) -> float:
        """That copies to a GPU took so far."""
        return self._device.copy_seconds if self._device else 0.0

    def start(self, request: ReadRequest) -> PendingBatches:
        """Have a request read: by threads, by processes, or from the device's own memory."""
        self.check_open()
        draws = self._threads.submit(self._draw, request) if self._augmenter else None
        numbers = self._numbers(request) if len(self._handed) > len(self._fields) else {}
        if self._ongpu is not None:
            tensors = self._ongpu.gather(request.epoch.within(request.positions), leave=self._left)
            if tensors is not None:
                self._reader.keep(0)
                tensors |= {name: self._ongpu.upload(rows) for name, rows in numbers.items()}
                sent = self._device.made(tensors) if self._device else tensors
                return PendingBatches(self, request, {}, self._start_ragged(request), draws, sent)
        if self._device is not None and not self._device.on_host and self._resident is not None:
            views = self._views(request)
            if views is not None:
                return PendingBatches(self, request, views | numbers, self._start_ragged(request), draws)
        count, slot = sum(request.sizes), self._slots.lend()
        self._look_ahead(request)
        arrays = self._layout.typed(slot, count) | numbers
        if self._workers is not None:
            rows = request.epoch.rows(request.positions)
            made = self._workers.submit(
                slot, self._layout, 0, rows, seed=request.epoch.seed, epoch=request.epoch.number
            )
            return PendingBatches(self, request, arrays, [made], draws)
        raw = self._layout.raw(slot, count)
        parts = min(self._threads.count, count) if count * self.row_bytes > self._split_bytes else 1
        bounds = [count * k // parts for k in range(parts + 1)]
        reads = [
            self._threads.submit(self._read, request, a, b, {name: rows[a:b] for name, rows in raw.items()})
            for a, b in itertools.pairwise(bounds)
        ]
        return PendingBatches(self, request, arrays, reads, draws)

    def send(self, arrays: dict[str, NDArray[Any]]) -> Any:
        """Begin to move what was read to where batches go."""
        return self._device.send(arrays) if self._device else arrays

    def deliver(self, sent: Any, ragged: dict[str, list[Any]], sizes: list[int]) -> list[Any]:
        """The batches of a request, the last one first. sent: what `send` gave."""
        values: Mapping[str, Any] = self._device.receive(sent) if self._device else sent
        columns: list[Any] = []
        for f in self._handed:
            if f.ragged:
                rows = ragged[f.name]
                columns.append(_cut([as_tensor(row, f) for row in rows] if self._device else rows, sizes))
                continue
            value: Any = values[f.name]
            if f.name in self._left and not hasattr(value, "shape"):  # IndexedRows
                field = value.field.permute(0, 3, 1, 2)
                columns.append([type(value)(field, rows) for rows in value.rows.split(sizes)])
                continue
            if isinstance(value, np.ndarray):  # in the slot
                value = value.copy() if f.name in self._layout.small else value
                if self._device is not None and f.about.get("layout") == "HWC":
                    value = value.transpose(0, 3, 1, 2)
                # Cut by NumPy: torch's own views let go of the GIL, and to get it back from a thread that reads took 70 us.
                columns.append(_as_tensors(_cut(value, sizes)) if self._device else _cut(value, sizes))
                continue
            if f.about.get("layout") == "HWC":
                value = value.permute(0, 3, 1, 2)
            columns.append(value.split(sizes) if len(sizes) > 1 else (value,))
        make: Callable[[tuple[Any, ...]], Any] = self._type._make  # type: ignore[attr-defined]
        batches = [make(each) for each in zip(*columns, strict=True)]
        batches.reverse()
        return batches

    def augmented(self, batch: Any, draws: Draws, first: int) -> Any:
        """A batch with its images augmented. draws: of its request; first: row of the request at which it begins."""
        assert self._augmenter is not None
        return self._augmenter.apply(batch, draws, first)

    def check_open(self) -> None:
        """Raises UsageError for an iterator that outlived its dataset's close(), or that came with a fork."""
        if self._closed or self.pid != os.getpid():
            how = "was closed" if self._closed else "is another process's: it came with a fork"
            raise UsageError(f"{self._reader.pack.path}: the dataset of this iterator {how}. Iterate anew.")

    def close(self) -> None:
        """End the processes, and let go of rows held in memory."""
        self._closed = True
        self._asking.close()
        if self._device is not None and self.pid == os.getpid():
            self._device.finish()
        self._threads.close()
        for held in (self._resident, self._ongpu, self._workers):
            if held is not None and self.pid == os.getpid():
                held.close()

    def _read(self, request: ReadRequest, start: int, stop: int, out: dict[str, Bytes]) -> Read:
        """On a thread: read a part of a request, its fixed fields into the slot."""
        began = time.perf_counter()
        within = request.epoch.within(request.positions.part(start, stop))
        rows = None
        for name, array in out.items():
            if self._resident is not None and self._resident.read(name, within, array):
                continue
            rows = rows or request.epoch.subset.place(within)
            self._reader.read(name, rows, array)
        ragged = self._read_ragged(rows or request.epoch.subset.place(within)) if self._ragged else {}
        return Read(ragged, time.perf_counter() - began)

    def _read_ragged(self, rows: Runs) -> dict[str, list[Any]]:
        numbers = rows.rows().tolist()
        return {
            f.name: decode_ragged(self._reader.pack, f, self._reader.read_ragged(f.name, rows), numbers)
            for f in self._ragged
        }

    def _start_ragged(self, request: ReadRequest) -> list[Future[Read]]:
        """Have only the ragged fields read."""
        return [self._threads.submit(self._read, request, 0, sum(request.sizes), {})] if self._ragged else []

    def _views(self, request: ReadRequest) -> dict[str, NDArray[Any]] | None:
        """A request's rows where they lie in memory, if they lie there as one run."""
        assert self._resident is not None
        within = request.epoch.within(request.positions)
        if len(within.starts) != 1:
            return None
        start = int(within.starts[0])
        views = {}
        for f in self._fields:
            if not f.ragged:
                rows = self._resident.view(f.name, start, start + int(within.lengths[0]))
                if rows is None:
                    return None
                views[f.name] = rows.view(f.dtype).reshape(len(rows), *(f.shape or ()))
        return views

    def _look_ahead(self, request: ReadRequest) -> None:
        """Have the disk asked for what comes after the request, if the order knows that; where nothing is read, keep nothing."""
        if self._resident is not None and self._resident.ready:
            self._reader.keep(0)
        elif (soon := request.epoch.ahead(*request.reach, begin=request.begins)).starts.size:
            for f in self._reader.fields:
                self._asking.submit(self._reader.willneed, f.name, soon)

    def _numbers(self, request: ReadRequest) -> dict[str, NDArray[np.int64]]:
        """The numbers of a request's rows in the pack, in memory that copies to the device read well."""
        rows = request.epoch.rows(request.positions).rows()
        if self._device is not None and not self._device.on_host:
            memory = self._device.allocate(rows.nbytes).view(np.int64)
            memory[:] = rows
            rows = memory
        return {ROW.name: rows}

    def _draw(self, request: ReadRequest) -> Draws:
        """On a thread: the augmentations' parameters for the rows of a request."""
        assert self._augmenter is not None
        counters = request.epoch.counters(request.positions).rows()
        return self._augmenter.draw(counters, request.epoch.seed, request.epoch.number)


class PendingBatches:
    """A request on its way: read by threads, then sent to the device, then received."""

    def __init__(
        self,
        prefetcher: Prefetcher,
        request: ReadRequest,
        arrays: dict[str, NDArray[Any]],
        reads: Sequence[Future[Read] | Future[Filled]],
        draws: Future[Draws] | None,
        sent: Any = None,
    ) -> None:
        self._prefetcher, self.request = prefetcher, request
        self._arrays, self._reads, self._draws = arrays, reads, draws
        self._sent = sent
        self.read_seconds = self.transform_seconds = 0.0
        self.warning = ""

    def cancel(self) -> None:
        """Drop reads that have not begun."""
        for future in self._reads:
            future.cancel()
        if self._draws is not None:
            self._draws.cancel()

    def advance(self) -> None:
        """Send the request to the device if it has been read."""
        if self._sent is None and all(
            f.done() and not f.cancelled() and not f.exception() for f in self._reads
        ):
            self._sent = self._prefetcher.send(self._arrays)

    def result(self) -> tuple[list[Any], Draws | None]:
        """Wait for the batches, the last one first, and what was drawn for them; an error of a thread is raised here."""
        ragged: dict[str, list[Any]] = {}
        try:
            for future in self._reads:
                read = future.result()
                self.read_seconds += read.read_seconds
                self.transform_seconds += read.transform_seconds
                if read.kept:
                    self.warning = self._prefetcher.watch(read.kept)
                for name, rows in read.ragged.items():
                    ragged.setdefault(name, []).extend(rows)
            draws = self._draws.result() if self._draws is not None else None
        except CancelledError:
            self._prefetcher.check_open()
            raise
        self.advance()
        batches = self._prefetcher.deliver(self._sent, ragged, self.request.sizes)
        self._sent, self._arrays = None, {}  # the loop holds this longer than it should hold the batch
        return batches, draws


def _as_tensors(arrays: list[NDArray[Any]]) -> list[Any]:
    import torch

    return [torch.from_numpy(array) for array in arrays]


def _cut(values: Any, sizes: list[int]) -> list[Any]:
    """A list or array in pieces of these sizes."""
    if len(sizes) == 1:
        return [values]
    return [values[stop - size : stop] for size, stop in zip(sizes, itertools.accumulate(sizes), strict=True)]


def _allocate(workers: Workers | None, device: Device | None, nbytes: int) -> Bytes:
    """A slot: shared with the processes that fill it, fit for copies to the device."""
    if workers is not None:
        memory = workers.allocate(nbytes)
        return device.adopt(memory) if device else memory
    return device.allocate(nbytes) if device else allocate(nbytes)
