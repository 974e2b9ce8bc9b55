"""Operations of detection recipes that give each image a size of its own: ScaleJitter, RandomZoomOut, RandomIoUCrop.

One after them makes the images alike again, and all of them are one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.augment import validation
from packer.augment.geometric import AffinePlacement, resize_sampling
from packer.augment.passes.pass_spec import Outside
from packer.augment.transform import (
    ANY_SIDES,
    Draws,
    Floats,
    GeometryPart,
    Params,
    RandomChange,
    Shape,
    SinglePartTransform,
)
from packer.errors import UsageError


class DrawnSize(SinglePartTransform, GeometryPart):
    """An operation that draws `height` and `width` of its result for each image, whole numbers [N]."""

    any_size = True

    def check(self, shape: Shape) -> Shape:
        sides: Any = ANY_SIDES
        return shape[0], sides, sides

    def drawn_shape(self, shape: Shape, params: Params) -> Shape:
        height: Any = params["height"]
        width: Any = params["width"]
        return shape[0], height, width


class ScaleJitter(DrawnSize):
    """Resize each image by a random factor, its proportion kept, as torchvision.transforms.v2.ScaleJitter.

    The factor times min(target_size[0] / width, target_size[1] / height), rounded down to pixels, one at least. Results differ in
    size: RandomCrop(size, pad_if_needed=True) after it makes them alike.

    target_size: (width, height), as torchvision has it. scale_range: least and largest factor. interpolation: "bilinear",
    "bicubic" (Pillow's, a = -0.5) or "nearest". antialias: widen the filter when it shrinks.
    """

    def __init__(
        self,
        target_size: Sequence[int],
        scale_range: Sequence[float] = (0.1, 2.0),
        interpolation: str = "bilinear",
        antialias: bool = True,
    ) -> None:
        if not isinstance(target_size, Sequence) or len(target_size) != 2:
            raise UsageError(
                f"ScaleJitter: target_size is {target_size!r}; two whole numbers from 1 up are allowed. Pass (width, height)."
            )
        self.target_size = validation.sides("ScaleJitter", "target_size", target_size)
        self.scale_range = validation.interval("ScaleJitter", "scale_range", scale_range, 0)
        self.interpolation, self.sampling = resize_sampling("ScaleJitter", interpolation, antialias)
        self.antialias = validation.flag("ScaleJitter", "antialias", antialias)

    def sample(self, draws: Draws, shape: Shape) -> Params:
        """Draw height and width of the result: int64 [N] each."""
        _, height, width = shape
        across, down = self.target_size
        factor = np.minimum(down / height, across / width) * draws.uniform("scale", *self.scale_range)
        return {
            name: np.maximum(side * factor, 1).astype(np.int64)
            for name, side in (("height", height), ("width", width))
        }

    def place(self, placement: AffinePlacement, params: Params) -> None:
        height, width = placement.size
        nothing = np.zeros(len(placement))
        size = params["height"], params["width"]
        antialias = bool(self.antialias)
        placement.stretch(nothing, nothing, nothing + width, nothing + height, size, antialias, self.sampling)


class RandomZoomOut(RandomChange, DrawnSize):
    """Lay each image somewhere on a larger canvas with probability p, as torchvision.transforms.v2.RandomZoomOut.

    Results differ in size: Resize((height, width)) after it, or RandomIoUCrop and that, makes them alike.

    fill: of the canvas, one number or one a channel, in the images' own scale; masks get the pipeline's mask_fill. side_range:
    least and largest factor of the sides, from 1 up. p: 0 <= p <= 1.
    """

    outside: Outside | None = "fill"

    def __init__(
        self,
        fill: float | Sequence[float] = 0,
        side_range: Sequence[float] = (1.0, 4.0),
        p: float = 0.5,
    ) -> None:
        self.fill = validation.colour("RandomZoomOut", "fill", fill)
        self.side_range = validation.interval("RandomZoomOut", "side_range", side_range, 1)
        super().__init__(p)

    def sample(self, draws: Draws, shape: Shape) -> Params:
        """Draw height and width of the canvas, left and top of the image on it: int64 [N] each; where none: the image's own."""
        _, height, width = shape
        factor = np.where(draws.happens("change", self.p), draws.uniform("side", *self.side_range), 1.0)
        tall, wide = (np.floor(side * factor).astype(np.int64) for side in (height, width))
        return {
            "height": tall,
            "width": wide,
            "left": np.floor((wide - width) * draws.uniform("left")).astype(np.int64),
            "top": np.floor((tall - height) * draws.uniform("top")).astype(np.int64),
        }

    def place(self, placement: AffinePlacement, params: Params) -> None:
        size = params["height"], params["width"]
        placement.cut_padded(-params["left"], -params["top"], size, self.outside)


_ROUNDS = 100  # after 15 of which one image of ten is left that no crop fits, and by the default options none after 100
_TOGETHER = 1 << 15  # pairs of a crop and a box that are compared at a time


class RandomIoUCrop(DrawnSize):
    """Cut a rectangle that keeps some box, as torchvision.transforms.v2.RandomIoUCrop, of SSD (arXiv:1512.02325, section 2.2).

    Each image draws an option: 1 or more leaves it as it is; otherwise `trials` rectangles are drawn, and the first is taken in which
    the centre of a box lies whose overlap with the rectangle (IoU) is as large as the option; if none is, another option is drawn.
    Boxes whose centres lie outside the rectangle go, the others are clipped; box_label goes with them. Images without boxes stay as
    they are. Results differ in size: Resize((height, width)) after it makes them alike.

    min_scale, max_scale: of the rectangle's sides, as shares of the image's. min_aspect_ratio, max_aspect_ratio: of its width /
    height. sampler_options: least overlaps; default: (0, 0.1, 0.3, 0.5, 0.7, 0.9, 1). trials: for an option.
    """

    needs_boxes = True
    keeps_centres = True

    def __init__(
        self,
        min_scale: float = 0.3,
        max_scale: float = 1.0,
        min_aspect_ratio: float = 0.5,
        max_aspect_ratio: float = 2.0,
        sampler_options: Sequence[float] | None = None,
        trials: int = 40,
    ) -> None:
        name = type(self).__name__
        self.min_scale, self.max_scale = validation.interval(
            name, "(min_scale, max_scale)", (min_scale, max_scale), 0, 1
        )
        self.min_aspect_ratio, self.max_aspect_ratio = validation.interval(
            name, "(min_aspect_ratio, max_aspect_ratio)", (min_aspect_ratio, max_aspect_ratio), 0
        )
        options = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0) if sampler_options is None else sampler_options
        if not isinstance(options, Sequence) or not options:
            raise UsageError(
                f"{name}: sampler_options is {options!r}; a list of numbers from 0 up is allowed. Pass overlaps, and 1 for images "
                "as they are."
            )
        self.sampler_options = tuple(validation.number(name, "sampler_options", o, 0) for o in options)
        self.trials = validation.whole(name, "trials", trials, 1, 10_000)

    def sample(self, draws: Draws, shape: Shape) -> Params:
        """Draw top, left, height and width of the rectangle in the image: int64 [N] each."""
        sides = [np.full(len(draws), side, np.int64) for side in shape[1:]]
        found = np.stack([np.zeros_like(sides[0]), np.zeros_like(sides[0]), *sides], axis=1)
        # Where no box has its centre in the image, only an option that leaves it ends the draws.
        waiting = np.flatnonzero(_centred(draws.boxes, found[:, None]).any(axis=(1, 2)))
        options = np.array(self.sampler_options)
        for number in range(_ROUNDS):
            some = draws.only(waiting)
            option = options[some.integers(f"option {number}", len(options))]
            waiting, option = waiting[option < 1], option[option < 1]
            if not waiting.size:
                break
            some = draws.only(waiting)
            crops = self._rectangles(some.uniforms(f"rectangle {number}", 4 * self.trials), found[waiting])
            step = max(1, _TOGETHER // max(1, self.trials * draws.boxes.shape[1]))
            fitting = np.concatenate(
                [
                    _fitting(crops[at : at + step], some.boxes[at : at + step], option[at : at + step])
                    for at in range(0, len(waiting), step)
                ]
            )
            fitting &= self._in_proportion(crops)
            hit = fitting.any(axis=1)
            found[waiting[hit]] = crops[hit, fitting[hit].argmax(axis=1)]
            waiting = waiting[~hit]
        return dict(zip(("top", "left", "height", "width"), found.T.copy(), strict=True))

    def place(self, placement: AffinePlacement, params: Params) -> None:
        placement.cut(params["left"], params["top"], (params["height"], params["width"]))

    def _rectangles(self, drawn: Floats, images: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return top, left, height and width of as many rectangles as are tried: int64 [N, trials, 4]. images: the same of images."""
        across, down, right, low = np.moveaxis(drawn.reshape(len(drawn), self.trials, 4), 2, 0)
        height, width = images[:, 2:3], images[:, 3:]
        new_width, new_height = (
            np.floor(side * (self.min_scale + (self.max_scale - self.min_scale) * share))
            for side, share in ((width, across), (height, down))
        )
        top, left = np.floor((height - new_height) * low), np.floor((width - new_width) * right)
        return np.stack([top, left, new_height, new_width], axis=2).astype(np.int64)

    def _in_proportion(self, crops: NDArray[np.int64]) -> NDArray[np.bool_]:
        height, width = crops[..., 2], crops[..., 3]
        ratio = width / np.maximum(height, 1)
        fine: NDArray[np.bool_] = (self.min_aspect_ratio <= ratio) & (ratio <= self.max_aspect_ratio)
        return fine & (height > 0) & (width > 0)


def _centred(boxes: Floats, crops: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which boxes, [N, K, 4], have their centres in which rectangles, top, left, height, width [N, T, 4]: bool [N, T, K]."""
    top, left, height, width = (side[..., None] for side in np.moveaxis(crops, 2, 0))
    x, y = ((boxes[:, None, :, at] + boxes[:, None, :, at + 2]) / 2 for at in (0, 1))
    inside: NDArray[np.bool_] = (left < x) & (x < left + width) & (top < y) & (y < top + height)
    return inside


def _fitting(crops: NDArray[np.int64], boxes: Floats, least: Floats) -> NDArray[np.bool_]:
    """Return which rectangles, [N, T, 4], hold the centre of a box whose overlap is as large as `least`, [N]: bool [N, T]."""
    top, left, height, width = (side[..., None] for side in np.moveaxis(crops, 2, 0))
    x1, y1, x2, y2 = (boxes[:, None, :, at] for at in range(4))
    across = np.minimum(x2, left + width) - np.maximum(x1, left)
    down = np.minimum(y2, top + height) - np.maximum(y1, top)
    shared = np.maximum(across, 0) * np.maximum(down, 0)
    together = (x2 - x1) * (y2 - y1) + height * width - shared
    enough = (shared >= least[:, None, None] * together) & _centred(boxes, crops)
    fitting: NDArray[np.bool_] = np.any(enough, axis=2)
    return fitting
