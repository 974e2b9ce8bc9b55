"""Statistics of the staged rows and a sample of them, in one pass; the second step of converting a table.

Also notes on numbers that the features' dtype cannot hold: found in the first rows, and by the largest of all; told in a sentence a column.

float32 has 24 bits: of whole numbers it holds all to 16,777,216, and beyond only some, so that identifiers, seconds since 1970 and
phone numbers become equal to their neighbours. Rounded fractions are the rule and no news, unless different ones become equal.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer import randomness
from packer.errors import PackerError
from packer.format.file_io import pread_into
from packer.sentence import Option, Sentence
from packer.tables.staging import Staged
from packer.tables.table_order import TableOrder
from packer.tables.transform.column_plan import ColumnPlan, as_category
from packer.tables.transform.column_sums import BLOCK, ColumnSums, PartialSums
from packer.tables.transform.column_types import MISSING_INTEGER, TableColumn, is_missing
from packer.tables.transform.records import RecordLayout, RecordMember

TRAIN = "train"  # the split whose rows are measured
SAMPLE = 1 << 16  # rows whose quantiles stand for all
_STEP = 8 * BLOCK  # rows read at once; statistics depend on BLOCK alone


class MeasuredRows(NamedTuple):
    """Statistics of staged rows.

    sums: over the rows of fit, "train" or "all"; sample: float64 [m, columns of plan.numeric], NaN for missing; missing: column
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
) -> MeasuredRows:
    """Go through all rows once, in the order of the input. Equal rows and seeds give equal results, whatever the workers.

    MeasuredRows are the rows of the split called train, where there is one and not all are asked for, else all; the sample is drawn
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
        missing = [int(is_missing(records[w.name]).sum()) for w in counted]
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
    return MeasuredRows(sums, np.asfortranarray(np.concatenate(samples)), fit, lacking, furthest)


def _read(staged: Staged, start: int, rows: int, local: threading.local) -> NDArray[Any]:
    """Read records into this thread's buffer: new memory for each would cost more than reading."""
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


_FRACTIONS = 2000  # rows in which different fractions are counted; whole numbers are in all rows
_APART = 0.9  # of different fractions that must stay different
_FLOAT = ("number", "integer")


def sought(plan: ColumnPlan, columns: tuple[TableColumn, ...]) -> RecordLayout:
    """Return the columns that notes are made on by their first rows: numbers of a float dtype.

    columns: of the input, with the types they have there, which a plan may have changed.
    """
    return RecordLayout(
        tuple(
            RecordMember(w.index, columns[w.index])
            for w in plan.numeric
            if columns[w.index].type in _FLOAT and target(plan, w.index) is not None
        )
    )


def target(plan: ColumnPlan, index: int) -> np.dtype[Any] | None:
    """Return the float dtype of its field, which must tell a column's numbers apart; None if they become whole numbers, or none."""
    role, column = plan.roles[index], plan.columns[index]
    dtype: np.dtype[Any] = np.dtype("O")
    if role == "feature" and column.type in _FLOAT:
        dtype = np.dtype(plan.choices.dtype)
        if dtype.kind == "f" and plan.choices.standardize:  # what is told apart in float64 stays apart
            dtype = np.dtype(np.float64)
    elif role == "label" and plan.label is not None and plan.label.kind == "number":
        dtype = np.dtype(plan.label.dtype)
    return dtype if dtype.kind == "f" else None


def notes_on_first(plan: ColumnPlan, layout: RecordLayout, records: NDArray[Any]) -> dict[int, str]:
    """Say which columns lose digits that tell their values apart, by the first rows.

    layout: of `sought`; records: [n] of it. Returns: number of a column -> a sentence.
    """
    found = {}
    for w in layout.members:
        if (said := _said(plan, w, records[w.name])) is not None:
            found[w.index] = said
    return found


def notes_on_largest(
    plan: ColumnPlan, columns: tuple[TableColumn, ...], largest: Mapping[int, float], known: Mapping[int, str]
) -> list[str]:
    """Say which columns of whole numbers go beyond what their dtype holds, by the largest of all rows.

    columns: as in sought; largest: number of a column -> the largest distance from 0, as stored; known: those of which it was said.
    """
    notes: list[str] = []
    for index, most in largest.items():
        dtype, column = target(plan, index), columns[index]
        logs = column.name in plan.choices.log1p
        if dtype is None or column.type != "integer" or index in known or logs:
            continue
        limit = 1 << (np.finfo(dtype).nmant + 1)
        if most >= limit:
            notes.append(
                f"column {column.name!r} holds whole numbers up to about {most:,.0f}; {dtype.name} holds all of them only to"
                f" {limit:,}, and rounds larger ones. " + _remedy(plan, index, dtype, most < 1 << 53)
            )
    return notes


def _said(plan: ColumnPlan, w: RecordMember, x: NDArray[Any]) -> str | None:
    dtype = target(plan, w.index)
    x = x[x != MISSING_INTEGER] if x.dtype.kind == "i" else x[np.isfinite(x)]
    if dtype is None or not len(x):
        return None
    log1p = plan.roles[w.index] == "feature" and w.column.name in plan.choices.log1p
    whole = not log1p and bool(x.dtype.kind == "i" or (x == np.trunc(x)).all())
    if not whole:
        x = x[:_FRACTIONS]
    with np.errstate(all="ignore"):
        stored = (np.log1p(x) if log1p else x).astype(dtype)
    changed = _changed(x, stored)
    if not changed.any():
        return None
    before, after = len(np.unique(x)), len(np.unique(stored))
    if not whole and after >= _APART * before:
        return None
    at = int(np.argmax(changed))
    what = "whole numbers" if whole else "numbers"
    logs = "whose logarithms" if log1p else "that"
    wide = x.astype(np.float64)
    fine = not _changed(x, wide).any() if whole else len(np.unique(wide)) > after
    one, other = _shown(x[at]), _shown(stored[at])
    example = f", {one} becomes {other}" if not log1p else ""
    return (
        f"column {w.column.name!r} holds {what} {logs} {dtype.name} rounds: {before:,} different ones in the first {len(x):,} rows"
        f" become {after:,}{example}. " + _remedy(plan, w.index, dtype, fine and not log1p)
    )


def _changed(x: NDArray[Any], stored: NDArray[Any]) -> NDArray[np.bool_]:
    """Find the whole numbers that are stored as others; compared exactly, also beyond float64."""
    wide = stored.astype(np.float64)
    if x.dtype.kind != "i":
        return np.asarray(wide != x)
    inside = np.abs(wide) < 2.0**63
    return np.asarray(~inside | (np.where(inside, wide, 0.0).astype(np.int64) != x))


def _remedy(plan: ColumnPlan, index: int, dtype: np.dtype[Any], fine: bool) -> Sentence:
    """Return what can be done. fine: float64 holds the numbers."""
    name = plan.columns[index].name
    wider = Sentence()
    if fine and dtype.itemsize < 8:
        wider = Sentence(f"{Option('dtype', 'float64')} stores them as they are")
    if plan.roles[index] == "label":
        if wider:
            return "If that matters, " + wider + "."
        return Sentence(f"float64 is the widest; {Option('label_as', 'classes')} tells them apart.")
    ways = Sentence(f"{Option('keep', name)}, {Option('drop', name)} or {as_category(name)}")
    return "If they are identifiers or times, pass " + ways + ("; " if wider else "") + wider + "."


def _shown(value: Any) -> str:
    number = value.item()
    whole = isinstance(number, int) or (np.isfinite(number) and number == int(number))
    return str(int(number)) if whole else str(value)
