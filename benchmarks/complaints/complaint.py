"""Definitions of a complaint and a lane."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Rows = tuple[Any, Numbers]
"""A piece of an epoch: values, and the numbers of their samples."""


@dataclass(frozen=True)
class Epochs:
    """Epochs of a lane.

    begin: starts an epoch of all samples, or of at most `limit`; numbers: samples of a complete epoch.
    """

    begin: Callable[[int | None], Iterable[Rows]]
    numbers: Numbers


@dataclass(frozen=True)
class Lane:
    """A way to read the data.

    store: file or folder it reads; needs: modules besides packer's.
    workers: process counts, of which the fastest is kept.
    """

    open: Callable[[Path, int], Epochs]
    store: str
    needs: tuple[str, ...] = ()
    workers: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class Complaint:
    """A complaint, with its data and lanes.

    about: a line; write: writes missing stores with so many rows.
    compare: raises ValueError for wrong values.
    rows: of the data; samples: of a measured epoch; packages: whose versions are recorded.
    """

    about: str
    write: Callable[[Path, int], None]
    compare: Callable[[Path], Callable[[Any, Numbers], None]]
    lanes: Mapping[str, Lane]
    rows: int
    samples: int
    packages: tuple[str, ...]


class Order:
    """A sampler of positions, in order or reshuffled each epoch: all, or the first `limit`."""

    def __init__(self, count: int, *, shuffle: bool) -> None:
        self.limit: int | None = None
        self._count, self._shuffle = count, shuffle
        self._draws = np.random.default_rng(0)

    def __iter__(self) -> Iterator[int]:
        order = self._draws.permutation(self._count) if self._shuffle else np.arange(self._count)
        return iter(order[: self.limit].tolist())

    def __len__(self) -> int:
        return self._count if self.limit is None else min(self.limit, self._count)


def loaded(
    dataset: Any,
    order: Order,
    numbers: Numbers,
    spread: Callable[[Any], Rows],
    workers: int,
    start: str = "fork",
    **options: Any,
) -> Epochs:
    """Return epochs of torch's DataLoader. spread: batch -> values, numbers; start: its processes' method."""
    from torch.utils.data import DataLoader

    if workers:
        options |= {"num_workers": workers, "persistent_workers": True, "multiprocessing_context": start}
    loader: Any = DataLoader(dataset, **options)

    def begin(limit: int | None) -> Iterable[Rows]:
        order.limit = limit
        return map(spread, loader)

    return Epochs(begin, numbers)


def spread_pair(batch: Any) -> Rows:
    """Split a collated batch (values, numbers)."""
    return batch[0], batch[1].numpy()


def collated(
    make: Callable[[Path], Any], batch_size: int, spread: Callable[[Any], Rows] = spread_pair
) -> Callable[[Path, int], Epochs]:
    """Return a lane of shuffled batches that torch's DataLoader collates. make: a store -> its rows."""

    def opened(store: Path, workers: int) -> Epochs:
        data = make(store)
        order = Order(len(data), shuffle=True)
        return loaded(
            data, order, np.arange(len(data)), spread, workers, batch_size=batch_size, sampler=order
        )

    return opened


def made_once(path: Path, write: Callable[[Path], None]) -> None:
    """Write a store under a temporary name and rename it, unless it exists."""
    if not path.exists():
        part = path.with_name(f"part-{path.name}")
        write(part)
        part.rename(path)
