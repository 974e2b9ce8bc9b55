"""Statistics of staged rows, in one pass: the second step of a conversion. Notes on numbers beyond the dtype.

float32 has a 24-bit significand: it holds all whole numbers to 16,777,216, and only some beyond. Larger
identifiers, seconds since 1970 and phone numbers become equal to their neighbours.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer import randomness
from packer.convert.sample_order import SampleOrder
from packer.format.header import TRAIN
from packer.tables.staging import StagedTable
from packer.tables.transform.column_sums import BLOCK, ColumnSums, PartialSums
from packer.tables.transform.column_types import as_category, is_missing, shortest
from packer.tables.transform.records import floats_of
from packer.tables.transform.table_transform import TableTransform

SAMPLE = 1 << 16  # most rows in the sample from which quantiles are computed
_EXACT = 1 << 53  # first whole number whose successor float64 does not hold
_MOST_CLASSES = 32  # more different numbers are rather a measure
_LEAST_OF_CLASS = 2  # rows of the label's median number; a measure has fewer
_SHOWN = 4  # most numbers in a note
_STEP = 4 * BLOCK  # rows read at once; statistics depend only on BLOCK


class MeasuredRows(NamedTuple):
    """Statistics of staged rows.

    sums: over the rows of fit, "train" or "all". sampled: numbers of the rows in the sample, ascending.
    sample: float64 [m, columns of plan.numeric], NaN for missing. missing: column number -> missing cells of
    numeric columns, over all rows. whole_label: True if the label of every row is a whole number that float64
    holds exactly.
    """

    sums: ColumnSums
    sampled: NDArray[np.int64]
    sample: NDArray[np.float64]
    fit: str
    missing: dict[int, int]
    whole_label: bool


def measure(
    staged: StagedTable, order: SampleOrder, plan: TableTransform, *, all_rows: bool, workers: int
) -> MeasuredRows:
    """Read all rows once, in the input's order. The result does not depend on the number of workers.

    Statistics are computed over the split named train if it exists and all_rows is False, otherwise over all
    rows. The sample is drawn from the same rows, at most SAMPLE of them.
    Raises UsageError (a label has too many classes), OSError.
    """
    fit = TRAIN if TRAIN in order.splits and not all_rows else "all"
    first, stop = order.splits[TRAIN] if fit == TRAIN else (0, len(order.samples))
    count = min(SAMPLE, stop - first)
    drawn = randomness.permute(np.arange(count), stop - first, randomness.key("table", "sample"))
    sampled = np.sort(order.samples[first + drawn])
    counts = np.zeros(len(order.samples), np.bool_)  # True for the rows of fit
    counts[order.samples[first:stop]] = True
    sums = ColumnSums(plan)
    dtype = staged.dtype
    labels = [w.name for w in plan.numeric if w.column.role == "label" and plan.whole_label]
    fractions: list[str] = []  # labels with fractions

    def part(start: int) -> tuple[PartialSums, NDArray[np.float64], list[int]]:
        rows = np.arange(start, min(start + _STEP, staged.rows))
        records = np.fromfile(staged.path, dtype, len(rows), offset=start * dtype.itemsize)
        mask = None if fit == "all" else counts[rows]
        low, high = np.searchsorted(sampled, (start, start + len(rows)))
        missing = [int(is_missing(records[w.name]).sum()) for w in counted]
        fractions.extend(name for name in labels if not fractions and not _are_whole(records[name]))
        return sums.part(records, mask), floats_of(records, plan.numeric, sampled[low:high] - start), missing

    # If all rows are measured, the sums contain these counts.
    counted = () if fit == "all" else plan.numeric
    missing = np.zeros(len(counted), np.int64)
    samples = []
    with ThreadPoolExecutor(workers, thread_name_prefix="packer-measure") as pool:
        for partial, sample, absent in pool.map(part, range(0, staged.rows, _STEP)):
            sums.merge(partial)
            samples.append(sample)
            missing += np.array(absent, np.int64)
    lacking = {w.index: count for w, count in zip(counted, missing.tolist(), strict=True)} or {
        w.index: sums.rows - sums.summary(w.index).count for w in plan.numeric
    }
    sample = np.concatenate(samples, axis=1).T  # in Fortran order, because columns are sorted one by one
    return MeasuredRows(sums, sampled, sample, fit, lacking, bool(labels) and not fractions)


def _are_whole(x: NDArray[np.float64]) -> bool:
    return bool(((x == np.trunc(x)) & (np.abs(x) < _EXACT)).all())


def notes_on_rounding(plan: TableTransform, sums: ColumnSums, label_dtype: str | None) -> list[str]:
    """Return notes on columns with whole numbers beyond those that their field's dtype holds exactly."""
    notes: list[str] = []
    limits = {name: 1 << (np.finfo(name).nmant + 1) for name in ("<f2", "<f4", "<f8")}
    for w in plan.numeric:
        column, values = w.column, sums.summary(w.index)
        label = column.role == "label" and plan.label_kind == "number"
        name = str(label_dtype if label else plan.dtype)
        if column.standardize is not None and name in limits:
            name = "<f8"  # values that differ in float64 still differ after this
        limit, most = limits.get(name, math.inf), max(-values.least, values.most)
        # From limit / 2 on the dtype has no fractions.
        whole = values.whole or (label and values.least >= limit // 2)
        plain = (label or column.role == "feature") and column.type in ("number", "integer")
        if most < limit or not whole or not plain or column.log1p:
            continue
        dtype, ways = np.dtype(name), "label_as='classes'"
        if not label:
            ways = f"keep={column.name!r}, drop={column.name!r} or {as_category(column.name)}"
        if dtype.itemsize < 8 and most < 1 << 53:
            ways += "; dtype='float64' stores them as they are"
        notes.append(
            f"column {column.name!r} holds numbers to about {most:,.0f}; {dtype.name} holds all whole ones"
            f" only to {limit:,}, and rounds larger ones. If they are identifiers or times, pass {ways}."
        )
    return notes


def note_on_classes(plan: TableTransform, sample: NDArray[np.float64]) -> list[str]:
    """Return a note on a label of few whole numbers, as classes have, that are not 0, 1 ... as losses need.

    sample: as in MeasuredRows.
    """
    place = next(k for k, w in enumerate(plan.numeric) if w.column.role == "label")
    values, counts = np.unique(sample[:, place], return_counts=True)
    numbers = [shortest(value) for value in values.tolist()]
    few = 1 < len(values) <= _MOST_CLASSES and np.median(counts) >= _LEAST_OF_CLASS
    if len(plan.label) > 1 or not few or values.tolist() == [*range(len(values))]:
        return []
    name = plan.label[0]
    return [
        f"label {name!r} holds {len(values)} different numbers, {', '.join(numbers[:_SHOWN])}"
        f"{' ...' if len(numbers) > _SHOWN else ''}, and is stored as them; a loss over classes needs 0 to"
        f" {len(values) - 1}. If they are classes, pass label_as='classes'."
    ]
