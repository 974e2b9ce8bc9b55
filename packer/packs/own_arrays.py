"""open_arrays: somebody's own arrays as a pack, read where they lie, without a copy and without checks.

HDF5 datasets and .npy files become extents in their files; arrays in memory are read from there
(read/field_rows.py).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.channels import COLORS
from packer.declared_types import checks_arguments
from packer.errors import FormatError, UsageError
from packer.format.fields import (
    Extent,
    Field,
    beside_images,
    is_field_name,
)
from packer.format.header import Header
from packer.format.header_forms import DTYPES, MAX_RANK
from packer.packs.pack import Pack

_BLOCK_BYTES = 4 << 20
_PIXELS = ("|u1", "<u2")


@dataclass(frozen=True, repr=False)
class ArraysPack(Pack):
    """Arrays that are read as a pack. memory: arrays that are not in files. files: size and time of each."""

    memory: Mapping[str, NDArray[Any]] = field(kw_only=True)
    files: Mapping[str, tuple[int, int]] = field(kw_only=True)

    def __fspath__(self) -> str:
        """Raise UsageError, because the arrays are no pack on the disk."""
        raise UsageError(f"{self.path}: are arrays, not a pack on the disk. Pass what packer convert wrote.")

    def __repr__(self) -> str:
        names = ", ".join(f.name for f in self.fields)
        return f"{self.path}: {self.rows:,} rows ({names}), read in place: no copy, no checksums"

    def check_same(self) -> None:
        """See Pack: sizes and modification times of the files. Raises FormatError."""
        for path, before in self.files.items():
            if _state(path) != before:
                raise FormatError(f"{path}: was changed after it was opened. Open it again.")

    def settled(self) -> Pack:
        """See Pack."""
        self.check_same()
        return self

    def _path(self, file: str) -> str:
        return file


@checks_arguments
def open_arrays(path: str | os.PathLike[str] | None = None, /, **fields: Any) -> Pack:
    """Open HDF5 datasets, .npy files or NumPy arrays for loading, without conversion and without a copy.

    Both datasets take the result in place of a pack. Order, shuffling, ranks, resuming, windows and
    augmentation are those of packs; rows are not shuffled on the disk, and have no checksums.

    Parameters
    ----------
    path : path, optional
        An HDF5 file whose datasets `fields` name.
    **fields
        Field -> dataset in the file; or without `path` a .npy file, an array or a memory map [N, ...]. Images
        [N, H, W, C] or [N, H, W] of 8 or 16 bits are called ``image``, labels ``label``; a field with a value
        for each pixel of the images is a mask.

    Returns
    -------
    Pack

    Raises
    ------
    UsageError
        An array cannot be read in place: compressed, split across its rows, not in C order, of another byte
        order or type. `packer convert` takes it.

    Examples
    --------
    >>> import numpy as np
    >>> from packer import PackedBatchDataset, open_arrays
    >>> pack = open_arrays(image=np.zeros((10, 8, 8, 3), np.uint8), label=np.arange(10))
    >>> [list(images.shape) for images, labels in PackedBatchDataset(pack, 4)]
    [[4, 3, 8, 8], [4, 3, 8, 8], [2, 3, 8, 8]]
    """
    given = f"open_arrays({', '.join(f'{name}=...' for name in fields)})"
    if not fields:
        raise UsageError(
            "open_arrays: names no field. Pass for example open_arrays('own.h5', image='images', label='y'),"
            " or image='x.npy'."
        )
    for name in fields:
        if not is_field_name(name):
            raise UsageError(f"open_arrays: {name!r} is no name for a field. Pass another, such as image.")
    if path is None:
        found = {name: _placed(*_array(name, value)) for name, value in fields.items()}
    else:
        found = _datasets(os.fspath(path), fields)
    rows = {name: one.shape[0] for name, one in found.items()}
    if len(set(rows.values())) > 1:
        lengths = ", ".join(f"{name} {count:,}" for name, count in rows.items())
        raise UsageError(f"{given}: have different numbers of rows ({lengths}). Pass arrays of equal length.")
    made = [_field(given, name, one.dtype, one.shape[1:]) for name, one in found.items()]
    image = next((f for f in made if f.name == "image"), None)
    count = next(iter(rows.values()))
    header = Header(
        count,
        max(1, min(count, _BLOCK_BYTES // max(f.row_bytes for f in made))),
        tuple(beside_images(f, image) for f in made),
        {name: one.extents for name, one in found.items()},
    )
    memory = {name: one.memory for name, one in found.items() if one.memory is not None}
    files = sorted({e.file for name, one in found.items() if name not in memory for e in one.extents})
    where = ", ".join(files)
    if not where:
        where = f"{given} at {next(iter(memory.values())).ctypes.data:#x}" if memory else given
    return ArraysPack(where, header, b"", memory=memory, files={file: _state(file) for file in files})


class _Placed(NamedTuple):
    """An array, and the places of its rows. memory: the array itself, if it is in no file."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    extents: tuple[Extent, ...]
    memory: NDArray[Any] | None = None


def _datasets(path: str, fields: Mapping[str, object]) -> dict[str, _Placed]:
    """Return the datasets of an HDF5 file that fields name. Raises UsageError, SourceError."""
    if not os.path.isfile(path):
        raise UsageError(f"{path}: no such file; an HDF5 file is read. Check the path.")
    from packer.packs.hdf5_arrays import list_arrays  # imports h5py, which loading does not need otherwise

    known = {array.name: array for array in list_arrays(path)}
    found = {}
    for name, dataset in fields.items():
        if dataset not in known:
            raise UsageError(
                f"{path}: has no dataset {dataset!r}; it has {', '.join(known)}. Pass one of them."
            )
        array = known[str(dataset)]
        places = () if array.turned else array.extents or ()
        if not places and array.shape[:1] != (0,):
            names = {str(known_as): new for new, known_as in fields.items()}
            raise _not_in_place(f"{path}: {dataset!r}", f"{path!r}, 'OUT.h5', fields=Fields(rename={names})")
        file = os.path.abspath(path)
        extents = tuple(Extent(file, e.offset, e.rows, e.row_bytes) for e in places)
        found[name] = _Placed(array.dtype, array.shape, extents)
    return found


def _state(path: str) -> tuple[int, int]:
    """Return size and modification time. Raises FormatError."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise FormatError(f"{path}: cannot be read ({error.strerror}). Check the path.") from None
    return status.st_size, status.st_mtime_ns


def _array(name: str, value: Any) -> tuple[str, NDArray[Any]]:
    """Return the array of an argument, mapped if it is a .npy file, and its name for messages."""
    if isinstance(value, np.ndarray):
        return f"open_arrays: {name}", value
    if not isinstance(value, (str, os.PathLike)):
        raise UsageError(f"open_arrays: {name} is no array and no .npy file. Pass one of them.")
    try:
        return os.fspath(value), np.load(value, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{os.fspath(value)}: cannot be mapped by NumPy ({error}). Check the file."
        ) from None


def _placed(subject: str, values: NDArray[Any]) -> _Placed:
    """Return an array with its place in its file, or in memory. Raises UsageError unless it is in C order."""
    if not values.flags.c_contiguous or not values.ndim:
        raise _not_in_place(subject, "'ARRAY.npy', 'OUT.h5'")
    if not values.size:
        return _Placed(values.dtype, values.shape, ())
    row_bytes, base = values.nbytes // len(values), values
    while isinstance(base, np.ndarray) and isinstance(base.base, np.ndarray):
        base = base.base
    if isinstance(base, np.memmap) and base.filename is not None and base.mode != "c":
        offset = base.offset + values.ctypes.data - base.ctypes.data
        extent = Extent(os.path.abspath(base.filename), offset, len(values), row_bytes)
        return _Placed(values.dtype, values.shape, (extent,))
    extent = Extent(f"memory:{secrets.token_hex(8)}", 0, len(values), row_bytes)
    return _Placed(values.dtype, values.shape, (extent,), values)


def _field(given: str, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Field:
    """Return a field with the meaning that its name and shape have. Raises UsageError."""
    if dtype.str not in DTYPES or len(shape) > MAX_RANK or not all(shape):
        raise _not_in_place(f"{given}: {name}", "'ARRAY.npy', 'OUT.h5'")
    about = {}
    if name == "image" and dtype.str in _PIXELS:
        shape = (*shape, 1) if len(shape) == 2 else shape
        if len(shape) == 3 and shape[2] not in COLORS and shape[0] in COLORS:
            raise UsageError(
                f"{given}: image is {list(shape)}, channels first; pixels are read in place as [H, W, C]. Run"
                " packer convert, which turns them."
            )
        if len(shape) == 3 and shape[2] in COLORS:
            about = {"layout": "HWC", "color": COLORS[shape[2]]}
    if name == "label" and set(shape) == {1} and dtype.kind in "iub":
        shape = ()
    return Field(name, dtype.str, shape, about)


def _not_in_place(subject: str, arguments: str) -> UsageError:
    return UsageError(
        f"{subject} is not read in place: it is compressed, in chunks across its rows, not in C order, or"
        f" holds no little-endian numbers. Write a pack: pack_dataset({arguments})."
    )
