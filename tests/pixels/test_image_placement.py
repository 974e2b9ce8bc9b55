"""Where points, boxes and masks go, checked against the pixels themselves."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from packer.codecs.jpeg import EXIF_TAG
from packer.pixels.decode_resize import DecodeResize, PixelSpec
from packer.pixels.row_placement import FITS, Box, ImagePlacement

Encode = Callable[..., bytes]
sides = st.tuples(st.integers(1, 300), st.integers(1, 300))
fits = st.sampled_from(FITS)


def made(data: bytes, size: tuple[int, int], fit: str) -> tuple[Any, ImagePlacement]:
    """A grey row, and the geometry of the picture in it."""
    spec = PixelSpec(size, fit, "gray")
    out = np.empty(spec.shape, np.uint8)
    return out[..., 0], ImagePlacement.for_fit(fit, DecodeResize(spec)(data, out), size)


def test_points_of_a_crop_of_a_pad_and_of_a_stretch() -> None:
    corners = np.array([[[0, 0], [400, 200]], [[100, 0], [300, 200]]], np.float64)
    crop = ImagePlacement.for_fit("crop", (200, 400), (100, 100))
    assert (crop.box, crop.target) == (Box(0, 100, 200, 200), Box(0, 0, 100, 100))
    assert crop.points(corners).tolist() == [[[-50, 0], [150, 100]], [[0, 0], [100, 100]]]
    pad = ImagePlacement.for_fit("pad", (200, 400), (100, 100))
    assert pad.target == Box(25, 0, 50, 100)
    assert pad.points(corners).tolist() == [[[0, 25], [100, 75]], [[25, 25], [75, 75]]]
    stretch = ImagePlacement.for_fit("stretch", (200, 400), (100, 100))
    assert stretch.points(corners).tolist() == [[[0, 0], [100, 100]], [[25, 0], [75, 100]]]


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
@pytest.mark.parametrize(("format", "size"), [("PNG", (96, 96)), ("JPEG", (96, 96)), ("JPEG", (40, 64))])
def test_points_land_where_the_pixels_do(
    encode: Encode, fit: str, orientation: int, format: str, size: tuple[int, int]
) -> None:
    height, width = 301, 408
    upright = (height, width) if orientation < 5 else (width, height)
    y, x = np.mgrid[0 : upright[0], 0 : upright[1]] + 0.5
    for centre in ((upright[1] / 2 + 41.5, upright[0] / 2 - 60), (upright[1] / 2 - 70, upright[0] / 2 + 73)):
        blob = 255 * np.exp(-((x - centre[0]) ** 2 + (y - centre[1]) ** 2) / (2 * 9.0**2))
        turns = {1: 0, 3: 2, 6: 1, 8: 3}[orientation]  # stored so that the tag turns it upright
        stored = np.rot90(blob, turns).round().astype(np.uint8)
        exif = Image.Exif()
        exif[EXIF_TAG] = orientation
        row, geometry = made(encode(np.ascontiguousarray(stored), format, exif=exif), size, fit)
        assert geometry.source == upright
        rows, columns = np.mgrid[0 : size[0], 0 : size[1]] + 0.5
        weights = np.where(row > 12, row, 0).astype(np.float64)
        seen = np.array([(columns * weights).sum(), (rows * weights).sum()]) / weights.sum()
        expected = geometry.points(np.array(centre))
        # Turned pictures may be centred one source pixel aside, and a JPEG decoded at 1/2 is cut at whole pixels of that half.
        assert np.abs(seen - expected).max() < (0.4 if format == "PNG" else 1.0)


@given(sides, sides, fits)
def test_the_seen_part_fills_the_target(source: tuple[int, int], result: tuple[int, int], fit: str) -> None:
    geometry = ImagePlacement.for_fit(fit, source, result)
    box, target = geometry.box, geometry.target
    moved = geometry.points(
        np.array([[box.left, box.top], [box.left + box.width, box.top + box.height]], np.float64)
    )
    assert moved[0].tolist() == pytest.approx([target.left, target.top], abs=1e-9)
    assert moved[1].tolist() == pytest.approx([target.left + target.width, target.top + target.height])


def test_keypoints_outside_become_nan_and_edges_are_inside() -> None:
    geometry = ImagePlacement.for_fit("crop", (200, 400), (100, 100))
    points = np.array(
        [[100, 0], [300, 200], [200, 100], [99, 50], [200, -1], [200, 201], [np.nan, np.nan], [np.nan, 5]]
    )
    moved = geometry.keypoints(points)
    assert moved.dtype == np.float32
    assert moved[:3].tolist() == [[0, 0], [100, 100], [50, 50]]
    assert np.isnan(moved[3:]).all()


def test_keypoints_on_the_bars_of_a_pad_are_outside() -> None:
    geometry = ImagePlacement.for_fit("pad", (200, 400), (100, 100))
    assert np.isnan(geometry.keypoints(np.array([200.0, 201.0]))).all()
    assert geometry.keypoints(np.array([200.0, 200.0])).tolist() == [50, 75]


def test_boxes_are_clipped_and_those_without_area_marked() -> None:
    geometry = ImagePlacement.for_fit("crop", (200, 400), (100, 100))
    boxes, keep = geometry.boxes(
        np.array(
            [
                [150, 50, 250, 150],
                [0, 0, 400, 200],
                [0, 0, 100, 200],
                [99.9, 0, 100.5, 1],
                [300, 0, 400, 200],
            ],
            np.float64,
        )
    )
    assert boxes.dtype == np.float32
    assert keep.tolist() == [True, True, False, True, False]
    assert boxes[:2].tolist() == [[25, 25, 75, 75], [0, 0, 100, 100]]
    assert boxes[3].tolist() == [0, 0, 0.25, 0.5]


def test_a_box_too_thin_for_float32_is_marked() -> None:
    geometry = ImagePlacement.for_fit("stretch", (200, 200), (200, 200))
    boxes, keep = geometry.boxes(np.array([[100, 0, 100 + 1e-9, 10]]))
    assert not keep[0]
    assert boxes[0, 0] == boxes[0, 2]


def test_no_boxes_stay_no_boxes() -> None:
    boxes, keep = ImagePlacement.for_fit("crop", (20, 10), (4, 4)).boxes(np.empty((0, 4)))
    assert boxes.shape == (0, 4)
    assert keep.shape == (0,)


@given(sides, sides, fits, sides)
def test_nearest_is_where_the_centres_lie(
    source: tuple[int, int], result: tuple[int, int], fit: str, other: tuple[int, int]
) -> None:
    geometry = ImagePlacement.for_fit(fit, source, result)
    rows, columns = geometry.nearest(*other)
    assert rows.shape == (geometry.target.height,)
    assert columns.shape == (geometry.target.width,)
    for indices, first, length, whole, there in (
        (rows, geometry.box.top, geometry.box.height, source[0], other[0]),
        (columns, geometry.box.left, geometry.box.width, source[1], other[1]),
    ):
        assert 0 <= indices.min() <= indices.max() < there
        # The pixel that holds the centre covers it: index <= centre < index + 1, in doubles but for rounding.
        centres = (first + (np.arange(len(indices)) + 0.5) * length / len(indices)) * there / whole
        assert (indices <= centres + 1e-6).all()
        assert (centres - 1e-6 <= indices + 1).all()


@given(sides, sides, fits)
def test_nearest_at_the_own_size_is_the_documented_formula(
    source: tuple[int, int], result: tuple[int, int], fit: str
) -> None:
    geometry = ImagePlacement.for_fit(fit, source, result)
    box, target = geometry.box, geometry.target
    rows, _ = geometry.nearest(*source)
    expected = [(2 * i + 1) * box.height // (2 * target.height) + box.top for i in range(target.height)]
    assert rows.tolist() == expected


def test_nearest_at_the_same_size_copies() -> None:
    rows, columns = ImagePlacement.for_fit("crop", (7, 9), (7, 9)).nearest(7, 9)
    assert rows.tolist() == list(range(7))
    assert columns.tolist() == list(range(9))


def test_nearest_does_not_overflow() -> None:
    rows, _ = ImagePlacement.for_fit("stretch", (178_956_970, 1), (65_536, 1)).nearest(178_956_969, 1)
    assert rows[-1] == math.floor((65_535.5 / 65_536) * 178_956_969)
