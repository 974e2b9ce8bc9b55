"""Flips, crops and resizes, and where they put results in their sources, composed to one affine matrix an image.

Positions are in pixels from the image's top left corner, so that pixel i lies between i and i + 1 and an image of
width W between 0 and W. A matrix takes positions of the result to positions in the source:
x = a u + b v + c, y = d u + e v + f.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.augment import validation
from packer.augment.passes import pass_spec
from packer.augment.passes.pass_spec import Outside, Sampling
from packer.augment.transform import (
    Draws,
    Floats,
    GeometryPart,
    Params,
    RandomChange,
    Shape,
    SinglePartTransform,
)
from packer.errors import UsageError

Numbers = float | NDArray[Any]
Whole = NDArray[np.int64]

_FAR = 1e6  # an edge that no picture reaches; float32 still holds its neighbourhood to 1/16


class AffinePlacement:
    """Results, one a sample, seen in their sources.

    count: samples. size: (height, width) of the source, and of the result until it is changed: numbers, or int64 [N] where
    samples differ.

    matrix: float64 [6, N], a to f. taps: float64 [4, N], the pixels that may be read: left, top, right, bottom.
    frame: float64 [4, N], the picture's edges in the source; far away until `see_outside` was called.
    softness: float64 [2, N], how many source pixels an edge of the frame is wide, across and down.
    support: float64 [2, N], half the filter's width in source pixels, across and down.
    """

    _ARRAYS = ("matrix", "taps", "frame", "softness", "support", "_whole", "_straight")

    # Six rows of N numbers: composing them element by element takes a tenth of N products of 3x3 matrices.
    def __init__(self, count: int, size: tuple[Any, Any]) -> None:
        height, width = size
        self.size = size
        self.matrix: Floats = _rows(count, 1, 0, 0, 0, 1, 0)
        self.taps: Floats = _rows(count, 0, 0, width, height)
        self.frame: Floats = _rows(count, -_FAR, -_FAR, _FAR, _FAR)
        self.softness: Floats = _rows(count, 1, 1)
        self.support: Floats = _rows(count, 1, 1)
        self._whole = np.ones(count, np.bool_)  # positions are whole pixels still
        self._straight = np.ones(count, np.bool_)  # rows are rows still
        self._continued = False

    def __len__(self) -> int:
        return int(self.matrix.shape[1])

    def copy(self) -> AffinePlacement:
        """Return the same placements, to be changed apart."""
        other = copy.copy(self)
        for name in self._ARRAYS:
            setattr(other, name, getattr(self, name).copy())
        return other

    def restore(self, samples: NDArray[np.bool_], before: AffinePlacement) -> None:
        """Undo what happened to these samples since the copy was made."""
        for name in self._ARRAYS:
            getattr(self, name)[..., samples] = getattr(before, name)[..., samples]

    def mirror(self, across: NDArray[np.bool_] | None = None, down: NDArray[np.bool_] | None = None) -> None:
        """Mirror some: left to right (across), top to bottom (down). bool [N] each."""
        height, width = self.size
        a, b, c, d, e, f = self.matrix
        if across is not None:
            c += np.where(across, a * width, 0)
            f += np.where(across, d * width, 0)
            sign = np.where(across, -1.0, 1.0)
            a *= sign
            d *= sign
        if down is not None:
            c += np.where(down, b * height, 0)
            f += np.where(down, e * height, 0)
            sign = np.where(down, -1.0, 1.0)
            b *= sign
            e *= sign

    def cut(self, left: Numbers, top: Numbers, size: tuple[Any, Any], read_only: bool = True) -> None:
        """Cut a rectangle of whole pixels. left, top: [N]. read_only: a resize after it reads nothing outside it."""
        height, width = size
        if read_only:
            self._read_only(left, top, left + width, top + height)
        a, b, c, d, e, f = self.matrix
        c += a * left + b * top
        f += d * left + e * top
        self.size = size

    def cut_padded(self, left: Numbers, top: Numbers, size: tuple[Any, Any], outside: Outside | None) -> None:
        """Cut a rectangle that may reach beyond the picture. outside: what is seen there, None if it does not."""
        if outside == "fill":
            self.see_outside()
        continued = outside not in ("fill", None)
        self.cut(left, top, size, read_only=not continued)
        if continued:
            self.continue_outside()

    def stretch(
        self,
        left: Numbers,
        top: Numbers,
        width: Numbers,
        height: Numbers,
        size: tuple[Any, Any],
        antialias: bool,
        sampling: Sampling = "linear",
    ) -> None:
        """Cut a rectangle of whole pixels and resize it.

        left, top, width, height: [N]. size: (h, w) that it becomes. antialias: widen the filter where it shrinks; a cubic one
        always.
        """
        self._read_only(left, top, left + width, top + height)
        self._forget_edges(left, top, left + width, top + height)
        self._compose(width / size[1], 0.0, left, 0.0, height / size[0], top)
        if antialias:
            widened = np.maximum(self._pixel(), 1)
            self.support = 2 * widened if sampling == "cubic" else widened
            self.softness = np.maximum(self.softness, widened)
        self._whole[:] = False
        self.size = size

    def turn(self, a: Numbers, b: Numbers, c: Numbers, d: Numbers, e: Numbers, f: Numbers) -> None:
        """Move by any affine matrix, from positions of the new picture to positions in this one. Numbers, or [N]."""
        self._compose(a, b, c, d, e, f)
        self._whole[:] = False
        self._straight[:] = False

    def see_outside(self) -> None:
        """Let the picture end at its edges, each as wide as one of its pixels: what is placed next may look beyond them.

        After a turn only the edges that the picture had before it count.
        """
        if not self._straight.any():
            return
        height, width = self.size
        edges = self._in_source(0, 0, width, height)
        self.frame[:2] = np.where(self._straight, np.maximum(self.frame[:2], edges[:2]), self.frame[:2])
        self.frame[2:] = np.where(self._straight, np.minimum(self.frame[2:], edges[2:]), self.frame[2:])
        self.softness = np.where(self._straight, np.maximum(self._pixel(), 1e-6), self.softness)

    def continue_outside(self) -> None:
        """Let the pixels that may be read now continue the picture beyond its edges; what is cut later changes neither."""
        self._continued = True

    def columns(self) -> NDArray[np.float32]:
        """Return the first columns of a pass, as pass_spec.py has them: float32 [N, 18]."""
        a, b, c, d, e, f = self.matrix
        columns = np.empty((pass_spec.STEPS_AT, len(self)))
        columns[0:2], columns[2] = (a, b), c + (a + b) / 2 - 0.5
        columns[3:5], columns[5] = (d, e), f + (d + e) / 2 - 0.5
        columns[6:8], columns[8:10] = self.taps[:2], self.taps[2:] - 1
        columns[10:12] = self.support
        columns[12:16] = self.frame - 0.5
        columns[16:18] = 1 / self.softness
        return np.ascontiguousarray(columns.T, dtype=np.float32)

    def _compose(self, a: Numbers, b: Numbers, c: Numbers, d: Numbers, e: Numbers, f: Numbers) -> None:
        A, B, C, D, E, F = self.matrix
        self.matrix = np.stack(
            [A * a + B * d, A * b + B * e, A * c + B * f + C, D * a + E * d, D * b + E * e, D * c + E * f + F]
        )

    def _forget_edges(self, left: Numbers, top: Numbers, right: Numbers, bottom: Numbers) -> None:
        """Let those of the picture's edges go beyond which a rectangle shows nothing: a resize does not soften them."""
        if self._straight.any():
            box = self._in_source(left, top, right, bottom)
            self.frame[:2][self._straight & (box[:2] >= self.frame[:2])] = -_FAR
            self.frame[2:][self._straight & (box[2:] <= self.frame[2:])] = _FAR

    def _pixel(self) -> Floats:
        """Return the size of a pixel of this picture in the source, across and down: float64 [2, N]."""
        a, b, _, d, e, _ = self.matrix
        return np.stack([np.hypot(a, b), np.hypot(d, e)])

    def _in_source(self, left: Numbers, top: Numbers, right: Numbers, bottom: Numbers) -> Floats:
        """Return a rectangle of this picture as it lies in the source: float64 [4, N]; the picture is upright or mirrored."""
        a, _, c, _, e, f = self.matrix
        x1, x2, y1, y2 = a * left + c, a * right + c, e * top + f, e * bottom + f
        return np.stack([np.minimum(x1, x2), np.minimum(y1, y2), np.maximum(x1, x2), np.maximum(y1, y2)])

    def _read_only(self, left: Numbers, top: Numbers, right: Numbers, bottom: Numbers) -> None:
        if self._whole.any() and not self._continued:
            box = self._in_source(left, top, right, bottom)
            # Of a rectangle that lies outside, in padding, the nearest pixel stays: there must be one.
            first, end = self.taps[:2].copy(), self.taps[2:].copy()
            self.taps[:2] = np.where(self._whole, np.clip(box[:2], first, end - 1), first)
            self.taps[2:] = np.where(self._whole, np.clip(box[2:], first + 1, end), end)


def _rows(count: int, *numbers: Numbers) -> Floats:
    rows: Floats = np.empty((len(numbers), count))
    for row, number in zip(rows, numbers, strict=True):
        row[:] = number
    return rows


class RandomHorizontalFlip(RandomChange, GeometryPart):
    """Mirror each image left to right with probability p, as torchvision.transforms.v2.RandomHorizontalFlip.

    p: 0 <= p <= 1.
    """

    drawn = "flip"

    def place(self, placement: AffinePlacement, params: Params) -> None:
        placement.mirror(across=params["flip"])


class RandomVerticalFlip(RandomChange, GeometryPart):
    """Mirror each image top to bottom with probability p, as torchvision.transforms.v2.RandomVerticalFlip.

    p: 0 <= p <= 1.
    """

    drawn = "flip"

    def place(self, placement: AffinePlacement, params: Params) -> None:
        placement.mirror(down=params["flip"])


class AlternatingHorizontalFlip(SinglePartTransform, GeometryPart):
    """Mirror each image left to right in every second epoch: half of them in the even ones, half in the odd ones.

    In two epochs each image is seen both ways, where random flips show a quarter of them the same way four times in a
    row. Where an order repeats rows, all repetitions within an epoch are alike.
    K. Jordan, "94% on CIFAR-10 in 3.29 seconds on a single GPU" (arXiv:2404.00498, section 3.6).
    """

    def sample(self, draws: Draws, shape: Shape) -> Params:
        """Draw flip: bool [N]."""
        return {"flip": (draws.every_epoch("flip") < 0.5) ^ bool(draws.epoch % 2)}

    def place(self, placement: AffinePlacement, params: Params) -> None:
        placement.mirror(across=params["flip"])


class RandomCrop(SinglePartTransform, GeometryPart):
    """Cut one rectangle from each image, all places equally likely, as torchvision.transforms.v2.RandomCrop.

    size: side in pixels, or (height, width).
    padding: pixels added first: on all sides, or (left and right, top and bottom), or (left, top, right, bottom).
    padding_mode: "constant" adds pixels of value `fill`, "edge" repeats the border, "reflect" mirrors at it (without
        repeating it, so each side gets fewer pixels than the image has), "symmetric" repeats it too.
    fill: one number or one a channel, in the images' own scale, so 0 to 255 for uint8.

    pad_if_needed: pad an image that is smaller, on both sides by what is missing: it may then lie anywhere in the result.
    """

    def __init__(
        self,
        size: int | Sequence[int],
        padding: int | Sequence[int] | None = None,
        pad_if_needed: bool = False,
        fill: float | Sequence[float] = 0,
        padding_mode: str = "constant",
    ) -> None:
        self.height, self.width = validation.sides("RandomCrop", "size", size)
        self.left, self.top, self.right, self.bottom = validation.margins("RandomCrop", "padding", padding)
        self.pad_if_needed = validation.flag("RandomCrop", "pad_if_needed", pad_if_needed)
        self.padding_mode = validation.one_of(
            "RandomCrop", "padding_mode", padding_mode, tuple(pass_spec.OUTSIDES)
        )
        self.fill = validation.colour("RandomCrop", "fill", fill)
        self._padded = any((self.left, self.top, self.right, self.bottom))
        if self._padded or self.pad_if_needed:
            self.outside = pass_spec.OUTSIDES[self.padding_mode]

    def check(self, shape: Shape) -> Shape:
        channels, height, width = shape
        across, down = self._missing(height, width)
        margins = (self.left + across, self.top + down, self.right + across, self.bottom + down)
        validation.check_padding("RandomCrop", margins, self.padding_mode, height, width)
        height, width = height + margins[1] + margins[3], width + margins[0] + margins[2]
        if np.any((self.height > height) | (self.width > width)):
            padded = "with their padding " if self._padded else ""
            raise UsageError(
                f"RandomCrop: size is {self.height}x{self.width} and the images are {padded}{height}x{width}; "
                f"up to {height}x{width} is allowed. Pass a smaller size, more padding, or pad_if_needed=True."
            )
        return channels, self.height, self.width

    def sample(self, draws: Draws, shape: Shape) -> Params:
        """Draw top and left, where the crop lies in the image, padded on both sides by what it needs: int64 [N] each."""
        _, height, width = shape
        across, down = self._missing(height, width)
        return {
            "top": draws.integers("top", height + self.top + self.bottom + 2 * down - self.height + 1),
            "left": draws.integers("left", width + self.left + self.right + 2 * across - self.width + 1),
        }

    def place(self, placement: AffinePlacement, params: Params) -> None:
        height, width = placement.size
        across, down = self._missing(height, width)
        left, top = params["left"] - self.left - across, params["top"] - self.top - down
        placement.cut_padded(left, top, (self.height, self.width), self.outside)

    def _missing(self, height: Any, width: Any) -> tuple[Any, Any]:
        """Return by how much images are narrower, and lower, than the crop, if that is padded."""
        if not self.pad_if_needed:
            return 0, 0
        sides = self.width - width - self.left - self.right, self.height - height - self.top - self.bottom
        across, down = (np.maximum(n, 0) if isinstance(n, np.ndarray) else max(n, 0) for n in sides)
        return across, down


class CenterCrop(SinglePartTransform, GeometryPart):
    """Cut the middle of each image, as torchvision.transforms.v2.CenterCrop, without its padding of smaller images.

    size: side in pixels, or (height, width). Where the middle lies between two pixels, the rest is rounded to even.
    """

    def __init__(self, size: int | Sequence[int]) -> None:
        self.height, self.width = validation.sides("CenterCrop", "size", size)

    def check(self, shape: Shape) -> Shape:
        channels, height, width = shape
        if np.any((self.height > height) | (self.width > width)):
            raise UsageError(
                f"CenterCrop: size is {self.height}x{self.width} and the images are {height}x{width}; "
                f"up to {height}x{width} is allowed. Pass a smaller size, or Resize first."
            )
        return channels, self.height, self.width

    def place(self, placement: AffinePlacement, params: Params) -> None:
        height, width = placement.size
        top, left = np.rint((height - self.height) / 2), np.rint((width - self.width) / 2)
        placement.cut(left, top, (self.height, self.width))


SAMPLINGS: dict[str, Sampling] = {"nearest": "nearest", "nearest-exact": "nearest", "bilinear": "linear"}
"""Names of torchvision's InterpolationMode. "nearest" takes the pixel in which the result's middle lies, as "nearest-exact"."""

RESIZE_SAMPLINGS: dict[str, Sampling] = SAMPLINGS | {"bicubic": "cubic"}
"""Those of operations that resize."""

_ATTEMPTS = 10


def resize_sampling(name: str, interpolation: Any, antialias: Any) -> tuple[str, Sampling]:
    """Return the word of an interpolation, and what a pass calls it."""
    word = validation.one_of(name, "interpolation", interpolation, tuple(RESIZE_SAMPLINGS))
    if word == "bicubic" and not validation.flag(name, "antialias", antialias):
        raise UsageError(
            f"{name}: antialias is False and interpolation 'bicubic'; 'bicubic' is allowed with antialias=True. "
            "Leave antialias out."
        )
    return word, RESIZE_SAMPLINGS[word]


class Resize(SinglePartTransform, GeometryPart):
    """Resize each image, as torchvision.transforms.v2.Resize.

    size: (height, width), or the shorter side in pixels: the longer keeps the proportion, rounded down; None with max_size.
    interpolation: "bilinear", "bicubic" (Pillow's, a = -0.5) or "nearest". max_size: with the shorter side, what the longer has at most,
    in proportion; with size None the longer side. antialias: widen the filter when it shrinks.
    """

    def __init__(
        self,
        size: int | Sequence[int] | None,
        interpolation: str = "bilinear",
        max_size: int | None = None,
        antialias: bool = True,
    ) -> None:
        self.interpolation, self.sampling = resize_sampling("Resize", interpolation, antialias)
        self._shorter = not (isinstance(size, Sequence) and len(size) == 2)
        self._longer = None if max_size is None else validation.whole("Resize", "max_size", max_size, 1)
        self._longest = size is None and max_size is not None
        self.size = validation.sides("Resize", "size", max_size if self._longest else size)
        if self._longer is not None and not (
            self._longest or (self._shorter and self.size[0] < self._longer)
        ):
            raise UsageError(
                f"Resize: size is {size!r} and max_size {max_size!r}; max_size is allowed with a size of one smaller number, or "
                "None. Leave max_size out, or pass a larger one."
            )
        self.antialias = validation.flag("Resize", "antialias", antialias)

    def check(self, shape: Shape) -> Shape:
        return (shape[0], *self._size(shape[1:]))

    def place(self, placement: AffinePlacement, params: Params) -> None:
        height, width = placement.size
        size = self._size((height, width))
        if isinstance(height, np.ndarray) or size != placement.size:
            nothing = np.zeros(len(placement))
            placement.stretch(
                nothing, nothing, nothing + width, nothing + height, size, bool(self.antialias), self.sampling
            )

    def _size(self, size: tuple[Any, ...]) -> tuple[Any, Any]:
        if not self._shorter:
            return self.size
        height, width = size
        low, high = np.minimum(height, width), np.maximum(height, width)
        short: Any = self.size[0]
        long: Any = short * high // low
        if self._longest:
            short, long = self.size[0] * low // high, self.size[0]
        elif self._longer is not None:
            wide = long > self._longer
            short = np.where(wide, self._longer * short // long, short)
            long = np.where(wide, self._longer, long)
        short, long = np.maximum(short, 1), np.maximum(long, 1)
        made = np.where(height > width, long, short), np.where(height > width, short, long)
        return made if isinstance(height, np.ndarray) else (int(made[0]), int(made[1]))


class RandomResizedCrop(SinglePartTransform, GeometryPart):
    """Cut a rectangle of random area and proportion and resize it, as torchvision.transforms.v2.RandomResizedCrop.

    size: side in pixels, or (height, width). scale: least and largest area, as shares of the image's. ratio: least and
    largest width / height, drawn so that its logarithm is uniform. After ten draws that do not fit the image: the
    middle, as large as the ratios allow. interpolation: "bilinear", "bicubic" (Pillow's, a = -0.5) or "nearest".
    antialias: widen the filter when it shrinks.
    """

    def __init__(
        self,
        size: int | Sequence[int],
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3),
        interpolation: str = "bilinear",
        antialias: bool = True,
    ) -> None:
        self.size = validation.sides("RandomResizedCrop", "size", size)
        self.scale = validation.interval("RandomResizedCrop", "scale", scale, 0, 1)
        self.ratio = validation.interval("RandomResizedCrop", "ratio", ratio, 1e-3, 1e3)
        self.interpolation, self.sampling = resize_sampling("RandomResizedCrop", interpolation, antialias)
        self.antialias = validation.flag("RandomResizedCrop", "antialias", antialias)
        if self.scale[1] == 0:
            raise UsageError(
                "RandomResizedCrop: scale is (0, 0); shares above 0 are allowed. Pass for example (0.08, 1)."
            )

    def check(self, shape: Shape) -> Shape:
        return (shape[0], *self.size)

    def sample(self, draws: Draws, shape: Shape) -> Params:
        """Draw top, left, height and width of the rectangle in the image: int64 [N] each."""
        _, height, width = shape
        ratio = np.clip(width / height, *self.ratio)
        across = np.full(len(draws), np.minimum(width, np.maximum(1, np.rint(height * ratio))), np.int64)
        down = np.full(len(draws), np.minimum(height, np.maximum(1, np.rint(width / ratio))), np.int64)
        found = {"top": (height - down) // 2, "left": (width - across) // 2, "height": down, "width": across}
        everybody = np.arange(len(draws))
        draw_rectangles(draws, everybody, shape, self.scale, self.ratio, ("width", "height"), 1, found)
        return found

    def place(self, placement: AffinePlacement, params: Params) -> None:
        left, top, width, height = (params[name] for name in ("left", "top", "width", "height"))
        placement.stretch(left, top, width, height, self.size, bool(self.antialias), self.sampling)


def draw_rectangles(
    draws: Draws,
    waiting: Whole,
    shape: Shape,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    sides: tuple[str, str],
    least: int,
    found: dict[str, Whole],
) -> None:
    """Draw rectangles of random area and proportion, ten times for each image at most, until one fits it.

    waiting: numbers of the draws' rows that need one. scale: of areas, as shares of the image's. ratio: of the first of
    `sides`, "width" and "height", to the second. least: the least side that fits; the most is the image's, less one if it is 0. found:
    top, left, height and width, int64 [N] each; where none fits they stay as they are.
    """
    low, high = (math.log(end) for end in ratio)
    size = dict(
        zip(("height", "width"), (np.broadcast_to(side, len(draws)) for side in shape[1:]), strict=True)
    )
    for attempt in range(_ATTEMPTS):
        if not waiting.size:
            return
        some = draws.only(waiting)
        area = some.uniform(f"area {attempt}", *scale) * (size["height"][waiting] * size["width"][waiting])
        proportion = np.exp(some.uniform(f"ratio {attempt}", low, high))
        drawn = [np.rint(np.sqrt(each)).astype(np.int64) for each in (area * proportion, area / proportion)]
        fitting = np.ones(len(waiting), np.bool_)
        for name, side in zip(sides, drawn, strict=True):
            fitting &= (side >= least) & (side < size[name][waiting] + least)
        chosen = waiting[fitting]
        good = draws.only(chosen)
        for name, side in zip(sides, drawn, strict=True):
            found[name][chosen] = side[fitting]
        for corner, name in (("left", "width"), ("top", "height")):
            room = size[name][chosen] - found[name][chosen] + 1
            found[corner][chosen] = good.integers(f"{corner} {attempt}", room)
        waiting = waiting[~fitting]
