"""Packs whose arrays were edited in place after sealing: open them as they are.

An HDF5 file that was opened for writing has lost its trailer. A directory keeps its trailer when its arrays
are edited.
"""

from __future__ import annotations

import os

from packer.errors import FormatError
from packer.format.file_io import ASIDE, check_inside
from packer.format.header import CHECKSUMS_FILE, HEADER_FILE, MAX_HEADER_BYTES, TRAILER_FILE, Header
from packer.format.pack import Pack, check_extents, check_heads, check_own
from packer.format.pack_opening import open_part
from packer.format.shards import check_alike, read_index, together
from packer.format.unsealed_hdf5 import read_unsealed


def open_unsealed(path: str) -> Pack:
    """Open a pack whose files were opened for writing after sealing. HDF5 tells where its rows are.

    Raises FormatError.
    """
    if not os.path.isdir(path):
        return _checked(path, read_unsealed(path).header)
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


def open_edited(path: str) -> Pack:
    """Open a pack of one part to seal it again.

    Raises FormatError unless its arrays are those in its header, with the same form; OSError.
    """
    if not os.path.isdir(path):
        unsealed = read_unsealed(path)
        header, others = unsealed.header, unsealed.others
    else:
        check_own(path)
        with open(os.path.join(path, HEADER_FILE), "rb") as file:
            header = Header.from_bytes(file.read(MAX_HEADER_BYTES), path)
        ours = {HEADER_FILE, CHECKSUMS_FILE, TRAILER_FILE, *(f"{name}.npy" for name in header.columns)}
        others = sorted({name.removesuffix(ASIDE) for name in os.listdir(path)} - ours)
    if others:
        raise FormatError(
            f"{path}: holds {others[0]!r}, which its header does not name; a pack holds nothing else. Remove"
            " it."
        )
    return _checked(path, header)


def _checked(path: str, header: Header) -> Pack:
    pack = Pack(path, header, b"")
    check_extents(pack)
    check_heads(pack)
    return pack
