"""The page: one HTML file that loads nothing and runs no script.

A content security policy forbids scripts and requests, besides the escaping of all text. Light and dark, as the reader's system says.
"""

from __future__ import annotations

import numpy as np

from packer import units
from packer.format.description import describe
from packer.reports.card_content import CardContent
from packer.reports.charts import bar, histogram, table, text
from packer.reports.duplicate_sections import duplicates_section
from packer.reports.image_sections import sheet_section, sizes_section
from packer.reports.page_style import STYLE
from packer.reports.table_sections import columns_section
from packer.tables.transform.table_summary import short
from packer.version import __version__

MARK = "<!doctype html><!-- packer report -->"
"""How a report begins: what --overwrite may replace."""
_SHOWN_CLASSES = 60
_SHOWN_SKIPPED = 200
_SHOWN_PARTS = 6  # columns of counts by split


def render(card: CardContent) -> str:
    """Return the page."""
    label_title = {"boxes": "Boxes by class", "number": "Label"}.get(card.labels.kind, "Classes")
    sections = [
        ("contents", "What it holds", _contents(card)),
        ("classes", label_title, _labels(card)),
        ("columns", "Columns", columns_section(card)),
        ("sheet", "Rows", sheet_section(card)),
        ("sizes", "Heights and widths", sizes_section(card)),
        ("duplicates", "Duplicates", duplicates_section(card)),
        ("skipped", "Left out", _skipped(card)),
    ]
    sections = [(name, title, body) for name, title, body in sections if body]
    title = ", ".join(card.names)
    links = "".join(f'<a href="#{name}">{said}</a>' for name, said, _ in sections)
    body = "".join(f'<section id="{name}"><h2>{said}</h2>{inner}</section>' for name, said, inner in sections)
    return (
        f'{MARK}\n<html lang="en"><head><meta charset="utf-8"><title>{text(title)}</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1"><meta name="referrer" content="no-referrer">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none';img-src data:;style-src 'unsafe-inline'\">"
        f"<style>{STYLE}</style></head><body><main><header><h1>{text(title)}</h1>{_tiles(card)}{_notes(card)}"
        f"<nav>{links}</nav></header>{body}<footer>Made by packer {text(__version__)}.</footer></main></body></html>\n"
    )


def _tiles(card: CardContent) -> str:
    """Return the figures at the top of the page; those that ask for attention are marked."""
    tiles = [
        (f"{card.rows:,}", f"{card.noun}s", False),
        (units.size(sum(pack.nbytes for pack in card.packs)), "of rows", False),
    ]
    if card.labels.names:
        tiles.append((f"{len(card.labels.names):,}", "classes", False))
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
    if skipped := sum(len(pack.header.skipped) for pack in card.packs):
        tiles.append((f"{skipped:,}", "inputs left out", True))
    cells = "".join(
        f'<div class="tile{" warn" if warn else ""}"><b>{number}</b><span>{said}</span></div>'
        for number, said, warn in tiles
    )
    return f'<div class="tiles">{cells}</div>'


def _notes(card: CardContent) -> str:
    """Return what a reader should look at, as a list."""
    notes, found = [], card.duplicates
    for part, rows in zip(card.parts, () if found is None else found.leaked, strict=False):
        if rows:
            share = f"{units.count(rows, 'row')} of {part.name} ({100 * rows / part.rows:.2g} %)"
            notes.append(f"{share}: (nearly) the same as a row of another {card.place}.")
    counts = card.labels.counts.sum(axis=0)
    if card.labels.kind == "class" and len(counts) > 1:
        if empty := int((counts == 0).sum()):
            notes.append(f"{units.count(empty, 'class')} without rows.")
        some = counts[counts > 0]
        if len(some) and some.max() > 10 * some.min():
            ratio = f"{some.max() / some.min():,.0f}"
            notes.append(f"The largest class has {ratio} times the rows of the smallest.")
    return f'<ul class="notes">{"".join(f"<li>{text(note)}</li>" for note in notes)}</ul>' if notes else ""


def _contents(card: CardContent) -> str:
    """Return the packs as packer info has them, and the rows of each split."""
    said = []
    for pack, name in zip(card.packs, card.names, strict=True):
        lines = [f"{name}: {units.count(pack.rows, 'row')}, {units.size(pack.nbytes)}", *describe(pack)[1:]]
        said.append(f"<pre>{'<br>'.join(text(line) for line in lines)}</pre>")
    if len(card.parts) > 1:
        shares = [(part, part.rows / card.rows) for part in card.parts]
        split = [(text(p.name), bar(share), f"{p.rows:,}", f"{100 * share:.1f} %") for p, share in shares]
        said.append(table((f"{card.place}", "", "rows", ""), split, ("name", "b", "n", "n")))
    return "".join(said)


def _labels(card: CardContent) -> str:
    """Return how many rows each class has, or histograms of labels that are numbers."""
    labels = card.labels
    charts = "".join(
        f"<div><h3>{text(one.name)}</h3>{histogram(one.counts, short(one.least), short(one.most), one.name)}"
        f'<p class="faint">mean {short(one.mean)}{f"; {one.missing:,} not finite" if one.missing else ""}</p></div>'
        for one in labels.numbers
    )
    if charts or not labels.names:
        return charts and f'<div class="charts">{charts}</div>'
    totals = labels.counts.sum(axis=0)
    order = np.argsort(-totals, kind="stable")[:_SHOWN_CLASSES].tolist()
    top, total = (
        max(1, int(totals.max())),
        card.rows if labels.kind == "several" else max(1, int(totals.sum())),
    )
    parts = range(len(card.parts)) if 1 < len(card.parts) <= _SHOWN_PARTS else ()
    rows = [
        [
            text(labels.names[number], 120),
            bar(totals[number] / top),
            f"{totals[number]:,}",
            f"{100 * totals[number] / total:.1f} %",
            *(f"{labels.counts[part, number]:,}" for part in parts),
        ]
        for number in order
    ]
    what = "boxes" if labels.kind == "boxes" else "rows"
    head = ["class", "", what, "", *(text(card.parts[p].name, 40) for p in parts)]
    kinds = ["name", "b", "n", "n", *["n"] * len(parts)]
    more = len(totals) - len(order)
    return (
        ("<p>A row may have several classes, or none.</p>" if labels.kind == "several" else "")
        + table(head, rows, kinds)
        + (f'<p class="faint">and {more:,} smaller ones</p>' if more else "")
    )


def _skipped(card: CardContent) -> str:
    """Return the inputs that could not be packed, with the reasons."""
    skipped = [
        (name, one) for pack, name in zip(card.packs, card.names, strict=True) for one in pack.header.skipped
    ]
    if not skipped:
        return ""
    rows = [
        (text(name), text(one["key"]), text(one["reason"], 600)) for name, one in skipped[:_SHOWN_SKIPPED]
    ]
    more = len(skipped) - len(rows)
    return (
        f"<p>{units.count(len(skipped), 'input')} could not be packed.</p>"
        + table(("pack", "input", "reason"), rows)
        + (f'<p class="faint">and {more:,} more</p>' if more else "")
    )
