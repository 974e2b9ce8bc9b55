"""What is drawn: colours, places, words that fit."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from packer.previews import drawing
from packer.previews.drawing import PAPER, SheetGrid, class_color, draw_sheet, mask_colors, shortened
from packer.previews.preview_batch import PreviewBatch


def batch(image: NDArray[np.uint8], **more: Any) -> PreviewBatch:
    parts: dict[str, Any] = {"label": None, "masks": {}, "boxes": None, "box_label": None, "points": None}
    return PreviewBatch(np.arange(1), [image], **parts | more)


def drawn(
    image: NDArray[np.uint8], tile: tuple[int, int], classes: Any = None, **more: Any
) -> NDArray[np.uint8]:
    """The pixels of the only tile."""
    grid = SheetGrid(1, 1, 1, tile)
    sheet = draw_sheet(grid, [batch(image, **more)], [[[]]], classes, "PNG")
    pixels = np.asarray(Image.open(io.BytesIO(sheet)))
    left, top = grid.corner(0)
    inside = pixels[top : top + tile[1], left : left + tile[0]].copy()
    rest = np.ones(pixels.shape[:2], bool)
    rest[top : top + tile[1], left : left + tile[0]] = False
    assert (pixels[rest] == PAPER).all()
    return inside


def noise(*shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def test_pixels_are_enlarged_as_they_are() -> None:
    image = noise(5, 4, 3)
    assert np.array_equal(drawn(image, (12, 15)), image.repeat(3, 0).repeat(3, 1))
    gray = noise(5, 4, 1)
    assert np.array_equal(drawn(gray, (4, 5)), np.broadcast_to(gray, (5, 4, 3)))


def test_alpha_shows_a_grey_ground() -> None:
    image = np.zeros((32, 32, 4), np.uint8)
    image[..., 0] = 200
    image[16:, :, 3] = 255
    pixels = drawn(image, (32, 32))
    assert (pixels[16:] == (200, 0, 0)).all()
    assert (pixels[:16] == drawing.FRAME).all()


def test_masks_are_half_transparent_and_coloured_by_value() -> None:
    image = np.full((6, 6, 3), 100, np.uint8)
    mask = np.zeros((1, 6, 6), np.int32)
    mask[0, :2], mask[0, 4:] = 1, 255
    pixels = drawn(image, (12, 12), masks={"mask": mask})
    for rows, value in ((slice(0, 4), 1), (slice(8, 12), 255)):
        assert (pixels[rows] == [(100 + c) // 2 for c in class_color(value)]).all()
    assert (pixels[4:8] == 100).all()


def test_colours_of_masks_are_named_below_the_tiles() -> None:
    mask = np.zeros((1, 9, 190), np.int32)
    mask[0, 3:6], mask[0, 6:] = 255, 1
    shown = batch(noise(9, 190, 3), masks={"mask": mask, "part": mask})
    assert [*mask_colors([shown])] == ["mask 1", "mask 255", "part 1", "part 255"]
    sheet = draw_sheet(SheetGrid(1, 1, 1, (190, 9)), [shown], [[[]]], None, "PNG")
    margin = np.asarray(Image.open(io.BytesIO(sheet)))[-drawing.MARGIN :]
    named = [(margin == colour).all(-1).any() for colour in mask_colors([shown]).values()]
    assert named == [True, True, False, False]  # as many as there is room for


def test_colours_of_near_classes_differ() -> None:
    colours = np.array([class_color(number) for number in range(12)], int)
    apart = np.abs(colours[:, None] - colours).sum(-1) + 999 * np.eye(12, dtype=int)
    assert apart.min() > 40
    assert np.abs(np.diff(colours, axis=0)).sum(-1).min() > 200


def test_boxes_are_outlines_in_the_classs_colour_at_their_place() -> None:
    image = np.zeros((40, 40, 3), np.uint8)
    box = [np.array([[5, 10, 30, 20], [np.nan, 0, 1, 1]], np.float32)]
    pixels = drawn(image, (80, 80), boxes=box, box_label=[np.array([3, 3])])
    coloured = (pixels == class_color(3)).all(-1)
    rows, columns = np.nonzero(coloured)
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (20, 39, 10, 59)
    assert not pixels[24:36, 30:56].any()  # an outline, beside the name


def test_a_box_at_the_edge_is_seen_and_one_outside_is_no_error() -> None:
    image = np.zeros((40, 40, 3), np.uint8)
    boxes = [np.array([[-5, -5, 90, 90], [50, 50, 60, 60]], np.float32)]
    pixels = drawn(image, (40, 40), boxes=boxes)
    assert (pixels[[0, -1]] == class_color(0)).all()
    assert (pixels[:, [0, -1]] == class_color(0)).all()


def test_names_stand_in_boxes_that_have_room() -> None:
    image = np.zeros((200, 200, 3), np.uint8)
    boxes = [np.array([[10, 10, 190, 190]], np.float32)]
    named = drawn(image, (200, 200), ("cat",), boxes=boxes, box_label=[np.array([0])])
    unnamed = drawn(image, (200, 200), boxes=boxes)
    differs = np.argwhere((named != unnamed).any(-1))
    assert len(differs) > 50
    assert differs.max() < 60
    small = [np.array([[10, 10, 22, 22]], np.float32)]
    assert np.array_equal(
        drawn(image, (200, 200), ("cat",), boxes=small, box_label=[np.array([0])]),
        drawn(image, (200, 200), boxes=small),
    )


def test_points_are_dots_at_their_place_and_nan_is_none() -> None:
    image = np.zeros((20, 20, 3), np.uint8)
    points = np.array([[[5, 12], [np.nan, np.nan]]], np.float32)
    pixels = drawn(image, (40, 40), points=points)
    found = np.argwhere(pixels.any(-1))
    assert np.abs(found.mean(0) - (24, 10)).max() < 0.6
    assert len(found) < 30


def test_images_of_another_shape_stand_in_the_middle() -> None:
    pixels = drawn(np.zeros((10, 20, 3), np.uint8), (40, 40))
    assert (pixels[10:30] == 0).all()
    assert (pixels[:10] == drawing.FRAME).all()
    assert (pixels[30:] == drawing.FRAME).all()


@pytest.mark.parametrize("width", [60, 96, 224])
def test_words_fit_their_tile(width: int) -> None:
    for text in (
        "cat",
        "a rather long name of a class that nobody can read " * 3,
        "x" * 500,
        "automobile 0.34",
    ):
        line = shortened(text, width)
        assert 0 < drawing._font(13).getlength(line) <= width


def test_a_name_is_cut_and_its_number_is_not() -> None:
    line = shortened("automobilette of some make 0.34", 96)
    assert line.startswith("autom")
    assert line.endswith("... 0.34")


@pytest.mark.parametrize("text", ["Ünï\ncode\t\udcff", "日本", "\x00", "", " "])
def test_any_text_can_be_written(text: str) -> None:
    grid = SheetGrid(1, 1, 1, (96, 96), 60)
    sheet = draw_sheet(grid, [batch(noise(96, 96, 3))], [[[text, text]]], None, "JPEG")
    assert Image.open(io.BytesIO(sheet)).size == grid.size


def test_names_of_megabytes_are_cut_before_they_are_measured():
    assert shortened("A" * 3_000_000, 96) == shortened("A" * 600, 96)
    assert "\u202e" not in shortened("b\u202e\n\x1b " * 1_000_000, 96)
