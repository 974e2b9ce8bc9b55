"""A pack as a directory of plain ``.npy`` files, for ``np.load("pack/image.npy", mmap_mode="r")``."""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.format.block_files import AddedArray
from packer.format.checksums import Trailer, digest
from packer.format.fields import (
    Extent,
    Field,
)
from packer.format.file_io import PRIVATE, open_own, pwrite_all, write_synced
from packer.format.header import (
    CHECKSUMS_FILE,
    HEADER_FILE,
    TRAILER_FILE,
    Header,
)

Extents = dict[str, tuple[Extent, ...]]
PREAMBLE = 128  # bytes before the data; constant, so that a shape can be rewritten in place


class NpyContainer:
    """A directory that is being written, with the methods of Hdf5Container. Owned by PackWriter."""

    def __init__(self, path: str, fields: Sequence[Field], rows: int, block_rows: int) -> None:
        """Create a sparse file for each fixed field in an existing directory.

        Existing files of fixed fields keep their rows; other files are removed.
        """
        self.path = path
        self._fixed = [f for f in fields if not f.ragged]
        self._columns = [name for f in fields for name in f.arrays]
        self._fds: dict[str, int] = {}
        self.extents: Extents = {}
        for name in set(os.listdir(path)) - {f"{f.name}.npy" for f in self._fixed}:
            os.unlink(os.path.join(path, name))
        for f in self._fixed:
            if f.compressed:
                raise UsageError(
                    f"{path}: {f.name!r} would be compressed; .npy files cannot be."
                    " Pass an output that ends in .h5."
                )
            file = os.path.join(path, f"{f.name}.npy")
            self._fds[f.name] = open_own(file, mode=PRIVATE)
            self._resize(f, rows)

    def _resize(self, f: Field, rows: int) -> bytes:
        """Resize the file of a fixed field to `rows` rows; return its npy header."""
        head, fd = preamble(f.dtype, (rows, *(f.shape or ()))), self._fds[f.name]
        extent = Extent(f"{f.name}.npy", PREAMBLE, rows, f.row_bytes)
        pwrite_all(fd, head, 0)
        os.ftruncate(fd, extent.end)
        self.extents[f.name] = (extent,)
        return head

    def seal(
        self,
        rows: int,
        added: Mapping[str, AddedArray],
        checksums: NDArray[np.uint64],
        header: Callable[[Extents], bytes],
    ) -> None:
        """Shrink to `rows`, add the arrays, the checksums, the header and the trailer; flush to disk."""
        preambles: dict[str, bytes] = {}
        for f in self._fixed:
            preambles[f.name] = self._resize(f, rows)
            os.fsync(self._fds[f.name])
        extents = dict(self.extents)
        for name, array in added.items():
            preambles[name] = preamble(array.dtype, array.shape)
            self._new(f"{name}.npy", itertools.chain((preambles[name],), array.pieces))
            extent = Extent(f"{name}.npy", PREAMBLE, array.shape[0], np.dtype(array.dtype).itemsize)
            extents[name] = (extent,)
        self._new(CHECKSUMS_FILE, (preamble(checksums.dtype.str, checksums.shape), checksums.tobytes()))
        header_bytes = header(extents)
        self._new(HEADER_FILE, (header_bytes,))
        heads = [preambles[name] for name in self._columns]
        self._new(TRAILER_FILE, (directory_trailer(header_bytes, checksums, heads),))

    def close(self) -> None:
        """Close the files; an unsealed directory stays unsealed."""
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()

    def _new(self, name: str, pieces: Iterable[bytes]) -> None:
        write_synced(os.path.join(self.path, name), pieces)


def directory_trailer(header: bytes, checksums: NDArray[np.uint64], heads: Iterable[bytes]) -> bytes:
    """Return the trailer of a directory. heads: npy headers of the arrays in column order."""
    sums = digest([header]), digest([checksums]), digest(heads)
    return Trailer(0, 0, len(header), sums[0], PREAMBLE, checksums.nbytes, sums[1], sums[2]).to_bytes()


def array_head(header: Header, array: str) -> bytes:
    """Return the npy header of an array as the pack's header describes it.

    Raises ValueError, see preamble.
    """
    dtype, shape = header.form(array)
    return preamble(dtype, (sum(e.rows for e in header.extents[array]), *shape))


def preamble(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return the header of a .npy file (format 1.0), always PREAMBLE bytes.

    Source of the layout: numpy/lib/format.py. Raises ValueError for a shape whose text does not fit (over 60
    characters).
    """
    text = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    room = PREAMBLE - 10
    if len(text) >= room:
        raise ValueError(f"shape {shape} is too long for a npy header of {PREAMBLE} bytes")
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", room) + text.ljust(room - 1).encode("ascii") + b"\n"
