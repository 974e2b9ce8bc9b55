"""The page: one HTML file that loads nothing and runs no script; pages of pictures turn by radio buttons and CSS.

A content security policy forbids scripts and requests, besides the escaping of all text. Light and dark, as the reader's system says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from packer import units
from packer.format.header import Field
from packer.format.pack import Pack
from packer.reports.card_content import CardContent
from packer.reports.charts import bar, histogram, table, text
from packer.reports.duplicate_sections import duplicates_section
from packer.reports.image_sections import means_section, paging_style, sheet_section, sizes_section
from packer.reports.label_measures import LabelMeasures
from packer.reports.page_style import STYLE
from packer.reports.table_sections import association_section, columns_section
from packer.tables.transform.table_summary import short
from packer.version import __version__

MARK = "<!doctype html><!-- packer report -->"
"""How a report begins: what --overwrite may replace."""
_SHOWN_CLASSES = 60
_RAREST = 10
_SHOWN_SKIPPED = 200
_SHOWN_PARTS = 6  # columns of counts by split


def render(card: CardContent) -> str:
    """Return the page."""
    sections = [
        ("contents", "What it holds", _contents(card)),
        ("classes", _label_title(card.labels), _labels(card)),
        ("columns", "Columns", columns_section(card)),
        ("association", "Columns and the label", association_section(card)),
        ("sheet", "Rows", sheet_section(card)),
        ("means", "Mean images", means_section(card)),
        ("sizes", "Heights and widths", sizes_section(card)),
        ("duplicates", "Duplicates", duplicates_section(card)),
        ("skipped", "Left out", _skipped(card)),
        ("provenance", "Where it comes from", _provenance(card)),
    ]
    sections = [(name, title, body) for name, title, body in sections if body]
    title = ", ".join(card.names)
    links = "".join(f'<a href="#{name}">{text(said)}</a>' for name, said, _ in sections)
    body = "".join(
        f'<section id="{name}"><h2>{text(said)}</h2>{inner}</section>' for name, said, inner in sections
    )
    return (
        f'{MARK}\n<html lang="en"><head><meta charset="utf-8"><title>{text(title)}</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1"><meta name="referrer" content="no-referrer">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none';img-src data:;style-src 'unsafe-inline'\">"
        f"<style>{STYLE}{paging_style(card)}</style></head><body><main>"
        f'<header><h1>{text(title)}</h1><div class="faint">{_subtitle(card)}</div>{_tiles(card)}{_notes(card)}'
        f"<nav>{links}</nav></header>{body}"
        f"<footer>Made by packer {text(__version__)}, from what the {'pack holds' if len(card.packs) == 1 else 'packs hold'}."
        " Pictures are made smaller to be shown.</footer></main></body></html>\n"
    )


def _subtitle(card: CardContent) -> str:
    kinds = {
        f"{pack.format}, {units.count(len(pack.shards), 'shard')}" if pack.shards else pack.format
        for pack in card.packs
    }
    return text(f"data card of {units.count(len(card.packs), 'pack')} ({', '.join(sorted(kinds))})")


def _tiles(card: CardContent) -> str:
    tiles = [(f"{card.rows:,}", f"{card.noun}s", False)]
    tiles.append((units.size(sum(pack.nbytes for pack in card.packs)), "of rows", False))
    if card.labels.names:
        tiles.append((f"{len(card.labels.names):,}", "classes", False))
    if len(card.parts) > 1:
        tiles.append((f"{len(card.parts)}", f"{card.place}s", False))
    found = card.duplicates
    if found is not None:
        tiles.append((f"{found.repeats:,}", "exact repeats", found.repeats > 0))
        if card.noun == "image":
            tiles.append((f"{found.near_rows:,}", "images alike others", False))
        if len(card.parts) > 1:
            leaked = sum(found.leaked)
            tiles.append((f"{leaked:,}", f"rows also in another {card.place}", leaked > 0))
        if card.labels.ids is not None:
            tiles.append((f"{found.suspects:,}", "label suspects", found.suspects > 0))
    skipped = sum(len(pack.header.skipped) for pack in card.packs)
    if skipped:
        tiles.append((f"{skipped:,}", "inputs left out", True))
    cells = "".join(
        f'<div class="tile{" warn" if warn else ""}"><b>{text(number)}</b><span>{text(said)}</span></div>'
        for number, said, warn in tiles
    )
    return f'<div class="tiles">{cells}</div>'


def _notes(card: CardContent) -> str:
    """Return what a reader should look at, as a list."""
    notes = []
    found = card.duplicates
    if found is not None:
        for number, rows in enumerate(found.leaked):
            if rows:
                part = card.parts[number]
                share = 100 * rows / part.rows
                notes.append(
                    f"{units.count(rows, 'row')} of {part.name} ({share:.2g} %): (nearly) the same as a row of another {card.place}."
                )
        if found.suspects:
            notes.append(
                f"{units.count(found.suspects, 'row')} with another label than a row that is (nearly) the same."
            )
    counts = card.labels.counts.sum(axis=0)
    if card.labels.kind == "class" and len(counts) > 1:
        empty = int((counts == 0).sum())
        if empty:
            notes.append(f"{units.count(empty, 'class')} {'has' if empty == 1 else 'have'} no rows.")
        some = counts[counts > 0]
        if len(some) and some.max() > 10 * some.min():
            notes.append(
                f"The largest class has {some.max() / some.min():,.0f} times the rows of the smallest."
            )
    return f'<ul class="notes">{"".join(f"<li>{text(note)}</li>" for note in notes)}</ul>' if notes else ""


def _contents(card: CardContent) -> str:
    said = []
    for pack, name in zip(card.packs, card.names, strict=True):
        if len(card.packs) > 1:
            said.append(f"<h3>{text(name)}</h3>")
        rows = [
            (
                f"<b>{text(f.name)}</b>",
                _dtype(f),
                _shape(f),
                _store(f),
                _about(f),
                units.size(_nbytes(pack, f)),
            )
            for f in pack.fields
        ]
        said.append(table(("field", "dtype", "shape", "stored", "", "size"), rows, ("", "", "", "", "", "n")))
        order = (
            "in the order of the source"
            if pack.header.seed is None
            else f"shuffled with seed {pack.header.seed}"
        )
        blocks = f"{units.count(pack.rows, 'row')}, {order}, in blocks of {units.count(pack.header.block_rows, 'row')}"
        if pack.shards:
            blocks += f" and {units.count(len(pack.shards), 'shard')}"
        said.append(f'<p class="faint">{text(blocks)}.</p>')
        for field_name, values in pack.header.statistics.items():
            numbers = "; ".join(f"{k} {' '.join(f'{x:.4f}' for x in v)}" for k, v in values.items())
            said.append(f'<p class="faint">{text(field_name)}: {text(numbers)}</p>')
    if len(card.parts) > 1:
        split = [
            (
                text(part.name),
                bar(part.rows / card.rows),
                f"{part.rows:,}",
                f"{100 * part.rows / card.rows:.1f} %",
            )
            for part in card.parts
        ]
        said.append(
            f"<h3>{card.place.capitalize()}s</h3>"
            + table(("name", "", "rows", ""), split, ("name", "b", "n", "n"))
        )
    return "".join(said)


def _dtype(f: Field) -> str:
    own = f.own_size
    return text(
        np.dtype(f.loaded.dtype if own is None else own.dtype).name
        if "row_shape" not in f.about
        else np.dtype(f.about["dtype"]).name
    )


def _shape(f: Field) -> str:
    if "encoding" in f.about:
        return "text"
    if "row_shape" in f.about:
        return text(" x ".join(["n", *map(str, f.about["row_shape"])]))
    if f.loaded.ragged:
        own = f.own_size
        return text("any" if own is None else "h x w" + (f" x {own.channels}" if own.channels else ""))
    return text(" x ".join(map(str, f.loaded.shape or ())) or "one a row")


def _store(f: Field) -> str:
    codec = dict(f.codec or {})
    name = codec.pop("name", "raw")
    rest = ", ".join(f"{k} {v}" for k, v in codec.items() if k != "shape" and v is not None)
    return text(f"{name} ({rest})" if rest else name)


def _about(f: Field) -> str:
    told = ("color", "fit", "size", "sampling", "of", "column")
    return text(", ".join(f"{key} {f.about[key]}" for key in told if key in f.about))


def _nbytes(pack: Pack, f: Field) -> int:
    return sum(extent.nbytes for name in f.arrays for extent in pack.header.extents[name])


def _label_title(labels: LabelMeasures) -> str:
    return {"boxes": "Boxes by class", "number": "Label"}.get(labels.kind, "Classes")


def _labels(card: CardContent) -> str:
    labels = card.labels
    if labels.numbers:
        return (
            '<div class="charts">'
            + "".join(
                f"<div><h3>{text(one.name)}</h3>{histogram(one.counts, short(one.least), short(one.most), one.name)}"
                f'<p class="faint">mean {text(short(one.mean))}{f"; {one.missing:,} not finite" if one.missing else ""}</p></div>'
                for one in labels.numbers
            )
            + "</div>"
        )
    if not labels.names:
        return ""
    totals = labels.counts.sum(axis=0)
    order = np.argsort(-totals, kind="stable")
    shown = (
        order
        if len(order) <= _SHOWN_CLASSES + _RAREST
        else np.concatenate((order[:_SHOWN_CLASSES], order[-_RAREST:]))
    )
    top, total = max(1, int(totals.max())), max(1, int(totals.sum()))
    parts = range(len(card.parts)) if 1 < len(card.parts) <= _SHOWN_PARTS else ()
    rows = []
    for place, number in enumerate(shown.tolist()):
        if place == _SHOWN_CLASSES and len(shown) < len(order):
            rest = len(order) - len(shown)
            rows.append(
                [f'<i class="faint">{rest:,} more, and the rarest:</i>', "", "", "", *([""] * len(parts))]
            )
        own = int(totals[number])
        by_part = [f"{int(labels.counts[p, number]):,}" for p in parts]
        share = own / total if labels.kind != "several" else own / card.rows
        rows.append(
            [text(labels.names[number], 120), bar(own / top), f"{own:,}", f"{100 * share:.1f} %", *by_part]
        )
    what = {"boxes": "boxes", "several": "rows"}.get(labels.kind, "rows")
    head = ["class", "", what, "", *(text(card.parts[p].name, 40) for p in parts)]
    more = "<p>A row may have several classes, or none.</p>" if labels.kind == "several" else ""
    return more + table(head, rows, ["name", "b", "n", "n", *["n"] * len(parts)])


def _skipped(card: CardContent) -> str:
    said = []
    for pack, name in zip(card.packs, card.names, strict=True):
        skipped = pack.header.skipped
        left = (pack.parts[0].header.table or {}).get("skipped") or {}
        if len(card.packs) > 1 and (skipped or left.get("rows")):
            said.append(f"<h3>{text(name)}</h3>")
        if skipped:
            reasons: dict[str, int] = {}
            rows = [(text(one["key"]), text(one["reason"], 600)) for one in skipped[:_SHOWN_SKIPPED]]
            for one in skipped:
                reasons[one["reason"]] = reasons.get(one["reason"], 0) + 1
            said.append(f"<p>{text(units.count(len(skipped), 'input'))} could not be packed.</p>")
            said.append(table(("input", "reason"), rows))
            if len(skipped) > len(rows):
                said.append(f'<p class="faint">and {len(skipped) - len(rows):,} more</p>')
        if left.get("rows"):
            rows = [(text(why, 600), f"{count:,}") for why, count in left["reasons"].items()]
            said.append(
                f"<p>{text(units.count(left['rows'], 'row'))} could not be packed.</p>"
                + table(("reason", "rows"), rows, ("", "n"))
            )
    return "".join(said)


def _provenance(card: CardContent) -> str:
    said = []
    for pack, name in zip(card.packs, card.names, strict=True):
        if len(card.packs) > 1:
            said.append(f"<h3>{text(name)}</h3>")
        rows = [
            (text(part), text(key), f"<code>{text(_plain(key, value), 1000)}</code>")
            for part, values in pack.header.provenance.items()
            for key, value in (values.items() if isinstance(values, Mapping) else [("", values)])
        ]
        said.append(table(("", "", ""), rows) if rows else "<p>Nothing is recorded.</p>")
    return "".join(said)


def _plain(key: str, value: Any) -> str:
    if key == "bytes" and isinstance(value, int):
        return f"{value:,} ({units.size(value)})"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
