"""Columns of a CSV of boxes or points that were not chosen: the class of the objects, the images' sizes.

The first rows show what a column holds:

    texts that come again                     classes
    one text in all rows, few whole numbers   classes, unless a column holds such texts
    one number in all rows                    classes, if no other column may hold them
    widths and heights                        sizes of the images, if they are whole, equal in all rows of an
                                              image, and as large as its coordinates
    measures, texts that differ in each row   not read
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import NamedTuple

from packer.errors import UsageError
from packer.inputs.coordinate_names import X, Y, size_name
from packer.inputs.file_names import first_few, shorten
from packer.inputs.label_options import Labels
from packer.inputs.label_values import NUMBER

_FEW = 20  # rows of a file too small to show that cells come again
_MOST_NUMBERS = 100
_MOST_DEVIATING = 0.05  # share of rows whose points lie outside their image
_WHOLE = re.compile(r"[0-9]{1,9}(?:\.0*)?")


class SpareColumns(NamedTuple):
    """Columns that were not chosen. label: of the classes, or None; sizes: of widths and heights, or none."""

    label: str | None = None
    sizes: tuple[str, ...] = ()
    note: str = ""


def find_spare(
    labels: Labels, header: Sequence[str], file: int, taken: Collection[str], rows: Sequence[Sequence[str]]
) -> SpareColumns:
    """Return the columns to read besides those taken.

    header: names of the columns. file: index of the column of file names. rows: the first rows; those of
    another width are ignored. Raises: UsageError if several columns may hold the classes.
    """
    cells = [[cell.strip() for cell in row] for row in rows if len(row) == len(header)]
    if not cells:
        return SpareColumns()
    columns = dict(zip(header, zip(*cells, strict=True), strict=False))
    free = [name for name in header if name and name not in taken and header.count(name) == 1]
    spare = {name: columns[name] for name in free if name != header[file]}
    located = [*labels.columns("boxes"), *labels.columns("keypoints")]
    coordinates = [columns[name] for name in located] if labels.boxes_unit != "relative" else []
    sizes = _sizes(spare, columns[header[file]], coordinates)
    if labels.column is not None:
        return SpareColumns(None, sizes)
    others = {name: texts for name, texts in spare.items() if name not in sizes}
    label, note = _class_column(labels, others)
    return SpareColumns(label, sizes, note)


def _class_column(labels: Labels, spare: dict[str, tuple[str, ...]]) -> tuple[str | None, str]:
    """Return the column of the classes, or None, and a note. Raises: UsageError if it is not clear."""
    field, none = "box_label" if labels.boxes else "label", "labels=Labels(column='')"
    ranks = {name: _rank(texts) for name, texts in spare.items() if size_name(name) is None}
    best = max(ranks.values(), default=0)
    found = [name for name, rank in ranks.items() if rank == best > 0]
    shown = [f"{name} ({first_few(_distinct(spare[name]))})" for name in found[:3]]
    if len(found) > 1:
        raise UsageError(
            f"{os.fspath(labels.file or '')}: columns {' and '.join(shown)} may hold the classes; one of "
            f"them becomes {field}. Pass labels=Labels(column={found[0]!r}), or {none} to read none."
        )
    left = [name for name in spare if name not in found]
    unread = f"{shorten(', '.join(left))} {'are' if len(left) > 1 else 'is'} not read"
    if found:
        note = f"{field} is the column {shown[0]}{f'; {unread}' if left else ''}."
        return found[0], f"{note} labels=Labels(column=) chooses another column, {none} none."
    note = f"There is no {field}: {unread}; labels=Labels(column=) chooses a column."
    return None, note if left else ""


def whole_pixels(text: str) -> int:
    """Return the number of pixels in a cell, 0 if it is no whole number."""
    return int(float(text)) if _WHOLE.fullmatch(text) else 0


def _sizes(
    spare: dict[str, tuple[str, ...]], owners: Sequence[str], coordinates: Sequence[Sequence[str]]
) -> tuple[str, ...]:
    """Return the columns of the images' widths and heights, () if there are none or several."""
    pairs: dict[tuple[str, ...], dict[int, str]] = defaultdict(dict)
    for name in spare:
        if (told := size_name(name)) is not None:
            axis, rest = told
            pairs[rest][axis] = name
    largest = [max(map(_value, cells)) for cells in zip(*coordinates, strict=True)]
    found = []
    for pair in pairs.values():
        names = tuple(pair[axis] for axis in (X, Y) if axis in pair)
        if len(names) == 2 and all(_of_images(spare[name], owners) for name in names):
            sides = map(max, *(map(_value, spare[name]) for name in names))
            beyond = sum(most > 1.02 * side for most, side in zip(largest, sides, strict=False))
            if beyond <= _MOST_DEVIATING * len(owners):
                found.append(names)
    return found[0] if len(found) == 1 else ()


def _of_images(texts: Sequence[str], owners: Sequence[str]) -> bool:
    """Return True if a column holds whole numbers that are equal in all rows of an image."""
    return all(map(_WHOLE.fullmatch, texts)) and len({*zip(owners, texts, strict=True)}) == len({*owners})


def _value(text: str) -> float:
    return float(text) if NUMBER.fullmatch(text) else 0.0


def _rank(texts: Sequence[str]) -> int:
    """Return how likely a column holds classes.

    3: texts that come again; 2: one text in all rows, or few whole numbers; 1: one number; 0: others.
    """
    given, distinct = [text for text in texts if text], _distinct(texts)
    few = 2 * len(distinct) <= len(given) or len(distinct) < len(given) <= _FEW or len(given) <= 5
    if not given or not few:
        return 0
    varied = len(distinct) > 1
    if not all(map(NUMBER.fullmatch, distinct)):
        return 2 + varied
    whole = len(distinct) <= _MOST_NUMBERS and all(map(_WHOLE.fullmatch, distinct))
    return 1 + varied if whole else 0


def _distinct(texts: Sequence[str]) -> list[str]:
    """Return the different cells that are not empty."""
    return [text for text in dict.fromkeys(texts) if text]
