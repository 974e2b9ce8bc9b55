"""Cache of rows on the device: batches are gathered there, and only row numbers cross the bus."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from packer.errors import FormatError
from packer.format.header import Field
from packer.load.batch import IndexedRows, size_of
from packer.orders.runs import Runs, one_run
from packer.read.array_store import ArrayStore, PackStore
from packer.read.gather import Bytes
from packer.read.row_selection import ROW
from packer.starting import Background
from packer.units import size

if TYPE_CHECKING:
    from packer.load.device import Tensors

STEP_BYTES = 16 << 20  # of each of the two buffers that rows pass through on their way
_WIDE = ((8, torch.int64), (4, torch.int32), (2, torch.int16))

log = logging.getLogger("packer.load")


class GpuStore(ArrayStore):
    """Rows of another store as tensors on a device, gathered there; until all are there, and for host memory, the store below has them.

    A background thread fills them in on its own CUDA stream. For one process: it cannot be pickled or used in a forked child.
    """

    gathers = True

    def __init__(
        self,
        below: PackStore,
        fields: Sequence[Field],
        where: torch.device | str,
        leave: Collection[str] = (),
    ) -> None:
        """fields: of the batches, perhaps with ROW. where: "cuda" or "cuda:i"; "cpu" works too, for tests.

        leave: fields whose rows are only indexed, not gathered.
        """
        super().__init__(below.pack, below.fields, below.rows)
        self._below, self._leave, self._numbered = below, leave, ROW in fields
        # Asked of a tensor, the device has its number: "cuda" is another one in each thread.
        device = torch.empty(0, device=where).device
        kept = [f.loaded for f in below.fields if not f.loaded.ragged]
        self.content = GpuContent(kept, below.rows, device)
        self._background = Background(self, "packer-upload", partial(_fill_or_drop, self.content, below))

    @property
    def ready(self) -> bool:  # type: ignore[override]
        """See ArrayStore."""
        return self.content.filled[0] == self.content.rows and self.content.failed is None

    def copy(self, rows: Runs, out: Mapping[str, Bytes]) -> None:
        """See ArrayStore."""
        self._below.copy(rows, out)

    def prefetch(self, rows: Runs) -> None:
        """See ArrayStore."""
        if not self.ready:
            self._below.prefetch(rows)

    def tensors(self, rows: Runs) -> Tensors | None:
        """See ArrayStore."""
        tensors = self.content.gather(rows, self._leave)
        if tensors is not None and self._numbered:
            tensors[ROW.name] = self.content.upload(self._below.place(rows).rows())
        return tensors

    def check(self) -> None:
        """See ArrayStore."""
        self._background.check()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until filling has ended; return True if all rows are on the device. timeout: seconds."""
        self._background.join(timeout)
        self.check()
        return self.ready

    def leave(self) -> None:
        """Stop filling and free the memory on the device."""
        self._background.end()
        self.content.drop("it was closed")


class GpuContent:
    """The tensors, [rows, words] in the widest integer type that divides a row; None where there is no memory for them. Thread-safe.

    filled: rows 0..filled[0]-1 can be used by a stream that has waited for the event; replaced as a whole. failed: why there are none (out
    of device memory, or an unreadable row), else None.
    """

    def __init__(self, fields: Sequence[Field], rows: int, device: torch.device) -> None:
        self.rows, self.device = rows, device
        self.row_bytes = {f.name: f.row_bytes for f in fields}
        self.dtypes = {f.name: torch.from_numpy(np.empty(0, f.dtype)).dtype for f in fields}
        self.shapes = {f.name: f.shape or () for f in fields}
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

    def gather(self, runs: Runs, leave: Collection[str] = ()) -> Tensors | None:
        """Gather rows of all fields into new tensors [sum of lengths, *shape] on the device, for the current stream.

        runs: row numbers within the subset. leave: fields to return as IndexedRows, not gathered.
        Returns None if not all of the rows are there. Raises IndexError for rows that do not exist.
        """
        filled, event = self.filled
        stop = int((runs.starts + runs.lengths).max(initial=0))
        if stop > self.rows:
            raise IndexError(f"row {stop - 1} of {self.rows}")
        tensors = self.tensors
        if stop > filled or tensors is None:
            return None
        if event is not None and not event.query():
            torch.cuda.current_stream(self.device).wait_event(event)
        numbers: torch.Tensor | None = None
        if len(runs.starts) == 1:
            start, length = int(runs.starts[0]), int(runs.lengths[0])
            if leave:
                numbers = torch.arange(start, start + length, device=self.device)
            picked = {n: t.narrow(0, start, length).clone() for n, t in tensors.items() if n not in leave}
        else:
            numbers = self.upload(runs.rows())
            picked = {n: t.index_select(0, numbers) for n, t in tensors.items() if n not in leave}
        if self.device.type == "cuda":
            current = torch.cuda.current_stream(self.device)
            for t in tensors.values():
                t.record_stream(current)
        gathered: Tensors = {n: self.typed(n, t) for n, t in picked.items()}
        if numbers is not None:
            gathered |= {n: IndexedRows(self.typed(n, tensors[n]), numbers) for n in tensors if n in leave}
        return gathered

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


def _fill_or_drop(content: GpuContent, store: PackStore, ending: threading.Event) -> None:
    """Fill the cache; drop it if memory runs out or a row cannot be read.

    The loop reports an unreadable row if it ever reads that row from the disk.
    """
    if content.tensors is not None:
        try:
            _fill(content, store, ending)
        except FormatError as error:
            content.drop(str(error))
    if content.failed is not None:
        log.warning("%s: rows stay off the device (%s)", store.pack.path, content.failed)


def _fill(content: GpuContent, store: PackStore, ending: threading.Event) -> None:
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
        out = {name: host[: stop - start].numpy() for name, host in buffer.items()}
        store.copy(one_run(start, stop), out)
        with torch.cuda.stream(stream):
            for name, host in buffer.items():
                tensors[name][start:stop].copy_(host[: stop - start], non_blocking=cuda)
            if stream is not None:
                event = events[turn % 2] = torch.cuda.Event()
                event.record(stream)
        content.filled = stop, event
    store.keep(0)  # its decoded blocks are not needed again
