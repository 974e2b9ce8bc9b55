"""Transforms, the kinds of their parts, and Draws: random numbers keyed by seed, epoch and row.

A transform consists of parts, most transforms of a single one. A pass applies these kinds of parts together,
in this order:

    GeometryPart   the source position of each pixel
    ColorPart      the colour of a pixel, independently of other pixels
    ScalePart      the scale and dtype of pixels: ToDtype, Normalize
    ErasePart      filled boxes (before or after ScalePart)

Two kinds run between passes, on tensors of a batch: WholeImagePart changes each image independently (a blur);
MixPart (mixing.py) combines the images of a batch, and their labels.
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
"""Channels, height and width of an image.

For images that differ in size, height and width are int64 [N]; only geometry with `turns` False takes these.
"""

Sizes = NDArray[np.int64]
"""Heights and widths of images that differ in size: [N, 2]."""

Params = Mapping[str, NDArray[Any]]
"""The draws of an operation: name -> an array with an entry for each row."""

Columns = NDArray[np.float32]
Factors = tuple[Sequence[float], Sequence[float], float | None]


@dataclass(eq=False)
class Draws:
    """The random numbers of an operation for rows of an epoch.

    rows: int64 [N], the images' row numbers.
    place, name: position and name of the operation in its pipeline, which belong to the key.
    counters: int64 [N], the key of each draw: the rows, or, for orders that repeat rows, positions in the
        epoch, so that repetitions differ. The same key gives the same number, independently of other draws.
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
        """Return draws for the same rows, keyed by another operation."""
        return Draws(self.rows, self.seed, self.epoch, place, name, self.counters)

    def only(self, samples: NDArray[np.int64] | NDArray[np.bool_]) -> Draws:
        """Return the same draws for a subset of the rows."""
        return replace(self, rows=self.rows[samples], counters=self.counters[samples])

    def uniform(self, what: str | Sequence[str], low: float = 0.0, high: float = 1.0) -> Floats:
        """Draw uniformly in [low, high): float64 [N], or [A, N] for A names."""
        drawn = randomness.uniform(self.counters, self._key(what))
        return drawn if (low, high) == (0.0, 1.0) else low + (high - low) * drawn

    def integers(self, what: str | Sequence[str], high: int | NDArray[np.int64]) -> NDArray[np.int64]:
        """Draw integers in 0 to high - 1: int64 [N], or [A, N] for A names. high: a number, [N] or [A, N]."""
        return randomness.integers(self.counters, self._key(what), high)

    def happens(self, what: str, p: float) -> NDArray[np.bool_]:
        """Draw True with probability p: bool [N]."""
        return self.uniform(what) < p

    def every_epoch(self, what: str) -> Floats:
        """Draw uniformly in [0, 1), the same for a row in all epochs and repetitions: float64 [N]."""
        return randomness.uniform(
            self.rows, randomness.key(self.seed, "augment", self.place, self.name, what)
        )

    def permutations(self, what: str, length: int) -> NDArray[np.int64]:
        """Draw permutations of 0 to length - 1, all equally likely: int64 [N, length]."""
        return np.argsort(
            np.stack([self.uniform(f"{what} {i}") for i in range(length)], axis=1), axis=1, kind="stable"
        )

    def beta(self, what: str, alpha: float) -> Floats:
        """Draw from the symmetric beta distribution with parameter alpha: float64 [N]."""
        first, second = self._log_gamma(f"{what} a", alpha), self._log_gamma(f"{what} b", alpha)
        return 1 / (1 + np.exp(np.clip(second - first, -700, 700)))

    def _log_gamma(self, what: str, shape: float) -> Floats:
        """Draw logarithms of gamma variates: float64 [N].

        Marsaglia and Tsang, "A simple method for generating gamma variables", 2000, with its step for shapes
        below 1. A rejected draw is repeated, with the number of the attempt in its key.
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
        """Return the key of a draw, or of A draws as uint64 [A, 1]."""
        if not isinstance(what, str):
            return np.array([[self._key(each)] for each in what], np.uint64)
        return _key(self.seed, self.epoch, "augment", self.place, self.name, what)


# Each batch of an epoch needs the same keys.
_key = lru_cache(maxsize=4096, typed=True)(randomness.key)


class Transform(ABC):  # noqa: B024 - a subclass defines either parts or apply
    """The base class of operations. A user-defined operation defines `sample` and `apply`.

    `sample` draws random numbers for rows; `apply` changes images by them, deterministically. packer's
    operations define `parts` instead of `apply`, so that a pass can combine them with their neighbours.
    `apply` changes images only, not masks, boxes or points.
    """

    def __repr__(self) -> str:
        public = (f"{name}={value!r}" for name, value in vars(self).items() if not name.startswith("_"))
        return f"{type(self).__name__}({', '.join(public)})"

    def output_shape(self, shape: Shape) -> Shape:
        """Return (C, H, W) of the results for images of this shape; raise UsageError for unsupported ones."""
        return shape

    def sample(self, draws: Draws, shape: Shape) -> Params:
        """Draw for the rows of `draws` and images of this shape: name -> NumPy array [N, ...]; may be empty.

        Names, dtypes and shapes except N must not vary. Use only the methods of `draws`: uniform, integers,
        happens …
        """
        return {}

    def parts(self) -> Sequence[TransformPart]:
        """Return the parts, in order; each gets all draws of `sample`. Empty if the operation has `apply`."""
        return ()

    def apply(self, images: Tensor, params: Mapping[str, Tensor]) -> Tensor:
        """Return the images, changed by the draws.

        images: [N, C, H, W], any device, channels_last, uint8 or floating point; must not be modified.
        params: the result of `sample`, as tensors on the same device. Returns: the same shape and dtype.
        """
        raise NotImplementedError


_TENSORS = (
    "Leave it out: images are tensors already; "
    "Normalize() or ToDtype(float32) converts them to floating point"
)
_VIEWS = (
    "It returns several images for each; average the model's results in the test loop, "
    "for example over images and images.flip(-1)"
)
REMEDIES = {
    **dict.fromkeys(("ToTensor", "ToTensorV2", "ToImage", "ToImageTensor", "PILToTensor"), _TENSORS),
    **dict.fromkeys(("ToPureTensor", "ToTorchImage"), _TENSORS),
    "ToPILImage": "Leave it out: images remain tensors",
    "ConvertImageDtype": "Use ToDtype(float32), which does the same",
    "NormalizeImage": "Use Normalize(), with numbers in the scale of 0 to 1",
    "Grayscale": "Use RandomGrayscale(1), which converts every image to grey",
    **dict.fromkeys(("FiveCrop", "TenCrop"), _VIEWS),
    "RandomIoUCrop": "Use RandomResizedCrop, which moves boxes and drops invisible ones",
    "RandomZoomOut": "Use RandomAffine(0, translate=(0.2, 0.2), scale=(0.5, 1))",
    "ScaleJitter": "Use RandomResizedCrop, or RandomCrop with pad_if_needed=True",
    "Compose": "Leave it out: write its transforms, separated by commas",
    "Lambda": "Pass a Python function to the dataset as transform=",
    "Pipeline": "Pass it as augment= itself: packer.augment.Pipeline([...])",
    "mask_fill": "Pass augment=packer.augment.Pipeline(..., mask_fill=...)",
    "soft_fill": "Pass augment=packer.augment.Pipeline(..., soft_fill=...)",
}
"""Other libraries' transforms, Pipeline and its arguments, by name, used as transforms -> the remedy."""


def check_transform(given: Any) -> Transform:
    """Return a transform; raise UsageError, with what to write instead, for anything else."""
    if isinstance(given, Transform):
        return given
    from packer import augment  # which imports this module

    word = given if isinstance(given, str) else getattr(given, "__name__", type(given).__name__)
    remedy = REMEDIES.get(
        word, "Pass a list of these, or one text; a function of the sample is passed as transform="
    )
    if word in augment.__all__ and word not in REMEDIES:
        remedy = f"Write {word}() of packer.augment"
    elif isinstance(given, type) and issubclass(given, Transform):
        remedy = f"Write {word}(...)"
    raise UsageError(f"augment: {word} is no transform of packer.augment. {remedy}.")


class TransformPart(Transform):
    """A transform that is its only part, or a part of another transform. name: class name, for errors."""

    name: str

    def __init_subclass__(cls) -> None:
        cls.name = cls.__name__

    def parts(self) -> Sequence[TransformPart]:
        return (self,)


class GeometryPart(TransformPart):
    """A part that moves pixels.

    sampling: how pixels are interpolated; "shift" for moves by whole pixels.
    antialias: True if the filter widens when images shrink; None if the part does not resize.
    mirrors: True if images may be mirrored.
    turns: True if rows may become slanted. Parts that do not turn also take images that differ in size.
    outside: the padding mode beyond the image's edges; None if the part never reads there.
    fill: for "constant", a number, or a number for each channel, in the image's scale.
    """

    sampling: Sampling = "shift"
    antialias: Any = None
    mirrors: bool = False
    turns: bool = False
    outside: Outside | None = None
    fill: Any = 0.0

    @abstractmethod
    def place(self, placement: AffinePlacement, params: Params) -> None:
        """Change the images' placements by the draws."""

    def place_some(self, placement: AffinePlacement, params: Params) -> None:
        """Change the placements of the images that RandomApply or RandomChoice selected."""
        before = placement.copy() if "apply" in params else placement
        self.place(placement, params)
        if "apply" in params:
            placement.restore(~params["apply"], before)


@dataclass(frozen=True)
class PixelFormat:
    """The size, channels and dtype of images between two stages.

    size: (h, w); arrays with placeholder values for images that differ in size.
    limit: the largest pixel value; None after Normalize.
    """

    channels: int
    size: tuple[int, int]
    dtype: torch.dtype
    limit: float | None

    @property
    def shape(self) -> Shape:
        """Shape (C, H, W) of an image."""
        return (self.channels, *self.size)


class DrawnPart(TransformPart):
    """A part that is controlled by columns: numbers for each sample.

    width: number of columns. colours: True if the part needs 1, 3 or 4 channels. bytes_only: True if it needs
    uint8.
    gate: name of the draw, if any, that selects the samples to change.
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
        """Raise UsageError unless the part supports images of this format."""
        if self.bytes_only and pixels.dtype != torch.uint8:
            deep = pixels.dtype == torch.uint16
            remedy = "Leave it out." if deep else "Put it before ToDtype and Normalize."
            raise UsageError(f"{self.name}: the images are {pixels.dtype}; torch.uint8 is allowed. {remedy}")

    @abstractmethod
    def columns(self, params: Params, count: int, pixels: PixelFormat) -> Columns:
        """Return the columns: float32 that reshapes to [count, width]; zeros leave an image unchanged.

        pixels: format of the images.
        """

    def gated_columns(self, params: Params, count: int, pixels: PixelFormat) -> Columns:
        """Return the columns, float32 [count, width], with zeros for samples that a gate deselects.

        Gates: RandomApply, RandomChoice and `gate`.
        """
        columns = self.columns(params, count, pixels).reshape(count, self.width)
        for gate in ("apply", self.gate):
            if gate in params:
                columns = columns.copy()
                columns[~params[gate]] = 0
        return columns


class ColorPart(DrawnPart):
    """A part whose columns are colour steps of pass_spec.py. needs_means: True if a step may be CONTRAST."""

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
    """A part that changes the scale and dtype of pixels, equally for all images."""

    dtype: Any

    @abstractmethod
    def factors(self, limit: float | None, channels: int) -> Factors:
        """Return scale and shift by channel, for x -> x * scale + shift, and the limit of the results.

        limit: the largest pixel value before: 255, 65535 or 1; None after Normalize.
        """


class ErasePart(DrawnPart):
    """A part whose columns are an erased box of pass_spec.py.

    value: the fill, a number or a number for each channel; None for noise.
    """

    width = pass_spec.BOX_WIDTH
    value: Any = 0.0


class WholeImagePart(DrawnPart):
    """A part that changes images as tensors, between passes."""

    def accept(self, pixels: PixelFormat) -> None:
        super().accept(pixels)
        if pixels.dtype == torch.uint16:
            raise UsageError(
                f"{self.name}: the images are torch.uint16; floating point is allowed."
                " Put ToDtype() or Normalize before it."
            )

    @abstractmethod
    def change(self, images: Tensor, columns: Tensor, known: Columns) -> Tensor:
        """Return the changed images.

        images: [N, C, H, W], channels_last, uint8 or floating point; only mixing modifies them.
        columns: float32 [N, width] on their device. known: the same numbers on the host, for decisions
            without synchronising.
        Returns: the same shape and dtype.
        """


class RandomChange(TransformPart):
    """An operation applied to an image with probability p. gate: name of the draw that decides."""

    gate = "change"
    p: validation.Number

    def sample(self, draws: Draws, shape: Shape) -> Params:
        """Draw flip, gray, sharpen or change, by `gate`: bool [N]."""
        return {self.gate: draws.happens(self.gate, self.p)}


@dataclass(eq=False)
class PlainChange(RandomChange):
    """A RandomChange whose only parameter is p."""

    p: validation.Number = Parameter(validation.number, 0.5, 0, 1)
