"""Datasets of foreign HDF5 files: their list and their values.

Values are read by offset where the file stores them raw, else through HDF5.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.format.file_io import pread_path
from packer.format.hdf5_container import open_hdf5
from packer.format.hdf5_inspection import is_elsewhere, raw_extents
from packer.format.header import HEADER_DATASET, Extent

_SLAB_BYTES = 16 << 20


@dataclass(frozen=True)
class Hdf5Array:
    """A dataset.

    name: its path in the file; extents: places of its rows, None where HDF5 has to decode them; text: values
    are strings.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    extents: tuple[Extent, ...] | None
    text: bool = False


def list_arrays(path: str) -> list[Hdf5Array]:
    """Return the datasets of a file in order, without following links to other places and files.

    Raises SourceError if HDF5 cannot read the file, the file is a pack, or a dataset's values are stored in
    other files.
    """
    found: list[Hdf5Array] = []
    elsewhere: list[str] = []
    try:
        with open_hdf5(path) as file:
            if HEADER_DATASET in file:
                raise SourceError(
                    f"{path}: is a pack already. Load it, or convert it with packer repack, split or merge."
                )

            def visit(name: str, item: object) -> None:
                if isinstance(item, h5py.Dataset):
                    if is_elsewhere(item.id):
                        elsewhere.append(name)
                    else:
                        found.append(_array(name, item))

            def visit_link(name: str, link: object) -> None:
                if isinstance(link, h5py.ExternalLink):
                    elsewhere.append(name)

            file.visititems(visit)
            file.visititems_links(visit_link)
            if elsewhere:
                raise SourceError(
                    f"{path}: the values of {elsewhere[0]!r} are stored in other files, which packer does not"
                    " read. Copy them into one file."
                )
    except (OSError, RuntimeError, ValueError, TypeError) as error:
        if isinstance(error, SourceError):
            raise
        raise SourceError(f"{path}: HDF5 cannot read it ({error}). Check the file.") from None
    return found


def _array(name: str, dataset: h5py.Dataset) -> Hdf5Array:
    shape, dtype = tuple(dataset.shape or ()), dataset.dtype
    if h5py.check_string_dtype(dtype) is not None:
        return Hdf5Array(name, dtype, shape, None, True)
    extents: tuple[Extent, ...] | None = None
    if shape and dtype.kind in "iuf":
        row_bytes = dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))
        extents = raw_extents(dataset, row_bytes) if dataset.size else None
        if extents is not None and shape[0] and not _lies_there(dataset, extents):
            extents = None  # the file has a user block, or its numbers have fewer bits than their bytes
    return Hdf5Array(name, dtype, shape, extents)


def _lies_there(dataset: h5py.Dataset, extents: tuple[Extent, ...]) -> bool:
    """Return True if the first and the last row are where the extents say."""
    first, last = extents[0], extents[-1]
    if sum(e.rows for e in extents) != dataset.shape[0]:
        return False
    places = {0: first.offset, dataset.shape[0] - 1: last.end - last.row_bytes}
    name = dataset.file.filename
    return all(pread_path(name, first.row_bytes, at) == dataset[row].tobytes() for row, at in places.items())


def read_array(path: str, name: str) -> NDArray[Any] | list[str]:
    """Return all values of a dataset; strings as a list."""
    with open_hdf5(path) as file:
        dataset = file[name]
        if h5py.check_string_dtype(dataset.dtype) is not None:
            texts: list[str] = dataset.asstr(errors="surrogateescape")[...].reshape(-1).tolist()
            return texts
        values: NDArray[Any] = dataset[...]
        return values


def read_slabs(path: str, names: Sequence[str]) -> Iterator[Mapping[str, NDArray[Any]]]:
    """Yield the rows of several datasets of equal length in order, in slabs.

    A slab has complete chunks, so that each chunk is decoded once. Raises SourceError.
    """
    with open_hdf5(path) as file:
        sets = {name: file[name] for name in names}
        rows = min(dataset.shape[0] for dataset in sets.values())
        row_bytes = sum(d.dtype.itemsize * int(np.prod(d.shape[1:], dtype=np.int64)) for d in sets.values())
        chunk = max((d.chunks[0] for d in sets.values() if d.chunks), default=1)
        step = max(1, _SLAB_BYTES // max(1, row_bytes) // chunk) * chunk
        for start in range(0, rows, step):
            stop = min(rows, start + step)
            try:
                yield {name: dataset[start:stop] for name, dataset in sets.items()}
            except OSError as error:
                raise SourceError(
                    f"{path}: its rows {start} to {stop - 1} cannot be read ({error}). Check the file."
                ) from None
