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
    run = _ShardRun(task, out, running, name, rows, make, url, generation)
    try:
        run.begin()
        run.make()
        return run.finish() if running.only is None else run.leave()
    except BaseException:
        run.close()
        raise


class _ShardRun:
    """One run that makes shards of a pack; the arguments are those of write_shards."""

    def __init__(
        self,
        task: ConversionTask,
        out: str,
        running: RunOptions,
        name: str,
        rows: int,
        make: MakeShards,
        url: str,
        generation: int,
    ) -> None:
        only = running.only
        self._task, self._name, self._make, self._url = task, name, make, url
        self._here = make is one_after_another
        self._place = WorkingFolder(
            out,
            overwrite=running.overwrite,
            plan=task.plan,
            resume=running.resume,
            part="" if only is None else f"part-{only[0]}-of-{only[1]}",
            inherited=self._here,  # processes of an executor outlive the run: they must not hold its lock
        )
        self._done = RunResult(Header(0, 1, (), {}), cleared=self._place.cleared)
        self._recorded = _Recorded(self._place.resumed, task.members.get("provenance"))
        self._shards: dict[int, Pack] = {}
        self._kept = False
        numbers = range(-(-len(task.order.samples) // rows))
        self._count = len(numbers)
        self._work = ShardWork(
            task,
            numbers if only is None else numbers[only[0] - 1 :: only[1]],
            rows,
            url or self._place.pack,
            os.path.join(self._place.path, "attempts"),
            name,
            running,
            running.progress,
            generation,
        )

    def begin(self) -> None:
        """Find the shards that are there."""
        try:
            os.makedirs(self._place.pack, exist_ok=True)
        except OSError as error:
            raise failure(self._name, error) from error
        work = self._work
        if work.running.only is not None and not self._recorded.all:
            self._place.record([_ALL, self._count, self._task.storing.format, list(self._task.skipped)])
        for number in work.numbers:
            file = work.file(number)
            if file in self._recorded.empty:
                continue
            found = self._recorded.found(work.folder, file, whole=not self._here)
            if found is not None:
                self._shards[number], self._kept = _sharing(found, self._shards), True
                if file not in self._recorded.seals:  # a run was killed just after it had named the shard
                    self._place.record([file, seal_of(found.seal)])
                self._done.resumed += work.rows_of(number)
                work.running.progress(self._done.resumed)

    def make(self) -> None:
        """Make those that are missing."""
        work, before = self._work, self._done.resumed
        there = {*self._shards, *(n for n in work.numbers if work.file(n) in self._recorded.empty)}
        missing = [number for number in work.numbers if number not in there]
        progress = work.running.progress
        todo = replace(work, numbers=missing, progress=lambda made: progress(before + made))
        for number, result in self._make(todo):
            file = work.file(number)
            if isinstance(result, NothingPackedError):
                self._recorded.empty[file] = list(result.skipped)
                self._place.record([file, self._recorded.empty[file]])
            else:
                pack = self._shards[number] = _sharing(open_pack(_at(work.folder, file)), self._shards)
                if result.seal not in ("", seal_of(pack.seal)):
                    raise _changed(pack)
                self._done.add(result)
                self._place.record([file, seal_of(pack.seal)])
            self._kept = True

    def leave(self) -> RunResult:
        """End a run that was to make some of the shards."""
        self._place.close(keep=True)
        left_out = self._recorded.skipped_of({self._work.file(number) for number in self._work.numbers})
        shards = [self._shards[number] for number in sorted(self._shards)]
        self._done.header = (
            merge_headers([s.header for s in shards], [s.path for s in shards], left_out)
            if shards
            else replace(self._done.header, skipped=tuple(left_out))
        )
        return self._done

    def finish(self) -> RunResult:
        """List all shards, and give the pack its name."""
        skipped = [*self._task.skipped, *self._recorded.skipped]
        if not self._here and not self._url:
            for pack in self._shards.values():
                try:
                    pack.check_same()
                except FormatError:
                    raise _changed(pack) from None
        if not self._shards:
            self._place.begin_anew()
            self._kept = False
            raise NothingPackedError.of(self._task.subject, skipped)
        shards = [self._shards[number] for number in sorted(self._shards)]
        self._done.header = _list(self._place, shards, skipped, self._name, self._url)
        return self._done

    def close(self) -> None:
        """Keep what can be gone on with."""
        folder = self._place.pack
        begun = os.path.isdir(folder) and any(name.endswith(PARTIAL_SUFFIX) for name in os.listdir(folder))
        self._place.close(keep=self._task.plan is not None and (self._kept or begun))


class _Recorded:
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
            f"{out}: {many}. Run packer convert without {Option('only_shards')}: it makes them, and "
            "lists all."
        )
    runs = sorted({number % int(*of) + 1 for number in missing})
    first, *others = (f"{run}/{int(*of)}" for run in runs[:_SHOWN])
    return Sentence(
        f"{out}: {many}. Run packer convert again with {Option('only_shards', first)}",
        "".join(f", {other}" for other in others)
        + (" ..." if len(runs) > _SHOWN else "")
        + ": it makes what is missing.",
    )
