"""packer.augment.color: right to the last bits of its dtype, against float64; one sentence a mistake."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from packer.augment import Normalize
from packer.errors import UsageError

MEAN = [0.4914, 0.4822, 0.4465]
STD = [0.2470, 0.2435, 0.2616]
EPSILON = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def every_value(channels: int = 3) -> Tensor:
    """Images uint8 [4, C, 8, 8], channels_last, in which every channel takes every value."""
    values = np.random.default_rng(0).permuted(np.tile(np.arange(256, dtype=np.uint8), (channels, 1)), axis=1)
    return torch.from_numpy(np.ascontiguousarray(values.T).reshape(4, 8, 8, channels)).permute(0, 3, 1, 2)


def reference(images: Tensor, divisor: float) -> Tensor:
    mean, std = (torch.tensor(numbers, dtype=torch.float64).view(1, -1, 1, 1) for numbers in (MEAN, STD))
    return (images.double() / divisor - mean) / std


@pytest.mark.parametrize("dtype", sorted(EPSILON, key=str))
@pytest.mark.parametrize("planes", [False, True])
def test_bytes_are_normalised_in_the_scale_of_0_to_1(dtype: torch.dtype, planes: bool) -> None:
    images = every_value().contiguous() if planes else every_value()
    before = images.clone()
    normalised = Normalize(MEAN, STD, dtype).apply(images, {})
    expected = reference(images, 255)
    # One rounding to the dtype, after a product and a sum in float32.
    allowed = expected.abs() * EPSILON[dtype] + 4 * EPSILON[torch.float32]
    assert ((normalised.double() - expected).abs() <= allowed).all()
    assert normalised.dtype == dtype
    assert normalised.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(images, before)


@pytest.mark.parametrize("given", [torch.float32, torch.float16, torch.float64])
def test_floats_are_taken_as_they_are(given: torch.dtype) -> None:
    images = (every_value().double() / 255).to(given)
    normalised = Normalize(MEAN, STD).apply(images, {})
    torch.testing.assert_close(normalised.double(), reference(images, 1), rtol=0, atol=1e-6)
    assert normalised.dtype == torch.float32


def test_floats_may_have_any_scale() -> None:
    images = every_value(1).float()
    normalised = Normalize([127.5], [127.5]).apply(images, {})
    torch.testing.assert_close(normalised, images / 127.5 - 1, rtol=0, atol=1e-6)


def test_one_object_serves_several_widths_and_number_types() -> None:
    normalize = Normalize(MEAN, STD)
    images = every_value()
    for some in (images, images[..., :5], images.float() / 255, images):
        divisor = 255 if some.dtype == torch.uint8 else 1
        torch.testing.assert_close(
            normalize.apply(some, {}).double(), reference(some, divisor), rtol=0, atol=1e-6
        )


def test_it_draws_nothing() -> None:
    assert Normalize(MEAN, STD).sample(np.arange(4), 1, (3, 8, 8)) == {}


def refusal(mean: list[float], std: list[float], dtype: torch.dtype = torch.float32) -> str:
    with pytest.raises(UsageError) as error:
        Normalize(mean, std, dtype)
    return str(error.value)


def test_mean_and_std_of_different_lengths_are_refused() -> None:
    assert refusal(MEAN, STD[:2]) == (
        "Normalize: mean has 3 numbers and std has 2; as many of each are allowed, at least one. "
        "Pass one a channel."
    )
    assert refusal([], []) == (
        "Normalize: mean has 0 numbers and std has 0; as many of each are allowed, at least one. "
        "Pass one a channel."
    )


def test_a_mean_that_is_no_number_is_refused() -> None:
    assert refusal([float("nan")], [1]) == (
        "Normalize: mean is [nan]; finite numbers are allowed. Pass one a channel."
    )


@pytest.mark.parametrize("std", [0.0, -0.1, float("inf")])
def test_a_std_that_cannot_divide_is_refused(std: float) -> None:
    assert refusal([0.5], [std]) == (
        f"Normalize: std is [{std}]; finite numbers above 0 are allowed. "
        "Pass 1 for a channel that never changes."
    )


def test_an_integer_result_is_refused() -> None:
    assert refusal(MEAN, STD, torch.uint8) == (
        "Normalize: dtype is torch.uint8; torch.float32, torch.float16, torch.bfloat16 are allowed. "
        "Pass one of them."
    )


def test_another_number_of_channels_is_refused() -> None:
    for attempt in (
        lambda: Normalize(MEAN, STD).output_shape((1, 8, 8)),
        lambda: Normalize(MEAN, STD).apply(every_value(1), {}),
    ):
        with pytest.raises(UsageError) as error:
            attempt()
        assert str(error.value) == (
            "Normalize: mean and std have 3 numbers and the images 1 channels; "
            "one number a channel is allowed. Pass as many as there are channels."
        )


def test_images_of_other_integers_are_refused() -> None:
    with pytest.raises(UsageError) as error:
        Normalize(MEAN, STD).apply(every_value().int(), {})
    assert str(error.value) == (
        "Normalize: the images are torch.int32; torch.uint8 and floating point are allowed. "
        "Normalise once, as the last operation."
    )


def test_a_mean_in_the_scale_of_0_to_255_is_refused_for_bytes() -> None:
    with pytest.raises(UsageError) as error:
        Normalize([125.3], [63.0]).apply(every_value(1), {})
    assert str(error.value) == (
        "Normalize: mean is [125.3] and std is [63.0], given in the wrong scale for uint8 images; "
        "numbers up to 1 are allowed. Divide both by 255."
    )
