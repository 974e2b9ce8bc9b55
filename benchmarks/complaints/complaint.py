"""What a complaint and a lane are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Rows = tuple[Any, Numbers]
"""What an epoch yields: values, and the numbers of the samples that they are of."""


@dataclass(frozen=True)
class Epochs:
    """begin: an epoch of all samples, or of as many as the limit says; numbers: of the samples that a whole epoch has."""

    begin: Callable[[int | None], Iterable[Rows]]
    numbers: Numbers


@dataclass(frozen=True)
class Lane:
    """One way to read the data.

    store: file or folder it reads; needs: modules beside packer's; workers: numbers of processes, of which the fastest is kept.
    """

    open: Callable[[Path, int], Epochs]
    store: str
    needs: tuple[str, ...] = ()
    workers: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class Complaint:
    """about: a line; write: the stores that are not there, of so many rows; compare: raises ValueError if values are wrong.

    rows: of the data; samples: of an epoch that is measured; packages: whose versions are recorded.
    """

    about: str
    write: Callable[[Path, int], None]
    compare: Callable[[Path], Callable[[Any, Numbers], None]]
    lanes: Mapping[str, Lane]
    rows: int
    samples: int
    packages: tuple[str, ...]


class Order:
    """A sampler of places: in order or shuffled anew each epoch, all of them or the first `limit`."""

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
    """Return epochs of torch's DataLoader. spread: a batch as values and numbers; start: of its processes."""
    from torch.utils.data import DataLoader

    if workers:
        options |= {"num_workers": workers, "persistent_workers": True, "multiprocessing_context": start}
    loader: Any = DataLoader(dataset, **options)

    def begin(limit: int | None) -> Iterable[Rows]:
        order.limit = limit
        return map(spread, loader)

    return Epochs(begin, numbers)


def made_once(path: Path, write: Callable[[Path], None]) -> None:
    """Write a store under another name first, unless it is there."""
    if not path.exists():
        part = path.with_name(f"part-{path.name}")
        write(part)
        part.rename(path)
