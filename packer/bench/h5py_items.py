"""A pack as most people would read an HDF5 file: h5py, one image an item, collated by torch's DataLoader."""

from __future__ import annotations

import os

import h5py
import torch
from torch.utils.data import Dataset


class Hdf5Items(Dataset[tuple[torch.Tensor, int]]):
    """Rows of an HDF5 file, which each process opens for itself; close() closes this process's."""

    def __init__(self, path: str, rows: int, *, labels: bool) -> None:
        self._path, self._rows, self._labels = path, rows, labels
        self._file: h5py.File | None = None
        self._pid = -1

    def __len__(self) -> int:
        """How many rows there are."""
        return self._rows

    def __getitem__(self, item: int) -> tuple[torch.Tensor, int]:
        """Pixels, uint8 [H, W, C], and the label, -1 if there are none."""
        if (
            self._file is None or self._pid != os.getpid()
        ):  # a file opened before a fork must not be read after it
            self._file, self._pid = h5py.File(self._path, "r"), os.getpid()
        return torch.from_numpy(self._file["image"][item]), int(
            self._file["label"][item]
        ) if self._labels else -1

    def close(self) -> None:
        """Close the file, if this process opened one."""
        if self._file is not None and self._pid == os.getpid():
            self._file.close()
        self._file = None
