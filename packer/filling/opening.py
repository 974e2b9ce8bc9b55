"""What a dataset loads from: a pack whose rows are kept in a cache, and a pack that is made while it is loaded from."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.arguments import as_bytes
from packer.errors import UsageError
from packer.filling.filling_client import FillingClient
from packer.format import pack_opening
from packer.format.header import Header
from packer.format.pack import Pack
from packer.format.remote_pack import RemotePack
from packer.progress import Progress
from packer.remote.urls import is_url

CACHE_BYTES = "100GB"
_OURS = ("overwrite", "resume", "progress", "on_plan", "on_progress", "engine")


def open_pack(
    path: str | os.PathLike[str],
    cache: str | os.PathLike[str] | None = None,
    cache_size: int | str | None = None,
    verify: str | None = None,
) -> Pack:
    """Open a pack, .h5, directory or URL, checking that it is whole.

    Parameters
    ----------
    path : str or path
        File or directory that packer wrote; or its URL (s3://, gs://, az://, https://, hf:// and others that fsspec reads).
    cache : str or path, optional
        Of a pack at a URL: a folder on a disk of this machine, in which its rows are kept when they first come, for all processes of
        the node and all later runs. Without it rows come anew in each epoch.
    cache_size : int or str, optional
        Bytes, such as "200GB", that all packs in that folder take together; default "100GB". What does not fit comes anew in each
        epoch. Packs there that nobody has open make room for others, those first that were opened the longest ago.
    verify : "blocks", optional
        Datasets compare each block with its checksum before its rows are first used.

    Raises
    ------
    FormatError
        It is not a whole pack of this version; the message says why.
    RemoteError
        A store refused to give it, or did not answer.
    UsageError
        An argument is wrong.

    Notes
    -----
    Of a pack of shards the index is read: 10,000 of them open as fast as one, and with one request. A shard is compared with it before
    its first row is handed out; ``pack.confirm()`` compares all of them.

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
        raise UsageError(f"cache_size={cache_size!r}: is about a cache. Pass cache=, a folder, too.")
    pack = pack_opening.open_pack(path)
    if cache is not None:
        if not isinstance(pack, RemotePack):
            raise UsageError(
                f"cache={str(cache)!r}: is for a pack at a URL; {pack.path} is here. Leave it out."
            )
        pack = _cached(pack, cache, CACHE_BYTES if cache_size is None else cache_size)
    return replace(pack, verify=verify is not None)


def _cached(pack: RemotePack, cache: object, cache_size: int | str) -> RemotePack:
    """Return a pack in a store whose rows are kept in a cache. Raises UsageError, RemoteError, FormatError."""
    most = as_bytes(cache_size)
    if most is None:
        raise UsageError(f"cache_size={cache_size!r}: is no size. Pass bytes, or text such as '200GB'.")
    if not isinstance(cache, (str, os.PathLike)):
        raise UsageError(f"cache={cache!r}: is no path. Pass a folder on a disk of this machine.")
    path = os.path.abspath(os.fspath(cache))
    if os.path.lexists(path) and not os.path.isdir(path):
        raise UsageError(f"{path}: is no folder; the cache of a remote pack is one. Pass another cache=.")
    return pack.kept_in(path, most)


def fill_pack(source: str | os.PathLike[str], out: str | os.PathLike[str], **options: Any) -> Pack:
    """Return a pack that is made of images, or a table, while datasets load from it.

    The first epoch makes its rows in the order in which they are needed, and trains meanwhile; all processes of a node share it;
    interrupted, it goes on; once whole it is the pack that ``packer convert`` makes, and is read as one. It is made before this
    function returns, with a bar, where rows cannot be made one by one: of a table, in shards, as JPEG or compressed, with boxes or
    keypoints, or with on_error="skip".

    Parameters
    ----------
    source : str or path
        Images or a table, as convert_images and convert_table take them.
    out : str or path
        The pack: it is opened if it is there, and gone on with if it is unfinished.
    **options
        Options of convert_images, or of convert_table, such as size=256, split="train=0.9,val=0.1" or workers=4.

    Raises
    ------
    PackerError
        The source cannot be packed so, or `out` is another pack.

    Notes
    -----
    ``Normalize()`` without numbers means the mean and std of a sample of 512 rows, the same on every rank and in every run, whether the
    pack is whole by then or not; state_dict carries them.

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
                f"{name}=: the pack is filled by and by, and gone on with whenever it is opened. Leave it out; to make another pack,"
                " remove the old one, or pass another out=."
            )
    for name, path in (("source", source), ("out", out)):
        if not isinstance(path, str | os.PathLike):
            raise UsageError(
                f"{name}={path!r}: is no path. Pass the name of {'images' if name == 'source' else 'a pack'}."
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


@dataclass(frozen=True)
class FillingPack(Pack):
    """A pack in the making: its header, and its rows as they come. path: that it will have."""

    units: FillingClient = field(kw_only=True)

    @property
    def pending(self) -> bool:
        """See Pack."""
        return not self.units.sealed

    def read(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[np.generic]:
        """See Pack; waits until the rows have been made."""
        if self.arrival(name) is not None:
            self.units.wait(np.arange(self.rows)[start:stop])
        return super().read(name, start, stop)

    def read_blob(self, name: str, start: int, stop: int) -> tuple[NDArray[np.int64], bytes]:
        """See Pack; from the whole pack once it is there: the files of the keys are gone then."""
        try:
            return super().read_blob(name, start, stop)
        except FileNotFoundError:
            if self._whole is self:
                raise
            return self._whole.read_blob(name, start, stop)

    @cached_property
    def _whole(self) -> Pack:
        return self.settled()

    def settled(self) -> Pack:
        """See Pack."""
        if not self.units.sealed and (
            os.path.lexists(os.path.join(self.units.folder, "pack")) or not os.path.lexists(self.path)
        ):
            return self
        pack = replace(pack_opening.open_pack(self.path), filled=self.filled)
        self.check_same()
        return pack

    def check_same(self) -> None:
        """See Pack."""
        self.units.check_same()


def open_filling(
    source: str,
    out: str,
    options: Mapping[str, Any],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Pack:
    """Open the pack `out` of a source: whole if it is there, else one that is filled while it is read.

    source: images or a table, as convert_images and convert_table take them; options: theirs.
    progress: called with rows done and rows in all where the pack has to be made before anything can be read from it.
    Raises PackerError: the source cannot be packed so, or `out` is another pack.
    """
    out = os.path.abspath(out.rstrip("/"))
    source = source if is_url(source) else os.path.abspath(source)
    try:
        job = pickle.dumps({"source": source, "out": out, "options": dict(options)})
    except Exception as error:
        raise UsageError(
            f"options of fill_pack: another process cannot be given them ({error}). Pass text, numbers, and lists and"
            " mappings of such."
        ) from None
    client = FillingClient(out, job, os.getcwd())
    header = client.open(progress)
    if not header:
        return pack_opening.open_pack(out)
    return FillingPack(out, Header.from_bytes(header, out), b"", units=client)
