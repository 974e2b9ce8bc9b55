"""Form of the header's member `table`: its required members and their values. Imports nothing from packer.

A record is checked once, when its header is read; code that shows it or computes with it relies on that.
``packer/tables/transform/table_transform.py`` checks that the members are consistent.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

ROLES = ("feature", "label", "keep", "drop")
KINDS = ("number", "integer", "boolean", "date", "time", "timestamp", "category", "text")
_DTYPES = ("<f2", "<f4", "<f8", "|i1", "<i2", "<i4", "<i8", "|u1")  # of the features
MAX_SKIPPED = 1000  # most skipped rows listed in the header; all are counted
POLICIES = ("nan", "error", "mean", "median", "zero")
_NUMBERS, _COUNTS, _TEXTS = frozenset((int, float)), frozenset((int,)), frozenset((str,))


Check = Callable[[Any], bool]


def compiled(form: Any) -> Check:
    """Return the predicate of a form, for forms that many values are checked against; see fits."""
    if isinstance(form, tuple):
        values = frozenset(one for one in form if _is_value(one))
        return partial(_is_one, values, [compiled(one) for one in form if not _is_value(one)])
    if isinstance(form, list):
        item = compiled(form[0])
        return lambda value: isinstance(value, list) and all(map(item, value))
    if isinstance(form, Mapping):
        members = [(name.removesuffix("?"), name[-1:] == "?", compiled(f)) for name, f in form.items()]
        return partial(_has, members)
    if isinstance(form, type):
        return lambda value: type(value) is form or (form is Mapping and isinstance(value, Mapping))
    return form if callable(form) else lambda value: bool(value == form)


def _is_value(form: Any) -> bool:
    return form is None or isinstance(form, str)


def _is_one(values: frozenset[Any], others: list[Check], value: Any) -> bool:
    """Return True for one of the texts or None, and for a value that has one of the other forms."""
    if _is_value(value) and value in values:
        return True
    return any(check(value) for check in others)


def _has(members: list[tuple[str, bool, Check]], value: Any) -> bool:
    """Return True for an object with these members: name, True if it is optional, check of its value."""
    if type(value) is not dict and not isinstance(value, Mapping):
        return False
    for name, optional, check in members:  # noqa: SIM110  # all() takes a third longer
        if not (check(value[name]) if name in value else optional):
            return False
    return True


def fits(value: Any, form: Any) -> bool:
    """Return True if a JSON value has a form.

    form is one of: a type; None or a text, the value itself; a tuple of alternative forms; a list with the
    form of each item; a mapping from an object's members to their forms, where a name that ends in "?" is
    optional; a predicate.
    """
    return bool(compiled(form)(value))


def number(value: Any) -> bool:
    """Return True for a number that a float can hold."""
    return type(value) in _NUMBERS and abs(value) <= sys.float_info.max


def numbers(value: Any) -> bool:
    """Return True for a list of such numbers."""
    return (
        isinstance(value, list)
        and _NUMBERS.issuperset(map(type, value))
        and all(map(sys.float_info.max.__ge__, map(abs, value)))
    )


def texts(value: Any) -> bool:
    """Return True for a list of texts."""
    return isinstance(value, list) and _TEXTS.issuperset(map(type, value))


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _naturals(value: Any) -> bool:
    """Return True for a list of integers, 0 to 2**62 - 1."""
    return isinstance(value, list) and (
        not value or (_COUNTS.issuperset(map(type, value)) and min(value) >= 0 and max(value) < 1 << 62)
    )


def _mark(value: Any) -> bool:
    return type(value) is str and len(value) <= 1


_MAY = (None, number)
_NAMED = compiled({"name": str})
_COLUMN = compiled(
    {
        "type": KINDS,
        "role": ROLES,
        "missing": (None, *POLICIES),
        "fill": _MAY,
        **dict.fromkeys(("indicator", "log1p", "one_hot"), bool),
        "standardize": (None, numbers),
        "categories": (None, texts),
        "field": (None, str),
    }
)
_ROWS = compiled({"rows": _count, "missing": _count})
_DISTINCT = compiled(
    {
        "distinct": _count,
        "counts": [
            lambda pair: type(pair) is list and len(pair) == 2 and type(pair[0]) is str and _count(pair[1])
        ],
    }
)
_NUMERIC = compiled(
    {
        **dict.fromkeys(("mean", "std", "min", "max"), _MAY),
        "integral": bool,
        "quantiles": (None, {"levels": numbers, "values": numbers}),
        "histogram": (None, {"edges": lambda edges: numbers(edges) and len(edges) == 2, "counts": _naturals}),
    }
)
READING: Mapping[str, Any] = {
    "na?": texts,
    "types?": lambda types: isinstance(types, Mapping) and texts(list(types.values())),
    "header?": bool,
    "delimiter?": (None, lambda mark: _mark(mark) and mark != ""),
    "quote?": _mark,
    "decimal?": lambda mark: _mark(mark) and mark != "",
    "thousands?": _mark,
    "encoding?": str,
    "skip_rows?": _count,
    "comment?": (None, _mark),
    "keep_spaces?": bool,
    "escape?": (None, _mark),
}
_SKIPPED = {
    "rows": _count,
    "reasons": lambda reasons: isinstance(reasons, Mapping) and _naturals(list(reasons.values())),
    "first": [{"key": str, "reason": str}],
}
_RECORD: Mapping[str, Mapping[str, Any]] = {  # by their names in messages
    "features": {"features": texts},
    "categories": {"categories": texts},
    "dtype or fit": {"dtype": _DTYPES, "fit": str},
    "label": {
        "label": (
            None,
            {
                "columns": lambda x: texts(x) and len(x) > 0,
                "kind": ("classes", "number"),
                "dtype": str,
                "separator?": str,
            },
        )
    },
    "reading": {"reading": READING},
    "skipped": {"skipped?": _SKIPPED},
}


def check_table(record: Any) -> dict[str, Any]:
    """Check a table's JSON object and return it. Raises ValueError that names the malformed part."""
    _need(isinstance(record, Mapping), "not an object")
    columns = record.get("columns")
    _need(isinstance(columns, list) and len(columns) > 0, "columns")
    for place, column in enumerate(columns):
        _need(_NAMED(column), f"column {place}")
        _check_column(column, f"column {column['name'][:80]!r}")
    names = [c["name"] for c in columns]
    _need(len(set(names)) == len(names), "two columns have the same name")
    for what, form in _RECORD.items():
        _need(fits(record, form), what)
    coded = {c["name"] for c in columns if c["categories"] is not None}
    _need(coded.issuperset(record["categories"]), "categories")
    _need({c["name"] for c in columns if c["role"] == "label"}.issuperset(_label(record)), "label")
    return dict(record)


def _label(record: Mapping[str, Any]) -> Sequence[str]:
    """Return the columns of the label."""
    return () if record["label"] is None else record["label"]["columns"]


def _check_column(column: Mapping[str, Any], name: str) -> None:
    _need(_COLUMN(column), name)
    found, kind = column.get("statistics", 0), column["type"]
    if found is None:
        _need(column["role"] != "feature", f"{name} has no statistics")
        return
    name = f"statistics of {name}"
    _need(_ROWS(found) and found["missing"] <= found["rows"], name)
    if kind == "category" or "distinct" in found:
        _need(_DISTINCT(found), name)
    if kind not in ("category", "text") or "mean" in found:
        _need(_NUMERIC(found), name)
        mean, least, most = (found[member] for member in ("mean", "min", "max"))
        _need((least is None) == (most is None) and (mean is None or least is not None), name)
        quantiles = found["quantiles"]
        _need(quantiles is None or len(quantiles["levels"]) == len(quantiles["values"]), name)


def _need(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"the table is malformed: {what}")
