"""Packs of shards: opened by their index alone where that has their headers, else by each shard's trailer and header.

A shard that was opened by the index is compared with it when a file of it is first needed: before that nothing of it is read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from packer.errors import FormatError
from packer.format.file_io import check_inside
from packer.format.header import Extent
from packer.format.listed_headers import ListedHeader, seal_of
from packer.format.pack import Pack, check_extents, check_heads, open_part, read_seal, unreadable
from packer.format.shards import INDEX_FILE, Index, Shard, merge_headers, read_index


class Confirmed(set[str]):
    """Paths of shards that were found to be those of the index; of this process: another one looks by itself."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Confirmed, ()


@dataclass(frozen=True)
class ListedShard(Pack):
    """A shard as its pack's index describes it. Its path is given to nobody before it was found to be that one."""

    confirmed: Confirmed = field(kw_only=True, compare=False, repr=False)

    @property
    def format(self) -> str:
        """See Pack."""
        return "npy" if any(e.file for extents in self.header.extents.values() for e in extents) else "h5"

    def place(self, extent: Extent) -> str:
        """See Pack."""
        return super()._path(extent.file)

    def check_same(self) -> None:
        """See Pack: if it was looked at before; else it will be when it is needed."""
        if self.path in self.confirmed:
            super().check_same()

    def confirm(self) -> None:
        """See Pack."""
        if self.path in self.confirmed:
            return
        try:
            check_inside(*os.path.split(self.path))
            if not self._is_listed():
                open_part(self.path)  # says what is wrong with it, if something is
                raise not_listed(self.path)
            plain = Pack(self.path, self.header, self.seal)
            check_extents(plain, lambda extent: os.stat(plain.file(extent)).st_size)
        except OSError as error:
            raise unreadable(self.path, error) from error
        if self.format == "npy":
            check_heads(plain)
        self.confirmed.add(self.path)

    def _is_listed(self) -> bool:
        with suppress(OSError):
            return read_seal(self.path) == self.seal and ListedHeader(self.header, self.seal).sealed
        return False

    def _path(self, file: str) -> str:
        self.confirm()
        return super()._path(file)


@dataclass(frozen=True)
class ListedPack(Pack):
    """A pack of shards as its index describes it. numbers: of the shards, by their names."""

    numbers: Mapping[str, int] = field(kw_only=True, compare=False, repr=False)

    def confirm(self) -> None:
        """See Pack."""
        for shard in self.shards:
            shard.confirm()

    def _path(self, file: str) -> str:
        if not file:
            return self.path
        name, _, own = file.partition("/")
        return self.shards[self.numbers[name]]._path(own)


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
    header = merge_headers([s.header for s in shards], [s.file for s in index.shards], index.skipped)
    return Pack(name, header, index.digest, tuple(shards))


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


def _by_index(name: str, index: Index) -> ListedPack:
    files = [line.file for line in index.shards]
    with os.scandir(name) as entries:
        plain = {
            e.name for e in entries if e.is_file(follow_symlinks=False) or e.is_dir(follow_symlinks=False)
        }
    confirmed = Confirmed()
    shards = tuple(
        ListedShard(os.path.join(name, file), listed.header, listed.seal, confirmed=confirmed)
        for file, listed in zip(files, index.headers, strict=True)
    )
    for file, shard in zip(files, shards, strict=True):
        if file not in plain:  # it is missing, or a link, which may lead anywhere
            shard.confirm()
    header = merge_headers([listed.header for listed in index.headers], files, index.skipped)
    numbers = {file: number for number, file in enumerate(files)}
    return ListedPack(name, header, index.digest, shards, numbers=numbers)
