"""The frame of every conversion: from rows that can be made to a whole pack, of one part or of shards, interrupted or not; its report."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from typing import Any

from packer import units
from packer.arguments import ON_ERROR, check_workers, choice
from packer.convert.block_workers import BlockResult, make_blocks
from packer.convert.row_maker import RowMaker
from packer.convert.row_storage import RowStorage
from packer.convert.sample_order import SampleOrder, fill
from packer.errors import PackerError, SourceError, UsageError
from packer.format.file_io import remove
from packer.format.header import PARTIAL_SUFFIX, Field, Header
from packer.format.listed_pack import listing
from packer.format.pack import Pack, open_pack
from packer.format.pack_writer import PackWriter
from packer.format.shards import merge_headers, read_index, shard_name, write_index
from packer.format.verify import verify_pack
from packer.format.working_folder import (
    WorkingFolder,
    check_output,
    check_space,
    clear_idle,
    difference,
    failure,
    locked,
    read_journal,
)
from packer.progress import Progress
from packer.sentence import Call, Option

KEY = Field("key", "|u1", None, {"encoding": "utf-8"})


class NothingPackedError(SourceError):
    """Every input was skipped. skipped: as in Header."""

    skipped: Sequence[dict[str, str]] = ()

    @classmethod
    def of(cls, subject: str, skipped: Sequence[dict[str, str]]) -> NothingPackedError:
        """Say so of a source."""
        error = cls(
            f"{subject}: none of its {len(skipped)} images could be packed; the first: ", skipped[0]["reason"]
        )
        error.skipped = skipped
        return error


@dataclass(frozen=True)
class ConversionTask:
    """A pack that is to be written.

    maker: of the rows; order: of its samples; storing: how fields are stored, and in how many shards; members: those of Header
    that are known beforehand (classes, seed, provenance); plan: what an interrupted run must have been about to be resumed, None: it
    is not.
    subject: the source, for messages. keyed: whether the pack says of each row what the maker calls it. skipped: what was left out
    when the task was planned, as in Header.
    """

    subject: str
    maker: RowMaker
    order: SampleOrder
    storing: RowStorage
    members: Mapping[str, Any]
    plan: Mapping[str, Any] | None
    keyed: bool = True
    skipped: tuple[dict[str, str], ...] = ()

    @property
    def fields(self) -> tuple[Field, ...]:
        """Fields of the pack, as they are stored."""
        stored = self.storing.fields(self.maker.fields)
        return (*stored, KEY) if self.keyed else stored

    def shard(self, number: int, rows: int) -> ConversionTask:
        """Return the part of the task that is one shard, of so many rows."""
        first = number * rows
        stop = min(first + rows, len(self.order.samples))
        plan = None if self.plan is None else {**self.plan, "shard": number}
        return replace(self, order=self.order.part(first, stop), plan=plan, skipped=())


@dataclass
class RunResult:
    """The result of a run.

    header: of the whole pack; before: the pack that was added to; skipped: inputs left out, those that it listed before aside;
    bytes_read: of inputs, this time; resumed: rows taken over; narrowed: images with more than 8 bits a channel.
    """

    header: Header
    bytes_read: int = 0
    resumed: int = 0
    cleared: str = ""
    narrowed: int = 0
    before: Pack | None = None
    added_skipped: list[Mapping[str, str]] = field(default_factory=list)

    def add(self, part: RunResult) -> None:
        """Count what a shard gave."""
        self.bytes_read += part.bytes_read
        self.resumed += part.resumed
        self.narrowed += part.narrowed

    @property
    def rows(self) -> int:
        """Rows written, or added."""
        return self.header.rows - (self.before.rows if self.before else 0)

    @property
    def nbytes(self) -> int:
        """Bytes of these rows, as they are stored."""
        whole = sum(e.nbytes for extents in self.header.extents.values() for e in extents)
        return whole - (self.before.nbytes if self.before else 0)

    @property
    def skipped(self) -> Sequence[Mapping[str, str]]:
        """Inputs left out."""
        return self.added_skipped if self.before else self.header.skipped


@dataclass(frozen=True)
class RunOptions:
    """Options of a run; the result does not depend on them.

    workers: in parallel; skip: bad inputs are left out, else the first one ends the run; overwrite: replace an existing pack;
    resume: refuse what an interrupted run of another plan has left; progress: called with the rows done so far.
    """

    workers: int
    skip: bool = False
    overwrite: bool = False
    resume: bool = False
    progress: Callable[[int], None] = field(default=lambda rows: None)


Engine = Callable[[ConversionTask, str, RunOptions], RunResult]
"""What writes a planned pack: `write_pack` by default. It gets the task, the output's name and the options of the run."""


@dataclass(frozen=True)
class Report:
    """The result of a conversion.

    rows: images in the pack; seconds: wall time, flushing included; bytes_read: of inputs; bytes_written: of the pack;
    skipped: ({"key": ..., "reason": ...}, ...) inputs left out; workers: that decoded; resumed: rows that an interrupted run had
    done; cleared: how an interrupted run differed whose work was cleared; already: the pack was there and whole, and was left;
    notes: sentences that a user should see, those of the plan among them.
    """

    out: str
    rows: int
    seconds: float
    bytes_read: int
    bytes_written: int
    workers: int
    skipped: tuple[dict[str, str], ...]
    resumed: int = 0
    cleared: str = ""
    already: bool = False
    notes: tuple[str, ...] = ()

    @property
    def rows_per_second(self) -> float:
        """Rows packed a second, those not counted that had been done before."""
        return max(0, self.rows - self.resumed) / self.seconds

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON values."""
        return asdict(self)


class Conversion:
    """The frame of one conversion: its options checked, what is there already, progress, interruptions, the report.

    out: of the pack, without a slash behind it; noun: what is counted; the others: as in convert_images. Raises UsageError.
    """

    def __init__(
        self,
        out: str | os.PathLike[str],
        noun: str,
        *,
        workers: int | None,
        on_error: str = "stop",
        overwrite: bool = False,
        resume: bool = False,
        progress: bool = False,
        on_progress: Callable[[int], None] | None = None,
        engine: Engine | None = None,
    ) -> None:
        self._engine = engine or write_pack
        self._began = time.perf_counter()
        self.out = os.fspath(out).rstrip("/")
        self.bar = Progress(progress, noun, on_progress)
        skip = choice("on_error", on_error, ON_ERROR) == "skip"
        self.running = RunOptions(check_workers(workers), skip, overwrite, resume, self.bar.move)

    def check_output(self) -> None:
        """Refuse an output that cannot be written, before any work. Raises UsageError, PackerError."""
        if not (self.running.resume and os.path.lexists(self.out)):
            check_output(self.out, overwrite=self.running.overwrite)

    def found(self, provenance: Mapping[str, Any], rows: int | None) -> RunResult | None:
        """Return the pack that is asked for, if it may be gone on with and is there already; see `already`."""
        if not self.running.resume:
            return None
        header = already(self.out, provenance, rows, overwrite=self.running.overwrite)
        return None if header is None else RunResult(header, resumed=header.rows)

    def write(
        self, task: ConversionTask, nbytes: int, *, then: Callable[[], None] = lambda: None
    ) -> RunResult:
        """Write a planned pack of about so many bytes. then: called once there is room for it. Raises PackerError."""
        check_room(self.out, nbytes)
        then()
        self.bar.start(len(task.order.samples))
        with self.bar, interrupted(self.out):
            return self._engine(task, self.out, self.running)

    def report(self, written: RunResult, notes: Sequence[str] = (), *, already: bool = False) -> Report:
        """Return the report of what was written, or found. notes: of the plan."""
        if written.narrowed:
            many = f"{written.narrowed:,} images have" if written.narrowed > 1 else "1 image has"
            wide = (
                f"{many} more than 8 bits a channel, of which the high byte is stored; scale them to 8 bits first, or keep their "
                "values in a field of their own (" + Option("pairs") + ")."
            )
            notes = (*notes, wide)
        return Report(
            self.out,
            written.rows,
            time.perf_counter() - self._began,
            written.bytes_read,
            written.nbytes,
            self.running.workers,
            tuple(dict(s) for s in written.skipped),
            written.resumed,
            written.cleared,
            already,
            tuple(notes),
        )


def write_pack(task: ConversionTask, out: str, running: RunOptions, name: str | None = None) -> RunResult:
    """Write a whole pack. What has been done is kept if that fails, and the error says so.

    name: of the pack in messages, where `out` is one that users do not know. Raises PackerError.
    """
    rows = task.storing.shard_rows
    if rows is None:
        return _write_part(task, out, running, name or out)
    return _write_shards(task, out, running, name or out, rows)


def _write_shards(task: ConversionTask, out: str, running: RunOptions, name: str, rows: int) -> RunResult:
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
                    part = _write_part(
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
            done.add(_write_part(task.shard(number, rows), path, added, path, first))
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


def _write_part(task: ConversionTask, out: str, running: RunOptions, name: str, before: int = 0) -> RunResult:
    """Write a pack of one part. before: rows that other parts have."""

    def progress(rows: int) -> None:
        running.progress(before + rows)

    with part_writer(task, out, running, name, progress) as writer:
        resumed = sum(min(writer.block_rows, writer.rows - b * writer.block_rows) for b in writer.done)
        outcome = make_blocks(
            task.maker,
            writer,
            task.order.samples,
            workers=running.workers,
            skip=running.skip,
            progress=progress,
        )
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


def seal(task: ConversionTask, writer: PackWriter, outcome: BlockResult, resumed: int) -> RunResult:
    """Close the holes of skipped inputs in a pack whose blocks are all done, and give it its name.

    resumed: rows that were done before. Raises NothingPackedError if every input was skipped.
    """
    rows = len(task.order.samples)
    if len(outcome.reasons) == rows:
        writer.forget()
        raise NothingPackedError.of(task.subject, _skipped(task, outcome))
    moves, splits, kept = fill(sorted(outcome.reasons), task.order.splits, rows)
    writer.move_rows(moves.items())
    header = writer.finish(
        rows=kept,
        ragged={"key": row_keys(task, kept, moves)} if task.keyed else {},
        splits={name: ((a, b),) for name, (a, b) in splits.items()},
        statistics={} if outcome.sums is None else {"image": outcome.sums.mean_std()},
        skipped=_skipped(task, outcome),
        **task.members,
    )
    return RunResult(header, outcome.bytes_read, resumed, writer.cleared, outcome.narrowed)


def row_keys(task: ConversionTask, kept: int, moves: Mapping[int, int]) -> Iterator[bytes]:
    """Yield each kept row's key, in the order of the rows."""
    for row in range(kept):
        sample = int(task.order.samples[moves.get(row, row)])
        yield task.maker.key(sample).encode("utf-8", "surrogateescape")


def _skipped(task: ConversionTask, outcome: BlockResult) -> tuple[dict[str, str], ...]:
    found = (
        {"key": task.maker.key(int(task.order.samples[row])), "reason": why}
        for row, why in outcome.reasons.items()
    )
    return tuple(sorted((*found, *task.skipped), key=lambda s: s["key"]))


def check_room(out: str, needed: int, name: str | None = None) -> None:
    """Raise SpaceError when the disk has less room than needed, what an interrupted run has taken of it included.

    name: of the pack in messages, where it is another than `out`.
    """
    left = _nbytes(out.rstrip("/") + PARTIAL_SUFFIX)
    check_space(name or out, max(0, needed - left))


def already(out: str, provenance: Mapping[str, Any], rows: int | None, *, overwrite: bool) -> Header | None:
    """Return the header of the pack under that name, if it is what is asked for; None if there is no such name, or it is to be replaced.

    rows: of the pack, inputs that were skipped included; None where that is not known beforehand.
    Raises UsageError, naming the difference, if it is another pack; FormatError if it is none.
    """
    if not os.path.lexists(out):
        return None
    pack = open_pack(out)
    pack.confirm()
    header = pack.header
    differs = difference(dict(header.provenance), provenance)
    if not differs and rows is not None:
        differs = difference(header.rows + len(header.skipped), rows, "the number of rows")
    if differs and overwrite:
        return None
    if differs:
        raise UsageError(
            f"{out}: is a whole pack, but another than is asked for: {differs}. Pass ",
            Option("overwrite", True),
            ", or another name.",
        )
    left = out.rstrip("/") + PARTIAL_SUFFIX
    begun = read_journal(os.path.join(left, "journal"))[:1]
    if begun and not difference({name: begun[0].get(name) for name in provenance}, provenance):
        remove(left)  # a run of the same that was killed just after it had given the pack its name
    return header


@contextmanager
def interrupted(out: str) -> Iterator[None]:
    """Add to whatever ends the work that some of it is kept, and how to go on."""
    try:
        yield
    except (PackerError, KeyboardInterrupt) as error:
        left = out.rstrip("/") + PARTIAL_SUFFIX
        if isinstance(error, UsageError) or not _free(left, out) or clear_idle(out):
            raise
        done = units.size(_nbytes(left))
        sentence = f"What has been done is kept ({left}, {done}): run the same command again to go on."
        if isinstance(error, PackerError):
            error.extend(" ", sentence)
        else:
            error.args = (sentence,)
        raise


def _free(folder: str, out: str) -> bool:
    """Return True if nobody is at work in a folder of work in progress."""
    try:
        with locked(folder, out):
            return True
    except PackerError:
        return not os.path.isdir(folder)


def _nbytes(folder: str) -> int:
    """Return the bytes on the disk below a folder."""
    return sum(
        os.lstat(os.path.join(where, name)).st_blocks * 512
        for where, _, names in os.walk(folder)
        for name in names
    )
