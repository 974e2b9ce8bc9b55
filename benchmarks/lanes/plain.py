"""What one writes without a loader's help: a folder of JPEGs, h5py, NumPy, below torch's DataLoader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lanes.lane import (
    DATALOADER,
    JPEG,
    PACK_H5,
    PACK_NPY,
    PHOTOS,
    PLAIN,
    Epoch,
    Lane,
    Rows,
    Setting,
    dataloader,
    random_batches,
)

Sample = tuple[Any, int]


class Folder:
    """JPEG files, decoded and resized on every access."""

    def __init__(self, path: str, rows: Rows) -> None:
        import cv2

        cv2.setNumThreads(0)  # as in torch's examples: processes provide the parallelism
        self._path, self._count, self._size = path, len(rows), rows.images.shape[1]

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Sample:
        from lanes.photos import read_photo

        return read_photo(f"{self._path}/{index}.jpg", self._size), index


class H5:
    """Datasets of an HDF5 file, opened in each process; indexed by row number, or by (start, stop)."""

    def __init__(self, path: str, rows: Rows) -> None:
        self._path, self._count = path, len(rows)
        self._file: Any = None

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> tuple[Any, Any]:
        import h5py

        if self._file is None:
            self._file = h5py.File(self._path)
        at = slice(*index) if isinstance(index, tuple) else index
        return self._file["image"][at], self._file["label"][at]


class Slices:
    """A sampler of (start, stop) for each batch, in a new random order each epoch."""

    def __init__(self, count: int, size: int) -> None:
        self._spans = [(start, min(start + size, count)) for start in range(0, count, size)]
        self._draws = np.random.default_rng(0)

    def __iter__(self) -> Any:
        return (self._spans[i] for i in self._draws.permutation(len(self._spans)))

    def __len__(self) -> int:
        return len(self._spans)


class Mapped:
    """npy files, mapped copy-on-write, as torch warns of read-only arrays."""

    def __init__(self, path: str, rows: Rows) -> None:
        self._images = np.load(f"{path}/image.npy", mmap_mode="c")
        self._labels = np.load(f"{path}/label.npy")

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: Any) -> tuple[Any, Any]:
        return self._images[index], self._labels[index]


def _items(make: Callable[[str, Rows], Any]) -> Callable[[str, Setting], Epoch]:
    """Return epochs read row by row, collated by torch."""

    def open_items(path: str, setting: Setting) -> Epoch:
        loader = dataloader(
            make(path, Rows.of(setting.work)), setting, batch_size=setting.batch, shuffle=True
        )
        return lambda: iter(loader)

    return open_items


def _whole(
    make: Callable[[str, Rows], Any], sampler: Callable[[int, int], Any]
) -> Callable[[str, Setting], Epoch]:
    """Return epochs read a batch at a time: d[i:j], mm[idx]."""

    def open_batches(path: str, setting: Setting) -> Epoch:
        rows = Rows.of(setting.work)
        loader = dataloader(
            make(path, rows), setting, batch_size=None, sampler=sampler(len(rows), setting.batch)
        )
        return lambda: iter(loader)

    return open_batches


LANES = (
    Lane(
        "folder, DataLoader", JPEG, PHOTOS, ("torch", "cv2"), _items(Folder), workers=DATALOADER, exact=False
    ),
    Lane("h5py items", PLAIN, PACK_H5, ("torch", "h5py"), _items(H5), workers=DATALOADER),
    Lane("h5py slices", PLAIN, PACK_H5, ("torch", "h5py"), _whole(H5, Slices), workers=DATALOADER),
    Lane("npy items", PLAIN, PACK_NPY, ("torch",), _items(Mapped), workers=DATALOADER),
    Lane("npy mm[idx]", PLAIN, PACK_NPY, ("torch",), _whole(Mapped, random_batches), workers=DATALOADER),
)
