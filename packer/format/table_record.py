"""Form of the header's member `table`: its required members and their values. Imports nothing from packer.

A record is checked once, when its header is read; code that shows it or computes with it relies on that.
``packer/tables/transform/table_transform.py`` checks that the members are consistent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import isfinite
from types import NoneType
from typing import Any

ROLES = ("feature", "label", "keep", "drop")
KINDS = ("number", "integer", "boolean", "date", "time", "timestamp", "category", "text")
_DTYPES = ("<f2", "<f4", "<f8", "|i1", "<i2", "<i4", "<i8", "|u1")  # of the features
MAX_SKIPPED = 1000  # most skipped rows listed in the header; all are counted
POLICIES = ("nan", "error", "mean", "median", "zero")
_NUMBERS, _COUNTS, _TEXTS = frozenset((int, float)), frozenset((int,)), frozenset((str,))
_PLAIN = frozenset((str, NoneType))


Check = Callable[[Any], bool]


@dataclass(frozen=True)
class Each:
    """A form of values that are checked at once. check: returns True if all of them have it."""

    check: Callable[[Sequence[Any]], bool]


def fits(value: Any, form: Any) -> bool:
    """Return True if a JSON value has a form.

    form is one of: a type; None or a text, the value itself; a tuple of alternative forms; a list with the
    form of each item; a mapping from an object's members to their forms, where a name that ends in "?" is
    optional; a predicate; an Each.
    """
    return all_fit([value], form)


def all_fit(values: Sequence[Any], form: Any) -> bool:
    """Return True if all JSON values have a form: equal parts of many objects are checked at once."""
    if not values:
        return True
    kinds = {*map(type, values)}
    if isinstance(form, tuple):
        own = {one for one in form if type(one) in _PLAIN}
        others = [one for one in form if type(one) not in _PLAIN]
        rest = [value for value in values if type(value) not in _PLAIN or value not in own]
        if len(others) < 2:
            return not rest or (bool(others) and all_fit(rest, others[0]))
        return all(any(all_fit([value], one) for one in others) for value in rest)
    if isinstance(form, list):
        return kinds <= {list} and all_fit([*chain.from_iterable(values)], form[0])
    if isinstance(form, Mapping):
        if not all(issubclass(kind, Mapping) for kind in kinds):
            return False
        for name, inner in form.items():
            key = name.removesuffix("?")
            held = [value[key] for value in values if key in value]
            if (len(held) < len(values) and key == name) or not all_fit(held, inner):
                return False
        return True
    if isinstance(form, type):
        return kinds <= {form} or (form is Mapping and all(issubclass(kind, Mapping) for kind in kinds))
    if isinstance(form, Each):
        return form.check(values)
    return all(map(form, values)) if callable(form) else all(value == form for value in values)


def numbers(value: Any) -> bool:
    """Return True for a list of numbers that a float can hold."""
    return isinstance(value, list) and _are_numbers(value)


def _are_numbers(values: Sequence[Any]) -> bool:
    try:
        return _NUMBERS.issuperset(map(type, values)) and all(map(isfinite, values))
    except OverflowError:  # of an integer
        return False


def texts(value: Any) -> bool:
    """Return True for a list of texts."""
    return isinstance(value, list) and _TEXTS.issuperset(map(type, value))


def _are_counts(values: Sequence[Any]) -> bool:
    return _COUNTS.issuperset(map(type, values)) and min(values) >= 0 and max(values) < 1 << 62


def _mark(value: Any) -> bool:
    return type(value) is str and len(value) <= 1


_NUMBER, _COUNT = Each(_are_numbers), Each(_are_counts)
_MAY = (None, _NUMBER)
_COLUMN = {
    "name": str,
    "type?": KINDS,
    "role?": ROLES,
    "missing?": (None, *POLICIES),
    "fill?": _MAY,
    **dict.fromkeys(("indicator?", "log1p?", "one_hot?"), bool),
    "standardize?": (None, [_NUMBER]),
    "categories?": (None, [str]),
    "field?": (None, str),
}
_USUAL: dict[str, Any] = {
    **{"type": "number", "role": "feature", "missing": "nan"},
    **dict.fromkeys(("fill", "standardize", "categories", "field", "statistics")),
    **dict.fromkeys(("indicator", "log1p", "one_hot"), False),
}
"""Members of a column that the header's JSON leaves out, because most columns of a wide table have them."""
_ROWS = {"rows": _COUNT, "missing": _COUNT}
_DISTINCT = {
    "distinct": _COUNT,
    "counts": [
        lambda pair: type(pair) is list and [*map(type, pair)] == [str, int] and _are_counts(pair[1:])
    ],
}
_NUMERIC = {
    **dict.fromkeys(("mean", "std", "min", "max"), _MAY),
    "integral": bool,
    "histogram?": {
        "edges": Each(lambda ends: all_fit(ends, [_NUMBER]) and {*map(len, ends)} == {2}),
        "counts": [_COUNT],
    },
}
READING: Mapping[str, Any] = {
    "na?": texts,
    "types?": lambda types: isinstance(types, Mapping) and texts(list(types.values())),
    "header?": bool,
    "delimiter?": (None, lambda mark: _mark(mark) and mark != ""),
    "quote?": _mark,
    "decimal?": lambda mark: _mark(mark) and mark != "",
    "thousands?": _mark,
    "encoding?": str,
    "skip_rows?": _COUNT,
    "comment?": (None, _mark),
    "keep_spaces?": bool,
    "escape?": (None, _mark),
}
_SKIPPED = {
    "rows": _COUNT,
    "reasons": lambda reasons: isinstance(reasons, Mapping) and fits([*reasons.values()], [_COUNT]),
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


def without_usual(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table's record as it stands in the header's JSON, for check_table."""
    columns = [
        {name: value for name, value in column.items() if name not in _USUAL or value != _USUAL[name]}
        for column in record["columns"]
    ]
    return {**record, "columns": columns}


def check_table(record: Any) -> dict[str, Any]:
    """Check a table's JSON object and return it, with the members that without_usual leaves out.

    Raises ValueError that names the malformed part.
    """
    _need(isinstance(record, Mapping), "not an object")
    columns = record.get("columns")
    _need(isinstance(columns, list) and len(columns) > 0, "columns")
    if _malformed(columns):
        for place, column in enumerate(columns):
            named = fits(column, {"name": str})
            name = repr(column["name"][:80]) if named else place
            _need(not (what := _malformed([column])), what.replace("{}", f"column {name}"))
    table: dict[str, Any] = {**record, "columns": [{**_USUAL, **column} for column in columns]}
    columns = table["columns"]
    names = [c["name"] for c in columns]
    _need(len(set(names)) == len(names), "two columns have the same name")
    for what, form in _RECORD.items():
        _need(fits(table, form), what)
    coded = {c["name"] for c in columns if c["categories"] is not None}
    _need(coded.issuperset(table["categories"]), "categories")
    _need({c["name"] for c in columns if c["role"] == "label"}.issuperset(_label(table)), "label")
    return table


def _label(record: Mapping[str, Any]) -> Sequence[str]:
    """Return the columns of the label."""
    return () if record["label"] is None else record["label"]["columns"]


def _malformed(columns: Sequence[Any]) -> str:
    """Return what is malformed in one of some columns, with {} for the column; "" if nothing is."""
    if not all_fit(columns, _COLUMN):
        return "{}"
    pairs = [(column, column.get("statistics")) for column in columns]
    if any(found is None and column.get("role", "feature") == "feature" for column, found in pairs):
        return "{} has no statistics"
    given = [(column.get("type", "number"), found) for column, found in pairs if found is not None]
    measured = [found for _, found in given]
    fine = all_fit(measured, _ROWS) and all(found["missing"] <= found["rows"] for found in measured)
    if fine:
        counted = [found for kind, found in given if kind == "category" or "distinct" in found]
        numeric = [found for kind, found in given if kind not in ("category", "text") or "mean" in found]
        fine = all_fit(counted, _DISTINCT) and all_fit(numeric, _NUMERIC) and all(map(_is_sound, numeric))
    return "" if fine else "statistics of {}"


def _is_sound(found: Mapping[str, Any]) -> bool:
    """Return True if the statistics of numbers, which have their form, do not contradict each other."""
    return (found["min"] is None) == (found["max"] is None) and (
        found["mean"] is None or found["min"] is not None
    )


def _need(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"the table is malformed: {what}")
