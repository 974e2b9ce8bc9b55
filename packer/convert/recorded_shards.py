"""The finished shards of unfinished work: found by their journal, gathered from parts, indexed as a pack."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from packer.convert.conversion_task import NO_ROWS, NothingPackedError
from packer.errors import FormatError, MissingObjectError, UsageError
from packer.format.file_io import make_folder, remove
from packer.format.header import INDEX_FILE, PARTIAL_SUFFIX, Header
from packer.format.pack import Pack
from packer.format.pack_opening import open_pack
from packer.format.shards import merge_headers, seal_of, shard_name, write_index
from packer.format.working_folder import (
    WorkingFolder,
    check_ours,
    check_parts,
    failure,
    locked,
    parts_of,
    plan_of,
    read_records,
)
from packer.remote.urls import join
from packer.sentence import Option

ALL = "all shards"  # record of the number of shards, their format, and the inputs skipped in planning


class RecordedShards:
    """The shards that the journal of a working folder records, and where they are.

    seals: file -> seal; empty: file of a shard that does not exist -> its inputs, which were all skipped;
    all: the record that describes all shards. url: that of the shards, if they are in an object store.
    """

    def __init__(self, place: WorkingFolder, url: str = "") -> None:
        self.place, self.url, self.folder = place, url, url or place.pack
        self.empty: dict[str, list[dict[str, str]]] = {}
        self.all: list[Any] = []
        self.seals: dict[str, str] = {}
        self._alike: dict[str, Any] = {}
        for record in place.resumed:
            self.add(record)

    def record(self, record: list[Any]) -> None:
        """Add an entry, and append it to the journal."""
        self.place.record(record)
        self.add(record)

    def add(self, record: list[Any]) -> None:
        """Add an entry of a journal."""
        if record[0] == ALL:
            self.all = record
        elif len(record) > 1:
            file, found = record[:2]
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
                for record in read_records(path):
                    self.record(record)  # first: after a kill the shard is found in either folder
                    shard, to = (
                        os.path.join(folder, "pack", record[0]) for folder in (path, self.place.path)
                    )
                    if os.path.exists(shard):
                        remove(to)
                        os.rename(shard, to)
                remove(os.path.join(path, "journal"))
                remove(path)

    @property
    def files(self) -> list[str]:
        """Names of all shards of the pack."""
        return [shard_name(number, self.all[2]) for number in range(self.all[1])] if self.all else []

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
            pack = open_pack(join(self.folder, file) if self.url else os.path.join(self.folder, file))
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
    plan = next(filter(None, map(plan_of, (*parts, own))), None)
    records = [] if plan is None else [one for path in (*parts, own) for one in read_records(path)]
    if plan is None or not any(record[0] == ALL for record in records):
        found = "exists already, and no" if os.path.lexists(out) else "no"
        raise UsageError(
            f"{out}: {found} shards wait to be listed. Check the name, or run packer convert with"
            f" {Option('only_shards', '1/4')}, 2/4 and so on first."
        )
    check_parts(out, plan)
    place = WorkingFolder(out, plan=plan, overwrite=overwrite, resume=True)
    try:
        shards, recorded = RecordedShards(place), {str(record[0]) for record in records}
        shards.add(next(record for record in records if record[0] == ALL))
        if missing := [file for file in shards.files if file not in recorded]:  # before anything is moved
            raise missing_shards(out, missing, len(shards.files))
        shards.gather_parts(out)
        return index_shards(shards, out, out)
    finally:
        place.close(keep=True)


def missing_shards(out: str, missing: Sequence[str], count: int) -> UsageError:
    """Return the error for a pack that lacks some of its shards."""
    return UsageError(
        f"{out}: {len(missing):,} of its {count:,} shards are missing, the first is {missing[0]}."
        f" Run the unfinished parts again, or the same conversion without {Option('only_shards')}, which"
        " writes missing shards and the index."
    )


def index_shards(recorded: RecordedShards, name: str, subject: str) -> Header:
    """Index the recorded shards, and publish the pack. Returns its header.

    name: name of the pack; subject: its source, for messages.
    """
    place, files = recorded.place, [file for file in recorded.files if file not in recorded.empty]
    packs = {file: recorded.open_shard(file) for file in files}
    missing = [file for file, pack in packs.items() if pack is None]
    skipped = [*recorded.all[3], *recorded.left_out(recorded.files)]
    if missing and recorded.url:
        raise FormatError(
            f"{join(recorded.url, missing[0])}: is not the shard that was uploaded. Find the other writer of"
            " this URL; the same command writes the shard again."
        )
    if missing:
        raise missing_shards(name, missing, len(recorded.files))
    shards = [pack for pack in packs.values() if pack is not None]
    if not shards:
        place.begin_anew()
        raise NothingPackedError.of(subject, skipped)
    try:
        make_folder(place.pack)
        # Files that killed runs left.
        for left in set(os.listdir(place.pack)) - {shard.name for shard in shards}:
            remove(os.path.join(place.pack, left))
        write_index(place.pack, shards, skipped)
        if recorded.url:
            from packer.remote import access  # local conversions need not load it

            access.put_file(join(recorded.url, INDEX_FILE), os.path.join(place.pack, INDEX_FILE))
            place.close(keep=False)
        else:
            place.publish()
    except OSError as error:
        raise failure(name, error) from error
    return merge_headers([shard.header for shard in shards], skipped)
