"""Order and format of the columns of boxes and points: names decide, else values, else the order given.

    xyxy      left, top, right, bottom
    xywh      left, top, width, height
    cxcywh    x and y of the centre, width, height

Values contradict a reading if more than a few boxes would have no area or lie outside their image, and fit in
another reading. They decide if the names say nothing; else that is an error. A given format is believed,
unless the names say another order and the values agree with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.given_values import option_text
from packer.inputs.coordinate_names import box_names, point_order
from packer.inputs.file_names import first_few
from packer.pixels.coordinate_units import FORMATS

_PARTS = {
    "xyxy": "left, top, right, bottom",
    "xywh": "left, top, width, height",
    "cxcywh": "centre x, centre y, width, height",
}
_FORMAT = "Labels.boxes_format"
_MOST_WRONG = 0.05  # share of boxes beyond their image, as careless annotations have
_UNEVEN = 4  # times as many boxes outside in the wrong reading
_SLACK = 0.02  # of a side: how far boxes may reach out of their image
_AS_GIVEN = (0, 1, 2, 3)
_SWAPPED = (1, 0, 3, 2)


class BoxReading(NamedTuple):
    """order: the columns as x, y, x, y or x, y, width, height; format: one of FORMATS."""

    order: tuple[int, ...] = _AS_GIVEN
    format: str = "xyxy"

    def corners(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return left, top, right, bottom, [R, 4], of boxes [R, 4] as they are in the file."""
        start, end = values[:, self.order[:2]], values[:, self.order[2:]]
        if self.format == "cxcywh":
            start = start - end / 2
        return np.hstack([start, end if self.format == "xyxy" else start + end])

    def named(self, names: Sequence[str]) -> list[str]:
        """Return the names of the columns in this order."""
        return [names[place] for place in self.order]

    def words(self, names: Sequence[str]) -> str:
        """Return the parts and the columns that hold them, for messages. names: () without columns."""
        return _PARTS[self.format] + (f" in the columns {', '.join(self.named(names))}" if names else "")

    def options(self, names: Sequence[str]) -> str:
        """Return the options that choose this reading, for messages."""
        format = option_text(_FORMAT, self.format)
        if self.order == _AS_GIVEN:
            return format
        return f"labels=Labels(boxes={','.join(self.named(names))!r}) and {format}"


_READINGS = (
    *(BoxReading(order) for order in (_AS_GIVEN, _SWAPPED, (0, 2, 1, 3))),
    *(BoxReading(format=format) for format in FORMATS[1:]),
)
"""What columns without telling names may hold."""


@dataclass(frozen=True)
class BoxColumns:
    """Four numbers for each box, as they are in a file.

    subject: the file. names: of the columns, () if a format defines them. values: [R, 4]. sizes: width and
    height of the image of each box, [R, 2], NaN if unknown; 1 if `relative`.
    """

    subject: str
    names: Sequence[str]
    values: NDArray[np.float64]
    sizes: NDArray[np.float64]
    relative: bool = False

    def wrong(self, reading: BoxReading) -> int:
        """Return how many boxes have no area, or reach out of their image by more than slack."""
        low, high = np.hsplit(reading.corners(self.values), 2)
        slack = _SLACK * self.sizes + (0 if self.relative else 1)
        return int(((high <= low) | (low < -slack) | (high > self.sizes + slack)).any(axis=1).sum())

    def better(self, reading: BoxReading, others: Sequence[BoxReading]) -> list[BoxReading]:
        """Return the other readings in which all boxes fit, if more than a few do not fit in `reading`."""
        if self.wrong(reading) <= max(1, _MOST_WRONG * len(self.values)):
            return []
        return [one for one in others if one != reading and not self.wrong(one)]

    def found(self, reading: BoxReading) -> str:
        """Return what contradicts a reading, for messages."""
        count = f"{self.wrong(reading):,} of {len(self.values):,} boxes"
        return f"{count} have no area or lie outside their image"

    def refusal(self, reading: BoxReading, why: str, fitting: Sequence[BoxReading]) -> UsageError:
        """Return the error for boxes that do not fit in a reading. why: what speaks for it."""
        ways, names = fitting[:2], self.names
        return UsageError(
            f"{self.subject}: read as {reading.words(names)}{why}, {self.found(reading)}; all fit as "
            f"{' and as '.join(one.words(names) for one in ways)}. Pass "
            f"{' or '.join(one.options(names) for one in ways)}, or {reading.options(names)} to read them so."
        )


def read_boxes(columns: BoxColumns, format: str | None = None) -> tuple[BoxReading, str]:
    """Return how the columns of boxes are read, and a note, "" if they are named as they are given.

    format: one of FORMATS, for columns in the given order.
    Raises: UsageError if names and values contradict, or if neither says where x, y, w, h have their origin.
    """
    if format is not None:
        return _as_told(columns, format)
    names = columns.names
    told = box_names(names) if names else None
    if told is not None and not told.certain:
        return _corner_or_centre(columns, told.order)
    reading = BoxReading() if told is None else BoxReading(told.order, told.format)
    known = [one for one in _READINGS if names or one.order == _AS_GIVEN]
    others = [BoxReading(tuple(reading.order[place] for place in one.order), one.format) for one in known]
    fitting = columns.better(reading, others)
    begin = f"{columns.subject}: boxes are"
    if told is None and len(fitting) == 1:
        return fitting[0], (
            f"{begin} {fitting[0].words(names)}, as their values say: read as {_PARTS['xyxy']}, "
            f"{columns.found(reading)}. To read them so, pass {option_text(_FORMAT, 'xyxy')}."
        )
    if fitting:
        raise columns.refusal(reading, ", as their names say" if told else "", fitting)
    if told is None:
        if not names:
            return reading, f"{begin} {reading.words(names)}, as given."
        swapped = option_text("Labels.boxes", ",".join(BoxReading(_SWAPPED).named(names)))
        how = f"as given; their names say nothing. If y comes first, pass {swapped}"
        return reading, f"{begin} {reading.words(names)}, {how}."
    return reading, "" if reading == BoxReading() else f"{begin} {reading.words(names)}, as their names say."


def _as_told(columns: BoxColumns, format: str) -> tuple[BoxReading, str]:
    """Return the reading of columns in the order that `format` tells."""
    names, given, option = columns.names, BoxReading(format=format), option_text(_FORMAT, format)
    try:
        told = box_names(names) if names else None
    except UsageError:
        told = None
    if told is None or told.order == given.order:
        return given, ""
    named = BoxReading(told.order, told.format)
    if columns.better(given, [named]):
        raise UsageError(
            f"{columns.subject}: read as {given.words(names)}, {columns.found(given)}; all fit as "
            f"{named.words(names)}, as their names say. Leave out {option}."
        )
    how = f"as {option} says; their names say another order"
    return given, f"{columns.subject}: boxes are {given.words(names)}, {how}."


def _corner_or_centre(columns: BoxColumns, order: tuple[int, ...]) -> tuple[BoxReading, str]:
    """Return the reading of columns called x, y, w, h: boxes near the edges show which one is right."""
    subject, names = columns.subject, columns.names
    corner, centre, corners = (BoxReading(order, format) for format in ("xywh", "cxcywh", "xyxy"))
    (few, best), (many, other) = sorted(
        ((columns.wrong(one), one) for one in (corner, centre)), key=lambda way: way[0]
    )
    if many > _UNEVEN * few:
        return best, (
            f"{subject}: boxes are {best.words(names)}, as their values say: read as {_PARTS[other.format]}, "
            f"{columns.found(other)}. To read them so, pass {other.options(names)}."
        )
    if few and columns.better(corner, [corners]):
        raise columns.refusal(corner, ", as their names say", [corners])
    if columns.relative or many:
        raise UsageError(
            f"{subject}: {', '.join(corner.named(names))} may be {_PARTS['xywh']} or {_PARTS['cxcywh']}; "
            f"names and values do not tell. Pass {corner.options(names)} or {centre.options(names)}."
        )
    how = f"as COCO has them. If x and y are of the centre, pass {centre.options(names)}"
    return corner, f"{subject}: boxes are {corner.words(names)}, {how}."


def read_coco_boxes(columns: BoxColumns, format: str | None) -> BoxReading:
    """Return how boxes are read in a file whose format is left, top, width, height.

    format: one of FORMATS instead. Raises: UsageError if the boxes only fit in another format.
    """
    reading = BoxReading(format=format or "xywh")
    fitting = columns.better(reading, [] if format else [BoxReading(format=one) for one in FORMATS])
    if fitting:
        raise columns.refusal(reading, "", fitting[:1])
    return reading


def read_points(
    subject: str, names: Sequence[str], values: NDArray[np.float64], sizes: NDArray[np.float64]
) -> tuple[list[int], str]:
    """Return the columns of points in the order x, y, x, y ..., and a note, "" if that is the order given.

    values: [R, 2K], NaN for missing; sizes: see `BoxColumns`.
    Raises: UsageError if the points fit into their images only with x and y exchanged from what names say.
    """
    given, named = list(range(len(names))), point_order(names)
    order = given if named is None else named
    swapped = [order[place ^ 1] for place in given]
    outside, others = (
        (values[:, places].reshape(len(values), -1, 2) > (1 + _SLACK) * sizes[:, None]).any(axis=2)
        for places in (order, swapped)
    )
    there = int(np.isfinite(values[:, ::2]).sum())
    if outside.sum() > max(1, _MOST_WRONG * there) and not others.any():
        found = f"{int(outside.sum()):,} of {there:,} points lie outside their image"
        found += ", and none with x and y exchanged"
        if named is not None:
            raise UsageError(
                f"{subject}: as the names of the columns {first_few(names, 4)} say, {found}; names and "
                "values have to agree. Correct the names in the first row."
            )
        columns = first_few(names, 4)
        return swapped, f"{subject}: points are y, x in the columns {columns}, as their values say: {found}."
    if order == given:
        return order, ""
    columns = first_few([names[place] for place in order], 4)
    return order, f"{subject}: points are x, y in the columns {columns}, as their names say."
