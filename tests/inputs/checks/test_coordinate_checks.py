"""Doubts about boxes and points; images that EXIF turns: test_coordinate_frames.py."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from packer.inputs.boxes import Boxes, BoxTable
from packer.inputs.checks.coordinate_checks import (
    check_extent,
    check_images_without_boxes,
    check_outside_points,
)
from packer.inputs.image_targets import ImageTargets
from packer.inputs.label_options import Labels
from packer.inputs.listing import Listing
from packer.inputs.opened_source import SourceOptions
from tests.inputs.checks.conftest import Images


def listing(targets: ImageTargets, count: int) -> Listing:
    file = io.BytesIO()
    Image.new("RGB", (64, 40)).save(file, "PNG")
    files = {f"{k}.png": file.getvalue() for k in range(count)}
    source = Images(files).arrange("pets", [], {}, SourceOptions(Labels(unlabeled="all")))
    return Listing(source, targets)


@pytest.mark.parametrize(
    ("owners", "said"),
    [
        ([0, 0, 3], "3 boxes on 2 images; 3 images without boxes, such as 1.png and 2.png."),
        ([0, 1, 2, 3, 4], "5 boxes on 5 images; every image has some."),
    ],
)
def test_images_without_boxes_are_counted(owners: list[int], said: str) -> None:
    places = np.array(owners, np.int64)
    boxes = Boxes(BoxTable(np.ones((len(owners), 4)), places, None, places, "l.csv"), 5)
    (finding,) = check_images_without_boxes(listing(ImageTargets(boxes=boxes), 5))
    assert (finding.sentence, finding.error) == (said, False)
    assert list(check_images_without_boxes(listing(ImageTargets(), 5))) == []


def test_points_outside_their_image_and_in_its_corner_are_counted() -> None:
    points = np.full((6, 2, 2), 20.0)
    assert list(check_outside_points(listing(ImageTargets(keypoints=points), 6))) == []
    points[0, 0], points[1, 1] = (90, 20), (20, -9)
    points[2], points[3, 0] = 0, np.nan
    found = check_outside_points(listing(ImageTargets(keypoints=points), 6))
    assert [one.sentence for one in found] == [
        "2 of 11 keypoints examined lie outside their image; they are stored as NaN.",
        "2 keypoints are 0,0: stored as points in the corner. If they are missing, leave their cells empty.",
    ]


def test_boxes_in_the_upper_left_quarter_of_all_images_are_noted() -> None:
    def found(scale: float, unit: str | None = None, count: int = 30) -> list[str]:
        owners = np.arange(count)
        xyxy = np.stack([owners % 5, owners % 7, 20 + owners % 45, 12 + owners % 29], axis=1) * scale
        targets = ImageTargets(boxes=Boxes(BoxTable(xyxy, owners, None, owners, "l.csv"), count))
        targets.measured_in(unit, "l.csv")
        return [one.sentence for one in check_extent(listing(targets, count))]

    assert found(1) == found(0.4, "pixels") == found(0.4, count=15) == []
    assert found(0.4) == [
        "The boxes of 30 images examined reach at most 40% of the width and height, like those of smaller images, or "
        "percentages. If they are, correct them; labels=Labels(boxes_unit='pixels') says that they are right."
    ]
