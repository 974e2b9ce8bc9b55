"""Coordinates that look like shares of the image's sides."""

from __future__ import annotations

import numpy as np
import pytest

from packer.errors import UsageError
from packer.pixels.coordinate_units import check_unit

NAN = np.nan


@pytest.mark.parametrize(
    "parts",
    [
        [[0.5, 30]],
        [[NAN, NAN], [0.5, 2]],
        [[NAN, NAN]],
        [[0, 0]],  # points that are not seen, in some data sets
        [[]],
        [],
    ],
    ids=str,
)
def test_pixels(parts: list[list[float]]) -> None:
    check_unit("l.csv", "boxes", [np.array(part, np.float64) for part in parts], None, "Labels.boxes_unit")


def test_shares() -> None:
    parts = [np.array([NAN, NAN]), np.array([0.25, 1.01]), np.array([0.0, 0.5])]  # a box that was not clipped
    with pytest.raises(UsageError) as caught:
        check_unit("l.csv", "boxes", parts, None, "Labels.boxes_unit")
    assert str(caught.value) == (
        "l.csv: the largest coordinate of its boxes is 1.01, like shares of an image's width and height; pixels are expected."
        " Pass labels=Labels(boxes_unit='relative'), or labels=Labels(boxes_unit='pixels') if they are pixels."
    )
    for unit in ("relative", "pixels"):
        check_unit("l.csv", "boxes", parts, unit, "Labels.boxes_unit")
