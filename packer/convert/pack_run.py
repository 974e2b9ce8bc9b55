"""Writes a planned pack: a single part, its blocks made on parallel workers; or shards, then their index."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from packer.convert.block_workers import make_blocks
from packer.convert.conversion_task import NO_ROWS, ConversionTask, NothingPackedError, Report, RunOptions
from packer.convert.pixel_sums import statistics_of
from packer.convert.row_maker import Block
from packer.convert.sample_order import fill
from packer.errors import FormatError, MissingObjectError, UsageError
from packer.format.file_io import make_folder, remove
from packer.format.header import INDEX_FILE, PARTIAL_SUFFIX, Header
from packer.format.pack import Pack, read_seal
from packer.format.pack_opening import open_pack
from packer.format.pack_writer import PackWriter
from packer.format.shards import check_listable, merge_headers, seal_of, shard_name, write_index
from packer.format.verify import verify_pack
from packer.format.working_folder import WorkingFolder, difference, failure, parts_of
from packer.remote.urls import is_url, join
from packer.sentence import Option

_ALL = "all shards"  # record of the number of shards, their format, and the inputs skipped in planning


def write_pack(task: ConversionTask, out: str, running: RunOptions, name: str | None = None) -> Report:
    """Write a complete pack; keep finished work if that fails. Raises PackerError.

    name: name of the pack in messages, if users do not know `out`.
    """
    write = write_part if task.storing.shard_rows is None else write_shards
    return write(task, out, running, name or out)


def write_part(
    task: ConversionTask,
    out: str,
    running: RunOptions,
    name: str,
    before: int = 0,
) -> Report:
    """Write a pack of a single part.

    before: rows of earlier parts, for the progress.
    """

    def progress(rows: int) -> None:
        running.progress(before + rows)

    with part_writer(task, out, running, name, progress) as writer:
        if not running.skip:  # make blocks with skipped inputs again, which stops at the first of these
            done = writer.done.items()
            writer.done = {block: note for block, note in done if not Block.from_note(note).reasons}
        resumed = sum(min(writer.block_rows, writer.rows - b * writer.block_rows) for b in writer.done)
        outcome = make_blocks(
            task.maker,
            writer,
            task.order.samples,
            workers=running.workers,
            skip=running.skip,
            progress=progress,
            train=task.order.train,
        )
        return seal(task, writer, outcome, resumed)


def part_writer(
    task: ConversionTask,
    out: str,
    running: RunOptions,
    name: str | None = None,
    checked: Callable[[int], None] = lambda rows: None,
) -> PackWriter:
    """Start or resume a pack of a single part. name, checked: as in PackWriter."""
    rows = len(task.order.samples)
    return PackWriter(
        out,
        name=name,
        fields=task.fields,
        rows=rows,
        block_rows=task.storing.block_rows(task.maker, rows),
        format=task.storing.format,
        overwrite=running.overwrite,
        plan=task.plan,
        resume=running.resume,
        checked=checked,
        readable=running.readable,
    )


def seal(task: ConversionTask, writer: PackWriter, outcome: Block, resumed: int) -> Report:
    """Close the holes of skipped inputs in a pack whose blocks are all done, and publish it.

    resumed: rows done by an earlier run. Raises NothingPackedError if every input was skipped.
    """
    rows = len(task.order.samples)
    if len(outcome.reasons) == rows:
        writer.forget()
        raise NothingPackedError.of(task.subject, _skipped(task, outcome))
    moves, splits, kept = fill(sorted(outcome.reasons), task.order.splits, rows)
    writer.move_rows(moves.items())
    members = task.members
    spans = {name: ((a, b),) for name, (a, b) in splits.items()}
    members |= {"splits": spans, "skipped": _skipped(task, outcome)}
    if outcome.sums:
        members |= statistics_of("image", outcome.sums, _most(task))
    ragged = {"key": row_keys(task, kept, moves)} if task.keyed else {}
    header = writer.finish(rows=kept, ragged=ragged, **members)
    return Report.of(
        header,
        bytes_read=outcome.bytes_read,
        resumed=resumed,
        cleared=writer.cleared,
        narrowed=outcome.narrowed,
    )


def _most(task: ConversionTask) -> int:
    """Return the largest value that a pixel of the images can have."""
    return next(f for f in task.fields if f.name == "image").most


def row_keys(task: ConversionTask, kept: int, moves: Mapping[int, int]) -> Iterator[bytes]:
    """Yield each kept row's key, in the order of the rows."""
    for row in range(kept):
        sample = int(task.order.samples[moves.get(row, row)])
        yield task.maker.key(sample).encode("utf-8", "surrogateescape")


def _skipped(task: ConversionTask, outcome: Block) -> tuple[dict[str, str], ...]:
    skipped = (
        {"key": task.maker.key(int(task.order.samples[row])), "reason": why}
        for row, why in outcome.reasons.items()
    )
    return tuple(sorted((*skipped, *task.skipped), key=lambda s: s["key"]))


# Shards


def write_shards(task: ConversionTask, out: str, running: RunOptions, name: str) -> Report:
    """Write a pack of shards, or with ``running.only`` some of them.

    out, name: as in write_pack. Raises PackerError.
    """
    only, total = running.only, len(task.order.samples)
    rows, part = task.storing.shard_rows or total, "" if only is None else f"part-{only[0]}-of-{only[1]}"
    place = WorkingFolder(out, overwrite=running.overwrite, plan=task.plan, resume=running.resume, part=part)
    resumed, parts = 0, list[Report]()
    recorded = RecordedShards(place.resumed)
    there: set[str] = set()

    def record(entry: list[Any]) -> None:
        place.record(entry)
        recorded.add(entry)

    try:
        make_folder(place.pack)
        count = -(-total // rows)
        compressed = sum(f.compressed for f in task.fields)
        check_listable(name, count * compressed * -(-rows // task.storing.block_rows(task.maker, rows)))
        if not recorded.all:
            record([_ALL, count, task.storing.format, list(task.skipped)])
        numbers = range(count) if only is None else range(only[0] - 1, count, only[1])
        files = {shard_name(number, task.storing.format): number for number in numbers}
        for file, number in files.items():
            path = os.path.join(place.pack, file)
            pack = recorded.open_shard(place.pack, file, task.provenance)
            if pack is None or (pack.header.skipped and not running.skip):
                continue
            # A recorded shard was flushed before its seal was recorded; another is read once.
            if file not in recorded.seals and not verify_pack(path).ok:
                continue
            remove(
                path + PARTIAL_SUFFIX
            )  # left by a run that was killed just after it had published the shard
            if file not in recorded.seals:
                record([file, seal_of(pack.seal)])
            there.add(file)
            resumed += min(rows, total - number * rows)
            running.progress(resumed)
        before = resumed
        for file, number in files.items():
            if only is None:
                running.readable(number * rows, {})
            if file in there or (file in recorded.empty and running.skip):
                continue
            path, shard = os.path.join(place.pack, file), task.shard(number, rows)
            remove(path)
            try:
                again = replace(running, overwrite=True, readable=RunOptions.readable)
                parts.append(write_part(shard, path, again, os.path.join(name, file), before))
            except NothingPackedError as error:
                record([file, list(error.skipped)])
            else:
                record([file, seal_of(read_seal(path))])
            before += len(shard.order.samples)
        if only is None:
            running.readable(total, {})
            header = list_recorded(place, name, task.subject, recorded=recorded)
        else:
            header = recorded.header_of(place.pack, files)
            place.close(keep=True)
        return Report.of_parts(header, parts, resumed, place.cleared)
    except BaseException as error:
        kept = os.path.isdir(place.pack) and os.listdir(place.pack)
        place.close(keep=task.plan is not None and bool(kept))
        if isinstance(error, OSError):
            raise failure(name, error) from error
        raise


class RecordedShards:
    """The shards recorded in journals.

    seals: file -> seal; empty: file of a shard that does not exist -> its inputs, which were all skipped;
    all: the record that describes all shards.
    """

    def __init__(self, records: Sequence[Any]) -> None:
        self.empty: dict[str, list[dict[str, str]]] = {}
        self.all: list[Any] = []
        self.seals: dict[str, str] = {}
        self._alike: dict[str, Any] = {}
        for record in records:
            self.add(record)

    def add(self, record: list[Any]) -> None:
        """Add an entry of a journal."""
        if record[0] == _ALL:
            self.all = record
        elif len(record) > 1:
            file, found = record[:2]
            if isinstance(found, str):
                self.seals[file] = found
                self.empty.pop(file, None)
            elif file not in self.seals:  # else its inputs were packed after all
                self.empty[file] = found

    def skipped_of(self, files: Collection[str]) -> list[dict[str, str]]:
        """Return the skipped inputs of empty shards among `files`, in the order of the shards."""
        return [skipped for file in sorted(self.empty) if file in files for skipped in self.empty[file]]

    def header_of(self, folder: str, files: Collection[str]) -> Header:
        """Return the merged header of some shards."""
        headers = [pack.header for file in files if (pack := self.open_shard(folder, file))]
        left_out = self.skipped_of(files)
        return merge_headers(headers, left_out) if headers else replace(NO_ROWS, skipped=tuple(left_out))

    def there(self, folder: str, *, skip: bool) -> set[int]:
        """Return the numbers of finished shards. skip: count those with skipped inputs, too."""
        _, count, format, _ = self.all or (_ALL, 0, "", [])
        files = {number: shard_name(number, format) for number in range(count)}
        packs = {number: self.open_shard(folder, file) for number, file in files.items()}
        there = {number for number, pack in packs.items() if pack and (skip or not pack.header.skipped)}
        return there | {number for number, file in files.items() if skip and file in self.empty}

    def open_shard(self, folder: str, file: str, provenance: Mapping[str, Any] | None = None) -> Pack | None:
        """Return a shard if it exists with the recorded seal, else None; its rows are not checked.

        provenance: provenance of the pack, which identifies a shard that was published but not recorded;
        None: do not accept unrecorded shards.
        """
        seal = self.seals.get(file)
        if file in self.empty or (seal is None and provenance is None):
            return None
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
        if seal is None:
            return None if difference(dict(pack.header.provenance), dict(provenance or {})) else pack
        return pack if seal == seal_of(pack.seal) else None


def list_shards(out: str, *, overwrite: bool = False) -> Header:
    """Index the shards that several runs wrote with the same plan, and publish the pack.

    Raises UsageError if shards are missing or belong to several plans; PackerError.
    """
    parts = {name: records for name, records in parts_of(out).items() if len(records) > 1}
    if not parts:
        raise UsageError(
            f"{out}: has no separately written parts. Run packer convert with "
            f"{Option('only_shards', '1/4')}, 2/4 and so on first."
        )
    (first, plan), *others = ((name, records[0]) for name, records in parts.items())
    for name, other in others:  # runs that started at the same time did not see each other's journals
        if differs := difference(plan, other):
            raise UsageError(
                f"{out}: {name} is a part of another conversion than {first}: {differs}."
                f" Remove {out}{PARTIAL_SUFFIX}, and run all parts again."
            )
    place = WorkingFolder(out, plan=plan, overwrite=overwrite, resume=True)
    try:
        return list_recorded(place, out, out)
    finally:
        place.close(keep=True)


def list_recorded(
    place: WorkingFolder, name: str, subject: str, url: str = "", recorded: RecordedShards | None = None
) -> Header:
    """Index the shards that the journals of all parts record, and publish the pack. Returns its header.

    name: name of the pack; subject: its source, for messages; url: URL of the shards in an object store;
    recorded: the recorded shards, if more were recorded since the journals were read.
    """
    recorded = recorded or RecordedShards(place.resumed)
    _, count, format, left_out = recorded.all
    files = [shard_name(number, format) for number in range(count)]
    packs = {
        file: recorded.open_shard(url or place.pack, file) for file in files if file not in recorded.empty
    }
    missing = [file for file, pack in packs.items() if pack is None]
    if missing and url:
        raise FormatError(
            f"{join(url, missing[0])}: is not the shard that was uploaded. Find the other writer of"
            " this URL; the same command writes the shard again."
        )
    if missing:
        raise UsageError(
            f"{name}: {len(missing):,} of its {count:,} shards are missing, the first is {missing[0]}."
            f" Run the unfinished parts again, or the same conversion without {Option('only_shards')}, which"
            " writes missing shards and the index."
        )
    shards, skipped = (
        [pack for pack in packs.values() if pack is not None],
        [*left_out, *recorded.skipped_of(files)],
    )
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
