"""Packs whose arrays were edited in place after sealing: open them as they are, seal them again.

An HDF5 file that was opened for writing has lost its trailer. A directory keeps its trailer when its arrays
are edited, so sealing removes it first: a pack whose sealing is killed has no trailer in either form.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer.errors import BusyError, FormatError
from packer.format.file_io import (
    ASIDE,
    check_inside,
    fsync_path,
    open_own,
    pread_path,
    pwrite_all,
    remove,
    write_synced,
)
from packer.format.hdf5_container import file_trailer, replace_header
from packer.format.header import CHECKSUMS_FILE, HEADER_FILE, MAX_HEADER_BYTES, TRAILER_FILE, Header
from packer.format.npy_container import PREAMBLE, array_head, directory_trailer, preamble
from packer.format.pack import Pack, check_extents, check_heads, check_own
from packer.format.pack_opening import open_part
from packer.format.shards import check_alike, read_index, together
from packer.format.unsealed_hdf5 import UnsealedFile, hdf5_end, read_unsealed

_Table = NDArray[np.uint64]
Publish = Callable[[Pack], None]


def open_unsealed(path: str) -> Pack:
    """Open a pack whose files were opened for writing after sealing. HDF5 tells where its rows are.

    Raises FormatError.
    """
    if not os.path.isdir(path):
        return _opened(path, read_unsealed(path).header)
    index, shards = read_index(path), []
    for listed in index.shards:
        try:
            shards.append(open_part(check_inside(path, listed.name)))
        except FormatError as error:
            if error.part != "unsealed":
                raise
            shards.append(open_unsealed(listed.path))
    check_alike(shards)
    return together(path, index, shards)


def open_edited(path: str) -> EditedFile | EditedDirectory:
    """Open a pack of one part to seal it again.

    Raises FormatError unless its arrays are those in its header, with the same form and place; OSError.
    """
    return _open_directory(path) if os.path.isdir(path) else _open_file(path)


@dataclass(frozen=True)
class EditedFile:
    """An HDF5 file. pack: its present content, unsealed."""

    pack: Pack
    described: UnsealedFile

    def table(self) -> _Table:
        """Return the checksum table that was written when the file was last sealed."""
        return _table(self.pack, self.pack.path, self.described.table_place[0])

    def seal(self, header: Header, table: _Table, publish: Publish) -> None:
        """Write the header, the checksums and the trailer, in this order.

        Raises FormatError, BusyError, OSError.
        publish: called with the sealed pack before its trailer is written.
        """
        path, unsealed = self.pack.path, self.described
        with open(open_own(os.path.realpath(path)), "r+b", buffering=0) as file:
            try:
                # HDF5 also holds this lock while it has the file open.
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BusyError(
                    f"{path}: is open in another program. Close it there, then seal it."
                ) from None
            fd, text, at = file.fileno(), header.to_bytes(), unsealed.header_place
            end = hdf5_end(path)
            offset = at[1] if text == unsealed.text or end is None else replace_header(fd, end, at, text)
            if end is None or offset is None:
                raise _rows_moved(path)
            # Cut off anything that an interrupted sealing left behind.
            os.ftruncate(fd, end if text == unsealed.text else end + len(text))
            pwrite_all(fd, table.tobytes(), unsealed.table_place[0])
            os.fsync(fd)
            trailer = file_trailer(fd, header.extents, (offset, text), (unsealed.table_place[0], table))
            publish(Pack(path, header, trailer))
            pwrite_all(fd, trailer, os.fstat(fd).st_size)
            os.fsync(fd)


@dataclass(frozen=True)
class EditedDirectory:
    """A directory of .npy files. pack: its present content, unsealed."""

    pack: Pack

    def table(self) -> _Table:
        """See EditedFile."""
        return _table(self.pack, os.path.join(self.pack.path, CHECKSUMS_FILE), PREAMBLE)

    def seal(self, header: Header, table: _Table, publish: Publish) -> None:
        """See EditedFile. Removes the old trailer first; each file is renamed into place once complete.

        Raises OSError.
        """
        text = header.to_bytes()
        remove(os.path.join(self.pack.path, TRAILER_FILE))
        fsync_path(self.pack.path)
        write_synced(os.path.join(self.pack.path, HEADER_FILE), (text,))
        head = preamble("<u8", table.shape)
        write_synced(os.path.join(self.pack.path, CHECKSUMS_FILE), (head, table.tobytes()))
        trailer = directory_trailer(text, table, [array_head(header, name) for name in header.columns])
        publish(Pack(self.pack.path, header, trailer))
        write_synced(os.path.join(self.pack.path, TRAILER_FILE), (trailer,))


def _open_file(path: str) -> EditedFile:
    unsealed = read_unsealed(path)
    header = unsealed.header
    if unsealed.others:
        raise _unnamed(path, unsealed.others[0])
    same = all(
        f.compressed or header.extents[a] == unsealed.planned[a] for f in header.fields for a in f.arrays
    )
    if not same or unsealed.table_place[1] != 8 * header.blocks * len(header.columns):
        raise _rows_moved(path)
    return EditedFile(_opened(path, header), unsealed)


def _open_directory(path: str) -> EditedDirectory:
    check_own(path)
    with open(os.path.join(path, HEADER_FILE), "rb") as file:
        header = Header.from_bytes(file.read(MAX_HEADER_BYTES), path)
    ours = {HEADER_FILE, CHECKSUMS_FILE, TRAILER_FILE, *(f"{name}.npy" for name in header.columns)}
    if others := sorted({name.removesuffix(ASIDE) for name in os.listdir(path)} - ours):
        raise _unnamed(path, others[0])
    return EditedDirectory(_opened(path, header))


def _opened(path: str, header: Header) -> Pack:
    pack = Pack(path, header, b"")
    check_extents(pack)
    check_heads(pack)
    return pack


def _table(pack: Pack, file: str, offset: int) -> _Table:
    shape = pack.header.blocks, len(pack.header.columns)
    data = pread_path(file, 8 * shape[0] * shape[1], offset)
    return np.frombuffer(data.ljust(8 * shape[0] * shape[1], b"\0"), "<u8").reshape(shape)


def _unnamed(path: str, name: str) -> FormatError:
    return FormatError(
        f"{path}: holds {name!r}, which its header does not name; a pack holds nothing else. Remove it."
    )


def _rows_moved(path: str) -> FormatError:
    return FormatError(
        f"{path}: its rows are not where packer wrote them. Rewrite the pack: packer repack {path} NEW.h5."
    )
