"""The check of a transform that was read from a header: its members must go together.

``packer/format/table_record.py`` checks that they are there, and of what types.
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from packer.tables.transform.column_plan import DTYPES
from packer.tables.transform.column_types import MISSING_INTEGER

if TYPE_CHECKING:
    from packer.tables.transform.table_transform import ColumnTransform, TableTransform

MAX_NAME = 100  # characters of a field's name
TAKEN = ("features", "label", "categories", "key", "image", "packer", "checksums", "header", "trailer")


def check_transform(t: TableTransform, record: Mapping[str, Any]) -> None:
    """Raise ValueError if the members do not go together. record: that it was read from."""
    if t.dtype not in {np.dtype(d).str for d in DTYPES}:
        raise ValueError(f"features have dtype {t.dtype!r}")
    whole = np.dtype(t.dtype).kind in "iu"
    for c in t.columns:
        fill = c.fill if c.fill is not None and c.standardize is None else 0.0
        parts = [of(np.array([fill])) for of in c.kind.parts.values()] or [np.array([fill])]
        with np.errstate(over="ignore", invalid="ignore"):
            stored = np.concatenate(parts).astype(t.dtype)
        if not _sound(c, whole) or (whole and fill) or not np.isfinite(stored).all():
            raise ValueError(f"column {c.name[:80]!r} is malformed")
    if len({c.missing for c in t.columns if c.role == "feature"}) > 1:
        raise ValueError("missing cells become one thing in some columns, another in others")
    labels = [c for c in t.columns if c.role == "label"]
    if sorted(t.label) != sorted(c.name for c in labels):
        raise ValueError("the label is not that of the columns")
    if labels and not _sound_label(labels, t.label_kind, t.label_dtype):
        raise ValueError("the label is malformed")
    if list(t.features) != list(record["features"]):
        raise ValueError("the features are not those of the columns")
    if list(t.categories) != list(record["categories"]):
        raise ValueError("the categories are not those of the columns")
    fields = [c.field.casefold() for c in t.columns if c.field is not None]
    if len({*fields, *TAKEN}) != len(fields) + len(TAKEN):
        raise ValueError("two fields have one name")


def _sound(c: ColumnTransform, whole: bool) -> bool:
    """Tell whether the members of a transform go together. whole: features hold whole numbers."""
    feature, coded, scaled = c.role == "feature", c.type == "category", c.standardize is not None
    if feature:
        ways = (
            c.type != "text"
            and (c.type != "integer" or whole)
            and (c.missing != "zero" or c.fill in (0, None))
            and (coded or not (whole and (c.log1p or scaled or c.missing in ("mean", "median"))))
            and (coded or not c.one_hot)
            and coded == (c.categories is not None)
            and (not c.log1p or c.type == "number")
            and not (coded and (c.indicator or scaled))
        )
    else:
        ways = not (c.indicator or c.log1p or c.one_hot or scaled)
    named = c.field is None or (
        re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", c.field)
        and not keyword.iskeyword(c.field)
        and len(c.field) <= MAX_NAME
        and c.kind.kept
    )
    return bool(
        ways
        and named
        and (c.missing is not None) == feature
        and (c.field is not None) == (c.role == "keep")
        and (c.fill is not None) == (feature and c.kind.numeric and c.missing in ("mean", "median", "zero"))
        and (c.categories is None or len(set(c.categories)) == len(c.categories))
        and (c.standardize is None or _sound_scale(c, c.standardize))
    )


def _sound_scale(c: ColumnTransform, scale: Sequence[float]) -> bool:
    wide = 2 * max(1, len(c.kind.parts))
    return c.kind.scaled and len(scale) == wide and all(x > 0 for x in scale[1::2])


def _sound_label(columns: Sequence[ColumnTransform], kind: str | None, dtype: str | None) -> bool:
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
