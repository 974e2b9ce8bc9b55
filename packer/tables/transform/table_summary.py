"""A line per column: how `packer info` shows a table."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from packer import units
from packer.path_text import visible
from packer.tables.transform.cell_values import moment_text

BLOCKS = "▁▂▃▄▅▆▇█"
MOST = 60  # most columns
_WIDEST = 32  # most characters of a name
_MOMENTS = ("date", "time", "timestamp")
_FREQUENT = 3  # most categories named


def describe(table: Mapping[str, Any], most: int = MOST) -> list[str]:
    """Describe the columns of a table.

    table: the header's member. Returns: a line for each of the first `most` columns: name, type, role, share
    of missing cells, histogram, range and mean ± deviation, or the most frequent categories; then the number
    of further columns.
    """
    columns = table["columns"]
    rows = [_cells(c) for c in columns[:most]]
    widths = [max(len(row[i]) for row in rows) for i in range(5)] if rows else []
    lines = []
    for row in rows:
        *cells, last = row
        lines.append("  ".join([*(c.ljust(w) for c, w in zip(cells, widths, strict=True)), last]).rstrip())
    if len(columns) > most:
        lines.append(f"and {len(columns) - most:,} more")
    return lines


def histogram(counts: list[int], length: int = 16) -> str:
    """Draw counts as characters of proportional height, a space for 0; a single count fills the length."""
    if len(counts) == 1:
        counts = counts * length
    top = max(counts, default=0) or 1
    return "".join(" " if not c else BLOCKS[min(len(BLOCKS) - 1, c * len(BLOCKS) // top)] for c in counts)


def short(number: float) -> str:
    """Write a number in few characters: 1,234 and 0.0123 and 1.23e+09."""
    if number == 0:
        return "0"
    if float(number).is_integer() and abs(number) < 1e7:
        return f"{int(number):,}"
    if 1e3 <= abs(number) < 1e7:
        return f"{number:,.0f}"
    return f"{number:.3g}"


def _cells(column: Mapping[str, Any]) -> list[str]:
    statistics = column.get("statistics") or {}
    name = column["name"]
    name = name if len(name) <= _WIDEST else name[: _WIDEST - 1] + "…"
    rows, missing = statistics.get("rows", 0), statistics.get("missing", 0)
    counts = (statistics.get("histogram") or {}).get("counts", [])
    return [
        visible(name, "�"),
        column["type"],
        role_of(column),
        _share(missing, rows) + " missing" if missing else "",
        histogram(counts) if counts else "",
        numbers_text(column["type"], statistics) if "mean" in statistics else _categories(statistics),
    ]


def role_of(column: Mapping[str, Any]) -> str:
    """Return the use of a column, in words."""
    if column["role"] != "feature":
        return str({"keep": "kept", "drop": "dropped"}.get(column["role"], column["role"]))
    if column["type"] == "category":
        return "one-hot" if column["one_hot"] else "category"
    flags = {
        "log1p": column["log1p"],
        "standardized": column["standardize"] is not None,
        "indicator": column["indicator"],
    }
    ways = ", ".join(way for way, chosen in flags.items() if chosen)
    return f"feature ({ways})" if ways else "feature"


def measured_on(table: Mapping[str, Any], rows: int) -> str:
    """Return the rows on which a table's columns were measured, "" if on all of its rows."""
    measured = next((c["statistics"]["rows"] for c in table["columns"] if c["statistics"]), rows)
    fit = "" if table["fit"] == "all" else f" of {table['fit']}"
    return "" if measured == rows else units.count(measured, "row") + fit


def numbers_text(kind: str, statistics: Mapping[str, Any]) -> str:
    """Return the range, mean and deviation of a column of some type. statistics: of the column."""
    if statistics["min"] is None:
        return "no values"
    low, high = (value_text(kind, statistics[key]) for key in ("min", "max"))
    mean, std = statistics["mean"], statistics["std"]
    if mean is None or kind in _MOMENTS:
        return f"{low} to {high}"
    if kind == "boolean":
        return f"{100 * mean:.3g} % true"
    return f"{low} to {high}, {value_text(kind, mean)}" + ("" if std is None else f" ± {short(std)}")


def value_text(kind: str, number: float) -> str:
    """Write a value of a column of some type: a date, a time or a number."""
    if kind in _MOMENTS:
        with suppress(OverflowError, ValueError):  # a year of more than four digits, or no number
            return moment_text(kind, round(number))
    return short(number)


def _categories(statistics: Mapping[str, Any]) -> str:
    if "distinct" not in statistics:
        return ""
    count = statistics["distinct"]
    present = statistics["rows"] - statistics["missing"]
    named = [
        f"{visible(text[:_WIDEST], '�')} {_share(n, present)}" for text, n in statistics["counts"][:_FREQUENT]
    ]
    dots = ["..."] if count > len(named) else []
    head = f"{count:,} {'category' if count == 1 else 'categories'}"
    return f"{head}: {', '.join([*named, *dots])}" if named else head


def _share(part: int, total: int) -> str:
    """Write a share in percent, with "0 %" only for an empty part."""
    percent = 100 * part / total if total else 0.0
    if 0 < percent < 0.1:
        return "< 0.1 %"
    return f"{percent:.1f} %" if percent < 10 else f"{percent:.0f} %"
