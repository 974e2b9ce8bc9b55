"""The mapping from raw columns to fields: fitted once, kept in the header, applied to whatever rows come.

Order of arithmetic, in float64: log1p; missing cells filled; standardized, (x - mean) / std; cast. Features come in the order of
their columns, of a timestamp two (whole days since 1970-01-01, and ``.seconds`` since midnight), of a one-hot column one a category;
behind all of them those that tell missing cells. Categories are numbered from 1 by rising text, 0 is for missing and unknown ones.
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.tables import statistics
from packer.tables.columns import RAW_DTYPES, TYPES, Column
from packer.tables.roles import DTYPES, MISSING, SCALED, TEXTS, Choices, Draft, Label, nearest
from packer.tables.statistics import Sums, check_categories

ROLES = ("feature", "label", "keep", "drop")
BOOLEANS = ("false", "true")
MAX_FEATURES = 1 << 16
_TAKEN = ("features", "label", "categories", "key", "image", "packer", "checksums", "header", "trailer")


class FieldSpec(NamedTuple):
    """A field that a table becomes. shape: of a row, None if rows are texts of any length; about: plain JSON."""

    name: str
    dtype: str
    shape: tuple[int, ...] | None
    about: dict[str, Any]


@dataclass(frozen=True)
class Treated:
    """What is done with a column; see Recipe.to_json for its members' names in the header.

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
    def coded(self) -> bool:
        """Whether it is a column of the field `categories`."""
        return self.role == "feature" and self.type == "category" and not self.one_hot

    @property
    def numeric(self) -> bool:
        """Whether it holds numbers."""
        return self.type not in TEXTS

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of its features, but for its indicator."""
        if self.role != "feature" or self.coded:
            return ()
        if self.one_hot:
            return tuple(f"{self.name}={c}" for c in self.categories or ())
        return (self.name, f"{self.name}.seconds") if self.type == "timestamp" else (self.name,)


@dataclass(frozen=True)
class Recipe:
    """A fitted mapping.

    columns: of the input, in order; dtype: of the features, numpy's type string; label: columns, kind and dtype of the field, or
    None; fit_name: the rows whose statistics are used, "all" or a split's name; reading: how text files were read, plain JSON.
    """

    columns: tuple[Treated, ...]
    dtype: str
    label: tuple[str, ...] = ()
    label_kind: str | None = None
    label_dtype: str | None = None
    fit_name: str = "all"
    reading: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def fit(
        cls,
        draft: Draft,
        sums: Sums,
        sample: NDArray[np.float64],
        dictionaries: Mapping[int, Sequence[str]],
        fit_name: str = "all",
        reading: Mapping[str, Any] | None = None,
    ) -> Recipe:
        """Decide what the draft leaves open.

        sums: over the rows that count; sample: float64 [m, draft.numeric], of these rows; dictionaries: column number -> texts of
        the codes, of all rows; fit_name: of the rows that count; reading: how text files were read.
        Raises UsageError (too many categories).
        """
        places = {w.index: k for k, w in enumerate(draft.numeric)}
        fields = _kept_fields(
            [c.name for c, r in zip(draft.columns, draft.roles, strict=True) if r == "keep"]
        )
        columns = []
        for index, (column, role) in enumerate(zip(draft.columns, draft.roles, strict=True)):
            if role == "drop":
                columns.append(Treated(column.name, column.type, role))
            elif column.type in TEXTS:
                columns.append(
                    _fit_texts(draft, index, sums, dictionaries.get(index, ()), fields.get(column.name))
                )
            else:
                columns.append(
                    _fit_numbers(draft, index, sums, sample[:, places[index]], fields.get(column.name))
                )
        label = draft.label
        recipe = cls(
            tuple(columns),
            np.dtype(draft.choices.dtype).str,
            draft.choices.label,
            label.kind if label else None,
            label.dtype if label else None,
            fit_name,
            dict(reading or {}),
        )
        if len(recipe.features) > MAX_FEATURES:
            wide = max(recipe.columns, key=lambda c: len(c.outputs))
            raise UsageError(
                f"table: has {len(recipe.features):,} features, {len(wide.outputs):,} of them from {wide.name!r};"
                f" {MAX_FEATURES:,} are allowed. Leave {wide.name!r} out of --one-hot."
            )
        return recipe

    @cached_property
    def features(self) -> tuple[str, ...]:
        """The names of the columns of the field `features`."""
        plain = (name for c in self.columns for name in c.outputs)
        return (*plain, *(f"{c.name}.missing" for c in self.columns if c.indicator))

    @property
    def categories(self) -> tuple[str, ...]:
        """The names of the columns of the field `categories`."""
        return tuple(c.name for c in self.columns if c.coded)

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of the label's classes."""
        if self.label_kind != "classes":
            return None
        return self.column(self.label[0]).categories

    def column(self, name: str) -> Treated:
        """The column of that name. Raises KeyError."""
        for c in self.columns:
            if c.name == name:
                return c
        raise KeyError(name)

    def fields(self) -> tuple[FieldSpec, ...]:
        """The fields, in order: features, categories, label, kept columns."""
        fields = []
        if self.features:
            fields.append(FieldSpec("features", self.dtype, (len(self.features),), {}))
        if self.categories:
            fields.append(FieldSpec("categories", "<i8", (len(self.categories),), {}))
        if self.label and self.label_dtype:
            shape = () if len(self.label) == 1 else (len(self.label),)
            fields.append(FieldSpec("label", self.label_dtype, shape, {}))
        for c in self.columns:
            if c.field is not None:
                dtype, about = _KEPT[c.type]
                fields.append(
                    FieldSpec(c.field, dtype, None if c.type == "text" else (), {"column": c.name} | about)
                )
        return tuple(fields)

    def draft(self, columns: Sequence[Column]) -> Draft:
        """What becomes of another table's columns, which are found by name; those that are not known are passed over.

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
        treated = [own.get(name) for name in names]
        return Draft(
            tuple(Column(c.name, t.type) if t else c for c, t in zip(columns, treated, strict=True)),
            tuple(t.role if t else "drop" for t in treated),
            self.choices,
            Label(self.label_kind or "", self.label_dtype or "") if label else None,
            self.class_values if label else None,
        )

    @property
    def choices(self) -> Choices:
        """What a user would ask for to get such a recipe."""
        features = [c for c in self.columns if c.role == "feature"]
        return Choices(
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
        )

    @property
    def class_values(self) -> tuple[float, ...] | None:
        """The numbers that are the label's classes, rising; None if classes are texts, or there are none."""
        if self.label_kind != "classes":
            return None
        c = self.column(self.label[0])
        if c.type == "boolean":
            return (0.0, 1.0)
        return tuple(map(float, c.categories or ())) if c.numeric else None

    def known(self, columns: Sequence[Column]) -> dict[int, list[str]]:
        """Number of the label's column in another table -> the texts it may hold, where they are classes."""
        return {
            i: list(self.classes or ())
            for i, c in enumerate(columns)
            if self.label_kind == "classes" and c.name in self.label and not self.column(c.name).numeric
        }

    def to_json(self) -> dict[str, Any]:
        """The header's member `table`, as plain JSON values."""
        return {
            "columns": [
                {
                    "name": c.name,
                    "type": c.type,
                    "role": c.role,
                    "missing": c.missing,
                    "fill": c.fill,
                    "indicator": c.indicator,
                    "log1p": c.log1p,
                    "standardize": None if c.standardize is None else list(c.standardize),
                    "categories": None if c.categories is None else list(c.categories),
                    "one_hot": c.one_hot,
                    "field": c.field,
                    "statistics": None if c.statistics is None else dict(c.statistics),
                }
                for c in self.columns
            ],
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
    def from_json(cls, record: Mapping[str, Any]) -> Recipe:
        """Read what to_json wrote. Raises ValueError."""
        try:
            label = record["label"]
            recipe = cls(
                tuple(_treated(c) for c in record["columns"]),
                str(record["dtype"]),
                () if label is None else tuple(map(str, label["columns"])),
                None if label is None else str(label["kind"]),
                None if label is None else str(label["dtype"]),
                str(record["fit"]),
                dict(record["reading"]),
            )
            recipe._check(record)
        except (KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
            raise ValueError(f"the table is malformed ({error!r})") from None
        return recipe

    def _check(self, record: Mapping[str, Any]) -> None:
        names = [c.name for c in self.columns]
        if len(set(names)) != len(names):
            raise ValueError("two columns have one name")
        if self.dtype not in {np.dtype(d).str for d in DTYPES}:
            raise ValueError(f"features have dtype {self.dtype!r}")
        if [c.name for c in self.columns if c.role == "label"] != sorted(self.label, key=names.index):
            raise ValueError(f"the label is {self.label}")
        if self.label and (
            self.label_kind not in ("classes", "number") or self.label_dtype not in ("<i8", "<f4", "<f8")
        ):
            raise ValueError(f"the label is {self.label_kind} of {self.label_dtype}")
        if self.label_kind == "classes" and (len(self.label) != 1 or not self.classes):
            raise ValueError("the label has no classes")
        if list(self.features) != list(record["features"]):
            raise ValueError("the features are not those of the columns")
        if list(self.categories) != list(record["categories"]):
            raise ValueError("the categories are not those of the columns")
        for c in self.columns:
            wide = 4 if c.type == "timestamp" else 2
            if (
                c.type not in TYPES
                or c.role not in ROLES
                or (c.missing is not None) != (c.role == "feature")
                or (c.missing or "nan") not in MISSING
                or (c.field is not None) != (c.role == "keep")
                or (c.role == "feature" and c.type in ("text", "integer"))
                or (c.role == "feature" and c.type == "category" and c.categories is None)
                or (c.standardize is not None and (len(c.standardize) != wide or c.type not in SCALED))
                or not all(map(math.isfinite, (*(c.standardize or ()), c.fill or 0.0)))
                or not all(c.standardize[1::2] if c.standardize else ())
            ):
                raise ValueError(f"column {c.name!r} is malformed")


_KEPT: dict[str, tuple[str, dict[str, Any]]] = {
    "number": ("<f8", {}),
    "integer": ("<i8", {}),
    "boolean": ("|u1", {}),
    "date": ("<f8", {"unit": "days since 1970-01-01"}),
    "time": ("<f8", {"unit": "seconds since midnight"}),
    "timestamp": ("<f8", {"unit": "seconds since 1970-01-01T00:00:00Z"}),
    "text": ("|u1", {"encoding": "utf-8"}),
}


def _fit_texts(draft: Draft, index: int, sums: Sums, names: Sequence[str], field: str | None) -> Treated:
    column, role, choices = draft.columns[index], draft.roles[index], draft.choices
    missing = sums.missing.get(index, 0)
    if column.type == "text":
        found = {"rows": sums.rows, "missing": missing}
        return Treated(column.name, column.type, role, field=field, statistics=found)
    check_categories(column.name, len(names), choices.max_categories, role)
    found = statistics.of_categories(sums.rows, missing, names, sums.counts.get(index, np.zeros(0, np.int64)))
    return Treated(
        column.name,
        column.type,
        role,
        missing=choices.missing if role == "feature" else None,
        categories=tuple(sorted(names)),
        one_hot=role == "feature" and (choices.one_hot == "all" or column.name in choices.one_hot),
        statistics=found,
    )


def _fit_numbers(
    draft: Draft, index: int, sums: Sums, sample: NDArray[np.float64], field: str | None
) -> Treated:
    column, role, choices = draft.columns[index], draft.roles[index], draft.choices
    found = sums.of(index)
    record = statistics.of_numbers(sums.rows, found, sample)
    treated = Treated(column.name, column.type, role, field=field, statistics=record)
    if role == "label" and draft.label is not None and draft.label.kind == "classes":
        if column.type == "boolean":
            return replace(treated, categories=BOOLEANS)
        values = sums.values.get(index, np.zeros(0))
        return replace(treated, categories=tuple(map(_shortest, values.tolist())))
    if role != "feature":
        return treated
    log1p = column.name in choices.log1p
    if log1p:
        found = sums.of(index, "log1p")
        sample = np.log1p(sample)
    fill = {"mean": found.mean, "zero": 0.0}.get(choices.missing)
    if choices.missing == "median":
        present = sample[~np.isnan(sample)]
        fill = float(np.median(present)) if len(present) else 0.0
    scale: tuple[float, ...] | None = None
    if choices.standardize and column.type in SCALED:
        parts = [found]
        if column.type == "timestamp":
            parts = [sums.of(index, "days"), sums.of(index, "seconds")]
        scale = tuple(x for p in parts for x in (p.mean, p.std or 1.0))
    return replace(
        treated,
        missing=choices.missing,
        fill=fill,
        indicator=choices.indicators and found.count < sums.rows,
        log1p=log1p,
        standardize=scale,
    )


def _kept_fields(names: Sequence[str]) -> dict[str, str]:
    """Names of fields for kept columns: all different, whatever the file system makes of capitals."""
    fields: dict[str, str] = {}
    taken = set(_TAKEN)
    for name in names:
        field = base = _field_name(name)
        number = 2
        while field.casefold() in taken:
            field = f"{base}_{number}"
            number += 1
        taken.add(field.casefold())
        fields[name] = field
    return fields


def _field_name(name: str) -> str:
    field = re.sub(r"[^A-Za-z0-9_]", "_", name)
    if not re.match(r"[A-Za-z]", field):
        field = f"column_{field}"
    return f"{field}_" if keyword.iskeyword(field) else field


def _shortest(value: float) -> str:
    """The shortest text of a number: "3" for 3.0."""
    return str(int(value)) if value.is_integer() and abs(value) < 1e16 else repr(value)


def _treated(record: Mapping[str, Any]) -> Treated:
    """A column of the header's member `table`."""
    name, kind, role = record["name"], record["type"], record["role"]
    flags = [record[key] for key in ("indicator", "log1p", "one_hot")]
    optional = [record[key] for key in ("missing", "field")]
    categories, scale = record["categories"], record["standardize"]
    if (
        not all(type(x) is str for x in (name, kind, role, *(categories or ())))
        or not all(type(x) is bool for x in flags)
        or not all(x is None or type(x) is str for x in optional)
        or kind not in RAW_DTYPES
    ):
        raise ValueError(f"column {name!r} is malformed")
    return Treated(
        name,
        kind,
        role,
        record["missing"],
        None if record["fill"] is None else float(record["fill"]),
        record["indicator"],
        record["log1p"],
        None if scale is None else tuple(map(float, scale)),
        None if categories is None else tuple(categories),
        record["one_hot"],
        record["field"],
        None if record["statistics"] is None else dict(record["statistics"]),
    )
