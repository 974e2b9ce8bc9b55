"""Rates that no loader exceeds: threads that never wait copy rows in memory into reused buffers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lanes.lane import OURS, PACK_NPY, Lane, Rows, Setting
from packer.bench.hardware_limits import SLOTS, CopyLimit, calls_per_second

MAX_RESIDENT = 512 << 20  # bytes of the copied array: far above any cache; stores need the other memory
COPY = "copy limit, {} threads"
GATHER = "gather limit"


def _copy(threads: int | None) -> Callable[[Setting], Callable[[float], float]]:
    def make(setting: Setting) -> Callable[[float], float]:
        images = Rows.of(setting.work).images
        rows = min(setting.batch, len(images))
        row_bytes = images[0].nbytes
        limit = CopyLimit(rows * row_bytes, min(images.nbytes, MAX_RESIDENT), threads or setting.threads)
        return lambda seconds: limit.rate(seconds) * rows

    return make


class GatherLimit:
    """Batches of random rows gathered from a resident array into reused buffers, one for each thread.

    rows: of the array, at most MAX_RESIDENT bytes; words: int64 a row, since wider items are gathered faster.
    """

    def __init__(self, batch: int, rows: int, row_bytes: int, threads: int) -> None:
        item = np.int64 if row_bytes % 8 == 0 else np.uint8
        words = row_bytes // np.dtype(item).itemsize
        rows = max(1, min(rows, MAX_RESIDENT // row_bytes))
        self._batch = min(batch, rows)
        self._array = np.ones((rows, words), item)
        self._slots = np.ones((threads, SLOTS, self._batch, words), item)
        # Drawn before the clock starts: computing an order is the loader's work.
        draws = np.random.default_rng(0)
        self._orders = [draws.permutation(rows) for _ in range(threads)]

    def rate(self, seconds: float) -> float:
        """Return rows a second, measured for about `seconds`."""
        return calls_per_second(self._take, len(self._slots), seconds) * self._batch

    def _take(self, thread: int, count: int) -> None:
        order = self._orders[thread]
        at = count % (len(order) // self._batch) * self._batch
        # "clip" alone lets take write into `out` directly.
        slot = self._slots[thread, count % SLOTS]
        np.take(self._array, order[at : at + self._batch], axis=0, out=slot, mode="clip")


def _gather(setting: Setting) -> Callable[[float], float]:
    images = Rows.of(setting.work).images
    return GatherLimit(setting.batch, len(images), images[0].nbytes, setting.threads).rate


def lanes(threads: int) -> tuple[Lane, ...]:
    """Return the limits for a number of threads."""
    return (
        Lane(COPY.format(1), OURS, PACK_NPY, ("packer",), rate=_copy(1)),
        Lane(COPY.format(threads), OURS, PACK_NPY, ("packer",), rate=_copy(None)),
        Lane(GATHER, OURS, PACK_NPY, ("packer",), rate=_gather),
    )
