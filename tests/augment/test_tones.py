"""RandomSolarize, RandomPosterize and RandomInvert against Pillow's, to the bit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch import Tensor

from packer.augment import Pipeline, RandomInvert, RandomPosterize, RandomSolarize, ToDtype, Transform
from tests.augment.conftest import refusal


def every_value(channels: int) -> Tensor:
    """One image in which every channel takes every value: uint8 [1, C, 16, 16]."""
    values = np.random.default_rng(0).permuted(np.tile(np.arange(256, dtype=np.uint8), (channels, 1)), axis=1)
    return torch.from_numpy(np.ascontiguousarray(values.T).reshape(1, 16, 16, channels)).permute(0, 3, 1, 2)


Pillow = Callable[[Image.Image], Image.Image]
CASES: list[tuple[Transform, Pillow]] = [
    *((RandomSolarize(t, 1), lambda image, t=t: ImageOps.solarize(image, t)) for t in (0, 1, 128, 255)),
    *((RandomPosterize(b, 1), lambda image, b=b: ImageOps.posterize(image, b)) for b in range(1, 9)),
    (RandomInvert(1), ImageOps.invert),
]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("transform", "pillow"), CASES)
def test_every_value_becomes_pillows(
    transform: Transform, pillow: Pillow, channels: int, implementation: str
) -> None:
    image = every_value(channels)
    made = Pipeline([transform], (channels, 16, 16))(image, np.arange(1))
    expected = np.asarray(pillow(Image.fromarray(image[0].permute(1, 2, 0).numpy().squeeze())))
    assert np.array_equal(made[0].permute(1, 2, 0).numpy().squeeze(), expected)


def test_no_bits_leave_black() -> None:
    assert Pipeline([RandomPosterize(0, 1)], (3, 16, 16))(every_value(3), np.arange(1)).max() == 0


def test_floats_from_0_to_1_are_inverted_and_solarized_in_their_scale() -> None:
    image = every_value(3)
    for operation in (RandomInvert(1), RandomSolarize(0.5, 1)):
        made = Pipeline([ToDtype(), operation], (3, 16, 16))(image, np.arange(1))
        source = image.double() / 255
        expected = (
            1 - source
            if isinstance(operation, RandomInvert)
            else torch.where(source >= 0.5, 1 - source, source)
        )
        torch.testing.assert_close(made.double(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("transform", [RandomSolarize(0, 0.25), RandomPosterize(0, 0.25), RandomInvert(0.25)])
def test_p_decides_image_by_image(transform: Transform) -> None:
    images = torch.full((400, 3, 4, 4), 40, dtype=torch.uint8)
    pipeline = Pipeline([transform], (3, 4, 4))
    params = pipeline.sample(np.arange(400))
    chosen = params[0]["change"]
    assert 70 < int(chosen.sum()) < 130
    made = pipeline.apply(images, params)
    assert (made[~chosen] == 40).all()
    assert (made[chosen] != 40).all()


@pytest.mark.parametrize("bits", [-1, 9, 2.5, True])
def test_impossible_bits_are_refused(bits: int) -> None:
    assert refusal(lambda: RandomPosterize(bits)) == (
        f"RandomPosterize: bits is {bits!r}; whole numbers from 0 to 8 are allowed. Pass one of them."
    )


def test_an_impossible_threshold_is_refused() -> None:
    assert refusal(lambda: RandomSolarize(256)) == (
        "RandomSolarize: threshold is 256; numbers from 0 to 255 are allowed. Pass one of them."
    )


def test_floating_point_images_have_no_bits() -> None:
    assert refusal(lambda: Pipeline([ToDtype(), RandomPosterize(4)], (3, 16, 16))) == (
        "RandomPosterize: the images are torch.float32; torch.uint8 is allowed. Put it before ToDtype and Normalize."
    )


def test_a_threshold_beyond_the_images_values_is_refused() -> None:
    assert refusal(lambda: Pipeline([ToDtype(), RandomSolarize(128)], (3, 16, 16))) == (
        "RandomSolarize: threshold is 128 and the images' values are 0 to 1; those are allowed. "
        "Pass it in the images' own scale."
    )
    Pipeline([RandomSolarize(128)], (3, 16, 16))
    Pipeline([RandomSolarize(1)], (3, 16, 16), dtype=torch.float32)


@pytest.mark.parametrize("transform", [RandomSolarize(100, 1), RandomPosterize(3, 1), RandomInvert(1)])
def test_a_fourth_channel_is_kept(transform: Transform) -> None:
    image = every_value(4)
    made = Pipeline([transform], (4, 16, 16))(image, np.arange(1))
    assert torch.equal(made[:, 3], image[:, 3])
    assert torch.equal(made[:, :3], Pipeline([transform], (3, 16, 16))(image[:, :3], np.arange(1)))
    assert not torch.equal(made[:, :3], image[:, :3])
