"""open_pack and fill_pack: packs whose rows are cached, or converted while they are loaded."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from packer.arguments import absolute, as_bytes
from packer.declared_types import checks_arguments
from packer.errors import UsageError
from packer.filling.job_options import plain_options
from packer.format.header import Header
from packer.packs import pack_opening
from packer.packs.filling_pack import Filling, FillingPack
from packer.packs.pack import Pack
from packer.packs.remote_pack import RemotePack
from packer.progress import Progress
from packer.remote.urls import is_url

CACHE_BYTES = "100GB"
MODULE = "packer.filling.filling_process"
_OURS = ("overwrite", "resume", "progress", "on_plan", "on_progress", "engine", "only_shards")


@checks_arguments
def open_pack(
    path: str | os.PathLike[str],
    cache: str | os.PathLike[str] | None = None,
    cache_size: int | str | None = None,
    verify: str | None = None,
    cache_shared: bool = False,
) -> Pack:
    """Open a pack, .h5, directory or URL, and check that it is complete.

    Parameters
    ----------
    path : str or path
        File or directory that packer wrote, or its URL (s3://, gs://, az://, https://, hf:// and others that
        fsspec reads).
    cache : str or path, optional
        For a pack at a URL: a folder on a local disk that stores its rows when they are first read, for all
        processes of the node and all later runs. Without it, rows are fetched again in each epoch.
    cache_size : int or str, optional
        Limit for all packs in that folder: bytes, or text such as "200GB"; default "100GB". Rows beyond it
        are fetched again in each epoch. Packs that nobody has open are removed to make room, the least
        recently opened first.
    verify : "blocks", optional
        Datasets compare each block with its checksum before the first use of its rows.
    cache_shared : bool
        The folder belongs to a group (``chmod 2770``): each process compares what lies there with its
        checksums before the first use. By default a folder that others can write to is refused.

    Raises
    ------
    FormatError
        Not a complete pack of this version; the message has the reason.
    RemoteError
        The store refused access or did not answer.
    UsageError
        An argument is wrong.

    Notes
    -----
    For a pack of shards only the index is read: 10,000 shards open as fast as one, with one request. A shard
    is compared with the index before its first row is returned; ``pack.confirm()`` compares all shards.

    Examples
    --------
    >>> from packer import open_pack
    >>> pack = open_pack("train.h5")
    >>> pack.rows, [field.name for field in pack.fields], pack.header.classes
    (24, ['image', 'label', 'key'], ('blue', 'green', 'red'))
    """
    if verify not in (None, "blocks"):
        raise UsageError(f"verify={verify!r}: is neither None nor 'blocks'. Pass one of them.")
    if cache is None and cache_size is not None:
        raise UsageError(f"cache_size={cache_size!r}: needs a cache. Pass cache= (a folder) too.")
    if cache is None and cache_shared:
        raise UsageError(f"cache_shared={cache_shared!r}: needs a cache. Pass cache= (a folder) too.")
    pack = pack_opening.open_pack(path)
    if cache is not None:
        if not isinstance(pack, RemotePack):
            raise UsageError(
                f"cache={str(cache)!r}: is for a pack at a URL; {pack.path} is local. Leave it out."
            )
        pack = _cached(pack, cache, CACHE_BYTES if cache_size is None else cache_size, bool(cache_shared))
    return replace(pack, verify=verify is not None)


def _cached(
    pack: RemotePack, cache: str | os.PathLike[str], cache_size: int | str, shared: bool
) -> RemotePack:
    """Return a remote pack whose rows are kept in a cache. Raises UsageError, RemoteError, FormatError."""
    most = as_bytes(cache_size)
    if most is None:
        raise UsageError(f"cache_size={cache_size!r}: is not a size. Pass bytes, or text such as '200GB'.")
    path = os.path.abspath(os.fspath(cache))
    if os.path.lexists(path) and not os.path.isdir(path):
        raise UsageError(f"{path}: is not a folder; a cache must be one. Pass another cache=.")
    return pack.kept_in(path, most, shared)


@checks_arguments
def fill_pack(source: str | os.PathLike[str], out: str | os.PathLike[str], **options: Any) -> Pack:
    """Return a pack that is converted from images, or from a table, while datasets load from it.

    A process of its own converts in the order of the pack; all processes of a node read rows as soon as they
    are written. With shuffle=True the first epoch takes that order, which is a permutation; other orders wait
    for their rows. An interrupted conversion resumes. A complete pack equals the output of ``packer convert``
    and is read like it. Rows that are JPEG, compressed or of any length (boxes) can be read once their shard
    is written: pass ``shards=``. Without shards, for a table, and with on_error="skip" the conversion runs
    before this function returns, with a progress bar.

    Parameters
    ----------
    source : str or path
        Images or a table, as convert_images and convert_table take them.
    out : str or path
        The pack; it is opened if it exists, and resumed if it is unfinished.
    **options
        Options of convert_images or convert_table, such as size=256, split="train=0.9,val=0.1" or workers=4.

    Raises
    ------
    PackerError
        The source cannot be packed with these options, or `out` is another pack.

    Notes
    -----
    ``Normalize()`` without numbers uses the mean and std of a sample of 512 rows, of the split train if there
    is one, the same on every rank and in every run, whether or not the pack is complete; state_dict carries
    them. All ranks call fill_pack: a pack opened by its path begins with another order.

    Examples
    --------
    >>> from packer import PackedBatchDataset, fill_pack
    >>> pack = fill_pack("photos", "filled.h5", size=32, split="train=0.75,val=0.25")
    >>> with PackedBatchDataset(pack, batch_size=8, split="train", shuffle=True) as train:
    ...     [len(labels) for images, labels in train]
    [8, 8, 2]
    """
    for name in _OURS:
        if name in options:
            raise UsageError(
                f"{name}=: is not an option of fill_pack, which fills the pack gradually and resumes whenever"
                " it is opened. Leave it out; for another pack remove the old one, or pass another out=."
            )
    with Progress(True, "rows") as bar:
        total = -1

        def progress(done: int, rows: int) -> None:
            nonlocal total
            if rows != total:
                total = rows
                bar.start(rows or None)
            bar.move(done)

        pack = open_filling(os.fspath(source), os.fspath(out), options, progress)
    return replace(pack, filled=True)


def open_filling(
    source: str,
    out: str,
    options: Mapping[str, Any],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Pack:
    """Open the pack `out` of a source: complete if it exists, else filled while it is read.

    source: images or a table, as convert_images and convert_table take them; options: of these functions;
    progress: called with rows done and total rows while the pack is converted before anything can be read.
    Raises PackerError if the source cannot be packed with these options, or if `out` is another pack.
    """
    out = absolute(out.rstrip("/"))
    source = source if is_url(source) else absolute(source)
    job = json.dumps({"source": source, "out": out, "options": plain_options(options)})
    filling = Filling(out, MODULE, job, absolute("."))
    described = filling.open(progress)
    if "header" not in described:
        return pack_opening.open_pack(out)
    header, shard_rows = Header.parse(described["header"]), described["shard_rows"]
    files = tuple(described["files"])
    return FillingPack(out, header, b"", units=filling, files=files, shard_rows=shard_rows)
