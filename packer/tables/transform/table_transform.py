"""The mapping from raw columns to fields: fitted once, kept in the header, applied to whatever rows come.

Order of arithmetic, in float64: log1p; missing cells filled; standardized, (x - mean) / std; cast. Features come in the order of
their columns, of a timestamp two (whole days since 1970-01-01, and ``.seconds`` since midnight), of a one-hot column one a category;
behind all of them those that tell missing cells. Categories are numbered from 1 by rising text, 0 is for missing ones and
for those that no row of fit has. Mean and std are those of the filled rows.
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.format.header import Field
from packer.sentence import Option
from packer.tables.transform.column_plan import DTYPES, ColumnChoices, ColumnPlan, LabelField, nearest
from packer.tables.transform.column_sums import ColumnSums, check_categories, column_statistics
from packer.tables.transform.column_types import (
    NOTATIONS,
    TYPES,
    ColumnType,
    TableColumn,
    shortest,
    unique,
)

MAX_FEATURES = 1 << 16
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


@dataclass(frozen=True)
class TableTransform:
    """A fitted transform of a table's columns into fields.

    columns: of the input, in order; dtype: of the features, numpy's type string; label: columns, kind and dtype of the field, or
    None; fit_name: the rows whose statistics are used, "all" or a split's name; reading: how text files were read, plain JSON.
    """

    columns: tuple[ColumnTransform, ...]
    dtype: str
    label: tuple[str, ...] = ()
    label_kind: str | None = None
    label_dtype: str | None = None
    fit_name: str = "all"
    reading: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def fit(
        cls,
        plan: ColumnPlan,
        sums: ColumnSums,
        sample: NDArray[np.float64],
        dictionaries: Mapping[int, Sequence[str]],
        fit_name: str = "all",
        reading: Mapping[str, Any] | None = None,
    ) -> TableTransform:
        """Fit the transform that a plan describes.

        sums: over the rows that count; sample: float64 [m, plan.numeric], of these rows; dictionaries: column number -> texts of
        the codes, of all rows; fit_name: of the rows that count; reading: how text files were read.
        Raises UsageError (too many categories; a mean or a deviation that is needed and that float64 cannot hold).
        """
        found = column_statistics(plan, sums, sample, dictionaries)
        places = {w.index: k for k, w in enumerate(plan.numeric)}
        fields = _kept_fields([c.name for c, r in zip(plan.columns, plan.roles, strict=True) if r == "keep"])
        columns = []
        for index, (column, role) in enumerate(zip(plan.columns, plan.roles, strict=True)):
            name = column.name
            bare = ColumnTransform(
                name, column.type, role, field=fields.get(name), statistics=found.get(name)
            )
            if role == "drop":
                columns.append(bare)
            elif not column.kind.numeric:
                names = dictionaries.get(index, ())
                if role == "feature":  # of a label all rows tell the classes
                    names = [t for t, n in zip(names, sums.counts[index].tolist(), strict=False) if n]
                columns.append(_fit_texts(bare, plan.choices, names))
            else:
                columns.append(_fit_numbers(bare, plan, index, sums, sample[:, places[index]]))
        label = plan.label
        transform = cls(
            tuple(columns),
            np.dtype(plan.choices.dtype).str,
            plan.choices.label,
            label.kind if label else None,
            label.dtype if label else None,
            fit_name,
            dict(reading or {}),
        )
        if len(transform.features) > MAX_FEATURES:
            wide = max(transform.columns, key=lambda c: len(c.outputs))
            raise UsageError(
                f"table: has {len(transform.features):,} features, {len(wide.outputs):,} of them from "
                f"{wide.name!r}; {MAX_FEATURES:,} are allowed. Leave {wide.name!r} out of "
                f"{Option('one_hot')}."
            )
        return transform

    @cached_property
    def features(self) -> tuple[str, ...]:
        """Names of the columns of the field `features`."""
        plain = [name for c in self.columns for name in c.outputs]
        return unique([*plain, *(f"{c.name}.missing" for c in self.columns if c.indicator)])

    @property
    def categories(self) -> tuple[str, ...]:
        """Names of the columns of the field `categories`."""
        return tuple(c.name for c in self.columns if c.coded)

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Names of the label's classes, None if it has none."""
        if self.label_kind != "classes":
            return None
        return self.column(self.label[0]).categories

    def column(self, name: str) -> ColumnTransform:
        """Return the column of that name. Raises KeyError."""
        return self._named[name]

    @cached_property
    def _named(self) -> dict[str, ColumnTransform]:
        return {c.name: c for c in self.columns}

    def fields(self) -> tuple[Field, ...]:
        """Return the fields in order: features, categories, label, kept columns."""
        fields = []
        if self.features:
            fields.append(Field("features", self.dtype, (len(self.features),)))
        if self.categories:
            fields.append(Field("categories", "<i8", (len(self.categories),)))
        if self.label and self.label_dtype:
            shape = () if len(self.label) == 1 else (len(self.label),)
            fields.append(Field("label", self.label_dtype, shape))
        for c in self.columns:
            if c.field is not None and c.kind.kept:
                dtype, about = c.kind.kept
                fields.append(
                    Field(c.field, dtype, None if c.type == "text" else (), {"column": c.name, **about})
                )
        return tuple(fields)

    def plan_for(self, columns: Sequence[TableColumn]) -> ColumnPlan:
        """Plan another table's columns, which are found by name; those that are not known are left out.

        Label and kept columns may be missing: so are their fields then. Raises UsageError if a feature is.
        """
        names = [c.name for c in columns]
        missing = [c.name for c in self.columns if c.role == "feature" and c.name not in names]
        if missing:
            few = ", ".join(map(repr, missing[:10])) + (" and others" if len(missing) > 10 else "")
            raise UsageError(
                f"table: has no column {few}, of which features are made; {nearest(missing[0], names)}."
                " Give the table the columns that the pack was made from."
            )
        label = self.label if all(name in names for name in self.label) else ()
        own = {c.name: c for c in self.columns if c.role != "label" or label}
        known = [own.get(name) for name in names]
        given = self.reading.get("types", {})
        return ColumnPlan(
            tuple(
                TableColumn(
                    c.name, t.type, self.notations.get(c.name, ""), None if c.name in given else c.digits
                )
                if t
                else c
                for c, t in zip(columns, known, strict=True)
            ),
            tuple(t.role if t else "drop" for t in known),
            self.choices,
            LabelField(self.label_kind or "", self.label_dtype or "") if label else None,
            self.class_values if label else None,
        )

    @property
    def choices(self) -> ColumnChoices:
        """The choices that lead to such a transform."""
        features = [c for c in self.columns if c.role == "feature"]
        return ColumnChoices(
            label=self.label,
            label_as="classes" if self.label_kind == "classes" else "auto",
            features=tuple(c.name for c in features),
            keep=tuple(c.name for c in self.columns if c.role == "keep"),
            missing=next((c.missing for c in features if c.missing), "nan"),
            indicators=any(c.indicator for c in features),
            one_hot=tuple(c.name for c in features if c.one_hot),
            standardize=any(c.standardize is not None for c in features),
            log1p=tuple(c.name for c in features if c.log1p),
            dtype=np.dtype(self.dtype).name,
            max_categories=max(
                ColumnChoices.max_categories, *(len(c.categories or ()) for c in self.columns)
            ),
        )

    @cached_property
    def notations(self) -> dict[str, str]:
        """Name of a column -> its notation, one of NOTATIONS, where it has one."""
        given = {name: kind for name, kind in self.reading.get("types", {}).items() if kind in NOTATIONS}
        return {
            c.name: given[c.name]
            for c in self.columns
            if c.name in given and NOTATIONS[given[c.name]].of == c.type
        }

    @property
    def class_values(self) -> tuple[float, ...] | None:
        """Numbers that are the label's classes, rising, int of integers; None if classes are texts, or there are none."""
        if self.label_kind != "classes":
            return None
        c = self.column(self.label[0])
        if c.kind.classes:
            return tuple(map(float, range(len(c.kind.classes))))
        number = int if c.type == "integer" else float
        return tuple(map(number, c.categories or ())) if c.kind.numeric else None

    def measured(
        self,
        plan: ColumnPlan,
        sums: ColumnSums,
        sample: NDArray[np.float64],
        dictionaries: Mapping[int, Sequence[str]],
        fit_name: str = "all",
    ) -> TableTransform:
        """Return the same transform with the statistics of other rows; none for columns that these lack.

        plan: of self.plan; the others: as in fit.
        """
        found = column_statistics(plan, sums, sample, dictionaries)
        columns = tuple(replace(c, statistics=found.get(c.name)) for c in self.columns)
        return replace(self, columns=columns, fit_name=fit_name)

    def known(self, columns: Sequence[TableColumn]) -> dict[int, dict[str, int]]:
        """Return the texts that the label of another table may hold, with their codes: by column number, where they are classes."""
        return {
            i: {text: code for code, text in enumerate(self.classes or ())}
            for i, c in enumerate(columns)
            if self.label_kind == "classes" and c.name in self.label and not self.column(c.name).kind.numeric
        }

    def to_json(self) -> dict[str, Any]:
        """Return the header's member `table`, as plain JSON values."""
        return {
            "columns": [c.to_json() for c in self.columns],
            "features": list(self.features),
            "categories": list(self.categories),
            "dtype": self.dtype,
            "label": {"columns": list(self.label), "kind": self.label_kind, "dtype": self.label_dtype}
            if self.label
            else None,
            "fit": self.fit_name,
            "reading": dict(self.reading),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> TableTransform:
        """Read what to_json wrote, of a record whose form was checked (table_record.py). Raises ValueError."""
        label = record["label"]
        transform = cls(
            tuple(map(ColumnTransform.from_json, record["columns"])),
            record["dtype"],
            () if label is None else tuple(label["columns"]),
            None if label is None else label["kind"],
            None if label is None else label["dtype"],
            record["fit"],
            dict(record["reading"]),
        )
        _check(transform, record)
        return transform


def _fit_texts(column: ColumnTransform, choices: ColumnChoices, names: Sequence[str]) -> ColumnTransform:
    """Fit the transform of a column of texts. names: the different ones, in the rows that count. Raises UsageError if they are too many."""
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


def _fit_numbers(
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
        parts = [(sums.of(index, part), of) for part, of in column.kind.parts.items()]
        scale = ()
        for part, of in parts or [(found, np.positive)]:
            value = 0.0 if fill is None else float(of(np.array([fill]))[0])
            mean, std = part.filled(0 if fill is None else sums.rows - part.count, value)
            scale += (mean, std or 1.0)
    ways = ((Option("missing", choices.missing), (fill,)), (Option("standardize", True), scale or ()))
    for option, needed in ways:
        if not all(x is None or math.isfinite(x) for x in needed):
            raise UsageError(
                f"column {column.name!r}: holds numbers so large, or so close together, that float64 cannot "
                f"tell their mean and deviation, which {option} needs; distances from 1e-140 to 1e140 are "
                f"allowed. Leave the column out with {Option('drop', column.name)}, or give it in another "
                "unit."
            )
    return replace(
        column,
        missing=choices.missing,
        fill=fill,
        indicator=choices.indicators and found.count < sums.rows,
        log1p=log1p,
        standardize=scale,
    )


def _kept_fields(names: Sequence[str]) -> dict[str, str]:
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


def _check(t: TableTransform, record: Mapping[str, Any]) -> None:
    """Raise ValueError if the members of a transform do not go together. record: that it was read from, whose form was checked."""
    kept = _kept_fields([c.name for c in t.columns if c.role == "keep"])
    for c in t.columns:
        feature, scale = c.role == "feature", c.standardize or (0.0, 1.0) * max(1, len(c.kind.parts))
        sound = (
            c.field == kept.get(c.name)
            and (c.role != "keep" or c.kind.kept)
            and (c.missing is not None) == feature
            and (c.role == "label" or (c.categories is not None) == (feature and c.type == "category"))
            and len(scale) == 2 * max(1, len(c.kind.parts))
            and (c.standardize is None or (feature and c.kind.scaled and min(scale[1::2]) > 0))
            and not (feature and (c.type == "text" or (c.one_hot and c.type != "category")))
            and not (c.indicator and not (feature and c.kind.numeric))
            and not (c.log1p and not (feature and c.type == "number"))
        )
        with np.errstate(all="ignore"):
            fill = np.array([c.fill or 0.0])
            stored = np.array([of(fill) for of in c.kind.parts.values()] or [fill]).astype(t.dtype)
        if not sound or (c.standardize is None and not np.isfinite(stored).all()):
            raise ValueError(f"column {c.name[:80]!r} is malformed")
    labels = [c for c in t.columns if c.role == "label"]
    coded = [c.categories is not None for c in labels]
    if t.label_kind == "classes":
        fits = coded == [True] and t.label_dtype == "<i8" and bool(t.classes)
        values = t.class_values or ()  # ValueError where they are no numbers
        fits = fits and all(a < b for a, b in pairwise(values)) and all(abs(x) < 1 << 63 for x in values)
    else:
        fits = (
            not any(coded)
            and all(c.kind.numeric for c in labels)
            and t.label_dtype in (None, "<i8", "<f4", "<f8")
        )
    if (
        not fits
        or t.dtype not in {np.dtype(d).str for d in DTYPES}
        or sorted(t.label) != sorted(c.name for c in labels)
        or (list(t.features), list(t.categories)) != (record["features"], record["categories"])
    ):
        raise ValueError("the columns, the label and the fields do not go together")
