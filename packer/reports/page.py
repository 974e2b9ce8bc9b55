"""The page: the template report.html, filled in.

Autoescaping escapes every value, and a content security policy in the page forbids scripts and requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from packer import units
from packer.errors import MissingDependencyError
from packer.path_text import visible
from packer.reports.card_content import CardContent
from packer.reports.near_duplicates import MOST_PAIRS
from packer.tables.transform.table_summary import measured_on, numbers_text, role_of, short, value_text
from packer.version import __version__

if TYPE_CHECKING:
    from jinja2 import Template

_SHOWN_CLASSES = 60
_SHOWN_COLORS = 30  # of masks
_MOST_LETTERS = 600


def load_template() -> Template:
    """Return the template of the page. Raises MissingDependencyError without Jinja2."""
    try:
        from jinja2 import Environment, PackageLoader
    except ImportError as error:
        raise MissingDependencyError("jinja2", "report", error) from None
    environment = Environment(
        loader=PackageLoader("packer.reports", ""),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_plain_text,
    )
    environment.filters.update(comma="{:,}".format, percent=_percent)
    environment.globals.update(
        count=units.count,
        size=units.size,
        short=short,
        role_of=role_of,
        numbers_text=numbers_text,
        value_text=value_text,
        most_pairs=MOST_PAIRS,
        version=__version__,
    )
    return environment.get_template("report.html")


def render(template: Template, card: CardContent) -> str:
    """Return the page of a card."""
    found, totals = card.duplicates, card.labels.counts.sum(axis=0)
    packs = list(zip(card.names, card.packs, strict=True))
    records = [(name, pack, pack.parts[0].header.table) for name, pack in packs]
    return template.render(
        card=card,
        image=card.packs[0].header.find("image"),
        labels=card.labels,
        totals=totals.tolist(),
        largest=np.argsort(-totals, kind="stable")[:_SHOWN_CLASSES].tolist(),
        found=found,
        leaked=[*(() if found is None else found.leaked), *[0] * len(card.parts)],
        tables=[(name, one["columns"], measured_on(one, pack.rows)) for name, pack, one in records if one],
        colors=sorted(card.mask_colors.items(), key=lambda one: (len(one[0]), one[0]))[:_SHOWN_COLORS],
        skipped=[(name, one) for name, pack in packs for one in pack.header.skipped],
    )


def _plain_text(value: object) -> object:
    """Return a value as text that a page can show, no longer than it should; markup as it is."""
    if hasattr(value, "__html__"):
        return value
    text = str(value)
    return visible(text if len(text) <= _MOST_LETTERS else text[: _MOST_LETTERS - 1] + "…")


def _percent(share: float) -> str:
    """Return a share of 1 in percent: "33 %" and "0.034 %"."""
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"
