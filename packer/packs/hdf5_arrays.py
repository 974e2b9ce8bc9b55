"""Datasets of foreign HDF5 files: their list and their values.

Values are read by offset where the file stores them raw, else through HDF5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.format.fields import Extent
from packer.format.file_io import pread_path
from packer.format.hdf5_container import open_hdf5
from packer.format.header import HEADER_DATASET
from packer.packs.hdf5_inspection import is_elsewhere, raw_extents

_SLAB_BYTES = 16 << 20
_BEGIN = 16  # bytes that tell the format of an encoded image
_OF_MATLAB = ("#refs#", "#subsystem#")  # groups of values that variables refer to
_WRITERS = (
    ("_NCProperties", "", "a NetCDF file", "xarray"),
    ("_Netcdf4Dimid", "", "a NetCDF file", "xarray"),
    ("encoding-type", "anndata", "an AnnData file", "anndata"),
    ("layer_names", "", "a file of a Keras model's weights", "Keras"),
    ("model_config", "", "a file of a Keras model's weights", "Keras"),
    ("pandas_type", "", "a pandas HDFStore", "pandas"),
    ("CLASS", "TABLE", "a table of PyTables", "pandas"),
    ("PSEUDOATOM", "object", "Python objects pickled by PyTables", "PyTables"),
)
"""Attribute, its value ("": any), what a file with it is, and the program that reads it."""


@dataclass(frozen=True)
class Hdf5Array:
    """A dataset.

    name: its path in the file. extents: places of its rows, None where HDF5 has to decode them. text: values
    are strings. turned: MATLAB wrote it, with its axes in reverse. classes: names of an enumeration from 0.
    ragged: values are lists of numbers. begin: first bytes of the first value, which may be an encoded image.
    slab: rows to decode at once, so that each chunk is decoded once.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    extents: tuple[Extent, ...] | None
    text: bool = False
    turned: bool = False
    classes: tuple[str, ...] = ()
    ragged: bool = False
    begin: bytes = b""
    slab: int = 0


def list_arrays(path: str) -> list[Hdf5Array]:
    """Return the datasets of a file in order, without following links to other places and files.

    Raises SourceError if HDF5 cannot read the file, the file is a pack or that of another program, or a
    dataset's values are stored in other files.
    """
    found: list[Hdf5Array] = []
    elsewhere: list[str] = []
    try:
        with open_hdf5(path) as file:
            if HEADER_DATASET in file:
                raise SourceError(
                    f"{path}: is a pack already. Load it, or convert it with packer repack, split or merge."
                )
            _check_writer(path, file)

            def visit(name: str, item: h5py.HLObject) -> None:
                _check_writer(path, item)
                if isinstance(item, h5py.Dataset) and not name.startswith(_OF_MATLAB):
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


def _check_writer(path: str, item: h5py.HLObject) -> None:
    """Raise SourceError for an object of a program that stores something else than arrays of samples."""
    for attribute, value, kind, program in _WRITERS if len(item.attrs) else ():
        if attribute in item.attrs and value in ("", _text(item, attribute)):
            raise SourceError(
                f"{path}: is {kind}, not arrays of samples. Read it with {program}, and pass its arrays, or "
                "its table to convert_table."
            )


def _text(item: h5py.HLObject, name: str) -> str:
    """Return an attribute as text, "" if there is none."""
    value = item.attrs.get(name, "")
    return value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)


def _matlab_class(item: h5py.Dataset) -> str:
    """Return the class that MATLAB 7.3 gave a variable, such as "double" or "cell"; "" for other files."""
    return _text(item, "MATLAB_class")


def _array(name: str, dataset: h5py.Dataset) -> Hdf5Array:
    shape, dtype, matlab = tuple(dataset.shape or ()), dataset.dtype, _matlab_class(dataset)
    if matlab == "cell":
        first = dataset.file[dataset[(0,) * len(shape)]] if dataset.size and dtype == h5py.ref_dtype else None
        text = isinstance(first, h5py.Dataset) and _matlab_class(first) == "char"
        return Hdf5Array(name, dtype, (dataset.size,) if text else shape[::-1], None, text)
    if matlab == "char":
        return Hdf5Array(name, dtype, shape[-1:], None, True)
    begin = _begin(dataset)
    if h5py.check_string_dtype(dtype) is not None:
        return Hdf5Array(name, dtype, shape, None, True, begin=begin)
    extents: tuple[Extent, ...] | None = None
    row_bytes = dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))
    chunk = (dataset.chunks or (1,))[0] if shape else 1
    if shape and dtype.kind in "iuf":
        extents = raw_extents(dataset, row_bytes) if dataset.size else None
        if extents is not None and shape[0] and not _lies_there(dataset, extents):
            extents = None  # the file has a user block, or its numbers have fewer bits than their bytes
    names = {number: name for name, number in (h5py.check_enum_dtype(dtype) or {}).items()}
    classes = (
        tuple(names[number] for number in sorted(names)) if sorted(names) == [*range(len(names))] else ()
    )
    text = bool(names) and not classes
    return Hdf5Array(
        name,
        dtype,
        shape,
        extents,
        text,
        bool(matlab),
        classes,
        h5py.check_vlen_dtype(dtype) is not None,
        begin,
        max(1, _SLAB_BYTES // max(1, row_bytes) // chunk) * chunk,
    )


def _begin(dataset: h5py.Dataset) -> bytes:
    """Return the first bytes of the first value if values could be encoded images, else b""."""
    dtype, rank = dataset.dtype, dataset.ndim
    if not dataset.size:
        return b""
    if dtype == np.uint8 and rank in (1, 2):
        return bytes(dataset[(0,) * (rank - 1) + (slice(_BEGIN),)])
    text = h5py.check_string_dtype(dtype) is not None
    if text or h5py.check_vlen_dtype(dtype) == np.uint8 or (dtype.kind == "V" and not dtype.names):
        return bytes(dataset[(0,) * rank])[:_BEGIN]
    return b""


def _lies_there(dataset: h5py.Dataset, extents: tuple[Extent, ...]) -> bool:
    """Return True if the first and the last row are where the extents say."""
    first, last = extents[0], extents[-1]
    if sum(e.rows for e in extents) != dataset.shape[0]:
        return False
    places = {0: first.offset, dataset.shape[0] - 1: last.end - last.row_bytes}
    name = dataset.file.filename
    return all(pread_path(name, first.row_bytes, at) == dataset[row].tobytes() for row, at in places.items())


def read_array(path: str, name: str) -> NDArray[Any] | list[Any]:
    """Return all values of a dataset; strings, and names of numbers, as a list. Raises SourceError."""
    with open_hdf5(path) as file:
        dataset = file[name]
        enum = h5py.check_enum_dtype(dataset.dtype)
        try:
            if _matlab_class(dataset) == "cell":
                return [_cell(file[ref]) for ref in dataset[...].reshape(-1, order="F")]
            if _matlab_class(dataset) == "char":
                return [_matlab_text(line).rstrip() for line in dataset[...].T]
            if h5py.check_string_dtype(dataset.dtype) is not None:
                texts: NDArray[Any] = dataset.asstr(errors="surrogateescape")[...]
                listed: list[Any] = (texts.reshape(-1) if texts.size == len(texts) else texts).tolist()
                return listed
            values: NDArray[Any] = dataset[...]
        except OSError as error:
            raise _unreadable(path, repr(name), error) from None
    if enum is None:
        return values
    names = {number: name for name, number in enum.items()}
    return [names.get(value, str(value)) for value in values.reshape(-1).tolist()]


def _cell(value: h5py.Dataset) -> str:
    """Return the text of a cell that MATLAB 7.3 wrote: UTF-16 code units. Raises OSError."""
    if value.dtype != np.uint16 or is_elsewhere(value.id):
        raise OSError("a cell holds no text")
    return "" if "MATLAB_empty" in value.attrs else _matlab_text(value[...].T)


def _matlab_text(codes: NDArray[np.uint16]) -> str:
    return codes.astype("<u2").tobytes().decode("utf-16-le", "replace")


def _unreadable(path: str, what: str, error: Exception) -> SourceError:
    return SourceError(
        f"{path}: {what} cannot be read ({error}). If its compression is not built into HDF5, call "
        "pack_dataset"
        " after import hdf5plugin; else check the file."
    )


def read_rows(path: str, name: str, start: int, stop: int) -> NDArray[Any]:
    """Return some rows of a dataset, decoded by HDF5. Raises SourceError."""
    with open_hdf5(path) as file:
        try:
            rows: NDArray[Any] = file[name][start:stop]
        except OSError as error:
            raise _unreadable(path, f"rows {start} to {stop - 1}", error) from None
    return rows
