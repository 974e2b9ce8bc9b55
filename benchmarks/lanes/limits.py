"""What no loader can beat: rows that lie in memory, copied into reused buffers by threads that wait for nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lanes.lane import OURS, PACK_NPY, Lane, Rows, Setting
from packer.bench.hardware_limits import SLOTS, CopyLimit, calls_per_second

MAX_RESIDENT = 512 << 20  # bytes copied from: far above any cache, and the stores need the memory
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
    """Batches of random rows taken out of a resident array into reused buffers, each thread its own.

    rows: of the array, at most MAX_RESIDENT bytes of them; words: int64 of a row, since wider items are taken faster.
    """

    def __init__(self, batch: int, rows: int, row_bytes: int, threads: int) -> None:
        item = np.int64 if row_bytes % 8 == 0 else np.uint8
        words = row_bytes // np.dtype(item).itemsize
        rows = max(1, min(rows, MAX_RESIDENT // row_bytes))
        self._batch = min(batch, rows)
        self._array = np.ones((rows, words), item)
        self._slots = np.ones((threads, SLOTS, self._batch, words), item)
        # Drawn before the clock runs: an order's own cost is the loader's.
        draws = np.random.default_rng(0)
        self._orders = [draws.permutation(rows) for _ in range(threads)]

    def rate(self, seconds: float) -> float:
        """Rows a second over about that many seconds."""
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
    """The limits for so many threads."""
    return (
        Lane(COPY.format(1), OURS, PACK_NPY, ("packer",), rate=_copy(1)),
        Lane(COPY.format(threads), OURS, PACK_NPY, ("packer",), rate=_copy(None)),
        Lane(GATHER, OURS, PACK_NPY, ("packer",), rate=_gather),
    )
