"""A pack as one HDF5 file.

Other programs read it through HDF5; packer moves the bytes by offset with ``pwrite``.
With the oldest file layout, fixed shapes, early allocation, no fill and one sufficient metadata block, HDF5
places all chunks of a dataset back to back. Many threads can then write rows in place without a call to HDF5,
and the file is valid HDF5 at any moment.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Mapping, Sequence

import h5py
import numpy as np
from numpy.typing import NDArray

from packer.errors import FormatError
from packer.format.block_files import AddedArray
from packer.format.checksums import Trailer, digest, file_ranges, outside
from packer.format.fields import (
    Extent,
    Field,
)
from packer.format.file_io import create_anew, open_own, pread_all, pwrite_all, reserve
from packer.format.header import (
    CHECKSUMS_DATASET,
    HEADER_DATASET,
)

Extents = dict[str, tuple[Extent, ...]]
_LEAST_CHUNK_BYTES = 4 << 10
_SLACK_BYTES = 256 << 10  # for the header and HDF5's structures
_MOST_OBJECT_BYTES = 4 << 10
_CHUNK_METADATA_BYTES = 134  # per chunk in HDF5's index, measured up to 16,000 chunks
# h5py's own type of flags, whatever names it is configured with
_FLAGS = h5py.h5t.py_create(h5py.enum_dtype({"FALSE": 0, "TRUE": 1}, np.int8), logical=True)
# A filter that HDF5 knows (hdf5plugin was imported) gets a name and other settings while its dataset is
# created. So this number, which no filter has, stands for it until the file is closed.
_UNKNOWN_FILTER = 65_535
_BUILT_IN_FILTERS = 256


class Hdf5Container:
    """An HDF5 file that is being written. Owned by PackWriter."""

    def __init__(self, path: str, fields: Sequence[Field], rows: int, block_rows: int) -> None:
        """Create the file with a dataset for each fixed field; unwritten rows read as zero.

        Takes over an existing file: keeps its rows, and resets everything else to the state of a new file.
        """
        self.path = path
        self._fixed = [f for f in fields if not f.ragged and not f.compressed]
        self._block_rows = block_rows
        self._filters: list[tuple[int, int, int]] = []  # object header of a dataset, filter, its settings
        chunks = -(-rows // block_rows) * len(self._fixed)
        existing = os.path.exists(path)
        created = f"{path}.created" if existing else path
        metadata = 4096 + _CHUNK_METADATA_BYTES * chunks
        os.close(create_anew(created))
        with open_hdf5(created, "w", meta_block_size=metadata) as file:
            for f in self._fixed:
                assert f.shape is not None
                # HDF5 puts chunks under 2 KiB into blocks that it shares between datasets.
                step = min(rows, max(block_rows, -(-_LEAST_CHUNK_BYTES // f.row_bytes)))
                _create(file, f.name, np.dtype(f.dtype), (rows, *f.shape), (step, *f.shape))
        with open_hdf5(created) as file:
            self.extents: Extents = {
                f.name: chunk_extents(file[f.name].id, f.row_bytes) or () for f in self._fixed
            }
        for name, extents in self.extents.items():
            if len(extents) != 1:
                raise _other_layout(path, f"{name!r} in {len(extents)} pieces")
        self._fd = open_own(path)
        if existing:
            self._become(created)
            os.unlink(created)

    def _become(self, created: str) -> None:
        """Copy everything but the rows from a newly created file."""
        fd = os.open(created, os.O_RDONLY)
        try:
            length = os.fstat(fd).st_size
            for start, stop in outside(taken(self.extents), length):
                pwrite_all(self._fd, pread_all(fd, stop - start, start), start)
            os.ftruncate(self._fd, length)
        finally:
            os.close(fd)

    def seal(
        self,
        rows: int,
        added: Mapping[str, AddedArray],
        checksums: NDArray[np.uint64],
        header: Callable[[Extents], bytes],
    ) -> None:
        """Shrink to `rows`, add the arrays, the checksums, the header and the trailer; flush to disk."""
        self._reserve(added, checksums)
        self._filters = []
        with open_hdf5(self.path, "r+") as file:
            extents: Extents = {}
            for f in self._fixed:
                if file[f.name].shape[0] != rows:
                    file[f.name].resize(rows, axis=0)
                planned = self.extents[f.name][0]
                extents[f.name] = (Extent("", planned.offset, rows, planned.row_bytes),)
            for name, array in added.items():
                extents[name] = self._add(file, name, array)
            group = h5py.h5g.create(file.id, b"packer")
            group.close()
            [table] = self._add(file, CHECKSUMS_DATASET, AddedArray.from_array(checksums))
            text = header(extents)
            [place] = self._add(file, HEADER_DATASET, AddedArray("|u1", (len(text),), (text,), len(text)))
        for at, number, settings in self._filters:
            changes = {_filter_start(_UNKNOWN_FILTER, settings): _filter_start(number, settings)}
            if (head := _edited_object(self._fd, at, changes)) is None:
                raise _other_layout(self.path, "a dataset's filter elsewhere")
            pwrite_all(self._fd, head, at)
        length = os.fstat(self._fd).st_size
        sections = (place.offset, text), (table.offset, checksums)
        pwrite_all(self._fd, file_trailer(self._fd, extents, *sections), length)
        os.fsync(self._fd)

    def _reserve(self, added: Mapping[str, AddedArray], checksums: NDArray[np.uint64]) -> None:
        """Reserve the space that sealing needs. HDF5 would report a full disk as several unrelated errors."""
        coded = sum(len(checksums) for array in added.values() if array.codec is not None)
        needed = sum(array.nbytes for array in added.values()) + checksums.nbytes + 256 * coded + _SLACK_BYTES
        length = os.fstat(self._fd).st_size
        promised = False
        try:
            promised = reserve(self._fd, length, needed)
        finally:
            if not promised:
                os.ftruncate(self._fd, length)

    def _add(self, file: h5py.File, name: str, array: AddedArray) -> tuple[Extent, ...]:
        """Write a dataset and return its extents.

        HDF5 allocates a contiguous dataset, and ``pwrite`` fills it; a compressed one is written chunk by
        chunk.
        """
        dtype, rows = np.dtype(array.dtype), array.shape[0]
        row_bytes = dtype.itemsize * math.prod(array.shape[1:])
        if array.codec is None:
            offset = int(_create(file, name, dtype, array.shape, None).get_offset() or 0)  # None if empty
            at = offset
            for piece in array.pieces:
                pwrite_all(self._fd, piece, at)
                at += len(piece)
            return (Extent("", offset, rows, row_bytes),)
        chunk = (min(self._block_rows, rows), *array.shape[1:])
        number, settings = array.codec.hdf5_filter(chunk, dtype)
        foreign = number >= _BUILT_IN_FILTERS
        shown = _UNKNOWN_FILTER if foreign else number
        dataset = _create(file, name, dtype, array.shape, chunk, (shown, settings))
        if foreign:
            self._filters.append((h5py.h5o.get_info(dataset).addr, number, len(settings)))
        for block, data in enumerate(array.pieces):
            dataset.write_direct_chunk((block * chunk[0], *(0 for _ in chunk[1:])), data)
        return chunk_extents(dataset, row_bytes, compressed=True) or ()

    def close(self) -> None:
        """Close the file; an unsealed file stays unsealed."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


def open_hdf5(path: str, mode: str = "r", **layout: int) -> h5py.File:
    """Open a file through HDF5, whatever HDF5_DRIVER and h5py's configuration say.

    mode: as for ``h5py.File``; layout: its properties of a new file.
    """
    fixed = {"driver": "sec2", "libver": "earliest", "locking": False, "track_order": False}
    return h5py.File(path, mode, **fixed, **layout)


def _other_layout(path: str, what: str) -> FormatError:
    """Return the error for a structure that another version of HDF5 lays out differently."""
    return FormatError(
        f"{path}: HDF5 {h5py.version.hdf5_version} stores {what}, where packer cannot write. Install another"
        " h5py."
    )


def taken(extents: Mapping[str, tuple[Extent, ...]]) -> list[tuple[int, int]]:
    """Return the [start, stop) byte ranges that hold rows."""
    return [(e.offset, e.end) for es in extents.values() for e in es]


def _create(
    file: h5py.File,
    name: str,
    dtype: np.dtype[np.generic],
    shape: tuple[int, ...],
    chunk: tuple[int, ...] | None,
    filter: tuple[int, tuple[int, ...]] | None = None,
) -> h5py.h5d.DatasetID:
    """Create a dataset without fill values, allocated at once unless filtered; chunk None: contiguous."""
    options = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    options.set_obj_track_times(False)
    options.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    if chunk is not None:
        options.set_chunk(chunk)
    if filter is not None:
        # Optional: chunks are written directly, so HDF5 can create the dataset without knowing the filter.
        options.set_filter(filter[0], h5py.h5z.FLAG_OPTIONAL, filter[1])
    else:
        options.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    space = h5py.h5s.create_simple(shape)
    stored = _FLAGS if dtype.kind == "b" else h5py.h5t.py_create(dtype)
    return h5py.h5d.create(file.id, name.encode("ascii"), stored, space, options)


def chunk_extents(
    dataset: h5py.h5d.DatasetID, row_bytes: int, *, compressed: bool = False
) -> tuple[Extent, ...] | None:
    """Return the chunks of a dataset as extents; adjacent uncompressed chunks are joined.

    None if the dataset is chunked along other axes than rows, or is not dense.
    """
    stored: list[tuple[int, int, int]] = []
    dataset.chunk_iter(lambda chunk: stored.append((chunk.chunk_offset[0], chunk.byte_offset, chunk.size)))
    rows, (step, *within) = dataset.shape[0], dataset.get_create_plist().get_chunk()
    if tuple(within) != dataset.shape[1:] or len(stored) != -(-rows // step):
        return None
    extents: list[Extent] = []
    for row, offset, size in sorted(stored):
        count = min(step, rows - row)
        if compressed:
            extents.append(Extent("", offset, count, row_bytes, size))
        elif extents and extents[-1].end == offset:
            extents[-1] = Extent("", extents[-1].offset, extents[-1].rows + count, row_bytes)
        else:
            extents.append(Extent("", offset, count, row_bytes))
    return tuple(extents)


def _edited_object(fd: int, at: int, changes: Mapping[bytes, bytes]) -> bytes | None:
    """Return an object header of version 1 with each key replaced; None unless each occurs in it once."""
    nbytes = 16 + int.from_bytes(pread_all(fd, 4, at + 8), "little")
    head = pread_all(fd, min(nbytes, _MOST_OBJECT_BYTES), at)
    if head[:1] != b"\1" or any(head.count(old) != 1 for old in changes):
        return None
    for old, new in changes.items():
        head = head.replace(old, new)
    return head


def _filter_start(number: int, settings: int) -> bytes:
    """Return the start of an optional, nameless filter in a filter pipeline message of version 1."""
    return struct.pack("<4H", number, 0, h5py.h5z.FLAG_OPTIONAL, settings)


def file_trailer(
    fd: int,
    extents: Mapping[str, tuple[Extent, ...]],
    header: tuple[int, bytes],
    checksums: tuple[int, NDArray[np.uint64]],
) -> bytes:
    """Return the trailer for a file without one. header, checksums: byte offset and content."""
    length = os.fstat(fd).st_size
    return Trailer(
        length,
        header[0],
        len(header[1]),
        digest([header[1]]),
        checksums[0],
        checksums[1].nbytes,
        digest([checksums[1]]),
        digest(file_ranges(lambda at, n: pread_all(fd, n, at), outside(taken(extents), length))),
    ).to_bytes()
