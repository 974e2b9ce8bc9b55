"""What pixels are worth: their scale and their number type."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from packer.augment.transform import Scale, Shape, Single
from packer.errors import UsageError

DTYPES = (torch.float32, torch.float16, torch.bfloat16)

_INVERSE = 16
"""Means and deviations up to here may be 1 / std and -mean / std; those of the scale of 0 to 255 are larger."""


class Normalize(Single, Scale):
    """Subtract each channel's mean and divide by its deviation, as torchvision.transforms.v2.Normalize.

    mean, std: one number a channel, or one for all, in the scale of 0 to 1, as the pack's own statistics are; tensors and
    NumPy arrays too.
    dtype: of the result: float32, float16 or bfloat16.

    uint8 images are brought to the scale of 0 to 1 first: (x / 255 - mean) / std; floating-point images are
    taken as they are: (x - mean) / std. It is computed as x * scale + shift in float32 and rounded to the
    result's dtype once (with deviations of about 0.2, float32 results are right to 1e-6).
    """

    def __init__(
        self,
        mean: float | Sequence[float] | Tensor | NDArray[Any],
        std: float | Sequence[float] | Tensor | NDArray[Any],
        dtype: torch.dtype | str = torch.float32,
    ) -> None:
        means, deviations = _numbers("mean", mean), _numbers("std", std)
        self._every = means[1] and deviations[1]
        count = max(len(means[0]), len(deviations[0]))
        mean, std = (some * count if one else some for some, one in (means, deviations))
        if len(mean) != len(std) or not len(mean):
            raise UsageError(
                f"Normalize: mean has {len(mean)} numbers and std has {len(std)}; "
                "as many of each are allowed, at least one. Pass one a channel."
            )
        if not all(math.isfinite(number) for number in mean):
            raise UsageError(
                f"Normalize: mean is {list(mean)}; finite numbers are allowed. Pass one a channel."
            )
        if not all(math.isfinite(number) and number > 0 for number in std):
            raise UsageError(
                f"Normalize: std is {list(std)}; finite numbers above 0 are allowed. "
                "Pass 1 for a channel that never changes."
            )
        self.mean, self.std = mean, std
        self.dtype = _dtype("Normalize", dtype)

    def check(self, shape: Shape) -> Shape:
        """Return the shape as it is; raises UsageError unless mean and std have a number a channel."""
        if shape[0] != len(self.mean) and not self._every:
            raise UsageError(
                f"Normalize: mean and std have {len(self.mean)} numbers and the images {shape[0]} channels; "
                "one number a channel is allowed. Pass as many as there are channels."
            )
        return shape

    def scale(
        self, limit: float | None, channels: int
    ) -> tuple[Sequence[float], Sequence[float], float | None]:
        """1 / std and -mean / std, in the images' scale."""
        if limit is None:
            raise UsageError(
                "Normalize: the images are normalised already; once is allowed. Leave one Normalize out."
            )
        most = max(abs(number) for number in self.mean + self.std)
        if most > 1:
            inverse = "" if most > _INVERSE else "; to undo a Normalize, compute x * std + mean yourself"
            raise UsageError(
                f"Normalize: mean is {list(self.mean)} and std is {list(self.std)}; numbers up to 1 are allowed. "
                f"Divide those of the scale of 0 to 255 by 255{inverse}."
            )
        times = channels if self._every else 1
        return (
            [1 / (s * limit) for s in self.std] * times,
            [-m / s for m, s in zip(self.mean, self.std, strict=True)] * times,
            None,
        )


class ToDtype(Single, Scale):
    """Make floating-point images of uint8 ones, from 0 to 1, as torchvision.transforms.v2.ToDtype(dtype, scale=True).

    dtype: float32, float16 or bfloat16. scale: must be True, as torchvision's default, False, leaves 0 to 255.
    """

    def __init__(self, dtype: torch.dtype | str = torch.float32, scale: bool = True) -> None:
        self.dtype = _dtype("ToDtype", dtype)
        if scale is not True:
            raise UsageError(
                f"ToDtype: scale is {scale!r}; True is allowed. Pass scale=True, for values from 0 to 1."
            )

    def scale(
        self, limit: float | None, channels: int
    ) -> tuple[Sequence[float], Sequence[float], float | None]:
        """1 / 255 for uint8; floating-point images keep their values."""
        if limit is None:
            return [1.0] * channels, [0.0] * channels, None
        return [1 / limit] * channels, [0.0] * channels, 1.0


def _numbers(what: str, value: Any) -> tuple[tuple[float, ...], bool]:
    """Numbers, and whether one stands for all channels."""
    given = value
    if isinstance(value, Tensor | np.ndarray):
        given = value.tolist() if not value.ndim else value.reshape(-1).tolist()
    one = _is_number(given)
    many = [given] if one else given
    if not isinstance(many, Sequence) or isinstance(many, str) or not all(map(_is_number, many)):
        raise UsageError(
            f"Normalize: {what} is {value!r}; a number, or one a channel, is allowed. Pass those of the scale of 0 to 1."
        )
    return tuple(float(number) for number in many), one


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _dtype(name: str, dtype: torch.dtype | str) -> torch.dtype:
    for one in DTYPES:
        if dtype in (one, str(one), str(one).removeprefix("torch.")):
            return one
    raise UsageError(
        f"{name}: dtype is {dtype!r}; {', '.join(map(str, DTYPES))} are allowed. Pass one of them."
    )
