"""The page: an HTML file that loads nothing and runs no script.

All text is escaped, and a content security policy forbids scripts and requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from packer import units
from packer.reports.card_content import CardContent
from packer.reports.html_parts import STYLE, bar, faint, histogram, table, text
from packer.reports.near_duplicates import MOST_PAIRS, Duplicates
from packer.tables.transform.table_summary import measured_on, numbers_text, role_of, short, value_text
from packer.version import __version__

MARK = "<!doctype html><!-- packer report -->"
"""Beginning of a report; --overwrite replaces only files that begin so."""
_SHOWN_CLASSES = 60
_SHOWN_SKIPPED = 200
_SHOWN_PARTS = 6  # columns of counts by split
_SHOWN_COLUMNS = 400
_SHOWN_CATEGORIES = 8
_SHOWN_COLORS = 30  # of masks


def render(card: CardContent) -> str:
    """Return the page."""
    label_title = {"boxes": "Boxes by class", "number": "Label"}.get(card.labels.kind, "Classes")
    sections = [
        ("contents", "What it holds", _contents(card)),
        ("classes", label_title, _labels(card)),
        ("columns", "Columns", _columns(card)),
        ("sheet", "Rows", _sheet(card)),
        ("sizes", "Heights and widths", _sizes(card)),
        ("duplicates", "Duplicates", _duplicates(card)),
        ("skipped", "Left out", _skipped(card)),
    ]
    sections = [(name, title, body) for name, title, body in sections if body]
    title = ", ".join(card.names)
    links = "".join(f'<a href="#{name}">{heading}</a>' for name, heading, _ in sections)
    body = "".join(
        f'<section id="{name}"><h2>{heading}</h2>{inner}</section>' for name, heading, inner in sections
    )
    return (
        f'{MARK}\n<html lang="en"><head><meta charset="utf-8"><title>{text(title)}</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none';img-src data:;style-src 'unsafe-inline'\">"
        f"<style>{STYLE}</style></head><body><main><header><h1>{text(title)}</h1>{_tiles(card)}{_notes(card)}"
        f"<nav>{links}</nav></header>{body}<footer>Made by packer {text(__version__)}.</footer>"
        "</main></body></html>\n"
    )


def _tiles(card: CardContent) -> str:
    """Return the figures at the top of the page; those that need attention are marked."""
    found, held = card.duplicates, units.size(sum(pack.nbytes for pack in card.packs))
    tiles: list[tuple[str | int, str, bool]] = [(card.rows, f"{card.noun}s", False), (held, "of rows", False)]
    if card.labels.names:
        tiles.append((len(card.labels.names), "classes", False))
    if found is not None:
        tiles.append((found.repeats, "exact repeats", found.repeats > 0))
        if card.noun == "image":
            tiles.append((found.near_rows, "images alike others", False))
        if len(card.parts) > 1:
            leaked = sum(found.leaked)
            tiles.append((leaked, f"rows also in another {card.place}", leaked > 0))
        if card.labels.ids is not None:
            tiles.append((found.suspects, "label suspects", found.suspects > 0))
    if skipped := sum(len(pack.header.skipped) for pack in card.packs):
        tiles.append((skipped, "inputs left out", True))
    cells = "".join(
        f'<div class="tile{" warn" if warn else ""}"><b>{f"{n:,}" if isinstance(n, int) else n}</b>'
        f"<span>{noun}</span></div>"
        for n, noun, warn in tiles
    )
    return f'<div class="tiles">{cells}</div>'


def _notes(card: CardContent) -> str:
    """Return a list of findings that need attention."""
    notes, found = [], card.duplicates
    for part, rows in zip(card.parts, () if found is None else found.leaked, strict=False):
        if rows:
            share = f"{units.count(rows, 'row')} of {part.name} ({100 * rows / part.rows:.2g} %)"
            notes.append(f"{share}: (nearly) the same as a row of another {card.place}.")
    counts = card.labels.counts.sum(axis=0)
    if card.labels.kind == "class" and len(counts) > 1:
        some = counts[counts > 0]
        if empty := len(counts) - len(some):
            notes.append(f"{units.count(empty, 'class')} without rows.")
        if len(some) and some.max() > 10 * some.min():
            ratio = f"{some.max() / some.min():,.0f}"
            notes.append(f"The largest class has {ratio} times the rows of the smallest.")
    return f'<ul class="notes">{"".join(f"<li>{text(note)}</li>" for note in notes)}</ul>' if notes else ""


def _contents(card: CardContent) -> str:
    """Return the description of each pack, as packer info prints it, and the rows of each split."""
    blocks = []
    for pack, name in zip(card.packs, card.names, strict=True):
        lines = [f"{name}: {units.count(pack.rows, 'row')}, {units.size(pack.nbytes)}", *pack.describe()[1:]]
        blocks.append(f"<pre>{'<br>'.join(text(line) for line in lines)}</pre>")
    if len(card.parts) > 1:
        shares = [(part, part.rows / card.rows) for part in card.parts]
        split = [(text(p.name), bar(share), f"{p.rows:,}", f"{100 * share:.1f} %") for p, share in shares]
        blocks.append(table((card.place, "", "rows", ""), split, ("name", "b", "n", "n")))
    return "".join(blocks)


def _labels(card: CardContent) -> str:
    """Return the number of rows of each class, or histograms of numeric labels."""
    labels = card.labels
    charts = "".join(
        f"<div><h3>{text(one.name)}</h3>{histogram(one.counts, short(one.least), short(one.most), one.name)}"
        + faint(f"mean {short(one.mean)}{f'; {one.missing:,} not finite' if one.missing else ''}")
        + "</div>"
        for one in labels.numbers
    )
    if charts or not labels.names:
        return charts and f'<div class="charts">{charts}</div>'
    totals, several = labels.counts.sum(axis=0), labels.kind == "several"
    order = np.argsort(-totals, kind="stable")[:_SHOWN_CLASSES].tolist()
    top, total = max(1, totals.max()), card.rows if several else max(1, totals.sum())
    parts = range(len(card.parts)) if 1 < len(card.parts) <= _SHOWN_PARTS else ()
    rows = [
        (
            text(labels.names[number], 120),
            bar(totals[number] / top),
            f"{totals[number]:,}",
            f"{100 * totals[number] / total:.1f} %",
            *(f"{labels.counts[part, number]:,}" for part in parts),
        )
        for number in order
    ]
    what = "boxes" if labels.kind == "boxes" else "rows"
    head = ("class", "", what, "", *(text(card.parts[p].name, 40) for p in parts))
    more = len(totals) - len(order)
    return (
        ("<p>A row may have several classes, or none.</p>" if several else "")
        + table(head, rows, ("name", "b", "n", "n", *["n"] * len(parts)))
        + faint(f"and {more:,} smaller ones" if more else "")
    )


def _columns(card: CardContent) -> str:
    """Return the columns of a table from the header: types, missing cells, distributions."""
    blocks = []
    for pack, name in zip(card.packs, card.names, strict=True):
        record = pack.parts[0].header.table
        if record is None:
            continue
        blocks.append(f"<h3>{text(name)}</h3>" if len(card.packs) > 1 else "")
        blocks.append("<p>As measured at conversion, before any transform.</p>")
        if measured := measured_on(record, pack.rows):
            blocks.append(f"<p>Measured on {text(measured)}.</p>")
        columns = record["columns"]
        rows = [_column(column, column["statistics"] or {}) for column in columns[:_SHOWN_COLUMNS]]
        kinds = ("name m", "m", "m", "n m", "m", "m")
        blocks.append(table(("column", "type", "used as", "missing", "distribution", ""), rows, kinds))
        more = len(columns) - len(rows)
        blocks.append(faint(f"and {more:,} more columns" if more else ""))
    return "".join(blocks)


def _column(column: Mapping[str, Any], found: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the cells of a column. found: its statistics."""
    kind, drawn = column["type"], found.get("histogram")
    rows, missing = found.get("rows", 0), found.get("missing", 0)
    chart, summary = "", numbers_text(kind, found) if "mean" in found else ""
    if drawn and drawn["counts"]:
        low, high = (value_text(kind, edge) for edge in drawn["edges"])
        chart = histogram(drawn["counts"], low, high, column["name"])
    elif "distinct" in found:
        summary = units.count(found["distinct"], "value")
        shares = [
            (name, count / max(1, rows - missing)) for name, count in found["counts"][:_SHOWN_CATEGORIES]
        ]
        bars = [(text(name, 60), bar(share), f"{100 * share:.1f} %") for name, share in shares]
        more = found["distinct"] - len(shares)
        chart = table(("", "", ""), bars, ("", "b", "n")) + faint(f"and {more:,} more" if more > 0 else "")
    return (
        f"<b>{text(column['name'], 120)}</b>",
        text(kind),
        text(role_of(column)),
        f"{missing:,} ({100 * missing / rows:.2g} %)" if missing else "0" if rows else "",
        chart,
        faint(text(summary)),
    )


def _sheet(card: CardContent) -> str:
    """Return the contact sheet."""
    if not card.sheet:
        return ""
    shown = "All rows" if len(card.sheet) == card.rows else f"{len(card.sheet):,} of {card.rows:,} rows"
    by_class = card.labels.classes is not None
    how = "of all classes in turn" if by_class else "spread over the pack"
    colors = sorted(card.mask_colors.items(), key=lambda one: (len(one[0]), one[0]))[:_SHOWN_COLORS]
    legend = "".join(f'<i style="background:rgb{color}"></i>{text(name)} ' for name, color in colors)
    shots = "".join(_shot(card, row) for row in card.sheet)
    return f'<p>{shown}, {how}.</p>{faint(legend)}<div class="sheet">{shots}</div>'


def _shot(card: CardContent, row: int) -> str:
    """Return a row as a picture with its labels, key and place."""
    one = card.thumbnails[row]
    part = card.parts[int(card.row_parts[row])]
    where = f"row {one.row:,}" + (f", {part.name}" if len(card.parts) > 1 else "")
    labels = "".join(f"<b>{text(line, 80)}</b>" for line in one.labels)
    title = text("\n".join([*one.labels, one.key, where]).replace("\n", "; "))
    key = f"<span>{text(one.key)}</span>" if one.key else ""
    return (
        f'<figure class="shot" title="{title}"><div class="frame"><img alt="" src="{one.source}"></div>'
        f"{labels}{key}<span>{text(where)}</span></figure>"
    )


def _sizes(card: CardContent) -> str:
    """Return the distribution of heights and widths, or the single size of all images."""
    if card.noun != "image":
        return ""
    if card.sizes is None:
        image = card.packs[0].header.field("image").loaded
        one = f"{image.shape[1]} x {image.shape[0]} pixels (width x height)" if image.shape else "one size"
        return f"<p>All images have {one}. The pack does not hold the sizes of the files.</p>"
    heights, widths = card.sizes.astype(np.float64).T
    charts = []
    for name, values, unit in (
        ("width", widths, " px"), ("height", heights, " px"), ("width / height", widths / heights, ""),
        ("megapixels", widths * heights / 1e6, " MP"),
    ):  # fmt: skip
        counts, _ = np.histogram(values, 40)
        low, middle, high = (f"{value:,.4g}" for value in np.quantile(values, (0, 0.5, 1)))
        drawn = histogram(counts.tolist(), low + unit, high + unit, name)
        charts.append(f"<div><h3>{name}</h3>{drawn}{faint(f'{low} to {high}{unit}, median {middle}')}</div>")
    return f'<p>As stored.</p><div class="charts">{"".join(charts)}</div>'


def _duplicates(card: CardContent) -> str:
    """Return equal and similar rows: pairs of pictures, or counts for tables, with their meaning."""
    found = card.duplicates
    if found is None:
        return ""
    if card.noun != "image":
        blocks = [
            f"{found.repeats:,} of {units.count(card.rows, 'row')} repeat the features and categories of"
            " an earlier row."
        ]
        if found.suspects:
            blocks.append(f"{units.count(found.suspects, 'row')} with those of a row with another label.")
        return "".join(f"<p>{line}</p>" for line in blocks)
    meanings = (
        (f"In more than one {card.place}",
         f"Rows that are (nearly) the same as a row of another {card.place}: a score measured on them is too"
         " high."),
        ("Label suspects", "Rows that are (nearly) the same and have different labels."),
        ("Exact duplicates", "Rows whose stored bytes are equal, once for each such image."),
        ("Near duplicates",
         "Rows that differ little: another size, compression or brightness, a slight crop. They may show the"
         " same object."),
    )  # fmt: skip
    blocks = [_how_compared(found)]
    for (title, meaning), (count, shown) in zip(meanings, found.kinds(), strict=True):
        if shown:
            pairs = units.count(count, "pair")
            pairs = pairs if count == len(shown) else f"{len(shown)} of {pairs}"
            drawn = "".join(_pair(card, found, number) for number in shown)
            blocks.append(f'<h3>{title}: {pairs}</h3><p>{meaning}</p><div class="pairs">{drawn}</div>')
    return "".join(blocks) + ("" if len(found.one) else "<p>None were found.</p>")


def _how_compared(found: Duplicates) -> str:
    notes = [
        "Exact duplicates have equal bytes. Near duplicates have perceptual hashes (pHash: 64 bits of the"
        " discrete cosine transform at 32 x 32 pixels) that differ in at most 8 bits, and agree in their"
        " coarse structure and colours. Mirrored and rotated copies are not found."
    ]
    if found.flat:
        notes.append(f"{units.count(found.flat, 'image')} of (nearly) one colour: compared by bytes alone.")
    if found.left_out:
        notes.append(
            f"Very many images have similar hashes: {found.left_out:,} comparisons were left out, and pairs"
            " may be missing."
        )
    if found.cut:
        notes.append(f"There are more near duplicates than the {MOST_PAIRS:,} pairs that were kept.")
    return faint(" ".join(notes))


def _pair(card: CardContent, found: Duplicates, number: int) -> str:
    bits, exact = int(found.bits[number]), found.exact[number]
    why = "equal bytes" if exact else f"{bits} of 64 bits differ" if bits else "equal hashes"
    shots = _shot(card, int(found.one[number])) + _shot(card, int(found.other[number]))
    return f'<div class="pair"><div class="two">{shots}</div><div class="why">{why}</div></div>'


def _skipped(card: CardContent) -> str:
    """Return the inputs that conversion skipped, with the reasons."""
    packs = zip(card.packs, card.names, strict=True)
    skipped = [(text(name), one) for pack, name in packs for one in pack.header.skipped]
    if not skipped:
        return ""
    rows = [(name, text(one["key"]), text(one["reason"], 600)) for name, one in skipped[:_SHOWN_SKIPPED]]
    more = len(skipped) - len(rows)
    return (
        f"<p>{units.count(len(skipped), 'input')} could not be packed.</p>"
        + table(("pack", "input", "reason"), rows)
        + faint(f"and {more:,} more" if more else "")
    )
