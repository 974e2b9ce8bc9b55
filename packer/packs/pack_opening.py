"""Open a pack: a file, a directory of .npy files, a directory of shards, or a URL.

Opening a sealed pack reads its trailer and header, a pack of shards only its index. It touches no rows and
does not use HDF5. A shard is compared with the index before a file of it is first used; until then nothing of
it is read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from packer.errors import FormatError, MissingObjectError, UsageError, damaged
from packer.format.checksums import SIZE, Trailer
from packer.format.file_io import check_inside, not_regular, pread_path
from packer.format.header import (
    CHECKSUMS_FILE,
    HDF5_MAGIC,
    HEADER_FILE,
    INDEX_FILE,
    PARTIAL_SUFFIX,
    TRAILER_FILE,
    Header,
)
from packer.packs.pack import (
    Pack,
    read_seal,
    unreadable,
)
from packer.packs.pack_checks import (
    check_extents,
    check_heads,
    check_own,
)
from packer.packs.shards import is_header_sealed, merge_shards, not_listed, read_index
from packer.packs.unsealed_hdf5 import hdf5_end, is_foreign, read_unsealed
from packer.remote.urls import is_url
from packer.standard_streams import open_closed

_FORMAT, _FORMAT_WITHIN = b'"format":"packer"', 100  # in the first bytes of an index
_ATTEMPTS = 5  # of opening a pack that is being replaced


def open_pack(path: str | os.PathLike[str]) -> Pack:
    """Open a pack (.h5, directory or URL) and check that it is complete.

    filling.opening has the public function.
    Raises FormatError, RemoteError.
    """
    name = os.fspath(path)
    if is_url(name):
        # imported here: it takes 20 ms, which local packs do not need
        from packer.packs.remote_pack import open_remote

        return open_remote(name)
    return _open_unchanged(name, _open_shards if _has_index(name) else _open_checked)


def is_pack(path: str | os.PathLike[str]) -> bool:
    """Return True for what packer wrote as a pack, also if it is damaged, unfinished or was edited.

    Raises RemoteError.
    """
    name = os.fspath(path)
    if is_url(name):
        try:
            return bool(open_pack(name))
        except MissingObjectError:
            return False
        except FormatError:
            return True
    if name.rstrip("/").endswith(PARTIAL_SUFFIX):
        return True
    with suppress(OSError):
        header, trailer, sums, index = (
            os.path.isfile(os.path.join(name, file))
            for file in (HEADER_FILE, TRAILER_FILE, CHECKSUMS_FILE, INDEX_FILE)
        )
        if header and (trailer or sums):
            return True
        if index:  # other programs write files of that name, too
            return _FORMAT in pread_path(os.path.join(name, INDEX_FILE), _FORMAT_WITHIN, 0)
        if os.path.isfile(name):
            sealed = Trailer.from_bytes(read_seal(name)) is not None
            return sealed or (pread_path(name, 8, 0) == HDF5_MAGIC and not is_foreign(name))
    return False


def open_part(path: str) -> Pack:
    """Open one file or one directory of .npy files, without checking npy headers; for verifying."""
    return _open_unchanged(path, _open_single)


def open_damaged(path: str) -> Pack:
    """Open a pack whose arrays may be damaged, cut short or gone.

    Raises FormatError for a damaged trailer, header or index.
    """
    return _open_unchanged(path, _open_index if _has_index(path) else _open_unchecked)


def check_order(pack: str | os.PathLike[str], other: object, right: str) -> None:
    """Raise UsageError if only `other`, the argument beside the pack's path, is a pack: they are swapped.

    right: the call as it should be.
    """
    there = isinstance(other, (str, os.PathLike)) and os.path.exists(other)
    if there and not is_url(os.fspath(pack)) and not is_pack(pack) and is_pack(str(other)):
        raise UsageError(f"{pack}: is not a pack, but {other} is: they are swapped. Pass {right}.")


def _open_unchanged(name: str, open: Callable[[str], Pack]) -> Pack:
    """Open a pack; again if it was replaced meanwhile. Raises FormatError, PackerError."""
    open_closed()
    if name.endswith(PARTIAL_SUFFIX):
        raise FormatError(
            f"{name}: is a conversion that did not finish. Run the same packer convert again to continue."
        )
    try:
        for _ in range(_ATTEMPTS):
            before = _version(name)
            try:
                return open(name)
            except FormatError:
                if _version(name) == before:
                    raise
        return open(name)
    except OSError as error:
        raise unreadable(name, error) from error


def _version(name: str) -> tuple[int, ...]:
    """Return values that tell a file or folder from its replacement. Raises OSError."""
    found = os.stat(name)
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _has_index(name: str) -> bool:
    return os.path.exists(os.path.join(name, INDEX_FILE))


def _open_checked(name: str) -> Pack:
    """Open one file or one directory of .npy files, and check the npy headers."""
    pack = _open_single(name)
    check_heads(pack)
    return pack


def _open_single(name: str) -> Pack:
    """Open one file or one directory of .npy files."""
    pack = _open_unchecked(name)
    check_extents(pack)
    return pack


def _open_unchecked(name: str) -> Pack:
    if os.path.isdir(name):
        file, seal = os.path.join(name, HEADER_FILE), _directory_seal(name)
    else:
        file, seal = name, _file_seal(name)
    trailer, size = Trailer.from_bytes(seal), os.path.getsize(file)
    if trailer is None:
        raise damaged(os.path.join(name, TRAILER_FILE), "is damaged", "trailer")
    if file == name:
        trailer.check_length(name, size)
    header = Header.sealed_by(trailer, name, size, lambda offset, nbytes: pread_path(file, nbytes, offset))
    return Pack(name, header, seal)


def _file_seal(name: str) -> bytes:
    """Return a file's trailer. Raises FormatError if there is none; HDF5 tells whether the file is a pack."""
    if not stat.S_ISREG(os.stat(name).st_mode):
        raise not_regular(name)
    seal = read_seal(name)
    if Trailer.from_bytes(seal) is not None:
        return seal
    if pread_path(name, 8, 0) != HDF5_MAGIC:
        raise FormatError(f"{name}: is neither a pack nor an HDF5 file. Pass what packer convert wrote.")
    try:
        read_unsealed(name)
    except FormatError as error:
        error.part = "trailer"
        raise
    # A program that opens a file for writing cuts it at the end of HDF5's part; damage leaves more.
    if os.path.getsize(name) != hdf5_end(name):
        raise damaged(name, "trailer is damaged", "trailer")
    folder = os.path.dirname(name)
    raise FormatError(
        f"{name}: was opened for writing after it was sealed, so its rows may have changed."
        f" Run packer seal {folder if _has_index(folder) else name}.",
        part="unsealed",
    )


def _directory_seal(name: str) -> bytes:
    """Return the trailer of a directory. Raises FormatError if there is none."""
    if not os.path.exists(os.path.join(name, TRAILER_FILE)):
        edited = os.path.exists(os.path.join(name, HEADER_FILE))
        remedy = (
            f"If the copy is complete, or the pack was edited in place, run packer seal {name}."
            if edited
            else f"Run packer convert {name} OUT.h5, or packer.fill_pack(images, 'OUT.h5'),"
            " which converts while it is loaded from."
        )
        raise FormatError(
            f"{name}: is a folder without a {TRAILER_FILE!r} file, not a pack. {remedy}",
            part="trailer",
        )
    check_own(name)
    return read_seal(name) if os.path.getsize(os.path.join(name, TRAILER_FILE)) == SIZE else b""


class _Confirmed(set[str]):
    """Paths of shards that this process has compared with the index; pickling empties the set."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _Confirmed, ()


@dataclass(frozen=True)
class _ListedShard(Pack):
    """A shard as the index describes it, compared with its files before the first of them is used."""

    confirmed: _Confirmed = field(kw_only=True, compare=False, repr=False)

    def check_same(self) -> None:
        """See Pack. Skips a shard that has not been compared yet."""
        if self.path in self.confirmed:
            super().check_same()

    def confirm(self) -> None:
        """See Pack."""
        if self.path in self.confirmed:
            return
        plain = Pack(self.path, self.header, self.seal)
        try:
            check_inside(*os.path.split(self.path))
            if not _is_listed(plain):
                open_part(self.path)  # reports damage, if any
                raise not_listed(self.path)
            check_extents(plain)
            check_heads(plain)
        except OSError as error:
            raise unreadable(self.path, error) from error
        self.confirmed.add(self.path)

    def _path(self, file: str) -> str:
        self.confirm()
        return super()._path(file)


def _is_listed(shard: Pack) -> bool:
    with suppress(OSError):
        return read_seal(shard.path) == shard.seal and is_header_sealed(shard)
    return False


def _open_shards(name: str) -> Pack:
    """Open a directory of shards from its index alone."""
    index = read_index(name, make=partial(_ListedShard, confirmed=_Confirmed()))
    with os.scandir(name) as entries:
        plain = {
            e.path for e in entries if e.is_file(follow_symlinks=False) or e.is_dir(follow_symlinks=False)
        }
    for shard in index.shards:
        if shard.path not in plain:  # missing, or a link, which may lead anywhere
            shard.confirm()
    return merge_shards(name, index, index.shards)


def _open_index(name: str) -> Pack:
    """Open a directory of shards without looking at them."""
    index = read_index(name)
    return merge_shards(name, index, index.shards)
