"""Texts with numbers in them, in the order of the numbers: img9 before img10."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+(?![.0-9]))?")
"""A number in a text: 1305031102.175, but not the first two of 2024.01.31."""
SIGNED = re.compile(r"(?:^|[\s_/])-[0-9]")
"""A minus that may be a sign: f_-3, but not f-3."""
DATE = re.compile(r"(?<![0-9])(?:19|20)[0-9]{2}[-_.]?[01][0-9][-_.]?[0-3][0-9]")


def natural_key(text: str) -> tuple[int | str, ...]:
    """Return a key by which texts are sorted in natural order.

    >>> sorted(["img10", "img9", "IMG1"], key=natural_key)
    ['IMG1', 'img9', 'img10']
    """
    parts = re.split("([0-9]+)", text.casefold())
    return tuple(int(part) if place % 2 else part for place, part in enumerate(parts))


def rank_texts(texts: Sequence[str]) -> NDArray[np.float64] | None:
    """Return numbers that sort texts: numbers, dates with the year first, texts with one number each.

    None for other texts, whose order is not known: v1.9 and v1.10 are versions or numbers. Equal numbers are
    equal, however they are written.

    >>> rank_texts(["10", "9", "1e1"]), rank_texts(["31/12/2023", "01/01/2024"])
    (array([10.,  9., 10.]), None)
    """
    try:
        numbers = np.array([float(text.replace("_", "#")) for text in texts])  # float("1_0") is 10
        return numbers if np.isfinite(numbers).all() else None
    except ValueError:
        forms = {NUMBER.sub("#", text.casefold()) for text in texts}
        dated = all(map(DATE.match, texts))
        if (
            len(forms) > 1
            or any(map(SIGNED.search, texts))
            or not (dated or all(form.count("#") == 1 for form in forms))
        ):
            return None
    values = [tuple(map(Decimal, NUMBER.findall(text))) for text in texts]
    natural = [value for _, value in sorted(zip(map(natural_key, texts), values, strict=True))]
    if any(before > after for before, after in pairwise(natural)):
        return None
    places = {value: place for place, value in enumerate(dict.fromkeys(natural))}
    return np.array([places[value] for value in values], np.float64)
