"""Units of boxes and keypoints: pixels, or fractions of the image's sides."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.given_values import option_text

UNITS = ("relative", "pixels")
FORMATS = ("xyxy", "xywh", "cxcywh")
"""Formats of boxes, as torchvision calls them."""
FRAMES = ("upright", "stored")
"""Frames of coordinates: the image turned upright by its EXIF orientation, or the picture before that."""
LEAST_PIXELS = 2
"""Pixel coordinates reach at least this maximum; relative ones reach 1, or slightly more if not clipped."""


def check_unit(
    subject: str, name: str, coordinates: Iterable[NDArray[Any]], unit: str | None, option: str | None
) -> None:
    """Raise UsageError if no unit is given and coordinates look relative to the image's sides, or vice versa.

    name: of the field; coordinates: all of them, in parts, NaN for missing; option: name of the Option that
    sets the unit, None if there is none.
    """
    if unit == "pixels":
        return
    largest = float(
        np.fmax.reduce([0.0, *(np.fmax.reduce(part, axis=None) for part in coordinates if part.size)])
    )
    if unit is not None and option is not None and largest >= LEAST_PIXELS:
        raise UsageError(
            f"{subject}: the largest coordinate of its {name} is {largest:.4g}; shares of an image's width "
            "and "
            f"height are about 1 at most. Leave out {option_text(option, unit)}."
        )
    if unit is None and 0 < largest < LEAST_PIXELS:
        problem = (
            f"{subject}: the largest coordinate of its {name} is {largest:.4g}, like shares of an image's"
            " width"
            " and height"
        )
        if option is None:
            raise UsageError(
                f"{problem}; pixels are expected. Multiply by these, or give the field another name."
            )
        raise UsageError(
            f"{problem}; pixels are expected. Pass {option_text(option, 'relative')}, or "
            f"{option_text(option, 'pixels')} if they are pixels."
        )
