"""Statistics of the staged rows, in one pass; the second step of converting a table. Also notes on numbers beyond the features' dtype.

float32 has 24 bits: of whole numbers it holds all to 16,777,216, and beyond only some, so that identifiers, seconds since 1970 and
phone numbers become equal to their neighbours.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer import randomness
from packer.convert.sample_order import SampleOrder
from packer.sentence import Option, Sentence
from packer.tables.staging import StagedTable
from packer.tables.transform.column_sums import BLOCK, ColumnSums, PartialSums
from packer.tables.transform.column_types import as_category, is_missing
from packer.tables.transform.table_transform import TableTransform

TRAIN = "train"  # the split whose rows are measured
SAMPLE = 1 << 16  # rows whose quantiles stand for all
_EXACT = 1 << 53  # from here on float64 holds some whole numbers only
_STEP = 4 * BLOCK  # rows read at once; statistics depend on BLOCK alone


class MeasuredRows(NamedTuple):
    """Statistics of staged rows.

    sums: over the rows of fit, "train" or "all"; sample: float64 [m, columns of plan.numeric], NaN for missing; missing: column
    number -> missing cells of numbers, among all rows; whole_label: the label of all rows is whole numbers that float64 tells apart.
    """

    sums: ColumnSums
    sample: NDArray[np.float64]
    fit: str
    missing: dict[int, int]
    whole_label: bool


def measure(
    staged: StagedTable,
    order: SampleOrder,
    plan: TableTransform,
    *,
    all_rows: bool,
    workers: int,
) -> MeasuredRows:
    """Go through all rows once, in the order of the input. Equal rows and seeds give equal results, whatever the workers.

    MeasuredRows are the rows of the split called train, where there is one and not all are asked for, else all; the sample is drawn
    from them, at most SAMPLE rows.
    Raises UsageError (a label has too many classes), OSError.
    """
    fit = TRAIN if TRAIN in order.splits and not all_rows else "all"
    first, stop = order.splits[TRAIN] if fit == TRAIN else (0, len(order.samples))
    count = min(SAMPLE, stop - first)
    drawn = randomness.permute(np.arange(count), stop - first, randomness.key("table", "sample"))
    sampled = np.sort(order.samples[first + drawn])
    counts = np.zeros(len(order.samples), np.bool_)  # which rows are of fit
    counts[order.samples[first:stop]] = True
    sums = ColumnSums(plan)
    dtype = staged.dtype
    labels = [w.name for w in plan.numeric if w.column.role == "label" and plan.whole_label]
    fractions: list[str] = []  # labels that are not whole

    def part(start: int) -> tuple[PartialSums, NDArray[np.float64], list[int]]:
        rows = np.arange(start, min(start + _STEP, staged.rows))
        records = np.fromfile(staged.path, dtype, len(rows), offset=start * dtype.itemsize)
        mask = None if fit == "all" else counts[rows]
        low, high = np.searchsorted(sampled, (start, start + len(rows)))
        missing = [int(is_missing(records[w.name]).sum()) for w in counted]
        fractions.extend(name for name in labels if not fractions and not _are_whole(records[name]))
        return sums.part(records, mask), plan.sample(records[sampled[low:high] - start]), missing

    # Where all rows are measured, the sums tell.
    counted = () if fit == "all" else plan.numeric
    missing = np.zeros(len(counted), np.int64)
    samples = []
    with ThreadPoolExecutor(workers, thread_name_prefix="packer-measure") as pool:
        for found, sample, absent in pool.map(part, range(0, staged.rows, _STEP)):
            sums.merge(found)
            samples.append(sample)
            missing += np.array(absent, np.int64)
    # Column by column in memory, as they are sorted.
    lacking = {w.index: count for w, count in zip(counted, missing.tolist(), strict=True)} or {
        w.index: sums.rows - sums.of(w.index).count for w in plan.numeric
    }
    sample = np.asfortranarray(np.concatenate(samples))
    return MeasuredRows(sums, sample, fit, lacking, bool(labels) and not fractions)


def _are_whole(x: NDArray[np.float64]) -> bool:
    return bool(((x == np.trunc(x)) & (np.abs(x) < _EXACT)).all())


def notes_on_rounding(plan: TableTransform, sums: ColumnSums) -> list[str]:
    """Say which columns hold whole numbers beyond those that their field's dtype holds."""
    notes: list[str] = []
    for w in plan.numeric:
        column, found = w.column, sums.of(w.index)
        label = column.role == "label" and plan.label_kind == "number"
        dtype = np.dtype(plan.label_dtype if label else plan.dtype)
        if dtype.kind == "f" and column.standardize is not None:
            dtype = np.dtype(np.float64)  # what is told apart in float64 stays apart
        if column.type not in ("number", "integer") or dtype.kind != "f" or column.log1p:
            continue
        limit, most = 1 << (np.finfo(dtype).nmant + 1), max(-found.least, found.most)
        whole = found.whole or (label and found.least >= limit // 2)  # from there on the dtype has no others
        if not whole or most < limit or not (label or column.role == "feature"):
            continue
        ways = f"{Option('keep', column.name)}, {Option('drop', column.name)} or {as_category(column.name)}"
        if label:
            ways = f"{Option('label_as', 'classes')}"
        if dtype.itemsize < 8 and most < 1 << 53:
            ways += f"; {Option('dtype', 'float64')} stores them as they are"
        notes.append(
            Sentence(
                f"column {column.name!r} holds numbers to about {most:,.0f}; {dtype.name} holds all whole ones only to {limit:,},"
                f" and rounds larger ones. If they are identifiers or times, pass {ways}."
            )
        )
    return notes
