"""How the columns of a table go with its label: one pass over the rows that a network gets.

=====================  ==========================================================================================================
column and label       measure, 0 to 1 in size
=====================  ==========================================================================================================
number, number         Pearson's correlation, with its sign; a label of two classes counts as 0 and 1
number, classes        correlation ratio: the root of the share of the variance that lies between the classes
categories, number     the same, with the categories as classes
categories, classes    Cramér's V: the root of chi squared over rows times the smaller number of values less 1
=====================  ==========================================================================================================

Sources: R. A. Fisher, "Statistical Methods for Research Workers" (1925), 45, of the ratio; H. Cramér, "Mathematical Methods of
Statistics" (1946), 21.9. Rows whose cell or label is missing are left out of that column's measure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.format.checksums import block_checksum
from packer.format.pack import Pack
from packer.orders.runs import one_run
from packer.read.row_reader import RowReader
from packer.reports.label_measures import LabelMeasures

_PIECE_BYTES = 32 << 20
_MOST_CELLS = 1_000_000
"""Of a table of counts, categories by classes: larger ones are not made."""

Floats = NDArray[np.float64]


class Association(NamedTuple):
    """The association of a column with the label. measure: "r", "ratio" or "V"; value: None where it cannot be told."""

    column: str
    measure: str
    value: float | None


class TableMeasures(NamedTuple):
    """Measures of a table's rows. digests: of features and categories, uint64 [N]; target: what `associations` are with."""

    digests: NDArray[np.uint64]
    associations: tuple[Association, ...]
    target: str


def measure_table(
    packs: Sequence[Pack], labels: LabelMeasures, progress: Callable[[int], None]
) -> TableMeasures:
    """Read features, categories and label of all rows once; progress: called with the rows done.

    packs: of tables that were mapped alike; associations are those of all rows together. Raises FormatError.
    """
    table = packs[0].parts[0].header.table or {}
    names, coded = list(table.get("features") or []), list(table.get("categories") or [])
    sizes = [len(c["categories"] or ()) + 1 for name in coded for c in table["columns"] if c["name"] == name]
    classes = len(labels.names) if labels.kind == "class" else 0
    grouped = classes > 2
    numeric = _Products(len(names)) if not grouped else None
    groups = _Groups(classes, len(names)) if grouped else None
    tables = [_Counts(size, classes) if classes and size * classes <= _MOST_CELLS else None for size in sizes]
    ratios = [_Groups(size, 1) if not classes else None for size in sizes]
    digests, done = [], 0
    for pack in packs:
        wanted = [f for f in pack.fields if f.name in ("features", "categories", "label")]
        reader = RowReader(pack, wanted)
        step = max(1, _PIECE_BYTES // max(1, sum(f.row_bytes for f in wanted)))
        for start in range(0, pack.rows, step):
            runs = one_run(start, min(start + step, pack.rows))
            read: dict[str, Any] = {f.name: reader.array(f, runs) for f in wanted}
            count = runs.total
            digests.append(_digests([read[n] for n in ("features", "categories") if n in read], count))
            target = _target(labels, read, done, count)
            if target is not None:
                features = np.asarray(read.get("features", np.zeros((count, 0))), np.float64)
                if groups is not None:
                    groups.add(target.astype(np.int64), features)
                elif numeric is not None:
                    numeric.add(target, features)
                for k, codes in enumerate(np.asarray(read.get("categories", np.zeros((count, 0)))).T):
                    known = (codes > 0) & (codes < sizes[k])
                    if (counts := tables[k]) is not None:
                        counts.add(codes[known], target[known].astype(np.int64))
                    elif (ratio := ratios[k]) is not None:
                        ratio.add(codes[known], target[known, None])
            done += count
            progress(done)
        reader.close()
    found: list[Association] = []
    if labels.kind == "class" or len(labels.numbers) == 1:
        values = (
            groups.ratios() if groups is not None else numeric.correlations() if numeric is not None else []
        )
        found = [Association(n, "ratio" if grouped else "r", v) for n, v in zip(names, values, strict=True)]
        for name, counts, ratio in zip(coded, tables, ratios, strict=True):
            value = (
                counts.cramer() if counts is not None else ratio.ratios()[0] if ratio is not None else None
            )
            found.append(Association(name, "V" if classes else "ratio", value))
    label = table.get("label") or {}
    return TableMeasures(
        np.concatenate(digests), tuple(found), ", ".join(label.get("columns", ())) or "label"
    )


def _target(labels: LabelMeasures, read: dict[str, Any], first: int, count: int) -> Floats | None:
    """Return the labels of some rows as one number each, None if they are not that."""
    if labels.classes is not None:
        return labels.classes[first : first + count].astype(np.float64)
    if labels.kind == "number" and "label" in read and read["label"].ndim == 1:
        return np.asarray(read["label"], np.float64)
    return None


def _digests(arrays: list[NDArray[Any]], count: int) -> NDArray[np.uint64]:
    """Return a checksum of each row of some arrays together."""
    if not arrays:
        return np.arange(count, dtype=np.uint64)
    rows = np.concatenate([np.ascontiguousarray(a).view(np.uint8).reshape(count, -1) for a in arrays], axis=1)
    return np.fromiter((block_checksum(row) for row in rows), np.uint64, count)


class _Products:
    """Sums from which the correlation of columns with a number comes; NaN and infinities count for nothing."""

    def __init__(self, columns: int) -> None:
        self._sums = np.zeros((6, columns))
        self._shift: Floats | None = None

    def add(self, y: Floats, x: Floats) -> None:
        """y: [n]; x: [n, columns]."""
        good = np.isfinite(x) & np.isfinite(y)[:, None]
        count = np.maximum(good.sum(axis=0), 1)
        if self._shift is None:  # sums of squares of what is far from 0 would lose digits
            self._shift = np.where(good, x, 0).sum(axis=0) / count
            self._center = float(y[np.isfinite(y)].mean()) if np.isfinite(y).any() else 0.0
        x, y = np.where(good, x - self._shift, 0), np.where(np.isfinite(y), y - self._center, 0)
        self._sums += (
            good.sum(axis=0), x.sum(axis=0), (x * x).sum(axis=0), y @ x, y @ good, (y * y) @ good,
        )  # fmt: skip

    def correlations(self) -> list[float | None]:
        """Return Pearson's correlation of each column; None where one of the two does not vary."""
        n, x, xx, xy, y, yy = self._sums
        with np.errstate(divide="ignore", invalid="ignore"):
            spread_x, spread_y = xx - x * x / n, yy - y * y / n
            value = (xy - x * y / n) / np.sqrt(spread_x * spread_y)
        told = (n > 1) & (spread_x > 1e-9 * xx) & (spread_y > 1e-9 * yy)
        return [
            float(v) if ok and np.isfinite(v) else None for v, ok in zip(value.clip(-1, 1), told, strict=True)
        ]


class _Groups:
    """Sums of columns by group, from which the correlation ratio comes."""

    def __init__(self, groups: int, columns: int) -> None:
        self._counts, self._sums = np.zeros((groups, columns)), np.zeros((groups, columns))
        self._squares = np.zeros(columns)
        self._shift: Floats | None = None

    def add(self, group: NDArray[np.int64], x: Floats) -> None:
        """group: [n], its number; x: [n, columns]."""
        good = np.isfinite(x)
        if self._shift is None:
            self._shift = np.where(good, x, 0).sum(axis=0) / np.maximum(good.sum(axis=0), 1)
        x = np.where(good, x - self._shift, 0)
        order = np.argsort(group, kind="stable")
        present, starts = np.unique(group[order], return_index=True)
        if len(present):
            self._sums[present] += np.add.reduceat(x[order], starts, axis=0)
            self._counts[present] += np.add.reduceat(good[order].astype(np.float64), starts, axis=0)
        self._squares += (x * x).sum(axis=0)

    def ratios(self) -> list[float | None]:
        """Return the correlation ratio of each column; None where it does not vary."""
        total = self._counts.sum(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = self._sums.sum(axis=0) / total
            spread = self._squares - total * mean * mean
            own = np.where(self._counts > 0, self._sums**2 / self._counts, 0).sum(axis=0)
            value = np.sqrt(((own - total * mean * mean) / spread).clip(0, 1))
        told = (total > 1) & (spread > 1e-9 * self._squares)
        return [float(v) if ok and np.isfinite(v) else None for v, ok in zip(value, told, strict=True)]


class _Counts:
    """Rows by category and class, from which Cramér's V comes."""

    def __init__(self, categories: int, classes: int) -> None:
        self._counts = np.zeros((categories, classes), np.int64)

    def add(self, codes: NDArray[np.int64], classes: NDArray[np.int64]) -> None:
        """codes, classes: [n]."""
        np.add.at(self._counts, (codes, classes), 1)

    def cramer(self) -> float | None:
        """Return Cramér's V; None where one of the two does not vary."""
        counts = self._counts[self._counts.any(axis=1)][:, self._counts.any(axis=0)].astype(np.float64)
        least = min(counts.shape) - 1
        if least < 1:
            return None
        total = counts.sum()
        expected = counts.sum(axis=1, keepdims=True) * counts.sum(axis=0) / total
        chi = ((counts - expected) ** 2 / expected).sum()
        return float(min(1.0, np.sqrt(chi / total / least)))
