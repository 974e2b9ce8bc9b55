"""packer.augment.geometric: pixel by pixel as NumPy mirrors, with the asked probability."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from packer.augment import (
    AlternatingHorizontalFlip,
    Pipeline,
    RandomHorizontalFlip,
    RandomVerticalFlip,
    Transform,
)
from packer.augment.kinds import Draws
from tests.augment.conftest import assert_unrelated, given, noise_images, one, refusal

FLIPS = [(RandomHorizontalFlip, -1), (RandomVerticalFlip, -2), (AlternatingHorizontalFlip, -1)]


@pytest.mark.parametrize(("flip", "axis"), FLIPS)
@pytest.mark.parametrize("size", [(8, 8), (1, 4), (5, 7), (4, 1), (1, 1), (33, 70)])
def test_the_drawn_images_are_mirrored(
    flip: type[Transform], axis: int, size: tuple[int, int], implementation: str
) -> None:
    for channels in (1, 2, 3, 4):
        images = noise_images(9, channels, *size)
        before = images.clone()
        drawn = np.arange(9) % 3 < 2
        flipped = one(flip(), images).apply(images, given(flip=drawn))
        for image, result, mirrored in zip(images.numpy(), flipped.numpy(), drawn, strict=True):
            np.testing.assert_array_equal(result, np.flip(image, axis) if mirrored else image)
        assert flipped.permute(0, 2, 3, 1).is_contiguous(), channels
        assert torch.equal(images, before), channels


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_floats_keep_every_bit(dtype: torch.dtype, implementation: str) -> None:
    images = noise_images(6, 3, 5, 7, dtype)
    flipped = one(RandomHorizontalFlip(1), images)(images, np.arange(6))
    assert torch.equal(flipped, images.flip(-1))
    assert flipped.dtype == dtype


def test_any_strides_are_taken(implementation: str) -> None:
    images = noise_images(9, 3, 6, 10)
    for some in (images[1:4], images[1:4].contiguous(), images[1:4, :, ::2], images[1:4, ..., 1::3]):
        pipeline = one(RandomVerticalFlip(1), some)
        assert torch.equal(pipeline(some, np.arange(3)), some.flip(-2))


@pytest.mark.parametrize("flip", [RandomHorizontalFlip, RandomVerticalFlip])
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
def test_flips_happen_with_probability_p(flip: type[RandomHorizontalFlip], p: float) -> None:
    rows = np.arange(40_000)
    drawn = flip(p).sample(Draws(rows, 1, 0, 0, "flip"), (3, 8, 8))["flip"]
    assert drawn.dtype == np.bool_
    assert abs(drawn.mean() - p) <= 3.5 * (p * (1 - p) / len(rows)) ** 0.5


def test_flips_of_neighbours_epochs_seeds_and_operations_are_unrelated() -> None:
    flips = Pipeline([RandomHorizontalFlip(), RandomHorizontalFlip(), RandomVerticalFlip()], (3, 8, 8))
    rows = np.arange(40_001)
    first, next_epoch, other_seed = (
        flips.sample(rows, epoch, seed=seed) for epoch, seed in ((0, 0), (1, 0), (0, 1))
    )
    now = first[0]["flip"].numpy()
    assert_unrelated(
        now[:-1], now[1:], *(drawn["flip"].numpy()[:-1] for drawn in (*first[1:], *next_epoch, *other_seed))
    )


def test_alternating_flips_show_every_image_both_ways_in_two_epochs() -> None:
    flips = Pipeline([AlternatingHorizontalFlip()], (3, 8, 8))
    rows = np.arange(40_000)
    epochs = [flips.sample(rows, epoch)[0]["flip"].numpy() for epoch in range(4)]
    np.testing.assert_array_equal(epochs[1], ~epochs[0])
    np.testing.assert_array_equal(epochs[2], epochs[0])
    np.testing.assert_array_equal(epochs[3], epochs[1])
    assert abs(epochs[0].mean() - 0.5) < 3.5 * 0.5 / len(rows) ** 0.5
    assert_unrelated(epochs[0], flips.sample(rows, 0, seed=1)[0]["flip"].numpy())


def test_alternating_flips_alternate_by_row_where_rows_repeat() -> None:
    flips = Pipeline([AlternatingHorizontalFlip(), RandomHorizontalFlip()], (3, 8, 8))
    rows = np.arange(3000) % 100
    places = np.arange(3000)
    alternating, random = (
        flips.sample(rows, 0, counters=places)[part]["flip"].numpy().reshape(-1, 100) for part in range(2)
    )
    assert (alternating == alternating[0]).all()  # 30 repetitions
    assert not (random == random[0]).all(axis=0).any()
    later = flips.sample(rows[::-1], 1, counters=places)[0]["flip"].numpy()[::-1]
    np.testing.assert_array_equal(later[:100], ~alternating[0])


@pytest.mark.parametrize("flip", [RandomHorizontalFlip, RandomVerticalFlip])
@pytest.mark.parametrize("p", [-0.1, 1.5, float("nan"), float("inf"), "0.5", None, True])
def test_what_is_no_probability_is_refused(flip: type[RandomHorizontalFlip], p: float) -> None:
    assert refusal(lambda: flip(p)) == (
        f"{flip.__name__}: p is {p!r}; numbers from 0 to 1 are allowed. Pass one of them."
    )
