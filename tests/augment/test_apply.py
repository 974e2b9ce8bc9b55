"""RandomApply: all or nothing, image by image, whatever its transforms consist of."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from packer.augment import (
    CenterCrop,
    ColorJitter,
    CutMix,
    Cutout,
    GaussianBlur,
    MixUp,
    Normalize,
    Pipeline,
    RandAugment,
    RandomAdjustSharpness,
    RandomAffine,
    RandomApply,
    RandomAutocontrast,
    RandomChoice,
    RandomEqualize,
    RandomErasing,
    RandomHorizontalFlip,
    RandomInvert,
    RandomPosterize,
    RandomResizedCrop,
    RandomRotation,
    ToDtype,
    Transform,
)
from tests.augment.conftest import assert_unrelated, noise_images, refusal, smooth_images

SHAPE = (3, 32, 32)
KINDS: list[Sequence[Transform]] = [
    [RandomRotation((30, 60)), RandomAffine(0, (0.3, 0.3))],
    [RandomHorizontalFlip(1)],
    [ColorJitter((1.4, 1.8)), RandomInvert(1)],
    [Cutout(12, 255), RandomErasing(1, value=3)],
    [GaussianBlur(5, (1, 2))],
    [RandAugment(2, 30)],
    [GaussianBlur(3, 2.0), RandomRotation(90), RandomInvert(1), Cutout(8)],
]


@pytest.mark.parametrize("transforms", KINDS)
def test_an_image_gets_all_of_them_or_stays_to_the_bit(
    transforms: Sequence[Transform], implementation: str
) -> None:
    images = smooth_images(60)
    pipeline = Pipeline([RandomApply(transforms, 0.5)], SHAPE)
    params = pipeline.sample(np.arange(60))
    chosen = params[0]["apply"].clone()
    assert 15 < int(chosen.sum()) < 45
    for drawn in params[1:]:
        assert torch.equal(drawn["apply"], chosen)
    made = pipeline.apply(images, params)
    assert torch.equal(made[~chosen], images[~chosen])
    for drawn in params:
        drawn["apply"][:] = True
    assert torch.equal(made[chosen], pipeline.apply(images, params)[chosen])


def test_what_stands_around_it_is_applied_to_all() -> None:
    images = noise_images(50, 3, 32, 32)
    pipeline = Pipeline([RandomHorizontalFlip(1), RandomApply([RandomInvert(1)], 0.4), ToDtype()], SHAPE)
    params = pipeline.sample(np.arange(50))
    expected = images.flip(3).float() / 255
    chosen = params[1]["apply"]
    expected[chosen] = 1 - expected[chosen]
    torch.testing.assert_close(pipeline.apply(images, params), expected, rtol=0, atol=1e-6)


def test_a_pipeline_of_all_kinds_survives_pickling() -> None:
    images = noise_images(12, 3, 32, 32)
    kinds = [transform for transforms in KINDS for transform in transforms]
    more = [
        RandomAutocontrast(),
        RandomEqualize(),
        RandomAdjustSharpness(2),
        RandomPosterize(3),
        CutMix(),
        MixUp(),
    ]
    pipeline = Pipeline([RandomApply(kinds, 0.7), *more], SHAPE)
    copied = pickle.loads(pickle.dumps(pipeline))
    assert torch.equal(copied(images, np.arange(12)), pipeline(images, np.arange(12)))


@pytest.mark.parametrize("p", [0.0, 0.2, 0.8, 1.0])
def test_p_is_the_probability(p: float) -> None:
    drawn = Pipeline([RandomApply([RandomInvert(1)], p)], SHAPE).sample(np.arange(20_000))[0]["apply"]
    assert abs(float(drawn.double().mean()) - p) <= 4 * np.sqrt(p * (1 - p) / 20_000)


def test_two_of_them_decide_by_themselves_and_anew_each_epoch() -> None:
    pipeline = Pipeline([RandomApply([RandomInvert(1)], 0.5)] * 2, SHAPE)
    first, second = (drawn["apply"].numpy() for drawn in pipeline.sample(np.arange(5000)))
    again = pipeline.sample(np.arange(5000), epoch=1)[0]["apply"].numpy()
    assert_unrelated(first, second, again)


def test_masks_of_spared_images_stay() -> None:
    pipeline = Pipeline([RandomApply([RandomHorizontalFlip(1)], 0.5)], SHAPE)
    masks = torch.arange(32).expand(20, 32, 32)
    params = pipeline.sample(np.arange(20))
    moved = pipeline.apply_masks(masks, params)
    for mask, chosen, source in zip(moved, params[0]["apply"], masks, strict=True):
        assert torch.equal(mask, source.flip(1) if chosen else source)


@pytest.mark.parametrize("transform", [ToDtype(), Normalize([0.5], [0.5]), RandomApply([])])
def test_what_cannot_be_left_out_is_refused(transform: Transform) -> None:
    assert refusal(lambda: RandomApply([RandomInvert(), transform])) == (
        f"RandomApply: transforms is [{RandomInvert()!r}, {transform!r}]; {type(transform).__name__} cannot be left out for an "
        "image. Put it outside."
    )


def test_transforms_that_change_the_size_are_refused() -> None:
    assert refusal(lambda: Pipeline([RandomApply([CenterCrop(16)])], SHAPE)) == (
        "RandomApply: CenterCrop makes images [3, 16, 16] of [3, 32, 32]; transforms that keep the size are allowed. "
        "Put it outside."
    )


def test_a_p_above_1_is_refused() -> None:
    assert refusal(lambda: RandomApply([], 1.5)) == (
        "RandomApply: p is 1.5; numbers from 0 to 1 are allowed. Pass one of them."
    )


def test_a_spared_image_is_cropped_as_if_no_turn_stood_before_it() -> None:
    images = noise_images(12, *SHAPE)
    crop = RandomResizedCrop(20)
    both = Pipeline([RandomApply([RandomRotation(10, interpolation="bilinear")], 0.5), crop], SHAPE)
    params = both.sample(np.arange(12))
    spared = ~params[0]["apply"]
    assert 0 < spared.sum() < 12
    alone = Pipeline([crop], SHAPE).apply(images, [params[1]])
    assert torch.equal(both.apply(images, params)[spared], alone[spared])


def frames(transforms: list[Transform], spared: str) -> None:
    """Images that a first, gated, operation spares are treated by the second as if it stood alone: pixels, masks, boxes."""
    images = torch.full((64, *SHAPE), 200, dtype=torch.uint8)
    masks = torch.full((64, *SHAPE[1:]), 9)
    boxes = torch.tensor([[[4.0, 4.0, 20.0, 20.0]]]).repeat(64, 1, 1)
    both = Pipeline(transforms, SHAPE, mask_fill=3)
    params = both.sample(np.arange(64))
    rest = ~params[0]["apply"]
    assert 10 < rest.sum() < 54
    last = transforms[1] if spared == "apply" else transforms[0].transforms[1]  # type: ignore[attr-defined]
    alone = Pipeline([last], SHAPE, mask_fill=3)
    own = [{name: p for name, p in params[-1].items() if name != "apply"}]
    assert torch.equal(both.apply(images, params)[rest], alone.apply(images, own)[rest])
    assert torch.equal(both.apply_masks(masks, params)[rest], alone.apply_masks(masks, own)[rest])
    assert torch.equal(both.apply_boxes(boxes, params)[rest], alone.apply_boxes(boxes, own)[rest])
    assert (both.apply(images, params)[rest] == 0).any()


@pytest.mark.parametrize(
    "second",
    [RandomAffine(0, translate=(0.3, 0.3)), RandomRotation(30), RandomAffine(20, scale=(0.5, 0.8))],
    ids=["moved", "turned", "shrunk"],
)
def test_a_spared_image_keeps_its_edges(second: Transform) -> None:
    frames([RandomApply([RandomRotation(40)]), second], "apply")
    frames([RandomChoice([RandomRotation(40), second])], "choice")
