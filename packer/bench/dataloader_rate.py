"""The rate at which torch's DataLoader delivers shuffled batches of a Dataset, and the number of workers that is fastest."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence, Sized
from typing import Any, Protocol

import numpy as np
from torch.utils.data import DataLoader


class RowItems(Sized, Protocol):
    """A dataset of rows."""

    def __getitem__(self, item: int) -> Any:
        """Return a row, of tensors and numbers."""


class _Epochs:
    """A batch sampler: shuffled epochs one after the other, whole batches only; endless if epochs is None."""

    def __init__(self, rows: int, batch_size: int, epochs: int | None) -> None:
        self._rows, self._batch_size, self._epochs = rows, batch_size, epochs

    def __iter__(self) -> Iterator[list[int]]:
        epoch = 0
        while self._epochs is None or epoch < self._epochs:
            order = np.random.default_rng(epoch).permutation(self._rows).tolist()
            for start in range(0, self._rows - self._batch_size + 1, self._batch_size):
                yield order[start : start + self._batch_size]
            epoch += 1


def loader_rate(
    items: RowItems, *, batch_size: int, workers: int, seconds: float, epochs: int | None = None
) -> float:
    """Rows a second that a DataLoader delivers once it runs; starting its workers is not counted.

    The clock starts when each worker could have delivered a batch. It stops after about `seconds`, at a whole number of
    batches a worker (they arrive in bursts of one each), or after `epochs`, of at least two batches each.
    """
    sampler: Any = _Epochs(len(items), batch_size, epochs)
    dataset: Any = items
    loader: DataLoader[Any] = DataLoader(
        dataset,
        batch_sampler=sampler,
        num_workers=workers,
        # What Linux users have had by default; a forked worker shares the listing instead of making it again.
        multiprocessing_context="fork" if workers else None,
    )
    burst = max(1, workers)
    skipped = burst if epochs is None else min(burst, epochs * (len(items) // batch_size) // 2)
    batches = iter(loader)
    for _ in range(skipped):
        next(batches)
    count = 0
    started = time.perf_counter()
    for _ in batches:
        count += 1
        if count % burst == 0 and time.perf_counter() - started >= seconds:
            break
    elapsed = time.perf_counter() - started
    del batches  # ends the workers
    return count * batch_size / elapsed


def worker_counts(cores: int) -> list[int]:
    """0, 1, 2, 4, … and the number of cores."""
    return sorted({0, cores, *(1 << k for k in range(cores.bit_length()))})


def best_workers(items: RowItems, *, batch_size: int, counts: Sequence[int], seconds: float) -> int:
    """Return the worker count that delivers most rows a second."""
    return max(
        counts,
        key=lambda workers: loader_rate(items, batch_size=batch_size, workers=workers, seconds=seconds),
    )
