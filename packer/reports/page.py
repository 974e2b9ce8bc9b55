"""The page: the template report.html, filled in.

Autoescaping escapes every value, and a content security policy in the page forbids scripts and requests.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from packer import units
from packer.errors import MissingDependencyError
from packer.path_text import visible
from packer.reports.card_content import CardContent
from packer.reports.near_duplicates import MOST_PAIRS
from packer.tables.transform.table_summary import measured_on, numbers_text, role_of, short, value_text
from packer.version import __version__

_SHOWN_CLASSES = 60
_SHOWN_COLORS = 30  # of masks
_MOST_LETTERS = 600


def load_template() -> Callable[..., str]:
    """Return a function that fills in the page. Raises MissingDependencyError without Jinja2."""
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
    environment.filters["comma"] = "{:,}".format
    functions = units.count, units.size, measured_on, numbers_text, role_of, short, value_text
    environment.globals.update({one.__name__: one for one in functions})
    return environment.get_template("report.html").render


def render(template: Callable[..., str], card: CardContent) -> str:
    """Return the page of a card. template: the result of load_template."""
    found, totals = card.duplicates, card.labels.counts.sum(axis=0)
    packs = zip(card.names, card.packs, strict=True)
    return template(
        card=card,
        image=card.packs[0].header.find("image"),
        place="split" if any(pack.header.splits for pack in card.packs) else "pack",
        labels=card.labels,
        totals=totals.tolist(),
        largest=np.argsort(-totals, kind="stable")[:_SHOWN_CLASSES].tolist(),
        found=found,
        leaked=[*(() if found is None else found.leaked), *[0] * len(card.parts)],
        colors=sorted(card.mask_colors.items(), key=lambda one: (len(one[0]), one[0]))[:_SHOWN_COLORS],
        skipped=[(name, one) for name, pack in packs for one in pack.header.skipped],
        most_pairs=MOST_PAIRS,
        version=__version__,
    )


def _plain_text(value: object) -> object:
    """Return a value as text that a page can show, no longer than it should; markup as it is."""
    if hasattr(value, "__html__"):
        return value
    text = str(value)
    return visible(text if len(text) <= _MOST_LETTERS else text[: _MOST_LETTERS - 1] + "…")
