"""Appends shards to a pack: writes them in a folder beside it, moves them into the pack, and indexes them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import Any

from packer.convert.conversion_run import Conversion, staging_folder
from packer.convert.conversion_task import ConversionTask, Report, RunOptions
from packer.convert.pack_run import write_pack
from packer.errors import FormatError, PackerError, UsageError
from packer.format.file_io import remove
from packer.format.header import PARTIAL_SUFFIX
from packer.format.safe_folders import (
    check_ours,
    check_pack_folder,
)
from packer.format.write_errors import failure
from packer.given_values import call_text
from packer.packs.joined_pack import table_of
from packer.packs.output_names import unlisted_shards
from packer.packs.pack import Pack
from packer.packs.pack_opening import check_order, open_pack
from packer.packs.shards import (
    NEXT_INDEX_FILE,
    name_index,
    prepare_index,
    read_index,
    shard_name,
)
from packer.remote.urls import check_local
from packer.writing.working_folder import (
    WorkingFolder,
    locked,
)

ADDING = ".adding"
"""Suffix of the pack's name for the working folder beside it, in which new shards are written."""


def adding(path: str) -> str:
    """Return the path for rows to add to a pack: beside the pack's folder, after resolving links."""
    return os.path.realpath(path) + ADDING


def adding_place(
    run: Conversion, pack: Pack, identity: Mapping[str, Any]
) -> AbstractContextManager[WorkingFolder]:
    """Return the working folder for rows to add. identity: values that an interrupted append must match."""
    return staging_folder(run, adding(run.out), {**identity, "pack": pack.seal.hex()})


def open_growable(path: str, append: str, source: object, names: Sequence[str]) -> Pack:
    """Open a pack of shards to add rows to it, after undoing the unfinished part of a killed append.

    append: name of the function that adds the source; names: paths of the source, for messages. Raises
    UsageError, with calls that help, unless the pack has shards; PackerError.
    """
    check_local(path)
    check_order(path, source, call_text(append, str(source), path))
    take_back(path)
    pack = open_pack(path)
    if append == "append_images" and table_of(pack) is not None:
        raise UsageError(f"{path}: was made from a table; append_images adds images. Use append_table.")
    if not pack.shards:
        grown = (path.rpartition(".")[0] if pack.format == "h5" else "") or path + "-shards"
        add = call_text(append, grown, *names)
        raise UsageError(
            f"{path}: is a single file; only packs of shards can grow. Repack it into shards, then"
            f" append: {call_text('repack', path, grown, shards='2GB')}; {add}"
        )
    return pack


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
                f"{pack.path}: has {_names_text(old)} {what}, the new rows would have {_names_text(new)}; they have"
                " to be equal. Arrange the new images like those of the pack."
            )


def append_shards(task: ConversionTask, pack: Pack, place: WorkingFolder, running: RunOptions) -> Report:
    """Add the task's rows to a pack of shards. The same call resumes an interrupted one.

    place: see adding_place.
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
        written = Report.from_header(added.header, resumed=added.rows)
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
            _publish_shards(place.pack, pack)
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


def _publish_shards(folder: str, pack: Pack) -> None:
    """Move the shards of a complete pack into another, and add them to its index.

    Raises OSError, PackerError.
    """
    check_pack_folder(pack.path)
    index, added = read_index(pack.path), read_index(folder)
    first = 1 + max(map(_shard_number, index.shards))
    names = [shard_name(first + _shard_number(shard), pack.format) for shard in added.shards]
    renamed = [
        replace(shard, path=os.path.join(pack.path, name))
        for shard, name in zip(added.shards, names, strict=True)
    ]
    for shard in renamed:
        if os.path.lexists(shard.path):
            raise PackerError(
                f"{shard.path}: is not packer's; it is not overwritten. Move it away, and run the same"
                " command again."
            )
    # From here on the next index in the folder names the files that are moved but not yet listed.
    prepare_index(pack.path, [*pack.shards, *renamed], [*index.skipped, *added.skipped])
    for shard, to in zip(added.shards, renamed, strict=True):
        os.rename(shard.path, to.path)
    name_index(pack.path)


def _shard_number(shard: Pack) -> int:
    return int(os.path.splitext(shard.name)[0])


def _names_text(names: Sequence[str] | None) -> str:
    return ", ".join(names) if names else "no"
