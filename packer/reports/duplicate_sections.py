"""The section of a page about rows that are alike: pairs of pictures, with what is doubtful about them."""

from __future__ import annotations

import numpy as np

from packer import units
from packer.reports.card_content import CardContent
from packer.reports.charts import text
from packer.reports.image_sections import draw_shot
from packer.reports.near_duplicates import MOST_PAIRS, Duplicates, Ints
from packer.reports.table_sections import equal_rows

SHOWN_PAIRS = 24
"""Of each kind of duplicates."""
_MEANINGS = (
    "Rows that are (nearly) the same as a row of another {place}: a score measured on them flatters.",
    "Rows that are (nearly) the same and have different labels.",
    "Rows whose stored bytes are equal, once for each such image.",
    "Rows that differ little: another size, compression or brightness, a slight crop. They may be views of one thing.",
)


def duplicates_section(card: CardContent) -> str:
    """Return the section, "" where duplicates were not looked for."""
    found = card.duplicates
    if found is None:
        return ""
    if card.noun != "image":
        return equal_rows(card, found)
    titles = (f"In more than one {card.place}", "Label suspects", "Exact duplicates", "Near duplicates")
    said = [_told(found)]
    for title, meaning, pairs in zip(titles, _MEANINGS, _by_kind(found), strict=True):
        if len(pairs):
            shown = pairs[:SHOWN_PAIRS].tolist()
            count = units.count(len(pairs), "pair")
            count = count if len(pairs) == len(shown) else f"{len(shown)} of {count}"
            drawn = "".join(_pair(card, found, number) for number in shown)
            said.append(f"<h3>{title}: {count}</h3><p>{meaning.format(place=card.place)}</p>")
            said.append(f'<div class="pairs">{drawn}</div>')
    if not len(found.one):
        said.append("<p>None were found.</p>")
    return "".join(said)


def _told(found: Duplicates) -> str:
    """Return how duplicates were searched, and what was not."""
    notes = [
        "Exact duplicates have equal bytes. Near duplicates have perceptual hashes (pHash: 64 bits of the discrete cosine transform"
        " at 32 x 32 pixels) that differ in at most 8 bits, and agree in their coarse structure and colours. Mirrored and turned"
        " copies are not found."
    ]
    if found.flat:
        notes.append(
            f"{units.count(found.flat, 'image')} of (nearly) one colour {'was' if found.flat == 1 else 'were'} compared by bytes alone."
        )
    if found.left_out:
        notes.append(
            f"Very many images have hashes that share much: {found.left_out:,} comparisons were left out, and pairs may be missing."
        )
    if found.cut:
        notes.append(f"There are more near duplicates than the {MOST_PAIRS:,} pairs that were kept.")
    return f'<p class="faint">{text(" ".join(notes), 2000)}</p>'


def _pair(card: CardContent, found: Duplicates, number: int) -> str:
    bits = int(found.bits[number])
    why = (
        "equal bytes" if found.exact[number] else "equal hashes" if bits == 0 else f"{bits} of 64 bits differ"
    )
    shots = draw_shot(card, int(found.one[number])) + draw_shot(card, int(found.other[number]))
    return f'<div class="pair"><div class="two">{shots}</div><div class="why">{why}</div></div>'


def shown_rows(found: Duplicates) -> set[int]:
    """Return the rows of the pairs that are shown."""
    shown = np.concatenate([pairs[:SHOWN_PAIRS] for pairs in _by_kind(found)])
    return {*found.one[shown].tolist(), *found.other[shown].tolist()}


def _by_kind(found: Duplicates) -> list[Ints]:
    """Return the numbers of the pairs in several splits, with different labels, and of the rest the exact and the near ones."""
    rest = ~found.crossing & ~found.suspect
    kinds = found.crossing, found.suspect, rest & found.exact, rest & ~found.exact
    return [np.flatnonzero(kind) for kind in kinds]
