"""Flips, crops, resizes, padding, rotations and affine maps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, MISSING, dataclass
from typing import Any

import numpy as np

from packer.augment import kinds, validation
from packer.augment.passes.pass_spec import OUTSIDES, Sampling
from packer.augment.placement import AffinePlacement, Integers, transform_about
from packer.augment.validation import Parameter, Unfit
from packer.errors import UsageError

SAMPLINGS: dict[str, Sampling] = {"nearest": "nearest", "nearest-exact": "nearest", "bilinear": "linear"}
"""Names of torchvision's InterpolationMode; "nearest" means torchvision's "nearest-exact"."""

RESIZE_SAMPLINGS: dict[str, Sampling] = SAMPLINGS | {"bicubic": "cubic"}
"""Names for operations that resize."""

_ATTEMPTS = 10
# Attempts times images drawn in one call: up to this number the overhead of a call dominates.
_DRAWN_AT_ONCE = 1024


@dataclass(eq=False)
class _GivenSize(kinds.GeometryPart):
    """A part whose results have a given size."""

    size: validation.Sides = Parameter(validation.sides)

    def output_shape(self, shape: kinds.Shape) -> kinds.Shape:
        return shape[0], *self.size

    def check_fits(self, height: Any, width: Any, padded: str, remedy: str) -> None:
        """Raise UsageError if `size` is larger than an image."""
        if np.any((self.size[0] > height) | (self.size[1] > width)):
            raise UsageError(
                f"{self.name}: size is {self.size[0]}x{self.size[1]} and the images are "
                f"{padded}{height}x{width}; up to {height}x{width} is allowed. {remedy}"
            )


class _Sampled(kinds.GeometryPart):
    """A part that interpolates."""

    interpolation: validation.Word

    def __post_init__(self) -> None:
        if self.interpolation == "bicubic" and not self.antialias:
            raise UsageError(
                f"{self.name}: antialias is False and interpolation 'bicubic'; "
                "'bicubic' is allowed with antialias=True. Leave antialias out."
            )

    @property
    def sampling(self) -> Sampling:  # type: ignore[override]
        """See GeometryPart."""
        return RESIZE_SAMPLINGS[self.interpolation]


class _Padded(kinds.GeometryPart):
    """A part that may pad images."""

    padding: validation.OptionalMargins
    padding_mode: validation.Word
    pad_if_needed: Any = False

    @property
    def outside(self) -> Any:  # type: ignore[override]
        """See GeometryPart."""
        return self.padding_mode if any(self.padding or ()) or self.pad_if_needed else None

    def margins(self, height: Any, width: Any) -> tuple[Any, Any, Any, Any]:
        """Return the padding: left, top, right, bottom."""
        return self.padding or (0, 0, 0, 0)

    def padded(self, height: Any, width: Any) -> tuple[Any, Any, Any, Any]:
        """Return the left and top padding, and height and width of the padded images."""
        left, top, right, bottom = margins = self.margins(height, width)
        if self.padding_mode == "reflect" and np.any(
            (np.maximum(top, bottom) >= height) | (np.maximum(left, right) >= width)
        ):
            raise UsageError(
                f"{self.name}: padding is {margins} and the images are {height}x{width}; reflect allows less "
                "than their height and width. Pad less, or with padding_mode='edge'."
            )
        return left, top, height + top + bottom, width + left + right


class RandomRectangle(kinds.TransformPart):
    """A part that draws a rectangle of random area and aspect ratio for each image.

    scale: range of the area, as a fraction of the image's. ratio: range of the ratio of the first of `sides`
        to the second. least: the smallest allowed side; the largest is the image's, minus 1 if `least` is 0.
    """

    scale: validation.Interval
    ratio: validation.Interval
    sides: tuple[str, str] = "width", "height"
    least = 1

    def draw(
        self, draws: kinds.Draws, waiting: Integers, shape: kinds.Shape, found: dict[str, Integers]
    ) -> None:
        """Draw up to ten rectangles for each image, until one fits.

        waiting: indices of the rows that need a rectangle. found: top, left, height and width, int64 [N]
            each; receives the rectangles, and remains unchanged where none fits.
        """
        low, high = map(math.log, self.ratio)
        heights, widths = (np.broadcast_to(side, len(draws)) for side in shape[1:])
        numbers = range(0)
        while numbers.stop < _ATTEMPTS and waiting.size:
            end = min(_ATTEMPTS, numbers.stop + max(1, _DRAWN_AT_ONCE // waiting.size))
            numbers = range(numbers.stop, end)
            some, size = draws.only(waiting), {"height": heights[waiting], "width": widths[waiting]}
            # Shapes are [attempts, images].
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
            has_fit = fit.any(axis=0)
            first = fit.argmax(axis=0)[has_fit], np.flatnonzero(has_fit)
            for name, values in drawn.items():
                found[name][waiting[has_fit]] = values[first]
            waiting = waiting[~has_fit]


class RandomHorizontalFlip(kinds.PlainChange, kinds.GeometryPart):
    """Mirror each image left to right with probability p, as torchvision.transforms.v2.RandomHorizontalFlip.

    p: 0 <= p <= 1.
    """

    gate = "flip"
    mirrors = True

    def place(self, placement: AffinePlacement, params: kinds.Params) -> None:
        placement.mirror(params["flip"])


class RandomVerticalFlip(kinds.PlainChange, kinds.GeometryPart):
    """Mirror each image top to bottom with probability p, as torchvision.transforms.v2.RandomVerticalFlip.

    p: 0 <= p <= 1.
    """

    gate = "flip"
    mirrors = True

    def place(self, placement: AffinePlacement, params: kinds.Params) -> None:
        placement.mirror(params["flip"], down=True)


class AlternatingHorizontalFlip(kinds.GeometryPart):
    """Mirror each image left to right in every second epoch: half of the images in even, half in odd epochs.

    Two successive epochs show each image both ways; random flips would show half of the images the same way
    twice. For orders that repeat rows, all repetitions in an epoch are flipped alike.
    K. Jordan, "94% on CIFAR-10 in 3.29 seconds on a single GPU" (arXiv:2404.00498, section 3.6).
    """

    mirrors = True

    def sample(self, draws: kinds.Draws, shape: kinds.Shape) -> kinds.Params:
        """Draw flip: bool [N]."""
        return {"flip": (draws.every_epoch("flip") < 0.5) ^ bool(draws.epoch % 2)}

    def place(self, placement: AffinePlacement, params: kinds.Params) -> None:
        placement.mirror(params["flip"])


@dataclass(eq=False)
class RandomCrop(_GivenSize, _Padded):
    """Crop a rectangle at a uniformly random position, as torchvision.transforms.v2.RandomCrop.

    size: side in pixels, or (height, width).
    padding: pixels added before the crop: on all sides, or (left and right, top and bottom), or (left, top,
        right, bottom).
    padding_mode: "constant" adds pixels of value `fill`, "edge" repeats the border pixels, "reflect" mirrors
        without repeating the border (so the padding must be less than the image's side), "symmetric" mirrors
        and repeats it.
    fill: a number, or a number for each channel, in the images' own scale (0 to 255 for uint8).
    pad_if_needed: pad smaller images on both sides by the missing pixels, so that they lie anywhere in the
        result.
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
        """Return the padding; with pad_if_needed, enlarged by the missing pixels on both sides."""
        left, top, right, bottom = super().margins(height, width)
        if not self.pad_if_needed:
            return left, top, right, bottom
        across, down = self.size[1] - width - left - right, self.size[0] - height - top - bottom
        across, down = across * (across > 0), down * (down > 0)
        return left + across, top + down, right + across, bottom + down

    def sample(self, draws: kinds.Draws, shape: kinds.Shape) -> kinds.Params:
        """Draw top and left, the position of the crop in the padded image: int64 [N] each."""
        _, _, height, width = self.padded(*shape[1:])
        return {
            "top": draws.integers("top", height - self.size[0] + 1),
            "left": draws.integers("left", width - self.size[1] + 1),
        }

    def place(self, placement: AffinePlacement, params: kinds.Params) -> None:
        left, top, _, _ = self.padded(*placement.size)
        placement.cut_padded(params["left"] - left, params["top"] - top, self.size, self.outside)


class CenterCrop(_GivenSize):
    """Crop the centre of each image, as torchvision's CenterCrop, without padding of smaller images.

    size: side in pixels, or (height, width). Half of an odd difference of the sides is rounded to the even
        number.
    """

    def output_shape(self, shape: kinds.Shape) -> kinds.Shape:
        self.check_fits(*shape[1:], "", "Pass a smaller size, or Resize first.")
        return super().output_shape(shape)

    def place(self, placement: AffinePlacement, params: kinds.Params) -> None:
        top, left = (np.rint((side - crop) / 2) for side, crop in zip(placement.size, self.size, strict=True))
        placement.cut(left, top, self.size)


def _side_or_sides(value: Any) -> int | tuple[int, int]:
    """Return a side, or (height, width)."""
    found = validation.sides(value)
    return found if len(validation.listed(value)) == 2 else found[0]


@dataclass(eq=False)
class Resize(_Sampled):
    """Resize each image, as torchvision.transforms.v2.Resize.

    size: (height, width), or the shorter side in pixels, with the longer side in proportion, rounded down; or
        None, with max_size.
    interpolation: "bilinear", "bicubic" (Pillow's, a = -0.5) or "nearest".
    max_size: upper limit of the longer side, which reduces the shorter side in proportion; the longer side
        itself if size is None.
    antialias: True to widen the filter when images shrink.
    """

    size: Any = Parameter(_side_or_sides, None)
    interpolation: validation.Word = Parameter(validation.one_of, "bilinear", RESIZE_SAMPLINGS)
    max_size: validation.OptionalInteger = Parameter(validation.integer, None, 1)
    antialias: validation.Flag = Parameter(validation.flag, True)

    def __post_init__(self) -> None:
        super().__post_init__()
        one, limit = not isinstance(self.size, tuple), self.max_size
        if self.size is None and limit is None:
            validation.checked("Resize", "size", None, validation.sides)
        if limit is not None and not (one and (self.size or 0) < limit):
            raise UsageError(
                f"Resize: size is {self.size!r} and max_size {limit!r}; max_size is allowed with a size of "
                "one smaller number, or None. Leave max_size out, or pass a larger one."
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
    """Crop a rectangle of random area and aspect ratio and resize it, as torchvision's RandomResizedCrop.

    size: side in pixels, or (height, width).
    scale: smallest and largest area, as fractions of the image's.
    ratio: smallest and largest width / height; its logarithm is drawn uniformly.
    interpolation: "bilinear", "bicubic" (Pillow's, a = -0.5) or "nearest".
    antialias: True to widen the filter when images shrink.

    If ten drawn rectangles do not fit the image, the crop is the largest centred rectangle that the ratios
    allow.
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

    padding: pixels on all sides, or (left and right, top and bottom), or (left, top, right, bottom).
    fill: for padding_mode "constant": a number, or a number for each channel, in the images' own scale; masks
        get the pipeline's mask_fill.
    padding_mode: "constant"; "edge" repeats the border pixels; "reflect" mirrors without repeating the border
        (so the padding must be less than the image's side); "symmetric" mirrors and repeats it. It applies to
        masks, too; boxes and points are not mirrored.
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
    """Resize each image in proportion to fit into a size, and pad it, as Ultralytics' LetterBox(auto=False).

    size: side of the result in pixels, or (height, width).
    fill: value of the padding: a number, or a number for each channel, in the images' own scale; masks get
        the pipeline's mask_fill.
    scaleup: True to enlarge smaller images.
    center: True to centre the image (left and top padding are rounded down); False for the top left corner.
    interpolation: "bilinear", "bicubic" (Pillow's, a = -0.5) or "nearest".
    antialias: True to widen the filter when images shrink, which Ultralytics does not.
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
    """Rotate each image about its centre, as torchvision.transforms.v2.RandomRotation without expand.

    degrees: range (low, high), counter-clockwise; a number d means (-d, d).
    interpolation: "nearest" or "bilinear".
    center: (x, y) in pixels from the top left corner; None for the image's centre.
    fill: value of pixels beyond the image's edges: a number, or a number for each channel, in the images' own
        scale.
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
    """Return the ranges of shear along x and along y, in degrees: (low, high) each."""
    if isinstance(value, Sequence) and len(value) == 4:
        found = validation.interval(value[:2]), validation.interval(value[2:])
    else:
        found = validation.around(value, 0), (0.0, 0.0)
    if any(abs(angle) >= 90 for pair in found for angle in pair):
        raise Unfit("degrees between -90 and 90 are allowed. Pass smaller ones.")
    return found


@dataclass(eq=False)
class RandomAffine(_Sampled):
    """Rotate, translate, scale and shear each image about its centre, as torchvision's RandomAffine.

    degrees: range (low, high), clockwise; a number d means (-d, d); 0 for no rotation.
    translate: (across, down), the largest shifts as fractions of width and height, drawn in whole pixels;
        None for no translation.
    scale: range (low, high) of the factor; None for 1.
    shear: range in degrees: a number s means (-s, s) along x; (low, high) along x; or four numbers, two along
        x, then two along y; None for no shear.
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
        """Draw angle (degrees, clockwise), scale, shear_x, shear_y (degrees), move_x, move_y (whole pixels).

        All are float64 [N].
        """
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
