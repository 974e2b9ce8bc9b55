"""What pixels are worth: their scale and their number type."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from packer.augment.transform import Part, Scale, Shape, Transform
from packer.errors import UsageError

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Normalize(Transform, Scale):
    """Subtract each channel's mean and divide by its deviation, as torchvision.transforms.v2.Normalize.

    mean, std: one number a channel, in the scale of 0 to 1, as the pack's own statistics are.
    dtype: of the result: float32, float16 or bfloat16.

    uint8 images are brought to the scale of 0 to 1 first: (x / 255 - mean) / std; floating-point images are
    taken as they are: (x - mean) / std. It is computed as x * scale + shift in float32 and rounded to the
    result's dtype once (with deviations of about 0.2, float32 results are right to 1e-6).
    """

    def __init__(
        self, mean: Sequence[float], std: Sequence[float], dtype: torch.dtype = torch.float32
    ) -> None:
        mean, std = tuple(mean), tuple(std)
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
        self.mean = tuple(float(number) for number in mean)
        self.std = tuple(float(number) for number in std)
        self.dtype = _dtype("Normalize", dtype)

    def parts(self) -> Sequence[Part]:
        """Itself."""
        return (self,)

    def check(self, shape: Shape) -> Shape:
        """Return the shape as it is; raises UsageError unless mean and std have a number a channel."""
        if shape[0] != len(self.mean):
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
        if max(abs(number) for number in self.mean + self.std) > 1:
            raise UsageError(
                f"Normalize: mean is {list(self.mean)} and std is {list(self.std)}, given in the wrong scale; "
                "numbers up to 1 are allowed. Divide both by 255."
            )
        return (
            [1 / (s * limit) for s in self.std],
            [-m / s for m, s in zip(self.mean, self.std, strict=True)],
            None,
        )


class ToDtype(Transform, Scale):
    """Make floating-point images of uint8 ones, from 0 to 1, as torchvision.transforms.v2.ToDtype(dtype, scale=True).

    dtype: float32, float16 or bfloat16. scale: must be True, as torchvision's default, False, leaves 0 to 255.
    """

    def __init__(self, dtype: torch.dtype = torch.float32, scale: bool = True) -> None:
        self.dtype = _dtype("ToDtype", dtype)
        if scale is not True:
            raise UsageError(
                f"ToDtype: scale is {scale!r}; True is allowed. Pass scale=True, for values from 0 to 1."
            )

    def parts(self) -> Sequence[Part]:
        """Itself."""
        return (self,)

    def scale(
        self, limit: float | None, channels: int
    ) -> tuple[Sequence[float], Sequence[float], float | None]:
        """1 / 255 for uint8; floating-point images keep their values."""
        if limit is None:
            return [1.0] * channels, [0.0] * channels, None
        return [1 / limit] * channels, [0.0] * channels, 1.0


def _dtype(name: str, dtype: torch.dtype) -> torch.dtype:
    if dtype not in DTYPES:
        raise UsageError(
            f"{name}: dtype is {dtype}; {', '.join(map(str, DTYPES))} are allowed. Pass one of them."
        )
    return dtype
