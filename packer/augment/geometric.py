"""Flips, crops, resizes, padding, rotations and affine maps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, MISSING, dataclass
from typing import Any

import numpy as np

from packer.augment import kinds, validation
from packer.augment.passes.pass_spec import OUTSIDES, Sampling
from packer.augment.placement import AffinePlacement, Whole, transform_about
from packer.augment.validation import Parameter, Unfit
from packer.errors import UsageError

SAMPLINGS: dict[str, Sampling] = {"nearest": "nearest", "nearest-exact": "nearest", "bilinear": "linear"}
"""Names of torchvision's InterpolationMode. "nearest" takes the pixel in which the result's middle lies, as "nearest-exact"."""

RESIZE_SAMPLINGS: dict[str, Sampling] = SAMPLINGS | {"bicubic": "cubic"}
"""Those of operations that resize."""

_ATTEMPTS = 10
# Attempts times images: for so few the calls take the time, not the numbers.
_DRAWN_AT_ONCE = 1024


@dataclass(eq=False)
class _GivenSize(kinds.GeometryPart):
    """Geometry whose results have a size that the user gives."""

    size: validation.Sides = Parameter(validation.sides)

    def output_shape(self, shape: kinds.Shape) -> kinds.Shape:
        return shape[0], *self.size

    def check_fits(self, height: Any, width: Any, padded: str, remedy: str) -> None:
        """Raise UsageError if it is larger than an image, or than one of several."""
        if np.any((self.size[0] > height) | (self.size[1] > width)):
            raise UsageError(
                f"{self.name}: size is {self.size[0]}x{self.size[1]} and the images are {padded}{height}x{width}; "
                f"up to {height}x{width} is allowed. {remedy}"
            )


class _Sampled(kinds.GeometryPart):
    """Geometry that interpolates."""

    interpolation: validation.Word

    def __post_init__(self) -> None:
        if self.interpolation == "bicubic" and not self.antialias:
            raise UsageError(
                f"{self.name}: antialias is False and interpolation 'bicubic'; 'bicubic' is allowed with antialias=True. "
                "Leave antialias out."
            )

    @property
    def sampling(self) -> Sampling:  # type: ignore[override]
        """See GeometryPart."""
        return RESIZE_SAMPLINGS[self.interpolation]


class _Padded(kinds.GeometryPart):
    """Geometry that may show what lies beyond the image's edges."""

    padding: validation.OptionalMargins
    padding_mode: validation.Word
    pad_if_needed: Any = False

    @property
    def outside(self) -> Any:  # type: ignore[override]
        """See GeometryPart."""
        return self.padding_mode if any(self.padding or ()) or self.pad_if_needed else None

    def margins(self, height: Any, width: Any) -> tuple[Any, Any, Any, Any]:
        """Return the padding of images: left, top, right, bottom."""
        return self.padding or (0, 0, 0, 0)

    def padded(self, height: Any, width: Any) -> tuple[Any, Any, Any, Any]:
        """Return the padding on the left and the top of images, and their height and width with all of it."""
        left, top, right, bottom = margins = self.margins(height, width)
        if self.padding_mode == "reflect" and np.any(
            (np.maximum(top, bottom) >= height) | (np.maximum(left, right) >= width)
        ):
            raise UsageError(
                f"{self.name}: padding is {margins} and the images are {height}x{width}; reflect allows less than their "
                "height and width. Pad less, or with padding_mode='edge'."
            )
        return left, top, height + top + bottom, width + left + right


class RandomRectangle(kinds.TransformPart):
    """A transform that draws a rectangle of random area and proportion for each image.

    scale: of areas, as shares of the image's. ratio: of the first of `sides` to the second. least: the least side that
    fits; the most is the image's, less one if it is 0.
    """

    scale: validation.Interval
    ratio: validation.Interval
    sides = "width", "height"
    least = 1

    def draw(self, draws: kinds.Draws, waiting: Whole, shape: kinds.Shape, found: dict[str, Whole]) -> None:
        """Draw ten times for each image at most, until a rectangle fits it.

        waiting: numbers of the draws' rows that need one. found: top, left, height and width, int64 [N] each; where none
        fits they stay as they are.
        """
        low, high = map(math.log, self.ratio)
        heights, widths = (np.broadcast_to(side, len(draws)) for side in shape[1:])
        numbers = range(0)
        while numbers.stop < _ATTEMPTS and waiting.size:
            end = min(_ATTEMPTS, numbers.stop + max(1, _DRAWN_AT_ONCE // waiting.size))
            numbers = range(numbers.stop, end)
            some, size = draws.only(waiting), {"height": heights[waiting], "width": widths[waiting]}
            # Of each attempt, and of each image: [A, N].
            area = some.uniform([f"area {i}" for i in numbers], *self.scale)
            area *= size["height"] * size["width"]
            proportion = np.exp(some.uniform([f"ratio {i}" for i in numbers], low, high))
            drawn = {
                name: np.rint(np.sqrt(squared)).astype(np.int64)
                for name, squared in zip(self.sides, (area * proportion, area / proportion), strict=True)
            }
            fits = [(drawn[name] >= self.least) & (drawn[name] < size[name] + self.least) for name in size]
            for corner, name in (("left", "width"), ("top", "height")):
                room = np.maximum(1, size[name] - drawn[name] + 1)
                drawn[corner] = some.integers([f"{corner} {i}" for i in numbers], room)
            fit = fits[0] & fits[1]
            found_one = fit.any(axis=0)
            first = fit.argmax(axis=0)[found_one], np.flatnonzero(found_one)
            for name, values in drawn.items():
                found[name][waiting[found_one]] = values[first]
            waiting = waiting[~found_one]


class RandomHorizontalFlip(kinds.PlainChange, kinds.GeometryPart):
    """Mirror each image left to right with probability p, as torchvision.transforms.v2.RandomHorizontalFlip.

    p: 0 <= p <= 1.
    """

    gate = "flip"

    def place(self, placement: AffinePlacement, params: kinds.Params) -> None:
        placement.mirror(params["flip"])


class RandomVerticalFlip(kinds.PlainChange, kinds.GeometryPart):
    """Mirror each image top to bottom with probability p, as torchvision.transforms.v2.RandomVerticalFlip.

    p: 0 <= p <= 1.
    """

    gate = "flip"

    def place(self, placement: AffinePlacement, params: kinds.Params) -> None:
        placement.mirror(params["flip"], down=True)


class AlternatingHorizontalFlip(kinds.GeometryPart):
    """Mirror each image left to right in every second epoch: half of them in the even ones, half in the odd ones.

    In two epochs each image is seen both ways, where random flips show a quarter of them the same way four times in a
    row. Where an order repeats rows, all repetitions within an epoch are alike.
    K. Jordan, "94% on CIFAR-10 in 3.29 seconds on a single GPU" (arXiv:2404.00498, section 3.6).
    """

    def sample(self, draws: kinds.Draws, shape: kinds.Shape) -> kinds.Params:
        """Draw flip: bool [N]."""
        return {"flip": (draws.every_epoch("flip") < 0.5) ^ bool(draws.epoch % 2)}

    def place(self, placement: AffinePlacement, params: kinds.Params) -> None:
        placement.mirror(params["flip"])


@dataclass(eq=False)
class RandomCrop(_GivenSize, _Padded):
    """Cut one rectangle from each image, all places equally likely, as torchvision.transforms.v2.RandomCrop.

    size: side in pixels, or (height, width).
    padding: pixels added first: on all sides, or (left and right, top and bottom), or (left, top, right, bottom).
    padding_mode: "constant" adds pixels of value `fill`, "edge" repeats the border, "reflect" mirrors at it (without
        repeating it, so each side gets fewer pixels than the image has), "symmetric" repeats it too.
    fill: one number or one a channel, in the images' own scale, so 0 to 255 for uint8.

    pad_if_needed: pad an image that is smaller, on both sides by what is missing: it may then lie anywhere in the result.
    """

    padding: validation.OptionalMargins = Parameter(validation.margins, None)
    pad_if_needed: validation.Flag = Parameter(validation.flag, False)
    fill: validation.Colour = Parameter(validation.colour, 0)
    padding_mode: validation.Word = Parameter(validation.one_of, "constant", OUTSIDES)

    def output_shape(self, shape: kinds.Shape) -> kinds.Shape:
        _, _, height, width = self.padded(*shape[1:])
        padded = "with their padding " if self.outside else ""
        remedy = "Pass a smaller size, more padding, or pad_if_needed=True."
        self.check_fits(height, width, padded, remedy)
        return super().output_shape(shape)

    def margins(self, height: Any, width: Any) -> tuple[Any, Any, Any, Any]:
        """Return the padding, with what a smaller image lacks on both sides if that is padded."""
        left, top, right, bottom = super().margins(height, width)
        if not self.pad_if_needed:
            return left, top, right, bottom
        across, down = self.size[1] - width - left - right, self.size[0] - height - top - bottom
        across, down = across * (across > 0), down * (down > 0)
        return left + across, top + down, right + across, bottom + down

    def sample(self, draws: kinds.Draws, shape: kinds.Shape) -> kinds.Params:
        """Draw top and left, where the crop lies in the image, padded on both sides by what it needs: int64 [N] each."""
        _, _, height, width = self.padded(*shape[1:])
        return {
            "top": draws.integers("top", height - self.size[0] + 1),
            "left": draws.integers("left", width - self.size[1] + 1),
        }

    def place(self, placement: AffinePlacement, params: kinds.Params) -> None:
        left, top, _, _ = self.padded(*placement.size)
        placement.cut_padded(params["left"] - left, params["top"] - top, self.size, self.outside)


class CenterCrop(_GivenSize):
    """Cut the middle of each image, as torchvision.transforms.v2.CenterCrop, without its padding of smaller images.

    size: side in pixels, or (height, width). Where the middle lies between two pixels, the rest is rounded to even.
    """

    def output_shape(self, shape: kinds.Shape) -> kinds.Shape:
        self.check_fits(*shape[1:], "", "Pass a smaller size, or Resize first.")
        return super().output_shape(shape)

    def place(self, placement: AffinePlacement, params: kinds.Params) -> None:
        top, left = (np.rint((side - own) / 2) for side, own in zip(placement.size, self.size, strict=True))
        placement.cut(left, top, self.size)


def _side_or_sides(value: Any) -> int | tuple[int, int]:
    """Return a side as it is, or (height, width)."""
    found = validation.sides(value)
    return found if len(validation.listed(value)) == 2 else found[0]


@dataclass(eq=False)
class Resize(_Sampled):
    """Resize each image, as torchvision.transforms.v2.Resize.

    size: (height, width), or the shorter side in pixels: the longer keeps the proportion, rounded down; None with max_size.
    interpolation: "bilinear", "bicubic" (Pillow's, a = -0.5) or "nearest". max_size: with the shorter side, what the longer has at most,
    in proportion; with size None the longer side. antialias: widen the filter when it shrinks.
    """

    size: Any = Parameter(_side_or_sides, None)
    interpolation: validation.Word = Parameter(validation.one_of, "bilinear", RESIZE_SAMPLINGS)
    max_size: validation.OptionalWhole = Parameter(validation.whole, None, 1)
    antialias: validation.Flag = Parameter(validation.flag, True)

    def __post_init__(self) -> None:
        super().__post_init__()
        one, limit = not isinstance(self.size, tuple), self.max_size
        if self.size is None and limit is None:
            validation.checked("Resize", "size", None, validation.sides)
        if limit is not None and not (one and (self.size or 0) < limit):
            raise UsageError(
                f"Resize: size is {self.size!r} and max_size {limit!r}; max_size is allowed with a size of one smaller "
                "number, or None. Leave max_size out, or pass a larger one."
            )

    def output_shape(self, shape: kinds.Shape) -> kinds.Shape:
        return shape[0], *self._size(*shape[1:])

    def place(self, placement: AffinePlacement, params: kinds.Params) -> None:
        height, width = placement.size
        size = self._size(height, width)
        if isinstance(height, np.ndarray) or size != placement.size:
            placement.stretch((0, 0, width, height), size, self.antialias, self.sampling)

    def _size(self, height: Any, width: Any) -> tuple[Any, Any]:
        if isinstance(self.size, tuple):
            return self.size
        low, high = np.minimum(height, width), np.maximum(height, width)
        short, long = (low, high) if self.size is None else (self.size, self.size * high // low)
        if self.max_size is not None:
            limited = (long > self.max_size) | (self.size is None)
            short = np.where(limited, self.max_size * short // long, short)
            long = np.where(limited, self.max_size, long)
        short, long = np.maximum(short, 1), np.maximum(long, 1)
        made = np.where(height > width, long, short), np.where(height > width, short, long)
        return made if isinstance(height, np.ndarray) else (int(made[0]), int(made[1]))


@dataclass(eq=False)
class RandomResizedCrop(_GivenSize, _Sampled, RandomRectangle):
    """Cut a rectangle of random area and proportion and resize it, as torchvision.transforms.v2.RandomResizedCrop.

    size: side in pixels, or (height, width). scale: least and largest area, as shares of the image's. ratio: least and
    largest width / height, drawn so that its logarithm is uniform. After ten draws that do not fit the image: the
    middle, as large as the ratios allow. interpolation: "bilinear", "bicubic" (Pillow's, a = -0.5) or "nearest".
    antialias: widen the filter when it shrinks.
    """

    scale: validation.Interval = Parameter(validation.interval, (0.08, 1.0), 0, 1)
    ratio: validation.Interval = Parameter(validation.interval, (3 / 4, 4 / 3), 1e-3, 1e3)
    interpolation: validation.Word = Parameter(validation.one_of, "bilinear", RESIZE_SAMPLINGS)
    antialias: validation.Flag = Parameter(validation.flag, True)

    def sample(self, draws: kinds.Draws, shape: kinds.Shape) -> kinds.Params:
        """Draw top, left, height and width of the rectangle in the image: int64 [N] each."""
        _, height, width = shape
        ratio = np.clip(width / height, *self.ratio)
        across = np.full(len(draws), np.minimum(width, np.maximum(1, np.rint(height * ratio))), np.int64)
        down = np.full(len(draws), np.minimum(height, np.maximum(1, np.rint(width / ratio))), np.int64)
        found = {"top": (height - down) // 2, "left": (width - across) // 2, "height": down, "width": across}
        self.draw(draws, np.arange(len(draws)), shape, found)
        return found

    def place(self, placement: AffinePlacement, params: kinds.Params) -> None:
        box = tuple(params[name] for name in ("left", "top", "width", "height"))
        placement.stretch(box, self.size, self.antialias, self.sampling)


@dataclass(eq=False)
class Pad(_Padded):
    """Add pixels on all sides of each image, as torchvision.transforms.v2.Pad.

    padding: pixels: on all sides, or (left and right, top and bottom), or (left, top, right, bottom).
    fill: of padding_mode "constant": one number or one a channel, in the images' own scale; masks get the pipeline's
        mask_fill.
    padding_mode: "constant", or what continues the image: "edge" repeats the border, "reflect" mirrors at it (without
        repeating it, so each side gets fewer pixels than the image has), "symmetric" mirrors and repeats it. Masks are
        continued alike; boxes and points are not mirrored.
    """

    padding: validation.Margins = Parameter(validation.margins)
    fill: validation.Colour = Parameter(validation.colour, 0)
    padding_mode: validation.Word = Parameter(validation.one_of, "constant", OUTSIDES)

    def output_shape(self, shape: kinds.Shape) -> kinds.Shape:
        return shape[0], *self.padded(*shape[1:])[2:]

    def place(self, placement: AffinePlacement, params: kinds.Params) -> None:
        left, top, *size = self.padded(*placement.size)
        placement.cut_padded(-left, -top, tuple(size), self.outside)


@dataclass(eq=False)
class LetterBox(_GivenSize, _Sampled):
    """Resize each image to fit into a size, its proportion kept, and pad the rest: Ultralytics' LetterBox with auto=False.

    size: side in pixels, or (height, width), of the result. fill: of the padding, one number or one a channel, in the images' own
    scale; masks get the pipeline's mask_fill. scaleup: enlarge images that are smaller. center: the image in the middle, the rest
    rounded down to the left and the top; else in the top left corner. interpolation: "bilinear", "bicubic" (Pillow's, a = -0.5) or
    "nearest". antialias: widen the filter when it shrinks, which Ultralytics does not.
    """

    fill: validation.Colour = Parameter(validation.colour, 114)
    _: KW_ONLY
    scaleup: validation.Flag = Parameter(validation.flag, True)
    center: validation.Flag = Parameter(validation.flag, True)
    interpolation: validation.Word = Parameter(validation.one_of, "bilinear", RESIZE_SAMPLINGS)
    antialias: validation.Flag = Parameter(validation.flag, True)
    outside = "constant"

    def place(self, placement: AffinePlacement, params: kinds.Params) -> None:
        height, width = placement.size
        factor = np.minimum(self.size[0] / height, self.size[1] / width)
        if not self.scaleup:
            factor = np.minimum(factor, 1)
        down, across = (np.maximum(np.rint(side * factor), 1) for side in (height, width))
        placement.stretch((0, 0, width, height), (down, across), self.antialias, self.sampling)
        top, left = ((self.size[0] - down) // 2, (self.size[1] - across) // 2) if self.center else (0, 0)
        placement.cut_padded(-left, -top, self.size, self.outside)


@dataclass(eq=False)
class RandomRotation(_Sampled):
    """Turn each image about its middle, as torchvision.transforms.v2.RandomRotation without expand.

    degrees: (least, most), counter-clockwise; one number d stands for (-d, d).
    interpolation: "nearest" or "bilinear". center: (x, y) in pixels from the top left corner; the middle if None.
    fill: beyond the image's edges, one number or one a channel, in the images' own scale.
    """

    degrees: validation.Around = Parameter(validation.around, MISSING, 0)
    interpolation: validation.Word = Parameter(validation.one_of, "nearest", SAMPLINGS)
    _: KW_ONLY
    center: validation.OptionalPair = Parameter(validation.pair, None)
    fill: validation.Colour = Parameter(validation.colour, 0)
    turns = True
    outside = "constant"

    def sample(self, draws: kinds.Draws, shape: kinds.Shape) -> kinds.Params:
        """Draw angle, in degrees, counter-clockwise: float64 [N]."""
        return {"angle": draws.uniform("angle", *self.degrees)}

    def place(self, placement: AffinePlacement, params: kinds.Params) -> None:
        transform_about(placement, self.center, {"angle": -params["angle"]})


def _shear(value: Any) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the degrees along x and along y: (low, high) each."""
    if isinstance(value, Sequence) and len(value) == 4:
        found = validation.interval(value[:2]), validation.interval(value[2:])
    else:
        found = validation.around(value, 0), (0.0, 0.0)
    if any(abs(angle) >= 90 for pair in found for angle in pair):
        raise Unfit("degrees between -90 and 90 are allowed. Pass smaller ones.")
    return found


@dataclass(eq=False)
class RandomAffine(_Sampled):
    """Turn, move, scale and shear each image about its middle, as torchvision.transforms.v2.RandomAffine.

    degrees: (least, most), clockwise; one number d stands for (-d, d); 0 for none.
    translate: (across, down), the largest moves as shares of width and height; moves are whole pixels. None: none.
    scale: (least, most). None: 1.
    shear: degrees: one number s for (-s, s) along x; (least, most) along x; or four: along x, then along y. None: none.
    interpolation: "nearest" or "bilinear". fill, center: as RandomRotation's.
    """

    degrees: validation.Around = Parameter(validation.around, MISSING, 0)
    translate: validation.OptionalPair = Parameter(validation.pair, None, 0, 1)
    scale: validation.OptionalPair = Parameter(validation.interval, None, 1e-6)
    shear: Any = Parameter(_shear, None)
    interpolation: validation.Word = Parameter(validation.one_of, "nearest", SAMPLINGS)
    fill: validation.Colour = Parameter(validation.colour, 0)
    center: validation.OptionalPair = Parameter(validation.pair, None)
    turns = True
    outside = "constant"

    def sample(self, draws: kinds.Draws, shape: kinds.Shape) -> kinds.Params:
        """Draw angle (degrees, clockwise), scale, shear_x, shear_y (degrees): float64 [N]; move_x, move_y: whole pixels."""
        across, down = self.translate or (0.0, 0.0)
        shear_x, shear_y = self.shear or ((0.0, 0.0), (0.0, 0.0))
        move_x, move_y = across * shape[2], down * shape[1]
        return {
            "angle": draws.uniform("angle", *self.degrees),
            "scale": draws.uniform("scale", *(self.scale or (1.0, 1.0))),
            "shear_x": draws.uniform("shear_x", *shear_x),
            "shear_y": draws.uniform("shear_y", *shear_y),
            "move_x": np.rint(draws.uniform("move_x", -move_x, move_x)),
            "move_y": np.rint(draws.uniform("move_y", -move_y, move_y)),
        }

    def place(self, placement: AffinePlacement, params: kinds.Params) -> None:
        transform_about(placement, self.center, params)
