"""PackedDataset: a pack as rows, for those who keep torch's DataLoader."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import MissingDependencyError
from packer.format.pack import Pack, open_pack
from packer.load.batch import as_tensor, make_batch
from packer.load.slots import Layout, allocate
from packer.orders.runs import consecutive
from packer.read.fields import ROW, decode_ragged, select_fields, stored
from packer.read.reader import Reader
from packer.read.selection import select


class PackedDataset:
    """Rows of a pack, a map-style dataset for ``torch.utils.data.DataLoader`` under fork, spawn and forkserver.

    ``len(ds)`` is rows. ``ds[i]`` is one row as a named tuple ``(image, label, ...)``: image uint8 [C, H, W] (a view of [H, W, C]
    bytes), label an int64 scalar, other fields of their shape. ``ds[a:b]`` and ``ds[[i, j, ...]]`` are batches, images [N, C, H, W]
    with channels_last strides, read in one go into new memory.

    The DataLoader's fast form reads whole batches and collates nothing::

        sampler = BatchSampler(RandomSampler(ds), batch_size=256, drop_last=False)
        DataLoader(ds, sampler=sampler, batch_size=None)

    path: what ``packer convert`` wrote. split: the rows of one split.
    fields: names, default: all but "key", which gives str. "row" is each row's number in the pack, int64, unless the pack has
        a field of that name.
    Raises FormatError (not a whole pack), UsageError (unknown field or split), MissingDependencyError (torch).
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Pack,
        *,
        fields: Sequence[str] | None = None,
        split: str | None = None,
    ) -> None:
        try:
            import torch  # noqa: F401
        except ImportError:
            raise MissingDependencyError("torch", "PackedDataset", "torch") from None
        self.pack = path if isinstance(path, Pack) else open_pack(path)
        self.fields = select_fields(self.pack, fields)
        self._names = tuple(f.name for f in self.fields)
        self._subset = select(self.pack, split=split)
        self._stored = stored(self.fields)
        self._reader = Reader(self.pack, self._stored)

    def __len__(self) -> int:
        """How many rows there are."""
        return self._subset.rows

    def __getitem__(self, index: int | slice | Sequence[int] | NDArray[np.integer[Any]]) -> Any:
        """A row, or a batch for a slice, a list or an array of row numbers (torch tensors too). Raises IndexError."""
        if isinstance(index, slice):
            return self._batch(np.arange(*index.indices(len(self))))
        numbers = np.asarray(index)
        if numbers.size and numbers.dtype.kind not in "iu":
            raise IndexError(f"rows are picked by whole numbers, not by {numbers.dtype}")
        batch = self._batch(np.atleast_1d(numbers.astype(np.int64)))
        return batch if numbers.ndim else make_batch(self._names, (values[0] for values in batch))

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The rows one by one, read in one go: what DataLoader collates."""
        batch = self._batch(np.asarray(indices, np.int64))
        return [make_batch(self._names, values) for values in zip(*batch, strict=True)]

    def close(self) -> None:
        """Close the files; reading opens them again."""
        self._reader.close()

    def _batch(self, rows: NDArray[np.int64]) -> Any:
        import torch

        n = len(self)
        if rows.size and not (-n <= rows.min() and rows.max() < n):
            raise IndexError(f"row {rows.min() if rows.min() < -n else rows.max()} of {n}")
        rows = np.where(rows < 0, rows + n, rows)
        runs = self._subset.place(consecutive(rows))
        layout = Layout(self._stored, max(len(rows), 1))
        memory = allocate(layout.nbytes)
        for name, out in layout.raw(memory, len(rows)).items():
            self._reader.read(name, runs, out)
        values: dict[str, Any] = {
            name: torch.from_numpy(a) for name, a in layout.typed(memory, len(rows)).items()
        }
        if ROW in self.fields:
            values[ROW.name] = torch.from_numpy(runs.rows())
        for f in self._stored:
            if f.ragged:
                decoded = decode_ragged(
                    self.pack, f, self._reader.read_ragged(f.name, runs), runs.rows().tolist()
                )
                values[f.name] = [as_tensor(row, f) for row in decoded]
            elif f.about.get("layout") == "HWC":
                values[f.name] = values[f.name].permute(0, 3, 1, 2)
        return make_batch(self._names, (values[name] for name in self._names))
