"""A pack as one HDF5 file: HDF5 describes the bytes for everyone else, offsets and ``pwrite`` move them for us.

With the oldest file layout, fixed shapes, early allocation, no fill and enough room for metadata in one piece, HDF5 puts
all chunks of a dataset back to back, so rows can be written in place from many threads while no HDF5 call is made, and the
file is valid HDF5 from the first moment.
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
from packer.format.file_io import pread_all, pwrite_all, reserve
from packer.format.header import CHECKSUMS_DATASET, HEADER_DATASET, Extent, Field
from packer.format.unsealed_hdf5 import END_OFFSET

Extents = dict[str, tuple[Extent, ...]]
_LEAST_CHUNK_BYTES = 4 << 10
_SLACK_BYTES = 256 << 10  # for the header and HDF5's structures
_CHUNK_METADATA_BYTES = 134  # of a chunk in HDF5's index, measured up to 16,000 chunks
_MOST_OBJECT_BYTES = 4 << 10
# Parts of an object header, version 1: a shape and the most it may become; a layout of version 3, contiguous, its offset and length.
_HEADER_SHAPE, _HEADER_LAYOUT = struct.Struct("<QQ"), struct.Struct("<BBQQ")


class Hdf5Container:
    """One HDF5 file being written. Owned by PackWriter."""

    def __init__(self, path: str, fields: Sequence[Field], rows: int, block_rows: int) -> None:
        """Create the file with a dataset for each fixed field, rows not yet written (they read as zero).

        A file that is there already is taken over: its rows stay, and everything else becomes what creating it gives.
        """
        self.path = path
        self._fixed = [f for f in fields if not f.ragged and not f.compressed]
        self._block_rows = block_rows
        chunks = -(-rows // block_rows) * len(self._fixed)
        existing = os.path.exists(path)
        created = f"{path}.created" if existing else path
        metadata = 4096 + _CHUNK_METADATA_BYTES * chunks
        with h5py.File(created, "w", libver="earliest", locking=False, meta_block_size=metadata) as file:
            for f in self._fixed:
                assert f.shape is not None
                # HDF5 takes chunks under 2 KiB from blocks that other datasets have a part in.
                step = min(rows, max(block_rows, -(-_LEAST_CHUNK_BYTES // f.row_bytes)))
                _create(file, f.name, np.dtype(f.dtype), (rows, *f.shape), (step, *f.shape))
        with h5py.File(created, "r", locking=False) as file:
            self.extents: Extents = {
                f.name: chunk_extents(file[f.name].id, f.row_bytes) or () for f in self._fixed
            }
        for name, extents in self.extents.items():
            if len(extents) != 1:
                raise FormatError(
                    f"{path}: HDF5 {h5py.version.hdf5_version} laid {name!r} out in {len(extents)} pieces; one is expected."
                    " Install another h5py."
                )
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        if existing:
            self._become(created)
            os.unlink(created)

    def _become(self, created: str) -> None:
        """Take over everything but the rows from a file just created."""
        fd = os.open(created, os.O_RDONLY)
        try:
            length = os.fstat(fd).st_size
            for start, stop in outside(taken(self.extents), length):
                pwrite_all(self._fd, pread_all(fd, stop - start, start), start)
            os.ftruncate(self._fd, length)
        finally:
            os.close(fd)

    def place(self, name: str, row: int) -> tuple[int, int]:
        """Return file descriptor and byte offset of a row of a fixed field."""
        extent = self.extents[name][0]
        return self._fd, extent.offset + row * extent.row_bytes

    def seal(
        self,
        rows: int,
        added: Mapping[str, AddedArray],
        checksums: NDArray[np.uint64],
        header: Callable[[Extents], bytes],
    ) -> None:
        """Shrink to `rows`, take in the arrays added, the checksums, the header, the trailer; flush to the disk."""
        self._reserve(added, checksums)
        with h5py.File(self.path, "r+", libver="earliest", locking=False) as file:
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
            [table] = self._add(file, CHECKSUMS_DATASET, AddedArray.of(checksums))
            text = header(extents)
            [place] = self._add(file, HEADER_DATASET, AddedArray("|u1", (len(text),), (text,), len(text)))
        length = os.fstat(self._fd).st_size
        sections = (place.offset, text), (table.offset, checksums)
        pwrite_all(self._fd, file_trailer(self._fd, extents, *sections), length)
        os.fsync(self._fd)

    def _reserve(self, added: Mapping[str, AddedArray], checksums: NDArray[np.uint64]) -> None:
        """Have the disk promise what sealing takes: a disk that fills within HDF5 is no error to be told, but several at once."""
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
        """Write a dataset: contiguous, past HDF5, whose space it is; or chunk by chunk as a codec made them. Return where it lies."""
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
        dataset = _create(file, name, dtype, array.shape, chunk, array.codec.hdf5_filter(chunk, dtype))
        for block, data in enumerate(array.pieces):
            dataset.write_direct_chunk((block * chunk[0], *(0 for _ in chunk[1:])), data)
        return chunk_extents(dataset, row_bytes, compressed=True) or ()

    def close(self) -> None:
        """Close the file; what was not sealed stays unsealed."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


def taken(extents: Mapping[str, tuple[Extent, ...]]) -> list[tuple[int, int]]:
    """Return the [start, stop) byte ranges in which rows lie."""
    return [(e.offset, e.end) for es in extents.values() for e in es]


def _create(
    file: h5py.File,
    name: str,
    dtype: np.dtype[np.generic],
    shape: tuple[int, ...],
    chunk: tuple[int, ...] | None,
    filter: tuple[int, tuple[int, ...]] | None = None,
) -> h5py.h5d.DatasetID:
    """Create a dataset whose space exists at once, unless filtered, and is never filled; chunk None: contiguous."""
    options = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    options.set_obj_track_times(False)
    options.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    if chunk is not None:
        options.set_chunk(chunk)
    if filter is not None:
        # Optional: HDF5 need not know the filter to make the dataset, as chunks are written past it.
        options.set_filter(filter[0], h5py.h5z.FLAG_OPTIONAL, filter[1])
    else:
        options.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    space = h5py.h5s.create_simple(shape)
    return h5py.h5d.create(file.id, name.encode("ascii"), h5py.h5t.py_create(dtype), space, options)


def chunk_extents(
    dataset: h5py.h5d.DatasetID, row_bytes: int, *, compressed: bool = False
) -> tuple[Extent, ...] | None:
    """Return the chunks of a dataset: each, where they are compressed, else joined where they lie back to back.

    None if it is not chunked along rows only, or not dense.
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


def replace_header(fd: int, end: int, place: tuple[int, int, int], data: bytes) -> int | None:
    """Give the header's dataset of an existing file another text, past HDF5; return its byte offset.

    end: of HDF5's part of the file; place: byte offsets of the dataset's object header and of its data, and its length. The text is
    written behind the end, which then moves, and at last the dataset is pointed to it. Each of these is one small write: a process
    that is killed in between leaves a file that HDF5 reads. Returns None, and writes nothing, if HDF5's structures are not those that
    packer writes.
    """
    at, offset, length = place
    nbytes = 16 + int.from_bytes(pread_all(fd, 4, at + 8), "little")
    head = pread_all(fd, min(nbytes, _MOST_OBJECT_BYTES), at)
    shape, layout = _HEADER_SHAPE.pack(length, length), _HEADER_LAYOUT.pack(3, 1, offset, length)
    if head[:1] != b"\1" or head.count(shape) != 1 or head.count(layout) != 1:
        return None
    head = head.replace(shape, _HEADER_SHAPE.pack(len(data), len(data)))
    head = head.replace(layout, _HEADER_LAYOUT.pack(3, 1, end, len(data)))
    pwrite_all(fd, data, end)
    os.fsync(fd)
    pwrite_all(fd, (end + len(data)).to_bytes(8, "little"), END_OFFSET)
    pwrite_all(fd, head, at)
    return end


def file_trailer(
    fd: int,
    extents: Mapping[str, tuple[Extent, ...]],
    header: tuple[int, bytes],
    checksums: tuple[int, NDArray[np.uint64]],
) -> bytes:
    """Return the trailer of a file of which HDF5's part is all there is. header, checksums: with their byte offsets."""
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
