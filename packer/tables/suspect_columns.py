"""Numbers that are hardly a row's properties: of the row itself, the label, all rows, missing values.

A column of numbers tells the label if the rows, sorted by it, have each class in one piece, or a label that
only rises or only falls; a column of texts, if all rows of a text have one label. Measured on a sample of
the rows of train, and noted only if chance would hardly bring it about. A last row of totals holds sums of
the rows above it; a number that stands for missing values comes again, far from all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import compress
from math import lgamma, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer import units
from packer.given_values import option_text
from packer.tables.staging import StagedTable
from packer.tables.transform.column_types import as_float, note_on, shortest
from packer.tables.transform.records import RecordMember, floats_of
from packer.tables.transform.table_transform import TableTransform

_FEW = 256  # rows that rule most columns out
_LEAST = 10  # fewest rows whose numbers are noted
_STEP = 1 << 18  # rows read at once
_DISTINCT = 8  # fewest other values of a column with a number for missing ones
_MARK_ROWS = 4096  # most rows, about, where numbers for missing ones are looked for
_CELLS = 1 << 20  # most cells sorted at once
_CHANCE = log(1e-3)  # most, that there is a note on a table of random numbers

Ints = NDArray[np.int64]


def notes_on_suspects(plan: TableTransform, staged: StagedTable, samples: Ints) -> list[str]:
    """Return notes on features that number the rows or tell the label, on totals, and on numbers for missing.

    samples: numbers of rows of train.
    """
    records: NDArray[Any] = np.asarray(np.memmap(staged.path, staged.dtype, "r"))
    features = [w for w in plan.layout.members if w.column.role == "feature"]
    whole = [w for w in features if w.column.type in ("number", "integer")]
    numbers = _numbering(records, whole, sum(staged.rows_of_files.values()))
    what = "the values number the rows, as identifiers do, which say nothing about new rows"
    notes = _note_on_features(numbers, what, "keep")
    labels = [w for w in plan.layout.members if w.column.name in plan.label]
    measures = [*whole, *(w for w in labels if w.column.type in ("number", "integer"))]
    notes += _note_on_totals(records, measures) + _note_on_marks(records, whole, samples)
    if len(labels) != 1:
        return notes
    (label,) = labels
    y = np.unique(records[label.name][samples], return_inverse=True)[1]
    leak = f"({units.count(len(samples), 'row')}). If it is known only with the label, it is a leak"
    numbering = {w.index for w in numbers}
    others = [w for w in features if w.column.kind.numeric and w.index not in numbering]
    texts = [w for w in features if not w.column.kind.numeric]
    for found, how in (
        (_sorting(records, others, samples, y), "sorting by such a column sorts"),
        (_deciding(records, texts, samples, y), "each text in such a column has one value of"),
    ):
        notes += _note_on_features(found, f"{how} the label {label.column.name!r} {leak}")
    return notes


def _note_on_features(columns: Sequence[RecordMember], what: str, other: str = "") -> list[str]:
    """Return a note on some columns. other: a further option that names such columns."""
    names = [w.column.name for w in columns]
    ways = [option_text(option, ",".join(names[:6])) for option in ("drop", other) if option]
    return note_on(names, f"{what}. Pass {' or '.join(ways)}.")


def _note_on_totals(records: NDArray[Any], columns: Sequence[RecordMember]) -> list[str]:
    """Return a note on a last row that holds the sums of the rows above it."""
    if len(records) <= _LEAST or not columns:
        return []
    few = np.nan_to_num(floats_of(records[:-1], columns, slice(_FEW)))
    last = np.nan_to_num(floats_of(records, columns, slice(-1, None))[:, 0])
    fits = (few >= 0).all(axis=1) & (np.count_nonzero(few, axis=1) >= _LEAST / 2)
    fits &= (last > few.max(axis=1)) & (last > few.sum(axis=1) * (1 - 1e-6))
    names = []
    for w in compress(columns, fits.tolist()):
        steps = range(0, len(records), _STEP)
        total = sum(float(np.nansum(as_float(records[w.name][at : at + _STEP]))) for at in steps)
        if np.isclose(total, 2 * float(records[w.name][-1])):
            names.append(w.column.name)
    return note_on(
        names,
        "the last row holds the sum of the rows above it, as a row of totals does, which is no sample. If it"
        " is one, leave it out of the file.",
    )


def _note_on_marks(records: NDArray[Any], columns: Sequence[RecordMember], samples: Ints) -> list[str]:
    """Return a note on numbers that come again, farther from all others of a column than they are apart."""
    found, samples = [], samples[:: len(samples) // _MARK_ROWS + 1]
    for w in _repeating(records, columns, samples):
        x = as_float(records[w.name][samples])
        values, counts = np.unique(x[np.isfinite(x)], return_counts=True)
        for at, rest in ((0, values[1:]), (-1, values[:-1])):
            if counts[at] > 1 and values[at] != 0 and abs(values[at] - rest[at]) > rest[-1] - rest[0]:
                limits = f"{shortest(rest[0].item())} to {shortest(rest[-1].item())}"
                found.append((w.column.name, shortest(values[at].item()), counts[at], limits))
    name, mark, count, limits = found[0] if found else ("", "", 0, "")
    return note_on(
        (name for name, *_ in found),
        f"a number comes again, far from all others, as {mark} in {count:,} of"
        f" {units.count(len(samples), 'row')} of {name!r}, whose others are {limits}. If it stands for"
        f" missing ones, pass csv=Csv(na={mark!r}), or leave these cells empty.",
    )


def _repeating(
    records: NDArray[Any], columns: Sequence[RecordMember], samples: Ints
) -> Iterator[RecordMember]:
    """Yield the columns of several values of which the least or the largest comes again."""
    width = max(1, _CELLS // len(samples))
    for start in range(0, len(columns) if len(samples) > _DISTINCT else 0, width):
        some = columns[start : start + width]
        x = np.sort(np.where(np.isfinite(x := floats_of(records, some, samples)), x, np.nan), axis=1)
        steps = np.diff(x, axis=1)
        last = np.maximum(np.count_nonzero(~np.isnan(x), axis=1) - 2, 0)
        again = (steps[:, :1] == 0) | (np.take_along_axis(steps, last[:, None], axis=1) == 0)
        fits = again[:, 0] & (np.count_nonzero(steps > 0, axis=1) >= _DISTINCT)
        yield from compress(some, fits.tolist())


def _numbering(records: NDArray[Any], columns: Sequence[RecordMember], most: int) -> list[RecordMember]:
    """Return the columns of different whole numbers that span no more than the rows of the files, `most`."""
    if len(records) < _LEAST or not columns:
        return []
    x = np.sort(floats_of(records, columns, slice(_FEW)), axis=1)
    fits = (x == np.trunc(x)).all(axis=1) & (x[:, 1:] > x[:, :-1]).all(axis=1) & (x[:, -1] - x[:, 0] < most)
    found = []
    for w in compress(columns, fits.tolist()):
        limits = [(piece.min(), piece.max()) for piece in _pieces(records[w.name])]
        least, largest = min(low for low, _ in limits), max(high for _, high in limits)
        if not largest - least < most:  # also if one is missing, NaN
            continue
        seen = np.zeros(int(largest - least) + 1, np.bool_)
        for piece in _pieces(records[w.name]):
            seen[(piece - least).astype(np.int64)] = True
        if np.count_nonzero(seen) == len(records):
            found.append(w)
    return found


def _sorting(
    records: NDArray[Any], columns: Sequence[RecordMember], samples: Ints, y: Ints
) -> list[RecordMember]:
    """Return the columns of numbers that sort the label. y: number of the label of each sample."""
    counts = np.bincount(y)
    several = len(counts) ** 2 > len(y)  # values, not classes: they have to rise or fall
    ways = log(2) if several else lgamma(len(counts) + 1)
    chance = ways + sum(lgamma(n + 1) for n in counts.tolist()) - lgamma(len(y) + 1)
    if len(counts) < 2 or not columns or chance + log(len(columns)) > _CHANCE:
        return []
    few = np.argsort(y, kind="stable")[np.linspace(0, len(y) - 1, min(len(y), _FEW)).astype(np.int64)]
    fits = _are_sorting(floats_of(records, columns, samples[few]), y[few], rising=several)
    found = compress(columns, fits.tolist())
    return [
        w for w in found if _are_sorting(as_float(records[w.name][samples])[None], y, rising=several).all()
    ]


def _are_sorting(x: NDArray[np.float64], y: Ints, *, rising: bool) -> NDArray[np.bool_]:
    """Return True for each column, x [columns, n], by which the labels y [n] are sorted, missing last."""
    order = np.argsort(x, axis=1, kind="stable")
    x, steps = np.take_along_axis(x, order, axis=1), np.diff(y[order], axis=1)
    tied = (x[:, 1:] == x[:, :-1]) | np.isnan(x[:, :-1])
    if rising:
        fits = (steps >= 0).all(axis=1) | (steps <= 0).all(axis=1)
    else:
        fits = np.count_nonzero(steps, axis=1) == len(np.unique(y)) - 1
    return np.asarray(fits & ~((steps != 0) & tied).any(axis=1))


def _deciding(
    records: NDArray[Any], columns: Sequence[RecordMember], samples: Ints, y: Ints
) -> list[RecordMember]:
    """Return the columns of texts that have one label each."""
    share = np.bincount(y).max() / len(y)
    found = []
    for w in columns if share < 1 else ():
        for rows in (slice(_FEW), slice(None)):
            codes = records[w.name][samples[rows]].astype(np.int64)
            texts = len(np.unique(codes))
            if len(np.unique(codes * (y.max() + 1) + y[rows])) > texts:
                break
        else:
            if (len(y) - texts) * log(share) + log(len(columns)) < _CHANCE:
                found.append(w)
    return found


def _pieces(column: NDArray[Any]) -> Iterator[NDArray[np.float64]]:
    """Yield a column, some rows at a time, fractions as NaN."""
    for start in range(0, len(column), _STEP):
        x = as_float(column[start : start + _STEP])
        yield np.where(x == np.trunc(x), x, np.nan)
