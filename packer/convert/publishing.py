"""Packs written to stores: made on a disk of this machine first, then written as whole objects, an index of shards last."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from packer.convert.engines import PartsEngine, local_name, pool_of
from packer.errors import FormatError, MissingObjectError, UsageError
from packer.format.file_io import remove
from packer.format.header import INDEX_FILE
from packer.format.pack import Pack
from packer.format.pack_opening import open_pack
from packer.remote.urls import is_url, join
from packer.sentence import Option

S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")
Out = str | os.PathLike[str]


def published(convert: Callable[Concatenate[S, Out, P], R]) -> Callable[Concatenate[S, Out, P], R]:
    """Decorate a conversion so that its output may be a URL, and its engine other processes.

    The pack is made in this user's folder in that for temporary files (TMPDIR), under a name that the URL decides, so that ``resume``
    finds it again, and removed once the store has it. Stores get HDF5 packs, each name one.
    """

    @wraps(convert)
    def made(source: S, out: Out, *args: P.args, **options: P.kwargs) -> R:
        url, given = str(out).rstrip("/") if is_url(out) else "", cast("dict[str, Any]", options)
        if (pool := pool_of(given.get("engine"))) is not None:
            name = f"{convert.__module__}:{convert.__qualname__}"
            given["engine"] = PartsEngine(pool, name, source, dict(given), url)
        if not url:
            return convert(source, out, *args, **options)
        if given.get("format") == "npy" or given.get("only_shards") is not None:
            raise UsageError(
                f"{url}: stores get whole HDF5 packs. Leave out {Option('format', 'npy')} and {Option('only_shards')}, or pass a"
                " folder."
            )
        from packer.remote import access  # local conversions need not load it

        for name in (url, join(url, INDEX_FILE)):
            with suppress(MissingObjectError):
                access.stat(name)
                raise UsageError(f"{name}: is there already. Pass another name, or remove it.")
        local = local_name(url)
        given |= {"format": "h5", "overwrite": not given.get("resume")}
        report = convert(source, local, *args, **options)
        if pool is None:
            _write(open_pack(local), url)
        remove(os.path.dirname(local))
        changed: R = replace(report, out=url)  # type: ignore[type-var]
        return changed

    return cast("Callable[Concatenate[S, Out, P], R]", made)


def _write(pack: Pack, url: str) -> None:
    """Write a pack's files, and see that the store has it. Raises RemoteError, FormatError, UsageError."""
    from packer.format.remote_pack import open_object, open_shards, put_pack
    from packer.remote import access

    for shard in pack.shards:
        put_pack(join(url, os.path.basename(shard.path)), shard.path)
    if pack.shards:
        index = os.path.join(pack.path, INDEX_FILE)
        access.put_file(join(url, INDEX_FILE), index, patience=access.ROWS_PATIENCE)
    else:
        put_pack(url, pack.path)
    written = open_shards(url) if pack.shards else open_object(url)
    written.confirm()
    if written.seal != pack.seal:
        raise FormatError(
            f"{url}: is another pack than the one that was written there. Look for who writes it, too."
        )
