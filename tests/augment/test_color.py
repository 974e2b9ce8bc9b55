"""packer.augment.color: against float64, colorsys and Pillow in every order; torchvision's distributions."""

from __future__ import annotations

import colorsys
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image, ImageEnhance
from torch import Tensor

from packer.augment import ColorJitter, Normalize, Pipeline, RandomGrayscale, ToDtype
from packer.augment.kinds import Draws
from tests.augment.conftest import (
    assert_fair,
    assert_uniform,
    assert_unrelated,
    given,
    levels,
    noise_images,
    one,
    refusal,
    smooth_images,
)

Floats = NDArray[np.float64]

NAMES = ("brightness", "contrast", "saturation", "hue")
FLOAT_LEVELS = 2e-3
"""What float32 may change, of 255, over four steps."""


def grey(image: Floats) -> Floats:
    made: Floats = 0.2989 * image[..., 0] + 0.587 * image[..., 1] + 0.114 * image[..., 2]
    return made


def turned(image: Floats, turns: float) -> Floats:
    """The hue moved, pixel by pixel in colorsys."""
    made = []
    for pixel in image.reshape(-1, 3) / 255:
        hue, saturation, value = colorsys.rgb_to_hsv(*pixel)
        made.append(colorsys.hsv_to_rgb((hue + turns) % 1, saturation, value))
    return 255 * np.array(made).reshape(image.shape)


REFERENCE = {
    "brightness": lambda image, factor: (factor * image).clip(0, 255),
    "contrast": lambda image, factor: (factor * image + (1 - factor) * grey(image).mean()).clip(0, 255),
    "saturation": lambda image, factor: (factor * image + (1 - factor) * grey(image)[..., None]).clip(0, 255),
    "hue": turned,
}


def factors(count: int, seed: int = 0) -> dict[str, Floats]:
    draws = np.random.default_rng(seed)
    drawn = {name: draws.uniform(0, 2, count) for name in NAMES[:3]}
    return drawn | {"hue": draws.uniform(-0.5, 0.5, count)}


def jitter(**ranges: Any) -> ColorJitter:
    return ColorJitter(**(dict.fromkeys(NAMES[:3], 1.0) | {"hue": 0.5} | ranges))


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_every_order_is_that_order_in_float64(order: tuple[int, ...], implementation: str) -> None:
    images = noise_images(2, 3, 14, 15)
    drawn = factors(2, seed=sum(10**i * n for i, n in enumerate(order)))
    pipeline = Pipeline([jitter(), ToDtype()], (3, 14, 15))
    found = 255 * levels(pipeline.apply(images, [*given(**drawn, order=[order] * 2), {}]))
    for i, image in enumerate(levels(images)):
        for number in order:
            image = REFERENCE[NAMES[number]](image, drawn[NAMES[number]][i])
        np.testing.assert_allclose(found[i], image, rtol=0, atol=FLOAT_LEVELS)


@pytest.mark.parametrize("name", NAMES)
def test_each_alone_and_without_change(name: str, implementation: str) -> None:
    images = noise_images(8, 3, 14, 15)
    before = images.clone()
    drawn = {name: factors(8)[name]}
    still = {"hue": 0.0}.get(name, 1.0)
    drawn[name][0] = still
    drawn[name][1] = 0.0
    alone = ColorJitter(**{name: 0.5})
    pipeline = Pipeline([alone, ToDtype()], (3, 14, 15))
    found = 255 * levels(pipeline.apply(images, [*given(**drawn, order=np.zeros((8, 1), int)), {}]))
    for i, image in enumerate(levels(images)):
        expected = REFERENCE[name](image, drawn[name][i])
        np.testing.assert_allclose(found[i], expected, rtol=0, atol=FLOAT_LEVELS)
    bytes_ = one(alone, images).apply(images, given(**drawn, order=np.zeros((8, 1), int)))
    assert torch.equal(bytes_[0], images[0])
    assert np.abs(levels(bytes_) - found).max() <= 0.5 + FLOAT_LEVELS
    assert torch.equal(images, before)


@pytest.mark.parametrize(
    ("name", "enhance"),
    [
        ("brightness", ImageEnhance.Brightness),
        ("contrast", ImageEnhance.Contrast),
        ("saturation", ImageEnhance.Color),
    ],
)
def test_pillow_agrees_within_its_own_rounding(name: str, enhance: Any, implementation: str) -> None:
    """Pillow rounds the grey, or its mean, before it mixes, and cuts decimals off after: less than 2.5 levels."""
    images = noise_images(20, 3, 24, 24)
    drawn = {name: factors(20)[name]}
    pipeline = one(ColorJitter(**{name: 0.5}), images)
    found = levels(pipeline.apply(images, given(**drawn, order=np.zeros((20, 1), int))))
    for i, image in enumerate(images.permute(0, 2, 3, 1).contiguous().numpy()):
        expected = np.asarray(enhance(Image.fromarray(image)).enhance(float(drawn[name][i])), dtype=float)
        assert np.abs(found[i] - expected).max() <= 2.5
        assert np.abs(found[i] - expected).mean() < 0.7


@pytest.mark.parametrize("turns", [-0.5, -1 / 3, -0.1, 0.0, 1 / 6, 0.5])
def test_hue_at_the_corners_and_edges_of_the_colour_cube(turns: float, implementation: str) -> None:
    sides = np.array([0, 1, 127, 128, 254, 255], np.uint8)
    cube = np.stack(np.meshgrid(sides, sides, sides, indexing="ij"), -1).reshape(1, 6, 36, 3)
    images = torch.from_numpy(cube).permute(0, 3, 1, 2)
    pipeline = Pipeline([ColorJitter(hue=0.5), ToDtype()], (3, 6, 36))
    found = 255 * levels(pipeline.apply(images, [*given(hue=[turns], order=[[0]]), {}]))
    np.testing.assert_allclose(found[0], turned(cube[0].astype(float), turns), rtol=0, atol=FLOAT_LEVELS)


def test_floating_point_images_are_clamped_at_one(implementation: str) -> None:
    images = noise_images(6, 3, 14, 15, torch.float32)
    drawn = factors(6)
    order = [[3, 2, 1, 0]] * 6
    found = levels(one(jitter(), images).apply(images, given(**drawn, order=order)))
    for i, image in enumerate(255 * levels(images)):
        for name in reversed(NAMES):
            image = REFERENCE[name](image, drawn[name][i])
        np.testing.assert_allclose(255 * found[i], image, rtol=0, atol=FLOAT_LEVELS)


def test_grey_images_have_no_saturation_and_no_hue(implementation: str) -> None:
    images = noise_images(8, 1, 14, 15)
    drawn = factors(8)
    vivid = ColorJitter(saturation=0.5, hue=0.5)
    found = one(vivid, images).apply(
        images, given(saturation=drawn["saturation"], hue=drawn["hue"], order=[[0, 1]] * 8)
    )
    assert torch.equal(found, images)
    plain = ColorJitter(brightness=0.5, contrast=0.5)
    found = one(plain, images).apply(
        images, given(brightness=drawn["brightness"], contrast=drawn["contrast"], order=[[0, 1]] * 8)
    )
    for i, image in enumerate(levels(images)):
        image = (drawn["brightness"][i] * image).clip(0, 255)
        image = drawn["contrast"][i] * image + (1 - drawn["contrast"][i]) * image.mean()
        # The weights of grey sum to 0.9999.
        assert np.abs(levels(found)[i] - image.clip(0, 255)).max() <= 0.53


def test_the_mean_of_a_large_image_is_that_of_a_grid(implementation: str) -> None:
    images = smooth_images(4, 3, 210, 300)
    factor = np.array([0.0, 0.4, 1.6, 2.0])
    pipeline = Pipeline([ColorJitter(contrast=1), ToDtype()], (3, 210, 300))
    found = 255 * levels(pipeline.apply(images, [*given(contrast=factor, order=[[0]] * 4), {}]))
    for i, image in enumerate(levels(images)):
        expected = REFERENCE["contrast"](image, factor[i])
        assert 0 < np.abs(found[i] - expected).max() < 0.5


def test_grey_is_the_weighted_sum_in_all_channels(implementation: str) -> None:
    images = noise_images(9, 3, 14, 15)
    gray = np.arange(9) % 3 == 0
    found = levels(one(RandomGrayscale(), images).apply(images, given(gray=gray)))
    for result, image, chosen in zip(found, levels(images), gray, strict=True):
        expected = np.repeat(np.floor(grey(image) + 0.5)[..., None], 3, -1) if chosen else image
        np.testing.assert_allclose(result, expected, rtol=0, atol=0 if not chosen else 1)
        assert not chosen or np.abs(result - grey(image)[..., None]).max() <= 0.5 + FLOAT_LEVELS
    single = noise_images(3, 1, 14, 15)
    assert torch.equal(one(RandomGrayscale(1), single)(single, np.arange(3)), single)


def test_grayscale_happens_with_probability_p() -> None:
    drawn = RandomGrayscale(0.1).sample(Draws(np.arange(40_000), 0, 0, 0, "g"), (3, 8, 8))["gray"]
    assert abs(drawn.mean() - 0.1) < 3.5 * 0.3 / 200


def test_factors_are_uniform_orders_too_and_all_unrelated() -> None:
    rows = np.arange(48_000)
    drawn = ColorJitter(0.4, (0.5, 2), 0.2, 0.1).sample(Draws(rows, 0, 0, 0, "j"), (3, 8, 8))
    assert_uniform((drawn["brightness"] - 0.6) / 0.8)
    assert_uniform((drawn["contrast"] - 0.5) / 1.5)
    assert_uniform((drawn["saturation"] - 0.8) / 0.4)
    assert_uniform((drawn["hue"] + 0.1) / 0.2)
    numbers = drawn["order"] @ [64, 16, 4, 1]
    names, counts = np.unique(numbers, return_counts=True)
    assert sorted(names) == sorted(np.dot(order, [64, 16, 4, 1]) for order in permutations(range(4)))
    assert_fair(counts)
    assert_unrelated(*(drawn[name] for name in NAMES), drawn["order"][:, 0])


@pytest.mark.parametrize(
    ("arguments", "ranges"),
    [
        ({}, {}),
        ({"brightness": 0}, {}),
        ({"brightness": 0.4}, {"brightness": (0.6, 1.4)}),
        ({"brightness": 3}, {"brightness": (0, 4)}),
        ({"contrast": (0.5, 0.7), "hue": 0.1}, {"contrast": (0.5, 0.7), "hue": (-0.1, 0.1)}),
        ({"saturation": (1, 1)}, {}),
        ({"saturation": [0, 2], "hue": (-0.5, 0)}, {"saturation": (0, 2), "hue": (-0.5, 0)}),
    ],
)
def test_ranges_are_read_as_torchvision_reads_them(arguments: dict[str, Any], ranges: dict[str, Any]) -> None:
    made = ColorJitter(**arguments)
    assert made.ranges == ranges
    drawn = made.sample(Draws(np.arange(100), 0, 0, 0, "j"), (3, 8, 8))
    assert set(drawn) == set(ranges) | ({"order"} if ranges else set())
    for name, (low, high) in ranges.items():
        assert low <= drawn[name].min() <= drawn[name].max() <= high


def test_a_jitter_of_nothing_changes_nothing(implementation: str) -> None:
    images = noise_images(3)
    assert torch.equal(one(ColorJitter(), images)(images, np.arange(3)), images)


@pytest.mark.parametrize("operation", [jitter(), RandomGrayscale(1)])
def test_a_fourth_channel_is_kept(operation: ColorJitter | RandomGrayscale, implementation: str) -> None:
    images = noise_images(40, 4)
    rows = np.arange(40)
    stack = [operation, ToDtype()]
    made = levels(Pipeline(stack, (4, 24, 20))(images, rows))
    np.testing.assert_allclose(255 * made[..., 3], levels(images)[..., 3], rtol=0, atol=1e-4)
    colours = levels(Pipeline(stack, (3, 24, 20))(images[:, :3], rows))
    np.testing.assert_allclose(255 * made[..., :3], 255 * colours, rtol=0, atol=FLOAT_LEVELS)
    assert np.abs(255 * made[..., :3] - levels(images)[..., :3]).mean() > 10


UP = "two numbers (low, high) from 0 up are allowed. Pass those, the smaller first."
EITHER = "a number from 0 up, or two (low, high) from 0 up, is allowed. Pass how far it may go."
TURNS = "a number from 0 to 0.5, or two (low, high) from -0.5 to 0.5, is allowed. Pass how far it may go."


@pytest.mark.parametrize(
    ("attempt", "sentence"),
    [
        (lambda: ColorJitter(brightness=-0.1), f"ColorJitter: brightness is -0.1; {EITHER}"),
        (lambda: ColorJitter(hue=-0.1), f"ColorJitter: hue is -0.1; {TURNS}"),
        (lambda: ColorJitter(hue=0.6), f"ColorJitter: hue is 0.6; {TURNS}"),
        (lambda: ColorJitter(contrast=(2, 1)), f"ColorJitter: contrast is (2, 1); {UP}"),
        (
            lambda: ColorJitter(saturation=(-1, 1)),
            "ColorJitter: saturation is (-1, 1); two numbers (low, high) from 0 up are allowed. Pass those, the smaller first.",
        ),
        (
            lambda: ColorJitter(saturation="much"),  # type: ignore[arg-type]
            f"ColorJitter: saturation is 'much'; {EITHER}",
        ),
        (lambda: ColorJitter(brightness=float("nan")), f"ColorJitter: brightness is nan; {EITHER}"),
        (
            lambda: ColorJitter(hue=(0.4, 0.6)),
            "ColorJitter: hue is (0.4, 0.6); two numbers (low, high) from -0.5 to 0.5 are allowed. "
            "Pass those, the smaller first.",
        ),
        (
            lambda: RandomGrayscale(2),
            "RandomGrayscale: p is 2; numbers from 0 to 1 are allowed. Pass one of them.",
        ),
        (
            lambda: Pipeline([ColorJitter(0.4)], (5, 8, 8)),
            "ColorJitter: the images have 5 channels; 1, 3 and 4 are allowed. "
            "Convert with channels= gray, rgb or rgba.",
        ),
        (
            lambda: Pipeline([RandomGrayscale()], (2, 8, 8)),
            "RandomGrayscale: the images have 2 channels; 1, 3 and 4 are allowed. "
            "Convert with channels= gray, rgb or rgba.",
        ),
        (
            lambda: Pipeline([Normalize([0.5] * 3, [0.2] * 3), ColorJitter(0.4)], (3, 8, 8)),
            "ColorJitter: the images are normalised already; values from 0 to 1, or uint8, are allowed. "
            "Put it before Normalize.",
        ),
        (
            lambda: Pipeline([Normalize([0.5] * 3, [0.2] * 3), RandomGrayscale()], (3, 8, 8)),
            "RandomGrayscale: the images are normalised already; values from 0 to 1, or uint8, are allowed. "
            "Put it before Normalize.",
        ),
    ],
)
def test_mistakes_are_sentences(attempt: Any, sentence: str) -> None:
    assert refusal(attempt) == sentence


def test_colour_after_todtype_is_colour_from_zero_to_one(implementation: str) -> None:
    images: Tensor = noise_images(6)
    first = Pipeline([ColorJitter(0.4, 0.4, 0.4, 0.1), ToDtype()], (3, 24, 20))
    second = Pipeline([ToDtype(), ColorJitter(0.4, 0.4, 0.4, 0.1)], (3, 24, 20))
    params = first.sample(np.arange(6))
    torch.testing.assert_close(
        second.apply(images, params[::-1]), first.apply(images, params), rtol=0, atol=2e-6
    )
