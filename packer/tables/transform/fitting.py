"""Fitting: what the statistics of a table decide for each of its columns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.tables.transform import column_sums
from packer.tables.transform.column_plan import SCALED, ColumnChoices, ColumnPlan
from packer.tables.transform.column_sums import ColumnSums, check_categories
from packer.tables.transform.column_transform import BOOLEANS, ColumnTransform


def measured_statistics(
    plan: ColumnPlan, sums: ColumnSums, sample: NDArray[np.float64], dictionaries: Mapping[int, Sequence[str]]
) -> dict[str, dict[str, Any]]:
    """The statistics of the columns that are read, by name, as the header has them."""
    found: dict[str, dict[str, Any]] = {}
    places = {w.index: k for k, w in enumerate(plan.numeric)}
    for w in plan.layout.wanted:
        index, missing = w.index, sums.missing.get(w.index, 0)
        if w.column.type == "text":
            found[w.column.name] = {"rows": sums.rows, "missing": missing}
        elif w.column.type == "category":
            counts = sums.counts.get(index, np.zeros(0, np.int64))
            names = dictionaries.get(index, ())
            found[w.column.name] = column_sums.of_categories(sums.rows, missing, names, counts)
        else:
            found[w.column.name] = column_sums.of_numbers(sums.rows, sums.of(index), sample[:, places[index]])
    return found


def fit_texts(column: ColumnTransform, choices: ColumnChoices, names: Sequence[str]) -> ColumnTransform:
    """What becomes of a column of texts. names: the different ones. Raises UsageError if they are too many."""
    if column.type == "text":
        return column
    check_categories(column.name, len(names), choices.max_categories, column.role)
    feature = column.role == "feature"
    return replace(
        column,
        missing=choices.missing if feature else None,
        categories=tuple(sorted(names)),
        one_hot=feature and (choices.one_hot == "all" or column.name in choices.one_hot),
    )


def fit_numbers(
    column: ColumnTransform, plan: ColumnPlan, index: int, sums: ColumnSums, sample: NDArray[np.float64]
) -> ColumnTransform:
    """What becomes of a column of numbers. index: its number; sample: float64 [m], NaN where missing. Raises UsageError."""
    choices, found = plan.choices, sums.of(index)
    if column.role == "label" and plan.label is not None and plan.label.kind == "classes":
        if column.type == "boolean":
            return replace(column, categories=BOOLEANS)
        values = sums.values.get(index, np.zeros(0))
        return replace(column, categories=tuple(map(_shortest, values.tolist())))
    if column.role != "feature":
        return column
    log1p = column.name in choices.log1p
    if log1p:
        found = sums.of(index, "log1p")
        sample = np.log1p(sample)
    fill = {"mean": found.mean, "zero": 0.0}.get(choices.missing)
    if choices.missing == "median":
        present = sample[~np.isnan(sample)]
        with np.errstate(over="ignore"):
            fill = float(np.median(present)) if len(present) else 0.0
    scale: tuple[float, ...] | None = None
    if choices.standardize and column.type in SCALED:
        parts = [found]
        if column.type == "timestamp":
            parts = [sums.of(index, "days"), sums.of(index, "seconds")]
        scale = tuple(x for p in parts for x in (p.mean, p.std or 1.0))
    for option, needed in ((f"--missing {choices.missing}", (fill,)), ("--standardize", scale or ())):
        if not all(x is None or math.isfinite(x) for x in needed):
            raise UsageError(
                f"column {column.name!r}: holds numbers so large, or so close together, that float64 cannot tell their mean and"
                f" deviation, which {option} needs; distances from 1e-140 to 1e140 are allowed. Leave the column out with"
                f" --drop {column.name}, or give it in another unit."
            )
    return replace(
        column,
        missing=choices.missing,
        fill=fill,
        indicator=choices.indicators and found.count < sums.rows,
        log1p=log1p,
        standardize=scale,
    )


def _shortest(value: float) -> str:
    """The shortest text of a number: "3" for 3.0. All digits of an int."""
    if isinstance(value, int):
        return str(value)
    return str(int(value)) if value.is_integer() and abs(value) < 1e16 else repr(value)
