"""What the integration tests share: a pack of numbered rows, and who got which of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from packer.load.batch_dataset import PackedBatchDataset

ROWS = 103


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


def joined(ranks: list[list[list[int]]]) -> list[int]:
    """Batches of each rank -> rows, in the order of the steps and ranks."""
    steps = max(map(len, ranks))
    return [row for step in range(steps) for rank in ranks if step < len(rank) for row in rank[step]]
