"""Packs of shards: opened by their index alone where that has their headers, else by each shard's trailer and header.

A shard that was opened by the index is compared with it when a file of it is first needed: before that nothing of it is read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from packer.errors import FormatError
from packer.format.file_io import check_inside
from packer.format.pack import Pack, check_extents, check_heads, open_part, read_seal, unreadable
from packer.format.shards import INDEX_FILE, Index, ListedHeader, Shard, merge_headers, read_index, seal_of


class ListedShards(set[str]):
    """Paths of shards that were found to be those of the index; of this process: another one looks by itself. See Listing."""

    def __reduce__(self) -> tuple[Any, ...]:
        return ListedShards, ()

    def confirmed(self, shard: Pack) -> bool:
        """See Listing."""
        return shard.path in self

    def confirm(self, shard: Pack) -> None:
        """See Listing."""
        if shard.path in self:
            return
        plain = replace(shard, listing=None)
        try:
            check_inside(*os.path.split(shard.path))
            if not _is_listed(plain):
                open_part(shard.path)  # says what is wrong with it, if something is
                raise not_listed(shard.path)
            check_extents(plain, lambda extent: os.stat(plain.file(extent)).st_size)
        except OSError as error:
            raise unreadable(shard.path, error) from error
        if plain.format == "npy":
            check_heads(plain)
        self.add(shard.path)


def _is_listed(shard: Pack) -> bool:
    with suppress(OSError):
        return read_seal(shard.path) == shard.seal and ListedHeader(shard.header, shard.seal).sealed
    return False


def open_shards(name: str, one: Callable[[str], Pack], *, listed: bool) -> Pack:
    """Open a directory of shards. one: opens a shard. listed: by the index alone, if it tells enough. Raises FormatError, OSError."""
    index = read_index(name)
    if listed and index.headers:
        return _by_index(name, index)
    shards: list[Pack] = []
    for line in index.shards:
        try:
            shards.append(one(check_inside(name, line.file)))
        except OSError as error:
            raise unreadable(os.path.join(name, line.file), error) from error
    check_listed(index, shards)
    return together(name, index, shards)


def together(name: str, index: Index, shards: Sequence[Pack]) -> Pack:
    """Return the pack of an index, of these shards."""
    return Pack(name, merge_headers([s.header for s in shards], index.skipped), index.digest, tuple(shards))


def check_listed(index: Index, shards: Sequence[Pack]) -> None:
    """See that opened shards are those of the index, and are alike. Raises FormatError."""
    for line, shard in zip(index.shards, shards, strict=True):
        if seal_of(shard.seal) != line.seal or shard.rows != line.rows:
            raise not_listed(shard.path)
    check_alike(index, shards)


def check_alike(index: Index, shards: Sequence[Pack]) -> None:
    """See that the shards of an index have equal fields and classes. Raises FormatError."""
    first = shards[0].header
    for shard in shards:
        if shard.header.fields != first.fields or shard.header.classes != first.classes:
            raise FormatError(
                f"{shard.path}: has other fields or classes than {index.shards[0].file}; all shards of a pack have the same."
                " Bring back the right one."
            )


def listing(shards: Sequence[Pack]) -> tuple[list[Shard], list[ListedHeader]]:
    """Return the lines of the index of these shards, and their headers, as write_index takes them."""
    lines = [Shard(os.path.basename(one.path), one.rows, seal_of(one.seal)) for one in shards]
    return lines, [ListedHeader(one.header, one.seal) for one in shards]


def not_listed(path: str) -> FormatError:
    """Return the error for a file that is not the shard it should be."""
    return FormatError(
        f"{path}: is not the shard that {INDEX_FILE} lists; it was replaced or changed."
        " Bring back the right one, or convert the images again."
    )


def _by_index(name: str, index: Index) -> Pack:
    with os.scandir(name) as entries:
        plain = {
            e.name for e in entries if e.is_file(follow_symlinks=False) or e.is_dir(follow_symlinks=False)
        }
    listing = ListedShards()
    shards = tuple(
        Pack(os.path.join(name, line.file), listed.header, listed.seal, listing=listing)
        for line, listed in zip(index.shards, index.headers, strict=True)
    )
    for line, shard in zip(index.shards, shards, strict=True):
        if line.file not in plain:  # it is missing, or a link, which may lead anywhere
            shard.confirm()
    return together(name, index, shards)
