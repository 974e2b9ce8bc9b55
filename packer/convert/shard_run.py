"""A pack of shards: made one after the other or by others at once, listed last."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from packer.convert.conversion_task import ConversionTask, NothingPackedError, RunOptions, RunResult
from packer.convert.part_run import write_part
from packer.errors import FormatError, MissingObjectError, UsageError
from packer.format.file_io import remove
from packer.format.header import PARTIAL_SUFFIX, Header
from packer.format.listed_headers import seal_of
from packer.format.listed_pack import listing
from packer.format.pack import Pack, open_pack
from packer.format.shards import INDEX_FILE, merge_headers, shard_name, write_index
from packer.format.verify import verify_pack
from packer.format.working_folder import WorkingFolder, difference, failure, parts_of
from packer.remote.urls import is_url, join
from packer.sentence import Option, Sentence

_SHOWN = 8
_ALL = "all shards"  # of the record that says how many there are, of which format, and what was left out beside them


@dataclass(frozen=True)
class ShardWork:
    """The shards of a pack that are still to be made.

    numbers: theirs, rising. rows: of each but the last. folder: where they go, of this machine or the URL of one in a store;
    scratch: a folder for unfinished ones; name: of the pack in messages; progress: called with rows done so far of these shards;
    generation: of their names.
    """

    task: ConversionTask
    numbers: Sequence[int]
    rows: int
    folder: str
    scratch: str
    name: str
    running: RunOptions
    progress: Callable[[int], None]
    generation: int = 1

    def shard(self, number: int) -> ConversionTask:
        """Return the task of one shard."""
        return self.task.shard(number, self.rows)

    def rows_of(self, number: int) -> int:
        """Return how many rows one shard has, before any is left out."""
        return min(self.rows, len(self.task.order.samples) - number * self.rows)

    def file(self, number: int) -> str:
        """Return the name of one shard."""
        return shard_name(number, self.task.storing.format, self.generation)


MadeShard = tuple[int, RunResult | NothingPackedError]
MakeShards = Callable[[ShardWork], Iterator[MadeShard]]
"""What makes shards, in any order: each is in the folder, whole, when its number comes with its result."""


def one_after_another(work: ShardWork) -> Iterator[MadeShard]:
    """Make shards on the workers of this machine, in the folder itself."""
    # Processes that outlived a killed driver may put one of equal bytes there meanwhile.
    done, running = 0, replace(work.running, progress=work.progress, overwrite=True)
    for number in work.numbers:
        path, part = os.path.join(work.folder, work.file(number)), work.shard(number)
        remove(path)
        name = os.path.join(work.name, work.file(number))
        try:
            yield number, write_part(part, path, running, name, done)
        except NothingPackedError as error:
            yield number, error
        done += work.rows_of(number)


def write_shards(
    task: ConversionTask,
    out: str,
    running: RunOptions,
    name: str,
    rows: int,
    make: MakeShards = one_after_another,
    url: str = "",
    generation: int = 1,
) -> RunResult:
    """Write a pack of shards of so many rows, or with ``running.only`` some of its shards.

    out, name: as write_pack has them. make: makes the shards; url: of the pack in a store to which it takes them;
    generation: of their names there. Raises PackerError.
    """
    total, only = len(task.order.samples), running.only
    numbers = range(-(-total // rows))
    place = WorkingFolder(
        out,
        overwrite=running.overwrite,
        plan=task.plan,
        resume=running.resume,
        part="" if only is None else f"part-{only[0]}-of-{only[1]}",
        inherited=make is one_after_another,
    )
    done, kept = RunResult(Header(0, 1, (), {}), cleared=place.cleared), False
    made = _Recorded(place.resumed, task.members.get("provenance"))
    try:
        try:
            os.makedirs(place.pack, exist_ok=True)
        except OSError as error:
            raise failure(name, error) from error
        if only is not None:
            if not made.all:
                place.record([_ALL, len(numbers), task.storing.format, list(task.skipped)])
            numbers = numbers[only[0] - 1 :: only[1]]
        folder = url or place.pack
        shards: dict[int, Pack] = {}
        missing = []
        for number in numbers:
            file = shard_name(number, task.storing.format, generation)
            if file in made.empty:
                continue
            found = made.found(folder, file, whole=make is not one_after_another)
            if found is None:
                missing.append(number)
            else:
                shards[number], kept = _sharing(found, shards), True
                if file not in made.seals:  # a run was killed just after it had named the shard
                    place.record([file, seal_of(found.seal)])
                done.resumed += min(rows, total - number * rows)
                running.progress(done.resumed)
        before = done.resumed
        work = ShardWork(
            task,
            missing,
            rows,
            folder,
            os.path.join(place.path, "attempts"),
            name,
            running,
            lambda made: running.progress(before + made),
            generation,
        )
        for number, result in make(work):
            file = work.file(number)
            if isinstance(result, NothingPackedError):
                made.empty[file] = list(result.skipped)
                place.record([file, made.empty[file]])
            else:
                pack = _sharing(open_pack(_at(folder, file)), shards)
                shards[number] = pack
                if result.seal not in ("", seal_of(pack.seal)):
                    raise _changed(pack)
                done.add(result)
                place.record([file, seal_of(pack.seal)])
            kept = True
        skipped = [*task.skipped, *made.skipped]
        if only is not None:
            place.close(keep=True)
            left_out = made.skipped_of({shard_name(number, task.storing.format) for number in numbers})
            listed = [shards[number] for number in sorted(shards)]
            done.header = (
                merge_headers([s.header for s in listed], [s.path for s in listed], left_out)
                if listed
                else replace(done.header, skipped=tuple(left_out))
            )
            return done
        if make is not one_after_another and not url:
            for pack in shards.values():
                try:
                    pack.check_same()
                except FormatError:
                    raise _changed(pack) from None
        if not shards:
            place.begin_anew()
            kept = False
            raise NothingPackedError.of(task.subject, skipped)
        done.header = _list(place, [shards[number] for number in sorted(shards)], skipped, name, url)
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


class _Recorded:
    """The shards that the journal tells of. empty: those that do not exist, as all their inputs were skipped, and these."""

    def __init__(self, records: Sequence[Any], provenance: Mapping[str, Any] | None = None) -> None:
        """provenance: of the pack, by which a shard is known that was named and not recorded."""
        self._provenance = provenance or {}
        self.empty: dict[str, list[dict[str, str]]] = {}
        self.seals: dict[str, str] = {}
        self.all: list[Any] = []
        for record in records:
            if not isinstance(record, list):
                continue  # of the rows of a table, by a run that was to make all of it
            if record[0] == _ALL:
                self.all = record
            elif len(record) > 1:
                (self.empty if isinstance(record[1], list) else self.seals)[record[0]] = record[1]

    @property
    def skipped(self) -> list[dict[str, str]]:
        """Inputs that no shard lists, in the order of the shards."""
        return self.skipped_of(self.empty)

    def skipped_of(self, files: Collection[str]) -> list[dict[str, str]]:
        """Return those of some shards."""
        return [one for file in sorted(self.empty) if file in files for one in self.empty[file]]

    def found(self, folder: str, file: str, *, whole: bool) -> Pack | None:
        """Return a shard that is there. whole: it got its name when it was on the disk, so that its seal tells that it is the one."""
        path, seal = _at(folder, file), self.seals.get(file)
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


def _sharing(pack: Pack, others: Mapping[int, Pack]) -> Pack:
    """Return a shard, with what its header has in common with another's in the same memory: there may be very many."""
    header, other = pack.header, next((other.header for other in others.values()), pack.header)
    equal = {name: value for name, value in vars(other).items() if getattr(header, name) == value}
    return replace(pack, header=replace(header, **equal))


def _changed(pack: Pack) -> FormatError:
    return FormatError(
        f"{pack.path}: is not the shard that was written there. Look for who writes it, too; the same command makes it again."
    )


def _at(folder: str, file: str) -> str:
    return join(folder, file) if is_url(folder) else os.path.join(folder, file)


def _list(
    place: WorkingFolder, shards: Sequence[Pack], skipped: Sequence[dict[str, str]], name: str, url: str
) -> Header:
    """Write the index, and give the pack its name. Returns its header."""
    lines, headers = listing(shards)
    try:
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
    return merge_headers([s.header for s in shards], [s.file for s in lines], skipped)


def list_shards(out: str, *, overwrite: bool = False) -> Header:
    """List the shards that several runs have made of one plan, and give the pack its name.

    Raises UsageError: there are none, some are missing, or they are of several plans; PackerError.
    """
    parts = {name: records for name, records in parts_of(out).items() if len(records) > 1}
    if not parts:
        raise UsageError(
            f"{out}: no part of it was made by itself. Run packer convert with ",
            Option("only_shards", "1/4"),
            ", 2/4 and so on first.",
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
        made = _Recorded(place.resumed)
        _, count, format, left_out = made.all
        files = [shard_name(number, format) for number in range(count)]
        shards = {file: made.found(place.pack, file, whole=True) for file in files if file not in made.empty}
        missing = [files.index(file) for file, pack in shards.items() if pack is None]
        if missing:
            raise UsageError(_missing(out, missing, count, list(parts)))
        found = [pack for pack in shards.values() if pack is not None]
        skipped = [*left_out, *made.skipped]
        if not found:
            raise NothingPackedError.of(out, skipped)
        return _list(place, found, skipped, out, "")
    finally:
        place.close(keep=True)


def _missing(out: str, missing: Sequence[int], count: int, parts: Sequence[str]) -> Sentence:
    many = f"{len(missing):,} of its {count:,} shards are missing"
    of = {name.rpartition("-")[2] for name in parts}
    if len(of) > 1:
        return Sentence(
            f"{out}: {many}. Run packer convert without ",
            Option("only_shards"),
            ": it makes them, and lists all.",
        )
    runs = sorted({number % int(*of) + 1 for number in missing})
    first, *others = (f"{run}/{int(*of)}" for run in runs[:_SHOWN])
    return Sentence(
        f"{out}: {many}. Run packer convert again with ",
        Option("only_shards", first),
        "".join(f", {other}" for other in others)
        + (" ..." if len(runs) > _SHOWN else "")
        + ": it makes what is missing.",
    )
