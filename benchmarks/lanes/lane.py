"""Definitions of a store and a lane.

A store is the rows in one peer's format, written once. A lane is a way to read a store in batches; several
lanes may share a store.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Batch = Sequence[Any]
"""Images, uint8 [N, H, W, C] or a tensor [N, C, H, W], and labels [N] or [N, 1]."""
Epoch = Callable[[], Iterable[Batch]]
"""Starts the next epoch, in a new random order."""
PACK_H5, PACK_NPY, PACK_JPEG = "packer.h5", "packer", "packer-jpeg.h5"
PHOTOS, LABELS = "photos", "labels.csv"


@dataclass(frozen=True)
class Rows:
    """The rows that every store holds.

    images: uint8 [N, H, W, C], mapped; labels: int64 [N], a permutation of 0 to N-1.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]

    @classmethod
    def of(cls, work: str) -> Rows:
        """Return the rows of a work folder, from its npy pack, which is plain NumPy."""
        pack = Path(work, PACK_NPY)
        images, labels = (np.load(pack / name, mmap_mode="r") for name in ("image.npy", "label.npy"))
        return cls(images, np.asarray(labels).astype(np.int64))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[NDArray[np.uint8], int]:
        """Return the pixels, as a contiguous copy, and the label."""
        return np.array(self.images[index]), int(self.labels[index])

    def __iter__(self) -> Iterator[tuple[NDArray[np.uint8], int]]:
        return map(self.__getitem__, range(len(self)))


@dataclass(frozen=True)
class Setting:
    """Options of a lane. workers: processes, or a loader's threads, where the lane has a choice."""

    work: str
    batch: int
    threads: int
    workers: int = 0


@dataclass(frozen=True)
class Store:
    """Rows in one format. modules: imports for writing; write: creates a new path."""

    name: str
    modules: tuple[str, ...]
    write: Callable[[Rows, str], None]


@dataclass(frozen=True)
class Lane:
    """A way to read a store.

    group: lanes measured together, since not all stores fit in the page cache at once.
    open: constructs the loader once, and returns a function that starts an epoch.
    rate: instead of open, for limits: images/s over some seconds.
    workers: counts to try, of which the fastest is kept.
    exact: True if the pixels equal the pack's bit for bit; otherwise least_db: least PSNR of an image.
    """

    name: str
    group: str
    store: str
    modules: tuple[str, ...]
    open: Callable[[str, Setting], Epoch] | None = None
    rate: Callable[[Setting], Callable[[float], float]] | None = None
    workers: tuple[int, ...] = (0,)
    exact: bool = True
    least_db: float = 20.0


OURS, JPEG, PLAIN, TABLES, STREAMS, BETON = "packer", "jpeg", "plain", "tables", "streams", "beton"
"""The groups, in the order in which they are measured."""

DATALOADER = (0, 1, 2)  # worker processes tried


def dataloader(dataset: Any, setting: Setting, **options: Any) -> Any:
    """Return torch's DataLoader, with persistent workers."""
    from torch.utils.data import DataLoader

    return DataLoader(dataset, num_workers=setting.workers, persistent_workers=setting.workers > 0, **options)


def random_batches(count: int, size: int) -> Any:
    """Return a sampler of full batches of row numbers, reshuffled each epoch (batch_size=None)."""
    from torch.utils.data import BatchSampler, RandomSampler

    return BatchSampler(RandomSampler(range(count)), size, drop_last=False)


def files_of(path: str) -> Sequence[str]:
    """Return the files of a store: itself, or all below it."""
    if os.path.isfile(path):
        return [path]
    return sorted(str(file) for file in Path(path).rglob("*") if file.is_file())
