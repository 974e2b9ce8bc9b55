"""Putting right what describes a pack's rows, from what is left of it; convert/repair.py does the rows themselves.

    trailer, header      one flipped bit is found by trying each: their own digests tell when it is the right one
    checksum table       computed anew from whole rows
    npy headers, HDF5's  made anew, as they follow from the header
    structures

Everything is written only when its digest is the one that was sealed.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

from packer.codecs.blocks import codec_from_record
from packer.errors import FormatError, PackerError
from packer.format.blocks import Added, Coded, Stream
from packer.format.checksums import digest, file_ranges, outside
from packer.format.files import pread_all, pwrite_all
from packer.format.header import CHECKSUMS_FILE, HEADER_FILE, OFFSETS, TRAILER_FILE, Extent, Header
from packer.format.npy import PREAMBLE, array_head, preamble
from packer.format.output import remove
from packer.format.pack import Pack, read_seal
from packer.format.rehash import rehash
from packer.format.shards import INDEX_FILE, parsed
from packer.format.trailer import SIZE, Trailer
from packer.machine import cores

Extents = dict[str, tuple[Extent, ...]]
_TRIED_BYTES = 64 << 10  # a longer header would take minutes


def mend_ends(path: str) -> list[str]:
    """Put a flipped bit of the trailer or the header right, so that the pack opens. Returns what was mended, in words.

    What is damaged further is left as it is; a pack of one part.
    """
    mended: list[str] = []
    directory = os.path.isdir(path)
    seal = read_seal(path)
    if Trailer.from_bytes(seal) is None:
        right = _flipped_back(seal, lambda data: Trailer.from_bytes(data) is not None)
        if right is None:
            return mended
        file = os.path.join(path, TRAILER_FILE) if directory else path
        _write(file, os.path.getsize(file) - SIZE, right)
        seal, mended = right, ["the trailer"]
    trailer = Trailer.from_bytes(seal)
    assert trailer is not None
    file = os.path.join(path, HEADER_FILE) if directory else path
    if trailer.header_length <= _TRIED_BYTES:
        data = _read(file, trailer.header_offset, trailer.header_length)
        if digest([data]) != trailer.header_digest:
            right = _flipped_back(data, lambda header: digest([header]) == trailer.header_digest)
            if right is not None:
                _write(file, trailer.header_offset, right)
                mended.append("the header")
    return mended + (_mend_lengths(path, trailer) if directory else [])


def _mend_lengths(path: str, trailer: Trailer) -> list[str]:
    """Give the arrays of a directory the npy heads and the lengths that they had; what is missing of their rows reads as zero."""
    data = _read(os.path.join(path, HEADER_FILE), 0, trailer.header_length)
    if digest([data]) != trailer.header_digest:
        return []
    mended, header = [], Header.from_bytes(data, path)
    for array, extents in header.extents.items():
        for e in extents:
            file = os.path.join(path, e.file)
            if e.offset == PREAMBLE and os.path.exists(file):
                head = array_head(header, array)
                if _read(file, 0, PREAMBLE) != head:
                    _write(file, 0, head)
                    mended.append("what describes the arrays")
            if os.path.exists(file) and os.path.getsize(file) < e.end:
                os.truncate(file, e.end)
                mended.append(f"the length of {e.file}")
    return mended


def mend_index(folder: str) -> list[str]:
    """The same for the index of a pack of shards. Returns what was mended, in words."""
    path = os.path.join(folder, INDEX_FILE)
    data = _read(path, 0, min(os.path.getsize(path), _TRIED_BYTES))
    if parsed(data) is not None:
        return []
    right = _flipped_back(data, lambda index: parsed(index) is not None)
    if right is None:
        return []
    _write(path, 0, right)
    return ["the index"]


def mend_table(pack: Pack) -> None:
    """Write the checksum table anew, from rows that are whole. Raises PackerError if it is not the one that was sealed."""
    trailer = _trailer(pack)
    table = rehash(pack, threads=cores(), progress=lambda done: None, watches={}).table
    if digest([table]) != trailer.checksums_digest:
        raise PackerError(
            f"{pack.path}: its checksum table cannot be mended, since some rows are still damaged."
        )
    file = os.path.join(pack.path, CHECKSUMS_FILE) if pack.format == "npy" else pack.path
    _write(file, trailer.checksums_offset, table.tobytes())


def mend_structures(pack: Pack, planned: int, block_rows: int) -> None:
    """Write what describes the arrays to HDF5 or NumPy anew; rows and checksum table are whole.

    planned: rows before skipped inputs were left out; block_rows: of a block then. Raises PackerError if what comes out is not what
    was sealed (another version of HDF5 may lay a file out otherwise).
    """
    (_mend_npy if pack.format == "npy" else _mend_hdf5)(pack, planned, block_rows)


def _mend_npy(pack: Pack, planned: int, block_rows: int) -> None:
    header = pack.header
    for name in header.columns:
        (extent,) = header.extents[name]
        file = os.path.join(pack.path, extent.file)
        _write(file, 0, array_head(header, name))
        os.truncate(file, extent.end)
    file = os.path.join(pack.path, CHECKSUMS_FILE)
    shape = (header.blocks, len(header.columns))
    _write(file, 0, preamble("<u8", shape))
    os.truncate(file, PREAMBLE + 8 * shape[0] * shape[1])
    os.truncate(os.path.join(pack.path, HEADER_FILE), _trailer(pack).header_length)


def _mend_hdf5(pack: Pack, planned: int, block_rows: int) -> None:
    from packer.format.hdf5 import Hdf5Container, taken

    header, trailer, made = pack.header, _trailer(pack), f"{pack.path}.mending"
    remove(made)
    try:
        container = Hdf5Container(made, header.fields, planned, block_rows)
        try:
            table = pack.checksums()
            found: list[Extents] = []
            container.seal(header.rows, _hollow(pack), table, lambda extents: _same(found, extents, pack))
        finally:
            container.close()
        with open(made, "rb") as file:
            ranges = outside(taken(header.extents), trailer.container_length)
            if not found or digest(file_ranges(file.fileno(), ranges)) != trailer.rest_digest:
                raise PackerError(
                    f"{pack.path}: this version of HDF5 lays files out otherwise, so its structures cannot be mended; the rows are whole."
                    f" Make a new file of them: packer repack {pack.path} OUT."
                )
            for start, stop in ranges:
                _write(pack.path, start, pread_all(file.fileno(), stop - start, start))
    except EOFError:
        raise PackerError(
            f"{pack.path}: its structures cannot be mended. Run packer repack {pack.path} OUT."
        ) from None
    finally:
        remove(made)


def _same(found: list[Extents], extents: Extents, pack: Pack) -> bytes:
    """The pack's own header, if a file just made has its rows in the same places."""
    if extents == dict(pack.header.extents):
        found.append(extents)
    return pack.header.to_bytes()


def _hollow(pack: Pack) -> dict[str, Added]:
    """What was added to the pack when it was put together, with nothing in it but sizes: enough to lay a file out alike."""
    added: dict[str, Added] = {}
    for f in pack.header.fields:
        extents = pack.header.extents[f.name]
        if f.compressed:
            added[f.name] = Coded(
                f, codec_from_record(dict(f.codec or {})), (bytes(e.nbytes) for e in extents), 0
            )
        elif f.ragged:
            added[f.name] = Stream(sum(e.rows for e in extents), ())
            added[f.name + OFFSETS] = np.zeros(pack.rows + 1, "<i8")
    return added


def _flipped_back(data: bytes, right: Callable[[bytes], bool]) -> bytes | None:
    """The data with one bit flipped for which `right` holds, or None."""
    trial = bytearray(data)
    for position in range(len(trial)):
        for bit in range(8):
            trial[position] ^= 1 << bit
            if right(bytes(trial)):
                return bytes(trial)
            trial[position] ^= 1 << bit
    return None


def _trailer(pack: Pack) -> Trailer:
    trailer = Trailer.from_bytes(pack.seal)
    if trailer is None:
        raise FormatError(
            f"{pack.path}: was opened for writing since it was made, so nothing tells how it was. Convert the images again."
        )
    return trailer


def _read(path: str, offset: int, count: int) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    try:
        return pread_all(fd, count, offset)
    finally:
        os.close(fd)


def _write(path: str, offset: int, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        pwrite_all(fd, data, offset)
        os.fsync(fd)
    finally:
        os.close(fd)
