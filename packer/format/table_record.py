"""The form of the header's member `table`: the members there must be, and their types. Imports nothing of packer.

It is checked once, where a header is read, so that whoever shows the record or computes with it need not look again.
``packer/tables/transform/table_transform.py`` checks that the members go together.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

ROLES = ("feature", "label", "keep", "drop")
KINDS = ("number", "integer", "boolean", "date", "time", "timestamp", "category", "text")
POLICIES = ("nan", "error", "mean", "median", "zero")
_NUMBERS = ("mean", "std", "min", "max")


def check_table(record: Any) -> None:
    """Check a table's JSON object. Raises ValueError, which says what is malformed."""
    _need(isinstance(record, Mapping), "no object")
    columns = record.get("columns")
    _need(isinstance(columns, list) and len(columns) > 0, "columns")
    for place, column in enumerate(columns):
        _need(isinstance(column, Mapping) and type(column.get("name")) is str, f"column {place}")
        _check_column(column, f"column {column['name'][:80]!r}")
    names = [c["name"] for c in columns]
    _need(len(set(names)) == len(names), "two columns have one name")
    for member in ("features", "categories"):
        _need(_texts(record.get(member)), member)
    _need(all(type(record.get(member)) is str for member in ("dtype", "fit")), "dtype or fit")
    label = record.get("label", 0)
    _need(
        label is None
        or (
            isinstance(label, Mapping)
            and _texts(label.get("columns"))
            and type(label.get("kind")) is str
            and type(label.get("dtype")) is str
        ),
        "label",
    )
    reading = record.get("reading")
    _need(isinstance(reading, Mapping) and _texts(reading.get("na", [])), "reading")
    types = reading.get("types", {})
    _need(isinstance(types, Mapping) and _texts(list(types.values())), "reading")
    marks = reading.get("decimal", "."), reading.get("thousands", "")
    _need(_texts(list(marks)) and len(marks[0]) == 1 and len(marks[1]) <= 1, "reading")
    skipped = record.get("skipped")
    if skipped is not None:
        _check_skipped(skipped)
    _need(_finite(record), "a number is not finite")


def _check_column(column: Mapping[str, Any], name: str) -> None:
    scale, categories, found = (column.get(m, 0) for m in ("standardize", "categories", "statistics"))
    fill = column.get("fill", "")
    _need(
        column.get("type") in KINDS
        and column.get("role") in ROLES
        and column.get("missing", 0) in (None, *POLICIES)
        and (fill is None or _number(fill))
        and all(type(column.get(member)) is bool for member in ("indicator", "log1p", "one_hot"))
        and (scale is None or (isinstance(scale, list) and all(map(_number, scale))))
        and (categories is None or _texts(categories))
        and type(column.get("field", 0)) in (str, type(None)),
        name,
    )
    if found is None:
        _need(column["role"] != "feature", f"{name} has no statistics")
    else:
        _check_statistics(found, column["type"], f"statistics of {name}")


def _check_statistics(found: Any, kind: str, name: str) -> None:
    _need(isinstance(found, Mapping) and _count(found.get("rows")) and _count(found.get("missing")), name)
    _need(found["missing"] <= found["rows"], name)
    if kind == "category" or "distinct" in found:
        counts = found.get("counts")
        _need(_count(found.get("distinct")) and isinstance(counts, list), name)
        for pair in counts:
            _need(
                isinstance(pair, list) and len(pair) == 2 and type(pair[0]) is str and _count(pair[1]), name
            )
    if kind not in ("category", "text") or "mean" in found:
        values = [found.get(member, "") for member in _NUMBERS]
        _need(all(value is None or _number(value) for value in values), name)
        mean, _, least, most = values
        _need((least is None) == (most is None) and (mean is None or least is not None), name)
        _need(type(found.get("integral")) is bool, name)
        quantiles, histogram = found.get("quantiles", 0), found.get("histogram", 0)
        _need(
            quantiles is None
            or (
                isinstance(quantiles, Mapping)
                and all(_numbers(quantiles.get(member)) for member in ("levels", "values"))
                and len(quantiles["levels"]) == len(quantiles["values"])
            ),
            name,
        )
        _need(
            histogram is None
            or (
                isinstance(histogram, Mapping)
                and _numbers(histogram.get("edges"))
                and len(histogram["edges"]) == 2
                and isinstance(histogram.get("counts"), list)
                and all(map(_count, histogram["counts"]))
            ),
            name,
        )


def _check_skipped(skipped: Any) -> None:
    _need(isinstance(skipped, Mapping) and _count(skipped.get("rows")), "skipped")
    reasons, first = skipped.get("reasons"), skipped.get("first")
    _need(isinstance(reasons, Mapping) and all(map(_count, reasons.values())), "skipped")
    _need(
        isinstance(first, list)
        and all(isinstance(s, Mapping) and _texts([s.get("key"), s.get("reason")]) for s in first),
        "skipped",
    )


def _need(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"the table is malformed: {what}")


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(type(x) is str for x in value)


def _number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def _numbers(value: Any) -> bool:
    return isinstance(value, list) and all(map(_number, value))


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _finite(value: Any) -> bool:
    """Tell whether all numbers in a JSON value are finite, also those of unknown members."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, (Mapping, list)):
            waiting += value.values() if isinstance(value, Mapping) else value
        elif isinstance(value, float) and not abs(value) <= sys.float_info.max:
            return False
    return True
