"""Packs written to stores: made on a disk of this machine first, then written as whole objects, an index of shards last.

A pack that replaces another is whole before anything of that goes: its shards get names that the other's do not have, then the index
is replaced, then the shards that the old index listed are removed. Interrupted at any moment, the store has the old pack or the new.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar, cast

from packer.convert.engines import DistributedEngine, engine_of
from packer.errors import FormatError, MissingObjectError, RemoteError, UsageError
from packer.format.checksums import digest
from packer.format.file_io import own_folder, remove
from packer.format.pack import Pack, open_pack
from packer.format.shards import (
    INDEX_FILE,
    generation_after,
    index_digest,
    read_index,
    shard_name,
    write_index,
)
from packer.remote.urls import is_url, join, name_of
from packer.sentence import Option

S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")
Out = str | os.PathLike[str]


def published(convert: Callable[Concatenate[S, Out, P], R]) -> Callable[Concatenate[S, Out, P], R]:
    """Decorate a conversion so that its output may be a URL.

    The pack is made in this user's folder in that for temporary files (TMPDIR), under a name that the URL decides, so that ``resume``
    finds it again, and removed once the store has it. Stores get HDF5 packs.
    """

    @wraps(convert)
    def made(source: S, out: Out, *args: P.args, **options: P.kwargs) -> R:
        if not is_url(out):
            return convert(source, out, *args, **options)
        url, given = str(out).rstrip("/"), cast("dict[str, Any]", options)
        if given.get("format") == "npy":
            raise UsageError(f"{url}: stores get HDF5 packs. Leave out {Option('format', 'npy')}.")
        if given.get("only_shards") is not None:
            raise UsageError(
                f"{url}: parts of a pack are made in a folder. Leave out {Option('only_shards')}, or "
                "pass a folder."
            )
        old = _find_old(url, overwrite=bool(given.get("overwrite")))
        local = _local(url)
        given |= {"format": "h5", "overwrite": not given.get("resume")}
        engine = engine_of(given.get("engine"))
        if isinstance(engine, DistributedEngine):
            given["engine"] = replace(engine, url=url, generation=old.generation)
        report = convert(source, local, *args, **options)
        sharded = isinstance(engine, DistributedEngine)
        if not sharded:
            pack = open_pack(local)
            _write(pack, url, old.generation)
            sharded = bool(pack.shards)
        remove(os.path.dirname(local))
        notes = (*report.notes, *old.remove(url, sharded=sharded))  # type: ignore[attr-defined]
        changed: R = replace(report, out=url, notes=notes)  # type: ignore[type-var]
        return changed

    return cast("Callable[Concatenate[S, Out, P], R]", made)


class _OldPack(NamedTuple):
    """The pack that a store has under a URL. file: it is one object; shards: names that its index lists, () without an index."""

    file: bool
    shards: tuple[str, ...]

    @property
    def generation(self) -> int:
        """Generation of the shards that replace these."""
        return generation_after(self.shards)

    def remove(self, url: str, *, sharded: bool) -> list[str]:
        """Remove what is no part of the pack that has replaced it; returns notes on what could not be. sharded: the new pack is."""
        from packer.format.remote_pack import (  # local conversions need not load it
            check_replaceable,
            open_shards,
        )
        from packer.remote import access

        if not (self.file or self.shards):
            return []
        kept = {shard.path for shard in open_shards(url).shards} if sharded else {url}
        try:
            if self.shards and not sharded:
                access.delete(join(url, INDEX_FILE))
            for name in (*([url] if self.file else []), *(join(url, file) for file in self.shards)):
                with suppress(UsageError):  # an index may list anything
                    if name not in kept and check_replaceable(name):
                        access.delete(name)
        except RemoteError as error:
            return [f"What the replaced pack had is still there: {error}"]
        return []


def _find_old(url: str, *, overwrite: bool) -> _OldPack:
    """Find the pack of that name. Raises UsageError if there is one, without `overwrite`, or something else."""
    from packer.format.remote_pack import check_replaceable, open_shards
    from packer.remote import access

    for name in () if overwrite else (url, join(url, INDEX_FILE)):
        try:
            access.stat(name)
        except MissingObjectError:
            continue
        raise UsageError(f"{name}: is there already. Pass another name, or {Option('overwrite', True)}.")
    if not overwrite:
        return _OldPack(False, ())
    file = check_replaceable(url)
    try:
        listed = open_shards(url).shards
    except MissingObjectError:
        listed = ()
    except FormatError:
        raise UsageError(
            f"{join(url, INDEX_FILE)}: is there, and is no index of a pack; only packs are replaced. Pass another name, or remove it."
        ) from None
    return _OldPack(file, tuple(os.path.basename(shard.path) for shard in listed))


def _local(url: str) -> str:
    """Return where the pack for a URL is made."""
    folder = os.path.join(own_folder(), digest([url.encode("utf-8", "surrogateescape")]).hex()[:16])
    os.makedirs(folder, mode=0o700, exist_ok=True)
    return os.path.join(folder, name_of(url))


def _write(pack: Pack, url: str, generation: int) -> None:
    """Write a pack's files, and see that the store has it. Raises RemoteError, FormatError, UsageError."""
    from packer.format.remote_pack import open_object, open_shards, put_pack
    from packer.remote import access

    seal = pack.seal
    if pack.shards:
        index = read_index(pack.path)
        lines = [
            line._replace(file=shard_name(number, "h5", generation) if generation > 1 else line.file)
            for number, line in enumerate(index.shards)
        ]
        for line, shard in zip(lines, pack.shards, strict=True):
            put_pack(join(url, line.file), shard.path)
        with tempfile.TemporaryDirectory(dir=os.path.dirname(pack.path)) as folder:
            if generation > 1:
                write_index(folder, lines, index.skipped, index.headers)
            else:
                shutil.copy(os.path.join(pack.path, INDEX_FILE), folder)
            seal = index_digest(folder)
            access.put_file(
                join(url, INDEX_FILE), os.path.join(folder, INDEX_FILE), patience=access.ROWS_PATIENCE
            )
    else:
        put_pack(url, pack.path)
    written = open_shards(url) if pack.shards else open_object(url)
    written.confirm()
    if written.seal != seal:
        raise FormatError(
            f"{url}: is another pack than the one that was written there. Look for who writes it, too."
        )
