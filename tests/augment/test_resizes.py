"""packer.augment.geometric: against interpolate in float64 and Pillow, torchvision's distribution of rectangles."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from packer.augment import (
    Normalize,
    Pad,
    Pipeline,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomRotation,
    Resize,
    ToDtype,
)
from packer.augment.kinds import Draws
from tests.augment.conftest import (
    assert_alike,
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

FLOAT_LEVELS = 2e-3
"""What float32 may change, of 255."""

SIZES = [(17, 17), (64, 31), (20, 47), (3, 50), (24, 20), (1, 1), (48, 40)]


def resized(images: Tensor, size: tuple[int, int], antialias: bool = True) -> NDArray[np.float64]:
    made = interpolate(images.double(), size, mode="bilinear", antialias=antialias, align_corners=False)
    return levels(made)


def rectangles(count: int, height: int, width: int, seed: int = 0) -> dict[str, NDArray[np.int64]]:
    """Any that fit: a pixel, a row, all of the image."""
    draws = np.random.default_rng(seed)
    h, w = draws.integers(1, height + 1, count), draws.integers(1, width + 1, count)
    h[0], w[0], h[1], w[2] = height, width, 1, 1
    top, left = draws.integers(0, height - h + 1), draws.integers(0, width - w + 1)
    return {"top": top, "left": left, "height": h, "width": w}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("antialias", [True, False])
def test_resizing_is_what_interpolate_does_in_float64(
    size: tuple[int, int], antialias: bool, implementation: str
) -> None:
    images = noise_images(4, 3, 24, 20)
    pipeline = Pipeline([Resize(size, antialias=antialias), ToDtype()], (3, 24, 20))
    found = 255 * levels(pipeline(images, np.arange(4)))
    np.testing.assert_allclose(found, resized(images, size, antialias), rtol=0, atol=FLOAT_LEVELS)


@pytest.mark.parametrize("size", SIZES)
def test_resizing_bytes_is_what_pillow_does_to_one_level(size: tuple[int, int], implementation: str) -> None:
    images = noise_images(4, 3, 24, 20)
    found = levels(one(Resize(size), images)(images, np.arange(4)))
    for image, result in zip(images, found, strict=True):
        pillow = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
        expected = np.asarray(pillow.resize(size[::-1], Image.Resampling.BILINEAR), dtype=float)
        assert np.abs(result - expected).max() <= 1


@pytest.mark.parametrize("size", [16, (8, 33), (1, 1)])
@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_any_rectangle_is_resized_as_if_it_were_the_image(
    size: Any, antialias: bool, channels: int, implementation: str
) -> None:
    images = noise_images(24, channels, 33, 29)
    before = images.clone()
    crop = RandomResizedCrop(size, antialias=antialias)
    pipeline = Pipeline([crop, ToDtype()], (channels, 33, 29))
    where = rectangles(24, 33, 29)
    found = 255 * levels(pipeline.apply(images, [*given(**where), {}]))
    for i, (top, left, height, width) in enumerate(zip(*where.values(), strict=True)):
        cut = images[i : i + 1, :, top : top + height, left : left + width]
        expected = resized(cut, crop.size, antialias)
        np.testing.assert_allclose(found[i : i + 1], expected, rtol=0, atol=FLOAT_LEVELS)
    assert torch.equal(images, before)


def test_rectangles_of_bytes_agree_with_pillow_to_one_level(implementation: str) -> None:
    images = noise_images(24, 3, 33, 29)
    where = rectangles(24, 33, 29, seed=1)
    found = levels(one(RandomResizedCrop((20, 16)), images).apply(images, given(**where)))
    for i, (top, left, height, width) in enumerate(zip(*where.values(), strict=True)):
        cut = images[i, :, top : top + height, left : left + width].permute(1, 2, 0)
        pillow = Image.fromarray(cut.contiguous().numpy()).resize((16, 20), Image.Resampling.BILINEAR)
        assert np.abs(found[i] - np.asarray(pillow, dtype=float)).max() <= 1


@pytest.mark.parametrize("name", ["nearest", "nearest-exact"])
@pytest.mark.parametrize("size", [(17, 17), (64, 31), (3, 50), (12, 10), (48, 40), (24, 20)])
def test_nearest_takes_the_pixel_of_the_results_middle(
    name: str, size: tuple[int, int], implementation: str
) -> None:
    images = noise_images(16, 3, 24, 20)
    found = one(Resize(size, name), images)(images, np.arange(16))
    assert torch.equal(found, interpolate(images, size, mode="nearest-exact"))
    where = rectangles(16, 24, 20)
    found = one(RandomResizedCrop(size, interpolation=name), images).apply(images, given(**where))
    for i, (top, left, height, width) in enumerate(zip(*where.values(), strict=True)):
        cut = images[i : i + 1, :, top : top + height, left : left + width]
        assert torch.equal(found[i : i + 1], interpolate(cut, size, mode="nearest-exact"))


BICUBIC = [(3, 2) if size == (1, 1) else size for size in SIZES]
"""As a pixel of all 480 takes the plain pass a second."""


@pytest.mark.parametrize(("size", "channels"), [*product(BICUBIC, (1, 3, 4)), ((1, 1), 1)])
def test_bicubic_is_what_interpolate_does_in_float64(
    size: tuple[int, int], channels: int, implementation: str
) -> None:
    images = noise_images(4, channels, 24, 20, torch.float32)
    crop = RandomResizedCrop(size, interpolation="bicubic")
    where = rectangles(4, 24, 20)
    found = levels(one(crop, images).apply(images, given(**where)))
    for i, (top, left, height, width) in enumerate(zip(*where.values(), strict=True)):
        cut = images[i : i + 1, :, top : top + height, left : left + width].double()
        expected = interpolate(cut, size, mode="bicubic", antialias=True, align_corners=False)
        np.testing.assert_allclose(found[i : i + 1], levels(expected), rtol=0, atol=2e-5)


@pytest.mark.parametrize("size", BICUBIC)
def test_bicubic_bytes_are_torchvisions(size: tuple[int, int], implementation: str, torchvision: Any) -> None:
    """Which rounds and cuts off between across and down. Here values beyond 0 and 255 are cut off once, before what follows."""
    bicubic = torchvision.InterpolationMode.BICUBIC
    for images, most in ((smooth_images(6, 3, 24, 20), 1), (noise_images(6, 3, 24, 20), 255)):
        found = one(Resize(size, "bicubic"), images)(images, np.arange(6)).double()
        expected = torchvision.functional.resize(images, list(size), bicubic).double()
        assert (found - expected).abs().max() <= most
        assert (found - expected).abs().mean() < 0.4
    floats = Pipeline([Resize(size, bicubic), ToDtype()], (3, 24, 20))
    made = floats(images, np.arange(6))
    assert made.min() >= 0
    assert made.max() <= 1
    torch.testing.assert_close((255 * made).double().round(), found, rtol=0, atol=1)
    exact = interpolate(images.double(), size, mode="bicubic", antialias=True, align_corners=False)
    torch.testing.assert_close(255 * made.double(), exact.clamp(0, 255), rtol=0, atol=FLOAT_LEVELS)


def test_bicubic_shares_the_pass_and_masks_move_as_ever(implementation: str) -> None:
    images = noise_images(5, 3, 24, 20)
    stack = [
        RandomHorizontalFlip(),
        Pad((3, 2), 9),
        RandomResizedCrop(16, interpolation="bicubic"),
        RandomCrop(12),
    ]
    pipeline = Pipeline([*stack, Normalize(0.5, 0.5)], (3, 24, 20))
    assert pipeline.stages.count("pass") == 1
    params = pipeline.sample(np.arange(5))
    masks = images[:, 0]
    linear = Pipeline([*stack[:2], RandomResizedCrop(16), stack[3]], (3, 24, 20))
    assert torch.equal(pipeline.apply_masks(masks, params), linear.apply_masks(masks, params[:-1]))
    whole = given(top=[0] * 5, left=[0] * 5, height=[24] * 5, width=[20] * 5)
    still = one(RandomResizedCrop((24, 20), interpolation="bicubic"), images)
    assert torch.equal(still.apply(images, whole), images)
    turned = Pipeline([Resize(16, "bicubic"), RandomRotation(9, "bilinear")], (3, 24, 20))
    assert turned.stages.count("pass") == 2


def test_a_size_that_is_the_images_own_changes_nothing(implementation: str) -> None:
    images = noise_images(3, 3, 24, 20)
    for same in (Resize((24, 20)), Resize(20), RandomResizedCrop((24, 20), (1, 1), (20 / 24, 20 / 24))):
        assert torch.equal(one(same, images)(images, np.arange(3)), images)


def test_floating_point_images_are_resized_in_their_own_scale(implementation: str) -> None:
    images = noise_images(3, 3, 24, 20, torch.float32)
    found = levels(one(Resize((9, 31)), images)(images, np.arange(3)))
    np.testing.assert_allclose(found, resized(images, (9, 31)), rtol=0, atol=FLOAT_LEVELS / 255)


@pytest.mark.parametrize(
    ("size", "shape", "expected"),
    [
        (16, (24, 20), (19, 16)),  # 16 * 24 / 20 = 19.2
        (16, (20, 24), (16, 19)),
        ([16], (20, 24), (16, 19)),
        (16, (33, 33), (16, 16)),
        ((16, 16), (24, 20), (16, 16)),
        (7, (3, 100), (7, 233)),
    ],
)
def test_one_number_is_the_shorter_side(size: Any, shape: tuple[int, int], expected: tuple[int, int]) -> None:
    assert Pipeline([Resize(size)], (3, *shape)).output_shape == (3, *expected)


def torchvisions(
    draws: np.random.Generator,
    height: int,
    width: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> tuple[int, int, int, int]:
    """What torchvision's RandomResizedCrop.get_params does: top, left, height, width."""
    for _ in range(10):
        area = height * width * draws.uniform(*scale)
        proportion = math.exp(draws.uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = round(math.sqrt(area * proportion)), round(math.sqrt(area / proportion))
        if 0 < w <= width and 0 < h <= height:
            return int(draws.integers(height - h + 1)), int(draws.integers(width - w + 1)), h, w
    if width / height < ratio[0]:
        w, h = width, round(width / ratio[0])
    elif width / height > ratio[1]:
        w, h = round(height * ratio[1]), height
    else:
        w, h = width, height
    return (height - h) // 2, (width - w) // 2, h, w


@pytest.mark.parametrize(
    ("shape", "scale", "ratio"),
    [
        ((64, 64), (0.08, 1.0), (3 / 4, 4 / 3)),
        ((40, 64), (0.5, 1.0), (0.5, 2.0)),
        ((64, 16), (0.9, 1.0), (3 / 4, 4 / 3)),  # never fits: the middle
        ((64, 20), (0.3, 1.0), (0.3, 0.5)),  # often does not fit
    ],
)
def test_rectangles_are_distributed_as_torchvisions(
    shape: tuple[int, int], scale: tuple[float, float], ratio: tuple[float, float]
) -> None:
    crop = RandomResizedCrop(8, scale, ratio)
    drawn = crop.sample(Draws(np.arange(20_000), 0, 0, 0, "RandomResizedCrop"), (3, *shape))
    draws = np.random.default_rng(0)
    expected = np.array([torchvisions(draws, *shape, scale, ratio) for _ in range(20_000)])
    for number, name in enumerate(("top", "left", "height", "width")):
        assert_alike(drawn[name], expected[:, number])
    assert (drawn["top"] + drawn["height"] <= shape[0]).all()
    assert (drawn["left"] + drawn["width"] <= shape[1]).all()
    assert all(side.min() >= 0 and side.dtype == np.int64 for side in drawn.values())


def test_area_is_uniform_and_the_logarithm_of_the_ratio_too() -> None:
    # Large images, so that whole pixels hardly matter, and areas that always fit.
    crop = RandomResizedCrop(8, (0.1, 0.5), (0.5, 2.0))
    drawn = crop.sample(Draws(np.arange(20_000), 1, 0, 0, "RandomResizedCrop"), (3, 20_000, 20_000))
    area = drawn["height"] * drawn["width"] / 4e8
    ratio = np.log(drawn["width"] / drawn["height"])
    assert_uniform((area - 0.1) / 0.4)
    assert_uniform((ratio - math.log(0.5)) / math.log(4))
    left = drawn["left"] / (20_000 - drawn["width"] + 1)
    top = drawn["top"] / (20_000 - drawn["height"] + 1)
    assert_uniform(left)
    assert_uniform(top)
    assert_unrelated(area, ratio, left, top)
    assert_fair(np.histogram2d(left, top, bins=8)[0])


def test_the_tenth_draw_is_the_last() -> None:
    """No square of the image's area fits: the middle, as large as the ratio allows."""
    pipeline = Pipeline([RandomResizedCrop(8, (1, 1), (1, 1))], (3, 30, 20))
    drawn = pipeline.sample(np.arange(5))[0]
    assert [drawn[name].unique().tolist() for name in ("top", "left", "height", "width")] == [
        [5],
        [0],
        [20],
        [20],
    ]


BOUNDS = "two numbers (low, high) from {} are allowed. Pass those, the smaller first."


@pytest.mark.parametrize(
    ("attempt", "sentence"),
    [
        (
            lambda: Resize(0),
            "Resize: size is 0; a whole number from 1 up, or two (height, width), are allowed. Pass the side in pixels.",
        ),
        (
            lambda: Resize(8, "lanczos"),
            "Resize: interpolation is 'lanczos'; 'nearest', 'nearest-exact', 'bilinear', 'bicubic' are allowed. Pass one of them.",
        ),
        (
            lambda: RandomResizedCrop(8, interpolation="bicubic", antialias=False),
            "RandomResizedCrop: antialias is False and interpolation 'bicubic'; 'bicubic' is allowed with antialias=True. "
            "Leave antialias out.",
        ),
        (
            lambda: RandomResizedCrop((8, 8, 8)),
            "RandomResizedCrop: size is (8, 8, 8); a whole number from 1 up, or two (height, width), are allowed. "
            "Pass the side in pixels.",
        ),
        (
            lambda: RandomResizedCrop(8, interpolation=2),  # type: ignore[arg-type]
            "RandomResizedCrop: interpolation is 2; 'nearest', 'nearest-exact', 'bilinear', 'bicubic' are allowed. "
            "Pass one of them.",
        ),
        (
            lambda: RandomResizedCrop(8, (0.5, 0.1)),
            f"RandomResizedCrop: scale is (0.5, 0.1); {BOUNDS.format('0 to 1')}",
        ),
        (
            lambda: RandomResizedCrop(8, (0.5, 1.1)),
            f"RandomResizedCrop: scale is (0.5, 1.1); {BOUNDS.format('0 to 1')}",
        ),
        (
            lambda: RandomResizedCrop(8, 0.5),  # type: ignore[arg-type]
            f"RandomResizedCrop: scale is 0.5; {BOUNDS.format('0 to 1')}",
        ),
        (
            lambda: RandomResizedCrop(8, ratio=(0, 1)),
            f"RandomResizedCrop: ratio is (0, 1); {BOUNDS.format('0.001 to 1000')}",
        ),
        (
            lambda: RandomResizedCrop(8, ratio=(1, float("nan"))),
            f"RandomResizedCrop: ratio is (1, nan); {BOUNDS.format('0.001 to 1000')}",
        ),
        *(
            (
                lambda made=made, value=value: made(8, antialias=value),
                f"{made.__name__}: antialias is {value!r}; True and False are allowed. Pass one of them.",
            )
            for made in (Resize, RandomResizedCrop)
            for value in (None, "warn", "False", 0)
        ),
    ],
)
def test_mistakes_are_sentences(attempt: Any, sentence: str) -> None:
    assert refusal(attempt) == sentence


def test_torchvisions_interpolation_mode_is_understood() -> None:
    class Mode:
        value = "nearest"

    assert Resize(8, Mode()).sampling == "nearest"  # type: ignore[arg-type]


@pytest.mark.parametrize(("size", "longest"), [(16, 20), (16, 17), (None, 25), (None, 200), ([7], 9)])
def test_the_longer_side_is_torchvisions(size: Any, longest: int, torchvision: Any) -> None:
    """Of images of one size, and of those that differ."""
    shapes = np.array([[24, 20], [20, 24], [33, 33], [3, 100], [60, 7], [19, 16]])
    resize, theirs = Resize(size, "bilinear", longest), torchvision.Resize(size, max_size=longest)
    expected = [list(theirs(torch.zeros(1, *shape)).shape[1:]) for shape in shapes.tolist() if min(shape) > 3]
    some = shapes[shapes.min(axis=1) > 3]
    _, heights, widths = resize.output_shape((1, some[:, 0], some[:, 1]))  # type: ignore[arg-type]
    assert np.stack([heights, widths], axis=1).tolist() == expected
    assert [list(resize.output_shape((1, *shape))[1:]) for shape in some.tolist()] == expected


@pytest.mark.parametrize("arguments", [{"size": 16, "max_size": 16}, {"size": (9, 9), "max_size": 20}])
def test_a_longer_side_that_is_not_longer_is_refused(arguments: Any) -> None:
    size, longest = arguments.values()
    assert refusal(lambda: Resize(**arguments)) == (
        f"Resize: size is {size!r} and max_size {longest}; max_size is allowed with a size of one smaller number, or None. "
        "Leave max_size out, or pass a larger one."
    )
