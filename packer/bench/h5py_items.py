"""A pack as most people would read an HDF5 file: h5py, one image an item, collated by torch's DataLoader."""

from __future__ import annotations

import os

import h5py
import torch
from torch.utils.data import Dataset

from packer.errors import FormatError


class Hdf5Items(Dataset[tuple[torch.Tensor, int]]):
    """Rows of an HDF5 file, which each process opens for itself; close() closes this process's.

    Raises FormatError if h5py would read rows from another file.
    """

    def __init__(self, path: str, rows: int, *, labels: bool) -> None:
        self._path, self._rows, self._labels = path, rows, labels
        with h5py.File(path, "r") as file:
            for name in ["image", "label"][: 1 + labels]:
                _check_own(file, name, path)
        self._file: h5py.File | None = None
        self._pid = -1

    def __len__(self) -> int:
        """Return the number of rows."""
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


def _check_own(file: h5py.File, name: str, path: str) -> None:
    """Raise FormatError unless a dataset's rows lie in this very file: HDF5 follows links, and packer never does."""
    own = isinstance(file.get(name, getlink=True), h5py.HardLink) and isinstance(file[name], h5py.Dataset)
    if not own or file[name].is_virtual or file[name].external:
        raise FormatError(
            f"{path}: its dataset {name!r} leads to another file; bench reads rows of the pack's own. Convert the images again."
        )
