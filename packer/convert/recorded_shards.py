"""The finished shards of unfinished work: found by their journal, gathered from parts, indexed as a pack."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from packer.convert.conversion_task import NO_ROWS, NothingPackedError
from packer.errors import FormatError, MissingObjectError, UsageError
from packer.format.file_io import make_folder, remove
from packer.format.header import INDEX_FILE, PARTIAL_SUFFIX, Header
from packer.format.journal import read_journal
from packer.format.pack import Pack
from packer.format.pack_opening import open_pack
from packer.format.shards import merge_headers, seal_of, shard_name, write_index
from packer.format.working_folder import WorkingFolder, check_parts, failure, locked, parts_of, plan_of
from packer.remote.urls import is_url, join
from packer.sentence import Option

ALL = "all shards"  # record of the number of shards, their format, and the inputs skipped in planning


class RecordedShards:
    """The shards that the journal of a working folder records, and where they are.

    seals: file -> seal; empty: file of a shard that does not exist -> its inputs, which were all skipped;
    all: the record that describes all shards. folder: path or URL of the shards' folder.
    """

    def __init__(self, place: WorkingFolder, folder: str = "") -> None:
        self.place, self.folder = place, folder or place.pack
        self.empty: dict[str, list[dict[str, str]]] = {}
        self.all: list[Any] = []
        self.seals: dict[str, str] = {}
        self._elsewhere: dict[str, str] = {}
        self._alike: dict[str, Any] = {}
        for record in place.resumed:
            self.add(record)

    def record(self, record: list[Any]) -> None:
        """Add an entry, and append it to the journal."""
        self.place.record(record)
        self.add(record)

    def add(self, record: list[Any], folder: str = "") -> None:
        """Add an entry of a journal. folder: that of the shard, if it is in another one."""
        if record[0] == ALL:
            self.all = record
        elif len(record) > 1:
            file, found = record[:2]
            if folder and os.path.exists(os.path.join(folder, file)):
                self._elsewhere[file] = folder
            if isinstance(found, str):
                self.seals[file] = found
                self.empty.pop(file, None)
            elif file not in self.seals:  # else its inputs were packed after all
                self.empty[file] = found

    def find_parts(self, out: str) -> None:
        """Add the finished shards of all parts of a pack, which stay where they are."""
        for path in parts_of(out):
            for record in read_journal(os.path.join(path, "journal"))[1:]:
                self.add(record, os.path.join(path, "pack"))

    def gather_parts(self, out: str) -> None:
        """Move the finished shards of all parts of a pack into this folder, and remove the parts' folders."""
        make_folder(self.place.pack)
        for path in parts_of(out):
            with locked(path, out):
                for record in read_journal(os.path.join(path, "journal"))[1:]:
                    self.record(record)  # first: after a kill the shard is found in either folder
                    shard, to = (
                        os.path.join(folder, "pack", record[0]) for folder in (path, self.place.path)
                    )
                    if os.path.exists(shard):
                        remove(to)
                        os.rename(shard, to)
                remove(os.path.join(path, "journal"))
                remove(path)
        self._elsewhere.clear()

    @property
    def files(self) -> list[str]:
        """Names of all shards of the pack."""
        return [shard_name(number, self.all[2]) for number in range(self.all[1])] if self.all else []

    @property
    def skipped(self) -> list[dict[str, str]]:
        """Skipped inputs that no shard lists: in planning, and of empty shards."""
        return [*self.all[3], *(one for file in sorted(self.empty) for one in self.empty[file])]

    def header_of(self, files: Collection[str]) -> Header:
        """Return the merged header of some shards."""
        headers = [pack.header for file in files if (pack := self.open_shard(file))]
        left_out = [one for file in sorted(self.empty) if file in files for one in self.empty[file]]
        return merge_headers(headers, left_out) if headers else replace(NO_ROWS, skipped=tuple(left_out))

    def there(self, *, skip: bool) -> set[int]:
        """Return the numbers of finished shards. skip: count those with skipped inputs, too."""
        packs = [None if file in self.empty else self.open_shard(file) for file in self.files]
        found = {number for number, pack in enumerate(packs) if pack and (skip or not pack.header.skipped)}
        return found | {number for number, file in enumerate(self.files) if skip and file in self.empty}

    def open_shard(self, file: str) -> Pack | None:
        """Return a shard if it is complete and has the recorded seal, if any; its rows are not checked."""
        if file in self.empty:
            return None
        folder = self._elsewhere.get(file, self.folder)
        try:
            pack = open_pack(join(folder, file) if is_url(folder) else os.path.join(folder, file))
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
    if plan is None:
        found = "exists already, and no" if os.path.lexists(out) else "no"
        raise UsageError(
            f"{out}: {found} shards wait to be listed. Check the name, or run packer convert with"
            f" {Option('only_shards', '1/4')}, 2/4 and so on first."
        )
    check_parts(out, plan)
    place = WorkingFolder(out, plan=plan, overwrite=overwrite, resume=True)
    try:
        shards = RecordedShards(place)
        shards.find_parts(out)
        check_complete(shards, out)
        shards.gather_parts(out)
        return index_shards(shards, out, out)
    finally:
        place.close(keep=True)


def check_complete(shards: RecordedShards, name: str) -> list[Pack]:
    """Return all shards of a pack. Raises UsageError, or FormatError in a store, if some are missing."""
    packs = {file: shards.open_shard(file) for file in shards.files if file not in shards.empty}
    missing = [file for file, pack in packs.items() if pack is None]
    if missing and is_url(shards.folder):
        raise FormatError(
            f"{join(shards.folder, missing[0])}: is not the shard that was uploaded. Find the other writer of"
            " this URL; the same command writes the shard again."
        )
    if missing or not shards.all:
        raise UsageError(
            f"{name}: {len(missing):,} of its {len(shards.files):,} shards are missing, the first is"
            f" {missing[0]}. Run the unfinished parts again, or the same conversion without"
            f" {Option('only_shards')}, which writes missing shards and the index."
        )
    return [pack for pack in packs.values() if pack is not None]


def index_shards(recorded: RecordedShards, name: str, subject: str) -> Header:
    """Index the recorded shards, and publish the pack. Returns its header.

    name: name of the pack; subject: its source, for messages.
    """
    place, url = recorded.place, recorded.folder if is_url(recorded.folder) else ""
    shards, skipped = check_complete(recorded, name), recorded.skipped
    if not shards:
        place.begin_anew()
        raise NothingPackedError.of(subject, skipped)
    try:
        make_folder(place.pack)
        # Files that killed runs left.
        for left in set(os.listdir(place.pack)) - {shard.name for shard in shards}:
            remove(os.path.join(place.pack, left))
        write_index(place.pack, shards, skipped)
        if url:
            from packer.remote import access  # local conversions need not load it

            access.put_file(join(url, INDEX_FILE), os.path.join(place.pack, INDEX_FILE))
            place.close(keep=False)
        else:
            place.publish()
    except OSError as error:
        raise failure(name, error) from error
    return merge_headers([shard.header for shard in shards], skipped)
