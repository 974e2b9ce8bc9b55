"""Baselines for tables that fit into memory: shuffled epochs of tensors, in three usual ways, and their rates."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


class ContiguousSlices:
    """Batches as slices of tensors, which are copied by a permutation before each epoch.

    As public snippets and posts have it ("FastTensorDataLoader", J. Mu).
    """

    def __init__(self, *tensors: torch.Tensor, batch_size: int) -> None:
        self._tensors, self._batch_size = tensors, batch_size

    def __iter__(self) -> Iterator[tuple[torch.Tensor, ...]]:
        permutation = torch.randperm(len(self._tensors[0]))
        self._tensors = tuple(tensor[permutation] for tensor in self._tensors)
        for first in range(0, len(permutation), self._batch_size):
            yield tuple(tensor[first : first + self._batch_size] for tensor in self._tensors)


def batch_sampled(items: TensorDataset, batch_size: int) -> DataLoader[Any]:
    """DataLoader asked for whole batches, which it then gathers at once and does not collate; no workers."""
    sampler: Any = BatchSampler(RandomSampler(items), batch_size, drop_last=False)
    return DataLoader(items, batch_size=None, sampler=sampler)


def epochs_rate(batches: Iterable[Any], rows: int, seconds: float) -> float:
    """Rows a second over whole epochs, for at least so long: what is done once an epoch counts as often as batches do."""
    began, epochs = time.perf_counter(), 0
    while not epochs or time.perf_counter() - began < seconds:
        for _ in batches:
            pass
        epochs += 1
    return epochs * rows / (time.perf_counter() - began)


def first_batch(make: Callable[[], Any]) -> float:
    """Seconds until a loader that is made now has given a batch; it is closed afterwards."""
    began = time.perf_counter()
    with make() as batches:
        next(iter(batches))
        return time.perf_counter() - began
