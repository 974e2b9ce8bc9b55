"""The second step of converting a table: one pass over its staged rows, for statistics and for a sample of them."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer import randomness
from packer.errors import PackerError
from packer.format.positional_io import pread_into
from packer.tables.staging import Staged
from packer.tables.table_order import TableOrder
from packer.tables.transform.block_sums import BLOCK
from packer.tables.transform.column_plan import ColumnPlan, is_missing
from packer.tables.transform.column_sums import ColumnSums, PartialSums

TRAIN = "train"  # the split whose rows are measured
SAMPLE = 1 << 16  # rows whose quantiles stand for all
_STEP = 8 * BLOCK  # rows read at once; statistics depend on BLOCK alone


class Measured(NamedTuple):
    """sums: over the rows of fit, "train" or "all"; sample: float64 [m, columns of plan.numeric], NaN for missing; missing: column
    number -> missing cells of numbers, among all rows; largest: column number of `whole` -> the largest distance from 0 in all rows.
    """

    sums: ColumnSums
    sample: NDArray[np.float64]
    fit: str
    missing: dict[int, int]
    largest: dict[int, float]


def measure(
    staged: Staged,
    order: TableOrder,
    plan: ColumnPlan,
    *,
    all_rows: bool,
    workers: int,
    whole: Collection[int] = (),
) -> Measured:
    """Go through all rows once, in the order of the input. Equal rows and seeds give equal results, whatever the workers.

    Measured are the rows of the split called train, where there is one and not all are asked for, else all; the sample is drawn
    from them, at most SAMPLE rows. whole: numbers of columns whose largest value of all rows is wanted.
    Raises UsageError (a label has too many classes), PackerError.
    """
    names = list(order.splits)
    fit = TRAIN if TRAIN in names and not all_rows else "all"
    first, stop = order.splits[TRAIN] if fit == TRAIN else (0, len(order.samples))
    count = min(SAMPLE, stop - first)
    drawn = randomness.permute(np.arange(count), stop - first, randomness.key("table", "sample"))
    sampled = np.sort(order.samples[first + drawn])
    sums = ColumnSums(plan)
    local = threading.local()

    def part(start: int) -> tuple[PartialSums, NDArray[np.float64], list[int], list[float]]:
        rows = np.arange(start, min(start + _STEP, staged.rows))
        records = _read(staged, start, len(rows), local)
        mask = None if fit == "all" else order.owner(rows) == names.index(TRAIN)
        low, high = np.searchsorted(sampled, (start, start + len(rows)))
        missing = [int(is_missing(records[w.name], w.column.type).sum()) for w in counted]
        most = [float(np.fmax.reduce(np.abs(records[w.name]), initial=0.0)) for w in bounded]
        return sums.part(records, mask), plan.sample(records[sampled[low:high] - start]), missing, most

    # Where all rows are measured, the sums tell.
    counted = () if fit == "all" else plan.numeric
    bounded = tuple(w for w in counted if w.index in whole)
    missing, largest = np.zeros(len(counted), np.int64), np.zeros(len(bounded))
    samples = []
    with ThreadPoolExecutor(workers, thread_name_prefix="packer-measure") as pool:
        for found, sample, absent, most in pool.map(part, range(0, staged.rows, _STEP)):
            sums.merge(found)
            samples.append(sample)
            missing += np.array(absent, np.int64)
            largest = np.maximum(largest, most)
    # Column by column in memory, as they are sorted.
    lacking = {w.index: count for w, count in zip(counted, missing.tolist(), strict=True)} or {
        w.index: sums.rows - sums.of(w.index).count for w in plan.numeric
    }
    if fit == "all":
        ends = {index: sums.of(index) for index in whole}
        furthest = {index: float(max(-n.least, n.most)) for index, n in ends.items()}
    else:
        furthest = {w.index: most for w, most in zip(bounded, largest.tolist(), strict=True)}
    return Measured(sums, np.asfortranarray(np.concatenate(samples)), fit, lacking, furthest)


def _read(staged: Staged, start: int, rows: int, local: threading.local) -> NDArray[Any]:
    """Records into this thread's buffer: new memory for each would cost more than reading."""
    dtype = staged.layout.dtype
    if not hasattr(local, "buffer"):
        local.buffer = np.empty(_STEP, dtype)
    records: NDArray[Any] = local.buffer[:rows]
    out = records.view(np.uint8).reshape(-1)
    fd = os.open(staged.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if pread_into(fd, out, start * dtype.itemsize) < len(out):
            raise PackerError(f"{staged.path}: was cut short while it was read. Convert the table again.")
    finally:
        os.close(fd)
    return records
