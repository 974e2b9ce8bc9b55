"""Numbers that the features' dtype cannot hold: found in the first rows, and by the largest of all; told in a sentence a column.

float32 has 24 bits: of whole numbers it holds all to 16,777,216, and beyond only some, so that identifiers, seconds since 1970 and
phone numbers become equal to their neighbours. Rounded fractions are the rule and no news, unless different ones become equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.sentence import Option, Sentence
from packer.tables.transform.column_plan import ColumnPlan, as_category
from packer.tables.transform.records import MISSING_INTEGER, RecordLayout, RecordMember, TableColumn

_FRACTIONS = 2000  # rows in which different fractions are counted; whole numbers are in all rows
_APART = 0.9  # of different fractions that must stay different
_FLOAT = ("number", "integer")


def sought(plan: ColumnPlan, columns: tuple[TableColumn, ...]) -> RecordLayout:
    """The columns that become numbers of a float dtype, as they must be read to be compared with what they become.

    columns: of the input, with the types they have there, which a plan may have changed.
    """
    return RecordLayout(
        tuple(
            RecordMember(w.index, columns[w.index])
            for w in plan.numeric
            if columns[w.index].type in _FLOAT and target(plan, w.index) is not None
        )
    )


def target(plan: ColumnPlan, index: int) -> np.dtype[Any] | None:
    """The float dtype that must tell a column's numbers apart: of its field; None if they become whole numbers, or none."""
    role, column = plan.roles[index], plan.columns[index]
    if role == "feature" and column.type in _FLOAT:
        dtype = np.dtype(plan.choices.dtype)
        if dtype.kind == "f" and plan.choices.standardize:  # what is told apart in float64 stays apart
            return np.dtype(np.float64)
        return dtype if dtype.kind == "f" else None
    if role == "label" and plan.label is not None and plan.label.kind == "number":
        dtype = np.dtype(plan.label.dtype)
        return dtype if dtype.kind == "f" else None
    return None


def notes_on_first(plan: ColumnPlan, layout: RecordLayout, records: NDArray[Any]) -> dict[int, str]:
    """Say which columns lose digits that tell their values apart, by the first rows.

    layout: of `sought`; records: [n] of it. Returns: number of a column -> a sentence.
    """
    found = {}
    for w in layout.members:
        dtype = target(plan, w.index)
        x = records[w.name]
        x = x[x != MISSING_INTEGER] if x.dtype.kind == "i" else x[np.isfinite(x)]
        if dtype is None or not len(x):
            continue
        log1p = plan.roles[w.index] == "feature" and w.column.name in plan.choices.log1p
        if (said := _said(plan, w, x, dtype, log1p)) is not None:
            found[w.index] = said
    return found


def notes_on_largest(
    plan: ColumnPlan, columns: tuple[TableColumn, ...], largest: Mapping[int, float], known: Mapping[int, str]
) -> list[str]:
    """Say which columns of whole numbers go beyond what their dtype holds, by the largest of all rows.

    columns: as in sought; largest: number of a column -> the largest distance from 0, as stored; known: those of which it was said.
    """
    notes: list[str] = []
    for index, most in largest.items():
        dtype = target(plan, index)
        if dtype is None or columns[index].type != "integer" or index in known:
            continue
        if columns[index].name in plan.choices.log1p:
            continue
        limit = 1 << (np.finfo(dtype).nmant + 1)
        if most >= limit:
            notes.append(
                f"column {columns[index].name!r} holds whole numbers up to about {most:,.0f}; {dtype.name} holds all of them only to"
                f" {limit:,}, and rounds larger ones. " + _remedy(plan, index, dtype, most < 1 << 53)
            )
    return notes


def _said(
    plan: ColumnPlan, w: RecordMember, x: NDArray[Any], dtype: np.dtype[Any], log1p: bool
) -> str | None:
    whole = not log1p and bool(x.dtype.kind == "i" or (x == np.trunc(x)).all())
    if not whole:
        x = x[:_FRACTIONS]
    with np.errstate(all="ignore"):
        stored = (np.log1p(x) if log1p else x).astype(dtype)
    changed = _changed(x, stored)
    if not changed.any():
        return None
    before, after = len(np.unique(x)), len(np.unique(stored))
    if not whole and after >= _APART * before:
        return None
    at = int(np.argmax(changed))
    what = "whole numbers" if whole else "numbers"
    logs = "whose logarithms" if log1p else "that"
    fine = (
        bool((~_changed(x, x.astype(np.float64))).all())
        if whole
        else len(np.unique(x.astype(np.float64))) > after
    )
    one, other = _shown(x[at]), _shown(stored[at])
    example = f", {one} becomes {other}" if not log1p else ""
    return (
        f"column {w.column.name!r} holds {what} {logs} {dtype.name} rounds: {before:,} different ones in the first {len(x):,} rows"
        f" become {after:,}{example}. " + _remedy(plan, w.index, dtype, fine and not log1p)
    )


def _changed(x: NDArray[Any], stored: NDArray[Any]) -> NDArray[np.bool_]:
    """Which whole numbers are stored as others. Compared exactly, those beyond float64 too."""
    wide = stored.astype(np.float64)
    if x.dtype.kind != "i":
        return np.asarray(wide != x)
    inside = np.abs(wide) < 2.0**63
    return np.asarray(~inside | (np.where(inside, wide, 0.0).astype(np.int64) != x))


def _remedy(plan: ColumnPlan, index: int, dtype: np.dtype[Any], fine: bool) -> Sentence:
    """Return what can be done. fine: float64 holds the numbers."""
    name = plan.columns[index].name
    wider = Sentence()
    if fine and dtype.itemsize < 8:
        wider = Option("dtype", "float64") + " stores them as they are"
    if plan.roles[index] == "label":
        if wider:
            return "If that matters, " + wider + "."
        return "float64 is the widest; " + Option("label_as", "classes") + " tells them apart."
    ways = Option("keep", name) + ", " + Option("drop", name) + " or " + as_category(name)
    return "If they are identifiers or times, pass " + ways + ("; " if wider else "") + wider + "."


def _shown(value: Any) -> str:
    number = value.item()
    whole = isinstance(number, int) or (np.isfinite(number) and number == int(number))
    return str(int(number)) if whole else str(value)
