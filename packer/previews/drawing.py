"""Images, masks, boxes, points and words, drawn with Pillow."""

from __future__ import annotations

import colorsys
import io
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont, features

from packer.previews.captions import GLUE, name_of
from packer.previews.grid import Grid, fit
from packer.previews.rows import Batch

PAPER, FRAME, INK, FAINT = (246, 246, 246), (228, 228, 228), (32, 32, 32), (120, 120, 120)
_CHECKS = (232, 208)
_CHECK = 8  # pixels of the sheet
_TAG = 11  # pixels
_LINES = 3  # of words under a tile
_PAD = 4  # pixels between a tile and its words
_ELLIPSIS = "..."
# Of a turn: hues of neighbouring classes lie far from each other; those of 1 and 255, as binary masks have them, are both red.
_GOLDEN = 0.61803398875

Colour = tuple[int, int, int]


@cache
def colour_of(number: int) -> Colour:
    """Of a class, in masks and boxes; always the same."""
    red, green, blue = colorsys.hsv_to_rgb((0.35 + number * _GOLDEN) % 1, 0.85, 0.95)
    return round(255 * red), round(255 * green), round(255 * blue)


class Sheet:
    """A picture under way. Tiles are drawn one by one; `encoded` ends it."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self._picture = Image.new("RGB", grid.size, PAPER)
        self._pen = ImageDraw.Draw(self._picture)
        self._text = text_size(grid.tile)

    def tile(self, batch: Batch, index: int, repeat: int, classes: tuple[str, ...] | None) -> None:
        """Draw image `index` of a batch with what belongs to it."""
        pixels = batch.images[index]
        shown = fit(pixels.shape[:2], self.grid.tile)
        picture = _resized(pixels, shown)
        for number, masks in enumerate(batch.masks.values()):
            picture = _overlaid(picture, masks[index], number)
        pen = ImageDraw.Draw(picture)
        scale = (shown[0] / pixels.shape[1], shown[1] / pixels.shape[0])
        if batch.boxes is not None:
            labels = None if batch.box_label is None else batch.box_label[index]
            _draw_boxes(pen, batch.boxes[index], labels, scale, shown, classes)
        if batch.points is not None:
            _draw_points(pen, batch.points[index], scale, shown)
        left, top = self.grid.corner(index, repeat)
        width, height = self.grid.tile
        if shown != (width, height):
            self._pen.rectangle((left, top, left + width - 1, top + height - 1), fill=FRAME)
        self._picture.paste(picture, (left + (width - shown[0]) // 2, top + (height - shown[1]) // 2))

    def words(self, text: str, index: int, repeat: int, faint: bool = False) -> None:
        """Write under a tile."""
        left, top = self.grid.corner(index, repeat)
        top += self.grid.tile[1] + _PAD
        for line in wrapped(text, self.grid.tile[0], self._text):
            self._pen.text((left, top), line, fill=FAINT if faint else INK, font=_font(self._text))
            top += line_height(self._text)

    def heading(self, text: str, column: int, repeat: int) -> None:
        """Write at the top of a column."""
        left, top = self.grid.corner(column, repeat)
        (line, *_) = wrapped(text, self.grid.tile[0], self._text)
        self._pen.text((left, top - self.grid.heading), line, fill=FAINT, font=_font(self._text))

    def encoded(self, format: str) -> bytes:
        """The file. format: "PNG" or "JPEG"."""
        memory = io.BytesIO()
        options: dict[str, Any] = (
            {"compress_level": 4} if format == "PNG" else {"quality": 92, "subsampling": 0}
        )
        self._picture.save(memory, format, **options)
        return memory.getvalue()


def text_size(tile: tuple[int, int]) -> int:
    """Of words under tiles, in pixels."""
    return 13 if max(tile) < 160 else 16


def line_height(size: int) -> int:
    """Of words of that size, in pixels."""
    return int(np.ceil(_font(size).getbbox("Ägjp|")[3])) + 2


def words_height(texts: list[str], tile: tuple[int, int]) -> int:
    """What the tallest of some texts takes under tiles (width, height), in pixels."""
    size = text_size(tile)
    most = max((len(wrapped(text, tile[0], size)) for text in texts), default=0)
    return most * line_height(size) + _PAD if most else 0


def wrapped(text: str, width: int, size: int) -> list[str]:
    """A text in lines no wider than so many pixels, at most three, in letters of that size; what does not fit is left out with dots."""
    lines: list[str] = []
    for word in _printable(text).split(" "):
        name, glue, number = word.rpartition(GLUE)
        if glue and _width(word, size) > width:  # the number is what must be seen
            word = _cut(name, width - _width(f" {number}", size), size) + glue + number
        if lines and _width(f"{lines[-1]} {word}", size) <= width:
            lines[-1] += f" {word}"
        elif word:
            lines.append(word)
    if len(lines) > _LINES:
        lines = [*lines[: _LINES - 1], " ".join(lines[_LINES - 1 :])]
    return [_cut(line.replace(GLUE, " "), width, size) for line in lines]


def _cut(line: str, width: float, size: int) -> str:
    """A line, or its beginning and dots."""
    if _width(line, size) <= width:
        return line
    while line and _width(line + _ELLIPSIS, size) > width:
        line = line[:-1]
    return line.rstrip() + _ELLIPSIS if line else ""


_MOST_LETTERS = 500


@cache
def _font(size: int) -> Any:
    """Pillow's own font; without FreeType the small one of fixed size."""
    return ImageFont.load_default(size) if features.check("freetype2") else ImageFont.load_default()


def _width(text: str, size: int) -> float:
    return float(_font(size).getlength(text.replace(GLUE, " ")))


def _printable(text: str) -> str:
    """A text without line breaks, surrogates and the like, and what the font of fixed size cannot write."""
    text = text[:_MOST_LETTERS]  # names come from anywhere, and may be of megabytes
    text = "".join(c if c.isprintable() or c == GLUE else "?" for c in text)
    return text if features.check("freetype2") else text.encode("latin-1", "replace").decode("latin-1")


def _resized(pixels: NDArray[np.uint8], size: tuple[int, int]) -> Image.Image:
    """An image [h, w, C] as RGB of (width, height)."""
    channels = pixels.shape[2]
    picture = Image.fromarray(np.ascontiguousarray(pixels[:, :, 0] if channels == 1 else pixels))
    larger = size[0] >= picture.width
    picture = picture.resize(size, Image.Resampling.NEAREST if larger else Image.Resampling.LANCZOS)
    if channels == 4:
        y, x = np.mgrid[: size[1], : size[0]] // _CHECK
        checks = np.where((x + y) % 2, *_CHECKS).astype(np.uint8)
        paper = Image.fromarray(checks).convert("RGBA")
        picture = Image.alpha_composite(paper, picture)
    return picture.convert("RGB")


def _overlaid(picture: Image.Image, mask: NDArray[np.int32], number: int) -> Image.Image:
    """A picture with a mask [h, w] over it, half transparent; 0 is not drawn. number: of the mask, which shifts the colours."""
    wide = Image.fromarray(mask).resize(picture.size, Image.Resampling.NEAREST)
    values, places = np.unique(np.asarray(wide), return_inverse=True)
    table = np.array([colour_of(int(value) + 7 * number) for value in values], np.uint8)
    colours = table[places.reshape(wide.height, wide.width)]
    under = np.asarray(picture)
    mixed = (under.astype(np.uint16) + colours) // 2
    return Image.fromarray(np.where((np.asarray(wide) != 0)[..., None], mixed, under).astype(np.uint8))


def _draw_boxes(
    pen: ImageDraw.ImageDraw,
    boxes: NDArray[np.float32],
    labels: NDArray[np.int64] | None,
    scale: tuple[float, float],
    size: tuple[int, int],
    classes: tuple[str, ...] | None,
) -> None:
    """Draw outlines, with the class's name where there is room for it."""
    line = 2 if max(size) >= 128 else 1
    font = _font(_TAG)
    for i, box in enumerate(boxes):
        if not np.isfinite(box).all():
            continue
        label = 0 if labels is None else int(labels[i])
        colour = colour_of(label)
        left, right = (min(max(round(float(v) * scale[0]), 0), size[0]) for v in box[0::2])
        top, bottom = (min(max(round(float(v) * scale[1]), 0), size[1]) for v in box[1::2])
        right, bottom = max(left, right - 1), max(top, bottom - 1)
        pen.rectangle((left, top, right, bottom), outline=colour, width=line)
        if labels is None:
            continue
        name = _printable(name_of(label, classes))
        _, _, wide, below = font.getbbox(name)
        if wide + 6 <= right - left and below + 4 <= bottom - top:
            pen.rectangle((left, top, left + wide + 5, top + below + 2), fill=colour)
            bright = 299 * colour[0] + 587 * colour[1] + 114 * colour[2] > 140_000
            pen.text((left + 3, top + 1), name, fill=(0, 0, 0) if bright else (255, 255, 255), font=font)


def _draw_points(
    pen: ImageDraw.ImageDraw, points: NDArray[np.float32], scale: tuple[float, float], size: tuple[int, int]
) -> None:
    """Draw dots, coloured by their number."""
    radius = 3 if max(size) >= 128 else 2
    for number, (x, y) in enumerate(points):
        if np.isfinite(x) and np.isfinite(y):
            u, v = float(x) * scale[0], float(y) * scale[1]
            around = (u - radius, v - radius, u + radius, v + radius)
            pen.ellipse(around, fill=colour_of(number), outline=(0, 0, 0))
