"""A pack of shards, written one after the other and listed last; further ones added."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from packer.convert.conversion_task import ConversionTask, NothingPackedError, RunOptions, RunResult
from packer.convert.part_run import write_part
from packer.errors import UsageError
from packer.format.file_io import remove
from packer.format.header import PARTIAL_SUFFIX, Header
from packer.format.listed_pack import listing
from packer.format.pack import Pack, open_pack
from packer.format.shards import merge_headers, read_index, shard_name, write_index
from packer.format.verify import verify_pack
from packer.format.working_folder import WorkingFolder, failure, locked
from packer.sentence import Call, Option


def write_shards(task: ConversionTask, out: str, running: RunOptions, name: str, rows: int) -> RunResult:
    """Write a pack of shards of so many rows. out, name: as write_pack has them. Raises PackerError."""
    total = len(task.order.samples)
    place = WorkingFolder(out, overwrite=running.overwrite, plan=task.plan, resume=running.resume)
    done, kept = RunResult(Header(0, 1, (), {}), cleared=place.cleared), False
    # Shards all of whose inputs were skipped do not exist; what was skipped is in the journal, then in the index.
    empty: dict[str, list[dict[str, str]]] = {
        record[0]: record[1] for record in place.resumed if len(record) > 1
    }
    try:
        try:
            os.makedirs(place.pack, exist_ok=True)
        except OSError as error:
            raise failure(name, error) from error
        shards: list[Pack] = []
        for number, first in enumerate(range(0, total, rows)):
            file = shard_name(number, task.storing.format)
            path = os.path.join(place.pack, file)
            if file in empty:
                continue
            if os.path.exists(path) and verify_pack(path).ok:
                remove(path + PARTIAL_SUFFIX)  # of a run that was killed just after it had named the shard
                done.resumed += min(rows, total - first)
                running.progress(done.resumed)
            else:
                remove(path)
                try:
                    part = write_part(
                        task.shard(number, rows), path, running, os.path.join(name, file), first
                    )
                except NothingPackedError as error:
                    empty[file] = list(error.skipped)
                    place.record([file, empty[file]])
                    kept = True
                    continue
                done.add(part)
                place.record([file])
            kept = True
            shards.append(open_pack(path))
        skipped = [*task.skipped, *(s for file in sorted(empty) for s in empty[file])]
        if not shards:
            place.begin_anew()
            kept = False
            raise NothingPackedError.of(task.subject, skipped)
        try:
            lines, headers = listing(shards)
            write_index(place.pack, lines, skipped, headers)
            place.publish()
        except OSError as error:
            raise failure(name, error) from error
        done.header = merge_headers([s.header for s in shards], [s.file for s in lines], skipped)
        return done
    except BaseException:
        kept = task.plan is not None and (
            kept
            or (
                os.path.isdir(place.pack)
                and any(name.endswith(PARTIAL_SUFFIX) for name in os.listdir(place.pack))
            )
        )
        place.close(keep=kept)
        raise


def check_growable(pack: Pack, append: str, sources: Sequence[str]) -> None:
    """Raise UsageError, with the calls that help, unless a pack is one of shards.

    append: the function that is to add the sources to it.
    """
    if not pack.shards:
        stem = pack.path.rpartition(".")[0] if pack.format == "h5" else pack.path + "-shards"
        grown = stem or pack.path + "-shards"
        add = Call(append, (grown, *sources))
        raise UsageError(
            f"{pack.path}: is one file; only packs of shards grow. Make one of it, then add to that: ",
            Call("repack", (pack.path, grown), Option("shard_size", "2GB"), add),
        )


def append_shards(task: ConversionTask, pack: Pack, running: RunOptions) -> RunResult:
    """Add the task's rows to a pack of shards, as further shards of it: written whole, then listed.

    Raises UsageError if the pack is of one part, or the task's fields differ; PackerError.
    """
    with locked(pack.path, pack.path):
        pack = open_pack(pack.path)
        pack.confirm()
        if task.fields != pack.fields:
            raise UsageError(
                f"{pack.path}: has other fields than the new rows would have. Give the options it was made with."
            )
        for what, own, new in (
            ("classes", pack.header.classes, task.members["classes"]),
            ("splits", sorted(pack.header.splits), sorted(task.order.splits)),
        ):
            if own != new:
                raise UsageError(
                    f"{pack.path}: has {_named(own)} {what}, the new rows would have {_named(new)}; equal ones go together."
                    " Arrange the new images as those it was made of."
                )
        index = read_index(pack.path)
        shards, listed = list(pack.shards), {shard.file for shard in index.shards}
        total = len(task.order.samples)
        rows = task.storing.shard_rows or total
        done, added = RunResult(pack.header, before=pack), replace(running, overwrite=False)
        # Where all inputs of a shard were skipped its name was left out, so names go further than there are shards.
        names = (shard_name(number, task.storing.format) for number in count(len(listed)))
        free = (name for name in names if name not in listed)
        for number, first in enumerate(range(0, total, rows)):
            name = next(free)
            path = os.path.join(pack.path, name)
            if os.path.lexists(path):  # an interrupted run had written it, but not listed it
                remove(path)
            done.add(write_part(task.shard(number, rows), path, added, path, first))
            shard = open_pack(path)
            done.added_skipped += shard.header.skipped
            shards.append(shard)
        try:
            lines, headers = listing(shards)
            write_index(pack.path, lines, [*index.skipped, *task.skipped], headers)
        except OSError as error:
            raise failure(pack.path, error) from error
        done.header = open_pack(pack.path).header
        done.added_skipped += task.skipped
        return done


def _named(names: Sequence[str] | None) -> str:
    return ", ".join(names) if names else "no"
