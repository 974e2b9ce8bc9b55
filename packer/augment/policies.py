"""Policies: TrivialAugmentWide and RandAugment, which draw among fourteen operations for each image."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packer.augment import color, kinds, validation
from packer.augment.filters import FILTERS, FilterPart
from packer.augment.geometric import SAMPLINGS
from packer.augment.passes import pass_spec
from packer.augment.passes.pass_spec import Outside
from packer.augment.placement import AffinePlacement, Floats, transform_about
from packer.augment.validation import Parameter

_MOVES = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
_FACTORS = ("Brightness", "Color", "Contrast", "Sharpness")
OPERATIONS = ("Identity", *_MOVES, *_FACTORS, "Posterize", "Solarize", "AutoContrast", "Equalize")
"""The operations of both policies; the draw `operation` is an index of these."""

_SIGNED = np.isin(OPERATIONS, _MOVES + _FACTORS)


class _Policy(kinds.Transform):
    """A policy that applies `num_ops` drawn operations to each image.

    magnitude: strength of the operations; None draws it, too.
    """

    num_ops: Any = 1
    magnitude: Any = None
    num_magnitude_bins: validation.Integer
    interpolation: validation.Word
    fill: validation.Colour

    def output_shape(self, shape: kinds.Shape) -> kinds.Shape:
        validation.check_channels(type(self).__name__, shape)
        return shape

    def parts(self) -> Sequence[kinds.TransformPart]:
        """Return the parts of all operations; each changes only the images that drew its operations."""
        kinds = _PolicyFilter, _PolicyGeometry, _PolicyColor
        return [kind(self, slot) for slot in range(self.num_ops) for kind in kinds]

    def sample(self, draws: kinds.Draws, shape: kinds.Shape) -> kinds.Params:
        """Draw operation, int64 [N, num_ops], indices of OPERATIONS, and magnitude, float64, with sign."""
        table, bins = self.magnitudes(shape), self.num_magnitude_bins
        operation = np.zeros((len(draws), self.num_ops), np.int64)
        magnitude = np.zeros((len(draws), self.num_ops))
        for slot in range(self.num_ops):
            number = operation[:, slot] = draws.integers(f"operation {slot}", len(OPERATIONS))
            negative = draws.happens(f"sign {slot}", 0.5) & _SIGNED[number]
            strength = draws.integers(f"bin {slot}", bins) if self.magnitude is None else self.magnitude
            magnitude[:, slot] = np.where(negative, -1.0, 1.0) * table[number, strength]
        return {"operation": operation, "magnitude": magnitude}

    def magnitudes(self, shape: kinds.Shape) -> Floats:
        """Return the magnitudes of operations: float64 [14, bins], unsigned; 0 if it has no magnitude."""
        *most, factor, bits = self.most(shape)
        bins = self.num_magnitude_bins
        # torch's float32, like torchvision: after rounding, a different last digit can shift by a pixel.
        ends = zip(_MOVES + _FACTORS, [*most, *[factor] * len(_FACTORS)], strict=True)
        form: Any = {"dtype": torch.float32, "device": "cpu"}
        rows = {name: torch.linspace(0.0, end, bins, **form) for name, end in ends}
        rows["Posterize"] = (8 - torch.arange(bins, **form) / ((bins - 1) / bits)).round()
        rows["Solarize"] = torch.linspace(1.0, 0.0, bins, **form)
        none = torch.zeros(bins, **form)
        table: Floats = torch.stack([rows.get(name, none) for name in OPERATIONS]).double().numpy()
        return table

    @abstractmethod
    def most(self, shape: kinds.Shape) -> tuple[float, ...]:
        """Return the largest magnitudes: of each of _MOVES, of all _FACTORS, and of the bits of Posterize."""


@dataclass(eq=False)
class TrivialAugmentWide(_Policy):
    """Apply one random operation of random strength to each image, as torchvision's TrivialAugmentWide.

    num_magnitude_bins: number of strengths. interpolation: "nearest" or "bilinear".
    fill: value of pixels beyond the image's edges: a number, or a number for each channel, 0 to 255.
    Takes uint8 images only.

    S. G. Müller, F. Hutter, "TrivialAugment: tuning-free yet state-of-the-art data augmentation"
    (arXiv:2103.10158).
    """

    num_magnitude_bins: validation.Integer = Parameter(validation.integer, 31, 2)
    interpolation: validation.Word = Parameter(validation.one_of, "nearest", SAMPLINGS)
    fill: validation.Colour = Parameter(validation.colour, 0)

    def most(self, shape: kinds.Shape) -> tuple[float, ...]:
        return 0.99, 0.99, 32.0, 32.0, 135.0, 0.99, 6


@dataclass(eq=False)
class RandAugment(_Policy):
    """Apply random operations of a fixed strength to each image, as torchvision.transforms.v2.RandAugment.

    num_ops: number of successive operations. magnitude: the strength, from 0 to num_magnitude_bins - 1.
    interpolation, fill: as in TrivialAugmentWide. Takes uint8 images only.

    E. D. Cubuk, B. Zoph, J. Shlens, Q. V. Le, "RandAugment: practical automated data augmentation with a
    reduced search space" (arXiv:1909.13719).
    """

    num_ops: validation.Integer = Parameter(validation.integer, 2, 0)
    magnitude: validation.Integer = Parameter(validation.integer, 9, 0)
    num_magnitude_bins: validation.Integer = Parameter(validation.integer, 31, 2)
    interpolation: validation.Word = Parameter(validation.one_of, "nearest", SAMPLINGS)
    fill: validation.Colour = Parameter(validation.colour, 0)

    def __post_init__(self) -> None:
        most = self.num_magnitude_bins - 1
        validation.checked("RandAugment", "magnitude", self.magnitude, validation.integer, 0, most)

    def most(self, shape: kinds.Shape) -> tuple[float, ...]:
        return 0.3, 0.3, 150.0 / 331.0 * shape[2], 150.0 / 331.0 * shape[1], 30.0, 0.9, 4


class _PolicyPart(kinds.TransformPart):
    """A part of the policy's operation in position `slot`, from 0."""

    def __init__(self, policy: _Policy, slot: int) -> None:
        self.name, self._slot = type(policy).__name__, slot

    def drew(self, params: kinds.Params, name: str) -> NDArray[np.bool_]:
        """Return the samples that drew this operation: bool [N]."""
        drew: NDArray[np.bool_] = params["operation"][:, self._slot] == OPERATIONS.index(name)
        return drew

    def magnitudes(self, params: kinds.Params, name: str) -> Floats:
        """Return magnitudes of the samples that drew this operation, 0 for the others: float64 [N]."""
        return np.where(self.drew(params, name), params["magnitude"][:, self._slot], 0.0)


class _PolicyFilter(_PolicyPart, FilterPart):
    """Sharpness, AutoContrast and Equalize, which read neighbouring pixels or the complete image."""

    def columns(self, params: kinds.Params, count: int, pixels: kinds.PixelFormat) -> kinds.Columns:
        number = sum(n * self.drew(params, name) for n, name in enumerate(FILTERS, 1))
        return np.stack([number, -self.magnitudes(params, "Sharpness")], axis=1).astype(np.float32)


class _PolicyGeometry(_PolicyPart, kinds.GeometryPart):
    """ShearX, ShearY, TranslateX, TranslateY and Rotate."""

    turns = True
    outside: Outside | None = "constant"

    def __init__(self, policy: _Policy, slot: int) -> None:
        super().__init__(policy, slot)
        self.sampling, self.fill = SAMPLINGS[policy.interpolation], policy.fill

    def place(self, placement: AffinePlacement, params: kinds.Params) -> None:
        """Shear about the top left corner, rotate about the centre, or translate by whole pixels."""
        shear_x, shear_y, across, down, angle = (self.magnitudes(params, name) for name in _MOVES)
        shears = {"shear_x": np.rad2deg(np.arctan(shear_x)), "shear_y": np.rad2deg(np.arctan(shear_y))}
        moves = {"angle": -angle, "move_x": np.trunc(across), "move_y": np.trunc(down)}
        transform_about(placement, (0, 0), shears)
        transform_about(placement, None, moves)


_COLORS: dict[str, Callable[[Floats], kinds.Columns]] = {
    "Brightness": lambda magnitude: color.STEPS["brightness"](1 + magnitude),
    "Color": lambda magnitude: color.STEPS["saturation"](1 + magnitude),
    "Contrast": lambda magnitude: color.STEPS["contrast"](1 + magnitude),
    "Posterize": lambda magnitude: color.step(pass_spec.POSTERIZE, 2.0 ** (8 - magnitude)),
    "Solarize": lambda magnitude: color.step(pass_spec.SOLARIZE, 255 * magnitude),
}


class _PolicyColor(_PolicyPart, kinds.ColorPart):
    """The operations of _COLORS, which change each pixel independently."""

    needs_means = True
    bytes_only = True

    def columns(self, params: kinds.Params, count: int, pixels: kinds.PixelFormat) -> kinds.Columns:
        step = np.zeros((count, pass_spec.STEP_WIDTH), np.float32)
        for name, made in _COLORS.items():
            drew = self.drew(params, name)
            step[drew] = made(params["magnitude"][drew, self._slot])
        return step
