"""packer.augment.erasing: the drawn boxes and nothing else, values and noise, torchvision's distribution."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from packer.augment import ColorJitter, Cutout, Normalize, Pipeline, RandomCrop, RandomErasing, ToDtype
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
)

MEAN = [0.4914, 0.4822, 0.4465]
STD = [0.2470, 0.2435, 0.2616]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_the_drawn_boxes_are_filled_and_nothing_else(
    dtype: torch.dtype, channels: int, implementation: str
) -> None:
    images = noise_images(40, channels, 24, 20, dtype)
    before = images.clone()
    value = [(10 + 50 * channel) / (1 if dtype == torch.uint8 else 255) for channel in range(channels)]
    pipeline = one(RandomErasing(0.7, value=value), images)
    params = pipeline.sample(np.arange(40))
    found = levels(pipeline.apply(images, params))
    expected = levels(images)
    for image, top, left, height, width in zip(
        expected, *(params[0][name].tolist() for name in ("top", "left", "height", "width")), strict=True
    ):
        image[top : top + height, left : left + width] = np.float32(value)
    np.testing.assert_array_equal(found, expected)
    assert torch.equal(images, before)


def test_a_cutout_is_cut_at_the_edges(implementation: str) -> None:
    images = noise_images(60, 3, 12, 9)
    for size in (1, 4, 5, 15):
        pipeline = one(Cutout(size, value=(1, 2, 3)), images)
        params = pipeline.sample(np.arange(60))
        expected = levels(images)
        for image, y, x in zip(expected, params[0]["y"].tolist(), params[0]["x"].tolist(), strict=True):
            top, left = y - size // 2, x - size // 2
            image[max(top, 0) : max(top + size, 0), max(left, 0) : max(left + size, 0)] = (1, 2, 3)
        np.testing.assert_array_equal(levels(pipeline.apply(images, params)), expected)


def test_the_middle_of_a_cutout_is_any_pixel() -> None:
    drawn = Cutout(4).sample(Draws(np.arange(24_000), 0, 0, 0, "c"), (3, 6, 8))
    assert_fair(np.bincount(drawn["y"] * 8 + drawn["x"], minlength=48))


def test_area_and_ratio_are_within_their_bounds_and_uniform() -> None:
    # A large image, so that whole pixels hardly matter, and boxes that always fit.
    erasing = RandomErasing(1, (0.1, 0.3), (0.5, 2))
    drawn = erasing.sample(Draws(np.arange(20_000), 0, 0, 0, "e"), (3, 20_000, 20_000))
    area = drawn["height"] * drawn["width"] / 4e8
    ratio = drawn["height"] / drawn["width"]
    assert 0.0999 < area.min() < area.max() < 0.3001
    assert 0.4999 < ratio.min() < ratio.max() < 2.0005
    assert_uniform((area - 0.1) / 0.2)
    assert_uniform((np.log(ratio) - math.log(0.5)) / math.log(4))
    top, left = (
        drawn[name] / (20_000 - drawn[side] + 1) for name, side in (("top", "height"), ("left", "width"))
    )
    assert_uniform(top)
    assert_uniform(left)
    assert_unrelated(area, np.log(ratio), top, left)


def torchvisions(
    draws: np.random.Generator, size: tuple[int, int], erasing: RandomErasing
) -> tuple[int, int, int, int]:
    """What torchvision's RandomErasing.get_params does: top, left, height, width; all 0 if nothing fits."""
    if draws.random() >= erasing.p:
        return 0, 0, 0, 0
    least, most = (math.log(ratio) for ratio in erasing.ratio)
    for _ in range(10):
        area = size[0] * size[1] * draws.uniform(*erasing.scale)
        ratio = math.exp(draws.uniform(least, most))
        h, w = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if h < size[0] and w < size[1]:
            return int(draws.integers(size[0] - h + 1)), int(draws.integers(size[1] - w + 1)), h, w
    return 0, 0, 0, 0


@pytest.mark.parametrize(
    ("size", "erasing"),
    [
        ((32, 32), RandomErasing()),
        ((20, 60), RandomErasing(0.9, (0.2, 0.9), (0.2, 5))),
        ((8, 64), RandomErasing(1, (0.5, 0.9), (1, 4))),  # most do not fit
    ],
)
def test_boxes_are_distributed_as_torchvisions(size: tuple[int, int], erasing: RandomErasing) -> None:
    drawn = erasing.sample(Draws(np.arange(20_000), 0, 0, 0, "e"), (3, *size))
    draws = np.random.default_rng(0)
    expected = np.array([torchvisions(draws, size, erasing) for _ in range(20_000)])
    for number, name in enumerate(("top", "left", "height", "width")):
        assert_alike(drawn[name], expected[:, number])
    assert (drawn["top"] + drawn["height"] <= size[0]).all()
    assert (drawn["left"] + drawn["width"] <= size[1]).all()


def test_erasing_happens_with_probability_p() -> None:
    drawn = RandomErasing(0.3).sample(Draws(np.arange(40_000), 0, 0, 0, "e"), (3, 64, 64))
    assert abs((drawn["height"] > 0).mean() - 0.3) < 3.5 * (0.21 / 40_000) ** 0.5


def test_noise_is_normal_and_each_samples_own(implementation: str) -> None:
    images = noise_images(24, 3, 40, 40)
    stack = [Normalize(MEAN, STD), RandomErasing(1, (0.2, 0.5), (0.5, 2), "random")]
    pipeline = Pipeline(stack, (3, 40, 40))
    params = pipeline.sample(np.arange(24))
    found = levels(pipeline.apply(images, params))
    without = levels(Pipeline(stack[:1], (3, 40, 40))(images, np.arange(24)))
    where = zip(*(params[1][name].tolist() for name in ("top", "left", "height", "width")), strict=True)
    boxes = []
    for result, image, (top, left, height, width) in zip(found, without, where, strict=True):
        boxes.append(result[top : top + height, left : left + width].copy())
        result[top : top + height, left : left + width] = image[top : top + height, left : left + width]
    np.testing.assert_array_equal(found, without)
    numbers = np.concatenate([box.ravel() for box in boxes])
    assert len(numbers) > 20_000
    assert abs(numbers.mean()) < 3.5 / len(numbers) ** 0.5
    assert abs(numbers.var() - 1) < 3.5 * (2 / len(numbers)) ** 0.5
    assert_uniform(np.array([0.5 * (1 + math.erf(number / 2**0.5)) for number in numbers.tolist()]))
    # Neighbours, channels and samples do not tell of each other.
    wide = [box for box in boxes if min(box.shape[:2]) >= 13]
    assert_unrelated(*np.stack([box[:12, :12] for box in wide]).reshape(-1, 3).T)
    assert_unrelated(*(box[:12, :12].ravel() for box in wide))
    assert_unrelated(
        *(
            np.concatenate([box[y : y + 12, x : x + 12].ravel() for box in wide])
            for y, x in ((0, 0), (0, 1), (1, 0), (1, 1))
        )
    )
    again = levels(pipeline.apply(images, pipeline.sample(np.arange(24), epoch=1)))
    assert not np.array_equal(again, found)


def test_noise_is_the_same_in_any_batch(implementation: str) -> None:
    images = noise_images(12, 3, 16, 16)
    stack = [Normalize(MEAN, STD), RandomErasing(1, value="random")]
    pipeline = Pipeline(stack, (3, 16, 16))
    whole = pipeline(images, np.arange(12))
    order = np.array([7, 2, 11])
    assert torch.equal(pipeline(images[order], order), whole[order])


def test_values_are_in_the_scale_where_they_stand(implementation: str) -> None:
    images = noise_images(5, 3, 12, 12)
    box = {"top": [3], "left": [2], "height": [4], "width": [5]}
    at = (slice(None), slice(None), slice(3, 7), slice(2, 7))
    value = (10, 128, 255)
    normalize = Normalize(MEAN, STD)
    drawn = given(**{name: number * 5 for name, number in box.items()})
    before = Pipeline([RandomErasing(1, value=value), normalize], (3, 12, 12))
    expected = (torch.tensor(value, dtype=torch.float64) / 255 - torch.tensor(MEAN)) / torch.tensor(STD)
    found = before.apply(images, [*drawn, {}])
    torch.testing.assert_close(
        found[at].double(), expected.view(1, 3, 1, 1).expand(5, 3, 4, 5), rtol=0, atol=1e-6
    )
    after = Pipeline([normalize, RandomErasing(1, value=(-3, 0, 7.5))], (3, 12, 12))
    found = after.apply(images, [{}, *drawn])
    assert (found[at] == torch.tensor([-3, 0, 7.5]).view(1, 3, 1, 1)).all()
    between = Pipeline([ToDtype(), RandomErasing(1, value=0.5), normalize], (3, 12, 12))
    expected = (0.5 - torch.tensor(MEAN, dtype=torch.float64)) / torch.tensor(STD)
    found = between.apply(images, [{}, *drawn, {}])
    torch.testing.assert_close(
        found[at].double(), expected.view(1, 3, 1, 1).expand(5, 3, 4, 5), rtol=0, atol=1e-6
    )


def test_later_boxes_win(implementation: str) -> None:
    images = noise_images(3, 3, 12, 12)
    box = {"top": [2] * 3, "left": [2] * 3, "height": [4] * 3, "width": [4] * 3}
    shifted = box | {"left": [4] * 3}
    for values in ((7, 7), (7, 9)):
        stack = [RandomErasing(1, value=value) for value in values]
        pipeline = Pipeline(stack, (3, 12, 12))
        found = pipeline.apply(images, given(**box) + given(**shifted))
        assert found[:, :, 2:6, 2:4].unique().tolist() == [values[0]]
        assert found[:, :, 2:6, 4:8].unique().tolist() == [values[1]]


@pytest.mark.parametrize(
    ("attempt", "sentence"),
    [
        (
            lambda: RandomErasing(-1),
            "RandomErasing: p is -1; numbers from 0 to 1 are allowed. Pass one of them.",
        ),
        (
            lambda: RandomErasing(scale=(0.3, 0.1)),
            "RandomErasing: scale is (0.3, 0.1); two numbers (low, high) from 0 to 1 are allowed. "
            "Pass those, the smaller first.",
        ),
        (
            lambda: RandomErasing(scale=(0.3, 1.1)),
            "RandomErasing: scale is (0.3, 1.1); two numbers (low, high) from 0 to 1 are allowed. "
            "Pass those, the smaller first.",
        ),
        (
            lambda: RandomErasing(ratio=(0, 1)),
            "RandomErasing: ratio is (0, 1); two numbers (low, high) from 0.001 to 1000 are allowed. "
            "Pass those, the smaller first.",
        ),
        (
            lambda: RandomErasing(value="noise"),
            "RandomErasing: value is 'noise'; 'random', a number, or one a channel, is allowed. Pass such.",
        ),
        (
            lambda: RandomErasing(value=[]),
            "RandomErasing: value is []; a number, or one a channel, is allowed. Pass such.",
        ),
        (
            lambda: Pipeline([RandomErasing(value=(1, 2))], (3, 8, 8)),
            "RandomErasing: value has 2 numbers and the images 3 channels; one number, or one a channel, is allowed. "
            "Pass as many as there are channels.",
        ),
        (
            lambda: Pipeline([RandomErasing(value=256)], (3, 8, 8)),
            "RandomErasing: value is 256.0 and the images' values are 0 to 255; those are allowed. "
            "Pass it in the images' own scale.",
        ),
        (
            lambda: Pipeline([ToDtype(), Cutout(4, value=127)], (3, 8, 8)),
            "Cutout: value is 127.0 and the images' values are 0 to 1; those are allowed. "
            "Pass it in the images' own scale.",
        ),
        (
            lambda: Pipeline([RandomErasing(value="random"), Normalize(MEAN, STD)], (3, 8, 8)),
            "RandomErasing: value is 'random', draws of N(0, 1), and the images are not normalised yet; "
            "that is allowed after Normalize. Put it there, or pass a number.",
        ),
        (
            lambda: Pipeline([ToDtype(), RandomErasing(value="random")], (3, 8, 8)),
            "RandomErasing: value is 'random', draws of N(0, 1), and the images are not normalised yet; "
            "that is allowed after Normalize. Put it there, or pass a number.",
        ),
        (lambda: Cutout(0), "Cutout: size is 0; whole numbers from 1 up are allowed. Pass one of them."),
        (
            lambda: Cutout(2.5),  # type: ignore[arg-type]
            "Cutout: size is 2.5; whole numbers from 1 up are allowed. Pass one of them.",
        ),
        (
            lambda: Cutout(4, value="random"),  # type: ignore[arg-type]
            "Cutout: value is 'random'; a number, or one a channel, is allowed. Pass such.",
        ),
        (
            lambda: Pipeline([Cutout(16)], (3, 6, 8)),
            "Cutout: size is 16 and the images are 6x8; less than twice their side is allowed. Pass a smaller size.",
        ),
    ],
)
def test_mistakes_are_sentences(attempt: Any, sentence: str) -> None:
    assert refusal(attempt) == sentence


def test_noise_may_be_cast_and_cropped(implementation: str) -> None:
    """ToDtype after noise rounds it, and noise may follow geometry that follows Normalize."""
    images = noise_images(6, 3, 12, 12)
    normalize, noise = Normalize(MEAN, STD), RandomErasing(1, value="random")
    pipeline = Pipeline([normalize, noise], (3, 12, 12))
    cast = Pipeline([normalize, noise, ToDtype(torch.float16)], (3, 12, 12))
    assert torch.equal(cast(images, np.arange(6)), pipeline(images, np.arange(6)).half())
    late = [normalize, RandomCrop(12, padding=2, fill=-2), noise]
    before = Pipeline(late, (3, 12, 12))
    after = Pipeline([*late, ToDtype(torch.float16)], (3, 12, 12))
    assert torch.equal(after(images, np.arange(6)), before(images, np.arange(6)).half())


def test_a_box_of_jittered_images_keeps_its_value(implementation: str) -> None:
    images = noise_images(6, 3, 12, 12)
    stack = [ColorJitter(0.5, 0.5), RandomErasing(1, value=77)]
    pipeline = Pipeline(stack, (3, 12, 12))
    params = pipeline.sample(np.arange(6))
    found = pipeline.apply(images, params)
    for i in range(6):
        top, left, height, width = (int(params[1][n][i]) for n in ("top", "left", "height", "width"))
        assert (found[i, :, top : top + height, left : left + width] == 77).all()
