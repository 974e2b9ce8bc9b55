"""How large images are shown, and where: rows of tiles with words under them, at most 2,400 pixels across."""

from __future__ import annotations

import math
from dataclasses import dataclass

from packer.errors import UsageError

MAX_WIDTH = 2400
MAX_HEIGHT = 32_000
MARGIN, GAP, GROUP_GAP = 20, 10, 24
_LEAST_TILE = 24  # pixels of the longer side
_SMALL = 96  # pixels: tiles are not made smaller than this only to get a sheet of better proportions
_TINY = 110  # images of less than about this are enlarged
_PROPORTION = 1.15  # width / height that is aimed at


@dataclass(frozen=True)
class Grid:
    """Where tiles lie.

    images: how many. repeat: tiles of each, next to each other. columns: images side by side. tile: (width, height) in pixels of
    the sheet. words: height of the words under a tile; heading: of those at the top.
    """

    images: int
    repeat: int
    columns: int
    tile: tuple[int, int]
    words: int = 0
    heading: int = 0

    @property
    def lines(self) -> int:
        """Rows of tiles."""
        return -(-self.images // self.columns)

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) of the sheet."""
        _, height = self.tile
        width = 2 * MARGIN + self.columns * (self._group + self._gap) - self._gap
        return width, 2 * MARGIN + self.heading + self.lines * (height + self.words + GAP) - GAP

    def corner(self, image: int, repeat: int = 0) -> tuple[int, int]:
        """(left, top) of a tile."""
        line, column = divmod(image, self.columns)
        left = MARGIN + column * (self._group + self._gap) + repeat * (self.tile[0] + GAP)
        return left, MARGIN + self.heading + line * (self.tile[1] + self.words + GAP)

    @property
    def _group(self) -> int:
        return self.repeat * (self.tile[0] + GAP) - GAP

    @property
    def _gap(self) -> int:
        return GAP if self.repeat == 1 else GROUP_GAP


def arrange(
    images: int, repeat: int, size: tuple[int, int], columns: int | None, words: int, heading: int
) -> Grid:
    """A grid for images of one size.

    size: (h, w) of the images. columns: as the user wants it, or None. Images of fewer than 110 pixels are enlarged by a whole factor;
    large ones are made smaller if they do not fit. Raises UsageError if there are too many.
    """
    if columns is not None:
        made = Grid(images, repeat, min(columns, images), (1, 1), words, heading)
        tile = _tile(made, size)
        if max(tile) < _LEAST_TILE:
            most = max(1, (MAX_WIDTH - 2 * MARGIN) // (repeat * (_LEAST_TILE + GAP) + GROUP_GAP))
            raise UsageError(
                f"columns: it is {columns}, and a sheet is at most {MAX_WIDTH:,} pixels wide; up to {most} columns are allowed. "
                "Pass fewer."
            )
        return _checked(Grid(images, repeat, made.columns, tile, words, heading))
    best, least = None, math.inf
    for tried in range(1, images + 1):
        tile = _tile(Grid(images, repeat, tried, (1, 1), words, heading), size)
        if best is not None and max(tile) < min(_SMALL, max(size)):
            break
        grid = Grid(images, repeat, tried, tile, words, heading)
        width, height = grid.size
        empty = 1 - images / (grid.columns * grid.lines)
        score = abs(math.log(width / height / _PROPORTION)) + 4 * empty
        if score < least:
            best, least = grid, score
    assert best is not None
    if max(best.tile) < _LEAST_TILE:
        raise UsageError(
            f"repeat: it is {repeat}, and a sheet is at most {MAX_WIDTH:,} pixels wide. Pass a smaller one."
        )
    return _checked(best)


def fit(size: tuple[int, int], tile: tuple[int, int]) -> tuple[int, int]:
    """(width, height) that an image of size (h, w) is shown with in a tile: whole factors up, or smaller until it fits."""
    height, width = size
    if width <= tile[0] and height <= tile[1]:
        factor = min(tile[0] // width, tile[1] // height)
        return width * factor, height * factor
    shrunk = min(tile[0] / width, tile[1] / height)
    return max(1, min(tile[0], round(width * shrunk))), max(1, min(tile[1], round(height * shrunk)))


def _tile(grid: Grid, size: tuple[int, int]) -> tuple[int, int]:
    """(width, height) of tiles so that a grid's columns fit."""
    height, width = size
    tiles = grid.columns * grid.repeat
    room = (MAX_WIDTH - (grid.size[0] - tiles)) // tiles  # the grid's own tiles are one pixel wide
    factor = max(1, min(round(_TINY / max(size)), room // width))
    if width * factor <= room:
        return width * factor, height * factor
    return max(1, room), max(1, round(height * max(1, room) / width))


def _checked(grid: Grid) -> Grid:
    width, height = grid.size
    if height > MAX_HEIGHT:
        raise UsageError(
            f"rows: {grid.images:,} of them make a sheet of {width:,}x{height:,} pixels; {MAX_HEIGHT:,} pixels of height are "
            "allowed. Pass fewer rows, or more columns."
        )
    return grid
