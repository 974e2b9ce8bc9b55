"""Images, or rectangles of them, brought to another size."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from packer.augment import checks
from packer.augment.draws import Draws
from packer.augment.passes.spec import Sampling
from packer.augment.placement import Placement
from packer.augment.transform import Geometry, Params, Shape, Single
from packer.errors import UsageError

SAMPLINGS: dict[str, Sampling] = {"nearest": "nearest", "nearest-exact": "nearest", "bilinear": "linear"}
"""Names of torchvision's InterpolationMode. "nearest" takes the pixel in which the result's middle lies, as "nearest-exact"."""

_ATTEMPTS = 10


class Resize(Single, Geometry):
    """Resize each image, as torchvision.transforms.v2.Resize.

    size: (height, width), or the shorter side in pixels: the longer keeps the proportion, rounded down.
    interpolation: "bilinear" or "nearest". antialias: widen the filter when it shrinks.
    """

    def __init__(
        self, size: int | Sequence[int], interpolation: str = "bilinear", *, antialias: bool = True
    ) -> None:
        self.interpolation = checks.one_of("Resize", "interpolation", interpolation, tuple(SAMPLINGS))
        self.size = checks.sides("Resize", "size", size)
        self._shorter = not (isinstance(size, Sequence) and len(size) == 2)
        self.antialias = checks.flag("Resize", "antialias", antialias)
        self.sampling = SAMPLINGS[self.interpolation]

    def check(self, shape: Shape) -> Shape:
        """Return the shape with the new size."""
        return (shape[0], *self._size(shape[1:]))

    def place(self, placement: Placement, params: Params) -> None:
        """Stretch all of each image."""
        height, width = placement.size
        size = self._size((height, width))
        if size != placement.size:
            nothing = np.zeros(len(placement))
            placement.stretch(nothing, nothing, nothing + width, nothing + height, size, bool(self.antialias))

    def _size(self, size: tuple[int, ...]) -> tuple[int, int]:
        if not self._shorter:
            return self.size
        height, width = size
        side = self.size[0]
        return (side, side * width // height) if height <= width else (side * height // width, side)


class RandomResizedCrop(Single, Geometry):
    """Cut a rectangle of random area and proportion and resize it, as torchvision.transforms.v2.RandomResizedCrop.

    size: side in pixels, or (height, width). scale: least and largest area, as shares of the image's. ratio: least and
    largest width / height, drawn so that its logarithm is uniform. After ten draws that do not fit the image: the
    middle, as large as the ratios allow. interpolation: "bilinear" or "nearest". antialias: widen the filter when it shrinks.
    """

    def __init__(
        self,
        size: int | Sequence[int],
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3),
        interpolation: str = "bilinear",
        antialias: bool = True,
    ) -> None:
        self.size = checks.sides("RandomResizedCrop", "size", size)
        self.scale = checks.interval("RandomResizedCrop", "scale", scale, 0, 1)
        self.ratio = checks.interval("RandomResizedCrop", "ratio", ratio, 1e-3, 1e3)
        self.interpolation = checks.one_of(
            "RandomResizedCrop", "interpolation", interpolation, tuple(SAMPLINGS)
        )
        self.antialias = checks.flag("RandomResizedCrop", "antialias", antialias)
        self.sampling = SAMPLINGS[self.interpolation]
        if self.scale[1] == 0:
            raise UsageError(
                "RandomResizedCrop: scale is (0, 0); shares above 0 are allowed. Pass for example (0.08, 1)."
            )

    def check(self, shape: Shape) -> Shape:
        """Return the shape with the new size."""
        return (shape[0], *self.size)

    def sample(self, draws: Draws, shape: Shape) -> Params:
        """Draw top, left, height and width of the rectangle in the image: int64 [N] each."""
        _, height, width = shape
        least, most = math.log(self.ratio[0]), math.log(self.ratio[1])
        ratio = min(max(width / height, self.ratio[0]), self.ratio[1])
        across = np.full(len(draws), min(width, max(1, round(height * ratio))), np.int64)
        down = np.full(len(draws), min(height, max(1, round(width / ratio))), np.int64)
        left, top = (width - across) // 2, (height - down) // 2
        waiting = np.arange(len(draws))
        for attempt in range(_ATTEMPTS):
            if not waiting.size:
                break
            some = draws.only(waiting)
            area = some.uniform(f"area {attempt}", *self.scale) * (height * width)
            proportion = np.exp(some.uniform(f"ratio {attempt}", least, most))
            w = np.rint(np.sqrt(area * proportion)).astype(np.int64)
            h = np.rint(np.sqrt(area / proportion)).astype(np.int64)
            fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
            found = waiting[fits]
            across[found], down[found] = w[fits], h[fits]
            good = draws.only(found)
            left[found] = good.integers(f"left {attempt}", width - w[fits] + 1)
            top[found] = good.integers(f"top {attempt}", height - h[fits] + 1)
            waiting = waiting[~fits]
        return {"top": top, "left": left, "height": down, "width": across}

    def place(self, placement: Placement, params: Params) -> None:
        """Stretch the drawn rectangles."""
        left, top, width, height = (params[name] for name in ("left", "top", "width", "height"))
        placement.stretch(left, top, width, height, self.size, bool(self.antialias))
