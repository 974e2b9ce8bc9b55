"""Rotations and affine maps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from packer.augment import validation
from packer.augment.geometric import SAMPLINGS, AffinePlacement
from packer.augment.passes.pass_spec import Outside
from packer.augment.transform import Draws, Floats, GeometryPart, Params, Shape, SinglePartTransform
from packer.errors import UsageError


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
        self.degrees = validation.around("RandomRotation", "degrees", degrees, 0)
        self.interpolation = validation.one_of(
            "RandomRotation", "interpolation", interpolation, tuple(SAMPLINGS)
        )
        self.sampling = SAMPLINGS[self.interpolation]
        self.center = None if center is None else validation.pair("RandomRotation", "center", center)
        self.fill = validation.colour("RandomRotation", "fill", fill)

    def sample(self, draws: Draws, shape: Shape) -> Params:
        """Draw angle, in degrees, counter-clockwise: float64 [N]."""
        return {"angle": draws.uniform("angle", *self.degrees)}

    def place(self, placement: AffinePlacement, params: Params) -> None:
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
        self.degrees = validation.around(name, "degrees", degrees, 0)
        self.translate = (
            (0.0, 0.0) if translate is None else validation.pair(name, "translate", translate, 0, 1)
        )
        self.scale = (1.0, 1.0) if scale is None else validation.interval(name, "scale", scale, 1e-6)
        if isinstance(shear, Sequence) and len(shear) == 4:
            self.shear = (
                validation.interval(name, "shear", shear[:2]),
                validation.interval(name, "shear", shear[2:]),
            )
        else:
            self.shear = validation.around(name, "shear", 0 if shear is None else shear, 0), (0.0, 0.0)
        if any(abs(angle) >= 90 for pair in self.shear for angle in pair):
            raise UsageError(
                f"{name}: shear is {shear!r}; degrees between -90 and 90 are allowed. Pass smaller ones."
            )
        self.interpolation = validation.one_of(name, "interpolation", interpolation, tuple(SAMPLINGS))
        self.sampling = SAMPLINGS[self.interpolation]
        self.fill = validation.colour(name, "fill", fill)
        self.center = None if center is None else validation.pair(name, "center", center)

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
        drawn = {name: values for name, values in params.items() if name != "apply"}
        transform_about(placement, self.center, **drawn)


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
