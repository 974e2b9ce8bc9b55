"""The sections of a page about tables: columns, and rows that are equal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packer import units
from packer.reports.card_content import CardContent
from packer.reports.charts import bar, histogram, table, text
from packer.reports.near_duplicates import Duplicates
from packer.tables.transform.table_summary import role_of, short, value_text

_SHOWN_COLUMNS = 400
_SHOWN_CATEGORIES = 8


def columns_section(card: CardContent) -> str:
    """Return the columns of a table as the header records them: types, missing cells, distributions."""
    said = []
    for pack, name in zip(card.packs, card.names, strict=True):
        record = pack.parts[0].header.table
        if record is None:
            continue
        columns = record["columns"]
        if len(card.packs) > 1:
            said.append(f"<h3>{text(name)}</h3>")
        said.append("<p>As measured at conversion, before anything was done with the numbers.</p>")
        measured = next((c["statistics"]["rows"] for c in columns if c["statistics"]), pack.rows)
        if measured != pack.rows:
            fit = "" if record["fit"] == "all" else f" of {record['fit']}"
            said.append(f"<p>Measured on {text(units.count(measured, 'row') + fit)}.</p>")
        rows = [
            (
                f"<b>{text(c['name'], 120)}</b>",
                text(c["type"]),
                text(role_of(c)),
                _missing(c),
                _drawn(c),
                _range(c),
            )
            for c in columns[:_SHOWN_COLUMNS]
        ]
        said.append(
            table(
                ("column", "type", "used as", "missing", "distribution", ""),
                rows,
                ("name m", "m", "m", "n m", "m", "m"),
            )
        )
        if len(columns) > _SHOWN_COLUMNS:
            said.append(f'<p class="faint">and {len(columns) - _SHOWN_COLUMNS:,} more columns</p>')
    return "".join(said)


def _missing(column: Mapping[str, Any]) -> str:
    found = column["statistics"]
    if not found or not found["rows"]:
        return ""
    return (
        f"{found['missing']:,} ({100 * found['missing'] / found['rows']:.2g} %)" if found["missing"] else "0"
    )


def _drawn(column: Mapping[str, Any]) -> str:
    """Return a column's histogram, or its most frequent categories."""
    found, kind = column["statistics"] or {}, column["type"]
    drawn = found.get("histogram")
    if drawn and drawn["counts"]:
        low, high = (value_text(kind, edge) for edge in drawn["edges"])
        return histogram(drawn["counts"], low, high, column["name"])
    if "distinct" not in found:
        return ""
    present = max(1, found["rows"] - found["missing"])
    shown = found["counts"][:_SHOWN_CATEGORIES]
    rows = [(text(name, 60), bar(count / present), f"{100 * count / present:.1f} %") for name, count in shown]
    more = found["distinct"] - len(shown)
    return table(("", "", ""), rows, ("", "b", "n")) + (
        f'<span class="faint">and {more:,} more</span>' if more > 0 else ""
    )


def _range(column: Mapping[str, Any]) -> str:
    found, kind = column["statistics"] or {}, column["type"]
    if "distinct" in found:
        return f'<span class="faint">{text(units.count(found["distinct"], "value"))}</span>'
    if found.get("min") is None:
        return ""
    low, high = (value_text(kind, found[name]) for name in ("min", "max"))
    said = [f"min {low}", f"max {high}"]
    if found["mean"] is not None:
        said.append(f"mean {value_text(kind, found['mean'])}")
    if found.get("std") is not None and kind not in ("date", "time", "timestamp"):
        said.append(f"std {short(found['std'])}")
    return f'<span class="faint">{"<br>".join(map(text, said))}</span>'


def equal_rows(card: CardContent, found: Duplicates) -> str:
    """Return how many rows are equal, as text."""
    said = [
        f"{found.repeats:,} of {units.count(card.rows, 'row')} repeat the features and categories of a row before."
    ]
    for part, rows in zip(card.parts, found.leaked, strict=False):
        if rows:
            said.append(f"{units.count(rows, 'row')} of {part.name} also in another {card.place}.")
    if found.suspects:
        said.append(
            f"{units.count(found.suspects, 'row')} with the features and categories of a row that has another label."
        )
    return "".join(f"<p>{text(line)}</p>" for line in said)
