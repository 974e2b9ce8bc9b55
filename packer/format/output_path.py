"""The name a pack is to get, checked before any work; what a failure to write it means to a user."""

from __future__ import annotations

import os
import re
import shutil

from packer.errors import FormatError, PackerError, SpaceError, UsageError
from packer.format.file_io import FULL
from packer.format.header import CHECKSUMS_FILE, HEADER_FILE, PARTIAL_SUFFIX, TRAILER_FILE
from packer.format.pack import Pack, open_pack
from packer.format.shards import INDEX_FILE
from packer.sentence import Option

_OTHERS = frozenset(
    [
        ".beton",
        ".csv",
        ".ffcv",
        ".json",
        ".lmdb",
        ".mdb",
        ".npy",
        ".npz",
        ".parquet",
        ".pt",
        ".pth",
        ".tar",
        ".tfrecord",
        ".zarr",
        ".zip",
    ]
)


def format_of(out: str, *, sharded: bool = False) -> str:
    """Return the format a name asks for: "h5" for ``.h5`` and ``.hdf5``, in any case, else "npy", a directory; of shards "h5".

    Raises UsageError for a name that ends as files of other formats do.
    """
    stem, ending = os.path.splitext(out.rstrip("/"))
    if ending.lower() in _OTHERS:
        raise UsageError(
            f"{out}: ends in {ending}, which packer does not write; an HDF5 file (.h5) or a directory of .npy files (no ending) is"
            f" written. Pass {stem}.h5 or {stem}, or say ",
            Option("format"),
            ".",
        )
    return "h5" if sharded or ending.lower() in (".h5", ".hdf5") else "npy"


def check_output(out: str, *, overwrite: bool) -> None:
    """Refuse an output that cannot be written, before any work. Raises UsageError or PackerError."""
    if not out:
        raise UsageError("OUT: is empty. Pass the name of a file or folder.")
    if out.rstrip("/").endswith(PARTIAL_SUFFIX):
        raise UsageError(f"{out}: ends in {PARTIAL_SUFFIX}, as unfinished work does. Pass another name.")
    parent = os.path.dirname(os.path.abspath(out))
    if os.path.lexists(out):
        if not overwrite:
            raise UsageError(
                f"{out}: exists; nothing is overwritten unasked. Pass ",
                Option("overwrite", True),
                ", or another name.",
            )
        if not _is_pack(out):
            raise UsageError(
                f"{out}: is no pack, or holds more than one; ",
                Option("overwrite", True),
                " replaces only packs. Pass another name.",
            )
    if not os.path.isdir(parent):
        raise UsageError(f"{out}: its folder {parent} does not exist. Make it, or pass another name.")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise PackerError(
            f"{out}: no permission to write in {parent}. Pass another name, or change the permission."
        )


def check_space(out: str, needed: int) -> None:
    """Refuse when the disk has less than `needed` bytes free. Raises SpaceError."""
    parent = os.path.dirname(os.path.abspath(out))
    free = shutil.disk_usage(parent).free
    if needed > free:
        raise SpaceError(
            f"{out}: needs {needed / 1e9:,.2f} GB; {parent} has {free / 1e9:,.2f} GB free."
            " Free some space, or pass a smaller size or another disk."
        )


def failure(out: str, error: OSError) -> PackerError:
    """Return the error of a failed write: SpaceError if the disk is full, else PackerError."""
    inner = re.search(r"errno = ([0-9]+)", str(error))  # h5py's errors tell it in their text
    number = int(inner[1]) if inner else error.errno
    reason = os.strerror(number) if number else "the HDF5 library could not write to the disk"
    kind = SpaceError if number in FULL else PackerError
    return kind(f"{out}: writing failed ({reason}). Free some space, or pass another disk.")


def _is_pack(path: str) -> bool:
    """Return True for a pack that, if a folder, holds nothing else: a slip of the keyboard must not cost anyone their photos."""
    try:
        pack = open_pack(path)
    except FormatError:
        return False
    return _holds_nothing_else(pack)


def _holds_nothing_else(pack: Pack) -> bool:
    if not os.path.isdir(pack.path):
        return not os.path.islink(pack.path)
    if pack.shards:
        ours = {INDEX_FILE, *(os.path.basename(shard.path) for shard in pack.shards)}
    else:
        ours = {HEADER_FILE, TRAILER_FILE, CHECKSUMS_FILE, *(f"{c}.npy" for c in pack.header.columns)}
    return set(os.listdir(pack.path)) <= ours and all(map(_holds_nothing_else, pack.shards))
