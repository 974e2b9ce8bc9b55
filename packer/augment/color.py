"""Transforms of pixel values: jitter, greyscale, solarize, posterize, invert, ToDtype, Normalize, erasing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from packer.augment import kinds, validation
from packer.augment.geometric import RandomRectangle
from packer.augment.passes import pass_spec
from packer.augment.placement import Floats
from packer.augment.validation import Parameter, Unfit
from packer.errors import UsageError


@dataclass(eq=False)
class ColorJitter(kinds.ColorPart):
    """Change brightness, contrast, saturation and hue in random order, as torchvision's ColorJitter.

    brightness, contrast, saturation: range (low, high) of the factor, from 0 up; a number v means
        (max(0, 1 - v), 1 + v). None: unchanged.
    hue: range (low, high) in turns of the colour circle, -0.5 to 0.5; a number v means (-v, v).
        None: unchanged.

    Values are clamped after each of the four operations, but not rounded between them. Contrast preserves the
    mean of a grid of at least 48 x 48 pixels of the result (all pixels of a small result). Compared with the
    mean of all pixels, this changed results by 0.1 of 255 at the median and at most 0.7, at a factor of 0.6
    (600 photographs at 224 px).
    """

    brightness: validation.OptionalAround = Parameter(validation.around, None, 1, 0)
    contrast: validation.OptionalAround = Parameter(validation.around, None, 1, 0)
    saturation: validation.OptionalAround = Parameter(validation.around, None, 1, 0)
    hue: validation.OptionalAround = Parameter(validation.around, None, 0, -0.5, 0.5)

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """Range of each value that varies."""
        ranges = {what: getattr(self, what) for what in STEPS}
        same = {what: (0, 0) if what == "hue" else (1, 1) for what in STEPS}
        return {what: limits for what, limits in ranges.items() if limits not in (None, same[what])}

    @property
    def width(self) -> int:  # type: ignore[override]
        """See DrawnPart."""
        return pass_spec.STEP_WIDTH * len(self.ranges)

    @property
    def needs_means(self) -> bool:  # type: ignore[override]
        """See ColorPart."""
        return "contrast" in self.ranges

    def sample(self, draws: kinds.Draws, shape: kinds.Shape) -> kinds.Params:
        """Draw brightness, contrast, saturation and hue, if they vary: float64 [N] each; and order.

        order: int64 [N, k], a permutation of the k drawn values, numbered in the order of the arguments.
        """
        ranges = self.ranges
        params: dict[str, NDArray[Any]] = {
            what: draws.uniform(what, *limits) for what, limits in ranges.items()
        }
        if ranges:
            params["order"] = draws.permutations("order", len(ranges))
        return params

    def columns(self, params: kinds.Params, count: int, pixels: kinds.PixelFormat) -> kinds.Columns:
        if not self.ranges:
            return np.zeros((count, 0), np.float32)
        made = np.stack([STEPS[what](params[what]) for what in self.ranges], axis=1)
        return np.take_along_axis(made, params["order"][:, :, None], axis=1)


@dataclass(eq=False)
class RandomGrayscale(kinds.RandomChange, kinds.ColorPart):
    """Convert each image to grey with probability p, as torchvision.transforms.v2.RandomGrayscale.

    p: 0 <= p <= 1. Grey is 0.2989 red + 0.587 green + 0.114 blue, in all channels.
    """

    p: validation.Number = Parameter(validation.number, 0.1, 0, 1)
    gate = "gray"

    def columns(self, params: kinds.Params, count: int, pixels: kinds.PixelFormat) -> kinds.Columns:
        return STEPS["saturation"](np.zeros(count))


def blend(factor: Floats, other: Sequence[float] = (), offset: float = 0.0) -> kinds.Columns:
    """Return the colour step x -> factor x + (1 - factor) other + offset: float32 [N, 13].

    other: weights of red, green and blue; empty for 0.
    """
    made = np.empty((len(factor), pass_spec.STEP_WIDTH), np.float32)
    made[:, 0] = pass_spec.MATRIX
    numbers, factors = made[:, 1:].reshape(-1, 3, 4), factor[:, None, None]  # a copy
    shares = factors * np.eye(3)
    if other:
        shares += (1 - factors) * np.array(other)
    numbers[:, :, :3], numbers[:, :, 3] = shares, offset
    made[:, 1:] = numbers.reshape(-1, 12)
    return made


def step(kind: int, numbers: NDArray[Any]) -> kinds.Columns:
    """Return a colour step with a single parameter, numbers [N]: float32 [N, 13]."""
    made = np.zeros((len(numbers), pass_spec.STEP_WIDTH), np.float32)
    made[:, 0], made[:, 1] = kind, numbers
    return made


STEPS: dict[str, Callable[[Floats], kinds.Columns]] = {
    "brightness": blend,
    "contrast": partial(step, pass_spec.CONTRAST),
    "saturation": partial(blend, other=pass_spec.GREY),
    "hue": partial(step, pass_spec.HUE),
}


@dataclass(eq=False)
class RandomSolarize(kinds.RandomChange, kinds.ColorPart):
    """Invert all values from a threshold up, with probability p, as torchvision.transforms.v2.RandomSolarize.

    threshold: in the images' scale at this point of the pipeline. p: 0 <= p <= 1.
    """

    threshold: validation.Number = Parameter(validation.number, MISSING, 0, 255)
    p: validation.Number = Parameter(validation.number, 0.5, 0, 1)

    def accept(self, pixels: kinds.PixelFormat) -> None:
        super().accept(pixels)
        if self.threshold > (limit := pixels.limit or 1.0):
            raise UsageError(
                f"RandomSolarize: threshold is {self.threshold:g} and the images' values are 0 to {limit:g}; "
                "those are allowed. Pass it in the images' own scale."
            )

    def columns(self, params: kinds.Params, count: int, pixels: kinds.PixelFormat) -> kinds.Columns:
        return step(pass_spec.SOLARIZE, np.full(count, self.threshold))


@dataclass(eq=False)
class RandomPosterize(kinds.RandomChange, kinds.ColorPart):
    """Keep the upper bits of each value, with probability p, as torchvision.transforms.v2.RandomPosterize.

    bits: number of bits to keep, 0 to 8. p: 0 <= p <= 1. uint8 images only.
    """

    bits: validation.Integer = Parameter(validation.integer, MISSING, 0, 8)
    p: validation.Number = Parameter(validation.number, 0.5, 0, 1)
    bytes_only = True

    def columns(self, params: kinds.Params, count: int, pixels: kinds.PixelFormat) -> kinds.Columns:
        return step(pass_spec.POSTERIZE, np.full(count, 2.0 ** (8 - self.bits)))


class RandomInvert(kinds.PlainChange, kinds.ColorPart):
    """Invert each image with probability p, as torchvision.transforms.v2.RandomInvert.

    p: 0 <= p <= 1.
    """

    def columns(self, params: kinds.Params, count: int, pixels: kinds.PixelFormat) -> kinds.Columns:
        return blend(np.full(count, -1.0), offset=pixels.limit or 1.0)


DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def _numbers(value: Any) -> float | tuple[float, ...]:
    """Return a float, or a tuple of floats, from a number, sequence, tensor or array."""
    if isinstance(value, Tensor | np.ndarray):
        value = value.reshape(-1).tolist() if value.ndim else value.item()
    return validation.colour(value)


def _dtype(value: Any) -> torch.dtype:
    for dtype in DTYPES:
        if value is dtype or (isinstance(value, str) and value.removeprefix("torch.") == str(dtype)[6:]):
            return dtype
    raise Unfit(f"{', '.join(map(str, DTYPES))} are allowed. Pass one of them.")


@dataclass(eq=False)
class Normalize(kinds.ScalePart):
    """Subtract each channel's mean and divide by its deviation, as torchvision.transforms.v2.Normalize.

    mean, std: a number for each channel, or for all, in the scale of 0 to 1, like a pack's statistics;
        tensors and NumPy arrays are allowed. If both are omitted in a dataset's `augment`: the statistics of
        its pack's split train, or of all rows without one, whichever split is loaded.
    dtype: of the result: float32, float16 or bfloat16.

    The result is (x / 255 - mean) / std for uint8 images, (x / 65,535 - mean) / std for uint16, (x - mean) /
    std for floating point. It is computed as x * scale + shift in float32 and rounded to the result's dtype
    once (with deviations of about 0.2, float32 results are accurate to 1e-6).
    """

    mean: Any = Parameter(_numbers, None)
    std: Any = Parameter(_numbers, None)
    dtype: Any = Parameter(_dtype, torch.float32)

    def __post_init__(self) -> None:
        if self.mean is None and self.std is None:
            return
        if self.mean is None or self.std is None:
            what = "std" if self.std is None else "mean"
            raise UsageError(f"Normalize: {what} is None; a number, or one a channel, is allowed. Pass such.")
        mean, std = validation.listed(self.mean), validation.listed(self.std)
        count = max(len(mean), len(std))
        if {len(mean), len(std)} - {1, count}:
            raise UsageError(
                f"Normalize: mean and std have {len(mean)} and {len(std)} numbers; "
                "as many of each are allowed. Pass one a channel."
            )
        self.mean, self.std = (n * (count // len(n)) for n in (mean, std))
        if min(self.std) <= 0:
            raise UsageError(
                f"Normalize: std is {list(self.std)}; finite numbers above 0 are allowed. "
                "Pass 1 for a channel that never changes."
            )

    @property
    def known(self) -> bool:
        """True if mean and std are given, False if a pack has to supply them."""
        return self.mean is not None

    def using(self, statistics: Mapping[str, Sequence[float]]) -> Normalize:
        """Return this transform, with a pack's statistics if mean and std are omitted (1 for a std of 0)."""
        if self.known or not statistics:
            return self
        return Normalize(statistics["mean"], [std or 1.0 for std in statistics["std"]], self.dtype)

    def output_shape(self, shape: kinds.Shape) -> kinds.Shape:
        if not self.known:
            raise UsageError(
                "Normalize(): has no mean and std here; a dataset fills in those of its pack, where the pack"
                " has them. Write for example Normalize(0.5, 0.25)."
            )
        if len(self.mean) not in (1, shape[0]):
            raise UsageError(
                f"Normalize: mean and std have {len(self.mean)} numbers and the images {shape[0]} channels; "
                "one number a channel is allowed. Pass as many as there are channels."
            )
        return shape

    def factors(self, limit: float | None, channels: int) -> kinds.Factors:
        """Return 1 / std and -mean / std, in the images' scale; no limit."""
        if limit is None:
            raise UsageError(
                "Normalize: the images are normalised already; once is allowed. Leave one Normalize out."
            )
        if max(abs(number) for number in self.mean + self.std) > 1:
            raise UsageError(
                f"Normalize: mean is {list(self.mean)} and std is {list(self.std)}; numbers up to 1 are"
                " allowed. Divide those of the scale of 0 to 255 by 255; to undo a Normalize, compute"
                " x * std + mean yourself."
            )
        times = channels // len(self.mean)
        scale = [1 / (std * limit) for std in self.std]
        return scale * times, [-m / s for m, s in zip(self.mean, self.std, strict=True)] * times, None


def _true(value: Any) -> bool:
    if value is not True:
        raise Unfit("True is allowed. Pass scale=True, for values from 0 to 1.")
    return True


@dataclass(eq=False)
class ToDtype(kinds.ScalePart):
    """Convert images to floating point from 0 to 1, as torchvision.transforms.v2.ToDtype(dtype, scale=True).

    dtype: float32, float16 or bfloat16. scale: must be True; torchvision's default, False, would
        leave values from 0 to 255.
    """

    dtype: Any = Parameter(_dtype, torch.float32)
    scale: validation.Flag = Parameter(_true, True)

    def factors(self, limit: float | None, channels: int) -> kinds.Factors:
        """Return scale 1 / 255 for uint8, 1 / 65,535 for uint16, 1 for floating point; shift 0."""
        if limit is None:
            return [1.0] * channels, [0.0] * channels, None
        return [1 / limit] * channels, [0.0] * channels, 1.0


def _erase_value(value: Any) -> float | tuple[float, ...] | None:
    """Return a number, one a channel, or None for "random"."""
    if isinstance(value, str) and value != "random":
        raise Unfit("'random', a number, or one a channel, is allowed. Pass such.")
    return None if isinstance(value, str) else validation.colour(value)


@dataclass(eq=False)
class RandomErasing(RandomRectangle, kinds.ErasePart):
    """Fill a rectangle of each image with probability p, as torchvision.transforms.v2.RandomErasing.

    p: 0 <= p <= 1.
    scale: smallest and largest area, as fractions of the image's.
    ratio: smallest and largest height / width; its logarithm is drawn uniformly.
    value: the fill, a number or a number for each channel, in the images' scale at this point of the pipeline
        (0 to 255 before Normalize); "random": a draw of N(0, 1) for every number, only after Normalize.

    An image remains unchanged if ten drawn rectangles do not fit into it.
    """

    p: validation.Number = Parameter(validation.number, 0.5, 0, 1)
    scale: validation.Interval = Parameter(validation.interval, (0.02, 0.33), 0, 1)
    ratio: validation.Interval = Parameter(validation.interval, (0.3, 3.3), 1e-3, 1e3)
    value: Any = Parameter(_erase_value, 0.0)
    sides = "height", "width"
    least = 0

    def sample(self, draws: kinds.Draws, shape: kinds.Shape) -> kinds.Params:
        """Draw top, left, height, width: int64 [N] each, 0 without erasing; with noise, seed: int64 [N]."""
        found = {name: np.zeros(len(draws), np.int64) for name in ("top", "left", "height", "width")}
        self.draw(draws, np.flatnonzero(draws.happens("erase", self.p)), shape, found)
        if self.value is None:
            found["seed"] = draws.integers("seed", 1 << 24)
        return found

    def columns(self, params: kinds.Params, count: int, pixels: kinds.PixelFormat) -> kinds.Columns:
        left, top = params["left"], params["top"]
        seed = params.get("seed", np.zeros(count))
        edges = left, top, left + params["width"], top + params["height"]
        return np.stack([*edges, seed], axis=1).astype(np.float32)


@dataclass(eq=False)
class Cutout(kinds.ErasePart):
    """Fill a square about a random pixel of each image.

    size: side in pixels.
    value: the fill, a number or a number for each channel, in the images' scale at this point of the
        pipeline.

    The centre may be any pixel, so a part of the square may lie outside the image. T. DeVries, G. W. Taylor,
    "Improved regularization of convolutional neural networks with cutout" (arXiv:1708.04552).
    """

    size: validation.Integer = Parameter(validation.integer, MISSING, 1)
    value: validation.Colour = Parameter(validation.colour, 0.0)

    def output_shape(self, shape: kinds.Shape) -> kinds.Shape:
        if self.size >= 2 * max(shape[1:]):
            raise UsageError(
                f"Cutout: size is {self.size} and the images are {shape[1]}x{shape[2]}; "
                "less than twice their side is allowed. Pass a smaller size."
            )
        return shape

    def sample(self, draws: kinds.Draws, shape: kinds.Shape) -> kinds.Params:
        """Draw y and x, the square's centre: int64 [N] each."""
        return {"y": draws.integers("y", shape[1]), "x": draws.integers("x", shape[2])}

    def columns(self, params: kinds.Params, count: int, pixels: kinds.PixelFormat) -> kinds.Columns:
        height, width = pixels.size
        left, top = params["x"] - self.size // 2, params["y"] - self.size // 2
        right, bottom = np.minimum(left + self.size, width), np.minimum(top + self.size, height)
        edges = np.maximum(left, 0), np.maximum(top, 0), right, bottom
        return np.stack([*edges, np.zeros(count)], axis=1).astype(np.float32)
