"""Runs a plan: blocks of rows in parallel, each made, summed, checked and written a few rows at a time.

What comes out depends on the plan alone: a row's place and content do not depend on which worker made it, nor on when.

A decoder that crashes ends its worker only: the image is found, named or skipped, and the others go on.

Workers are forked processes where the system forks safely (Linux), else threads. The decoders release the GIL, but an image
takes a dozen calls, and threads wait for each other around every one: 50,000 images of 32 px, images/s on 2 cores: 1 thread
17,300, 2 threads 10,400, 2 processes 28,200. For photos of 400x533 both were alike on two cores.
"""

from __future__ import annotations

import ctypes
import faulthandler
import math
import mmap
import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
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
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer import native
from packer.convert.row_maker import RowMaker
from packer.convert.sample_order import Samples
from packer.errors import ImageError, PackerError, SourceError
from packer.format.pack_writer import PackWriter, Rows
from packer.sentence import Option
from packer.starting import forks_safely, held_back

_TICK_SECONDS = 0.1
_AHEAD = (
    4  # blocks handed out a worker, so that none waits for the next and waiting costs the same for any number
)
_PIECE_BYTES = 256 << 10  # rows written at once
_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)
_CRASHES = frozenset((signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL))
_TRIAL_SECONDS = 60.0
_MEAN_BITS = 32
_PIXELS_AT_ONCE = 1 << 14


# What a block gives


@dataclass
class PixelSums:
    """Sums over images of 8 or 16 bits, exact, so that the order in which they are added does not matter; for one worker.

    Of images of one shape every pixel counts the same; of images of sizes of their own every image does: its means count as a pixel,
    all of them in units of 1 / 2**32.
    """

    channels: int
    pixels: int = 0
    sums: list[int] = field(default_factory=list)
    squares: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sums = self.sums or [0] * self.channels
        self.squares = self.squares or [0] * self.channels

    def add(self, images: NDArray[Any], good: int) -> None:
        """Add images, uint8 or uint16 [N, H, W, C], C-contiguous, of which `good` count and the others are all zero."""
        sums, squares = channel_sums(images)
        self.sums = [a + b for a, b in zip(self.sums, sums, strict=True)]
        self.squares = [a + b for a, b in zip(self.squares, squares, strict=True)]
        self.pixels += good * images.shape[1] * images.shape[2]

    def add_mean(self, image: NDArray[np.uint8]) -> None:
        """Add the means of one image, uint8 [H, W, C], C-contiguous."""
        pixels = image.shape[0] * image.shape[1]
        sums, squares = (
            [(value << _MEAN_BITS) // pixels for value in values] for values in channel_sums(image)
        )
        self.sums = [a + b for a, b in zip(self.sums, sums, strict=True)]
        self.squares = [a + b for a, b in zip(self.squares, squares, strict=True)]
        self.pixels += 1 << _MEAN_BITS

    def merge(self, other: PixelSums) -> None:
        """Add another's sums."""
        self.pixels += other.pixels
        self.sums = [a + b for a, b in zip(self.sums, other.sums, strict=True)]
        self.squares = [a + b for a, b in zip(self.squares, other.squares, strict=True)]

    def mean_std(self, most: int) -> dict[str, list[float]]:
        """Return {"mean": [C], "std": [C]} on the scale where the most that a pixel can be, 255 or 65,535, is 1.0.

        The standard deviation is over the population.
        """
        n = self.pixels
        mean = [s / n / most for s in self.sums]
        std = [
            math.sqrt(max(0, n * q - s * s)) / n / most for s, q in zip(self.sums, self.squares, strict=True)
        ]
        return {"mean": mean, "std": std}


def channel_sums(pixels: NDArray[Any]) -> tuple[list[int], list[int]]:
    """Return the sums of each channel's values and of their squares.

    pixels: uint8 or uint16 [..., C], C-contiguous. Of uint8 with 1, 3 or 4 channels in C (``native/resample.c``).
    Returns: C sums and C sums of squares, exact.
    """
    if native.COMPILED and pixels.dtype == np.uint8 and pixels.shape[-1] in (1, 3, 4):
        return native.loops.channel_sums(pixels)
    return channel_sums_numpy(pixels)


def channel_sums_numpy(pixels: NDArray[Any]) -> tuple[list[int], list[int]]:
    """Do what ``channel_sums`` does, of uint8 or uint16 [..., C], without the compiled form; 32 bits hold each square."""
    pixels = pixels.reshape(-1, pixels.shape[-1])
    sums, squares = np.zeros((2, pixels.shape[1]), np.uint64)
    for first in range(0, len(pixels), _PIXELS_AT_ONCE):
        some = pixels[first : first + _PIXELS_AT_ONCE].astype(np.uint32)
        sums += some.sum(axis=0, dtype=np.uint64)
        squares += np.square(some, out=some).sum(axis=0, dtype=np.uint64)
    return sums.tolist(), squares.tolist()


@dataclass
class BlockResult:
    """The result of running a task, or one block of it.

    sums: over the packed images, None where there are none, or they are files as they were given; reasons: planned row -> why its
    input could not be packed; bytes_read: of the inputs; narrowed: of how many of them the depth was changed.
    """

    sums: PixelSums | None
    reasons: dict[int, str] = field(default_factory=dict)
    bytes_read: int = 0
    narrowed: int = 0

    def merge(self, other: BlockResult) -> None:
        """Add another block's."""
        if self.sums is None:
            self.sums = copy(other.sums)
        elif other.sums is not None:
            self.sums.merge(other.sums)
        self.reasons |= other.reasons
        self.bytes_read += other.bytes_read
        self.narrowed += other.narrowed

    def to_note(self) -> list[Any]:
        """Return plain JSON values, for the journal."""
        sums = None if self.sums is None else [self.sums.pixels, self.sums.sums, self.sums.squares]
        return [sums, list(self.reasons.items()), self.bytes_read, self.narrowed]

    @classmethod
    def from_note(cls, note: list[Any]) -> BlockResult:
        """Read what to_note gave."""
        sums, reasons, bytes_read, narrowed = note
        made = None if sums is None else PixelSums(len(sums[1]), *sums)
        return cls(made, {int(row): str(reason) for row, reason in reasons}, bytes_read, narrowed)


# Running a plan


def make_blocks(
    maker: RowMaker,
    writer: PackWriter,
    samples: Samples,
    *,
    workers: int,
    skip: bool,
    progress: Callable[[int], None],
) -> BlockResult:
    """Fill every block of the writer that is not done yet.

    samples: [rows], the maker's sample of each row; skip: leave a bad input's row empty and note why, else raise its
    error; progress: called on this thread with the number of rows done so far.
    Raises SourceError (a bad input), SpaceError, PackerError (writing failed, a worker died).
    """
    blocks = [block for block in range(writer.blocks) if block not in writer.done]
    run = WorkerState(maker, writer, samples, skip)
    outcome = BlockResult(run.no_sums())
    for _, note in sorted(writer.done.items()):
        outcome.merge(BlockResult.from_note(note))
    before = sum(min(writer.block_rows, writer.rows - b * writer.block_rows) for b in writer.done)
    while True:
        try:
            _run_blocks(run, blocks, outcome, workers, lambda: progress(before + run.done))
            return outcome
        except BrokenProcessPool:
            crashes = run.crashes()
            if not crashes:
                raise PackerError(
                    f"{writer.out}: a worker process died, perhaps for lack of memory. Pass fewer "
                    f"{Option('workers')}."
                ) from None
            if not skip:
                sample, reason = next(iter(crashes.items()))
                raise SourceError(
                    f"{maker.name(sample)}: {reason} Remove it, or pass {Option('on_error', 'skip')}."
                ) from None
            blocks = run.go_on(crashes, blocks)


def _run_blocks(
    run: WorkerState, blocks: list[int], outcome: BlockResult, workers: int, progress: Callable[[], None]
) -> None:
    """Make blocks on a pool of workers. Raises what a worker raised, BrokenProcessPool if one has died."""
    writer = run.writer
    with one_thread_an_image(run.has_images), worker_pool(max(1, min(workers, len(blocks))), run) as pool:
        coming = iter(blocks)
        waiting = _submit(pool, islice(coming, _AHEAD * workers), writer.out)
        try:
            while waiting:
                done, _ = wait(waiting, timeout=_TICK_SECONDS, return_when=FIRST_COMPLETED)
                for future in done:
                    _take(future, writer, outcome, run)
                    waiting.remove(future)
                waiting |= _submit(pool, islice(coming, len(done)), writer.out)
                progress()
        except BaseException:
            run.stop()
            pool.shutdown(wait=True, cancel_futures=True)
            for future in waiting:  # what is done is done, whatever stopped the others
                if not future.cancelled() and future.exception() is None:
                    with suppress(PackerError):
                        _take(future, writer, outcome, run)
            raise


@contextmanager
def one_thread_an_image(images: bool) -> Iterator[None]:
    """Keep OpenCV to one thread where images are the parallel work: its own would fight ours."""
    if not images:
        yield
        return
    from packer.opencv import cv2
    from packer.pixels.image_decoder import without_pillow_warnings

    previous = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        with without_pillow_warnings():
            yield
    finally:
        cv2.setNumThreads(previous)


def _take(
    future: Future[tuple[int, BlockResult]], writer: PackWriter, outcome: BlockResult, run: WorkerState
) -> None:
    """Journal a finished block, and add what it gave. Raises what the worker raised."""
    block, made = future.result()
    writer.record(block, made.to_note())
    run.recorded.add(block)
    outcome.merge(made)


def _submit(pool: Executor, blocks: Iterable[int], out: str) -> set[Future[tuple[int, BlockResult]]]:
    with starting_workers(out):
        return {pool.submit(_block, block) for block in blocks}


@contextmanager
def starting_workers(out: str) -> Iterator[None]:
    """Surround what hands out work: the first makes the workers fork. Raises PackerError if the system refuses them."""
    with warnings.catch_warnings():
        # Python 3.12 warns of threads in the parent, which may hold locks: the child touches nothing of theirs, only files,
        # decoders and arithmetic.
        warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)
        try:
            # A signal while the pool starts processes would leave some that nobody tells to end, and Python waits for them at exit.
            with held_back():
                yield
        except (BlockingIOError, RuntimeError) as error:  # RLIMIT_NPROC, of processes or of threads
            if isinstance(error, (BrokenProcessPool, NotImplementedError)):
                raise
            raise PackerError(
                f"{out}: no worker can be started ({error}). Pass fewer {Option('workers')}."
            ) from None


def worker_pool(workers: int, run: WorkerState) -> Executor:
    """Return workers that know the run. A forked process inherits it; nothing is pickled but block numbers and outcomes."""
    if workers > 1 and forks_safely():
        with suppress(OSError):  # no semaphores: /dev/shm is missing, or full
            return ProcessPoolExecutor(
                workers,
                mp_context=multiprocessing.get_context("fork"),
                initializer=_adopt_in_process,
                initargs=(run,),
            )
    return ThreadPoolExecutor(
        workers, thread_name_prefix="packer-convert", initializer=_adopt, initargs=(run,)
    )


_worker = threading.local()  # .run: what this worker, a thread or a process, works for


def _adopt(run: WorkerState) -> None:
    _worker.run = run


def _adopt_in_process(run: WorkerState) -> None:
    """Leave signals to the parent, which stops the run, and never outlive it."""
    for name in (signal.SIGINT, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # how the pool ends workers when one of them has died
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != run.parent:  # it was killed before that
        os._exit(1)
    if run.makes:
        from packer.pixels.image_decoder import silence_process

        silence_process()
        faulthandler.disable()  # the parent says which image crashed its decoder
    _adopt(run)


def this_run() -> WorkerState:
    """Return what this worker works for."""
    run: WorkerState = _worker.run
    return run


def _block(block: int) -> tuple[int, BlockResult]:
    return block, this_run().block(block)


class _StoppedError(Exception):
    """Another worker has failed; what it raised is what the user sees."""


class WorkerState:
    """State that the workers of one run share; the counters lie in memory that forked processes share, too."""

    def __init__(self, maker: RowMaker, writer: PackWriter, samples: Samples, skip: bool) -> None:
        self.maker, self.writer, self.samples, self.skip = maker, writer, samples, skip
        known = maker.columns(samples[:0])
        self._made = [f for f in maker.fields if not f.ragged and f.name not in known]
        self._ragged = [f.name for f in maker.fields if f.ragged and f.name not in known]
        made = {f.name for f in self._made}
        fixed = {f.name: f for f in maker.fields if not f.ragged}
        encoded = {
            f.name: int((f.codec or {})["quality"]) for f in writer.fields if f.ragged and f.name in fixed
        }
        self._encoded = {name: quality for name, quality in encoded.items() if name in made}
        self._encoded_columns = {name: quality for name, quality in encoded.items() if name in known}
        self._pixels = next((f for f in fixed.values() if f.name == "image" and f.pixels), None)
        row_bytes = sum(f.row_bytes for f in self._made)
        self._step = max(1, min(_PIECE_BYTES // max(1, row_bytes), writer.block_rows))
        self._columns_step = writer.block_rows
        if self._pixels is not None and self._pixels.name in known:
            self._columns_step = max(1, _PIECE_BYTES // self._pixels.row_bytes)
        self.parent = os.getpid()
        self._making = np.frombuffer(mmap.mmap(-1, 8 * writer.blocks), "<i8")  # sample + 1, by block
        self._crashing: dict[int, str] = {}
        self.recorded: set[int] = set()
        """Blocks that are done and journalled."""
        self._counters = np.frombuffer(mmap.mmap(-1, 4 * (writer.blocks + 1)), "<u4")
        self._rows_done, self._stopped = self._counters[:-1], self._counters[-1:]
        self._local = threading.local()

    @property
    def makes(self) -> bool:
        """True if there is anything to be made row by row."""
        return bool(self._made or self._ragged)

    @property
    def has_images(self) -> bool:
        """True if rows are made one by one, or encoded as JPEG files: OpenCV may do either."""
        return self.makes or bool(self._encoded_columns)

    @property
    def done(self) -> int:
        """Rows done so far, by all workers."""
        return int(self._rows_done.sum())

    def stop(self) -> None:
        """Have all workers leave off at their next row."""
        self._stopped[:] = 1

    def crashes(self) -> dict[int, str]:
        """Find out which of the samples that workers were making when one died end a process, and how: sample -> reason."""
        found = {}
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
                found[sample] = f"its decoder crashed ({signal.Signals(ended).name})."
        return found

    def go_on(self, crashes: Mapping[int, str], blocks: list[int]) -> list[int]:
        """Make ready for the blocks that are left, without these samples. Returns: the blocks."""
        self._crashing |= crashes
        self._stopped[:] = 0
        self._making[:] = 0
        left = [block for block in blocks if block not in self.recorded]
        self._rows_done[left] = 0
        return left

    def _try(self, sample: int) -> None:
        """Make one sample in a process of its own."""
        _adopt_in_process(self)
        with suppress(Exception):
            self.maker.make(sample, {name: buffer[0, ...] for name, buffer in self._buffers().items()})

    def no_sums(self) -> PixelSums | None:
        """Return the sums that a block begins with."""
        return None if self._pixels is None else PixelSums((self._pixels.shape or ())[2])

    def block(self, block: int) -> BlockResult:
        """Make and write one block, a few rows at a time: in a buffer small enough to stay in the cache until they are written."""
        start = block * self.writer.block_rows
        samples = self.samples[start : start + self.writer.block_rows]
        result = BlockResult(self.no_sums())
        self._check_stopped()
        if self.makes:
            self.maker.ahead(samples)
        with self.writer.open_block(block) as write:
            for first in range(0, len(samples), self._columns_step):
                write(self._columns(samples[first : first + self._columns_step], result))
            for first in range(0, len(samples), self._step) if self.makes else ():
                few = samples[first : first + self._step]
                write(self._make_rows(block, start + first, few, result))
                self._rows_done[block] += len(few)
            self._making[block] = 0
        self._rows_done[block] = len(samples)
        return result

    def _columns(self, samples: NDArray[np.int64], result: BlockResult) -> Mapping[str, Rows]:
        """Return the fields that need no row made; images among them summed, and encoded where they are stored so."""
        columns = self.maker.columns(samples)
        image = None if self._pixels is None else columns.get(self._pixels.name)
        if isinstance(image, np.ndarray) and result.sums is not None:
            result.sums.add(image, len(samples))
        if not self._encoded_columns:
            return columns
        from packer.codecs import jpeg

        coded = {
            name: [jpeg.encode(np.asarray(row), quality) for row in columns[name]]
            for name, quality in self._encoded_columns.items()
        }
        return {**columns, **coded}

    def _make_rows(
        self, block: int, start: int, samples: NDArray[np.int64], result: BlockResult
    ) -> Mapping[str, Rows]:
        """Make the rows from `start` on: decoded, resized, summed, encoded where they are stored so. Returns them by field."""
        if self._encoded:
            from packer.codecs import jpeg
        buffers, rows = self._buffers(), self._local.rows
        ragged: dict[str, list[bytes]] = {name: [] for name in (*self._ragged, *self._encoded)}
        good = 0
        for i, (sample, row) in enumerate(zip(samples.tolist(), rows, strict=False)):
            self._check_stopped()
            self._making[block] = sample + 1
            made = self._make_row(start + i, sample, row, result)
            good += made is not None
            for name, values in ragged.items():
                values.append((made or {}).get(name, b""))
            for name, quality in self._encoded.items():
                if made is not None and name not in made:
                    ragged[name][-1] = jpeg.encode(row[name], quality)
        if result.sums is not None and "image" in buffers:
            result.sums.add(buffers["image"][: len(samples)], good)
        fixed = {name: buffer[: len(samples)] for name, buffer in buffers.items()}
        return fixed | ragged

    def _check_stopped(self) -> None:
        if self._stopped[0]:
            raise _StoppedError

    def _make_row(
        self, row: int, sample: int, into: dict[str, NDArray[Any]], result: BlockResult
    ) -> Mapping[str, bytes] | None:
        """Make one row; returns its ragged fields, or None of a skipped input, whose row is all zero."""
        try:
            if sample in self._crashing:
                raise ImageError(self._crashing[sample])
            made = self.maker.make(sample, into)
        except MemoryError:
            raise PackerError(
                f"{self.maker.name(sample)}: not enough memory to decode it. Pass fewer "
                f"{Option('workers')}, or a smaller {Option('max_pixels')}."
            ) from None
        except ImageError as error:
            if not self.skip:
                failed = SourceError(
                    f"{self.maker.name(sample)}: ",
                    error.sentence,
                    f" Remove it, or pass {Option('on_error', 'skip')}.",
                )
                failed.__dict__.update(error.__dict__)
                raise failed from error.__cause__
            for array in into.values():
                array[...] = 0
            result.reasons[row] = error.sentence
            return None
        result.bytes_read += made.bytes_read
        result.narrowed += made.narrowed
        if made.pixels is not None:
            if result.sums is None:
                result.sums = PixelSums(made.pixels.shape[2])
            result.sums.add_mean(made.pixels)
        return made.ragged

    def _buffers(self) -> dict[str, NDArray[Any]]:
        """Return this worker's memory for a few rows of each field that is made."""
        local = self._local
        if not hasattr(local, "buffers"):
            local.buffers = {f.name: np.empty((self._step, *(f.shape or ())), f.dtype) for f in self._made}
            local.rows = [{name: b[i, ...] for name, b in local.buffers.items()} for i in range(self._step)]
        buffers: dict[str, NDArray[Any]] = local.buffers
        return buffers
