"""Writes a planned pack: a single file, or shards and their index, or a part k/N of the shards."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from packer.convert.block_workers import BlockRun, PackPart
from packer.convert.conversion_task import ConversionTask, NothingPackedError, Report, RunOptions
from packer.convert.pixel_sums import statistics_of
from packer.convert.recorded_shards import RecordedShards, index_shards, plan_of_shards, shard_names
from packer.convert.row_maker import Block
from packer.convert.sample_order import fill
from packer.format.file_io import make_folder, remove
from packer.format.header import PARTIAL_SUFFIX
from packer.format.write_errors import failure
from packer.packs.pack import read_seal
from packer.packs.shards import check_listable, seal_of, shard_name
from packer.writing.pack_writer import PackWriter
from packer.writing.working_folder import (
    WorkingFolder,
    check_parts,
    part_name,
)


def write_pack(task: ConversionTask, out: str, running: RunOptions, name: str | None = None) -> Report:
    """Write a complete pack, or a part of its shards; keep finished work if that fails. Raises PackerError.

    name: name of the pack in messages, if users do not know `out`.
    """
    if task.storing.shard_rows is not None:
        return ShardRun(task, out, running, name or out).write()
    with part_writer(task, out, running, name, running.progress) as writer:
        part = PackPart(writer, skip=running.skip)
        run = BlockRun(task, running, iter((part,)), len(part.todo), lambda part: None, name or out)
        run.write(running.progress)
        return seal(task, writer, part.outcome, part.resumed)


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
        raise NothingPackedError.from_skipped(task.subject, _skipped(task, outcome))
    moves, splits, kept = fill(sorted(outcome.reasons), task.order.splits, rows)
    writer.move_rows(moves.items())
    members = task.members
    spans = {name: ((a, b),) for name, (a, b) in splits.items()}
    members |= {"splits": spans, "skipped": _skipped(task, outcome)}
    if outcome.sums:
        members |= statistics_of("image", outcome.sums, _most(task))
    ragged = {"key": row_keys(task, kept, moves)} if task.keyed else {}
    header = writer.finish(rows=kept, ragged=ragged, **members)
    return Report.from_header(
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


class ShardRun:
    """A run that writes the shards of a pack, or with ``running.only`` those of a part, in its own folder.

    out, name: as in write_pack. Raises PackerError.
    """

    def __init__(self, task: ConversionTask, out: str, running: RunOptions, name: str) -> None:
        self._task, self._running, self._name = task, running, name
        self._rows, self._total = task.storing.shard_rows or 0, len(task.order.samples)
        count = -(-self._total // self._rows)
        compressed = sum(f.compressed for f in task.fields)
        self._blocks = -(-self._rows // task.storing.block_rows(task.maker, self._rows))  # of a shard
        check_listable(name, count * compressed * self._blocks)
        own, numbers = out, range(count)
        if running.only is not None:
            own, numbers = part_name(out, running.only), range(running.only[0] - 1, count, running.only[1])
        plan, names = plan_of_shards(task, count), shard_names(count, task.storing.format)
        if plan is not None:
            check_parts(out, plan)
        self._place = WorkingFolder(
            own, overwrite=running.overwrite, plan=plan, resume=running.resume, name=name
        )
        self._files = {names[number]: number for number in numbers}
        self._out = out
        self._open: dict[str, PackWriter] = {}
        self._reports: list[Report] = []
        self._recording = threading.Lock()
        self._shards = RecordedShards(self._place, names, task.skipped)
        self._finished: set[int] = set()  # numbers of shards

    def write(self) -> Report:
        """Write the shards that are missing, and index them unless they are a part."""
        place, running = self._place, self._running
        try:
            make_folder(place.pack)
            if running.only is None and self._task.plan is not None:  # parts were compared with the plan
                self._shards.gather_parts(self._out)
            todo = [file for file in self._files if not self._is_done(file)]
            done = sum(
                self._size(file) for file in self._files.keys() - set(todo) - self._shards.empty.keys()
            )
            running.progress(done)
            self._finished = {self._files[file] for file in self._files.keys() - set(todo)}
            self._rise()
            blocks = len(todo) * self._blocks
            parts = map(self._open_shard, todo)
            run = BlockRun(self._task, running, parts, blocks, self._finish, self._name)
            run.write(lambda rows: running.progress(done + rows))
            if running.only is None:
                header = index_shards(self._shards, self._name, self._task.subject)
            else:
                header = self._shards.header_of(self._files)
                place.close(keep=True)
            return Report.merge(header, self._reports, done, place.cleared)
        except BaseException as error:
            for writer in self._open.values():
                writer.close()
            kept = os.path.isdir(place.pack) and os.listdir(place.pack)
            place.close(keep=self._task.plan is not None and bool(kept))
            if isinstance(error, OSError):
                raise failure(self._name, error) from error
            raise

    def _size(self, file: str) -> int:
        """Return the planned rows of a shard."""
        return min(self._rows, self._total - self._files[file] * self._rows)

    def _is_done(self, file: str) -> bool:
        """Return True for a shard that an earlier run has finished: its seal says so, no row is read."""
        if not self._shards.is_done(file, skip=self._running.skip):
            return False
        path = os.path.join(self._place.pack, file)
        remove(path + PARTIAL_SUFFIX)  # left by a run that was killed just after it had named the shard
        if file not in self._shards.seals and file not in self._shards.empty:
            self._shards.record(file, seal_of(read_seal(path)))
        return True

    def _open_shard(self, file: str) -> PackPart:
        """Begin a shard, or resume it."""
        path, number = os.path.join(self._place.pack, file), self._files[file]
        remove(path)
        again = replace(self._running, overwrite=True, readable=RunOptions.readable)
        task = self._task.shard(number, self._rows)
        writer = self._open[file] = part_writer(task, path, again, os.path.join(self._name, file))
        writer.files.close()
        return PackPart(writer, skip=again.skip, number=number, first=number * self._rows)

    def _finish(self, part: PackPart) -> None:
        """Seal a shard whose blocks are all there, and record it. Thread-safe."""
        file = shard_name(part.number, self._task.storing.format)
        writer, task = self._open[file], self._task.shard(part.number, self._rows)
        found: str | list[dict[str, str]]
        try:
            self._reports.append(seal(task, writer, part.outcome, part.resumed))
            found = seal_of(read_seal(os.path.join(self._place.pack, file)))
        except NothingPackedError as error:
            writer.close()
            found = list(error.skipped)
        with self._recording:
            self._shards.record(file, found)
            self._finished.add(part.number)
            self._rise()
        del self._open[file]

    def _rise(self) -> None:
        """Tell how many rows lie in the shards before the first that is not finished."""
        leading = next(number for number in itertools.count() if number not in self._finished)
        self._running.readable(min(leading * self._rows, self._total), {})
