"""The finished shards of unfinished work: found by their journal, gathered from parts, indexed as a pack."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from packer.convert.conversion_task import NO_ROWS, ConversionTask, NothingPackedError
from packer.errors import FormatError, MissingObjectError, UsageError
from packer.format.file_io import make_folder, remove
from packer.format.header import INDEX_FILE, PARTIAL_SUFFIX, Header
from packer.format.safe_folders import check_ours
from packer.format.write_errors import failure
from packer.packs.pack import Pack
from packer.packs.pack_opening import open_pack
from packer.packs.shards import merge_headers, seal_of, shard_name, write_index
from packer.remote.urls import join_url
from packer.writing.working_folder import (
    WorkingFolder,
    check_parts,
    locked,
    parts_of,
    plan_of,
    read_records,
)


class RecordedShards:
    """The shards that the journal of a working folder records, and where they are.

    files: names of all shards of the pack; skipped: inputs left out in planning; url: that of the shards, if
    they are in an object store. seals: file -> seal; empty: file of a shard that does not exist -> its
    inputs, which were all skipped.
    """

    def __init__(
        self, place: WorkingFolder, files: Sequence[str], skipped: Sequence[dict[str, str]], url: str = ""
    ) -> None:
        self.place, self.files, self.url, self._folder = place, files, url, url or place.pack
        self.skipped = skipped
        self.empty: dict[str, list[dict[str, str]]] = {}
        self.seals: dict[str, str] = {}
        self._alike: dict[str, Any] = {}
        for file, found in place.resumed:
            self._add(file, found)

    def record(self, file: str, found: str | list[dict[str, str]]) -> None:
        """Journal that a shard is finished. found: its seal, or the inputs of one that does not exist."""
        self.place.record([file, found])
        self._add(file, found)

    def _add(self, file: str, found: str | list[dict[str, str]]) -> None:
        if isinstance(found, str):
            self.seals[file] = found
            self.empty.pop(file, None)
        elif file not in self.seals:  # else its inputs were packed after all
            self.empty[file] = found

    def gather_parts(self, out: str) -> None:
        """Move the finished shards of all parts of a pack into this folder, and remove the parts' folders."""
        make_folder(self.place.pack)
        for path in parts_of(out):
            check_ours(path)
            with locked(path, out):
                for file, found in read_records(path):
                    self.record(file, found)  # first: after a kill the shard is found in either folder
                    shard, to = (os.path.join(folder, "pack", file) for folder in (path, self.place.path))
                    if os.path.exists(shard):
                        remove(to)
                        os.rename(shard, to)
                remove(os.path.join(path, "journal"))
                remove(path)

    def left_out(self, files: Iterable[str]) -> list[dict[str, str]]:
        """Return the skipped inputs of shards that do not exist."""
        return [one for file in files for one in self.empty.get(file, ())]

    def header_of(self, files: Collection[str]) -> Header:
        """Return the merged header of some shards."""
        headers, skipped = (
            [pack.header for file in files if (pack := self.open_shard(file))],
            self.left_out(files),
        )
        return merge_headers(headers, skipped) if headers else replace(NO_ROWS, skipped=tuple(skipped))

    def is_done(self, file: str, *, skip: bool) -> bool:
        """Return True for a finished shard. skip: count one with skipped inputs, too."""
        pack = self.open_shard(file)
        return skip if file in self.empty else pack is not None and (skip or not pack.header.skipped)

    def open_shard(self, file: str) -> Pack | None:
        """Return a shard if it is complete and has the recorded seal, if any; its rows are not checked."""
        if file in self.empty or (self.url and file not in self.seals):
            return None
        try:
            pack = open_pack(join_url(self.url, file) if self.url else os.path.join(self._folder, file))
        except (FormatError, MissingObjectError):
            return None
        # Share equal members of the header with the previous shard's, to save memory with very many shards.
        self._alike = {
            name: last if (last := self._alike.get(name)) == value else value
            for name, value in vars(pack.header).items()
        }
        pack = replace(pack, header=replace(pack.header, **self._alike))
        return pack if self.seals.get(file, seal_of(pack.seal)) == seal_of(pack.seal) else None


def list_shards(out: str, *, overwrite: bool = False) -> Header:
    """Index the shards that several runs wrote with the same plan, and publish the pack.

    Raises UsageError if shards are missing or belong to several plans; PackerError.
    """
    own, parts = out.rstrip("/") + PARTIAL_SUFFIX, parts_of(out)
    plan = next(filter(None, map(plan_of, (*parts, own))), {})
    if "shards" not in plan:
        found = "exists already, and no" if os.path.lexists(out) else "no"
        raise UsageError(
            f"{out}: {found} shards wait to be listed. Check the name, or run packer convert with"
            " only_shards='1/4', 2/4 and so on first."
        )
    check_parts(out, plan)
    files = shard_names(plan["shards"], plan["options"]["format"])
    place = WorkingFolder(out, plan=plan, overwrite=overwrite, resume=True)
    try:
        there = {record[0] for path in (*parts, own) for record in read_records(path)}
        if missing := [file for file in files if file not in there]:  # before anything is moved
            raise missing_shards(out, missing, len(files))
        shards = RecordedShards(place, files, plan["skipped"])
        shards.gather_parts(out)
        return index_shards(shards, out, out)
    finally:
        place.close(keep=True)


def shard_names(count: int, format: str) -> list[str]:
    """Return the names of all shards of a pack."""
    return [shard_name(number, format) for number in range(count)]


def plan_of_shards(task: ConversionTask, count: int) -> dict[str, Any] | None:
    """Return what unfinished shards must match, with what their index needs; None disables resuming."""
    return None if task.plan is None else {**task.plan, "shards": count, "skipped": list(task.skipped)}


def missing_shards(out: str, missing: Sequence[str], count: int) -> UsageError:
    """Return the error for a pack that lacks some of its shards."""
    return UsageError(
        f"{out}: {len(missing):,} of its {count:,} shards are missing, the first is {missing[0]}."
        " Run the unfinished parts again, or the same conversion without only_shards=, which"
        " writes missing shards and the index."
    )


def index_shards(recorded: RecordedShards, name: str, subject: str) -> Header:
    """Index the recorded shards, and publish the pack. Returns its header.

    name: name of the pack; subject: its source, for messages.
    """
    place, files = recorded.place, [file for file in recorded.files if file not in recorded.empty]
    packs = {file: recorded.open_shard(file) for file in files}
    missing = [file for file, pack in packs.items() if pack is None]
    skipped = [*recorded.skipped, *recorded.left_out(recorded.files)]
    if missing and recorded.url:
        raise FormatError(
            f"{join_url(recorded.url, missing[0])}: is not the shard that was uploaded. Find the other"
            " writer of this URL; the same command writes the shard again."
        )
    if missing:
        raise missing_shards(name, missing, len(recorded.files))
    shards = [pack for pack in packs.values() if pack is not None]
    if not shards:
        place.begin_anew()
        raise NothingPackedError.from_skipped(subject, skipped)
    try:
        make_folder(place.pack)
        # Files that killed runs left.
        for left in set(os.listdir(place.pack)) - {shard.name for shard in shards}:
            remove(os.path.join(place.pack, left))
        write_index(place.pack, shards, skipped)
        if recorded.url:
            from packer.remote import access  # local conversions need not load it

            access.put_file(join_url(recorded.url, INDEX_FILE), os.path.join(place.pack, INDEX_FILE))
            place.close(keep=False)
        else:
            place.publish()
    except OSError as error:
        raise failure(name, error) from error
    return merge_headers([shard.header for shard in shards], skipped)
