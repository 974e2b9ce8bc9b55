"""A pack of shards: made one after the other or by others at once, listed last."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from packer.convert.conversion_task import NO_ROWS, ConversionTask, NothingPackedError, Report, RunOptions
from packer.convert.part_run import write_part
from packer.errors import FormatError, MissingObjectError, UsageError
from packer.format.file_io import remove
from packer.format.header import INDEX_FILE, PARTIAL_SUFFIX, Header
from packer.format.pack import Pack
from packer.format.pack_opening import open_pack
from packer.format.shards import listing, merge_headers, seal_of, shard_name, write_index
from packer.format.verify import verify_pack
from packer.format.working_folder import WorkingFolder, difference, failure, parts_of
from packer.remote.urls import is_url, join
from packer.sentence import Option

_ALL = "all shards"  # of the record that says how many there are, of which format, and what was left out beside them


def write_shards(task: ConversionTask, out: str, running: RunOptions, name: str, rows: int) -> Report:
    """Write a pack of shards of so many rows, or with ``running.only`` some of its shards.

    out, name: as write_pack has them. Raises PackerError.
    """
    only, total = running.only, len(task.order.samples)
    place = WorkingFolder(
        out,
        overwrite=running.overwrite,
        plan=task.plan,
        resume=running.resume,
        part="" if only is None else f"part-{only[0]}-of-{only[1]}",
    )
    resumed, parts = 0, list[Report]()
    recorded = RecordedShards(place.resumed, task.members.get("provenance"))
    shards: dict[str, Pack] = {}
    try:
        os.makedirs(place.pack, exist_ok=True)
        count = -(-total // rows)
        if only is not None and not recorded.all:
            place.record([_ALL, count, task.storing.format, list(task.skipped)])
        numbers = range(count) if only is None else range(only[0] - 1, count, only[1])
        files = {shard_name(number, task.storing.format): number for number in numbers}
        for file, number in files.items():
            found = None if file in recorded.empty else recorded.found(place.pack, file, whole=False)
            if found is not None:
                shards[file] = _sharing(found, shards)
                if file not in recorded.seals:  # a run was killed just after it had named the shard
                    place.record([file, seal_of(found.seal)])
                resumed += min(rows, total - number * rows)
                running.progress(resumed)
        before = resumed
        for file, number in files.items():
            if file in shards or file in recorded.empty:
                continue
            path, part = os.path.join(place.pack, file), task.shard(number, rows)
            remove(path)
            try:
                again = replace(running, overwrite=True)
                parts.append(write_part(part, path, again, os.path.join(name, file), before))
            except NothingPackedError as error:
                recorded.empty[file] = list(error.skipped)
                place.record([file, recorded.empty[file]])
            else:
                shards[file] = _sharing(open_pack(path), shards)
                place.record([file, seal_of(shards[file].seal)])
            before += len(part.order.samples)
        left_out = recorded.skipped_of(files)
        made = [shards[file] for file in sorted(shards)]
        if only is None:
            header = _list(place, made, [*task.skipped, *left_out], name, task.subject)
        else:
            headers = [shard.header for shard in made]
            header = merge_headers(headers, left_out) if made else replace(NO_ROWS, skipped=tuple(left_out))
            place.close(keep=True)
        return Report.of_parts(header, parts, resumed, place.cleared)
    except BaseException as error:
        kept = os.path.isdir(place.pack) and os.listdir(place.pack)
        place.close(keep=task.plan is not None and bool(kept))
        if isinstance(error, OSError):
            raise failure(name, error) from error
        raise


class RecordedShards:
    """The shards that the journal tells of. empty: those that do not exist, as all their inputs were skipped, and these."""

    def __init__(self, records: Sequence[Any], provenance: Mapping[str, Any] | None = None) -> None:
        """provenance: of the pack, by which a shard is known that was named and not recorded."""
        self._provenance = provenance or {}
        self.empty: dict[str, list[dict[str, str]]] = {}
        self.seals: dict[str, str] = {}
        self.all: list[Any] = []
        for record in records:
            if record[0] == _ALL:
                self.all = record
            elif len(record) > 1:
                (self.empty if isinstance(record[1], list) else self.seals)[record[0]] = record[1]

    def skipped_of(self, files: Collection[str]) -> list[dict[str, str]]:
        """Return inputs of some shards that no shard lists, in the order of the shards."""
        return [one for file in sorted(self.empty) if file in files for one in self.empty[file]]

    def there(self, folder: str) -> set[int]:
        """Return the numbers of the shards that are done."""
        _, count, format, _ = self.all or (_ALL, 0, "", [])
        files = enumerate(shard_name(number, format) for number in range(count))
        return {
            number
            for number, file in files
            if file in self.empty or self.found(folder, file, whole=True) is not None
        }

    def found(self, folder: str, file: str, *, whole: bool) -> Pack | None:
        """Return a shard that is there. whole: it got its name when it was on the disk, so that its seal tells that it is the one."""
        path = join(folder, file) if is_url(folder) else os.path.join(folder, file)
        seal = self.seals.get(file)
        if whole:
            if seal is None:
                return None
        elif not (os.path.exists(path) and verify_pack(path).ok):
            return None
        else:
            remove(path + PARTIAL_SUFFIX)  # of a run that was killed just after it had named the shard
        try:
            pack = open_pack(path)
        except (FormatError, MissingObjectError):
            return None
        if (
            seal is None
        ):  # perhaps of the last task that a process of another run did, whose driver was killed
            return None if difference(dict(pack.header.provenance), self._provenance) else pack
        return pack if seal == seal_of(pack.seal) else None


def _sharing(pack: Pack, others: Mapping[str, Pack]) -> Pack:
    """Return a shard, with what its header has in common with another's in the same memory: there may be very many."""
    header, other = pack.header, next((other.header for other in others.values()), pack.header)
    equal = {name: value for name, value in vars(other).items() if getattr(header, name) == value}
    return replace(pack, header=replace(header, **equal))


def _list(
    place: WorkingFolder,
    shards: Sequence[Pack],
    skipped: Sequence[dict[str, str]],
    name: str,
    subject: str,
    url: str = "",
) -> Header:
    """Write the index, and give the pack its name. Returns its header. subject: the source. url: of the shards in a store."""
    if not shards:
        place.begin_anew()
        raise NothingPackedError.of(subject, skipped)
    lines, headers = listing(shards)
    try:
        os.makedirs(place.pack, exist_ok=True)
        for left in set(os.listdir(place.pack)) - {line.file for line in lines}:  # by runs that were killed
            remove(os.path.join(place.pack, left))
        write_index(place.pack, lines, skipped, headers)
        if url:
            from packer.remote import access  # local conversions need not load it

            access.put_file(join(url, INDEX_FILE), os.path.join(place.pack, INDEX_FILE))
            place.close(keep=False)
        else:
            place.publish()
    except OSError as error:
        raise failure(name, error) from error
    return merge_headers([s.header for s in shards], skipped)


def list_shards(out: str, *, overwrite: bool = False) -> Header:
    """List the shards that several runs have made of one plan, and give the pack its name.

    Raises UsageError: there are none, some are missing, or they are of several plans; PackerError.
    """
    parts = {name: records for name, records in parts_of(out).items() if len(records) > 1}
    if not parts:
        raise UsageError(
            f"{out}: no part of it was made by itself. Run packer convert with "
            f"{Option('only_shards', '1/4')}, 2/4 and so on first."
        )
    (first, plan), *others = ((name, records[0]) for name, records in parts.items())
    for name, other in others:  # they began at once, and none saw the other's journal
        if differs := difference(plan, other):
            raise UsageError(
                f"{out}: {name} is a part of another conversion than {first}: {differs}."
                f" Remove {out}{PARTIAL_SUFFIX}, and run all parts again."
            )
    place = WorkingFolder(out, plan=plan, overwrite=overwrite, resume=True)
    try:
        return list_recorded(place, place.resumed, out)
    finally:
        place.close(keep=True)


def list_recorded(place: WorkingFolder, records: Sequence[Any], name: str, url: str = "") -> Header:
    """List the shards that the journals of all parts tell of, and give the pack its name.

    records: theirs; name: of the pack; url: of the shards in a store.
    """
    made = RecordedShards(records)
    _, count, format, left_out = made.all
    files = [shard_name(number, format) for number in range(count)]
    shards = {
        file: made.found(url or place.pack, file, whole=True) for file in files if file not in made.empty
    }
    missing = [files.index(file) for file, pack in shards.items() if pack is None]
    if missing and url:
        raise FormatError(
            f"{join(url, files[missing[0]])}: is not the shard that was written there. Look for who writes it, too; the same command"
            " makes it again."
        )
    if missing:
        raise UsageError(
            f"{name}: {len(missing):,} of its {count:,} shards are missing, the first {files[missing[0]]}. Run the parts again that did"
            f" not finish, or the same conversion without {Option('only_shards')}: it makes them, and lists all."
        )
    found = [pack for pack in shards.values() if pack is not None]
    return _list(place, found, [*left_out, *made.skipped_of(files)], name, name, url)
