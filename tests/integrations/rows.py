"""What the integration tests share: a pack of numbered rows, and who got which of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from packer.load.batch_dataset import PackedBatchDataset

ROWS = 103
MANY = 641  # rows of the packs for ranks of which the last batches have fewer rows than there are ranks


def dataset_of(pack: str | Path, batch_size: int = 10, **options: Any) -> PackedBatchDataset:
    """Batches of labels alone, in an order that differs from epoch to epoch."""
    return PackedBatchDataset(
        pack, batch_size, **{"fields": ("label",), "order": "rows", "seed": 4} | options
    )


def rows_of(batch: Any) -> list[int]:
    """The rows of a batch."""
    rows: list[int] = (batch.label // 3).tolist()
    return rows


def epochs_of(pack: str | Path, count: int) -> list[list[int]]:
    """The sequence of the first epochs: what a process alone is given."""
    alone = dataset_of(pack, rank=0, world_size=1)
    return [[row for batch in alone for row in rows_of(batch)] for _ in range(count)]


def sequences(pack: Path, whole: int, world: int, count: int) -> list[list[int]]:
    """Epochs as one process is given them, and the first rows again that make the last batches equal. whole: rows of a global batch."""
    alone = dataset_of(pack, whole, rank=0, world_size=1)
    epochs = [[row for batch in alone for row in rows_of(batch)] for _ in range(count)]
    return [epoch + epoch[: -(len(epoch) % whole) % world] for epoch in epochs]


def synchronous(batches: Iterable[Any], steps: int | None = None) -> list[list[int]]:
    """The rows of each batch; all ranks wait for each other at each. steps: end there."""
    import torch
    from torch import distributed

    given = []
    for batch in batches:
        total = torch.tensor(1)
        distributed.all_reduce(total)
        assert total == distributed.get_world_size()
        given.append(rows_of(batch))
        if len(given) == steps:
            break
    return given


def joined(ranks: list[list[list[int]]]) -> list[int]:
    """Batches of each rank -> rows, in the order of the steps and ranks."""
    steps = max(map(len, ranks))
    return [row for step in range(steps) for rank in ranks if step < len(rank) for row in rank[step]]
