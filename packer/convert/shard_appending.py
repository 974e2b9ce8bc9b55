"""Rows added to a pack of shards, as further shards: made in a working folder beside the pack, moved into it, then listed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count

from packer.convert.conversion_task import ConversionTask, Report, RunOptions
from packer.convert.pack_run import write_shards
from packer.errors import FormatError, PackerError, UsageError
from packer.format.file_io import remove
from packer.format.header import PARTIAL_SUFFIX
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
from packer.format.working_folder import WorkingFolder, failure, locked, unlisted_shards
from packer.sentence import Call, Option

ADDING = ".adding"
"""Of the name of a pack, for the working folder beside it in which rows to be added are made."""


def adding(path: str) -> str:
    """Return the name for what is to be added to a pack: beside the folder itself, where the name is a link to it."""
    return os.path.realpath(path) + ADDING


def check_growable(pack: Pack, append: str, sources: Sequence[str]) -> None:
    """Raise UsageError, with the calls that help, unless a pack is one of shards.

    append: the function that is to add the sources to it.
    """
    if not pack.shards:
        stem = pack.path.rpartition(".")[0] if pack.format == "h5" else pack.path + "-shards"
        grown = stem or pack.path + "-shards"
        add = Call(append, (grown, *sources))
        raise UsageError(
            f"{pack.path}: is one file; only packs of shards grow. Make one of it, then add to that: "
            f"{Call('repack', (pack.path, grown), Option('shards', '2GB'), add)}"
        )


def check_alike(task: ConversionTask, pack: Pack) -> None:
    """Raise UsageError unless the task's rows can be added to a pack: equal fields, classes and splits."""
    if task.fields != pack.fields:
        raise UsageError(
            f"{pack.path}: has other fields than the new rows would have. Give the options it was made with."
        )
    for what, own, new in (
        ("classes", pack.header.classes, task.classes),
        ("splits", sorted(pack.header.splits), sorted(task.order.splits)),
    ):
        if own != new:
            raise UsageError(
                f"{pack.path}: has {_named(own)} {what}, the new rows would have {_named(new)}; equal ones go together."
                " Arrange the new images as those it was made of."
            )


def append_shards(task: ConversionTask, pack: Pack, place: WorkingFolder, running: RunOptions) -> Report:
    """Add the task's rows to a pack of shards. Interrupted, the same call goes on.

    place: the working folder ``adding(pack.path)``, of a plan that names the pack as it is now.
    Raises UsageError if the rows are not alike, FormatError if the pack is no longer the one that was opened; PackerError.
    """
    check_alike(task, pack)
    place.recorded = True  # there may be shards to go on with
    try:
        made = open_pack(place.pack)
        made.confirm()
        written = Report.of(made.header, resumed=made.rows)
    except FormatError:
        remove(place.pack)
        anew = replace(running, overwrite=False, resume=False)
        written = write_shards(task, place.pack, anew, pack.path)
        place.record("made")
    with locked(pack.path, pack.path):
        pack.confirm()
        pack.check_same()
        try:
            _list(place.pack, pack)
        except OSError as error:
            raise failure(pack.path, error) from error
    return replace(written, cleared=place.cleared)


def take_back(path: str) -> None:
    """Undo what an append did that was killed after it had moved shards into a pack, and before it had listed them.

    Raises PackerError if another one is at work.
    """
    if not os.path.lexists(os.path.join(path, NEXT_INDEX_FILE)):
        return
    folder = os.path.join(adding(path) + PARTIAL_SUFFIX, "pack")
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
    """Move the shards of a whole pack into another, and list them there. Raises OSError, PackerError."""
    index, added = read_index(pack.path), read_index(folder)
    names = _free_names(pack, index, added)
    renamed = [
        replace(shard, path=os.path.join(pack.path, name))
        for shard, name in zip(added.shards, names, strict=True)
    ]
    # From here on the folder itself says which files in it are ours, and not listed yet.
    prepare_index(pack.path, [*pack.shards, *renamed], [*index.skipped, *added.skipped])
    for shard, to in zip(added.shards, renamed, strict=True):
        if os.path.lexists(to.path):
            raise PackerError(
                f"{to.path}: has appeared meanwhile; nothing is overwritten unasked. Move it away, and run the same command again."
            )
        os.rename(shard.path, to.path)
    name_index(pack.path)


def _free_names(pack: Pack, index: Index, added: Index) -> list[str]:
    """Return names for shards that are added: numbers that follow each other as theirs do, of nothing that is in the folder."""
    numbers = [int(os.path.splitext(shard.name)[0]) for shard in added.shards]
    taken = {shard.name for shard in index.shards} | set(os.listdir(pack.path))
    for first in count(len(index.shards)):
        names = [shard_name(first + number, pack.format) for number in numbers]
        if not taken & set(names):
            return names
    raise AssertionError  # numbers do not end


def _named(names: Sequence[str] | None) -> str:
    return ", ".join(names) if names else "no"
