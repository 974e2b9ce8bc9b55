"""The sections of a page about images: the contact sheet, whose pages turn by radio buttons and CSS, means, sizes."""

from __future__ import annotations

import numpy as np

from packer import units
from packer.reports.card_content import CardContent
from packer.reports.charts import histogram, text
from packer.reports.thumbnails import draw_mean

_PAGE_ROWS = 40


def paging_style(card: CardContent) -> str:
    """Return the style by which the button of a page shows it."""
    pages = -(-len(card.sheet) // _PAGE_ROWS)
    return "".join(f"#page{k}:checked~.sheet:nth-of-type({k + 1}){{display:grid}}" for k in range(pages))


def sheet_section(card: CardContent) -> str:
    """Return the contact sheet."""
    if not card.sheet:
        return ""
    pages = [card.sheet[a : a + _PAGE_ROWS] for a in range(0, len(card.sheet), _PAGE_ROWS)]
    buttons = "".join(
        f'<input type="radio" name="page" id="page{k}"{" checked" if k == 0 else ""}><label for="page{k}">{k + 1}</label>'
        for k in range(len(pages))
    )
    sheets = "".join(
        f'<div class="sheet">{"".join(draw_shot(card, row) for row in page)}</div>' for page in pages
    )
    if len(card.sheet) == card.rows:
        which = "All rows"
    else:
        which = f"{len(card.sheet):,} of {card.rows:,} rows"
    by = (
        ", by class, as many of each as can be"
        if card.labels.classes is not None
        else ", spread over the pack"
    )
    return f'<p>{text(which + by)}.</p><div class="pages">{buttons}{sheets}</div>'


def draw_shot(card: CardContent, row: int) -> str:
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


def means_section(card: CardContent) -> str:
    """Return the mean images."""
    if not card.means:
        return ""
    shots = []
    for mean in card.means:
        name = "all rows" if mean.number < 0 else card.labels.names[mean.number]
        shots.append(
            f'<figure class="shot"><div class="frame"><img alt="" src="{draw_mean(mean.pixels)}"></div>'
            f"<b>{text(name, 80)}</b><span>{text(units.count(mean.rows, 'row'))}</span></figure>"
        )
    present = int((card.labels.counts.sum(axis=0) > 0).sum()) if card.labels.classes is not None else 0
    which = f" Of the {len(card.means) - 1} largest classes." if 1 < len(card.means) <= present else ""
    return f'<p>Averages at 32 x 32 pixels.{which}</p><div class="sheet means">{"".join(shots)}</div>'


def sizes_section(card: CardContent) -> str:
    """Return the distribution of heights and widths, or the one size there is."""
    if card.noun != "image":
        return ""
    if card.sizes is None:
        image = next(f for f in card.packs[0].fields if f.name == "image").loaded
        how = {"crop": "the shortest side was brought to that size and the centre cut out", "pad": "fitted inside, with black bars",
               "stretch": "stretched to that"}.get(str(image.about.get("fit")))  # fmt: skip
        one = f"{image.shape[1]} x {image.shape[0]} pixels (width x height)" if image.shape else "one size"
        return f"<p>All images have {text(one)}{': ' + text(how) if how else ''}. The pack does not hold the sizes of the files.</p>"
    heights, widths = card.sizes[:, 0].astype(np.float64), card.sizes[:, 1].astype(np.float64)
    charts = []
    for name, values, unit in (
        ("width", widths, " px"), ("height", heights, " px"), ("width / height", widths / heights, ""),
        ("megapixels", widths * heights / 1e6, " MP"),
    ):  # fmt: skip
        counts, edges = np.histogram(values, 40)
        low, middle, high = np.quantile(values, (0, 0.5, 1))
        charts.append(
            f"<div><h3>{name}</h3>{histogram(counts.tolist(), f'{edges[0]:,.4g}{unit}', f'{edges[-1]:,.4g}{unit}', name)}"
            f'<p class="faint">{low:,.4g} to {high:,.4g}{unit}, median {middle:,.4g}</p></div>'
        )
    rule = next(
        (
            f.about["size"]
            for pack in card.packs
            for f in pack.fields
            if f.name == "image" and "size" in f.about
        ),
        None,
    )
    after = f"As stored: larger images were made smaller by the rule {text(rule)}." if rule else "As stored."
    return f'<p>{after}</p><div class="charts">{"".join(charts)}</div>'
