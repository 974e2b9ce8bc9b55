"""Rows of a pack made one by one, in any order, for a pack that is read while it is written."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.convert.block_workers import (
    WorkerState,
    in_worker,
    one_thread_an_image,
    starting_workers,
    worker_pool,
)
from packer.convert.conversion_task import ConversionTask
from packer.convert.row_maker import Block
from packer.errors import PackerError
from packer.format.checksums import BlockChecksum
from packer.format.pack_writer import PackWriter

_COLUMN_ROWS = 1 << 16  # rows of labels and other columns written at once
_PLACES = 4096  # slots for the samples in work, by process


def fillable(task: ConversionTask) -> bool:
    """Return True if rows of the task can be written in any order: raw, of one shape, in a single file."""
    return (
        task.storing.shard_rows is None
        and not any(f.ragged or f.compressed for f in task.fields if f.name != "key")
        and bool(task.maker.made_fields)
    )


class RowFilling:
    """A context manager that makes rows of a pack in any order, and closes blocks once they are complete.

    made_fields: names of the fields whose rows are made; the others are written at the start. checksums:
    uint64 [rows], of rows written so far; 0 for rows to make. outcome: merged outcome of the closed blocks.
    """

    def __init__(
        self, task: ConversionTask, writer: PackWriter, workers: int, checksums: NDArray[np.uint64]
    ) -> None:
        """checksums: recorded by an interrupted run; set to 0 for rows that differ."""
        self.workers = workers
        self._task, self._writer, self._checksums = task, writer, checksums
        names = [f.name for f in task.maker.made_fields]
        self.made_fields = frozenset(names)
        self._run = FillingState(task, writer, names)
        self.outcome = Block()
        self._closing: dict[Future[Block], int] = {}
        self._stack = ExitStack()
        self._pool: Executor | None = None
        self._left = np.zeros(writer.blocks, np.int64)
        self._write_columns()
        self._find_rows()

    def __enter__(self) -> RowFilling:
        self._stack.enter_context(one_thread_an_image(True))
        self._pool = self._stack.enter_context(worker_pool(self.workers, self._run))
        # Fork all workers now, while this process has a single thread and no client.
        with starting_workers(self._writer.out):
            started = [self._pool.submit(os.getpid) for _ in range(self.workers)]
        for future in started:
            future.result()
        self._close_blocks(np.flatnonzero(self._left == 0))
        return self

    def __exit__(self, *exc: object) -> None:
        self._run.stop()
        self._stack.close()
        with suppress(PackerError):  # raised before
            self._collect()

    def start(self, units: NDArray[np.int64]) -> Future[Any]:
        """Start to make rows."""
        assert self._pool is not None
        return self._pool.submit(in_worker, "rows", units)

    def arrived(self, units: NDArray[np.int64], result: Any) -> None:
        """Store the checksums of rows that were made, and close the blocks that they complete."""
        self._checksums[units] = result
        blocks, counts = np.unique(units // self._writer.block_rows, return_counts=True)
        self._left[blocks] -= counts
        self._close_blocks(blocks[self._left[blocks] == 0])
        self._collect()

    def open(self) -> bool:
        """Return True while blocks are being closed."""
        self._collect()
        return bool(self._closing)

    def broken(self, error: BaseException) -> PackerError:
        """Return the error to raise after a worker died; it names the image whose decoder crashed, if any."""
        if not isinstance(error, BrokenProcessPool):
            raise error
        return self._run.died(self._run.crashes())

    def _write_columns(self) -> None:
        samples = self._task.order.samples
        for start in range(0, len(samples), _COLUMN_ROWS):
            for name, rows in self._task.maker.columns(samples[start : start + _COLUMN_ROWS]).items():
                assert isinstance(rows, np.ndarray)
                self._writer.files.write_rows(name, start, rows)

    def _find_rows(self) -> None:
        """Compare rows of unfinished blocks with the checksums that an interrupted run recorded."""
        writer, size = self._writer, self._writer.block_rows
        for block in range(writer.blocks):
            rows = np.arange(block * size, min((block + 1) * size, writer.rows))
            note = Block.from_note(writer.done[block]) if block in writer.done else None
            if (
                note is not None and note.reasons
            ):  # packer convert skipped inputs of this block; make it again
                self._checksums[rows] = 0
            elif note is not None:
                self.outcome.merge(note)
                self._checksums[rows] = np.maximum(self._checksums[rows], 1)
                self._left[block] = -1  # closed
                continue
            for row in rows[self._checksums[rows] != 0].tolist():
                if self._run.checksum_of(row) != self._checksums[row]:
                    self._checksums[row] = 0
            self._left[block] = np.count_nonzero(self._checksums[rows] == 0)

    def _close_blocks(self, blocks: Iterable[int]) -> None:
        assert self._pool is not None
        for block in map(int, blocks):
            self._left[block] = -1
            try:
                self._closing[self._pool.submit(in_worker, "close_block", block)] = block
            except BrokenProcessPool as error:
                raise self.broken(error) from None

    def _collect(self) -> None:
        """Journal closed blocks."""
        for future in [future for future in self._closing if future.done()]:
            block = self._closing.pop(future)
            if future.cancelled():
                continue
            try:
                result = future.result()
            except BrokenProcessPool as error:
                raise self.broken(error) from None
            self._writer.record(block, result.to_note())
            self.outcome.merge(result)


class FillingState(WorkerState):
    """State that the workers of a RowFilling share."""

    def __init__(self, task: ConversionTask, writer: PackWriter, names: Sequence[str]) -> None:
        self.writer = writer
        super().__init__(task, writer.out, skip=False, slots=_PLACES)
        self._names = names

    def rows(self, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Make rows and write each to its place. Returns: the checksum of each row's fields, never 0."""
        checksums: list[int] = []
        slot = os.getpid() % _PLACES
        self.maker.ahead(self.samples[rows])
        for few in self.read(self.samples[rows], slot):
            for i, row in enumerate(rows[len(checksums) : len(checksums) + few.count].tolist()):
                parts = [few.rows[name][i : i + 1] for name in self._names]
                for name, part in zip(self._names, parts, strict=True):
                    self.writer.files.write_rows(name, row, part)
                checksums.append(_checksum(parts))
        self._making[slot] = 0
        return np.array(checksums, np.uint64)

    def checksum_of(self, row: int) -> int:
        """Return the checksum of a row in the file."""
        return _checksum([self.writer.files.read_rows(name, row, row + 1) for name in self._names])

    def close_block(self, block: int) -> Block:
        """Record the checksums of a block whose rows are all written; return its outcome, with its sums."""
        rows = self.writer.close_block(block)
        result = Block(len(next(iter(rows.values()))), dict(rows))
        self.measure(result, block * self.writer.block_rows)
        return result


def _checksum(parts: list[NDArray[Any]]) -> int:
    checksum = BlockChecksum()
    for part in parts:
        checksum.update(part)
    return checksum.intdigest() or 1
