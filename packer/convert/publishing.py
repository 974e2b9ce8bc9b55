"""Packs written to stores: made on a disk of this machine first, then written as whole objects, an index of shards last."""

from __future__ import annotations

import getpass
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from packer.convert.engines import DistributedEngine, engine_of
from packer.errors import FormatError, MissingObjectError, UsageError
from packer.format.checksums import digest
from packer.format.file_io import remove
from packer.format.pack import Pack, open_pack
from packer.format.shards import INDEX_FILE
from packer.remote.urls import is_url, join, name_of
from packer.sentence import Option

S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")
Out = str | os.PathLike[str]


def published(convert: Callable[Concatenate[S, Out, P], R]) -> Callable[Concatenate[S, Out, P], R]:
    """Decorate a conversion so that its output may be a URL.

    The pack is made in the system's folder for temporary files (TMPDIR), under a name that the URL decides, so that ``resume`` finds
    it again, and removed once the store has it. Stores get HDF5 packs.
    """

    @wraps(convert)
    def made(source: S, out: Out, *args: P.args, **options: P.kwargs) -> R:
        if not is_url(out):
            return convert(source, out, *args, **options)
        url, given = str(out).rstrip("/"), cast("dict[str, Any]", options)
        if given.get("format") == "npy":
            raise UsageError(f"{url}: stores get HDF5 packs. Leave out ", Option("format", "npy"), ".")
        if given.get("only_shards") is not None:
            raise UsageError(
                f"{url}: parts of a pack are made in a folder. Leave out ",
                Option("only_shards"),
                ", or pass a folder.",
            )
        _check_free(url, overwrite=bool(given.get("overwrite")))
        local = _local(url)
        given |= {"format": "h5", "overwrite": not given.get("resume")}
        engine = engine_of(given.get("engine"), given.pop("address", None))
        if isinstance(engine, DistributedEngine):
            given["engine"] = replace(engine, url=url)
        report = convert(source, local, *args, **options)
        if not isinstance(engine, DistributedEngine):
            _write(open_pack(local), url)
        remove(os.path.dirname(local))
        changed: R = replace(report, out=url)  # type: ignore[type-var]
        return changed

    return cast("Callable[Concatenate[S, Out, P], R]", made)


def _check_free(url: str, *, overwrite: bool) -> None:
    """Raise UsageError if there is something of that name."""
    from packer.remote import access  # local conversions need not load it

    for name in () if overwrite else (url, join(url, INDEX_FILE)):
        try:
            access.stat(name)
        except MissingObjectError:
            continue
        raise UsageError(f"{name}: is there already. Pass another name, or ", Option("overwrite", True), ".")


def _local(url: str) -> str:
    """Return where the pack for a URL is made."""
    number = digest([f"{getpass.getuser()} {url}".encode()]).hex()[:16]
    folder = os.path.join(tempfile.gettempdir(), f"packer-{number}")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    if os.stat(folder).st_uid != os.getuid():
        raise UsageError(
            f"{folder}: is another user's, and the pack is to be made there. Set TMPDIR to a folder of yours."
        )
    return os.path.join(folder, name_of(url))


def _write(pack: Pack, url: str) -> None:
    """Write a pack's files, and see that the store has it. Raises RemoteError, FormatError."""
    from packer.remote import access

    if pack.shards:
        for shard in pack.shards:
            access.put_file(
                join(url, os.path.basename(shard.path)), shard.path, patience=access.ROWS_PATIENCE
            )
        access.put_file(
            join(url, INDEX_FILE), os.path.join(pack.path, INDEX_FILE), patience=access.ROWS_PATIENCE
        )
    else:
        access.put_file(url, pack.path, patience=access.ROWS_PATIENCE)
    written = open_pack(f"{url}/" if pack.shards else url)
    written.confirm()
    if written.seal != pack.seal:
        raise FormatError(
            f"{url}: is another pack than the one that was written there. Look for who writes it, too."
        )
