"""Draws a contact sheet with Pillow: the grid of tiles; images, masks, boxes, points and lines of text."""

from __future__ import annotations

import colorsys
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from packer.errors import UsageError
from packer.path_text import visible
from packer.pillow_settings import PillowSettings
from packer.previews.preview_batch import PreviewBatch, class_name

MAX_WIDTH, MAX_HEIGHT = 2400, 32_000
MARGIN, GAP = 20, 10
PAPER, FRAME, INK, FAINT = (
    (246, 247, 249),
    (223, 227, 232),
    (29, 33, 39),
    (102, 112, 128),
)  # the same colours as in reports/report.html
LINE = 18  # pixels from one line of text to the next
MARK = "contact sheet by packer"
"""A text within the first 1,024 bytes of each sheet."""
_LEAST_TILE = 24  # pixels of the longer side
_SMALL = 96  # pixels: least size of a tile that is shrunk for more columns
_TINY = 110  # pixels: smaller images are enlarged
_FONT, _TAG = 13, 11  # pixels
_LARGE, _LARGE_LINE = 17, 23  # of the labels of a source, which are to be checked
_PAD = 4  # pixels between a tile and its words
_MOST_TAGS = 12  # boxes of an image above which names are left out where they do not fit
_MOST_LETTERS = 200  # limit for names, which may be megabytes long
_END = 5  # letters kept at the end of a shortened line: the share of a class
# Hue step between classes, in turns: neighbours differ much; 1 and 255 (binary masks) are both red.
_GOLDEN = 0.61803398875

Color = tuple[int, int, int]


class SheetGrid(NamedTuple):
    """The places of the tiles.

    images: number of images; repeat: tiles of each image, side by side.
    columns: images side by side.
    tile: (width, height) in pixels of the sheet.
    words: height of the text under a tile, in pixels.
    """

    images: int
    repeat: int
    columns: int
    tile: tuple[int, int]
    words: int = 0

    @property
    def lines(self) -> int:
        """Number of rows of tiles."""
        return -(-self.images // self.columns)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the sheet in pixels."""
        right, bottom = self.corner((self.lines - 1) * self.columns, self.columns * self.repeat)
        return right - GAP + MARGIN, bottom + self.tile[1] + self.words + MARGIN

    def corner(self, image: int, repeat: int = 0) -> tuple[int, int]:
        """Return (left, top) of a tile."""
        line, column = divmod(image, self.columns)
        left = MARGIN + (column * self.repeat + repeat) * (self.tile[0] + GAP)
        return left, MARGIN + line * (self.tile[1] + self.words + GAP)


def arrange_tiles(
    images: int, repeat: int, size: tuple[int, int], columns: int | None, words: int
) -> SheetGrid:
    """Return a grid for images of one size.

    size: (h, w) of the images; columns: the user's choice; None: an approximately square sheet.
    Enlarges images of fewer than 110 pixels by an integer factor, and shrinks large ones that do not fit.
    Raises UsageError for too many images.
    """
    height, width = size
    factor = max(1, round(_TINY / max(size)))
    across, down = repeat * (width * factor + GAP), height * factor + words + GAP
    most = (MAX_WIDTH - 2 * MARGIN) // (repeat * (min(_SMALL, max(size) * factor) + GAP))
    square = max(1, min(math.sqrt(images * down / across), most))
    asked, columns = columns, min(columns or _full_columns(images, square), images)
    grid = SheetGrid(images, repeat, columns, (1, 1), words)
    tiles = columns * repeat
    room = (MAX_WIDTH - grid.size[0] + tiles) // tiles  # this grid's tiles are one pixel wide
    factor = min(factor, room // width)
    tile = (
        (width * factor, height * factor)
        if factor
        else (max(1, room), max(1, round(height * max(1, room) / width)))
    )
    if max(tile) < _LEAST_TILE:
        given = f"repeat: it is {repeat}" if asked is None else f"columns: it is {asked}"
        most = (MAX_WIDTH - 2 * MARGIN) // (_LEAST_TILE + GAP)
        raise UsageError(
            f"{given}, and a sheet is at most {MAX_WIDTH:,} pixels wide; up to {most} tiles"
            " (columns x repeat) are allowed. Pass fewer."
        )
    grid = grid._replace(tile=tile)
    if grid.size[1] > MAX_HEIGHT:
        raise UsageError(
            f"rows: {images:,} of them make a sheet of {grid.size[0]:,}x{grid.size[1]:,} pixels;"
            f" {MAX_HEIGHT:,} pixels of height are allowed. Pass fewer rows, or more columns."
        )
    return grid


def _full_columns(images: int, square: float) -> int:
    """Return the number of columns, near that of a square sheet, whose last row of tiles is fullest."""
    near = range(max(1, math.floor(square) - 1), math.floor(square) + 2)
    return min(near, key=lambda columns: -images % columns / columns + abs(columns / square - 1))


@PillowSettings()
def draw_sheet(
    grid: SheetGrid,
    draws: Sequence[PreviewBatch],
    texts: Sequence[Sequence[Sequence[str]]],
    classes: Sequence[str] | None,
    format: str,
    points: Sequence[str] = (),
) -> bytes:
    """Return the file of a sheet.

    draws: a batch for each repeat; texts: the lines under its images; format: "PNG" or "JPEG"; points: names
    of the keypoints, for the legend.
    """
    sheet = Image.new("RGB", grid.size, PAPER)
    pen = ImageDraw.Draw(sheet)
    width, height = grid.tile
    for repeat, (batch, captions) in enumerate(zip(draws, texts, strict=True)):
        for index, lines in enumerate(captions):
            left, top = grid.corner(index, repeat)
            picture = _tile(batch, index, grid.tile, classes)
            if picture.size != grid.tile:
                pen.rectangle((left, top, left + width - 1, top + height - 1), fill=FRAME)
            sheet.paste(picture, (left + (width - picture.width) // 2, top + (height - picture.height) // 2))
            large = batch.origins is not None
            below, font = top + height + _PAD, _font(_LARGE if large else _FONT)
            for line in lines:
                pen.text((left, below), shortened(line, width, font), fill=INK, font=font)
                below += _LARGE_LINE if large else LINE
            if batch.origins is not None:
                text = _origin(*batch.origins[index], width)
                pen.text((left, below), text, fill=FAINT, font=_font(_FONT))
    colors = {name: class_color(number) for number, name in enumerate(points)}
    _draw_legend(pen, grid.size, mask_colors(draws) | colors)
    memory = io.BytesIO()
    options: dict[str, Any] = {"quality": 92, "subsampling": 0, "comment": MARK}
    if format == "PNG":
        options = {"compress_level": 4, "pnginfo": PngInfo()}
        options["pnginfo"].add_text("Software", MARK)
    sheet.save(memory, format, **options)
    return memory.getvalue()


@PillowSettings()
def draw_thumbnail(
    batch: PreviewBatch, index: int, tile: tuple[int, int], classes: Sequence[str] | None
) -> bytes:
    """Return image `index` of a batch as JPEG with its masks, boxes and points, no larger than a tile."""
    memory = io.BytesIO()
    _tile(batch, index, tile, classes).save(memory, "JPEG", quality=80)
    return memory.getvalue()


def _tile(
    batch: PreviewBatch, index: int, tile: tuple[int, int], classes: Sequence[str] | None
) -> Image.Image:
    """Return image `index` of a batch with its masks, boxes and points."""
    pixels = batch.images[index]
    shown = fit_tile(pixels.shape[:2], tile)
    picture = _resized(pixels, shown)
    for number, masks in enumerate(batch.masks.values()):
        picture = _overlaid(picture, masks[index], number)
    pen = ImageDraw.Draw(picture)
    scale = np.array((shown[0] / pixels.shape[1], shown[1] / pixels.shape[0]))
    if batch.boxes is not None:
        labels = None if batch.box_label is None else batch.box_label[index]
        _draw_boxes(pen, batch.boxes[index].reshape(-1, 2, 2) * scale, labels, shown, classes)
    if batch.points is not None:
        _draw_points(pen, batch.points[index] * scale, shown)
    return picture


def mask_colors(batches: Iterable[PreviewBatch]) -> dict[str, Color]:
    """Return the colour of each value of the masks: {"mask 255": (242, 36, 60)}."""
    found = {
        (number, name, int(value))
        for batch in batches
        for number, (name, masks) in enumerate(batch.masks.items())
        for mask in masks
        for value in np.unique(mask)
        if value
    }
    return {f"{name} {value}": class_color(value + 7 * number) for number, name, value in sorted(found)}


def _draw_legend(pen: ImageDraw.ImageDraw, size: tuple[int, int], colors: Mapping[str, Color]) -> None:
    """Draw the masks' colours and names in the lower margin, as many as fit. size: of the sheet."""
    left, top, font = MARGIN, size[1] - MARGIN + 2, _font(_FONT)
    for name, color in colors.items():
        text = visible(name[:_MOST_LETTERS], "?")
        right = left + LINE + math.ceil(font.getlength(text))
        if right > size[0] - MARGIN:
            break
        pen.rectangle((left, top + 2, left + 11, top + 13), fill=color)
        pen.text((left + LINE, top), text, fill=INK, font=font)
        left = right + LINE


def words_height(lines: int, *, source: bool = False) -> int:
    """Return the height of some lines of text under a tile, in pixels. source: of a source, with its key."""
    return _PAD + (lines * _LARGE_LINE + LINE if source else lines * LINE)


def shortened(line: str, width: int, font: Any = None) -> str:
    """Return a line at most `width` pixels wide; dots replace letters before the last few."""
    line, font = visible(line[: 2 * _MOST_LETTERS], "?"), font or _font(_FONT)
    if len(line) <= _MOST_LETTERS and font.getlength(line) <= width:
        return line
    for kept in range(min(len(line), _MOST_LETTERS) - _END, -1, -1):
        if font.getlength(shown := f"{line[:kept]}...{line[-_END:]}") <= width:
            return shown
    return ""


def _origin(split: str, key: str, width: int) -> str:
    """Return a split and the end of a key, at most `width` pixels wide."""
    split, key = (visible(text[-_MOST_LETTERS:], "?") for text in (split, key))
    between = "  " if split and key else ""
    lines = [f"{split}{between}{key}", *(f"{split}{between}...{key[cut:]}" for cut in range(1, len(key) + 1))]
    return next((line for line in lines if _font(_FONT).getlength(line) <= width), shortened(split, width))


def fit_tile(size: tuple[int, int], tile: tuple[int, int]) -> tuple[int, int]:
    """Return the (width, height) at which a tile shows an image of size (h, w).

    Enlarges by an integer factor, or shrinks to fit.
    """
    height, width = size
    if width <= tile[0] and height <= tile[1]:
        factor = min(tile[0] // width, tile[1] // height)
        return width * factor, height * factor
    shrunk = min(tile[0] / width, tile[1] / height)
    return max(1, min(tile[0], round(width * shrunk))), max(1, min(tile[1], round(height * shrunk)))


@cache
def class_color(number: int) -> Color:
    """Return the fixed colour of a class in masks and boxes."""
    red, green, blue = colorsys.hsv_to_rgb((0.35 + number * _GOLDEN) % 1, 0.85, 0.95)
    return round(255 * red), round(255 * green), round(255 * blue)


@cache
def _font(size: int) -> Any:
    return ImageFont.load_default(size)


def _resized(pixels: NDArray[np.uint8], size: tuple[int, int]) -> Image.Image:
    """Return an image [h, w, C] as RGB of (width, height); transparent parts become the frame's grey."""
    picture = Image.fromarray(np.ascontiguousarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels))
    larger = size[0] >= picture.width
    picture = picture.resize(size, Image.Resampling.NEAREST if larger else Image.Resampling.LANCZOS)
    if picture.mode == "RGBA":
        picture = Image.alpha_composite(Image.new("RGBA", size, (*FRAME, 255)), picture)
    return picture.convert("RGB")


def _overlaid(picture: Image.Image, mask: NDArray[np.int32], number: int) -> Image.Image:
    """Blend a mask [h, w] half transparent into a picture, except where it is 0.

    number: of the mask; shifts the colours.
    """
    wide = np.asarray(Image.fromarray(mask).resize(picture.size, Image.Resampling.NEAREST))
    values, places = np.unique(wide, return_inverse=True)
    table = np.array([class_color(int(value) + 7 * number) for value in values], np.uint16)
    under = np.asarray(picture)
    mixed = (under + table[places.reshape(wide.shape)]) // 2
    return Image.fromarray(np.where((wide != 0)[..., None], mixed, under).astype(np.uint8))


def _draw_boxes(
    pen: ImageDraw.ImageDraw,
    boxes: NDArray[np.float64],
    labels: NDArray[np.int64] | None,
    size: tuple[int, int],
    classes: Sequence[str] | None,
) -> None:
    """Draw outlines and the class's name: inside, or over a small box. boxes: [n, 2, 2], tile pixels."""
    boxes, finite = boxes.clip(0, size), np.isfinite(boxes).all(axis=(1, 2))
    for i in np.flatnonzero(finite):
        (left, top), (right, bottom) = boxes[i].round().astype(int).tolist()
        right, bottom = max(left, right - 1), max(top, bottom - 1)
        label = 0 if labels is None else int(labels[i])
        pen.rectangle((left, top, right, bottom), outline=class_color(label), width=1 + (max(size) >= 128))
        if labels is None:
            continue
        name = visible(class_name(label, classes)[:_MOST_LETTERS], "?")
        _, _, wide, below = _font(_TAG).getbbox(name)
        inside = wide + 6 <= right - left and below + 4 <= bottom - top
        if not inside:
            left, top = min(left, size[0] - wide - 6), top - below - 3
        if inside or (min(left, top) >= 0 and len(boxes) <= _MOST_TAGS):
            pen.rectangle((left, top, left + wide + 5, top + below + 2), fill=class_color(label))
            pen.text((left + 3, top + 1), name, fill=(0, 0, 0), font=_font(_TAG))


def _draw_points(pen: ImageDraw.ImageDraw, points: NDArray[np.float64], size: tuple[int, int]) -> None:
    """Draw dots, coloured by index. points: [K, 2] in pixels of the tile."""
    radius = 2 + (max(size) >= 128)
    for number, (u, v) in enumerate(points.tolist()):
        if math.isfinite(u) and math.isfinite(v):
            around = (u - radius, v - radius, u + radius, v + radius)
            pen.ellipse(around, fill=class_color(number), outline=(0, 0, 0))
