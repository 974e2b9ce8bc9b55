"""Which rows cannot be mapped, whatever the other rows hold: found right after reading, before anything is stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.tables.transform.columns import MISSING_CATEGORY, MISSING_INTEGER
from packer.tables.transform.records import MAX_BAD, Bad, Wanted


@dataclass(frozen=True)
class CellRule:
    """What a column's cells must be. wanted: how it is read; missing: what is wrong with a missing cell, None if nothing is;
    log1p: whether it is taken of them; dtype: what cells must fit into as they are, None if that is not known; classes: the numbers
    that cells may be, rising, None if they may be any; of integers int, compared exactly.
    """

    wanted: Wanted
    missing: str | None = None
    log1p: bool = False
    dtype: np.dtype[Any] | None = None
    classes: tuple[float, ...] | None = None

    @property
    def vain(self) -> bool:
        """Whether no cell can break it."""
        return self.missing is None and not self.log1p and self.dtype is None and self.classes is None


def rule_of(
    wanted: Wanted,
    role: str,
    policy: str | None,
    log1p: bool,
    standardize: bool,
    dtype: np.dtype[Any],
    classes: tuple[float, ...] | None = None,
) -> CellRule:
    """The rule of a column. policy: for missing cells of features; dtype: of the field the column becomes."""
    kind = wanted.column.type
    numeric = kind not in ("category", "text")
    missing = None
    if role == "label":
        missing = "is missing; a label is needed"
    elif role == "keep" and kind in ("integer", "boolean"):
        missing = f"is missing, for which a kept {kind} column has no value"
    elif role == "feature" and policy == "error":
        missing = "is missing"
    elif role == "feature" and numeric and policy == "nan" and dtype.kind in "iu":
        missing = f"is missing, for which {dtype.name} has no value"
    if role == "keep" or not numeric or log1p or standardize or wanted.dtype == dtype or dtype.kind == "O":
        return CellRule(wanted, missing, log1p, classes=classes)
    if kind in ("integer", "boolean") and dtype.kind == "f":
        return CellRule(wanted, missing)
    return CellRule(wanted, missing, dtype=dtype)


def bad_rows(
    records: NDArray[Any], rules: Sequence[CellRule], most: int = MAX_BAD
) -> tuple[NDArray[np.bool_] | None, list[Bad]]:
    """Find the rows that break a rule.

    records: [n] with the members that the rules name. Returns: bool [n], None if no row does; and at most `most` of them, by rising
    row, as Bad: `line` is the row, counted from 0.
    """
    mask: NDArray[np.bool_] | None = None
    found: list[Bad] = []
    for rule in rules:
        x = records[rule.wanted.name]
        for wrong, reason in _wrong(x, rule):
            if wrong.any():
                mask = wrong.copy() if mask is None else mask | wrong
                rows = np.flatnonzero(wrong)[:most].tolist()
                found += (Bad(row, rule.wanted.index, _text(x[row], rule), reason) for row in rows)
    found.sort(key=lambda bad: (bad.line, bad.column))
    return mask, found[:most]


def is_missing(x: NDArray[Any], kind: str) -> NDArray[np.bool_]:
    """Which cells of a raw array of that type of column are missing: bool [n]."""
    if kind == "text":
        return np.asarray(x["length"] == 0)
    if kind == "category":
        return np.asarray(x == MISSING_CATEGORY)
    if kind == "integer":
        return np.asarray(x == MISSING_INTEGER)
    return np.asarray(np.isnan(x))


def _wrong(x: NDArray[Any], rule: CellRule) -> list[tuple[NDArray[np.bool_], str]]:
    found: list[tuple[NDArray[np.bool_], str]] = []
    if rule.missing is not None:
        found.append((is_missing(x, rule.wanted.column.type), rule.missing))
    if rule.log1p:
        found.append((x <= -1, "has no log1p; numbers above -1 have one"))
    if rule.dtype is not None:
        parts = [x]
        if rule.wanted.column.type == "timestamp":  # they become whole days, and seconds since midnight
            days = np.floor(x / 86_400)
            parts = [days, x - days * 86_400]
        for part in parts:
            found += _misfits(part, rule.dtype)
    if rule.classes is not None:
        known = np.isin(x, np.array(rule.classes, x.dtype)) | is_missing(x, rule.wanted.column.type)
        found.append((~known, "is none of the label's classes"))
    return found


def _misfits(x: NDArray[Any], dtype: np.dtype[Any]) -> list[tuple[NDArray[np.bool_], str]]:
    """Which present numbers a dtype has no value for."""
    if dtype.kind == "f":
        with np.errstate(all="ignore"):
            return [(np.isinf(x.astype(dtype)), f"is beyond {dtype.name}")]
    limits = np.iinfo(dtype)
    # 2.0**63 is no int64, but what its largest becomes as a float.
    beyond = (x < limits.min) | (x >= float(limits.max) + 1)
    found = [(beyond, f"is beyond {dtype.name} ({limits.min} to {limits.max})")]
    if x.dtype.kind == "i":
        beyond &= x != MISSING_INTEGER
    else:
        found.append((~beyond & ~np.isnan(x) & (x != np.trunc(x)), "is not a whole number"))
    return found


def _text(value: Any, rule: CellRule) -> str:
    """A raw value for a message; "" if it is missing or stands for a text."""
    kind = rule.wanted.column.type
    if kind in ("category", "text") or is_missing(np.asarray([value]), kind)[0]:
        return ""
    if kind == "integer":
        return str(int(value))
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e16 else repr(float(value))
