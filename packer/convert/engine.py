"""Runs a plan: blocks of rows in parallel, each decoded, summed, checked and written a few rows at a time.

What comes out depends on the plan alone: a row's place and pixels do not depend on which worker made it, nor on when.

Workers are forked processes where the system forks safely (Linux), else threads. The decoders release the GIL, but an image
takes a dozen calls, and threads wait for each other around every one: 50,000 images of 32 px, images/s on 2 cores: 1 thread
17,300, 2 threads 10,400, 2 processes 28,200. For photos of 400x533 both were alike on two cores.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import multiprocessing
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice

import cv2
import numpy as np
from numpy.typing import NDArray

from packer.convert.pixels import PixelMaker
from packer.convert.sources import Source
from packer.convert.statistics import PixelSums
from packer.errors import ImageError, PackerError, SourceError
from packer.format.writer import PackWriter

_TICK_SECONDS = 0.1
_AHEAD = (
    4  # blocks handed out a worker, so that none waits for the next and waiting costs the same for any number
)
_PIECE_BYTES = 256 << 10  # rows written at once
_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)


@dataclass
class Outcome:
    """What running a plan, or one block of it, gave.

    sums: over the packed images; reasons: planned row -> why its input could not be packed; bytes_read: of the
    inputs.
    """

    sums: PixelSums
    reasons: dict[int, str] = field(default_factory=dict)
    bytes_read: int = 0

    def merge(self, other: Outcome) -> None:
        """Add another block's."""
        self.sums.merge(other.sums)
        self.reasons |= other.reasons
        self.bytes_read += other.bytes_read


def pack_images(
    source: Source,
    pixels: PixelMaker,
    writer: PackWriter,
    samples: Callable[[int, int], NDArray[np.int64]],
    *,
    workers: int,
    skip: bool,
    progress: Callable[[int], None],
) -> Outcome:
    """Fill every block of the writer.

    samples: (start, stop) of rows -> int64 sample numbers of the source; skip: leave a bad input's row empty
    and note why, else raise its error; progress: called on this thread with the number of rows done so far.
    Raises SourceError (a bad input), SpaceError, PackerError (writing failed, a worker died).
    """
    blocks = -(-writer.rows // writer.block_rows)
    run = _Run(source, pixels, writer, samples, skip, blocks)
    outcome = Outcome(PixelSums(pixels.spec.shape[2]))
    previous = cv2.getNumThreads()
    cv2.setNumThreads(1)  # the images are the parallel work; OpenCV's own threads would only fight ours
    try:
        with _pool(min(workers, blocks), run) as pool:
            try:
                coming = iter(range(blocks))
                waiting = _submit(pool, islice(coming, _AHEAD * workers))
                while waiting:
                    done, waiting = wait(waiting, timeout=_TICK_SECONDS, return_when=FIRST_COMPLETED)
                    for future in done:
                        outcome.merge(future.result())
                    waiting |= _submit(pool, islice(coming, len(done)))
                    progress(run.done)
            except BaseException:
                run.stop()
                pool.shutdown(wait=True, cancel_futures=True)
                raise
    except BrokenProcessPool:
        raise PackerError(
            f"{writer.out}: a worker process died, perhaps for lack of memory; nothing was left behind."
            " Pass fewer --workers."
        ) from None
    finally:
        cv2.setNumThreads(previous)
    return outcome


def _submit(pool: Executor, blocks: Iterable[int]) -> set[Future[Outcome]]:
    """Hand out blocks; the first one makes the workers fork."""
    with warnings.catch_warnings():
        # Python 3.12 warns of threads in the parent, which may hold locks: the child touches nothing of theirs, only files,
        # decoders and arithmetic.
        warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)
        return {pool.submit(_block, block) for block in blocks}


def _pool(workers: int, run: _Run) -> Executor:
    """Workers that know the run. A forked process inherits it; nothing is pickled but block numbers and outcomes."""
    forks = sys.platform == "linux" and not multiprocessing.current_process().daemon
    if workers == 1 or not forks:
        return ThreadPoolExecutor(
            workers, thread_name_prefix="packer-convert", initializer=_adopt, initargs=(run,)
        )
    return ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("fork"),
        initializer=_adopt_in_process,
        initargs=(run,),
    )


_worker = threading.local()  # .run: what this worker, a thread or a process, works for


def _adopt(run: _Run) -> None:
    _worker.run = run


def _adopt_in_process(run: _Run) -> None:
    """Leave signals to the parent, which stops the run, and never outlive it."""
    for name in (signal.SIGINT, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # how the pool ends workers when one of them has died
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    _adopt(run)


def _block(block: int) -> Outcome:
    run: _Run = _worker.run
    return run.block(block)


class _StoppedError(Exception):
    """Another worker has failed; what it raised is what the user sees."""


class _Run:
    """What the workers of one run share; the counters lie in memory that forked processes share, too."""

    def __init__(
        self,
        source: Source,
        pixels: PixelMaker,
        writer: PackWriter,
        samples: Callable[[int, int], NDArray[np.int64]],
        skip: bool,
        blocks: int,
    ) -> None:
        self.source, self.pixels, self.writer, self.samples, self.skip = source, pixels, writer, samples, skip
        self._counters = np.frombuffer(mmap.mmap(-1, 4 * (blocks + 1)), "<u4")
        self._rows_done, self._stopped = self._counters[:-1], self._counters[-1:]
        self._local = threading.local()

    @property
    def done(self) -> int:
        """Rows done so far, by all workers."""
        return int(self._rows_done.sum())

    def stop(self) -> None:
        """Have all workers leave off at their next row."""
        self._stopped[:] = 1

    def block(self, block: int) -> Outcome:
        """Make and write one block; leaves off, with what it has, once the run is stopped."""
        start = block * self.writer.block_rows
        chosen = self.samples(start, min(start + self.writer.block_rows, self.writer.rows))
        outcome = Outcome(PixelSums(self.pixels.spec.shape[2]))
        small: dict[str, NDArray[np.generic]] = {}
        if self.source.labels is not None:
            small["label"] = self.source.labels[chosen].astype("<i8", copy=False)
        with suppress(_StoppedError):
            self.writer.write_block(block, {"image": self._pieces(block, chosen, outcome)}, small)
        return outcome

    def _pieces(self, block: int, chosen: NDArray[np.int64], outcome: Outcome) -> Iterator[NDArray[np.uint8]]:
        """The block's images, a few at a time, in a buffer small enough to stay in the cache until they are written."""
        local, shape = self._local, self.pixels.spec.shape
        step = max(1, _PIECE_BYTES // math.prod(shape))
        if not hasattr(local, "images"):
            local.images = np.empty((step, *shape), np.uint8)
        for first in range(0, len(chosen), step):
            images = local.images[: len(chosen) - first]
            skipped = len(outcome.reasons)
            for row, sample in enumerate(chosen[first : first + step].tolist()):
                if self._stopped[0]:
                    raise _StoppedError
                self._row(block * self.writer.block_rows + first + row, sample, images[row], outcome)
            outcome.sums.add(images, len(images) - (len(outcome.reasons) - skipped))
            self._rows_done[block] += len(images)
            yield images

    def _row(self, row: int, sample: int, image: NDArray[np.uint8], outcome: Outcome) -> None:
        """Read and decode one input into its row."""
        try:
            data = self.source.read(sample)
            outcome.bytes_read += len(data)
            self.pixels(data, image)
        except ImageError as error:
            if not self.skip:
                raise _named(self.source, sample, error) from None
            image[...] = 0
            outcome.reasons[row] = str(error)


def close_holes(writer: PackWriter, holes: list[int]) -> dict[int, int]:
    """Fill the holes that skipped inputs left with the last good rows; returns {row: the row it came from}.

    Afterwards the first ``writer.rows - len(holes)`` rows are good. Depends on the holes alone.
    """
    kept = writer.rows - len(holes)
    empty = set(holes)
    donors = (row for row in range(kept, writer.rows) if row not in empty)
    moves = dict(zip(sorted(row for row in holes if row < kept), donors, strict=True))
    writer.move_rows(moves.items())
    return moves


def _named(source: Source, sample: int, error: ImageError) -> SourceError:
    return SourceError(f"{source.name}/{source.keys[sample]}: {error} Remove it, or pass --on-error skip.")
