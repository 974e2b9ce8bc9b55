"""Cache of rows on the device: batches are gathered there, and only row numbers are copied for each batch."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from packer.format.fields import Field
from packer.load.batch import IndexedRows, size_of
from packer.load.caches.kept_store import KeptStore
from packer.orders.runs import Runs, one_run
from packer.read.array_store import PackStore
from packer.read.gather import Bytes
from packer.read.row_selection import ROW
from packer.units import size

if TYPE_CHECKING:
    from packer.load.device import Tensors

STEP_BYTES = 16 << 20  # size of each of the two upload buffers
_WIDE = ((8, torch.int64), (4, torch.int32), (2, torch.int16))


class GpuStore(KeptStore):
    """Rows of another store as tensors on a device, gathered there.

    Until all rows are there, and for batches in host memory, the store below is read. The tensors are [rows,
    words] in the widest integer type that divides a row, None if memory is lacking. A thread fills them on
    its own CUDA stream.

    filled: rows 0..filled[0]-1 can be used once a stream has waited for its event; replaced as a unit.
    """

    gathers = True
    _lost = "rows stay off the device"

    def __init__(
        self,
        below: PackStore,
        fields: Sequence[Field],
        where: torch.device | str,
        leave: Collection[str] = (),
    ) -> None:
        """fields: of the batches, perhaps with ROW. where: "cuda" or "cuda:i"; tests use "cpu".

        leave: fields whose rows are only indexed, not gathered.
        """
        super().__init__(below)
        self._leave, self._numbered = leave, ROW in fields
        # A tensor's device has its number; "cuda" alone means another device in each thread.
        self.device = device = torch.empty(0, dtype=torch.uint8, device=where).device
        self._dtypes = {f.name: torch.from_numpy(np.empty(0, f.dtype)).dtype for f in self.fixed}
        self.filled: tuple[int, torch.cuda.Event | None] = 0, None
        self._tensors: dict[str, torch.Tensor] | None = None
        self._allocated: torch.cuda.Event | None = None
        try:
            self._tensors = {f.name: _empty(self.rows, f.row_bytes, device) for f in self.fixed}
        except torch.cuda.OutOfMemoryError:
            self._fail(f"{size(size_of(self.fixed, self.rows))} do not fit {device}")
            return
        if device.type == "cuda":
            # Kernels queued on this stream may still read the memory's previous tensor.
            self._allocated = torch.cuda.Event()
            self._allocated.record(torch.cuda.current_stream(device))

    def copy(self, rows: Runs, out: Mapping[str, Bytes]) -> None:
        """See ArrayStore."""
        self._below.copy(rows, out)

    def prefetch(self, rows: Runs) -> None:
        """See ArrayStore."""
        if not self.ready:
            self._below.prefetch(rows)

    def tensors(self, rows: Runs) -> Tensors | None:
        """See ArrayStore. Fields in `leave` become IndexedRows.

        Raises IndexError for rows that do not exist.
        """
        filled, event = self.filled
        stop = int((rows.starts + rows.lengths).max(initial=0))
        if stop > self.rows:
            raise IndexError(f"row {stop - 1} of {self.rows}")
        tensors = self._tensors
        if stop > filled or tensors is None:
            return None
        if event is not None and not event.query():
            torch.cuda.current_stream(self.device).wait_event(event)
        numbers: torch.Tensor | None = None
        gathered = {name: t for name, t in tensors.items() if name not in self._leave}
        if len(rows.starts) == 1:
            start, length = int(rows.starts[0]), int(rows.lengths[0])
            if self._leave:
                numbers = torch.arange(start, start + length, dtype=torch.int64, device=self.device)
            picked = {name: t.narrow(0, start, length).clone() for name, t in gathered.items()}
        else:
            numbers = self._upload(rows.rows())
            picked = {name: t.index_select(0, numbers) for name, t in gathered.items()}
        if self.device.type == "cuda":
            current = torch.cuda.current_stream(self.device)
            for t in tensors.values():
                t.record_stream(current)
        found: Tensors = {}
        for f in self.fixed:
            if f.name in picked:
                found[f.name] = self._typed(picked[f.name], f)
            elif numbers is not None:
                found[f.name] = IndexedRows(self._typed(tensors[f.name], f), numbers)
        if self._numbered:
            found[ROW.name] = self._upload(self._below.place(rows).rows())
        return found

    def _typed(self, rows: torch.Tensor, field: Field) -> torch.Tensor:
        """View rows of a field, [N, words], in the field's dtype and shape: [N, *shape]."""
        return rows.view(self._dtypes[field.name]).view(-1, *(field.shape or ()))

    def _upload(self, numbers: NDArray[np.int64]) -> torch.Tensor:
        """Copy row numbers to the device for the current stream, without waiting."""
        if self.device.type != "cuda":
            return torch.from_numpy(numbers).to(self.device)
        pinned = torch.empty(len(numbers), dtype=torch.int64, device="cpu", pin_memory=True)  # torch's cache
        pinned.numpy()[:] = numbers
        return pinned.to(self.device, non_blocking=True)

    def _fail(self, why: str) -> None:
        super()._fail(why)
        self._free()

    def _free(self) -> None:
        self._tensors, self.filled, self.ready = None, (0, None), False

    def _fill(self, ending: threading.Event) -> None:
        """Read rows into two pinned buffers in turn, and copy them to the device."""
        if self._tensors is None:
            return
        tensors, row_bytes = self._tensors, {f.name: f.row_bytes for f in self.fixed}
        cuda = self.device.type == "cuda"
        stream: torch.cuda.Stream | None = None
        if cuda:
            torch.cuda.set_device(self.device)  # for this thread
            stream = torch.cuda.Stream(self.device)
            assert self._allocated is not None
            stream.wait_event(self._allocated)
            for t in tensors.values():
                t.record_stream(stream)
        count = max(1, min(self.rows, STEP_BYTES // sum(row_bytes.values())))
        buffers = [
            {
                name: torch.empty((count, nbytes), dtype=torch.uint8, device="cpu", pin_memory=cuda)
                for name, nbytes in row_bytes.items()
            }
            for _ in range(2)
        ]
        events: list[torch.cuda.Event | None] = [None, None]
        for turn, (start, stop) in enumerate(pairwise([*range(0, self.rows, count), self.rows])):
            if ending.is_set():
                return
            buffer, event = buffers[turn % 2], events[turn % 2]
            if event is not None:
                event.synchronize()
            out = {name: host[: stop - start].numpy() for name, host in buffer.items()}
            self._below.copy(one_run(start, stop), out)
            with torch.cuda.stream(stream):
                for name, host in buffer.items():
                    rows = tensors[name].view(torch.uint8)[start:stop]
                    rows.copy_(host[: stop - start], non_blocking=cuda)
                if stream is not None:
                    event = events[turn % 2] = torch.cuda.Event()
                    event.record(stream)
            self.filled = stop, event
        self.ready: bool = True


def _empty(rows: int, row_bytes: int, device: torch.device) -> torch.Tensor:
    width, dtype = next(((w, d) for w, d in _WIDE if row_bytes % w == 0), (1, torch.uint8))
    return torch.empty((rows, row_bytes // width), dtype=dtype, device=device)
