"""What one writes without a loader's help: a folder of JPEGs, h5py, NumPy, below torch's DataLoader."""

from __future__ import annotations

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
    """JPEG files, decoded and brought to size whenever they are asked for."""

    def __init__(self, path: str, count: int, size: int) -> None:
        import cv2

        cv2.setNumThreads(0)  # as torch's own examples do it: the processes are the parallelism
        self._path, self._count, self._size = path, count, size

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Sample:
        from lanes.photos import read_photo

        return read_photo(f"{self._path}/{index}.jpg", self._size), index


def open_folder(path: str, setting: Setting) -> Epoch:
    """ImageFolder's way: a sample is a file, a batch is collated."""
    rows = Rows.of(setting.work)
    folder = Folder(path, len(rows), rows.images.shape[1])
    loader = dataloader(folder, setting, batch_size=setting.batch, shuffle=True)
    return lambda: iter(loader)


class H5:
    """Datasets of an HDF5 file, opened in each process. By row number, or by (start, stop) of a slice."""

    def __init__(self, path: str, count: int) -> None:
        self._path, self._count = path, count
        self._file: Any = None

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> tuple[Any, Any]:
        import h5py

        if self._file is None:
            self._file = h5py.File(self._path)
        at = slice(*index) if isinstance(index, tuple) else index
        return self._file["image"][at], self._file["label"][at]


def open_h5py_items(path: str, setting: Setting) -> Epoch:
    """Row by row, as h5py's examples for torch have it."""
    dataset = H5(path, len(Rows.of(setting.work)))
    loader = dataloader(dataset, setting, batch_size=setting.batch, shuffle=True)
    return lambda: iter(loader)


class Slices:
    """(start, stop) of each batch, in a new random order each epoch."""

    def __init__(self, count: int, size: int) -> None:
        self._spans = [(start, min(start + size, count)) for start in range(0, count, size)]
        self._draws = np.random.default_rng(0)

    def __iter__(self) -> Any:
        return (self._spans[i] for i in self._draws.permutation(len(self._spans)))

    def __len__(self) -> int:
        return len(self._spans)


def open_h5py_slices(path: str, setting: Setting) -> Epoch:
    """A batch is a slice: d[i:j]."""
    count = len(Rows.of(setting.work))
    loader = dataloader(H5(path, count), setting, batch_size=None, sampler=Slices(count, setting.batch))
    return lambda: iter(loader)


class Mapped:
    """npy files, mapped; copy on write, for torch warns of arrays that it may not write to."""

    def __init__(self, path: str) -> None:
        self._images = np.load(f"{path}/image.npy", mmap_mode="c")
        self._labels = np.load(f"{path}/label.npy")

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: Any) -> tuple[Any, Any]:
        return self._images[index], self._labels[index]


def open_npy_items(path: str, setting: Setting) -> Epoch:
    """Row by row, collated by torch."""
    loader = dataloader(Mapped(path), setting, batch_size=setting.batch, shuffle=True)
    return lambda: iter(loader)


def open_npy_batches(path: str, setting: Setting) -> Epoch:
    """mm[idx], a batch at a time."""
    mapped = Mapped(path)
    loader = dataloader(mapped, setting, batch_size=None, sampler=random_batches(len(mapped), setting.batch))
    return lambda: iter(loader)


LANES = (
    Lane("folder, DataLoader", JPEG, PHOTOS, ("torch", "cv2"), open_folder, workers=DATALOADER, exact=False),
    Lane("h5py items", PLAIN, PACK_H5, ("torch", "h5py"), open_h5py_items, workers=DATALOADER),
    Lane("h5py slices", PLAIN, PACK_H5, ("torch", "h5py"), open_h5py_slices, workers=DATALOADER),
    Lane("npy items", PLAIN, PACK_NPY, ("torch",), open_npy_items, workers=DATALOADER),
    Lane("npy mm[idx]", PLAIN, PACK_NPY, ("torch",), open_npy_batches, workers=DATALOADER),
)
