"""Sizes, times and counts as text for people, and whole numbers as people write them."""

from __future__ import annotations

LEADING_ZEROS = r"[+-]?0[0-9]+"
"""Pattern of a whole number with leading zeros, such as 007: a name, since as a number it equals 7.

Labels with such a number are classes.
"""


def size(nbytes: float) -> str:
    """Return a size as text: 1_234_567 -> "1.23 MB" (powers of 1,000, as disks are sold)."""
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if nbytes < 1000 or unit == "TB":
            break
        nbytes /= 1000
    return (
        f"{nbytes:,.0f} {unit}"
        if unit == "bytes"
        else f"{nbytes:,.3g} {unit}"
        if nbytes < 100
        else f"{nbytes:,.0f} {unit}"
    )


def duration(seconds: float) -> str:
    """Return a duration as text: 83.4 -> "1 min 23 s"."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def count(number: int, noun: str) -> str:
    """Return a number and a noun: (1, "image") -> "1 image", (3068, "image") -> "3,068 images".

    Nouns in "ss", "ch" and "x" get "es".
    """
    return f"{number:,} {noun}{'' if number == 1 else 'es' if noun.endswith(('ss', 'ch', 'x')) else 's'}"
