"""BatchEngine turns read requests into batches: reads ahead of the loop, sends, augments and counts.

A request is a batch, or several if batches are small: reading, slots and copies have a fixed cost of some 100
us, which would be twice the copy itself for 256 thumbnails. The loop itself requests the coming batches, so
no producer has to be stopped: when the loop ends, for whatever reason, nothing more is requested, and pending
requests end within one read.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from packer.errors import UsageError
from packer.format.fields import Field
from packer.load.batch import (
    Batched,
    Filled,
    Host,
    LentSlot,
    SlotLayout,
    Slots,
    as_tensor,
    batch_type,
    size_of,
)
from packer.load.fillers import RowFiller
from packer.load.row_windows import group_frames
from packer.load.stats import Stats
from packer.orders.epochs import ReadRequest
from packer.orders.windows import WindowOrder
from packer.read.row_selection import stored
from packer.starting import ForkSafeThreads, interrupt_later

if TYPE_CHECKING:
    from packer.load.augmenting import Augmenter, Draws

REQUEST_BYTES = 4 << 20  # batches are read together up to this size
REQUEST_BATCHES = 64


@dataclass
class PendingBatches:
    """A pending request. reads: tasks that fill its slot.

    sent: handle of the copy to the device, once all are read.
    """

    request: ReadRequest
    device: Host
    draws: Future[Draws] | None = None
    slot: LentSlot | None = None
    reads: Sequence[Future[Filled]] = ()
    sent: Any = None

    def cancel(self) -> None:
        """Cancel reads that have not begun."""
        for future in self.reads:
            future.cancel()
        if self.draws is not None:
            self.draws.cancel()

    def advance(self) -> None:
        """Start the copy to the device if all rows have been read; do not wait."""
        if self.slot is not None and all(
            f.done() and not f.cancelled() and not f.exception() for f in self.reads
        ):
            self.sent, self.slot = self.device.send(self.slot), None


class BatchEngine:
    """A producer of batches that reads ahead of the loop. For one process; thread-safe.

    filler: fills slots with the rows of its store. augmenter: augments the images. batch_rows: most rows in a
    batch. prefetch: number of batches to read ahead.
    """

    pid: int

    def __init__(
        self, filler: RowFiller, augmenter: Augmenter | None = None, *, batch_rows: int, prefetch: int
    ) -> None:
        self.pid, self._closed = os.getpid(), False
        self._filler, self._augmenter = filler, augmenter
        self.store, self._device, self._fields = filler.store, filler.device, filler.fields
        # A separate thread for prefetch hints: they block while the disk is busy.
        self._looking = ForkSafeThreads(1)
        fields = stored(self._fields)
        lists, self._lists = all(f.ragged for f in self._fields), any(f.ragged for f in self._fields)
        self._type = batch_type(tuple(f.name for f in self._fields), Batched, lists)
        self.batches: int = max(1, min(REQUEST_BYTES // max(size_of(fields, batch_rows), 1), REQUEST_BATCHES))
        if filler.slow or any(f.ragged for f in fields):  # slow functions, or rows of unknown size
            self.batches = 1
        # For small batches a request per thread, since no request is read by several.
        self._depth = -(-max(prefetch, filler.ahead) // self.batches)
        if prefetch and self.batches > 1:
            self._depth = max(self._depth, filler.threads.count)
        self._row_bytes = size_of(fields, 1)
        self._layout = SlotLayout(self._fields, self.batches * batch_rows)
        self._slots = Slots(self._layout.nbytes, filler.allocate, spare=self._depth + 2)
        self.store.open(self)

    def batches_of(self, requests: Iterable[ReadRequest], stats: Stats) -> Iterator[Any]:
        """Yield the batches of the requests in order; add the time of each stage to `stats`."""
        clock, row_bytes = time.perf_counter, self._row_bytes
        began, copied = clock(), self._device.copy_seconds
        stats.processes = self._filler.processes
        for pending in ahead(map(self._start, requests), self._depth):
            asked = clock()
            stream = self._device.current_stream()
            batches, draws = self._receive(pending, stats)
            request, sizes, first = pending.request, pending.request.sizes, 0
            stats.wait_seconds += clock() - asked
            stats.copy_seconds = self._device.copy_seconds - copied
            del pending
            for size in sizes:
                batch = batches.pop()
                if (current := self._device.current_stream()) != stream:
                    self._device.follow(batch, stream)
                    stream = current
                    for drawn in draws or ():
                        drawn.device = None  # the copy there is for the other stream
                if draws is not None and self._augmenter is not None:
                    asked = clock()
                    batch = self._augmenter.apply(batch, draws, first)
                    stats.augment_seconds += clock() - asked
                if isinstance(request.order, WindowOrder):
                    batch = group_frames(batch, request.order, request.windows(first, first + size))
                if self._lists:
                    batch = self._moved(batch)
                first += size
                stats.batches += 1
                stats.rows += size
                stats.nbytes += size * row_bytes
                returned = clock()
                stats.seconds = returned - began
                yield batch
                del batch  # held here, its slot would be free one batch later
                self._check_open()
                asked = clock()
                stats.step_seconds += asked - returned
                stats.seconds = asked - began

    def close(self, wait: bool = True) -> None:
        """End threads and processes, and free the memory that caches rows.

        wait: False only begins no more reads. Pending ones may wait for rows; the caller then stops their
            provider.
        """
        self._closed = True
        if self.pid == os.getpid():
            try:
                if wait:
                    self._device.finish()
            finally:  # after an error of CUDA, all that waits for the device raises it
                self._looking.close(wait)
                self._filler.close(wait)

    def _start(self, request: ReadRequest) -> PendingBatches:
        """Start to fill a slot with the rows of a request, and to draw their augmentation parameters."""
        self._check_open()
        store, filler = self.store, self._filler
        pending = PendingBatches(request, self._device)
        if self._augmenter and not filler.draws:
            pending.draws = filler.threads.submit(self._augmenter.draw, request)
        if store.gathers:
            pending.reads = filler.ragged(request)
        else:
            if len((rows := request.upcoming()).starts):
                self._looking.submit(store.prefetch, rows)
            pending.slot = LentSlot(self._slots, self._layout, request.count)
            pending.reads = filler.tasks(request, pending.slot)
        if self._closed:  # closed by another thread meanwhile: end the reads started since
            self.close()
            self._check_open()
        return pending

    def _receive(self, pending: PendingBatches, stats: Stats) -> tuple[list[Any], Draws | None]:
        """Wait for a request; return its batches, last first, and their draws.

        Re-raises the error of a thread.
        """
        ragged: dict[str, list[Any]] = {}
        drawn: list[Draws] = []
        reads, pending.reads = deque(pending.reads), ()
        try:
            while reads:
                filled = reads.popleft().result()
                stats.read_seconds += filled.read_seconds
                stats.transform_seconds += filled.transform_seconds
                for name, rows in filled.ragged.items():
                    ragged.setdefault(name, []).extend(rows)
                if filled.draws is not None:
                    drawn.append(filled.draws)
            draws = pending.draws.result() if pending.draws is not None else None
            if drawn and self._augmenter is not None:
                draws = self._augmenter.concatenate(drawn)
        except BaseException as error:
            # Its traceback refers to this frame: the slot would stay held until the garbage collector runs.
            pending.slot = pending.draws = None
            if isinstance(error, CancelledError):
                self._check_open()
            raise
        sizes = pending.request.sizes
        values: Mapping[str, Any]
        if self.store.gathers:
            values = self.store.tensors(pending.request.within())
        else:
            pending.advance()
            values = self._device.receive(pending.sent)
            pending.sent = None  # the loop keeps the request longer than it should keep the batch
        columns = [
            self._column(f, values[f.name] if f.name in values else ragged[f.name], sizes)
            for f in self._fields
        ]
        make: Callable[[tuple[Any, ...]], Any] = self._type._make  # type: ignore[attr-defined]
        batches = [make(each) for each in zip(*columns, strict=True)]
        batches.reverse()
        return batches, draws

    def _column(self, field: Field, value: Any, sizes: list[int]) -> Sequence[Any]:
        """Split a field into batches: views of `value`."""
        if isinstance(value, list):
            return _cut([as_tensor(row, field) for row in value] if self._device.tensors else value, sizes)
        channels_last = field.about.get("layout") == "HWC"
        if isinstance(value, np.ndarray):
            if not self._device.tensors:
                return _cut(value, sizes)
            if channels_last:
                value = value.transpose(0, 3, 1, 2)
            import torch

            # NumPy splits it: torch's views release the GIL, and taking it back from a reader took 70 us.
            return [torch.from_numpy(array) for array in _cut(value, sizes)]
        if channels_last:
            value = value.permute(0, 3, 1, 2)
        split: Sequence[Any] = value.split(sizes) if len(sizes) > 1 else (value,)
        return split

    def _moved(self, batch: Any) -> Any:
        """Return a batch with its lists on the device, after augmentation: boxes on a GPU would make it wait."""
        return batch._make(self._device.move(v) if isinstance(v, list) else v for v in batch)

    def _check_open(self) -> None:
        """Raise UsageError if the dataset was closed or this process is a fork of the iterator's."""
        if self._closed or self.pid != os.getpid():
            how = "was closed" if self._closed else "belongs to another process: it came with a fork"
            raise UsageError(
                f"{self._filler.files.pack.path}: the dataset of this iterator {how}. Call iter() again."
            )


def ahead(works: Iterable[PendingBatches], count: int) -> Iterator[PendingBatches]:
    """Start works in order, `count` of them ahead of the one that is yielded.

    Works that were started but not yielded are cancelled when the iterator is closed, collected or fails.
    """
    coming = iter(works)
    pending: deque[PendingBatches] = deque()
    try:
        pending.extend(itertools.islice(coming, count + 1))
        while pending:
            yield pending.popleft()
            pending.extend(itertools.islice(coming, 1))
            for work in pending:
                work.advance()
    finally:
        try:
            for work in pending:
                work.cancel()
        except KeyboardInterrupt:  # after a break, in the iterator's destructor, Python would drop it
            interrupt_later()


def _cut(values: Any, sizes: list[int]) -> list[Any]:
    """Split a list or array into pieces of these sizes."""
    if len(sizes) == 1:
        return [values]
    return [values[stop - size : stop] for size, stop in zip(sizes, itertools.accumulate(sizes), strict=True)]
