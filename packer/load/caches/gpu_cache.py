"""Cache of rows on the device: batches are gathered there, and only row numbers cross the bus."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from packer.errors import FormatError
from packer.format.header import Field
from packer.load.batch import IndexedRows, size_of
from packer.load.device import Device
from packer.load.prefetcher import FetchedRows, FileRows, Lend, RowSource
from packer.orders.epochs import ReadRequest
from packer.orders.runs import Runs, Subset, one_run
from packer.read.row_reader import RowReader
from packer.read.row_selection import ROW
from packer.starting import Background
from packer.units import size

if TYPE_CHECKING:
    from packer.load.device import Tensors

STEP_BYTES = 16 << 20  # of each of the two buffers that rows pass through on their way
_WIDE = ((8, torch.int64), (4, torch.int32), (2, torch.int16))

log = logging.getLogger("packer.load")


class GpuCache:
    """A cache of a subset's fixed fields as tensors on a device. Thread-safe.

    A background thread fills it on its own CUDA stream; until then the loop reads rows from the files.
    For one process: it cannot be pickled or used in a forked child.

    fields: fields as they are loaded; ragged ones are not cached. device: "cuda" or "cuda:i"; "cpu" works too, for tests.
    names: names of the cached fields. nbytes: bytes of their rows. failed: why the cache is empty (out of device memory, or an
    unreadable row), else None.
    """

    def __init__(
        self,
        reader: RowReader,
        fields: Sequence[Field],
        subset: Subset,
        device: torch.device | str,
    ) -> None:
        fields = [f for f in fields if not f.ragged]
        self.names = frozenset(f.name for f in fields)
        self.nbytes = size_of(fields, subset.rows)
        # Asked of a tensor, the device has its number: "cuda" is another one in each thread.
        self._content = _GpuContent(fields, subset.rows, torch.empty(0, device=device).device)
        self._background = Background(
            self, "packer-upload", partial(_fill_or_drop, self._content, reader, subset)
        )

    @property
    def filled(self) -> int:
        """Rows 0..filled-1 of the subset are on the device, or will be when what was queued is done."""
        return self._content.filled[0]

    @property
    def ready(self) -> bool:
        """True once all rows are on the device."""
        return self._content.filled[0] == self._content.rows and self._content.failed is None

    @property
    def failed(self) -> str | None:
        """Why the cache is empty, None if it is not."""
        return self._content.failed

    def gather(self, runs: Runs, leave: Collection[str] = ()) -> Tensors | None:
        """Gather rows of all fields into new tensors [sum of lengths, *shape] on the device, for the current stream.

        runs: row numbers within the subset. leave: fields to return as IndexedRows, not gathered.
        Returns None if not all rows are cached. Raises IndexError for rows that do not exist.
        """
        self._background.check()
        content = self._content
        filled, event = content.filled
        stop = int((runs.starts + runs.lengths).max(initial=0))
        if stop > content.rows:
            raise IndexError(f"row {stop - 1} of {content.rows}")
        tensors = content.tensors
        if stop > filled or tensors is None:
            return None
        if event is not None and not event.query():
            torch.cuda.current_stream(content.device).wait_event(event)
        numbers: torch.Tensor | None = None
        if len(runs.starts) == 1:
            start, length = int(runs.starts[0]), int(runs.lengths[0])
            if leave:
                numbers = torch.arange(start, start + length, device=content.device)
            picked = {n: t.narrow(0, start, length).clone() for n, t in tensors.items() if n not in leave}
        else:
            numbers = content.upload(runs.rows())
            picked = {n: t.index_select(0, numbers) for n, t in tensors.items() if n not in leave}
        if content.device.type == "cuda":
            current = torch.cuda.current_stream(content.device)
            for t in tensors.values():
                t.record_stream(current)
        gathered: Tensors = {n: content.typed(n, t) for n, t in picked.items()}
        if numbers is not None:
            gathered |= {n: IndexedRows(content.typed(n, tensors[n]), numbers) for n in tensors if n in leave}
        return gathered

    def upload(self, numbers: NDArray[np.int64]) -> torch.Tensor:
        """Copy numbers, int64 [N], to the device, for the current stream; does not wait."""
        return self._content.upload(numbers)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until filling has ended; return True if all rows are cached. timeout: seconds."""
        self._background.join(timeout)
        self._background.check()
        return self.ready

    def close(self) -> None:
        """Stop filling and free the device's memory; gather returns None from now on."""
        self._background.end()
        self._content.drop("it was closed")


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


class _GpuContent:
    """The cached tensors, [rows, words] in the widest integer type that divides a row, and the number of filled rows."""

    def __init__(self, fields: Sequence[Field], rows: int, device: torch.device) -> None:
        self.rows, self.device = rows, device
        self.row_bytes = {f.name: f.row_bytes for f in fields}
        self.dtypes = {f.name: torch.from_numpy(np.empty(0, f.dtype)).dtype for f in fields}
        self.shapes = {f.name: f.shape or () for f in fields}
        # Rows 0..filled[0]-1 can be used by a stream that has waited for the event; replaced as a whole.
        self.filled: tuple[int, torch.cuda.Event | None] = 0, None
        self.failed: str | None = None
        self.tensors: dict[str, torch.Tensor] | None = None
        self.allocated: torch.cuda.Event | None = None
        try:
            self.tensors = {f.name: _empty(rows, f.row_bytes, device) for f in fields}
        except torch.cuda.OutOfMemoryError:
            self.drop(f"{size(size_of(fields, rows))} do not fit {device}")
            return
        if device.type == "cuda":
            # The memory may have belonged to a tensor that kernels queued on this stream still read.
            self.allocated = torch.cuda.Event()
            self.allocated.record(torch.cuda.current_stream(device))

    def drop(self, why: str) -> None:
        """Free the tensors."""
        self.tensors, self.filled, self.failed = None, (0, None), why

    def typed(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        """View rows of a field, [N, words], in the field's dtype and shape: [N, *shape]."""
        return rows.view(self.dtypes[name]).view(-1, *self.shapes[name])

    def upload(self, numbers: NDArray[np.int64]) -> torch.Tensor:
        """Copy row numbers to the device, for the current stream; does not wait."""
        if self.device.type != "cuda":
            return torch.from_numpy(numbers).to(self.device)
        pinned = torch.empty(len(numbers), dtype=torch.int64, pin_memory=True)  # from torch's cache
        pinned.numpy()[:] = numbers
        return pinned.to(self.device, non_blocking=True)


def _empty(rows: int, row_bytes: int, device: torch.device) -> torch.Tensor:
    width, dtype = next(((w, d) for w, d in _WIDE if row_bytes % w == 0), (1, torch.uint8))
    return torch.empty((rows, row_bytes // width), dtype=dtype, device=device)


def _fill_or_drop(content: _GpuContent, reader: RowReader, subset: Subset, ending: threading.Event) -> None:
    """Fill the cache; drop it if memory runs out or a row cannot be read.

    The loop reports an unreadable row if it ever reads that row from the disk.
    """
    if content.tensors is not None:
        try:
            _fill(content, reader, subset, ending)
        except FormatError as error:
            content.drop(str(error))
    if content.failed is not None:
        log.warning("%s: rows stay off the device (%s)", reader.pack.path, content.failed)


def _fill(content: _GpuContent, reader: RowReader, subset: Subset, ending: threading.Event) -> None:
    """Read rows into two pinned buffers in turn, and copy them to the device."""
    assert content.tensors is not None
    tensors = {name: t.view(torch.uint8) for name, t in content.tensors.items()}
    cuda = content.device.type == "cuda"
    stream: torch.cuda.Stream | None = None
    if cuda:
        torch.cuda.set_device(content.device)  # of this thread
        stream = torch.cuda.Stream(content.device)
        assert content.allocated is not None
        stream.wait_event(content.allocated)
        for t in content.tensors.values():
            t.record_stream(stream)
    count = max(1, min(content.rows, STEP_BYTES // sum(content.row_bytes.values())))
    buffers = [
        {
            name: torch.empty((count, nbytes), dtype=torch.uint8, pin_memory=cuda)
            for name, nbytes in content.row_bytes.items()
        }
        for _ in range(2)
    ]
    events: list[torch.cuda.Event | None] = [None, None]
    for turn, (start, stop) in enumerate(pairwise([*range(0, content.rows, count), content.rows])):
        if ending.is_set():
            return
        buffer, event = buffers[turn % 2], events[turn % 2]
        if event is not None:
            event.synchronize()
        runs = subset.place(one_run(start, stop))
        for name, host in buffer.items():
            reader.read(name, runs, host[: stop - start].numpy())
        with torch.cuda.stream(stream):
            for name, host in buffer.items():
                tensors[name][start:stop].copy_(host[: stop - start], non_blocking=cuda)
            if stream is not None:
                event = events[turn % 2] = torch.cuda.Event()
                event.record(stream)
        content.filled = stop, event
