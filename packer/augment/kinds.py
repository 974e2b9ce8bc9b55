"""Transforms, the kinds of parts that they consist of, and Draws: random numbers keyed by seed, epoch and row.

Kinds of parts that a pass can take together, in its order:

    GeometryPart   where each pixel of the result comes from
    ColorPart      what a pixel's colour becomes, by itself
    ScalePart      what pixels are worth: ToDtype, Normalize
    ErasePart      boxes that are filled (before ScalePart or after it)

and two that stand alone between passes: WholeImagePart works on the images as a batch of tensors, each by itself (a blur),
MixPart (mixing.py) combines the images of a batch, and their labels. Most transforms are their own only part.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from packer import randomness
from packer.augment import validation
from packer.augment.passes import pass_spec
from packer.augment.passes.pass_spec import Outside, Sampling
from packer.augment.placement import AffinePlacement, Floats
from packer.augment.validation import Parameter
from packer.errors import UsageError

Shape = tuple[int, int, int]
"""Channels, height and width of an image. Of images that differ in size, height and width are int64 [N]; only geometry that does
not turn gets such."""

Sizes = NDArray[np.int64]
"""Heights and widths of images that differ in size: [N, 2]."""

Params = Mapping[str, NDArray[Any]]
"""What one operation drew: arrays with an entry for each row."""

Columns = NDArray[np.float32]
Factors = tuple[Sequence[float], Sequence[float], float | None]


@dataclass(eq=False)
class Draws:
    """The draws of one operation for rows of one epoch.

    rows: int64 [N], the images' row numbers. counters: int64 [N], what keys the draws: the rows, or where an order repeats rows
    the places in the epoch, so that repetitions differ. The same counter draws the same numbers, whatever is drawn beside it. place, name:
    of the operation in its pipeline, which key its draws too.
    """

    rows: NDArray[np.int64]
    seed: int
    epoch: int
    place: int | str = 0
    name: str = ""
    counters: Any = None

    def __post_init__(self) -> None:
        self.counters = self.rows if self.counters is None else self.counters

    def __len__(self) -> int:
        return len(self.rows)

    def keyed(self, place: int | str, name: str) -> Draws:
        """Return the draws of an operation for the same rows."""
        return Draws(self.rows, self.seed, self.epoch, place, name, self.counters)

    def only(self, samples: NDArray[np.int64] | NDArray[np.bool_]) -> Draws:
        """Return the same draws for some of the rows."""
        return replace(self, rows=self.rows[samples], counters=self.counters[samples])

    def uniform(self, what: str | Sequence[str], low: float = 0.0, high: float = 1.0) -> Floats:
        """Fractions in [low, high): float64 [N], of several draws [A, N]."""
        drawn = randomness.uniform(self.counters, self._key(what))
        return drawn if (low, high) == (0.0, 1.0) else low + (high - low) * drawn

    def integers(self, what: str | Sequence[str], high: int | NDArray[np.int64]) -> NDArray[np.int64]:
        """Whole numbers in 0..high-1: int64 [N], of several draws [A, N]. high: one for all, or one a row, or one each."""
        return randomness.integers(self.counters, self._key(what), high)

    def happens(self, what: str, p: float) -> NDArray[np.bool_]:
        """True with probability p: bool [N]."""
        return self.uniform(what) < p

    def every_epoch(self, what: str) -> Floats:
        """Fractions in [0, 1) that a row has in every epoch, however often it comes: float64 [N]."""
        return randomness.uniform(
            self.rows, randomness.key(self.seed, "augment", self.place, self.name, what)
        )

    def permutations(self, what: str, length: int) -> NDArray[np.int64]:
        """Orders of 0..length-1, all equally likely: int64 [N, length]."""
        return np.argsort(
            np.stack([self.uniform(f"{what} {i}") for i in range(length)], axis=1), axis=1, kind="stable"
        )

    def beta(self, what: str, alpha: float) -> Floats:
        """Fractions of the symmetric beta distribution with this parameter: float64 [N]."""
        first, second = self._log_gamma(f"{what} a", alpha), self._log_gamma(f"{what} b", alpha)
        return 1 / (1 + np.exp(np.clip(second - first, -700, 700)))

    def _log_gamma(self, what: str, shape: float) -> Floats:
        """Logarithms of draws of the gamma distribution: float64 [N].

        Marsaglia and Tsang, "A simple method for generating gamma variables", 2000, with its step for shapes below 1.
        A draw that is refused is made anew, with the number of the attempt in its key.
        """
        raised = shape + 1 if shape < 1 else shape
        d = raised - 1 / 3
        c = 1 / math.sqrt(9 * d)
        result = np.empty(len(self.rows))
        left = np.arange(len(self.rows))
        attempt = 0
        while left.size:
            u, v, w = (
                randomness.uniform(self.counters[left], self._key(f"{what} {attempt} {part}"))
                for part in "uvw"
            )
            normal = np.sqrt(-2 * np.log1p(-u)) * np.cos(2 * math.pi * v)
            cubed = (1 + c * normal) ** 3
            kept = cubed > 0
            with np.errstate(invalid="ignore", divide="ignore"):
                log_cubed = np.log(cubed)
                kept &= np.log1p(-w) < normal**2 / 2 + d - d * cubed + d * log_cubed
            result[left[kept]] = math.log(d) + log_cubed[kept]
            left = left[~kept]
            attempt += 1
        if shape < 1:
            result += np.log1p(-self.uniform(f"{what} boost")) / shape
        return result

    def _key(self, what: str | Sequence[str]) -> int | NDArray[np.uint64]:
        """Return the key of a draw, or of several draws as a column: uint64 [A, 1]."""
        if not isinstance(what, str):
            return np.array([[self._key(each)] for each in what], np.uint64)
        return _key(self.seed, self.epoch, "augment", self.place, self.name, what)


# Asked for once a batch, all through an epoch.
_key = lru_cache(maxsize=4096, typed=True)(randomness.key)


class Transform(ABC):  # noqa: B024 - neither parts nor apply must be given, but one of them
    """An operation, as users name it. To write your own, derive from this and give `sample` and `apply`.

    `sample` draws numbers for rows; `apply` changes images by them, without chance. An operation that packer brings
    gives `parts` instead of `apply`, so that one pass can take it together with its neighbours. What `apply` does is done to
    images alone: masks, boxes and points do not follow.
    """

    def __repr__(self) -> str:
        public = (f"{name}={value!r}" for name, value in vars(self).items() if not name.startswith("_"))
        return f"{type(self).__name__}({', '.join(public)})"

    def output_shape(self, shape: Shape) -> Shape:
        """Return the (C, H, W) of the images it makes of such ones; raises UsageError if it cannot take them."""
        return shape

    def sample(self, draws: Draws, shape: Shape) -> Params:
        """Draw for the rows of `draws`, for images of this shape: NumPy arrays whose first dimension is N.

        Always the same names, shapes and dtypes; may be empty. Draw by `draws` alone: uniform, integers, happens …
        """
        return {}

    def parts(self) -> Sequence[TransformPart]:
        """Return what it consists of, in order; each gets all that `sample` drew. Empty: it has `apply`."""
        return ()

    def apply(self, images: Tensor, params: Mapping[str, Tensor]) -> Tensor:
        """Change images as drawn.

        images: [N, C, H, W], any device, channels_last, uint8 or floating point; not modified.
        params: what `sample` drew, as tensors on the same device. Returns: the same shape and dtype.
        """
        raise NotImplementedError


_TENSORS = "Leave it out: images are tensors already; Normalize(), or ToDtype(float32) from 0 to 1, makes them floating-point"
_VIEWS = "It makes several images of one; average the model's results in the test loop, over images and images.flip(-1) for example"
REMEDIES = {
    **dict.fromkeys(("ToTensor", "ToTensorV2", "ToImage", "ToImageTensor", "PILToTensor"), _TENSORS),
    **dict.fromkeys(("ToPureTensor", "ToTorchImage"), _TENSORS),
    "ToPILImage": "Leave it out: images are tensors all along",
    "ConvertImageDtype": "Take ToDtype(float32), which does the same",
    "NormalizeImage": "Take Normalize(), with numbers in the scale of 0 to 1",
    "Grayscale": "Take RandomGrayscale(1), which makes every image grey",
    **dict.fromkeys(("FiveCrop", "TenCrop"), _VIEWS),
    "RandomIoUCrop": "Take RandomResizedCrop, which moves boxes and drops those of which nothing is seen",
    "RandomZoomOut": "Take RandomAffine(0, translate=(0.2, 0.2), scale=(0.5, 1))",
    "ScaleJitter": "Take RandomResizedCrop, or RandomCrop with pad_if_needed=True",
    "Compose": "Leave it out: write its transforms, separated by commas",
    "Lambda": "Pass a Python function to the dataset as transform=",
}
"""Names of other libraries that are not transforms of packer.augment -> the remedy."""


def check_transform(given: Any) -> Transform:
    """Return a transform. Raise UsageError, with what to write instead, for anything else."""
    if isinstance(given, Transform):
        return given
    from packer import augment  # which imports this

    word = given if isinstance(given, str) else getattr(given, "__name__", type(given).__name__)
    remedy = REMEDIES.get(
        word, "Pass a list of these, or one text; a function of the sample is passed as transform="
    )
    if word in augment.__all__:
        remedy = f"Write {word}() of packer.augment"
    elif isinstance(given, type) and issubclass(given, Transform):
        remedy = f"Write {word}(...)"
    raise UsageError(f"augment: {word} is no transform of packer.augment. {remedy}.")


class TransformPart(Transform):
    """A transform that is its own only part, or one part of another; `name`, that of its class, is what errors call it."""

    name: str

    def __init_subclass__(cls) -> None:
        cls.name = cls.__name__

    def parts(self) -> Sequence[TransformPart]:
        return (self,)


class GeometryPart(TransformPart):
    """sampling: "shift" if it moves whole pixels.

    antialias: whether the filter widens when it shrinks, None if it does not resize.
    turns: whether it may leave rows that are no longer level. One that does not takes images that differ in size too.
    outside: what is seen beyond the image's edges, None if it never looks there.
    fill: for "constant", one number or one a channel, in the image's scale.
    """

    sampling: Sampling = "shift"
    antialias: Any = None
    turns: bool = False
    outside: Outside | None = None
    fill: Any = 0.0

    @abstractmethod
    def place(self, placement: AffinePlacement, params: Params) -> None:
        """Move the images' placements as drawn."""

    def place_some(self, placement: AffinePlacement, params: Params) -> None:
        """Move the placements of those images for which RandomApply or RandomChoice decided so."""
        before = placement.copy() if "apply" in params else placement
        self.place(placement, params)
        if "apply" in params:
            placement.restore(~params["apply"], before)


@dataclass(frozen=True)
class PixelFormat:
    """The size, channels and type of images between two stages. limit: their largest value, None after Normalize.

    size: (h, w); of images that differ in size arrays, whose numbers mean nothing.
    """

    channels: int
    size: tuple[int, int]
    dtype: torch.dtype
    limit: float | None

    @property
    def shape(self) -> Shape:
        """(C, H, W) of an image."""
        return (self.channels, *self.size)


class DrawnPart(TransformPart):
    """A part that works by numbers of each sample, as geometry does by its placement.

    width: how many. colours: whether it works on colours, so on 1, 3 or 4 channels. bytes_only: whether it takes uint8 alone.
    gate: the draw, if any, that says which samples are changed at all.
    """

    width: int = 0
    gate: str = ""
    colours: bool = False
    bytes_only: bool = False

    def output_shape(self, shape: Shape) -> Shape:
        if self.colours:
            validation.check_channels(self.name, shape)
        return shape

    def accept(self, pixels: PixelFormat) -> None:
        """Raise UsageError unless it works on images of this format."""
        if self.bytes_only and pixels.dtype != torch.uint8:
            deep = pixels.dtype == torch.uint16
            remedy = "Leave it out." if deep else "Put it before ToDtype and Normalize."
            raise UsageError(f"{self.name}: the images are {pixels.dtype}; torch.uint8 is allowed. {remedy}")

    @abstractmethod
    def columns(self, params: Params, count: int, pixels: PixelFormat) -> Columns:
        """Return the numbers: float32 [count, width], reshaped if need be; zeros leave an image as it is. pixels: what it works on."""

    def gated_columns(self, params: Params, count: int, pixels: PixelFormat) -> Columns:
        """Return the columns as float32 [count, width]; zeros where RandomApply, RandomChoice or the part's own gate decided so."""
        columns = self.columns(params, count, pixels).reshape(count, self.width)
        for gate in ("apply", self.gate):
            if gate in params:
                columns = columns.copy()
                columns[~params[gate]] = 0
        return columns


class ColorPart(DrawnPart):
    """Columns are colour steps as pass_spec.py has them. needs_means: whether one may be CONTRAST."""

    width = pass_spec.STEP_WIDTH
    colours = True
    needs_means: bool = False

    def accept(self, pixels: PixelFormat) -> None:
        if pixels.limit is None:
            raise UsageError(
                f"{self.name}: the images are normalised already; values from 0 to 1, or uint8, are allowed. "
                "Put it before Normalize."
            )
        super().accept(pixels)


class ScalePart(TransformPart):
    """Changes pixels' scale and number type, the same for all images."""

    dtype: Any

    @abstractmethod
    def factors(self, limit: float | None, channels: int) -> Factors:
        """x -> x * scale + shift, by channel, and the limit after it.

        limit: the largest value of a pixel, 255, 65535 or 1; None after Normalize.
        """


class ErasePart(DrawnPart):
    """Columns are a box as pass_spec.py has it. value: what it is filled with, one number or one a channel; None for noise."""

    width = pass_spec.BOX_WIDTH
    value: Any = 0.0


class WholeImagePart(DrawnPart):
    """Works on the images as tensors, between passes."""

    def accept(self, pixels: PixelFormat) -> None:
        super().accept(pixels)
        if pixels.dtype == torch.uint16:
            raise UsageError(
                f"{self.name}: the images are torch.uint16; floating point is allowed. Put ToDtype() or Normalize before it."
            )

    @abstractmethod
    def change(self, images: Tensor, columns: Tensor, known: Columns) -> Tensor:
        """Return the changed images.

        images: [N, C, H, W], channels_last, uint8 or floating point; not modified, but by mixing. columns: float32
        [N, width] on their device. known: the same numbers on the host, for what must be known without waiting for the device.
        Returns: the same shape and dtype.
        """


class RandomChange(TransformPart):
    """An operation that an image gets with probability p; `gate` names what decides."""

    gate = "change"
    p: validation.Number

    def sample(self, draws: Draws, shape: Shape) -> Params:
        """Draw flip, gray, sharpen or change: bool [N]."""
        return {self.gate: draws.happens(self.gate, self.p)}


@dataclass(eq=False)
class PlainChange(RandomChange):
    """A RandomChange whose only parameter is p."""

    p: validation.Number = Parameter(validation.number, 0.5, 0, 1)
