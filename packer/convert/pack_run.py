"""A planned pack written: one part, its blocks made on parallel workers and sealed; or shards, made one after the other, listed last."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from packer.convert.block_workers import make_blocks
from packer.convert.conversion_task import NO_ROWS, ConversionTask, NothingPackedError, Report, RunOptions
from packer.convert.row_maker import Block
from packer.convert.sample_order import fill
from packer.errors import FormatError, MissingObjectError, UsageError
from packer.format.file_io import remove
from packer.format.header import INDEX_FILE, PARTIAL_SUFFIX, Header
from packer.format.pack import Pack, read_seal
from packer.format.pack_opening import open_pack
from packer.format.pack_writer import PackWriter
from packer.format.shards import check_listable, merge_headers, seal_of, shard_name, write_index
from packer.format.verify import verify_pack
from packer.format.working_folder import WorkingFolder, difference, failure, parts_of
from packer.remote.urls import is_url, join
from packer.sentence import Option

_ALL = "all shards"  # of the record that says how many there are, of which format, and what was left out beside them


def write_pack(task: ConversionTask, out: str, running: RunOptions, name: str | None = None) -> Report:
    """Write a whole pack. What has been done is kept if that fails, and the error says so.

    name: of the pack in messages, where `out` is one that users do not know. Raises PackerError.
    """
    write = write_part if task.storing.shard_rows is None else write_shards
    return write(task, out, running, name or out)


def write_part(
    task: ConversionTask,
    out: str,
    running: RunOptions,
    name: str,
    before: int = 0,
    begin: Callable[[PackWriter], Block] = lambda writer: Block(),
) -> Report:
    """Write a pack of one part.

    before: rows that other parts have; begin: may write blocks first, and note them as done; it returns what they add to the outcome.
    """

    def progress(rows: int) -> None:
        running.progress(before + rows)

    with part_writer(task, out, running, name, progress) as writer:
        resumed = sum(min(writer.block_rows, writer.rows - b * writer.block_rows) for b in writer.done)
        begun = begin(writer)
        outcome = make_blocks(
            task.maker,
            writer,
            task.order.samples,
            workers=running.workers,
            skip=running.skip,
            progress=progress,
        )
        outcome.merge(begun)
        return seal(task, writer, outcome, resumed)


def part_writer(
    task: ConversionTask,
    out: str,
    running: RunOptions,
    name: str | None = None,
    checked: Callable[[int], None] = lambda rows: None,
) -> PackWriter:
    """Begin, or go on with, a pack of one part. name, checked: as PackWriter takes them. Raises what it raises."""
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
    )


def seal(task: ConversionTask, writer: PackWriter, outcome: Block, resumed: int) -> Report:
    """Close the holes of skipped inputs in a pack whose blocks are all done, and give it its name.

    resumed: rows that were done before. Raises NothingPackedError if every input was skipped.
    """
    rows = len(task.order.samples)
    if len(outcome.reasons) == rows:
        writer.forget()
        raise NothingPackedError.of(task.subject, _skipped(task, outcome))
    moves, splits, kept = fill(sorted(outcome.reasons), task.order.splits, rows)
    writer.move_rows(moves.items())
    members = task.members
    if task.header is None:
        sums, skipped = outcome.sums, _skipped(task, outcome)
        statistics = {} if sums is None else {"image": sums.mean_std(_most(task))}
        spans = {name: ((a, b),) for name, (a, b) in splits.items()}
        members |= {"splits": spans, "statistics": statistics, "skipped": skipped}
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
    """Return the most that a pixel of the images can be."""
    return next(f for f in task.fields if f.name == "image").most


def row_keys(task: ConversionTask, kept: int, moves: Mapping[int, int]) -> Iterator[bytes]:
    """Yield each kept row's key, in the order of the rows."""
    for row in range(kept):
        sample = int(task.order.samples[moves.get(row, row)])
        yield task.maker.key(sample).encode("utf-8", "surrogateescape")


def _skipped(task: ConversionTask, outcome: Block) -> tuple[dict[str, str], ...]:
    found = (
        {"key": task.maker.key(int(task.order.samples[row])), "reason": why}
        for row, why in outcome.reasons.items()
    )
    return tuple(sorted((*found, *task.skipped), key=lambda s: s["key"]))


# Shards


def write_shards(task: ConversionTask, out: str, running: RunOptions, name: str) -> Report:
    """Write a pack of shards, or with ``running.only`` some of them. out, name: as write_pack has them. Raises PackerError."""
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
        os.makedirs(place.pack, exist_ok=True)
        count = -(-total // rows)
        compressed = sum(f.compressed for f in task.fields)
        check_listable(name, count * compressed * -(-rows // task.storing.block_rows(task.maker, rows)))
        if not recorded.all:
            record([_ALL, count, task.storing.format, list(task.skipped)])
        numbers = range(count) if only is None else range(only[0] - 1, count, only[1])
        files = {shard_name(number, task.storing.format): number for number in numbers}
        for file, number in files.items():
            path = os.path.join(place.pack, file)
            pack = recorded.found(place.pack, file, task.provenance)
            if pack is None or not verify_pack(path).ok:
                continue
            remove(path + PARTIAL_SUFFIX)  # of a run that was killed just after it had named the shard
            if file not in recorded.seals:
                record([file, seal_of(pack.seal)])
            there.add(file)
            resumed += min(rows, total - number * rows)
            running.progress(resumed)
        before = resumed
        for file, number in files.items():
            if file in there or file in recorded.empty:
                continue
            path, shard = os.path.join(place.pack, file), task.shard(number, rows)
            remove(path)
            try:
                again = replace(running, overwrite=True)
                parts.append(write_part(shard, path, again, os.path.join(name, file), before))
            except NothingPackedError as error:
                record([file, list(error.skipped)])
            else:
                record([file, seal_of(read_seal(path))])
            before += len(shard.order.samples)
        if only is None:
            header = list_recorded(place, name, task.subject, made=recorded)
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
    """The shards that journals tell of.

    seals: file -> seal; empty: those that do not exist, as all their inputs were skipped, and these; all: the record of all shards.
    """

    def __init__(self, records: Sequence[Any]) -> None:
        self.empty: dict[str, list[dict[str, str]]] = {}
        self.all: list[Any] = []
        self.seals: dict[str, str] = {}
        self._alike: dict[str, Any] = {}
        for record in records:
            self.add(record)

    def add(self, record: list[Any]) -> None:
        """Take in an entry of a journal."""
        if record[0] == _ALL:
            self.all = record
        elif len(record) > 1:
            (self.empty if isinstance(record[1], list) else self.seals)[record[0]] = record[1]

    def skipped_of(self, files: Collection[str]) -> list[dict[str, str]]:
        """Return inputs of some shards that no shard lists, in the order of the shards."""
        return [one for file in sorted(self.empty) if file in files for one in self.empty[file]]

    def header_of(self, folder: str, files: Collection[str]) -> Header:
        """Return the header of some shards together."""
        headers = [pack.header for file in files if (pack := self.found(folder, file))]
        left_out = self.skipped_of(files)
        return merge_headers(headers, left_out) if headers else replace(NO_ROWS, skipped=tuple(left_out))

    def there(self, folder: str) -> set[int]:
        """Return the numbers of the shards that are done."""
        _, count, format, _ = self.all or (_ALL, 0, "", [])
        files = enumerate(shard_name(number, format) for number in range(count))
        return {number for number, file in files if file in self.empty or self.found(folder, file)}

    def found(self, folder: str, file: str, provenance: Mapping[str, Any] | None = None) -> Pack | None:
        """Return a shard that is there with the seal that was recorded; its rows are not looked at.

        provenance: of the pack, by which a shard is known that was named and not recorded; None: such a one is not taken.
        """
        seal = self.seals.get(file)
        if file in self.empty or (seal is None and provenance is None):
            return None
        try:
            pack = open_pack(join(folder, file) if is_url(folder) else os.path.join(folder, file))
        except (FormatError, MissingObjectError):
            return None
        # What its header has in common with the last one's lies in the same memory: there may be very many.
        self._alike = {
            name: last if (last := self._alike.get(name)) == value else value
            for name, value in vars(pack.header).items()
        }
        pack = replace(pack, header=replace(pack.header, **self._alike))
        if seal is None:
            return None if difference(dict(pack.header.provenance), dict(provenance or {})) else pack
        return pack if seal == seal_of(pack.seal) else None


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
        return list_recorded(place, out, out)
    finally:
        place.close(keep=True)


def list_recorded(
    place: WorkingFolder, name: str, subject: str, url: str = "", made: RecordedShards | None = None
) -> Header:
    """List the shards that the journals of all parts tell of, and give the pack its name. Returns its header.

    name: of the pack; subject: what it is made of, for messages; url: of the shards in a store; made: the shards, where more were
    recorded since the journals were read.
    """
    made = made or RecordedShards(place.resumed)
    _, count, format, left_out = made.all
    files = [shard_name(number, format) for number in range(count)]
    found = {file: made.found(url or place.pack, file) for file in files if file not in made.empty}
    missing = [files.index(file) for file, pack in found.items() if pack is None]
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
    shards, skipped = (
        [pack for pack in found.values() if pack is not None],
        [*left_out, *made.skipped_of(files)],
    )
    if not shards:
        place.begin_anew()
        raise NothingPackedError.of(subject, skipped)
    try:
        os.makedirs(place.pack, exist_ok=True)
        for left in set(os.listdir(place.pack)) - {
            shard.name for shard in shards
        }:  # by runs that were killed
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
