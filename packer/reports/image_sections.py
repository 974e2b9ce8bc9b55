"""The sections of a page about images: the contact sheet and the sizes."""

from __future__ import annotations

import numpy as np

from packer.reports.card_content import CardContent
from packer.reports.charts import histogram, text


def sheet_section(card: CardContent) -> str:
    """Return the contact sheet."""
    if not card.sheet:
        return ""
    shown = "All rows" if len(card.sheet) == card.rows else f"{len(card.sheet):,} of {card.rows:,} rows"
    by_class = card.labels.classes is not None
    how = "by class, as many of each as can be" if by_class else "spread over the pack"
    return f'<p>{shown}, {how}.</p><div class="sheet">{"".join(draw_shot(card, row) for row in card.sheet)}</div>'


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


def sizes_section(card: CardContent) -> str:
    """Return the distribution of heights and widths, or the one size there is."""
    if card.noun != "image":
        return ""
    if card.sizes is None:
        image = next(f for f in card.packs[0].fields if f.name == "image").loaded
        one = f"{image.shape[1]} x {image.shape[0]} pixels (width x height)" if image.shape else "one size"
        return f"<p>All images have {one}. The pack does not hold the sizes of the files.</p>"
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
    return f'<p>As stored.</p><div class="charts">{"".join(charts)}</div>'
