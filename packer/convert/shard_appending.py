"""Appends shards to a pack: writes them in a folder beside it, moves them into the pack, and indexes them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count

from packer.convert.conversion_task import ConversionTask, Report, RunOptions
from packer.convert.pack_run import write_pack
from packer.errors import FormatError, PackerError, UsageError
from packer.format.file_io import remove
from packer.format.header import PARTIAL_SUFFIX
from packer.format.output_names import unlisted_shards
from packer.format.pack import Pack
from packer.format.pack_opening import open_pack
from packer.format.shards import (
    NEXT_INDEX_FILE,
    Index,
    name_index,
    prepare_index,
    read_index,
    shard_name,
)
from packer.format.working_folder import WorkingFolder, check_ours, check_pack_folder, failure, locked
from packer.sentence import Call, Option

ADDING = ".adding"
"""Suffix of the pack's name for the working folder beside it, in which new shards are written."""


def adding(path: str) -> str:
    """Return the path for rows to add to a pack: beside the pack's folder, after resolving links."""
    return os.path.realpath(path) + ADDING


def check_growable(pack: Pack, append: str, sources: Sequence[str]) -> None:
    """Raise UsageError, with calls that help, unless a pack has shards.

    append: name of the function that adds the sources.
    """
    if not pack.shards:
        stem = pack.path.rpartition(".")[0] if pack.format == "h5" else pack.path + "-shards"
        grown = stem or pack.path + "-shards"
        add = Call(append, (grown, *sources))
        raise UsageError(
            f"{pack.path}: is a single file; only packs of shards can grow. Repack it into shards, then"
            f" append: {Call('repack', (pack.path, grown), Option('shards', '2GB'), add)}"
        )


def check_alike(task: ConversionTask, pack: Pack) -> None:
    """Raise UsageError unless fields, classes and splits of the task equal those of a pack."""
    if task.fields != pack.fields:
        raise UsageError(f"{pack.path}: has other fields than the new rows. Pass the options of the pack.")
    for what, old, new in (
        ("classes", pack.header.classes, task.classes),
        ("splits", sorted(pack.header.splits), sorted(task.order.splits)),
    ):
        if old != new:
            raise UsageError(
                f"{pack.path}: has {_named(old)} {what}, the new rows would have {_named(new)}; they have to"
                " be equal. Arrange the new images like those of the pack."
            )


def append_shards(task: ConversionTask, pack: Pack, place: WorkingFolder, running: RunOptions) -> Report:
    """Add the task's rows to a pack of shards. The same call resumes an interrupted one.

    place: the working folder ``adding(pack.path)``, whose plan holds the current seal of the pack.
    Raises UsageError if fields, classes or splits differ, FormatError if the pack changed since it was
    opened; PackerError.
    """
    check_alike(task, pack)
    place.recorded = True  # keep the folder: it may hold finished shards
    added = None
    with suppress(FormatError):
        added = open_pack(place.pack)
        added.confirm()
    if added is not None and (running.skip or not added.header.skipped):
        written = Report.of(added.header, resumed=added.rows)
    else:
        remove(place.pack)
        fresh = replace(running, overwrite=False, resume=False)
        rows = task.storing.shard_rows or len(task.order.samples)
        task = replace(task, storing=replace(task.storing, shard_rows=rows))
        written = write_pack(task, place.pack, fresh, pack.path)
        place.record("made")
    with locked(pack.path, pack.path):
        pack.confirm()
        pack.check_same()
        try:
            place.open_up()
            _list(place.pack, pack)
        except OSError as error:
            raise failure(pack.path, error) from error
    return replace(written, cleared=place.cleared)


def take_back(path: str) -> None:
    """Move shards back that a killed append had moved into a pack, but not listed in its index.

    Raises UsageError if the folder is not this user's alone; PackerError if another append is running.
    """
    if os.path.isdir(path):
        check_pack_folder(path)
    if not os.path.lexists(os.path.join(path, NEXT_INDEX_FILE)):
        return
    folder = os.path.join(adding(path) + PARTIAL_SUFFIX, "pack")
    if os.path.lexists(adding(path) + PARTIAL_SUFFIX):
        check_ours(adding(path) + PARTIAL_SUFFIX)
    with locked(path, path):
        origins = {}
        with suppress(OSError, FormatError):
            origins = {shard.seal: shard.name for shard in read_index(folder).shards}
        for shard in unlisted_shards(path):
            origin = os.path.join(folder, origins.get(shard.seal, ""))
            if shard.seal in origins and not os.path.lexists(origin):
                os.rename(shard.path, origin)
            else:
                remove(shard.path)
        remove(os.path.join(path, NEXT_INDEX_FILE))


def _list(folder: str, pack: Pack) -> None:
    """Move the shards of a complete pack into another, and add them to its index.

    Raises OSError, PackerError.
    """
    check_pack_folder(pack.path)
    index, added = read_index(pack.path), read_index(folder)
    names = _free_names(pack, index, added)
    renamed = [
        replace(shard, path=os.path.join(pack.path, name))
        for shard, name in zip(added.shards, names, strict=True)
    ]
    # From here on the next index in the folder names the files that are moved but not yet listed.
    prepare_index(pack.path, [*pack.shards, *renamed], [*index.skipped, *added.skipped])
    for shard, to in zip(added.shards, renamed, strict=True):
        if os.path.lexists(to.path):
            raise PackerError(
                f"{to.path}: has appeared meanwhile; it is not overwritten. Move it away, and run the same"
                " command again."
            )
        os.rename(shard.path, to.path)
    name_index(pack.path)


def _free_names(pack: Pack, index: Index, added: Index) -> list[str]:
    """Return new names for added shards: shifted numbers whose files do not exist in the folder."""
    numbers = [int(os.path.splitext(shard.name)[0]) for shard in added.shards]
    taken = {shard.name for shard in index.shards} | set(os.listdir(pack.path))
    for first in count(len(index.shards)):
        names = [shard_name(first + number, pack.format) for number in numbers]
        if not taken & set(names):
            return names
    raise AssertionError  # numbers do not end


def _named(names: Sequence[str] | None) -> str:
    return ", ".join(names) if names else "no"
