"""packer.augment.geometric: against torchvision's formulation in float64 and OpenCV, for every parameter."""

from __future__ import annotations

import math
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from packer.augment import Pipeline, RandomAffine, RandomRotation, ToDtype
from packer.augment.kinds import Draws
from tests.augment.conftest import (
    assert_alike,
    assert_uniform,
    assert_unrelated,
    given,
    levels,
    noise_images,
    one,
    refusal,
    smooth_images,
)

FLOAT_LEVELS = 5e-3
"""What float32 may change, of 255: positions are right to 1e-5 pixels."""

Floats = NDArray[np.float64]


def inverse(
    size: tuple[int, int],
    angle: float,
    move: tuple[float, float] = (0, 0),
    scale: float = 1.0,
    shear: tuple[float, float] = (0, 0),
    center: tuple[float, float] | None = None,
) -> Floats:
    """From positions of the result to those of the source, in pixels from the middle: float64 [3, 3].

    torchvision's matrix is M = T C R S SHy SHx C^-1, with angles clockwise as y points down, and this is M^-1.
    """

    def shift(x: float, y: float) -> Floats:
        return np.array([[1, 0, x], [0, 1, y], [0, 0, 1]], float)

    height, width = size
    middle = (0.0, 0.0) if center is None else (center[0] - width / 2, center[1] - height / 2)
    a, (sx, sy) = math.radians(angle), (math.radians(s) for s in shear)
    turn = np.array([[math.cos(a), -math.sin(a), 0], [math.sin(a), math.cos(a), 0], [0, 0, 1]])
    shear_x = np.array([[1, -math.tan(sx), 0], [0, 1, 0], [0, 0, 1]])
    shear_y = np.array([[1, 0, 0], [-math.tan(sy), 1, 0], [0, 0, 1]])
    grow = np.diag([scale, scale, 1.0])
    made = shift(*move) @ shift(*middle) @ turn @ grow @ shear_y @ shear_x @ shift(-middle[0], -middle[1])
    return np.linalg.inv(made)


def torchvisions(image: Tensor, matrix: Floats, mode: str) -> tuple[Floats, Floats]:
    """affine_grid and grid_sample of one image [C, H, W], zeros beyond it: float64 [H, W, C], and its mask [H, W, 1]."""
    _, height, width = image.shape
    to_pixels, to_unit = np.diag([width / 2, height / 2, 1.0]), np.diag([2 / width, 2 / height, 1.0])
    theta = torch.from_numpy((to_unit @ matrix @ to_pixels)[None, :2])
    with_mask = torch.cat([image.double(), torch.ones(1, height, width, dtype=torch.float64)])[None]
    grid = affine_grid(theta, [1, 1, height, width], align_corners=False)
    made = levels(grid_sample(with_mask, grid, mode=mode, padding_mode="zeros", align_corners=False))[0]
    return made[..., :-1], made[..., -1:]


def near_a_tie(matrix: Floats, size: tuple[int, int]) -> NDArray[np.bool_]:
    """Where the nearest pixel is a matter of rounding: bool [H, W]."""
    height, width = size
    v, u = np.mgrid[0:height, 0:width] + 0.5
    points = matrix @ np.stack([u - width / 2, v - height / 2, np.ones_like(u)]).reshape(3, -1)
    edges = points[:2] + np.array([[width / 2], [height / 2]])
    distance = np.abs(edges - np.rint(edges)).min(axis=0)
    return (distance < 1e-3).reshape(height, width)


def affine_draws(count: int, seed: int) -> dict[str, Floats]:
    draws = np.random.default_rng(seed)
    return {
        "angle": draws.uniform(-180, 180, count),
        "scale": draws.uniform(0.4, 2.2, count),
        "shear_x": draws.uniform(-40, 40, count),
        "shear_y": draws.uniform(-40, 40, count),
        "move_x": np.rint(draws.uniform(-9, 9, count)),
        "move_y": np.rint(draws.uniform(-9, 9, count)),
    }


def affine_matrix(params: dict[str, Floats], i: int, size: tuple[int, int], center: Any) -> Floats:
    return inverse(
        size,
        params["angle"][i],
        (params["move_x"][i], params["move_y"][i]),
        params["scale"][i],
        (params["shear_x"][i], params["shear_y"][i]),
        center,
    )


ONLY = {"angle": 0.0, "scale": 1.0, "shear_x": 0.0, "shear_y": 0.0, "move_x": 0.0, "move_y": 0.0}
FILL = (200.0, 30.0, 117.0)


@pytest.mark.parametrize("size", [(24, 24), (24, 31), (31, 24)])
@pytest.mark.parametrize("center", [None, (5.0, 17.5)])
@pytest.mark.parametrize("what", ["angle", "scale", "shear_x", "shear_y", "move", "all"])
def test_affine_is_torchvisions_in_float64(
    size: tuple[int, int], center: Any, what: str, implementation: str
) -> None:
    """At the edge the picture is laid over the fill by its mask; torchvision multiplies by the mask once more."""
    images = noise_images(6, 3, *size)
    params = affine_draws(6, seed=size[1])
    if what != "all":
        params = {
            name: drawn if name.startswith(what) else np.full(6, ONLY[name]) for name, drawn in params.items()
        }
    affine = RandomAffine(0, interpolation="bilinear", fill=FILL, center=center)
    pipeline = Pipeline([affine, ToDtype()], (3, *size))
    found = 255 * levels(pipeline.apply(images, [*given(**params), {}]))
    for i, image in enumerate(images):
        picture, mask = torchvisions(image, affine_matrix(params, i, size, center), "bilinear")
        np.testing.assert_allclose(found[i], picture + (1 - mask) * np.array(FILL), rtol=0, atol=FLOAT_LEVELS)
        torchvision = picture * mask + (1 - mask) * np.array(FILL)
        sure = (mask < 1e-6) | (mask > 1 - 1e-6)
        np.testing.assert_allclose((found[i] - torchvision) * sure, 0, atol=FLOAT_LEVELS)


@pytest.mark.parametrize("center", [None, (0.0, 31.0)])
def test_rotation_is_torchvisions_in_float64(center: Any, implementation: str) -> None:
    images = noise_images(30, 3, 24, 31)
    angles = np.random.default_rng(0).uniform(-180, 180, 30)
    angles[:5] = 0, 90, 180, -90, 45
    rotation = RandomRotation(180, "bilinear", center=center, fill=FILL)
    pipeline = Pipeline([rotation, ToDtype()], (3, 24, 31))
    found = 255 * levels(pipeline.apply(images, [*given(angle=angles), {}]))
    for i, image in enumerate(images):
        # rotate() turns counter-clockwise: it hands -angle to the matrix.
        picture, mask = torchvisions(image, inverse((24, 31), -angles[i], center=center), "bilinear")
        np.testing.assert_allclose(found[i], picture + (1 - mask) * np.array(FILL), rtol=0, atol=FLOAT_LEVELS)


@pytest.mark.parametrize("center", [None, (3.0, 20.25)])
def test_nearest_takes_the_same_pixels_as_torchvision_away_from_ties(
    center: Any, implementation: str
) -> None:
    images = noise_images(30, 3, 24, 31)
    params = affine_draws(30, seed=5)
    affine = RandomAffine(0, fill=FILL, center=center)
    found = levels(one(affine, images).apply(images, given(**params)))
    doubtful = 0
    for i, image in enumerate(images):
        matrix = affine_matrix(params, i, (24, 31), center)
        picture, mask = torchvisions(image, matrix, "nearest")
        expected = np.where(mask < 0.5, np.array(FILL), picture)
        sure = ~near_a_tie(matrix, (24, 31))
        np.testing.assert_array_equal(found[i][sure], expected[sure])
        doubtful += int((~sure).sum())
    assert doubtful < 0.01 * 30 * 24 * 31


def test_turns_by_right_angles_are_exact(implementation: str) -> None:
    images = noise_images(5, 3, 24, 24)
    angles = given(angle=[0.0, 90.0, 180.0, 270.0, -90.0])
    expected = torch.stack(
        [image.rot90(turns, (1, 2)) for image, turns in zip(images, (0, 1, 2, 3, -1), strict=True)]
    )
    for interpolation in ("nearest", "bilinear"):
        # rot90 turns counter-clockwise, as rows count downwards.
        pipeline = one(RandomRotation(270, interpolation), images)
        assert torch.equal(pipeline.apply(images, angles), expected)


@pytest.mark.parametrize("scale", [1.0, 0.6, 1.7])
def test_opencv_makes_the_same_images(scale: float, implementation: str) -> None:
    """OpenCV 5 makes the same bytes; OpenCV 4's positions are whole 32nds of a pixel, so there means differ a little."""
    allowed = 0.01 if int(cv2.__version__.split(".")[0]) >= 5 else 0.5
    images = smooth_images(20, 3, 40, 33)
    params = affine_draws(20, seed=8) | {"scale": np.full(20, scale)}
    affine = RandomAffine(0, interpolation="bilinear", fill=FILL)
    found = levels(one(affine, images).apply(images, given(**params)))
    half = np.array([[1, 0, 0.5], [0, 1, 0.5], [0, 0, 1]])
    middle = np.array([[1, 0, -16.5], [0, 1, -20], [0, 0, 1]])
    for i, image in enumerate(images):
        # From pixel numbers, and back to them.
        matrix = np.linalg.inv(middle @ half) @ affine_matrix(params, i, (40, 33), None) @ middle @ half
        expected = cv2.warpAffine(
            image.permute(1, 2, 0).contiguous().numpy(),
            matrix[:2],
            (33, 40),
            flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
            borderMode=cv2.BORDER_CONSTANT,
            borderValue=FILL,
        ).astype(float)
        assert np.abs(found[i] - expected).mean() < allowed


def test_a_positive_rotation_is_counter_clockwise_and_a_positive_affine_angle_clockwise(
    implementation: str,
) -> None:
    images = torch.zeros(1, 1, 33, 33, dtype=torch.uint8)
    images[0, 0, 16, 28] = 255  # right of the middle
    left = one(RandomRotation(45), images).apply(images, given(angle=[30.0]))
    right = one(RandomAffine(45), images).apply(
        images, given(**{name: [value] for name, value in (ONLY | {"angle": 30.0}).items()})
    )
    assert left.nonzero()[:, 2].max() < 16  # it went up
    assert right.nonzero()[:, 2].min() > 16


def test_draws_of_rotation_are_uniform() -> None:
    angle = RandomRotation((-20, 70)).sample(Draws(np.arange(20_000), 0, 0, 0, "r"), (3, 8, 8))["angle"]
    assert_uniform((angle + 20) / 90)
    angle = RandomRotation(15).sample(Draws(np.arange(20_000), 0, 0, 0, "r"), (3, 8, 8))["angle"]
    assert_uniform((angle + 15) / 30)


def test_draws_of_affine_are_torchvisions() -> None:
    rows, shape = np.arange(20_000), (3, 40, 64)
    affine = RandomAffine((-20, 70), (0.1, 0.3), (0.5, 1.5), (-5, 10, -20, 30))
    drawn = affine.sample(Draws(rows, 0, 0, 0, "a"), shape)
    assert_uniform((drawn["angle"] + 20) / 90)
    assert_uniform(drawn["scale"] - 0.5)
    assert_uniform((drawn["shear_x"] + 5) / 15)
    assert_uniform((drawn["shear_y"] + 20) / 50)
    draws = np.random.default_rng(0)
    assert_alike(drawn["move_x"], np.array([round(m) for m in draws.uniform(-6.4, 6.4, 20_000)]))
    assert_alike(drawn["move_y"], np.array([round(m) for m in draws.uniform(-12, 12, 20_000)]))
    assert (drawn["move_x"] == np.rint(drawn["move_x"])).all()
    assert_unrelated(*drawn.values())


@pytest.mark.parametrize(
    ("shear", "expected"),
    [
        (None, None),
        (10, ((-10, 10), (0, 0))),
        ((5, 10), ((5, 10), (0, 0))),
        ((5, 10, -3, 4), ((5, 10), (-3, 4))),
    ],
)
def test_shear_is_read_as_torchvision_reads_it(shear: Any, expected: Any) -> None:
    affine = RandomAffine(0, shear=shear)
    assert affine.shear == expected
    drawn = affine.sample(Draws(np.arange(9), 0, 0, 0, "a"), (3, 8, 8))
    assert set(drawn["angle"]) == {0}
    assert set(drawn["scale"]) == {1}
    assert set(drawn["move_x"]) | set(drawn["move_y"]) == {0}


def test_nothing_drawn_is_no_change(implementation: str) -> None:
    images = noise_images(4, 3, 24, 31)
    for still in (RandomAffine(0), RandomAffine(0, interpolation="bilinear"), RandomRotation(0, "bilinear")):
        assert torch.equal(one(still, images)(images, np.arange(4)), images)


@pytest.mark.parametrize(
    ("attempt", "sentence"),
    [
        (
            lambda: RandomRotation(-5),
            "RandomRotation: degrees is -5; a number from 0 up, or two (low, high), is allowed. Pass how far it may go.",
        ),
        (
            lambda: RandomRotation("5"),  # type: ignore[arg-type]
            "RandomRotation: degrees is '5'; a number from 0 up, or two (low, high), is allowed. Pass how far it may go.",
        ),
        (
            lambda: RandomRotation(True),
            "RandomRotation: degrees is True; a number from 0 up, or two (low, high), is allowed. Pass how far it may go.",
        ),
        (
            lambda: RandomRotation((5, -5)),
            "RandomRotation: degrees is (5, -5); two numbers (low, high) are allowed. Pass those, the smaller first.",
        ),
        (
            lambda: RandomRotation(5, "cubic"),
            "RandomRotation: interpolation is 'cubic'; 'nearest', 'nearest-exact', 'bilinear' are allowed. Pass one of them.",
        ),
        (
            lambda: RandomRotation(5, center=(1, 2, 3)),
            "RandomRotation: center is (1, 2, 3); two numbers (across, down) are allowed. Pass those.",
        ),
        (
            lambda: RandomRotation(5, center=(1, float("inf"))),
            "RandomRotation: center is (1, inf); two numbers (across, down) are allowed. Pass those.",
        ),
        (
            lambda: Pipeline([RandomRotation(5, fill=(1, 2))], (3, 8, 8)),
            "RandomRotation: fill has 2 numbers and the images 3 channels; one number, or one a channel, is allowed. "
            "Pass as many as there are channels.",
        ),
        (
            lambda: Pipeline([RandomAffine(5, fill=300)], (3, 8, 8)),
            "RandomAffine: fill is 300.0 and the images' values are 0 to 255; those are allowed. "
            "Pass it in the images' own scale.",
        ),
        (
            lambda: RandomAffine(5, translate=0.1),  # type: ignore[arg-type]
            "RandomAffine: translate is 0.1; two numbers (across, down) from 0 to 1 are allowed. Pass those.",
        ),
        (
            lambda: RandomAffine(5, translate=(0.1, 1.5)),
            "RandomAffine: translate is (0.1, 1.5); two numbers (across, down) from 0 to 1 are allowed. Pass those.",
        ),
        (
            lambda: RandomAffine(5, scale=(0, 1)),
            "RandomAffine: scale is (0, 1); two numbers (low, high) from 1e-06 up are allowed. Pass those, the smaller first.",
        ),
        (
            lambda: RandomAffine(5, shear=90),
            "RandomAffine: shear is 90; degrees between -90 and 90 are allowed. Pass smaller ones.",
        ),
        (
            lambda: RandomAffine(5, shear=(-10, 10, -95, 0)),
            "RandomAffine: shear is (-10, 10, -95, 0); degrees between -90 and 90 are allowed. Pass smaller ones.",
        ),
        (
            lambda: RandomAffine(5, shear=-1),
            "RandomAffine: shear is -1; a number from 0 up, or two (low, high), is allowed. Pass how far it may go.",
        ),
    ],
)
def test_mistakes_are_sentences(attempt: Any, sentence: str) -> None:
    assert refusal(attempt) == sentence


def test_torchvisions_third_argument_of_rotation_is_not_taken_for_another() -> None:
    with pytest.raises(TypeError):
        RandomRotation(9, "nearest", True)  # type: ignore[misc]  # expand there
