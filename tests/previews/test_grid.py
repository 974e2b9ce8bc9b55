"""Where tiles lie: on the sheet, beside each other, in whole factors, and never wider than is allowed."""

from __future__ import annotations

import itertools

import pytest

from packer.errors import UsageError
from packer.previews.drawing import GAP, MARGIN, MAX_WIDTH, SheetGrid, arrange_tiles, fit_tile


@pytest.mark.parametrize(
    ("side", "shown"), [(16, 112), (28, 112), (32, 96), (64, 128), (110, 110), (224, 224)]
)
def test_small_images_are_enlarged_by_a_whole_factor(side: int, shown: int) -> None:
    assert arrange_tiles(4, 1, (side, side), None, 20).tile == (shown, shown)


@pytest.mark.parametrize("size", [(32, 32), (224, 224), (480, 640), (700, 100), (5, 2000)])
@pytest.mark.parametrize("columns", [None, 1, 4])
def test_tiles_lie_on_the_sheet_and_apart(size: tuple[int, int], columns: int | None) -> None:
    for images, repeat in itertools.product((1, 2, 7, 40), (1, 3, 8)):
        grid, case = arrange_tiles(images, repeat, size, columns, 20), f"{images} images, {repeat} times"
        width, height = grid.size
        assert width <= MAX_WIDTH, case
        corners = [grid.corner(i, k) for i, k in itertools.product(range(images), range(repeat))]
        assert len(set(corners)) == images * repeat, case
        lefts, tops = sorted({x for x, _ in corners}), sorted({y for _, y in corners})
        assert (lefts[0], tops[0]) == (MARGIN, MARGIN), case
        assert all(b - a >= grid.tile[0] + GAP for a, b in itertools.pairwise(lefts)), case
        assert all(b - a == grid.tile[1] + 20 + GAP for a, b in itertools.pairwise(tops)), case
        assert tops[-1] + grid.tile[1] + 20 + MARGIN == height, case
        assert images < grid.columns or lefts[-1] + grid.tile[0] + MARGIN == width, case
        assert columns is None or grid.columns == min(columns, images), case


def test_repeats_of_an_image_lie_side_by_side() -> None:
    grid = arrange_tiles(6, 3, (32, 32), 2, 20)
    (x0, y0), (x1, y1), (x2, y2) = (grid.corner(3, k) for k in range(3))
    assert y0 == y1 == y2
    assert x1 - x0 == x2 - x1 == grid.tile[0] + GAP


def test_a_sheet_without_a_wish_is_about_square_and_full() -> None:
    grid = arrange_tiles(64, 1, (224, 224), None, 20)
    assert (grid.columns, grid.lines) == (8, 8)
    assert arrange_tiles(64, 1, (32, 32), None, 22).columns == 8  # 9 would leave a row of one
    width, height = arrange_tiles(500, 1, (32, 32), None, 20).size
    assert 0.6 < width / height < 1.7


def test_large_images_are_made_smaller() -> None:
    grid = arrange_tiles(64, 1, (1024, 2048), None, 20)
    assert grid.tile[0] < 2048
    assert abs(grid.tile[0] - 2 * grid.tile[1]) <= 2


@pytest.mark.parametrize(
    ("size", "tile", "shown"),
    [
        ((10, 20), (40, 40), (40, 20)),
        ((10, 20), (59, 59), (40, 20)),
        ((40, 40), (40, 40), (40, 40)),
        ((100, 50), (40, 40), (20, 40)),
        ((1, 9000), (40, 40), (40, 1)),
    ],
)
def test_fit(size: tuple[int, int], tile: tuple[int, int], shown: tuple[int, int]) -> None:
    assert fit_tile(size, tile) == shown


def test_too_many_are_errors() -> None:
    with pytest.raises(
        UsageError,
        match=r"^columns: it is 99, .* up to (\d+) tiles \(columns x repeat\) are allowed\. Pass fewer\.$",
    ) as error:
        arrange_tiles(200, 1, (32, 32), 99, 20)
    most = int(str(error.value).split("up to ")[1].split()[0])
    assert arrange_tiles(200, 1, (32, 32), most, 20).columns == most
    with pytest.raises(
        UsageError, match=r"^rows: 9,000 of them make a sheet of .*; 32,000 pixels of height are allowed"
    ):
        arrange_tiles(9000, 1, (224, 224), 2, 20)
    with pytest.raises(UsageError, match=r"^repeat: it is 500, and a sheet is at most 2,400 pixels wide"):
        arrange_tiles(2, 500, (32, 32), None, 20)


def test_a_grid_of_one() -> None:
    assert SheetGrid(1, 1, 1, (50, 40), 20).size == (2 * MARGIN + 50, 2 * MARGIN + 40 + 20)
