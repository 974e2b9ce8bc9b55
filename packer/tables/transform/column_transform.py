"""What is done with one column of a table, and the names of the fields and features it becomes."""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from packer.tables.transform.column_plan import SCALED, TEXTS
from packer.tables.transform.columns import MISSING_INTEGER

BOOLEANS = ("false", "true")

MAX_NAME = 100  # characters of a field's name

TAKEN = ("features", "label", "categories", "key", "image", "packer", "checksums", "header", "trailer")

KEPT: dict[str, tuple[str, dict[str, Any]]] = {
    "number": ("<f8", {}),
    "integer": ("<i8", {}),
    "boolean": ("|u1", {}),
    "date": ("<f8", {"unit": "days since 1970-01-01"}),
    "time": ("<f8", {"unit": "seconds since midnight"}),
    "timestamp": ("<f8", {"unit": "seconds since 1970-01-01T00:00:00Z"}),
    "text": ("|u1", {"encoding": "utf-8"}),
}


@dataclass(frozen=True)
class ColumnTransform:
    """What is done with a column; see TableTransform.to_json for its members' names in the header.

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
        """The names of its features, but for its indicator; TableTransform.features tells equal ones apart."""
        if self.role != "feature" or self.coded:
            return ()
        if self.one_hot:
            return tuple(f"{self.name}={c}" for c in self.categories or ())
        return (self.name, f"{self.name}.seconds") if self.type == "timestamp" else (self.name,)


def column_transform_of(record: Mapping[str, Any]) -> ColumnTransform:
    """A column of the header's member `table`, which has been checked."""
    categories, scale = record["categories"], record["standardize"]
    return ColumnTransform(
        record["name"],
        record["type"],
        record["role"],
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


def sound(c: ColumnTransform, whole: bool) -> bool:
    """Whether what is done with a column goes together. whole: features hold whole numbers."""
    feature = c.role == "feature"
    if (
        (c.missing is not None) != feature
        or (c.field is not None) != (c.role == "keep")
        or (c.fill is not None) != (feature and c.numeric and c.missing in ("mean", "median", "zero"))
        or (c.categories is not None and len(set(c.categories)) != len(c.categories))
    ):
        return False
    if c.field is not None and not (
        re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", c.field)
        and not keyword.iskeyword(c.field)
        and len(c.field) <= MAX_NAME
        and c.type in KEPT
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
    wide = 4 if c.type == "timestamp" else 2
    return (
        not c.one_hot
        and c.categories is None
        and (not c.log1p or c.type == "number")
        and (
            c.standardize is None
            or (c.type in SCALED and len(c.standardize) == wide and all(x > 0 for x in c.standardize[1::2]))
        )
    )


def sound_label(columns: Sequence[ColumnTransform], kind: str | None, dtype: str | None) -> bool:
    """Whether columns can be a label of that kind and dtype."""
    if kind == "number":
        whole = all(c.type in ("integer", "boolean") for c in columns)
        numeric = all(c.numeric and c.categories is None for c in columns)
        return numeric and dtype in (("<i8", "<f4", "<f8") if whole else ("<f4", "<f8"))
    (c,) = columns if len(columns) == 1 else (None,)
    if kind != "classes" or dtype != "<i8" or c is None or not c.categories:
        return False
    if c.type == "boolean":
        return c.categories == BOOLEANS
    values: Sequence[Any] = c.categories
    if c.type in ("number", "integer"):
        try:
            values = [int(x) if c.type == "integer" else float(x) for x in c.categories]
        except ValueError:
            return False
        ends = (MISSING_INTEGER, -MISSING_INTEGER) if c.type == "integer" else (-math.inf, math.inf)
        if not all(ends[0] < x < ends[1] for x in values):
            return False
    return c.type in ("number", "integer", "category") and all(a < b for a, b in pairwise(values))


def unique(names: Sequence[str]) -> tuple[str, ...]:
    """The names, all different: of equal ones the second is `name.1`, the third `name.2`."""
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
    """Names of fields for kept columns: all different, whatever the file system makes of capitals."""
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
