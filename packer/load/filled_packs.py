"""Packs whose rows come while a dataset loads them: made of images or a table, or from a store; statistics of a sample of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

import numpy as np

from packer import randomness
from packer.errors import MissingObjectError, UsageError
from packer.filling.filling_pack import open_filling
from packer.filling.remote_cache import cached
from packer.format.header import NORMALIZE
from packer.format.pack import Pack
from packer.format.remote_pack import RemotePack, open_remote
from packer.load.dataset_options import parse_filled
from packer.load.pack_list import has_remote, keep_remote
from packer.orders.runs import consecutive
from packer.progress import Progress
from packer.read.row_reader import RowReader
from packer.remote.urls import is_url

SAMPLE_ROWS = 512
_AT_ONCE = 64
_OURS = ("overwrite", "resume", "progress", "on_plan", "on_progress", "engine")


def open_cached(
    path: Any, cache: Any, cache_size: Any, convert: Mapping[str, Any] | None, options: Mapping[str, Any]
) -> Any:
    """Return what a dataset loads: the path as it is; a pack at a URL, which the cache keeps; or one that is made of a source.

    cache, cache_size, convert, options: as PackedBatchDataset takes them. Raises PackerError.
    """
    if is_url(path):
        try:
            path = open_remote(path)
        except MissingObjectError:
            if cache is None or cache_size is not None:
                raise
            return open_filled(path, cache, {**options, **(convert or {})})
    if isinstance(path, RemotePack):
        for name in (*(["convert"] if convert is not None else []), *options):
            raise UsageError(
                f"{name}=: is about images that become a pack, and {path.path} is one. Leave it out."
            )
        return cached(path, cache, cache_size)
    if has_remote(path) and cache is not None:
        for name in (*(["convert"] if convert is not None else []), *options):
            raise UsageError(
                f"{name}=: is about images that become a pack, and several packs were given. Leave it out."
            )
        return keep_remote(path, cache, cache_size)
    if cache_size is not None:
        raise UsageError(
            f"cache_size={cache_size!r}: is about packs at URLs, such as s3://bucket/train.h5. Leave it out."
        )
    if cache is not None:
        return open_filled(*parse_filled(path, cache, convert, options))
    if convert is not None:
        raise UsageError("convert=: is about a pack that is to be made. Pass cache=, its name, too.")
    return path


def open_filled(source: str, cache: str | os.PathLike[str], options: Mapping[str, Any]) -> Pack:
    """Open the pack `cache` of images or a table: whole if it is there, else filled while it is read.

    options: those of convert_images or convert_table. A bar shows the conversion where it has to run before anything can be read.
    Raises PackerError.
    """
    for name in _OURS:
        if name in options:
            raise UsageError(
                f"{name}=: the pack is filled by and by, and gone on with whenever it is opened. Leave it out; to make another pack,"
                " remove the old one, or pass another cache=."
            )
    with Progress(True, "rows") as bar:
        total = -1

        def progress(done: int, rows: int) -> None:
            nonlocal total
            if rows != total:
                total = rows
                bar.start(rows or None)
            bar.move(done)

        return open_filling(source, os.fspath(cache), _plain(options), progress)


def is_made(pack: Pack, cache: Any) -> bool:
    """Return True for a pack that is made, or was, where a dataset was given `cache`: not for one that lies in a store."""
    return cache is not None and not pack.members and not isinstance(pack, RemotePack)


def sampled_statistics(pack: Pack) -> dict[str, list[float]] | None:
    """Return mean and std of a sample of a pack's images, as Header.statistics; None if it has none, or others are recorded to be used.

    Up to SAMPLE_ROWS rows, drawn from the pack's rows by a fixed key: the same ones on every rank and in every run, whether the pack
    is whole by then or not.
    """
    image = next((f.loaded for f in pack.fields if f.name == "image"), None)
    if image is None or not image.pixels or NORMALIZE in pack.header.provenance.get("options", {}):
        return None
    rows, key = pack.rows, randomness.key(0, "statistics")
    chosen = np.sort(randomness.permute(np.arange(min(rows, SAMPLE_ROWS)), rows, key))
    reader = RowReader(pack, [image])
    reader.willneed("image", consecutive(chosen))
    sums, squares, count = 0, 0, 0
    try:
        for first in range(0, len(chosen), _AT_ONCE):
            images = reader.array(image, consecutive(chosen[first : first + _AT_ONCE]))
            pixels = images.reshape(-1, images.shape[-1]).astype(np.uint64)
            sums, squares = sums + pixels.sum(0), squares + (pixels * pixels).sum(0)
            count += len(pixels)
    finally:
        reader.close()
    mean = np.asarray(sums) / count
    std = np.sqrt(np.maximum(np.asarray(squares) / count - mean * mean, 0))
    return {"mean": (mean / image.most).tolist(), "std": (std / image.most).tolist()}


def _plain(value: Any) -> Any:
    """Return plain JSON values. Raises UsageError for what is none."""
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if is_dataclass(value):
        return {type(value).__name__: _plain(vars(value))}
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise UsageError(
        f"{value!r}: is no option of a conversion in another process; text, numbers, and lists and mappings of such are allowed."
        " Pass such."
    )
