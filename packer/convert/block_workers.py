"""Writes the blocks of packs on parallel workers, which decode, sum and write a few rows at a time.

One pool of workers writes all parts of a pack: the blocks of the next shards follow those of the first, so
that all workers are busy where a shard has few blocks. The result depends on the plan alone: the place and
content of a row do not depend on worker or time.

A decoder that crashes ends only its worker: the run finds the image, names or skips it, and continues.

Workers are forked processes where the system forks safely (Linux), else threads. The decoders release the
GIL, but decoding an image takes a dozen calls, and threads wait for the GIL around each of them. 50,000
images of 32 px, images/s on 2 cores: 1 thread 17,300, 2 threads 10,400, 2 processes 28,200. Photos of
400x533: threads and processes were equally fast on two cores.
"""

from __future__ import annotations

import faulthandler
import mmap
import multiprocessing
import os
import signal
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from copy import copy
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from packer.convert.conversion_task import ConversionTask, RunOptions
from packer.convert.row_maker import Block
from packer.errors import ImageError, PackerError
from packer.format.part_files import PartFiles, Rows
from packer.starting import die_with, forks_safely, held_back
from packer.writing.pack_writer import PackWriter

_TICK_SECONDS = 0.1
_AHEAD = 4  # blocks submitted per worker: no worker waits, and wait() costs the same for any number of blocks
_FINISHERS = 4  # parts that are flushed to disk and named at the same time
_CRASHES = frozenset((signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL))
_TRIAL_SECONDS = 60.0


class PackPart:
    """A part of a pack under way: a pack of a single file, or a shard.

    writer: its writer; number: of the shard, 0 for a single file; first: its first row in the pack; outcome:
    merged outcome of its finished blocks; todo: blocks to write; resumed: rows that an interrupted run had
    done.
    """

    writer: PackWriter
    number: int
    first: int
    outcome: Block
    resumed: int
    todo: set[int]

    def __init__(self, writer: PackWriter, *, skip: bool, number: int = 0, first: int = 0) -> None:
        """skip: False makes blocks with skipped inputs again, which stops at the first of these."""
        self.writer, self.number, self.first = writer, number, first
        self.outcome, self.resumed = Block(), 0
        self.todo = set(range(writer.blocks))
        for block, note in list(writer.done.items()):
            done = Block.from_note(note)
            if not skip and done.reasons:
                del writer.done[block]
                continue
            start, stop = writer.files.span(block)
            self.resumed += stop - start
            self.outcome.merge(done)
            self.todo.discard(block)

    def record(self, block: int, finished: Block, checksums: Sequence[int]) -> None:
        """Journal a finished block: from now on it counts as done."""
        self.writer.record(block, finished.to_note(), checksums)
        self.outcome.merge(finished)
        self.todo.discard(block)


class BlockRun:
    """A run that writes the blocks of the parts of a pack; `write` starts it.

    parts: opens each part when its first block is due; blocks: their number; finish: called with each part
    whose blocks are all there, on threads of its own, since it waits for the disk; out: the pack, for
    messages.
    """

    def __init__(
        self,
        task: ConversionTask,
        running: RunOptions,
        parts: Iterator[PackPart],
        blocks: int,
        finish: Callable[[PackPart], None],
        out: str,
    ) -> None:
        workers = max(1, min(running.workers, blocks))
        slots = _AHEAD * workers
        self._state = WorkerState(task, out, skip=running.skip, slots=slots)
        self._parts, self._finish, self._workers, self._out = parts, finish, workers, out
        self._pending: deque[tuple[PackPart, int]] = deque()
        self._waiting: dict[Future[tuple[Block, list[int]]], tuple[PackPart, int, int]] = {}
        self._finishers = ThreadPoolExecutor(_FINISHERS, thread_name_prefix="packer-seal")
        self._finishing: set[Future[None]] = set()
        self._free = list(range(slots))
        self._open = self._done = 0

    def write(self, progress: Callable[[int], None]) -> None:
        """Write every block that its part does not have yet.

        progress: called on this thread with the number of rows done so far.
        Raises SourceError (a bad input), SpaceError, PackerError (writing failed, a worker died).
        """
        state = self._state
        with self._finishers:
            while True:
                try:
                    return self._write(lambda: progress(self._done + state.done))
                except BrokenProcessPool:
                    wait(self._finishing)  # no thread holds a lock when workers are forked again
                    crashes = state.crashes()
                    if not crashes or not state.skip:
                        raise state.died(crashes) from None
                    state.go_on(crashes)
                    left = list(self._waiting.values())
                    self._free += [slot for _, _, slot in left]
                    self._pending.extendleft((part, block) for part, block, _ in reversed(left))
                    self._waiting.clear()

    def _write(self, progress: Callable[[], None]) -> None:
        """Write blocks on a pool of workers. Raises a worker's error, or BrokenProcessPool if one died."""
        state = self._state
        with one_thread_an_image(state.has_images), worker_pool(self._workers, state) as pool:
            try:
                with starting_workers(self._out):
                    pool.submit(os.getpid)  # forks all workers, before other threads hold locks
                while self._submit(pool) or self._finishing:
                    futures: set[Future[Any]] = {*self._waiting, *self._finishing}
                    ended = wait(futures, _TICK_SECONDS, FIRST_COMPLETED).done
                    for finished in self._finishing & ended:
                        self._finishing.discard(finished)
                        self._open -= 1
                        finished.result()
                    for future in self._waiting.keys() & ended:
                        self._take_result(future)
                    progress()
            except BaseException:
                state.stop()
                pool.shutdown(wait=True, cancel_futures=True)
                for future in list(self._waiting):  # keep blocks that other workers finished
                    if not future.cancelled() and future.exception() is None:
                        with suppress(PackerError):
                            self._take_result(future)
                raise

    def _submit(self, pool: Executor) -> bool:
        """Hand out blocks until each worker has some ahead; return False if none is being written."""
        while self._free and (self._pending or self._open_part()):
            if self._pending:
                (part, block), slot = self._pending[0], self._free[-1]
                with starting_workers(self._out):
                    future = pool.submit(in_worker, "block", part.writer.files, block, part.first, slot)
                self._waiting[future] = part, block, slot
                self._pending.popleft()  # only now: submit raises an error if a worker has died
                self._free.pop()
        return bool(self._waiting)

    def _open_part(self) -> bool:
        """Open the next part; return False if there is none, or while enough are open for all workers."""
        most = self._workers + 2  # each holds some files open
        if self._open >= most or (part := next(self._parts, None)) is None:
            return False
        self._open += 1
        self._done += part.resumed
        self._pending.extend((part, block) for block in sorted(part.todo))
        self._close_part(part)
        return True

    def _take_result(self, future: Future[tuple[Block, list[int]]]) -> None:
        """Journal a finished block. Raises the error of the worker."""
        finished, checksums = future.result()
        part, block, slot = self._waiting.pop(future)
        part.record(block, finished, checksums)
        self._free.append(slot)
        self._done += self._state.clear(slot)
        self._close_part(part)

    def _close_part(self, part: PackPart) -> None:
        """Finish a part if its blocks are all there."""
        if not part.todo:
            with starting_workers(self._out):
                self._finishing.add(self._finishers.submit(self._finish, part))


@contextmanager
def one_thread_an_image(images: bool) -> Iterator[None]:
    """Limit OpenCV to one thread if workers decode images: its threads would compete with the workers."""
    if not images:
        yield
        return
    from packer.opencv import cv2
    from packer.pixels.quiet_stderr import without_pillow_warnings

    previous = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        with without_pillow_warnings():
            yield
    finally:
        cv2.setNumThreads(previous)


@contextmanager
def starting_workers(out: str) -> Iterator[None]:
    """Surround calls of submit(), the first of which forks the workers. Raises PackerError if that fails."""
    with warnings.catch_warnings():
        # Python 3.12 warns that threads of the parent may hold locks. The child uses none of these: it only
        # reads and writes files, decodes and computes.
        warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)
        try:
            # A signal during the start of processes would leave some that never end; Python waits for them at
            # exit.
            with held_back():
                yield
        except (BlockingIOError, RuntimeError) as error:  # RLIMIT_NPROC limits processes and threads
            if isinstance(error, (BrokenProcessPool, NotImplementedError)):
                raise
            raise PackerError(f"{out}: no worker can be started ({error}). Pass fewer workers=.") from None


def worker_pool(workers: int, run: WorkerState) -> Executor:
    """Return a pool of workers. Forked processes inherit the run; only numbers and outcomes are pickled."""
    if workers > 1 and forks_safely():
        with suppress(OSError):  # no semaphores: /dev/shm is missing or full
            return ProcessPoolExecutor(
                workers,
                mp_context=multiprocessing.get_context("fork"),
                initializer=_adopt_in_process,
                initargs=(run,),
            )
    return ThreadPoolExecutor(
        workers, thread_name_prefix="packer-convert", initializer=_adopt, initargs=(run,)
    )


_worker = threading.local()  # .run, .files: state and open files of this worker, a thread or a process


def _adopt(run: WorkerState) -> None:
    _worker.run = run


def _adopt_in_process(run: WorkerState) -> None:
    """Ignore signals, which the parent handles; end when the parent ends."""
    for name in (signal.SIGINT, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the pool sends it to the other workers when one has died
    die_with(run.parent)
    if run.maker.made_fields:
        from packer.pixels.quiet_stderr import silence_process

        silence_process()
        faulthandler.disable()  # the parent names the image whose decoder crashed
    _adopt(run)


def _worker_files(files: PartFiles) -> PartFiles:
    """Return this worker's own copy of a part's files, which stay open until it comes to another part."""
    if getattr(_worker, "files", None) is None or _worker.files.path != files.path:
        _worker.files = copy(files)
    return cast("PartFiles", _worker.files)


def in_worker(method: str, *given: Any) -> Any:
    """Call a method of this worker's WorkerState."""
    return getattr(_worker.run, method)(*given)


class _StoppedError(Exception):
    """Raised in a worker to end it, after another worker failed with the error that the user sees."""


class WorkerState:
    """State that the workers of a run share; its counters are in memory that forked processes share.

    out: the pack, for messages; skip: leave the row of a bad input empty and record the reason, instead of
    raising its error; slots: most blocks that are being written at a time.
    """

    def __init__(self, task: ConversionTask, out: str, *, skip: bool, slots: int) -> None:
        self.maker, self.samples, self.skip = task.maker, task.order.samples, skip
        self._train, self._out = task.order.train, out
        fixed = {f.name: f for f in self.maker.fields if not f.ragged}
        stored = (f for f in task.fields if f.ragged and f.name in fixed)
        self._encoded = {f.name: int((f.codec or {})["quality"]) for f in stored}
        image = fixed.get("image")
        self._pixels = image if image is not None and image.pixels else None
        self.parent: int = os.getpid()
        self._making = np.frombuffer(mmap.mmap(-1, 8 * slots), "<i8")  # sample + 1, by slot
        self._crashing: dict[int, str] = {}
        self._counters = np.frombuffer(mmap.mmap(-1, 4 * (slots + 1)), "<u4")
        self._rows_done, self._stopped = self._counters[:-1], self._counters[-1:]

    @property
    def has_images(self) -> bool:
        """True if OpenCV may run: rows are made one by one, or encoded as JPEG files."""
        return bool(self.maker.made_fields or self._encoded)

    @property
    def done(self) -> int:
        """Rows of the blocks that are being written, so far."""
        return int(self._rows_done.sum())

    def stop(self) -> None:
        """Stop all workers at their next row."""
        self._stopped[:] = 1

    def crashes(self) -> dict[int, str]:
        """Return the samples whose decoder crashes: sample -> reason.

        Decode each sample that was in work when a worker died again, in a separate process.
        """
        crashing = {}
        for sample in sorted({int(making) - 1 for making in self._making if making} - set(self._crashing)):
            trial = multiprocessing.get_context("fork").Process(target=self._try, args=(sample,), daemon=True)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)
                trial.start()
            trial.join(_TRIAL_SECONDS)
            if trial.is_alive():
                trial.kill()
                trial.join()
            ended = -(trial.exitcode or 0)
            if ended in _CRASHES:
                crashing[sample] = f"its decoder crashed ({signal.Signals(ended).name})."
        return crashing

    def died(self, crashes: Mapping[int, str]) -> PackerError:
        """Return the error for a worker that died; it names the first image whose decoder crashes, if any."""
        for sample, reason in crashes.items():
            return self.maker.refusal(sample, ImageError(reason))
        return PackerError(
            f"{self._out}: a worker process died, perhaps for lack of memory. Pass fewer workers=."
        )

    def clear(self, slot: int) -> int:
        """Free the slot of a written block; return its rows."""
        rows, self._rows_done[slot] = int(self._rows_done[slot]), 0
        return rows

    def go_on(self, crashes: Mapping[int, str]) -> None:
        """Reset the counters to continue without these samples."""
        self._crashing |= crashes
        self._counters[:] = 0
        self._making[:] = 0

    def _try(self, sample: int) -> None:
        """Decode one sample in a separate process."""
        _adopt_in_process(self)
        with suppress(Exception):
            next(self.maker.read(np.array([sample])))

    def block(self, files: PartFiles, number: int, first: int, slot: int) -> tuple[Block, list[int]]:
        """Make and write one block of a part, a few rows at a time in a buffer that stays in the CPU cache.

        first: the part's first row in the pack. Returns its checksums, too.
        """
        start, stop = (first + row for row in files.span(number))
        samples = self.samples[start:stop]
        result = Block()
        self._check_stopped()
        self.maker.ahead(samples)
        block = _worker_files(files).open_block(number)
        for few in self.read(samples, slot):
            block.write(self._encode_rows(few))
            self.measure(few, start)
            result.merge(few, start - first)
            self._rows_done[slot] += few.count
            start += few.count
        self._making[slot] = 0
        return result, block.close()

    def measure(self, few: Block, first: int) -> None:
        """Add the sums of the images of some rows. first: number of row 0 in the pack."""
        few.measure(first, self._train, self._pixels is not None)

    def read(self, samples: NDArray[np.int64], slot: int) -> Iterator[Block]:
        """Yield rows, a few at a time.

        slot: that of the sample in work. Raises SourceError for a bad input
        unless bad inputs are skipped.
        """

        def begin(sample: int) -> None:
            self._check_stopped()
            self._making[slot] = sample + 1
            if sample in self._crashing:
                raise ImageError(self._crashing[sample])

        for few in self.maker.read(samples, begin):
            if few.error is not None and not self.skip:
                raise few.error from few.error.__cause__
            yield few

    def _encode_rows(self, few: Block) -> Mapping[str, Rows]:
        """Return rows as they are stored: encode images that have no JPEG file yet."""
        if not self._encoded:
            return few.rows
        from packer.codecs import jpeg

        files = {
            name: [
                b"" if row in few.reasons else jpeg.encode(image, quality)
                for row, image in enumerate(few.rows[name])
            ]
            for name, quality in self._encoded.items()
            if name not in few.files
        }
        return {**few.rows, **few.files, **files}

    def _check_stopped(self) -> None:
        if self._stopped[0]:
            raise _StoppedError
