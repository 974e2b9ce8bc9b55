"""Fit a plan on rows: values that fill missing cells, means, deviations, categories, classes, statistics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.given_values import option_text
from packer.tables.transform.column_sums import ColumnSums, check_categories, column_statistics
from packer.tables.transform.column_types import DEALING, TableColumn, shortest
from packer.tables.transform.table_transform import TableTransform

MAX_FEATURES = 100_000  # the header describes each


def fit(
    plan: TableTransform,
    sums: ColumnSums,
    sample: NDArray[np.float64],
    dictionaries: Mapping[int, Sequence[str]],
    fit_name: str = "all",
    reading: Mapping[str, Any] | None = None,
) -> TableTransform:
    """Fit a plan.

    sums: over the rows to fit on; sample: float64 [m, plan.numeric], drawn from these rows; dictionaries:
    column number -> texts of the codes, over all rows; fit_name: name of the rows to fit on; reading: options
    with which text files were read.
    Raises UsageError (too many categories; a required mean or deviation that float64 cannot represent).
    """
    statistics = column_statistics(plan, sums, sample, dictionaries)
    places = {w.index: k for k, w in enumerate(plan.numeric)}
    columns = []
    for index, given in enumerate(plan.columns):
        if given.role == DEALING:  # the order of the rows contains its information
            columns.append(given.but(role="drop"))
            continue
        column = given.but(statistics=statistics.get(given.name))
        if column.type == "category" and column.role != "drop":
            names = sorted(dictionaries.get(index, ()))
            if column.role == "feature":  # a label's classes come from all rows
                counts = zip(dictionaries.get(index, ()), sums.counts[index][1:].tolist(), strict=False)
                names = sorted(t for t, n in counts if n)
            elif column.role == "label":
                names = list(column.categories or _class_names(column.name, plan, names))
            check_categories(column.name, len(names), plan.max_categories, column.role)
            column = column.but(categories=tuple(names))
        elif index in places:
            column = _fit_numbers(column, plan, index, sums, sample[:, places[index]])
        columns.append(column)
    transform = replace(plan, columns=tuple(columns), fit_name=fit_name, reading=dict(reading or {}))
    if len(transform.features) > MAX_FEATURES:
        wide = max(transform.columns, key=lambda c: len(c.outputs))
        several = f", {len(wide.outputs):,} of them from {wide.name!r}" if wide.one_hot else ""
        way = f"Leave {wide.name!r} out of one_hot=" if several else "Pass fewer columns with features="
        raise UsageError(
            f"table: has {len(transform.features):,} features{several}; {MAX_FEATURES:,} are allowed. {way}."
        )
    return transform


def _class_names(column: str, plan: TableTransform, texts: Sequence[str]) -> list[str]:
    """Return the classes in the texts of the label, sorted, several in a cell as numbers if all are whole.

    Raises UsageError if there is none.
    """
    names = {name for text in texts for name in plan.class_names(text)}
    if not names:
        raise UsageError(
            f"label={column!r}: is empty in all rows; class names are needed. Pass another column."
        )
    whole = plan.separator and all(name.isdecimal() and str(int(name)) == name for name in names)
    return sorted(names, key=int if whole else str)


def measured(
    transform: TableTransform,
    plan: TableTransform,
    sums: ColumnSums,
    sample: NDArray[np.float64],
    dictionaries: Mapping[int, Sequence[str]],
    fit_name: str = "all",
) -> TableTransform:
    """Return a transform with the statistics of other rows; none for columns that these rows lack.

    plan: the result of transform.plan_for; other arguments: as in fit.
    """
    statistics = column_statistics(plan, sums, sample, dictionaries)
    columns = tuple(c.but(statistics=statistics.get(c.name)) for c in transform.columns)
    return replace(transform, columns=columns, fit_name=fit_name)


def _fit_numbers(
    column: TableColumn, plan: TableTransform, index: int, sums: ColumnSums, sample: NDArray[np.float64]
) -> TableColumn:
    """Fit a numeric column. index: its number; sample: float64 [m], NaN for missing. Raises UsageError."""
    if column.role == "label" and plan.label_kind == "classes":
        values = sums.values.get(index, np.zeros(0))
        return column.but(categories=column.kind.classes or tuple(map(shortest, values.tolist())))
    fitted = column.indicator or column.standardize is not None or column.missing not in ("nan", "error")
    if column.role != "feature" or not fitted:
        return column
    summary = sums.summary(index, "log1p" if column.log1p else "")
    if column.log1p:
        sample = np.log1p(sample)
    missing = column.missing or ""
    fill = {"mean": summary.mean, "zero": 0.0}.get(missing)
    if missing == "median":
        present = sample[~np.isnan(sample)]
        with np.errstate(over="ignore"):
            fill = float(np.median(present)) if len(present) else 0.0
    scale: tuple[float, ...] | None = None
    if column.standardize is not None:
        parts = [(sums.summary(index, part), of) for part, of in column.kind.parts.items()]
        scale = ()
        for part, of in parts or [(summary, np.positive)]:
            value = 0.0 if fill is None else float(of(np.array([fill]))[0])
            mean, std = part.filled(0 if fill is None else sums.rows - part.count, value)
            scale += (mean, std or 1.0)
    ways = ((option_text("missing", missing), (fill,)), ("standardize=True", scale or ()))
    for option, needed in ways:
        if not all(x is None or math.isfinite(x) for x in needed):
            raise UsageError(
                f"column {column.name!r}: holds numbers so large, or so close together, that float64 cannot"
                f" represent their mean and deviation, which {option} needs; distances from 1e-140 to 1e140"
                f" are allowed. Leave the column out with drop={column.name!r}, or give it in"
                " another unit."
            )
    indicator = column.indicator and summary.count < sums.rows
    return column.but(fill=fill, indicator=indicator, standardize=scale)
