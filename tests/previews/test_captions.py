"""Labels as words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from packer.previews.preview_batch import PreviewBatch, captions

ANIMALS = ("cat", "dog", "emu", "fox", "gnu", "hen")


def words(label: Any, classes: Any = None, columns: Any = None, box_label: Any = None) -> list[str]:
    count = len(box_label) if label is None and box_label is not None else 2 if label is None else len(label)
    rows = np.arange(1000, 1000 + count)
    batch = PreviewBatch(rows, [], None if label is None else np.asarray(label), {}, None, box_label, None)
    return [", ".join(lines) for lines in captions(batch, classes, columns)]


def test_one_class() -> None:
    assert words([0, 2], ANIMALS) == ["cat", "emu"]
    assert words([0, 6, -1], ANIMALS) == ["cat", "6", "-1"]
    assert words([3, 4]) == ["3", "4"]


def test_a_number() -> None:
    assert words(np.array([0.5, 12345.678, np.nan], np.float32)) == ["0.5", "1.235e+04", "nan"]


def test_no_label_is_the_rows_number() -> None:
    assert words(None) == ["row 1,000", "row 1,001"]


def test_several_classes() -> None:
    label = np.array([[0, 1, 0, 1, 0, 0], [0] * 6, [1] * 6], np.uint8)
    assert words(label, ANIMALS) == ["dog, fox", "none", "cat, dog, and 4 more"]
    assert words(label[:1], columns=["a", "b"]) == ["b, 3"]
    assert words(label[:1]) == ["1, 3"]


def test_several_numbers() -> None:
    label = np.array([[1.5, 0.25]], np.float32)
    assert words(label, columns=["age", "height"]) == ["age 1.5, height 0.25"]


def test_shares_are_the_largest_first() -> None:
    label = np.array(
        [[0.3, 0.7, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0], [0.001, 0, 0.999, 0, 0, 0], [0] * 6], np.float32
    )
    assert words(label, ANIMALS) == ["dog 0.7, cat 0.3", "emu", "emu", "none"]
    # Two classes of a multi-label image, mixed: both whole.
    assert words(np.array([[1, 1, 0.25]], np.float32), ANIMALS) == ["cat 1.0, dog 1.0, emu 0.25"]


@pytest.mark.parametrize(("classes", "expected"), [(ANIMALS, "2 cat, emu"), (None, "2 0, 2")])
def test_what_is_in_the_boxes(classes: Any, expected: str) -> None:
    boxes = [np.array([0, 2, 0]), np.array([], np.int64)]
    assert words(None, classes, box_label=boxes) == [expected, "no boxes"]
