"""Runs a plan: blocks of rows on threads, each decoded into memory, summed, checked and written in one piece.

The decoders, the checksum and the write release the GIL. What comes out depends on the plan alone: a row's
place and pixels do not depend on which thread made it, nor on when.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

import cv2
import numpy as np
from numpy.typing import NDArray

from packer.convert.pixels import PixelMaker
from packer.convert.sources import Source
from packer.convert.statistics import PixelSums
from packer.errors import ImageError, SourceError
from packer.format.writer import PackWriter

_TICK_SECONDS = 0.1


@dataclass
class Outcome:
    """What running a plan gave.

    sums: over the packed images; reasons: planned row -> why its input could not be packed; bytes_read: of the inputs.
    """

    sums: PixelSums
    reasons: dict[int, str] = field(default_factory=dict)
    bytes_read: int = 0


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
    and note why, else raise its ImageError; progress: called on this thread with the number of rows done so far.
    """
    run = _Run(source, pixels, writer, samples, skip)
    blocks = -(-writer.rows // writer.block_rows)
    previous = cv2.getNumThreads()
    cv2.setNumThreads(1)  # the images are the parallel work; OpenCV's own threads would only fight ours
    try:
        with ThreadPoolExecutor(min(workers, blocks), thread_name_prefix="packer-convert") as pool:
            try:
                waiting: set[Future[None]] = {pool.submit(run.block, b) for b in range(blocks)}
                while waiting:
                    done, waiting = wait(waiting, timeout=_TICK_SECONDS, return_when=FIRST_COMPLETED)
                    for future in done:
                        future.result()
                    progress(run.done)
            except BaseException:
                run.stopped = True
                pool.shutdown(wait=True, cancel_futures=True)
                raise
    finally:
        cv2.setNumThreads(previous)
    return run.outcome


class _Run:
    """What the threads of one run share."""

    def __init__(
        self,
        source: Source,
        pixels: PixelMaker,
        writer: PackWriter,
        samples: Callable[[int, int], NDArray[np.int64]],
        skip: bool,
    ) -> None:
        self.source, self.pixels, self.writer, self.samples, self.skip = source, pixels, writer, samples, skip
        self.outcome = Outcome(PixelSums(pixels.spec.shape[2]))
        self.done = 0
        self.stopped = False
        self._lock = threading.Lock()
        self._local = threading.local()

    def block(self, block: int) -> None:
        """Make and write one block; ends early, without writing, once another thread has failed."""
        writer, local = self.writer, self._local
        start = block * writer.block_rows
        chosen = self.samples(start, min(start + writer.block_rows, writer.rows))
        if not hasattr(local, "images"):
            local.images = np.empty((writer.block_rows, *self.pixels.spec.shape), np.uint8)
        images = local.images[: len(chosen)]
        mine = Outcome(PixelSums(self.outcome.sums.channels))
        for k, sample in enumerate(chosen.tolist()):
            if self.stopped:
                return
            try:
                data = self.source.read(sample)
                mine.bytes_read += len(data)
                self.pixels(data, images[k])
                mine.sums.add(images[k])
            except ImageError as error:
                if not self.skip:
                    raise _named(self.source, sample, error) from None
                images[k] = 0
                mine.reasons[start + k] = str(error)
            self.done += 1  # threads may lose a count between them: it only moves the progress bar
        arrays: dict[str, NDArray[np.generic]] = {"image": images}
        if self.source.labels is not None:
            arrays["label"] = self.source.labels[chosen].astype("<i8", copy=False)
        writer.write_block(block, arrays)
        with self._lock:
            self.outcome.sums.merge(mine.sums)
            self.outcome.reasons |= mine.reasons
            self.outcome.bytes_read += mine.bytes_read


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
