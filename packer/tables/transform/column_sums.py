"""Sums over the rows a mapping is fitted on, and statistics of a sample of them.

Rows come in parts. Several threads may sum parts (``ColumnSums.part``), which are then merged in order
(``ColumnSums.merge``). Each block of BLOCK rows of a part is summed separately, relative to its first value,
so that seconds since 1970 keep their digits; blocks are merged one after the other (Chan, Golub and LeVeque,
1979). Results are equal to the bit for all part sizes that are multiples of BLOCK rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, nan, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer import native
from packer.errors import UsageError
from packer.tables.transform.column_types import MISSING_INTEGER, as_float, is_missing
from packer.tables.transform.records import RecordMember
from packer.tables.transform.table_transform import TableTransform

BLOCK = 8192  # rows that are summed separately
COUNT, SHIFT, SUM, SQUARES, LEAST, MOST = range(6)
BINS = 16
DRAWN = 100  # most columns with a histogram: nobody looks at those of all columns of a wide table
FREQUENT = 20  # most categories listed
_LEAST_SQUARES = 1e-290  # smaller sums of squares have lost digits, or are 0


_Computed = tuple[RecordMember, str, Callable[["NDArray[np.float64]"], "NDArray[np.float64]"]]
"""A column, a name for what is computed from its numbers, and how."""


@dataclass
class NumberSummary:
    """Summary of a column's present values; all members are 0 if there are none.

    count: number of values; mean, std: mean and population deviation, NaN if float64 sums cannot represent
    them (squares of distances overflow or underflow, beyond about 1e150 or 1e-150); least, most: range, int
    for columns read as integers; whole: True if all values are whole numbers.
    """

    count: int
    mean: float
    std: float
    least: float
    most: float
    whole: bool

    def filled(self, missing: int, value: float) -> tuple[float, float]:
        """Return the mean and deviation after `missing` more cells are set to a value."""
        if not missing:
            return self.mean, self.std
        share = missing / (self.count + missing)
        apart = value - self.mean
        return self.mean + apart * share, sqrt((1 - share) * (self.std * self.std + apart * apart * share))


@dataclass(frozen=True)
class PartialSums:
    """The sums of a part of the rows."""

    rows: int
    figures: NDArray[np.float64]
    whole: NDArray[np.bool_]
    limits: Mapping[int, tuple[int, int]]
    counts: Mapping[int, NDArray[np.int64]]
    values: Mapping[int, NDArray[Any]]


@dataclass
class ColumnSums:
    """Sums over rows of a plan's layout.

    rows: number of rows summed so far. counts: column number -> for categories: number of missing cells, then
    of each code; for texts: number of missing cells, then of present ones. values: column number -> distinct
    numbers of a numeric class label, ascending, over all rows; int64 for integers, else float64.
    """

    plan: TableTransform
    rows: int = 0
    counts: dict[int, NDArray[np.int64]] = field(default_factory=dict)
    values: dict[int, NDArray[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        plan = self.plan
        layout: Mapping[str, Any] = plan.layout.dtype.fields or {}
        # Summed values: float members of the records, then values computed from members; by (column, kind).
        self._plain = [w for w in plan.numeric if layout[w.name][0].kind == "f"]
        self._integers = [w for w in plan.numeric if layout[w.name][0].kind == "i"]
        self._computed: list[_Computed] = [(w, "", np.positive) for w in self._integers]
        for w in plan.numeric:
            if w.column.log1p:
                self._computed.append((w, "log1p", np.log1p))
            if w.column.standardize is not None:
                self._computed += [(w, part, of) for part, of in w.column.kind.parts.items()]
        summed = [*((w.index, "") for w in self._plain), *((w.index, what) for w, what, _ in self._computed)]
        self._slots = {key: slot for slot, key in enumerate(summed)}
        self._texts = [w for w in plan.layout.members if not w.column.kind.numeric]
        self._classes = [
            w
            for w in plan.numeric
            if w.column.role == "label" and plan.label_kind == "classes" and not w.column.kind.classes
        ]
        count = len(self._slots)
        self._count, self._base, self._mean, self._squares = np.zeros((4, count))
        self._least, self._most = np.full(count, np.inf), np.full(count, -np.inf)
        self._whole = np.ones(count, np.bool_)
        self._limits: dict[int, tuple[int, int]] = {}
        self._summaries: dict[tuple[int, str], NumberSummary] | None = None

    def part(self, records: NDArray[Any], fit: NDArray[np.bool_] | None = None) -> PartialSums:
        """Sum up a part; thread-safe.

        records: [n] of the layout, C-contiguous, with table-wide category codes; fit: bool [n], rows to
        count, None for all.
        """
        figures, whole = block_sums(records, [w.name for w in self._plain], fit)
        if self._computed:
            computed = np.empty(len(records), [(f"m{i}", "<f8") for i in range(len(self._computed))])
            with np.errstate(all="ignore"):
                for i, (w, _, of) in enumerate(self._computed):
                    computed[f"m{i}"] = of(as_float(records[w.name]))
            more, more_whole = block_sums(computed, list(computed.dtype.names or ()), fit)
            figures, whole = np.concatenate([figures, more], axis=1), np.concatenate([whole, more_whole])
        chosen = records if fit is None else records[fit]
        limits = {}
        for w in self._integers:
            x = chosen[w.name]
            x = x[x != MISSING_INTEGER]
            if len(x):
                limits[w.index] = int(x.min()), int(x.max())
        counts = {}
        for w in self._texts:
            x = chosen[w.name]
            codes = x + 1 if w.column.type == "category" else ~is_missing(x)
            counts[w.index] = np.bincount(codes, minlength=1).astype(np.int64)
        values = {w.index: _distinct(records[w.name]) for w in self._classes}
        return PartialSums(len(chosen), figures, whole, limits, counts, values)

    def merge(self, part: PartialSums) -> None:
        """Add the sums of the next part. Raises UsageError if a label has more classes than allowed."""
        self.rows += part.rows
        self._summaries = None
        with np.errstate(all="ignore"):  # overflow is not reported
            for block in part.figures:
                self._merge_block(block)
        self._whole &= part.whole
        for index, (least, most) in part.limits.items():
            before = self._limits.get(index, (least, most))
            self._limits[index] = min(least, before[0]), max(most, before[1])
        for index, counts in part.counts.items():
            fewer, more = sorted((self.counts.get(index, counts[:0]), counts), key=len)
            self.counts[index] = more + np.pad(fewer, (0, len(more) - len(fewer)))
        for index, values in part.values.items():
            values = _distinct(np.concatenate([self.values.get(index, values[:0]), values]))
            self.values[index] = values
            check_categories(self.plan.columns[index].name, len(values), self.plan.max_categories, "label")

    def summary(self, index: int, what: str = "") -> NumberSummary:
        """Return the summary of a numeric column as read, of its "log1p", or of one of its parts."""
        if self._summaries is None:
            self._summaries = self._summarized()
        return self._summaries[index, what]

    def _summarized(self) -> dict[tuple[int, str], NumberSummary]:
        """Return the summaries of all columns at once, because wide tables have many."""
        none = self._count == 0
        with np.errstate(all="ignore"):
            mean = self._base + self._mean
            known = np.isfinite(self._squares) & (
                (self._squares > _LEAST_SQUARES) | (self._least == self._most)
            )
            std = np.where(known, np.sqrt(self._squares / self._count), nan)
        figures = (
            self._count.astype(np.int64),
            np.where(np.isfinite(mean), mean, nan),
            np.where(none, 0.0, std),
            np.where(none, 0.0, self._least),
            np.where(none, 0.0, self._most),
            self._whole & ~none,
        )
        rows = zip(*(values.tolist() for values in figures), strict=True)
        summaries = {key: NumberSummary(*row) for key, row in zip(self._slots, rows, strict=True)}
        for index, (least, most) in self._limits.items():
            summaries[index, ""] = replace(summaries[index, ""], least=least, most=most)
        return summaries

    def _merge_block(self, block: NDArray[np.float64]) -> None:
        count = block[:, COUNT]
        # Means are relative to the very first value; those of timestamps would otherwise differ by rounding.
        self._base = np.where(self._count > 0, self._base, block[:, SHIFT])
        distance = block[:, SUM] / np.maximum(count, 1.0)
        squares = np.maximum(block[:, SQUARES] - block[:, SUM] * distance, 0.0)
        total = np.maximum(self._count + count, 1.0)
        apart = np.where(count > 0, block[:, SHIFT] - self._base + distance - self._mean, 0.0)
        self._mean = self._mean + apart * (count / total)
        self._squares = self._squares + squares + apart * apart * (self._count * (count / total))
        self._count = self._count + count
        self._least = np.minimum(self._least, block[:, LEAST])
        self._most = np.maximum(self._most, block[:, MOST])


def check_categories(name: str, count: int, most: int, role: str = "feature") -> None:
    """Raise UsageError if a column has more categories than allowed."""
    if count > most:
        ways = f"keep={name!r}, drop={name!r}"
        if role == "label":
            ways = "label_as='number'"
        raise UsageError(
            f"column {name!r}: has more than {most:,} categories ({count:,} so far); "
            f"encode=Encode(max_categories={most!r}) allows no more. Pass {ways} or a larger "
            "encode=Encode(max_categories=)."
        )


def histogram(values: NDArray[np.float64]) -> tuple[list[float], list[int]]:
    """Count a sorted sample [m] without NaN, m >= 1, in bins of equal width.

    Returns: the outer edges, between which lie 99 % of the values; the counts of BINS bins, where the first
    and the last bin include values beyond the edges. If the edges are equal: a single count.
    """
    outside = int((len(values) - 1) * 0.005)
    low, high = float(values[outside]), float(values[-1 - outside])
    if not (low < high and isfinite(high - low)):
        return [low, high], [len(values)]
    ends = values.searchsorted(low + (high - low) * (np.arange(1, BINS) / BINS))
    return [low, high], np.diff(ends, prepend=0, append=len(values)).tolist()


def numeric_statistics(
    rows: int, summaries: Sequence[NumberSummary], sample: NDArray[np.float64]
) -> list[dict[str, Any]]:
    """Return the header's statistics of numeric columns. sample: [m, columns], NaN for missing.

    Only the first DRAWN columns get a histogram.
    """
    records = []
    for number, summary in enumerate(summaries):
        mean, std = (x if summary.count and isfinite(x) else None for x in (summary.mean, summary.std))
        least, most = (summary.least, summary.most) if summary.count else (None, None)
        record: dict[str, Any] = {"rows": rows, "missing": rows - summary.count, "mean": mean, "std": std}
        record |= {"min": least, "max": most, "integral": summary.whole}
        if number < DRAWN and len(present := np.sort(sample[~np.isnan(sample[:, number]), number])):
            record["histogram"] = dict(zip(("edges", "counts"), histogram(present), strict=True))
        records.append(record)
    return records


def category_statistics(names: Sequence[str], counts: Sequence[int]) -> dict[str, Any]:
    """Return the header's statistics of categories. counts: of the first len(counts) names."""
    ranked = sorted(zip(names, counts, strict=False), key=lambda pair: (-pair[1], pair[0]))
    return {
        "distinct": sum(1 for count in counts if count),
        "counts": [[name, count] for name, count in ranked[:FREQUENT] if count],
    }


def column_statistics(
    plan: TableTransform,
    sums: ColumnSums,
    sample: NDArray[np.float64],
    dictionaries: Mapping[int, Sequence[str]],
) -> dict[str, dict[str, Any]]:
    """Return the header's statistics of the columns that are read, by name."""
    statistics: dict[str, dict[str, Any]] = {}
    numbers = iter(numeric_statistics(sums.rows, [sums.summary(w.index) for w in plan.numeric], sample))
    for w in plan.layout.members:
        index, name = w.index, w.column.name
        if w.column.kind.numeric:
            statistics[name] = next(numbers)
            continue
        missing, *counts = sums.counts[index].tolist()
        statistics[name] = {"rows": sums.rows, "missing": missing}
        if w.column.type == "category":
            statistics[name] |= category_statistics(dictionaries.get(index, ()), counts)
    return statistics


def _distinct(values: NDArray[Any]) -> NDArray[Any]:
    """Return the distinct present values in ascending order, 0 for -0; float32 as float64."""
    if values.dtype.kind == "i":
        return np.unique(values[values != MISSING_INTEGER])
    return np.unique(values[~np.isnan(values)].astype(np.float64) + 0.0)


def block_sums(
    records: NDArray[Any], members: list[str], fit: NDArray[np.bool_] | None
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Sum up each block of BLOCK rows: in C, or in NumPy if that was not compiled, with the same bits.

    A million rows of 28 float32: 45 ms in C, 500 ms with NumPy.

    records: [n], C-contiguous, packed; members: the members to sum, each <f4 or <f8, NaN for missing; fit:
    the rows to count, None for all.
    Returns: float64 [blocks, members, 6]: number of present values; the first of them, x0; the sums of x - x0
    and of its square; minimum and maximum (inf and -inf if there is none). And bool [members]: True if all
    present values are whole numbers.
    """
    fields: Mapping[str, Any] = records.dtype.fields or {}
    blocks = -(-len(records) // BLOCK)
    if native.COMPILED:
        figures = np.empty((blocks, len(members), 6))
        whole = np.ones(len(members), np.uint8)
        offsets = np.array([fields[m][1] for m in members], np.int64)
        single = np.array([fields[m][0].itemsize == 4 for m in members], np.uint8)
        mask = None if fit is None else np.ascontiguousarray(fit).view(np.uint8)
        native.loops.block_sums(
            records.view(np.uint8), records.dtype.itemsize, BLOCK, mask, offsets, single, figures, whole
        )
        return figures, whole.astype(np.bool_)
    figures = np.zeros((blocks, len(members), 6))
    figures[:, :, LEAST], figures[:, :, MOST] = np.inf, -np.inf
    whole_numbers = np.ones(len(members), np.bool_)
    for b in range(blocks):
        part = slice(b * BLOCK, (b + 1) * BLOCK)
        block = records[part] if fit is None else records[part][fit[part]]
        if len(block) and members:
            _add_block(block, members, figures[b], whole_numbers)
    return figures, whole_numbers


def _add_block(
    block: NDArray[Any], members: list[str], figures: NDArray[np.float64], whole: NDArray[np.bool_]
) -> None:
    x = np.zeros((len(block), len(members) + 1))  # NumPy sums a single column in a different order
    for i, member in enumerate(members):
        x[:, i] = block[member]
    present = ~np.isnan(x)
    first = np.take_along_axis(x, present.argmax(axis=0)[None], axis=0)[0]
    first[~present.any(axis=0)] = 0.0
    with np.errstate(all="ignore"):  # as in C; merging the sums finds overflow
        distance = np.where(present, x - first, 0.0)
        sums = np.add.reduce(distance, axis=0) + 0.0
        squares = np.add.reduce(distance * distance, axis=0)
    stacked = np.stack(
        [
            present.sum(axis=0),
            first,
            sums,
            squares,
            np.where(present, x, np.inf).min(axis=0) + 0.0,
            np.where(present, x, -np.inf).max(axis=0) + 0.0,
        ],
        axis=1,
    )
    figures[:] = stacked[:-1]
    whole &= (~present | (x == np.trunc(x))).all(axis=0)[:-1]
