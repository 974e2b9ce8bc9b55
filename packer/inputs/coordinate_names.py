"""Meaning of column names of boxes and points: the axis, and the place on it.

A name is split into words, at capitals too, and each word is looked up: an axis (x, y, col, row), a side
(left, top, right, bottom), a size (w, width, h, height), an end (min, max, start, end ...) or a centre
(c, center). A letter of an axis may be joined to another word: xmin, cx, ytl. Other words, such as bbox, say
nothing.

    xmin, ymin, xmax, ymax    corners              x, y, w, h               a point and a size
    YMin, XMin, YMax, XMax    corners, y first     cx, cy, w, h             a centre and a size
    x1, x2, y1, y2            corners, x first     left, top, width, height a corner and a size
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from packer.errors import UsageError

X, Y = 0, 1
_LOW, _HIGH, _SIZE, _CENTRE = "low", "high", "size", "centre"
_AXES = {"x": X, "y": Y, "col": X, "cols": X, "column": X, "row": Y, "rows": Y}
_CELLS = {"c": X, "r": Y}  # only if no name has an x, a y or a side: c1, r1, c2, r2
_SIDES = {"left": (X, _LOW), "right": (X, _HIGH), "top": (Y, _LOW), "bottom": (Y, _HIGH)}
_SIDES |= {side[0]: meaning for side, meaning in _SIDES.items()}
_SIZES = {"w": X, "width": X, "h": Y, "height": Y}
_KINDS = dict.fromkeys(
    ["min", "low", "lower", "lo", "start", "begin", "first", "from", "tl", "lt", "ul"], _LOW
)
_KINDS |= dict.fromkeys(["max", "high", "upper", "hi", "end", "stop", "last", "to", "br", "rb", "lr"], _HIGH)
_KINDS |= dict.fromkeys(["size", "len", "length", "extent"], _SIZE)
_KINDS |= dict.fromkeys(["c", "center", "centre", "ctr", "mid", "middle"], _CENTRE)
_LEVELS = {_LOW: -1, _HIGH: 1}


class _Meaning(NamedTuple):
    """Meaning of a name. axis: X, Y or None; kind: an end, size or centre, or ""; number: in the name."""

    axis: int | None
    kind: str
    number: int
    rest: tuple[str, ...]
    """The words without the axis: equal for the x and the y of a point."""


class BoxNames(NamedTuple):
    """Meaning of four names: order of the columns as x, y, x, y or x, y, width, height; the format.

    certain: False for x, y, w, h, where x and y may be a corner or a centre.
    """

    order: tuple[int, ...]
    format: str
    certain: bool


def box_names(names: Sequence[str]) -> BoxNames | None:
    """Return what the names of four box columns say, None if they say no axis. Raises UsageError.

    >>> box_names(["ymin", "xmin", "ymax", "xmax"])
    BoxNames(order=(1, 0, 3, 2), format='xyxy', certain=True)
    >>> box_names(["a", "b", "c", "d"])
    """
    alike = all(len(name) == 2 and name.isalpha() and name[0] == names[0][0] for name in names)
    found = _meanings([name[1:] for name in names] if alike else names)  # bx, by, bw, bh
    axes = [one.axis for one in found]
    if all(axis in (None, place % 2) for place, axis in enumerate(axes)) and None in axes:
        return None  # silent, or what is said agrees with x, y, x, y
    across, down = (_along(found, [k for k in range(4) if axes[k] == axis]) for axis in (X, Y))
    if across is None or down is None or (across[2] == "corners") != (down[2] == "corners"):
        raise UsageError(
            f"boxes {','.join(names)}: the names say no order; two corners, or a corner or centre and the "
            "width "
            "and height are needed. Pass columns of one kind, or labels=Labels(boxes_format='xyxy') "
            "if they are left, top, right, bottom in this order."
        )
    kinds = {across[2], down[2]}
    format = "xyxy" if kinds == {"corners"} else "cxcywh" if _CENTRE in kinds else "xywh"
    return BoxNames((across[0], down[0], across[1], down[1]), format, certain=kinds != {"plain"})


def point_order(names: Sequence[str]) -> list[int] | None:
    """Return the columns of points in the order x, y, x, y ...; None if their names say no axis.

    Raises UsageError for a pair of columns that are not an x and a y, unless the names of both say no axis.

    >>> point_order(["nose_y", "nose_x", "tail_y", "tail_x"])
    [1, 0, 3, 2]
    """
    found = _meanings(names, sides=False)
    silent = [name for name, one in zip(names, found, strict=True) if one.axis is None]
    if len(silent) == len(names):
        return None
    places: dict[tuple[str, ...], dict[int | None, int]] = {}
    for place, one in enumerate(found):
        places.setdefault(one.rest, {}).setdefault(one.axis, place)
    if not silent and all(len(pair) == 2 for pair in places.values()) and 2 * len(places) == len(names):
        return [place for pair in places.values() for place in (pair[X], pair[Y])]
    pairs = [sorted((k, k + 1), key=lambda at: found[at].axis or 0) for k in range(0, len(names) - 1, 2)]
    told = [{found[x].axis, found[y].axis} for x, y in pairs]
    if any(axes not in ({X, Y}, {None}) for axes in told):
        reason = f"{silent[0]} is neither an x nor a y" if silent else "they are not pairs of an x and a y"
        raise UsageError(
            f"keypoints {','.join(names)[:200]}: {reason}, by their names; each point has an x and a y. "
            "Pass only these columns."
        )
    return [place for pair in pairs for place in pair]


def size_name(name: str) -> tuple[int, tuple[str, ...]] | None:
    """Return X for a name of widths and Y for one of heights, and its other words; None for other names.

    >>> size_name("img_width"), size_name("ImgHeight"), size_name("score")
    ((0, ('img',)), (1, ('img',)), None)
    """
    found = _meaning(name, _AXES)
    return (found.axis, found.rest) if found.kind == _SIZE and found.axis is not None else None


def _meanings(names: Sequence[str], *, sides: bool = True) -> list[_Meaning]:
    """Return the meaning of each name. sides: sides and sizes tell an axis, too."""
    cells, found = ([_meaning(name, letters, sides=sides) for name in names] for letters in (_CELLS, _AXES))
    if any(one.axis is None for one in found) and all(one.axis is not None for one in cells):
        return cells
    for first in range(len(names) - 1):  # neighbours that differ in one letter: eyex, eyey; bw, bh
        pair = names[first].lower(), names[first + 1].lower()
        differing = "".join(sorted(a + b for a, b in zip(*pair, strict=False) if a != b))
        if found[first].axis is found[first + 1].axis is None and len(pair[0]) == len(pair[1]):
            for both, kind in (("xy", ""), ("wh", _SIZE)) if sides else (("xy", ""),):
                if differing in (both, both[::-1]):
                    rest = (pair[0].replace(differing[0], "?"),)
                    found[first] = _Meaning(both.index(differing[0]), kind, -1, rest)
                    found[first + 1] = _Meaning(both.index(differing[1]), kind, -1, rest)
    return found


def _words(name: str) -> list[str]:
    return re.findall(r"[^\W\d_]+|[0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).lower())


def _meaning(name: str, letters: dict[str, int], *, sides: bool = True) -> _Meaning:
    """Return the meaning of a name. letters: words of axes; sides: sides and sizes tell an axis, too."""
    axis, kind, number = None, "", -1
    side: list[tuple[int, str]] = []
    sized: int | None = None
    rest = []
    for word in _words(name):
        rest.append(word)
        joined = word
        if word in letters:
            axis = letters[rest.pop()]
            continue
        for letter, inner in ((word[:1], word[1:]), (word[-1:], word[:-1])):
            if letter in letters and (inner in _KINDS or inner in _SIDES or inner in _SIZES):
                axis, joined, rest[-1] = letters[letter], inner, inner
                break
        if word.isdecimal():
            number = int(word[:9])
        elif joined in _SIZES and sides:
            sized = _SIZES[joined]
            rest.pop()
        elif joined in _SIDES and not (letters is _CELLS and joined == "r"):
            side.append(_SIDES[joined])
        elif joined in _KINDS:
            kind = _KINDS[joined]
    if axis is None and sides:
        told = {along for along, _ in side}
        axis = sized if sized is not None else told.pop() if len(told) == 1 else None
    if sized is not None:
        kind = _SIZE
    elif side:
        kind = next((end for along, end in side if along == axis), side[0][1])
    return _Meaning(axis, kind, number, tuple(rest))


def _along(found: Sequence[_Meaning], places: list[int]) -> tuple[int, int, str] | None:
    """Return the two columns of an axis in order, and "corners", or what their first is beside a size.

    That is "corner", "centre" or "plain". None if the names do not say it.
    """
    if len(places) != 2:
        return None
    one, two = (found[place] for place in places)
    sized = [meaning.kind == _SIZE for meaning in (one, two)]
    if sized == [True, True]:
        return None
    if any(sized):
        first, second = places if sized[1] else places[::-1]
        start = found[first]
        told = start.kind == _LOW or start.number >= 0
        return first, second, _CENTRE if start.kind == _CENTRE else "corner" if told else "plain"
    if _CENTRE in (one.kind, two.kind):
        return None
    first, second = sorted(places, key=lambda k: (_LEVELS.get(found[k].kind, 0), found[k].number))
    return first, second, "corners"
