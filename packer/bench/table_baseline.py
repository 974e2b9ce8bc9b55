"""Tables as a baseline: a check that the pack comes from these files, and three usual loaders of tensors.

The tensors are the pack's rows, so no lane has to parse the table.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from packer import units
from packer.bench.hardware_limits import CopyLimit
from packer.bench.lanes import Baseline, held_tensors
from packer.errors import PackerError, UsageError
from packer.machine import memory
from packer.packs.pack import Pack
from packer.path_text import as_text
from packer.tables.reading.table_source import expand, file_digest

HELD_SHARE = 8  # 1/8 of the memory: each epoch copies the tensors while the previous copies still exist


class ContiguousSlices:
    """Batches as slices of tensors, which are copied in a permuted order before each epoch.

    The scheme of public snippets and posts ("FastTensorDataLoader", J. Mu).
    """

    def __init__(self, *tensors: torch.Tensor, batch_size: int) -> None:
        self._tensors, self._batch_size = tensors, batch_size

    def __iter__(self) -> Iterator[tuple[torch.Tensor, ...]]:
        permutation = torch.randperm(len(self._tensors[0]))
        self._tensors = tuple(tensor[permutation] for tensor in self._tensors)
        for first in range(0, len(permutation), self._batch_size):
            yield tuple(tensor[first : first + self._batch_size] for tensor in self._tensors)


def batch_sampled(items: TensorDataset, batch_size: int) -> DataLoader[Any]:
    """Return a DataLoader without workers that gathers a batch at once and does not collate."""
    sampler: Any = BatchSampler(RandomSampler(items), batch_size, drop_last=False)
    return DataLoader(items, batch_size=None, sampler=sampler)


@contextmanager
def table_baseline(table: Any, pack: Pack, batch_size: int, threads: int) -> Iterator[Baseline]:
    """Compare a table with the source of a pack, and hold the pack's rows in memory. Skips ragged fields.

    Raises SourceError (no such files), PackerError (the pack comes from other files).
    """
    names = [os.fspath(name) for name in ([table] if isinstance(table, (str, os.PathLike)) else table)]
    called = as_text(names[0]) + (f" and {units.count(len(names) - 1, 'other')}" if len(names) > 1 else "")
    check_source(expand(names), called, pack)
    fields = [f.loaded for f in pack.fields if f.by_default and not f.loaded.ragged]
    loading = {"fields": [f.name for f in fields]}
    row_bytes = sum(f.row_bytes for f in fields)
    rows = min(pack.rows, memory() // HELD_SHARE // row_bytes)
    tensors = held_tensors(pack, [f.name for f in fields], rows, threads)
    notes = []
    if ragged := [f.name for f in pack.fields if f.ragged]:
        notes.append(f"left out: {', '.join(ragged)}, of any length.")
    if rows < pack.rows:
        notes.append(
            f"tensors hold the first {units.count(rows, 'row')}, an eighth of the memory; packer loads all."
        )
    items: Any = TensorDataset(*tensors)
    shapes = (f.name + (f" [{', '.join(map(str, f.shape))}]" if f.shape else "") for f in fields)
    yield Baseline(
        source=called,
        unit="rows",
        heading=f"{pack.rows:,} rows of {', '.join(shapes)}",
        name="DataLoader, rows",
        items=items,
        peers={
            "DataLoader, batches by a sampler": batch_sampled(items, batch_size),
            "tensors, copied each epoch, slices": ContiguousSlices(*tensors, batch_size=batch_size),
        },
        peer_rows=rows,
        limit_name="memcpy",
        limit=CopyLimit(batch_size * row_bytes, pack.rows * row_bytes, threads).rate,
        loading=loading,
        notes=notes,
        conditions={"torch_threads": torch.get_num_threads(), "rows_held": rows},
    )


def check_source(names: Sequence[str], called: str, pack: Pack) -> None:
    """Compare files with the digests of a pack's source. Raises UsageError, PackerError."""
    recorded = pack.header.provenance.get("source", {})
    if "digests" not in recorded:
        raise UsageError(
            f"{pack.path}: was written from another pack; bench compares a pack with the table that it was"
            " converted from. Pass one that packer convert wrote."
        )
    if [file_digest(name) for name in names] != recorded["digests"]:
        raise PackerError(
            f"{called}: is not the source of {pack.path} ({', '.join(recorded['names'][:3])}, as it was"
            " then); a comparison needs the same source on both sides. Pass that, or convert this one."
        )
