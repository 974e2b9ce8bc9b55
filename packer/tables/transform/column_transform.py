"""The transform of one column: fitted to its statistics, checked, and the names of the fields and features it becomes."""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.sentence import Option
from packer.tables.transform.column_plan import ColumnChoices, ColumnPlan
from packer.tables.transform.column_sums import ColumnSums, check_categories
from packer.tables.transform.column_types import MISSING_INTEGER, TYPES, ColumnType, shortest

MAX_NAME = 100  # characters of a field's name

TAKEN = ("features", "label", "categories", "key", "image", "packer", "checksums", "header", "trailer")


@dataclass(frozen=True)
class ColumnTransform:
    """The transform of a column; its members are those of a column in the header's record.

    type: that it is read as; missing: the policy, of features; fill: what missing cells become, after log1p; standardize: mean and
    std, of a timestamp those of days and of seconds; categories: by rising text (numbers that are classes: by rising number).
    """

    name: str
    type: str
    role: str
    missing: str | None = None
    fill: float | None = None
    indicator: bool = False
    log1p: bool = False
    standardize: tuple[float, ...] | None = None
    categories: tuple[str, ...] | None = None
    one_hot: bool = False
    field: str | None = None
    statistics: Mapping[str, Any] | None = None

    @property
    def kind(self) -> ColumnType:
        """The entry of its type."""
        return TYPES[self.type]

    @property
    def coded(self) -> bool:
        """True for a column of the field `categories`."""
        return self.role == "feature" and self.type == "category" and not self.one_hot

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of its features, but for its indicator; TableTransform.features tells equal ones apart."""
        if self.role != "feature" or self.coded:
            return ()
        if self.one_hot:
            return tuple(f"{self.name}={c}" for c in self.categories or ())
        return (self.name, *(f"{self.name}.{part}" for part in list(self.kind.parts)[1:]))

    def to_json(self) -> dict[str, Any]:
        """Return the column of the header's record."""
        return {
            name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> ColumnTransform:
        """Read what to_json wrote, of a record that was checked."""
        column = cls(**{f.name: record[f.name] for f in fields(cls)})
        return replace(
            column,
            fill=None if column.fill is None else float(column.fill),
            standardize=None if column.standardize is None else tuple(map(float, column.standardize)),
            categories=None if column.categories is None else tuple(column.categories),
            statistics=None if column.statistics is None else dict(column.statistics),
        )


def fit_texts(column: ColumnTransform, choices: ColumnChoices, names: Sequence[str]) -> ColumnTransform:
    """Fit the transform of a column of texts. names: the different ones. Raises UsageError if they are too many."""
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
    """Fit the transform of a column of numbers. index: its number; sample: float64 [m], NaN where missing. Raises UsageError."""
    choices, found = plan.choices, sums.of(index)
    if column.role == "label" and plan.label is not None and plan.label.kind == "classes":
        if column.kind.classes:
            return replace(column, categories=column.kind.classes)
        values = sums.values.get(index, np.zeros(0))
        return replace(column, categories=tuple(map(shortest, values.tolist())))
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
    if choices.standardize and column.kind.scaled:
        parts = [sums.of(index, part) for part in column.kind.parts] or [found]
        scale = tuple(x for p in parts for x in (p.mean, p.std or 1.0))
    ways = ((Option("missing", choices.missing), (fill,)), (Option("standardize", True), scale or ()))
    for option, needed in ways:
        if not all(x is None or math.isfinite(x) for x in needed):
            raise UsageError(
                f"column {column.name!r}: holds numbers so large, or so close together, that float64 cannot tell their mean and"
                " deviation, which "
                + option
                + " needs; distances from 1e-140 to 1e140 are allowed. Leave the column out with "
                + Option("drop", column.name)
                + ", or give it in another unit."
            )
    return replace(
        column,
        missing=choices.missing,
        fill=fill,
        indicator=choices.indicators and found.count < sums.rows,
        log1p=log1p,
        standardize=scale,
    )


def sound(c: ColumnTransform, whole: bool) -> bool:
    """Tell whether the members of a transform go together. whole: features hold whole numbers."""
    feature = c.role == "feature"
    if (
        (c.missing is not None) != feature
        or (c.field is not None) != (c.role == "keep")
        or (c.fill is not None) != (feature and c.kind.numeric and c.missing in ("mean", "median", "zero"))
        or (c.categories is not None and len(set(c.categories)) != len(c.categories))
    ):
        return False
    if c.field is not None and not (
        re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", c.field)
        and not keyword.iskeyword(c.field)
        and len(c.field) <= MAX_NAME
        and c.kind.kept
    ):
        return False
    if not feature:
        return not (c.indicator or c.log1p or c.one_hot or c.standardize is not None)
    if (
        c.type == "text"
        or (c.type == "integer" and not whole)
        or (c.missing == "zero" and c.fill not in (0, None))
    ):
        return False
    if c.type == "category":
        return c.categories is not None and not (c.indicator or c.log1p or c.standardize is not None)
    if whole and (c.log1p or c.standardize is not None or c.missing in ("mean", "median")):
        return False
    wide = 2 * max(1, len(c.kind.parts))
    return (
        not c.one_hot
        and c.categories is None
        and (not c.log1p or c.type == "number")
        and (
            c.standardize is None
            or (c.kind.scaled and len(c.standardize) == wide and all(x > 0 for x in c.standardize[1::2]))
        )
    )


def sound_label(columns: Sequence[ColumnTransform], kind: str | None, dtype: str | None) -> bool:
    """Tell whether columns can be a label of that kind and dtype."""
    if kind == "number":
        whole = all(c.kind.whole for c in columns)
        numeric = all(c.kind.numeric and c.categories is None for c in columns)
        return numeric and dtype in (("<i8", "<f4", "<f8") if whole else ("<f4", "<f8"))
    (c,) = columns if len(columns) == 1 else (None,)
    if kind != "classes" or dtype != "<i8" or c is None or not c.categories:
        return False
    if c.kind.classes:
        return c.categories == c.kind.classes
    values: Sequence[Any] = c.categories
    if c.kind.numeric:
        try:
            values = [int(x) if c.type == "integer" else float(x) for x in c.categories]
        except ValueError:
            return False
        ends = (MISSING_INTEGER, -MISSING_INTEGER) if c.type == "integer" else (-math.inf, math.inf)
        if not all(ends[0] < x < ends[1] for x in values):
            return False
    return c.kind.classes is not None and all(a < b for a, b in pairwise(values))


def unique(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names, made different: of equal ones the second is `name.1`, the third `name.2`."""
    if len(set(names)) == len(names):
        return tuple(names)
    found: dict[str, None] = {}
    next_of: dict[str, int] = {}
    for base in names:
        name = base
        while name in found:
            next_of[base] = next_of.get(base, 0) + 1
            name = f"{base}.{next_of[base]}"
        found[name] = None
    return tuple(found)


def kept_fields(names: Sequence[str]) -> dict[str, str]:
    """Return the fields' names of kept columns: all different, also without regard to case."""
    fields: dict[str, str] = {}
    taken = set(TAKEN)
    for name in names:
        field = base = _field_name(name)
        number = 2
        while field.casefold() in taken:
            end = f"_{number}"
            field = base[: MAX_NAME - len(end)] + end
            number += 1
        taken.add(field.casefold())
        fields[name] = field
    return fields


def _field_name(name: str) -> str:
    field = re.sub(r"[^A-Za-z0-9_]", "_", name)
    if not re.match(r"[A-Za-z]", field):
        field = f"column_{field}"
    field = field[:MAX_NAME]
    return f"{field}_" if keyword.iskeyword(field) else field
