"""Checks of an output before any work: its name, its folder, what it would replace, free space."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

from packer import units
from packer.arguments import absolute
from packer.errors import FormatError, PackerError, SpaceError, UsageError
from packer.format.checksums import Trailer
from packer.format.header import CHECKSUMS_FILE, HEADER_FILE, INDEX_FILE, PARTIAL_SUFFIX, TRAILER_FILE
from packer.packs.pack import Pack, read_seal
from packer.packs.pack_opening import open_pack
from packer.packs.shards import NEXT_INDEX_FILE, read_index
from packer.source_kinds import is_hdf5_name, is_other_file


def format_of(out: str, *, sharded: bool = False) -> str:
    """Return the format for a name: "h5" or "npy".

    "h5" for the suffixes of HDF5 in any case, and for shards; else "npy", a directory. Raises UsageError for
    a name with the suffix of another kind of file.
    """
    stem, ending = os.path.splitext(out.rstrip("/"))
    if is_other_file(out):
        raise UsageError(
            f"{out}: ends in {ending}, which packer does not write; it writes an HDF5 file (.h5) or a "
            f"directory of .npy files (no ending). Pass {stem}.h5 or {stem}, or "
            "format=."
        )
    return "h5" if sharded or is_hdf5_name(out) else "npy"


def check_output(out: str, *, overwrite: bool) -> None:
    """Raise UsageError or PackerError, before any work, for an output that cannot be written."""
    if not out:
        raise UsageError("OUT: is empty. Pass the name of a file or folder.")
    if out.rstrip("/").endswith(PARTIAL_SUFFIX):
        raise UsageError(f"{out}: ends in {PARTIAL_SUFFIX}, as unfinished work does. Pass another name.")
    check_name(
        out, overwrite=overwrite, ours=_is_pack, other="is not a pack, or holds other files", kinds="packs"
    )


def check_name(out: str, *, overwrite: bool, ours: Callable[[str], bool], other: str, kinds: str) -> None:
    """Raise UsageError or PackerError for a name that cannot be written.

    ours: returns True for an existing path that may be replaced; other: message for a path that may not;
    kinds: noun for paths that may.
    """
    parent = os.path.dirname(absolute(out))
    if os.path.lexists(out):
        if not overwrite:
            raise UsageError(
                f"{out}: exists; nothing is overwritten unasked. Pass overwrite=True, or another name."
            )
        if not ours(out):
            raise UsageError(f"{out}: {other}; overwrite=True replaces only {kinds}. Pass another name.")
    if not os.path.isdir(parent):
        raise UsageError(f"{out}: its folder {parent} does not exist. Create it, or pass another name.")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise PackerError(
            f"{out}: no permission to write in {parent}. Pass another name, or change the permission."
        )


def check_space(out: str, needed: int) -> None:
    """Raise SpaceError if the disk has less than `needed` bytes free."""
    parent = os.path.dirname(os.path.abspath(out))
    free = shutil.disk_usage(parent).free
    if needed > free:
        raise SpaceError(
            f"{out}: needs {units.size(needed)}; {parent} has {units.size(free)} free."
            " Free some space, or pass a smaller size or another disk."
        )


def _is_pack(path: str) -> bool:
    """Return True for a pack. A folder must hold nothing else: a typo must not delete anyone's photos."""
    try:
        if os.path.isfile(path):  # its trailer tells, without a header of megabytes
            trailer = Trailer.from_bytes(read_seal(path))
            if trailer is not None:
                trailer.check_length(path, os.path.getsize(path))
            return trailer is not None and not os.path.islink(path)
        pack = open_pack(path)
        pack.confirm()
    except FormatError:
        return False
    return _holds_nothing_else(pack)


def unlisted_shards(path: str) -> list[Pack]:
    """Return shards that a killed append had moved into a pack of shards and not yet listed."""
    try:
        coming = read_index(path, NEXT_INDEX_FILE).shards
        listed = {(shard.name, shard.seal) for shard in read_index(path).shards}
    except (OSError, FormatError):
        return []
    return [shard for shard in coming if (shard.name, shard.seal) not in listed and _has_seal(shard)]


def _has_seal(shard: Pack) -> bool:
    try:
        return read_seal(shard.path) == shard.seal
    except OSError:
        return False


def _holds_nothing_else(pack: Pack) -> bool:
    if not os.path.isdir(pack.path):
        return not os.path.islink(pack.path)
    if pack.shards:
        ours = {INDEX_FILE, NEXT_INDEX_FILE, *(shard.name for shard in pack.shards)}
        ours |= {shard.name for shard in unlisted_shards(pack.path)}
    else:
        ours = {HEADER_FILE, TRAILER_FILE, CHECKSUMS_FILE, *(f"{c}.npy" for c in pack.header.columns)}
    return set(os.listdir(pack.path)) <= ours and all(map(_holds_nothing_else, pack.shards))
