"""Order and format of the columns of boxes and points: names decide, else values, else the order given.

    xyxy      left, top, right, bottom
    xywh      left, top, width, height
    cxcywh    x and y of the centre, width, height

Values contradict a reading if more than a few boxes would have no area or lie outside their image, and fit in
another reading. They decide if the names say nothing; else that is an error. A given format is believed, unless
the names say another order and the values agree with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.inputs.coordinate_names import box_names, point_order
from packer.pixels.coordinate_units import FORMATS
from packer.sentence import Option, Sentence

_PARTS = {
    "xyxy": "left, top, right, bottom",
    "xywh": "left, top, width, height",
    "cxcywh": "centre x, centre y, width, height",
}
_FORMAT = "Labels.boxes_format"
_MOST_WRONG = 0.05  # share of boxes beyond their image, as careless annotations have
_UNEVEN = 4  # times as many boxes outside in the wrong reading
_SLACK = 0.02  # of a side: how far boxes may reach out of their image


class BoxReading(NamedTuple):
    """order: the columns as x, y, x, y or x, y, width, height; format: one of FORMATS."""

    order: tuple[int, ...]
    format: str

    def corners(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return left, top, right, bottom, [R, 4], of boxes [R, 4] as they are in the file."""
        start, end = values[:, self.order[:2]], values[:, self.order[2:]]
        if self.format == "cxcywh":
            start = start - end / 2
        return np.hstack([start, end if self.format == "xyxy" else start + end])

    def words(self, names: Sequence[str]) -> str:
        """Return the parts and the columns that hold them, for messages."""
        return f"{_PARTS[self.format]} in the columns {', '.join(names[place] for place in self.order)}"

    def options(self, names: Sequence[str]) -> str:
        """Return the options that choose this reading, for messages."""
        columns = Option("Labels.boxes", ",".join(names[place] for place in self.order))
        moved = self.order != (0, 1, 2, 3)
        return f"{columns} and {Option(_FORMAT, self.format)}" if moved else f"{Option(_FORMAT, self.format)}"


_GIVEN = BoxReading((0, 1, 2, 3), "xyxy")
_READINGS = (
    _GIVEN,
    BoxReading((1, 0, 3, 2), "xyxy"),
    BoxReading((0, 2, 1, 3), "xyxy"),
    *(BoxReading((0, 1, 2, 3), format) for format in FORMATS[1:]),
)
"""What columns without telling names may hold."""


def read_boxes(
    subject: str,
    names: Sequence[str],
    values: NDArray[np.float64],
    sizes: NDArray[np.float64],
    *,
    format: str | None = None,
    relative: bool = False,
) -> tuple[BoxReading, Sentence | None]:
    """Return how the columns of boxes are read, and a note unless they are named as they are given.

    subject: the file. names, values: the four columns, [R, 4]. sizes: width and height of the image of each
    box, [R, 2], NaN if unknown; 1 if relative. format: one of FORMATS, for columns in the given order.
    Raises: UsageError if names and values contradict, or if neither says where x, y, w, h have their origin.
    """
    if format is not None:
        return _as_told(subject, names, values, sizes, format, relative)
    told = box_names(names)
    named = None if told is None else BoxReading(told.order, told.format)
    if told is not None and not told.certain:
        return _corner_or_centre(subject, names, BoxReading(told.order, "xywh"), values, sizes, relative)
    reading = named or _GIVEN
    others = [BoxReading(tuple(reading.order[place] for place in one.order), one.format) for one in _READINGS]
    others += [BoxReading(reading.order, one) for one in FORMATS]
    fitting = _contradict(reading, list(dict.fromkeys(others)), values, sizes, relative)
    if not fitting:
        how = "as their names say."
        if named is None:
            how = f"as given; their names say nothing. If y comes first, pass {_example(names)}."
        note = Sentence(f"{subject}: boxes are {reading.words(names)}, {how}")
        return reading, None if named == _GIVEN else note
    wrong = int(_misfits(reading, values, sizes, relative).sum())
    found = f"{wrong:,} of {len(values):,} boxes have no area or lie outside their image"
    if named is None and len(fitting) == 1:
        return fitting[0], Sentence(
            f"{subject}: boxes are {fitting[0].words(names)}, as their values say: read as {_PARTS['xyxy']}, "
            f"{found}. To read them so, pass {Option(_FORMAT, 'xyxy')}."
        )
    said = f"read as {reading.words(names)}{', as their names say' if named else ''}"
    raise UsageError(
        f"{subject}: {said}, {found}; all fit as {' and as '.join(one.words(names) for one in fitting[:2])}. Pass "
        f"{' or '.join(one.options(names) for one in fitting[:2])}, or {reading.options(names)} to read them so."
    )


def _example(names: Sequence[str]) -> str:
    """Return the option for columns that hold y before x."""
    return f"{Option('Labels.boxes', ','.join(names[place] for place in (1, 0, 3, 2)))}"


def _as_told(
    subject: str,
    names: Sequence[str],
    values: NDArray[np.float64],
    sizes: NDArray[np.float64],
    format: str,
    relative: bool,
) -> tuple[BoxReading, Sentence | None]:
    """Return the reading of columns in the order that `format` tells."""
    given = BoxReading((0, 1, 2, 3), format)
    try:
        told = box_names(names)
    except UsageError:
        told = None
    if told is None or told.order == given.order:
        return given, None
    named = BoxReading(told.order, told.format)
    if _contradict(given, [named], values, sizes, relative):
        raise UsageError(
            f"{subject}: read as {given.words(names)}, boxes have no area or lie outside their image; as "
            f"{named.words(names)} all fit. Leave out {Option(_FORMAT, format)}."
        )
    return given, Sentence(
        f"{subject}: boxes are {given.words(names)}, as {Option(_FORMAT, format)} says; their names say another "
        "order."
    )


def _corner_or_centre(
    subject: str,
    names: Sequence[str],
    corner: BoxReading,
    values: NDArray[np.float64],
    sizes: NDArray[np.float64],
    relative: bool,
) -> tuple[BoxReading, Sentence]:
    """Return the reading of columns called x, y, w, h: boxes near the edges show which one is right."""
    centre = BoxReading(corner.order, "cxcywh")
    wrong = [int(_misfits(one, values, sizes, relative).sum()) for one in (corner, centre)]
    if max(wrong) > _UNEVEN * min(wrong):
        best = (corner, centre)[wrong[0] > wrong[1]]
        other = (corner, centre)[wrong[0] <= wrong[1]]
        return best, Sentence(
            f"{subject}: boxes are {best.words(names)}, as their values say: read as {_PARTS[other.format]}, "
            f"{max(wrong):,} of {len(values):,} lie outside their image. To read them so, pass "
            f"{other.options(names)}."
        )
    corners = BoxReading(corner.order, "xyxy")
    if min(wrong) and _contradict(corner, [corners], values, sizes, relative):
        raise UsageError(
            f"{subject}: read as {corner.words(names)}, as their names say, {wrong[0]:,} of {len(values):,} boxes lie "
            f"outside their image; all fit as {corners.words(names)}. Pass {corners.options(names)}, or "
            f"{corner.options(names)} to read them so."
        )
    if relative or max(wrong):
        raise UsageError(
            f"{subject}: {', '.join(names[place] for place in corner.order)} may be {_PARTS['xywh']} or "
            f"{_PARTS['cxcywh']}; names and values do not tell. Pass {corner.options(names)} or "
            f"{centre.options(names)}."
        )
    return corner, Sentence(
        f"{subject}: boxes are {corner.words(names)}, as COCO has them. If x and y are of the centre, pass "
        f"{centre.options(names)}."
    )


def read_coco_boxes(
    subject: str,
    values: NDArray[np.float64],
    sizes: NDArray[np.float64],
    checked: NDArray[np.bool_],
    format: str | None,
) -> NDArray[np.float64]:
    """Return left, top, right, bottom of boxes in a file whose format is left, top, width, height.

    values, sizes: as for `read_boxes`. checked: the boxes that count, bool [R]. format: one of FORMATS instead.
    Raises: UsageError if the boxes only fit in another format.
    """
    reading = BoxReading(_GIVEN.order, format or "xywh")
    others = [] if format else [BoxReading(_GIVEN.order, one) for one in FORMATS]
    values_checked, sizes_checked = values[checked], sizes[checked]
    fitting = _contradict(reading, others, values_checked, sizes_checked, relative=False)
    if fitting:
        wrong = int(_misfits(reading, values_checked, sizes_checked, relative=False).sum())
        raise UsageError(
            f"{subject}: read as {_PARTS[reading.format]}, {wrong:,} of {len(values_checked):,} boxes have no area "
            f"or lie outside their image; all fit as {_PARTS[fitting[0].format]}. Pass "
            f"{Option(_FORMAT, fitting[0].format)}, or {Option(_FORMAT, reading.format)} to read them so."
        )
    return reading.corners(values)


def read_points(
    subject: str, names: Sequence[str], values: NDArray[np.float64], sizes: NDArray[np.float64]
) -> tuple[list[int], Sentence | None]:
    """Return the columns of points in the order x, y, x, y ..., and a note if that is not the order given.

    values: [R, 2K], NaN for missing; sizes: as for `read_boxes`.
    Raises: UsageError if the points fit into their images only with x and y exchanged from what names say.
    """
    named = point_order(names)
    order = list(range(len(names))) if named is None else named
    swapped = [place ^ 1 for place in range(len(names))]
    outside, others = (
        ((values[:, places].reshape(len(values), -1, 2) - sizes[:, None]) > _SLACK * sizes[:, None]).any(
            axis=2
        )
        for places in (order, [order[place] for place in swapped])
    )
    there = int(np.isfinite(values[:, ::2]).sum())
    if outside.sum() > max(1, _MOST_WRONG * there) and not others.any():
        found = f"{int(outside.sum()):,} of {there:,} points lie outside their image, and none with x and y exchanged"
        if named is not None:
            raise UsageError(
                f"{subject}: as the names of the columns {_shown(names)} say, {found}; names and values have to "
                "agree. Correct the names in the first row."
            )
        order = [order[place] for place in swapped]
        return order, Sentence(
            f"{subject}: points are y, x in the columns {_shown(names)}, as their values say: {found}."
        )
    if order == list(range(len(names))):
        return order, None
    shown = _shown([names[place] for place in order])
    return order, Sentence(f"{subject}: points are x, y in the columns {shown}, as their names say.")


def _contradict(
    reading: BoxReading,
    others: Sequence[BoxReading],
    values: NDArray[np.float64],
    sizes: NDArray[np.float64],
    relative: bool,
) -> list[BoxReading]:
    """Return the other readings in which all boxes fit, if more than a few do not fit in `reading`."""
    wrong = int(_misfits(reading, values, sizes, relative).sum())
    if wrong <= max(1, _MOST_WRONG * len(values)):
        return []
    return [one for one in others if one != reading and not _misfits(one, values, sizes, relative).any()]


def _misfits(
    reading: BoxReading, values: NDArray[np.float64], sizes: NDArray[np.float64], relative: bool
) -> NDArray[np.bool_]:
    """Return True for each box that has no area, or reaches out of its image by more than slack."""
    xyxy = reading.corners(values)
    slack = _SLACK * sizes + (0 if relative else 1)
    empty = xyxy[:, 2:] <= xyxy[:, :2]
    wrong = empty | (xyxy[:, :2] < -slack) | (xyxy[:, 2:] > sizes + slack)
    return np.asarray(wrong.any(axis=1), np.bool_)


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (" ..." if len(names) > 4 else "")
