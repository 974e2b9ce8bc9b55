"""Where HDF5 places the arrays of a file, and what a foreign HDF5 file holds.

A stranger's file may refer to other files through external links, virtual datasets or external storage.
packer follows none of these references.
"""

from __future__ import annotations

import os
from dataclasses import replace
from math import prod
from typing import Any

import h5py
import numpy as np

from packer.errors import FormatError, damaged
from packer.format.fields import Extent
from packer.format.hdf5_container import Extents, chunk_extents, open_hdf5
from packer.format.header import (
    CHECKSUMS_DATASET,
    HEADER_DATASET,
    MAX_HEADER_BYTES,
    Header,
)

MOST_DATASETS = 8
"""Maximum number of datasets of a foreign file that a message names."""
_MOST_LETTERS = 80  # of a name or dtype in that message


def described(path: str) -> dict[str, Any]:
    """Return HDF5's description of a file without a trailer.

    A dict with "error"; or, for a foreign file, "holds"; or all details of a pack.
    Runs in a separate process (``unsealed_hdf5.py``): a damaged file can make libhdf5 crash, hang or exhaust
    memory.
    """
    try:
        with open_hdf5(path) as file:
            dataset = _dataset(file, HEADER_DATASET, path)
            if dataset is None or dataset.dtype.str != "|u1" or dataset.ndim != 1:
                return {"holds": _datasets(file)}
            if not _is_plain(dataset, path):
                return {
                    "error": f"{path}: its header is compressed, or larger than the file or than"
                    f" {MAX_HEADER_BYTES} bytes; packer writes no such header. Convert the images again."
                }
            data = bytes(dataset[:])
            header = Header.from_bytes(data, path)
            arrays = set(header.columns)
            known = arrays | {HEADER_DATASET, CHECKSUMS_DATASET, HEADER_DATASET.partition("/")[0]}
            others: list[str] = []
            file.visititems_links(lambda name, link: None if name in known else others.append(_short(name)))
        extents = read_extents(path, header)
        return {
            "now": replace(header, extents=extents).to_bytes().decode("ascii"),
            "others": others[:MOST_DATASETS],
        }
    except FormatError as error:
        return {"error": str(error)}


def _datasets(file: h5py.File) -> list[str]:
    """Describe a file's first datasets as "name dtype [shape]", without following links to other files."""
    found: list[str] = []

    def visit(name: str, item: object) -> bool | None:
        if isinstance(item, h5py.Dataset):
            # HDF5 opens the source files of a virtual dataset to read its shape.
            shape = "in other files" if is_elsewhere(item.id) else f"{list(item.shape or ())}"
            found.append(f"{_short(name)} {_short(str(item.dtype))} {shape}")
        return True if len(found) > MOST_DATASETS else None  # ends the visit

    file.visititems(visit)
    return [*found[:MOST_DATASETS], "..."] if len(found) > MOST_DATASETS else found


def _short(text: str) -> str:
    return text if len(text) <= _MOST_LETTERS else text[: _MOST_LETTERS - 3] + "..."


def read_extents(path: str, header: Header) -> Extents:
    """Return each array's extents according to HDF5.

    Raises FormatError if one differs from the header or is not dense.
    """
    found: Extents = {}
    with open_hdf5(path) as file:
        for f in header.fields:
            for name in f.arrays:
                (dtype, shape), dataset = header.form(name), _dataset(file, name, path)
                extents = None
                if dataset is not None and (dataset.dtype.str, dataset.shape[1:]) == (dtype, shape):
                    row_bytes = np.dtype(dtype).itemsize * prod(shape)
                    extents = raw_extents(dataset, row_bytes, compressed=f.compressed)
                if extents is None:
                    raise FormatError(
                        f"{path}: {name!r} is missing, or has another dtype, shape or place than packer gives"
                        " it."
                    )
                found[name] = extents
    return found


def raw_extents(
    dataset: h5py.Dataset, row_bytes: int, *, compressed: bool = False
) -> tuple[Extent, ...] | None:
    """Return the extents of a dataset's rows; None where only HDF5 can locate and decode them."""
    if dataset.chunks is None:
        offset = dataset.id.get_offset()
        if offset is None and dataset.size:
            return None
        return (Extent("", offset or 0, dataset.shape[0], row_bytes),)
    if not compressed and dataset.id.get_create_plist().get_nfilters():
        return None
    return chunk_extents(dataset.id, row_bytes, compressed=compressed)


def _dataset(file: h5py.File, name: str, path: str) -> h5py.Dataset | None:
    """Return a dataset that is stored in the file itself; None if there is none of that name.

    Follows no reference to another file: each link of the path must be a hard one. The kind of the dataset is
    checked before its shape, because HDF5 opens the sources of a virtual dataset to compute the shape. Raises
    FormatError.
    """
    place = file.id
    for part in name.encode("ascii").split(b"/"):
        if not isinstance(place, h5py.h5g.GroupID) or not place.links.exists(part):
            return None
        if place.links.get_info(part).type != h5py.h5l.TYPE_HARD:
            raise _elsewhere(path, name)
        place = h5py.h5o.open(place, part)
    if not isinstance(place, h5py.h5d.DatasetID):
        return None
    if is_elsewhere(place):
        raise _elsewhere(path, name)
    return h5py.Dataset(place)


def is_elsewhere(dataset: h5py.h5d.DatasetID) -> bool:
    """Return True if a dataset's values are stored in other files."""
    options = dataset.get_create_plist()
    return bool(options.get_layout() == h5py.h5d.VIRTUAL or options.get_external_count())


def _elsewhere(path: str, name: str) -> FormatError:
    return damaged(
        path,
        f"{name!r} leads to another place or file, which packer did not read;"
        " a pack's arrays lie in the pack",
    )


def _is_plain(dataset: h5py.Dataset, path: str) -> bool:
    """Return True if a dataset's bytes are all in the file, unfiltered.

    A few bytes can declare a GiB of data.
    """
    nbytes = int(dataset.nbytes)
    return bool(
        dataset.id.get_create_plist().get_nfilters() == 0
        and nbytes <= dataset.id.get_storage_size()
        and nbytes <= min(MAX_HEADER_BYTES, os.path.getsize(path))
    )
