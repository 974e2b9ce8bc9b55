"""What describes a pack's rows, made again from what is left of the pack; convert/repair.py makes the rows themselves.

    checksum table           computed again from whole rows
    npy heads, lengths,      made again, as they follow from the header
    HDF5's structures

Everything is kept only when its digest is the one that was sealed. A damaged header, trailer or index is not repaired.
"""

from __future__ import annotations

import os

import numpy as np

from packer.codecs.block_codecs import codec_from_record
from packer.errors import PackerError, damaged
from packer.format.block_files import AddedArray, CompressedArray, StreamedArray
from packer.format.block_hashing import hash_blocks
from packer.format.checksums import digest, file_ranges, outside
from packer.format.file_io import pread_all, pread_path, pwrite_path, remove
from packer.format.header import CHECKSUMS_FILE, HEADER_FILE, OFFSETS, Extent, Header
from packer.format.npy_container import PREAMBLE, array_head, preamble
from packer.format.pack import Pack, read_seal
from packer.format.trailer import Trailer
from packer.starting import cores

Extents = dict[str, tuple[Extent, ...]]
STRUCTURES = "what describes the arrays"
"""To HDF5 or NumPy: what restore_arrays and restore_structures make again, in words."""


def restore_arrays(path: str) -> list[str]:
    """Give the files of a directory of arrays the npy heads and the lengths that its header says, so that the pack opens.

    What is missing of their rows reads as zero. Returns what was restored, in words; nothing of a pack that is one file, or whose
    trailer or header is damaged.
    """
    if not os.path.isdir(path):
        return []
    try:
        trailer = Trailer.from_bytes(read_seal(path))
        data = (
            b"" if trailer is None else pread_path(os.path.join(path, HEADER_FILE), trailer.header_length, 0)
        )
    except OSError:
        return []
    if trailer is None or digest([data]) != trailer.header_digest:
        return []
    restored, header = [], Header.from_bytes(data, path)
    for array, extents in header.extents.items():
        for e in extents:
            file = os.path.join(path, e.file)
            if e.offset == PREAMBLE and os.path.exists(file):
                head = array_head(header, array)
                if pread_path(file, PREAMBLE, 0) != head:
                    pwrite_path(file, head, 0)
                    restored.append(STRUCTURES)
            if os.path.exists(file) and os.path.getsize(file) < e.end:
                os.truncate(file, e.end)
                restored.append(f"the length of {e.file}")
    return restored


def restore_table(pack: Pack) -> None:
    """Write the checksum table anew, from rows that are whole. Raises PackerError if it is not the one that was sealed."""
    trailer = _trailer(pack)
    table = hash_blocks(pack, threads=cores(), progress=lambda done: None, checks={}).table
    if digest([table]) != trailer.checksums_digest:
        raise PackerError(
            f"{pack.path}: its checksum table cannot be mended, since some rows are still damaged."
        )
    file = os.path.join(pack.path, CHECKSUMS_FILE) if pack.format == "npy" else pack.path
    with open(file, "ab"):  # made if it is missing
        pass
    pwrite_path(file, table.tobytes(), trailer.checksums_offset)


def restore_structures(pack: Pack, planned: int, block_rows: int) -> None:
    """Write what describes the arrays to HDF5 or NumPy anew; rows and checksum table are whole.

    planned: rows before skipped inputs were left out; block_rows: of a block then. Raises PackerError if what comes out is not what
    was sealed (another version of HDF5 may lay a file out otherwise).
    """
    (_restore_npy if pack.format == "npy" else _restore_hdf5)(pack, planned, block_rows)


def _restore_npy(pack: Pack, planned: int, block_rows: int) -> None:
    header = pack.header
    for name in header.columns:
        (extent,) = header.extents[name]
        file = os.path.join(pack.path, extent.file)
        pwrite_path(file, array_head(header, name), 0)
        os.truncate(file, extent.end)
    file = os.path.join(pack.path, CHECKSUMS_FILE)
    shape = (header.blocks, len(header.columns))
    pwrite_path(file, preamble("<u8", shape), 0)
    os.truncate(file, PREAMBLE + 8 * shape[0] * shape[1])
    os.truncate(os.path.join(pack.path, HEADER_FILE), _trailer(pack).header_length)


def _restore_hdf5(pack: Pack, planned: int, block_rows: int) -> None:
    from packer.format.hdf5_container import Hdf5Container, taken

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
                pwrite_path(pack.path, pread_all(file.fileno(), stop - start, start), start)
    except EOFError:
        raise PackerError(
            f"{pack.path}: its structures cannot be mended. Run packer repack {pack.path} OUT."
        ) from None
    finally:
        remove(made)


def _same(found: list[Extents], extents: Extents, pack: Pack) -> bytes:
    """Return the pack's own header, and note if a file just made has its rows in the same places."""
    if extents == dict(pack.header.extents):
        found.append(extents)
    return pack.header.to_bytes()


def _hollow(pack: Pack) -> dict[str, AddedArray]:
    """Return what was added to the pack when it was put together, with nothing in it but sizes: enough to lay a file out alike."""
    added: dict[str, AddedArray] = {}
    for f in pack.header.fields:
        extents = pack.header.extents[f.name]
        if f.compressed:
            added[f.name] = CompressedArray(
                f, codec_from_record(dict(f.codec or {})), (bytes(e.nbytes) for e in extents), 0
            )
        elif f.ragged:
            added[f.name] = StreamedArray(sum(e.rows for e in extents), ())
            added[f.name + OFFSETS] = np.zeros(pack.rows + 1, "<i8")
    return added


def _trailer(pack: Pack) -> Trailer:
    trailer = Trailer.from_bytes(pack.seal)
    if trailer is None:
        raise damaged(pack.path, "was opened for writing since it was made, so nothing tells how it was")
    return trailer
