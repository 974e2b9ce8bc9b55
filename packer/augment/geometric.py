"""Transforms that move pixels: flips, crops, resizes, rotations and affine maps; affine_placement.py composes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from packer.augment import validation
from packer.augment.affine_placement import AffinePlacement
from packer.augment.passes.pass_spec import Outside, Sampling
from packer.augment.random_draws import Draws
from packer.augment.transform import GeometryPart, Params, Shape, SinglePartTransform
from packer.errors import UsageError


class _Flip(SinglePartTransform, GeometryPart):
    """Mirrored images, with probability p."""

    def __init__(self, p: float = 0.5) -> None:
        self.p = validation.probability(self.name, p)

    def sample(self, draws: Draws, shape: Shape) -> Params:
        """Draw flip: bool [N]."""
        return {"flip": draws.happens("flip", self.p)}


class RandomHorizontalFlip(_Flip):
    """Mirror each image left to right with probability p, as torchvision.transforms.v2.RandomHorizontalFlip.

    p: 0 <= p <= 1.
    """

    def place(self, placement: AffinePlacement, params: Params) -> None:
        """Mirror those whose flip is true."""
        placement.mirror(across=params["flip"])


class RandomVerticalFlip(_Flip):
    """Mirror each image top to bottom with probability p, as torchvision.transforms.v2.RandomVerticalFlip.

    p: 0 <= p <= 1.
    """

    def place(self, placement: AffinePlacement, params: Params) -> None:
        """Mirror those whose flip is true."""
        placement.mirror(down=params["flip"])


class AlternatingHorizontalFlip(SinglePartTransform, GeometryPart):
    """Mirror each image left to right in every second epoch: half of them in the even ones, half in the odd ones.

    In two epochs each image is seen both ways, where random flips show a quarter of them the same way four times in a
    row. K. Jordan, "94% on CIFAR-10 in 3.29 seconds on a single GPU" (arXiv:2404.00498, section 3.6).
    """

    def sample(self, draws: Draws, shape: Shape) -> Params:
        """Draw flip: bool [N]."""
        return {"flip": (draws.every_epoch("flip") < 0.5) ^ bool(draws.epoch % 2)}

    def place(self, placement: AffinePlacement, params: Params) -> None:
        """Mirror those whose flip is true."""
        placement.mirror(across=params["flip"])


class RandomCrop(SinglePartTransform, GeometryPart):
    """Cut one rectangle from each image, all places equally likely, as torchvision.transforms.v2.RandomCrop.

    size: side in pixels, or (height, width).
    padding: pixels added first: on all sides, or (left and right, top and bottom), or (left, top, right, bottom).
    padding_mode: "constant" adds pixels of value `fill`, "edge" repeats the border, "reflect" mirrors at it (without
        repeating it, so each side gets fewer pixels than the image has).
    fill: one number or one a channel, in the images' own scale, so 0 to 255 for uint8.

    There is no pad_if_needed: images of a pack are of one size.
    """

    def __init__(
        self,
        size: int | Sequence[int],
        padding: int | Sequence[int] | None = None,
        *,
        padding_mode: str = "constant",
        fill: float | Sequence[float] = 0,
    ) -> None:
        self.height, self.width = validation.sides("RandomCrop", "size", size)
        self.left, self.top, self.right, self.bottom = validation.margins("RandomCrop", "padding", padding)
        self.padding_mode = validation.one_of(
            "RandomCrop", "padding_mode", padding_mode, ("constant", "edge", "reflect")
        )
        self.fill = validation.colour("RandomCrop", "fill", fill)
        self._padded = any((self.left, self.top, self.right, self.bottom))
        if self._padded:
            self.outside = cast(Outside, "fill" if self.padding_mode == "constant" else self.padding_mode)

    def check(self, shape: Shape) -> Shape:
        """Return (C, height, width) of the crop; raises UsageError if it does not fit such images."""
        channels, height, width = shape
        if self.padding_mode == "reflect" and (
            max(self.top, self.bottom) >= height or max(self.left, self.right) >= width
        ):
            raise UsageError(
                f"RandomCrop: padding is {(self.left, self.top, self.right, self.bottom)} and the images are "
                f"{height}x{width}; reflect allows less than their height and width. "
                "Pad less, or with padding_mode='edge'."
            )
        height, width = height + self.top + self.bottom, width + self.left + self.right
        if self.height > height or self.width > width:
            padded = "with their padding " if self._padded else ""
            raise UsageError(
                f"RandomCrop: size is {self.height}x{self.width} and the images are {padded}{height}x{width}; "
                f"up to {height}x{width} is allowed. Pass a smaller size, or more padding."
            )
        return channels, self.height, self.width

    def sample(self, draws: Draws, shape: Shape) -> Params:
        """Draw top and left, where the crop lies in the padded image: int64 [N] each."""
        _, height, width = shape
        return {
            "top": draws.integers("top", height + self.top + self.bottom - self.height + 1),
            "left": draws.integers("left", width + self.left + self.right - self.width + 1),
        }

    def place(self, placement: AffinePlacement, params: Params) -> None:
        """Cut at the drawn corners."""
        if self.outside == "fill":
            placement.see_outside()
        left, top = params["left"] - self.left, params["top"] - self.top
        continued = self.outside in ("edge", "reflect")
        placement.cut(left, top, (self.height, self.width), read_only=not continued)
        if continued:
            placement.continue_outside()


class CenterCrop(SinglePartTransform, GeometryPart):
    """Cut the middle of each image, as torchvision.transforms.v2.CenterCrop, without its padding of smaller images.

    size: side in pixels, or (height, width). Where the middle lies between two pixels, the rest is rounded to even.
    """

    def __init__(self, size: int | Sequence[int]) -> None:
        self.height, self.width = validation.sides("CenterCrop", "size", size)

    def check(self, shape: Shape) -> Shape:
        """Return (C, height, width) of the crop; raises UsageError if it does not fit such images."""
        channels, height, width = shape
        if self.height > height or self.width > width:
            raise UsageError(
                f"CenterCrop: size is {self.height}x{self.width} and the images are {height}x{width}; "
                f"up to {height}x{width} is allowed. Pass a smaller size, or Resize first."
            )
        return channels, self.height, self.width

    def place(self, placement: AffinePlacement, params: Params) -> None:
        """Cut the middle."""
        height, width = placement.size
        top, left = round((height - self.height) / 2), round((width - self.width) / 2)
        placement.cut(left, top, (self.height, self.width))


SAMPLINGS: dict[str, Sampling] = {"nearest": "nearest", "nearest-exact": "nearest", "bilinear": "linear"}
"""Names of torchvision's InterpolationMode. "nearest" takes the pixel in which the result's middle lies, as "nearest-exact"."""

_ATTEMPTS = 10


class Resize(SinglePartTransform, GeometryPart):
    """Resize each image, as torchvision.transforms.v2.Resize.

    size: (height, width), or the shorter side in pixels: the longer keeps the proportion, rounded down.
    interpolation: "bilinear" or "nearest". antialias: widen the filter when it shrinks.
    """

    def __init__(
        self, size: int | Sequence[int], interpolation: str = "bilinear", *, antialias: bool = True
    ) -> None:
        self.interpolation = validation.one_of("Resize", "interpolation", interpolation, tuple(SAMPLINGS))
        self.size = validation.sides("Resize", "size", size)
        self._shorter = not (isinstance(size, Sequence) and len(size) == 2)
        self.antialias = validation.flag("Resize", "antialias", antialias)
        self.sampling = SAMPLINGS[self.interpolation]

    def check(self, shape: Shape) -> Shape:
        """Return the shape with the new size."""
        return (shape[0], *self._size(shape[1:]))

    def place(self, placement: AffinePlacement, params: Params) -> None:
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


class RandomResizedCrop(SinglePartTransform, GeometryPart):
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
        self.size = validation.sides("RandomResizedCrop", "size", size)
        self.scale = validation.interval("RandomResizedCrop", "scale", scale, 0, 1)
        self.ratio = validation.interval("RandomResizedCrop", "ratio", ratio, 1e-3, 1e3)
        self.interpolation = validation.one_of(
            "RandomResizedCrop", "interpolation", interpolation, tuple(SAMPLINGS)
        )
        self.antialias = validation.flag("RandomResizedCrop", "antialias", antialias)
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

    def place(self, placement: AffinePlacement, params: Params) -> None:
        """Stretch the drawn rectangles."""
        left, top, width, height = (params[name] for name in ("left", "top", "width", "height"))
        placement.stretch(left, top, width, height, self.size, bool(self.antialias))


Floats = NDArray[np.float64]


class RandomRotation(SinglePartTransform, GeometryPart):
    """Turn each image about its middle, as torchvision.transforms.v2.RandomRotation without expand.

    degrees: (least, most), counter-clockwise; one number d stands for (-d, d).
    interpolation: "nearest" or "bilinear". center: (x, y) in pixels from the top left corner; the middle if None.
    fill: beyond the image's edges, one number or one a channel, in the images' own scale.
    """

    turns = True
    outside: Outside | None = "fill"

    def __init__(
        self,
        degrees: float | Sequence[float],
        interpolation: str = "nearest",
        *,
        center: Sequence[float] | None = None,
        fill: float | Sequence[float] = 0,
    ) -> None:
        self.degrees = _degrees("RandomRotation", "degrees", degrees)
        self.interpolation = validation.one_of(
            "RandomRotation", "interpolation", interpolation, tuple(SAMPLINGS)
        )
        self.sampling = SAMPLINGS[self.interpolation]
        self.center = _center("RandomRotation", center)
        self.fill = validation.colour("RandomRotation", "fill", fill)

    def sample(self, draws: Draws, shape: Shape) -> Params:
        """Draw angle, in degrees, counter-clockwise: float64 [N]."""
        return {"angle": draws.uniform("angle", *self.degrees)}

    def place(self, placement: AffinePlacement, params: Params) -> None:
        """Turn by the drawn angles."""
        transform_about(placement, self.center, angle=-params["angle"])


class RandomAffine(SinglePartTransform, GeometryPart):
    """Turn, move, scale and shear each image about its middle, as torchvision.transforms.v2.RandomAffine.

    degrees: (least, most), clockwise; one number d stands for (-d, d); 0 for none.
    translate: (across, down), the largest moves as shares of width and height; moves are whole pixels. None: none.
    scale: (least, most). None: 1.
    shear: degrees: one number s for (-s, s) along x; (least, most) along x; or four: along x, then along y. None: none.
    interpolation: "nearest" or "bilinear". fill, center: as RandomRotation's.
    """

    turns = True
    outside: Outside | None = "fill"

    def __init__(
        self,
        degrees: float | Sequence[float],
        translate: Sequence[float] | None = None,
        scale: Sequence[float] | None = None,
        shear: float | Sequence[float] | None = None,
        interpolation: str = "nearest",
        fill: float | Sequence[float] = 0,
        center: Sequence[float] | None = None,
    ) -> None:
        name = "RandomAffine"
        self.degrees = _degrees(name, "degrees", degrees)
        self.translate = (0.0, 0.0)
        if translate is not None:
            if not isinstance(translate, Sequence) or len(translate) != 2:
                raise UsageError(
                    f"{name}: translate is {translate!r}; two shares from 0 to 1 are allowed. Pass (across, down)."
                )
            across, down = (validation.number(name, "translate", t, 0, 1) for t in translate)
            self.translate = across, down
        self.scale = (1.0, 1.0) if scale is None else validation.interval(name, "scale", scale, 1e-6)
        if isinstance(shear, Sequence) and len(shear) == 4:
            self.shear = (
                validation.interval(name, "shear", shear[:2]),
                validation.interval(name, "shear", shear[2:]),
            )
        else:
            self.shear = _degrees(name, "shear", 0 if shear is None else shear), (0.0, 0.0)
        if any(abs(angle) >= 90 for pair in self.shear for angle in pair):
            raise UsageError(
                f"{name}: shear is {shear!r}; degrees between -90 and 90 are allowed. Pass smaller ones."
            )
        self.interpolation = validation.one_of(name, "interpolation", interpolation, tuple(SAMPLINGS))
        self.sampling = SAMPLINGS[self.interpolation]
        self.fill = validation.colour(name, "fill", fill)
        self.center = _center(name, center)

    def sample(self, draws: Draws, shape: Shape) -> Params:
        """Draw angle (degrees, clockwise), scale, shear_x, shear_y (degrees): float64 [N]; move_x, move_y: whole pixels."""
        _, height, width = shape
        most_x, most_y = self.translate[0] * width, self.translate[1] * height
        return {
            "angle": draws.uniform("angle", *self.degrees),
            "scale": draws.uniform("scale", *self.scale),
            "shear_x": draws.uniform("shear_x", *self.shear[0]),
            "shear_y": draws.uniform("shear_y", *self.shear[1]),
            "move_x": np.rint(draws.uniform("move_x", -most_x, most_x)),
            "move_y": np.rint(draws.uniform("move_y", -most_y, most_y)),
        }

    def place(self, placement: AffinePlacement, params: Params) -> None:
        """Move as drawn."""
        transform_about(
            placement,
            self.center,
            angle=params["angle"],
            scale=params["scale"],
            shear_x=params["shear_x"],
            shear_y=params["shear_y"],
            move_x=params["move_x"],
            move_y=params["move_y"],
        )


def transform_about(
    placement: AffinePlacement,
    center: tuple[float, float] | None,
    *,
    angle: float | Floats = 0.0,
    scale: float | Floats = 1.0,
    shear_x: float | Floats = 0.0,
    shear_y: float | Floats = 0.0,
    move_x: float | Floats = 0.0,
    move_y: float | Floats = 0.0,
) -> None:
    """Turn, scale and shear about a point, then move, in pixels; angles in degrees, clockwise as the eye sees it.

    The picture goes through T(move) T(center) R S T(-center), with R S = scale * [[cos(a - sy) / cos(sy),
    -cos(a - sy) tan(sx) / cos(sy) - sin(a)], [sin(a - sy) / cos(sy), -sin(a - sy) tan(sx) / cos(sy) + cos(a)]], the
    convention of torchvision's affine (functional/_geometry.py, `_get_inverse_affine_matrix`). What lies beyond the
    picture's edges is seen.
    """
    placement.see_outside()
    height, width = placement.size
    x, y = (width / 2, height / 2) if center is None else center
    turn, sx, sy = np.deg2rad(angle), np.deg2rad(shear_x), np.deg2rad(shear_y)
    a = np.cos(turn - sy) / np.cos(sy)
    b = -np.cos(turn - sy) * np.tan(sx) / np.cos(sy) - np.sin(turn)
    c = np.sin(turn - sy) / np.cos(sy)
    d = -np.sin(turn - sy) * np.tan(sx) / np.cos(sy) + np.cos(turn)
    # The determinant of R S is scale**2, so the inverse has d, -b, -c, a over scale.
    a, b, c, d = d / scale, -b / scale, -c / scale, a / scale
    from_x, from_y = x + move_x, y + move_y
    placement.turn(a, b, x - a * from_x - b * from_y, c, d, y - c * from_x - d * from_y)


def _degrees(name: str, what: str, value: Any) -> tuple[float, float]:
    if validation.is_number(value) and value >= 0:
        return -float(value), float(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return validation.interval(name, what, value)
    raise UsageError(
        f"{name}: {what} is {value!r}; a number of degrees from 0 up, or (least, most), is allowed. Pass degrees."
    )


def _center(name: str, center: Sequence[float] | None) -> tuple[float, float] | None:
    if center is None:
        return None
    if not isinstance(center, Sequence) or len(center) != 2:
        raise UsageError(
            f"{name}: center is {center!r}; two numbers (x, y) in pixels are allowed. Pass those."
        )
    x, y = (validation.number(name, "center", v) for v in center)
    return x, y
