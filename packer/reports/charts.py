"""Bars and histograms of the page, in HTML and SVG that take their colours from its style; text from files, escaped."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

# Control characters, marks that turn the direction of writing, and what has no bytes in UTF-8.
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_MOST_LETTERS = 300


def text(value: object, most: int = _MOST_LETTERS) -> str:
    """Return any text as HTML that shows it: nothing in it is markup, also inside of a quoted attribute."""
    plain = str(value)
    plain = plain if len(plain) <= most else plain[: most - 1] + "…"
    return html.escape(_UNSEEN.sub("�", plain), quote=True)


def bar(share: float) -> str:
    """Return a bar. share: of the full length, 0 to 1."""
    return f'<div class="track"><div class="bar" style="width:{100 * share:.2f}%"></div></div>'


def histogram(counts: Sequence[int], least: str, most: str, title: str = "") -> str:
    """Return a histogram of equal bins. least, most: what stands under its ends; title: told where it is pointed at."""
    if not counts:
        return ""
    top, width = max(max(counts), 1), 240 / len(counts)
    rects = "".join(
        f'<rect x="{i * width:.2f}" y="{60 - 60 * max(n / top, 0.02):.2f}" width="{max(width - 0.8, 0.4):.2f}"'
        f' height="{60 * max(n / top, 0.02):.2f}"><title>{n:,}</title></rect>'
        for i, n in enumerate(counts)
        if n
    )
    return (
        f'<figure class="histogram"><svg viewBox="0 0 240 60" preserveAspectRatio="none" role="img" aria-label="{text(title)}">'
        f"{rects}</svg><figcaption><span>{text(least)}</span><span>{text(most)}</span></figcaption></figure>"
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]], kinds: Sequence[str] = ()) -> str:
    """Return a table. head, rows: HTML; kinds: the style's class of each column."""
    kinds = [*kinds, *[""] * (len(head) - len(kinds))]
    tops = "".join(f'<th class="{k}">{cell}</th>' for k, cell in zip(kinds, head, strict=True))
    lines = "".join(
        "<tr>" + "".join(f'<td class="{k}">{cell}</td>' for k, cell in zip(kinds, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{tops}</tr></thead><tbody>{lines}</tbody></table></div>'
