"""Rows of a pack as tensors on a GPU: uploaded before the first batch, and gathered there for each batch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from packer.format.fields import Field
from packer.load.batch import SlotLayout, size_of, typed_tensor
from packer.load.device import CopyingDevice
from packer.load.ranks import local_rank
from packer.orders.runs import Runs, one_run
from packer.progress import Progress
from packer.read.array_store import ArrayStore, PackStore
from packer.read.row_selection import ROW
from packer.starting import ForkSafeThreads

STEP_BYTES = 16 << 20  # size of each of the two upload buffers
SHOWN_BYTES = 1 << 30  # a smaller upload shows no progress
_WIDE = ((8, torch.int64), (4, torch.int32), (2, torch.int16))


class GpuStore(ArrayStore):
    """The fixed fields of another store as tensors on a device.

    The tensors are [rows, words] in the widest integer type that divides a row. Batches are copies, so a loop
    may write to them.
    """

    ready = gathers = True

    def __init__(
        self, files: PackStore, fields: Sequence[Field], device: CopyingDevice, threads: ForkSafeThreads
    ) -> None:
        """Upload all rows, read by these threads. fields: of the batches, perhaps with ROW.

        Raises torch.cuda.OutOfMemoryError, and PackerError for rows that cannot be read.
        """
        super().__init__(files.pack, files.fields, files.rows)
        self._files, self._numbered, self._device = files, ROW in fields, device
        self._tensors = {f.name: _empty(self.rows, f.row_bytes, device.place) for f in self.fixed}
        self._upload(threads)

    @property
    def ahead_rows(self) -> None:
        """None: all rows are there."""
        return None

    def tensors(self, rows: Runs) -> dict[str, torch.Tensor]:
        """See ArrayStore."""
        if len(rows.starts) == 1:
            start, length = int(rows.starts[0]), int(rows.lengths[0])
            gathered = {name: t.narrow(0, start, length).clone() for name, t in self._tensors.items()}
        else:
            numbers = self._device.put(torch.from_numpy(rows.rows()))
            gathered = {name: t.index_select(0, numbers) for name, t in self._tensors.items()}
        if self._device.place.type == "cuda":
            # The rows are freed once the kernels of every stream that gathered have ended.
            current = torch.cuda.current_stream(self._device.place)
            for t in self._tensors.values():
                t.record_stream(current)
        found = {f.name: typed_tensor(gathered[f.name], f) for f in self.fixed}
        if self._numbered:
            found[ROW.name] = self._device.put(torch.from_numpy(self._files.place(rows).rows()))
        return found

    def close(self, wait: bool = True) -> None:
        """See ArrayStore."""
        if wait:
            self._tensors, self.ready = {}, False

    def _upload(self, threads: ForkSafeThreads) -> None:
        """Read rows into two pinned buffers in turn, and copy them to the device on the current stream."""
        place, nbytes = self._device.place, size_of(self.fixed, self.rows)
        count = max(1, min(self.rows, STEP_BYTES * self.rows // nbytes))
        layout = SlotLayout(self.fixed, count)
        buffers = [self._device.allocate(layout.nbytes) for _ in range(2)]
        copied: list[torch.cuda.Event | None] = [None, None]
        shown = nbytes >= SHOWN_BYTES and not local_rank()
        with Progress(shown, "B") as bar:
            bar.start(nbytes)
            for turn, (start, stop) in enumerate(pairwise([*range(0, self.rows, count), self.rows])):
                if (event := copied[turn % 2]) is not None:
                    event.synchronize()
                piece = layout.raw(buffers[turn % 2], stop - start)
                cuts = pairwise((stop - start) * k // threads.count for k in range(threads.count + 1))
                reads = [
                    threads.submit(
                        self._files.copy,
                        one_run(start + a, start + b),
                        {name: rows[a:b] for name, rows in piece.items()},
                    )
                    for a, b in cuts
                    if a < b
                ]
                for read in reads:
                    read.result()
                for name, rows in piece.items():
                    target = self._tensors[name].view(torch.uint8)[start:stop]
                    target.copy_(torch.from_numpy(rows), non_blocking=True)
                if place.type == "cuda":
                    event = copied[turn % 2] = torch.cuda.Event()
                    event.record(torch.cuda.current_stream(place))
                bar.move(stop * nbytes // self.rows)
        for event in copied:
            if event is not None:  # from here on any stream may read the rows
                event.synchronize()
        self._files.cache_blocks(0)  # its decoded blocks are not needed again


def _empty(rows: int, row_bytes: int, device: torch.device) -> torch.Tensor:
    width, dtype = next(((w, d) for w, d in _WIDE if row_bytes % w == 0), (1, torch.uint8))
    return torch.empty((rows, row_bytes // width), dtype=dtype, device=device)
