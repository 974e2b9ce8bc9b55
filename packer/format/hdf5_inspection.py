"""Where HDF5 says that the arrays of a file lie, and what a file that is no pack holds.

A stranger's file may name other files: by external links, by virtual datasets, by external storage. None of them is followed.
"""

from __future__ import annotations

import os
from dataclasses import replace
from math import prod
from typing import Any

import h5py
import numpy as np

from packer.errors import FormatError, damaged
from packer.format.hdf5_container import Extents, chunk_extents
from packer.format.header import (
    CHECKSUMS_DATASET,
    HEADER_DATASET,
    MAX_HEADER_BYTES,
    Extent,
    Header,
)

MOST_DATASETS = 8
"""Datasets of a foreign file that a message names."""
_MOST_LETTERS = 80  # of a name or dtype in that message


def described(path: str) -> dict[str, Any]:
    """Return what HDF5 says of a file that lost its trailer: "error"; or "header" (None if there is none) and "holds"; or more.

    Called by ``unsealed_hdf5.py`` in a process of its own, as libhdf5 may crash, hang or ask for all memory over a damaged file.
    """
    try:
        with h5py.File(path, "r", locking=False) as file:
            dataset = _dataset(file, HEADER_DATASET, path)
            if dataset is None or dataset.dtype.str != "|u1" or dataset.ndim != 1:
                return {"header": None, "holds": _datasets(file)}
            if not _is_plain(dataset, path):
                return {
                    "error": f"{path}: its header is stored compressed, or is larger than the file or {MAX_HEADER_BYTES} bytes;"
                    " packer writes none such. Convert the images again."
                }
            data = bytes(dataset[:])
            place = [h5py.h5o.get_info(dataset.id).addr, dataset.id.get_offset(), len(data)]
            table = _dataset(file, CHECKSUMS_DATASET, path)
            table_place = [0, 0]
            if table is not None and table.dtype.str == "<u8" and _is_plain(table, path):
                table_place = [table.id.get_offset(), int(table.nbytes)]
            header = Header.from_bytes(data, path)
            arrays = set(header.columns)
            known = arrays | {HEADER_DATASET, CHECKSUMS_DATASET, HEADER_DATASET.partition("/")[0]}
            others: list[str] = []
            file.visititems_links(lambda name, link: None if name in known else others.append(_short(name)))
        extents = read_extents(path, header)
        return {
            "header": data.decode("ascii"),
            "now": replace(header, extents=extents).to_bytes().decode("ascii"),
            "others": others[:MOST_DATASETS],
            "header_place": place,
            "table_place": table_place,
        }
    except FormatError as error:
        return {"error": str(error)}


def _datasets(file: h5py.File) -> list[str]:
    """Describe the first datasets of a file, each as "name dtype [shape]"; links to other files are not followed."""
    found: list[str] = []

    def visit(name: str, item: object) -> bool | None:
        if isinstance(item, h5py.Dataset):
            # To tell the shape of a virtual one, HDF5 opens the files that it names.
            shape = "in other files" if is_elsewhere(item.id) else f"{list(item.shape or ())}"
            found.append(f"{_short(name)} {_short(str(item.dtype))} {shape}")
        return True if len(found) > MOST_DATASETS else None  # ends the visit

    file.visititems(visit)
    return [*found[:MOST_DATASETS], "..."] if len(found) > MOST_DATASETS else found


def _short(text: str) -> str:
    return text if len(text) <= _MOST_LETTERS else text[: _MOST_LETTERS - 3] + "..."


def read_extents(path: str, header: Header) -> Extents:
    """Ask HDF5 where each array's rows lie. Raises FormatError if an array is not as the header says, or not dense."""
    found: Extents = {}
    with h5py.File(path, "r", locking=False) as file:
        for f in header.fields:
            for name in f.arrays:
                (dtype, shape), dataset = header.form(name), _dataset(file, name, path)
                extents = None
                if dataset is not None and (dataset.dtype.str, dataset.shape[1:]) == (dtype, shape):
                    row_bytes = np.dtype(dtype).itemsize * prod(shape)
                    extents = raw_extents(dataset, row_bytes, compressed=f.compressed)
                if extents is None:
                    raise FormatError(
                        f"{path}: {name!r} is missing, or has another dtype, shape or place than packer gives it."
                    )
                found[name] = extents
    return found


def raw_extents(
    dataset: h5py.Dataset, row_bytes: int, *, compressed: bool = False
) -> tuple[Extent, ...] | None:
    """Return where a dataset's rows lie in the file, compressed or raw; None where HDF5 has to find and to decode them."""
    if dataset.chunks is None:
        offset = dataset.id.get_offset()
        if offset is None and dataset.size:
            return None
        return (Extent("", offset or 0, dataset.shape[0], row_bytes),)
    if not compressed and dataset.id.get_create_plist().get_nfilters():
        return None
    return chunk_extents(dataset.id, row_bytes, compressed=compressed)


def _dataset(file: h5py.File, name: str, path: str) -> h5py.Dataset | None:
    """Return a dataset that the file itself holds; None if there is none of that name.

    A stranger's file may name others: by external links, through soft ones too, by virtual datasets, by external storage. None of them
    is followed: the links of the path must be hard ones, and the dataset's kind is seen before its shape, as HDF5 opens the sources of
    a virtual one to tell that. Raises FormatError.
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
    """Return whether a dataset's values lie in other files."""
    options = dataset.get_create_plist()
    return bool(options.get_layout() == h5py.h5d.VIRTUAL or options.get_external_count())


def _elsewhere(path: str, name: str) -> FormatError:
    return damaged(
        path,
        f"{name!r} leads to another place or file; a pack's arrays lie in the pack itself. Nothing was read there",
    )


def _is_plain(dataset: h5py.Dataset, path: str) -> bool:
    """Return whether all of a dataset's bytes lie in the file, unfiltered: a few bytes may announce a GiB of them."""
    nbytes = int(dataset.nbytes)
    return bool(
        dataset.id.get_create_plist().get_nfilters() == 0
        and nbytes <= dataset.id.get_storage_size()
        and nbytes <= min(MAX_HEADER_BYTES, os.path.getsize(path))
    )
