"""Names of points, from the names of their columns; and which of them are sides: left_eye and right_eye.

    columns of a point            its name
    left_eye_x, left_eye_y        left_eye: what the columns have in common, without separators at its ends
    x1, y1; noseX, noseY          1; nose
    tip_lon, tip_lat              tip: one word differs
    x, y                          1, the number of the point: the columns have nothing in common
    u, row of tip                 u/row of tip: no rule fits; all points are called so if two had one name

Two points are sides if exchanging left and right, or the words l and r, in the name of one gives the name
of the other: left_eye and right_eye, EyeL and EyeR, r-hip and l-hip; also lhip and rhip, if there are several
such pairs. Pairs are written as "left_eye:right_eye".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from packer.errors import UsageError
from packer.inputs.file_names import shorten

Sides = tuple[str, str]
"""Names of two points that exchange in a mirrored image."""

_SEPARATORS = r"[\s_.,:;/-]+"
_EMPTY = re.compile(r"[(\[{]\s*[)\]}]")
_WORDS = re.compile(r"left|right|(?<![a-z])[lr](?![a-z])", re.IGNORECASE)
_CAPITALS = re.compile(r"(?<=[a-z0-9])[LR](?![a-z])|(?<![A-Za-z])[LRlr](?=[A-Z])")  # EyeL, LEye, lEye
_GLUED = re.compile(r"^[lr](?=[a-z]{2})", re.IGNORECASE)  # lhip
_OTHER = {"left": "right", "right": "left", "l": "r", "r": "l"}


def point_names(columns: Sequence[str]) -> tuple[str, ...]:
    """Return a name for each point. columns: two for each point, x and y.

    >>> point_names(["left_eye_x", "left_eye_y", "x_nose", "y_nose"])
    ('left_eye', 'nose')
    """
    points = list(zip(columns[::2], columns[1::2], strict=True))
    names = [_common(a, b) for a, b in points]
    names = [str(number) if name == "" else name for number, name in enumerate(names, 1)]
    if len(set(names)) < len(names):
        names = [f"{a}/{b}" for a, b in points]
    return tuple(names)


def columns_of(names: Sequence[str]) -> list[str]:
    """Return two columns for each name, from which `point_names` gives these names."""
    return [
        column
        for name in names
        for column in ((f"x{name}", f"y{name}") if name.isdecimal() else (f"{name}_x", f"{name}_y"))
    ]


def sides(names: Sequence[str]) -> tuple[Sides, ...]:
    """Return the pairs of points whose names say that they are sides, the left one first.

    >>> sides(["nose", "right_eye", "left_eye", "hip_r", "hip_l", "bright"])
    (('left_eye', 'right_eye'), ('hip_l', 'hip_r'))
    """
    found = _exchangeable(names, exchanged)
    if not found:  # light and right may be points; lhip, rhip, lknee and rknee are sides
        glued = _exchangeable(names, lambda name: _GLUED.sub(_other_side, name))
        found = glued if len(glued) > 1 else []
    return tuple(found)


def _exchangeable(names: Sequence[str], exchange: Callable[[str], str]) -> list[Sides]:
    """Return the pairs of names that `exchange` makes of each other."""
    called = {name.casefold(): name for name in names}
    found: list[Sides] = []
    for name in names:
        other = called.get(exchange(name).casefold(), name)
        if other == name or called.get(exchange(other).casefold()) != name:
            continue
        if not any(name in pair for pair in found):
            changed = next(a for a, b in zip(name.casefold(), other.casefold(), strict=False) if a != b)
            found.append((name, other) if changed == "l" else (other, name))
    return found


def read_pairs(texts: Sequence[str], names: Sequence[str]) -> tuple[Sides, ...]:
    """Return pairs from texts such as "left_eye:right_eye". Raises UsageError for what are no two points."""
    found: list[Sides] = []
    for text in texts:
        ways = [(text[:at], text[at + 1 :]) for at, letter in enumerate(text) if letter == ":"]
        pair = next((way for way in ways if {*way} <= {*names}), None)
        if pair is None or pair[0] == pair[1] or any(name in other for name in pair for other in found):
            raise UsageError(
                f"labels=Labels(flip_pairs={shorten(text)!r}): is no pair of points, LEFT:RIGHT, each in "
                f"one pair; the points are {shorten(', '.join(names))}. Correct it."
            )
        found.append(pair)
    return tuple(found)


def exchanged(name: str) -> str:
    """Return a name with left and right exchanged, in its case."""
    return (_WORDS if _WORDS.search(name) else _CAPITALS).sub(_other_side, name)


def _other_side(found: re.Match[str]) -> str:
    made = _OTHER[found[0].lower()]
    if found[0].isupper():
        return made.upper()
    return made.capitalize() if found[0][0].isupper() else made


def _common(a: str, b: str) -> str:
    """Return what the columns of a point have in common, "" for nothing."""
    differ = [at for at, (one, two) in enumerate(zip(a, b, strict=False)) if one != two]
    if len(a) == len(b) and len(differ) == 1 and {a[differ[0]].lower(), b[differ[0]].lower()} == {"x", "y"}:
        return _join_words(a[: differ[0]], a[differ[0] + 1 :])
    words = re.split(f"({_SEPARATORS})", a), re.split(f"({_SEPARATORS})", b)
    other = [at for at, (one, two) in enumerate(zip(*words, strict=False)) if one != two]
    if len(words[0]) == len(words[1]) and len(other) == 1:
        return _join_words("".join(words[0][: other[0]]), "".join(words[0][other[0] + 1 :]))
    return f"{a}/{b}"


def _join_words(before: str, after: str) -> str:
    """Return two parts of a name as one, without separators at its ends, and one where both had one."""
    if re.search(f"{_SEPARATORS}$", before):
        after = re.sub(f"^{_SEPARATORS}", "", after)
    return re.sub(f"^{_SEPARATORS}|{_SEPARATORS}$", "", _EMPTY.sub("", before + after))
