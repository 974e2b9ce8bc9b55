"""packer.augment.color: right to the last bits of its dtype, against float64; one sentence a mistake."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from packer.augment import (
    ColorJitter,
    Normalize,
    Pipeline,
    RandomErasing,
    RandomHorizontalFlip,
    RandomResizedCrop,
    ToDtype,
)
from tests.augment.conftest import noise_images, one, refusal

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
def test_bytes_are_normalised_in_the_scale_of_0_to_1(
    dtype: torch.dtype, planes: bool, implementation: str
) -> None:
    images = every_value().contiguous() if planes else every_value()
    before = images.clone()
    normalised = one(Normalize(MEAN, STD, dtype), images).apply(images, [{}])
    expected = reference(images, 255)
    # One rounding to the dtype, after a product and a sum in float32.
    allowed = expected.abs() * EPSILON[dtype] + 5e-7
    assert ((normalised.double() - expected).abs() <= allowed).all()
    assert normalised.dtype == dtype
    assert normalised.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(images, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_floats_are_taken_as_they_are(dtype: torch.dtype, implementation: str) -> None:
    images = (every_value().double() / 255).to(dtype)
    normalised = one(Normalize(MEAN, STD), images).apply(images, [{}])
    torch.testing.assert_close(normalised.double(), reference(images, 1), rtol=0, atol=1e-6)
    assert normalised.dtype == torch.float32


@pytest.mark.parametrize("dtype", sorted(EPSILON, key=str))
def test_todtype_divides_bytes_by_255(dtype: torch.dtype, implementation: str) -> None:
    images = every_value()
    found = one(ToDtype(dtype), images).apply(images, [{}])
    expected = images.double() / 255
    assert (
        (found.double() - expected).abs() <= expected * (EPSILON[dtype] + 2 * EPSILON[torch.float32])
    ).all()
    assert found.max() == 1
    assert found.min() == 0
    floats = expected.float()
    assert torch.equal(one(ToDtype(), floats).apply(floats, [{}]), floats)


@pytest.mark.parametrize("transforms", [(ToDtype(),), (ToDtype(torch.float16),), ()])
def test_normalising_after_todtype_is_normalising(transforms: Any, implementation: str) -> None:
    images = every_value()
    pipeline = Pipeline([*transforms, Normalize(MEAN, STD)], (3, 8, 8))
    found = pipeline(images, np.arange(4))
    torch.testing.assert_close(found.double(), reference(images, 255), rtol=0, atol=1e-6)


def test_todtype_after_normalize_only_rounds(implementation: str) -> None:
    images = every_value()
    both = Pipeline([Normalize(MEAN, STD), ToDtype(torch.bfloat16)], (3, 8, 8))
    alone = Pipeline([Normalize(MEAN, STD)], (3, 8, 8))
    assert torch.equal(both(images, np.arange(4)), alone(images, np.arange(4)).bfloat16())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_the_rounding_of_the_float32_result(dtype: torch.dtype, implementation: str) -> None:
    images = noise_images(16, 3, 24, 20)
    made = []
    for result in (torch.float32, dtype):
        stack = [
            RandomResizedCrop(16),
            RandomHorizontalFlip(),
            ColorJitter(0.4, 0.4, 0.4, 0.1),
            Normalize(MEAN, STD, result),
            RandomErasing(value="random"),
        ]
        pipeline = Pipeline(stack, (3, 24, 20))
        assert pipeline.output_dtype == result
        made.append(pipeline(images, np.arange(16)))
    assert torch.equal(made[0].to(dtype), made[1])


def test_they_draw_nothing() -> None:
    assert Pipeline([ToDtype(), Normalize(MEAN, STD)], (3, 8, 8)).sample(np.arange(4)) == [{}, {}]


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_one_number_stands_for_all_channels(channels: int, implementation: str) -> None:
    images = noise_images(3, channels)
    found = one(Normalize(0.5, 0.25), images)(images, np.arange(3))
    expected = one(Normalize([0.5] * channels, [0.25] * channels), images)(images, np.arange(3))
    assert torch.equal(found, expected)
    mixed = Normalize([0.5] * channels, 0.25)
    assert torch.equal(one(mixed, images)(images, np.arange(3)), expected)


@pytest.mark.parametrize(
    "wrap",
    [
        torch.tensor,
        np.array,
        lambda numbers: np.array(numbers, np.float32),
        lambda numbers: torch.tensor(numbers).view(3, 1, 1),
        lambda numbers: [np.float64(number) for number in numbers],
    ],
)
def test_tensors_and_arrays_are_numbers(wrap: Any) -> None:
    made = Normalize(wrap(MEAN), wrap(STD))
    np.testing.assert_allclose(made.mean, MEAN, rtol=1e-7)
    np.testing.assert_allclose(made.std, STD, rtol=1e-7)
    assert all(type(number) is float for number in made.mean + made.std)
    Pipeline([Normalize(torch.tensor(0.5), np.float32(0.25))], (3, 8, 8))


@pytest.mark.parametrize("word", ["float32", "float16", "bfloat16"])
def test_dtypes_may_be_words(word: str) -> None:
    for made in (ToDtype(word), ToDtype(f"torch.{word}"), Normalize(MEAN, STD, word)):
        assert made.dtype == getattr(torch, word)


DTYPES = "torch.float32, torch.float16, torch.bfloat16 are allowed. Pass one of them."


@pytest.mark.parametrize(
    ("attempt", "sentence"),
    [
        (
            lambda: Normalize(MEAN, STD[:2]),
            "Normalize: mean and std have 3 and 2 numbers; as many of each are allowed. Pass one a channel.",
        ),
        (
            lambda: Normalize([], []),
            "Normalize: mean is []; a number, or one a channel, is allowed. Pass such.",
        ),
        (
            lambda: Normalize([float("nan")], [1]),
            "Normalize: mean is [nan]; a number, or one a channel, is allowed. Pass such.",
        ),
        (
            lambda: Normalize([0.5], [0.0]),
            "Normalize: std is [0.0]; finite numbers above 0 are allowed. Pass 1 for a channel that never changes.",
        ),
        (
            lambda: Normalize([0.5], [-0.1]),
            "Normalize: std is [-0.1]; finite numbers above 0 are allowed. Pass 1 for a channel that never changes.",
        ),
        (
            lambda: Normalize([0.5], [float("inf")]),
            "Normalize: std is [inf]; a number, or one a channel, is allowed. Pass such.",
        ),
        (lambda: Normalize(MEAN, STD, torch.uint8), f"Normalize: dtype is torch.uint8; {DTYPES}"),
        (lambda: Normalize(MEAN, STD, torch.float64), f"Normalize: dtype is torch.float64; {DTYPES}"),
        (lambda: ToDtype(torch.int64), f"ToDtype: dtype is torch.int64; {DTYPES}"),
        (
            lambda: ToDtype(scale=False),
            "ToDtype: scale is False; True is allowed. Pass scale=True, for values from 0 to 1.",
        ),
        (
            lambda: Pipeline([Normalize(MEAN, STD)], (1, 8, 8)),
            "Normalize: mean and std have 3 numbers and the images 1 channels; one number a channel is allowed. "
            "Pass as many as there are channels.",
        ),
        (
            lambda: Pipeline([Normalize([125.3], [63.0])], (1, 8, 8)),
            "Normalize: mean is [125.3] and std is [63.0]; numbers up to 1 are allowed. "
            "Divide those of the scale of 0 to 255 by 255; to undo a Normalize, compute x * std + mean yourself.",
        ),
        (
            lambda: Pipeline([Normalize([-2.118], [4.367])], (1, 8, 8), dtype=torch.float32),
            "Normalize: mean is [-2.118] and std is [4.367]; numbers up to 1 are allowed. "
            "Divide those of the scale of 0 to 255 by 255; to undo a Normalize, compute x * std + mean yourself.",
        ),
        (
            lambda: Normalize(None, STD),  # type: ignore[arg-type]
            "Normalize: mean is None; a number, or one a channel, is allowed. Pass such.",
        ),
        (
            lambda: Normalize(0.5, "0.5"),  # type: ignore[arg-type]
            "Normalize: std is '0.5'; a number, or one a channel, is allowed. Pass such.",
        ),
        (
            lambda: Normalize(["0.5"], 0.5),  # type: ignore[list-item]
            "Normalize: mean is ['0.5']; a number, or one a channel, is allowed. Pass such.",
        ),
        (
            lambda: Normalize(0.5, 0),
            "Normalize: std is [0.0]; finite numbers above 0 are allowed. Pass 1 for a channel that never changes.",
        ),
        (lambda: ToDtype("float64"), f"ToDtype: dtype is 'float64'; {DTYPES}"),
        (
            lambda: Normalize(MEAN, STD, False),  # type: ignore[arg-type]
            f"Normalize: dtype is False; {DTYPES}",
        ),
        (
            lambda: Pipeline([Normalize([0.5], [0.2]), Normalize([0.5], [0.2])], (1, 8, 8)),
            "Normalize: the images are normalised already; once is allowed. Leave one Normalize out.",
        ),
        (
            lambda: Pipeline(
                [Normalize([0.5], [0.2]), RandomHorizontalFlip(), Normalize([0.5], [0.2])], (1, 8, 8)
            ),
            "Normalize: the images are normalised already; once is allowed. Leave one Normalize out.",
        ),
    ],
)
def test_mistakes_are_sentences(attempt: Any, sentence: str) -> None:
    assert refusal(attempt) == sentence
