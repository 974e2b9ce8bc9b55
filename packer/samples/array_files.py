"""Arrays in files (.npy, .npz, HDF5, MATLAB 7.3) as columns."""

from __future__ import annotations

import os
import zlib
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.format.fields import Extent
from packer.packs.hdf5_arrays import Hdf5Array, list_arrays, read_array
from packer.pixels.image_files import format_of_image
from packer.samples.columns import ArrayColumn, Column, FileColumn, Hdf5Column, ListColumn, TurnedColumn
from packer.source_kinds import HDF5, HDF5_BEGIN, is_hdf5

_MATLAB = ".mat"
_HDF5 = (*HDF5, _MATLAB)
_HDF5_BEGINS = (b"MATLAB 7.3", HDF5_BEGIN)
_DECODED_BYTES = 256 << 20  # rows of a larger compressed dataset are staged instead of held in memory
_WEAK = ("", "BMP", "PPM")  # formats whose files begin with two bytes, as numbers may
_FROM_MATLAB = (
    "flat = lambda d, at='': {{k: v for n, x in d.items() if n[:2] != '__' for k, v in (flat(x, at + n + "
    "'/') if isinstance(x, dict) else {{at + n: x}}).items()}}; numpy.savez({0!r}, "
    "**flat(scipy.io.loadmat({1!r}, simplify_cells=True)))"
)


def open_array_file(path: str) -> list[Column]:
    """Return the arrays of a file; a .npy file's array has the file's name.

    Members of structured arrays are arrays of their own, called array/member. Raises SourceError.
    """
    found = _open_columns(path)
    for column in found:
        column.path = path
    return found


def _open_columns(path: str) -> list[Column]:
    if not os.path.isfile(path):
        raise SourceError(f"{path}: is not a file. Check the path.")
    if path.lower().endswith(_HDF5) or is_hdf5(path):
        _check_matlab(path)
        return [column for one in list_arrays(path) for column in _hdf5_columns(path, one)]
    stem = os.path.splitext(os.path.basename(path))[0]
    try:
        if path.lower().endswith(".npz"):
            # np.load would leave a file open that is not an archive.
            with open(path, "rb") as file, NpzFile(file) as members:
                return [
                    column
                    for name in members.files
                    for column in _columns(name, f"{path}/{name}", _member(members, name))
                ]
        with open(path, "rb") as file:
            if (objects := _objects(file)) is not None:
                return [Column(stem, path, objects.dtype, objects.shape)]
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError, BadZipFile, zlib.error) as error:
        raise SourceError(
            f"{path}: NumPy cannot read it ({error}). Write it again with np.save, without objects."
        ) from None
    if not mapped.ndim:
        raise SourceError(f"{path}: holds a single value; an array [N, ...] is needed. Check the file.")
    [column, *others] = _columns(stem, path, mapped)
    plain = not others and column.dtype.kind not in "OUSV"
    if plain and mapped.flags.c_contiguous and mapped.size and isinstance(mapped, np.memmap):
        extent = Extent("", int(mapped.offset), len(mapped), mapped.nbytes // len(mapped))
        found = FileColumn(stem, path, path, mapped.dtype, mapped.shape, (extent,))
        found.encoded = column.encoded
        return [found]
    return [column, *others]


def is_encoded(begin: bytes) -> bool:
    """Return True for the first bytes of an image file."""
    return format_of_image(begin)[0] not in _WEAK


def _check_matlab(path: str) -> None:
    """Raise SourceError for a file of MATLAB before 7.3."""
    with open(path, "rb") as file:
        begin = file.read(16)
    if path.lower().endswith(_MATLAB) and not begin.startswith(_HDF5_BEGINS):
        to = os.path.basename(path)[: -len(_MATLAB)] + ".npz"
        raise SourceError(
            f"{path}: is a MATLAB file of an older version than 7.3, which packer does not read. Turn it into"
            f" .npz: {_FROM_MATLAB.format(to, path)}."
        )


def _member(members: NpzFile, name: str) -> NDArray[Any] | Column:
    """Return an array of an .npz file, or a column that cannot be read for one of Python objects."""
    archive = members.zip
    if archive is not None and f"{name}.npy" in archive.namelist():
        with archive.open(f"{name}.npy") as file:
            if (objects := _objects(file)) is not None:
                return objects
    return np.asarray(members[name])


def _objects(file: Any) -> Column | None:
    """Return the column of a .npy file if it holds Python objects, which are not unpickled; else None."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    return Column("", "", dtype, shape) if dtype.hasobject else None


def _columns(name: str, where: str, array: NDArray[Any] | Column) -> list[Column]:
    """Return the column of an array; the columns of its members if it is structured; [] of a single value."""
    if isinstance(array, Column):
        return [Column(name, where, array.dtype, array.shape)] if array.shape else []
    if array.dtype.names and array.ndim:
        return [
            column
            for member in array.dtype.names
            for column in _columns(f"{name}/{member}", f"{where}/{member}", array[member])
        ]
    if not array.ndim:
        return []
    column = ArrayColumn(name, where, array)
    if array.size and array.dtype.kind in "SV":
        column.encoded = is_encoded(
            array.flat[0].tobytes() if array.dtype.kind == "V" else bytes(array.flat[0])
        )
    elif array.size and array.dtype == np.uint8 and array.ndim <= 2:
        column.encoded = is_encoded(array.reshape(-1)[:16].tobytes())
    return [column]


def _hdf5_columns(path: str, one: Hdf5Array) -> list[Column]:
    """Return the column of a dataset, or the columns of its members; [] of a single value."""
    where = f"{path}/{one.name}"
    encoded = is_encoded(one.begin)
    if not one.shape and not encoded:
        return []
    column: Column = Hdf5Column(where, path, one.name, one.dtype, one.shape, one.slab)
    if encoded or (one.dtype.kind in "OV" and not (one.text or one.dtype.names or one.ragged)):
        column = Column(one.name, where, one.dtype, one.shape)
    elif one.text:
        column = ListColumn(one.name, where, list(read_array(path, one.name)))
    elif one.dtype.names:
        return _columns(one.name, where, np.asarray(read_array(path, one.name)))
    elif one.extents is not None and one.shape[0]:
        column = FileColumn(one.name, where, path, one.dtype, one.shape, one.extents)
    elif column.row_bytes * column.shape[0] <= _DECODED_BYTES:
        column = ArrayColumn(one.name, where, np.asarray(read_array(path, one.name)))
    column.encoded, column.classes = encoded, one.classes
    return [_matlab_column(column) if one.turned else column]


def _matlab_column(column: Column) -> Column:
    """Return a variable of MATLAB with its axes in MATLAB's order; vectors have one axis.

    Vectors of whole numbers are integers: MATLAB's numbers are floats unless they are declared.
    """
    if column.shape.count(1) < len(column.shape) - 1 or len(column.shape) != 2:
        return TurnedColumn(column, range(len(column.shape))[::-1])
    values = np.concatenate([*column.pieces()]).reshape(-1)
    if values.dtype.kind == "f" and (values == np.trunc(values)).all():
        values = values.astype(np.int64)
    return ArrayColumn(column.name, column.where, values)
