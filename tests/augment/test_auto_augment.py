"""AutoAugment: torchvision's pairs, chances and strengths, and what torchvision's operations make of them."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from packer.augment import AutoAugment, Normalize, Pipeline, RandomApply, ToDtype, parse
from packer.augment.auto_augment import POLICIES
from packer.augment.policies import NUMBER
from tests.augment.conftest import assert_fair, one, refusal, smooth_images

NAMES = list(NUMBER)
SIGNED = (
    "ShearX",
    "ShearY",
    "TranslateX",
    "TranslateY",
    "Rotate",
    "Brightness",
    "Color",
    "Contrast",
    "Sharpness",
)


def drawn(policy: str, count: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    params = Pipeline([AutoAugment(policy)], (3, 100, 200), seed=2).sample(np.arange(count))[0]
    return params["operation"].numpy(), params["magnitude"].numpy()


@pytest.mark.parametrize("policy", POLICIES)
def test_pairs_chances_and_strengths_are_torchvisions(policy: str, torchvision: Any) -> None:
    """Every outcome, with the sign of its magnitudes, is as frequent as torchvision's table makes it."""
    theirs = torchvision.AutoAugment(torchvision.AutoAugmentPolicy(policy))
    count = 60_000
    expected: Counter[Any] = Counter()
    for pair in theirs._policies:
        outcomes: list[tuple[Any, float]] = [((), count / len(theirs._policies))]
        for name, share, strength in pair:
            made, signed = theirs._AUGMENTATION_SPACE[name]
            table = made(10, 100, 200)
            m = 0.0 if table is None else float(table[strength])
            signs = {round(m, 5), round(-m, 5)} if signed else {round(m, 5)}
            here = [((name, m), share / len(signs)) for m in signs] + [(("Identity", 0.0), 1 - share)]
            outcomes = [((*done, mine), p * q) for done, p in outcomes for mine, q in here if q > 0]
        for outcome, share in outcomes:
            expected[outcome] += share
    operation, magnitude = drawn(policy, count)
    found = Counter(
        tuple((NAMES[o], round(float(m), 5) + 0.0) for o, m in zip(*row, strict=True))
        for row in zip(operation, magnitude, strict=True)
    )
    assert set(found) <= set(expected)
    rare = sum(share for share in expected.values() if share < 10)
    assert rare < 30
    often = [key for key, share in expected.items() if share >= 10]
    assert_fair(np.array([found[key] for key in often]), np.array([expected[key] for key in often]))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
def test_images_are_torchvisions(policy: str, interpolation: str, torchvision: Any) -> None:
    """Each pair of the policy, both operations applied, one after the other by torchvision."""
    theirs = torchvision.AutoAugment(torchvision.AutoAugmentPolicy(policy), interpolation)
    pairs = theirs._policies
    images = smooth_images(len(pairs), 3, 40, 48)
    operation = torch.tensor([[NUMBER[name] for name, _, _ in pair] for pair in pairs])
    magnitude = torch.zeros(len(pairs), 2, dtype=torch.float64)
    expected = []
    for i, pair in enumerate(pairs):
        image = images[i]
        for slot, (name, _, strength) in enumerate(pair):
            table = theirs._AUGMENTATION_SPACE[name][0](10, 40, 48)
            m = 0.0 if table is None else float(table[strength])
            if name in SIGNED and (i + slot) % 2:
                m = -m
            magnitude[i, slot] = m
            image = theirs._apply_image_or_video_transform(image, name, m, theirs.interpolation, theirs._fill)
        expected.append(image)
    pipeline = one(AutoAugment(policy, interpolation), images)
    found = pipeline.apply(images, [{"operation": operation, "magnitude": magnitude}])
    difference = (found.int() - torch.stack(expected).int()).abs().double()
    # A level by which roundings differ becomes some where Equalize follows; nearest pixels may be the neighbours.
    assert difference.flatten(1).mean(1).max() < 1.5
    assert difference.mean() < 0.4
    assert difference.flatten(1).median(1).values.max() <= 1


def test_what_is_left_out_leaves_every_bit() -> None:
    images = smooth_images(300)
    pipeline = one(AutoAugment("imagenet"), images)
    params = pipeline.sample(np.arange(300))
    still = (params[0]["operation"] == 0).all(1)
    assert 5 < int(still.sum()) < 100
    made = pipeline.apply(images, params)
    assert torch.equal(made[still], images[still])
    assert (made[~still] != images[~still]).flatten(1).any(1).double().mean() > 0.9


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_invert_keeps_a_fourth_channel(channels: int) -> None:
    images = smooth_images(3, channels)
    params = {
        "operation": torch.tensor([[NUMBER["Invert"], 0]] * 3),
        "magnitude": torch.zeros(3, 2, dtype=torch.float64),
    }
    made = one(AutoAugment("svhn"), images).apply(images, [params])
    assert torch.equal(made[:, :3], 255 - images[:, :3])
    assert torch.equal(made[:, 3:], images[:, 3:])


def test_masks_boxes_and_points_follow() -> None:
    masks = torch.arange(48 * 48).view(1, 48, 48)
    pipeline = Pipeline([AutoAugment("cifar10")], (3, 48, 48))
    numbers = torch.tensor([[NUMBER["TranslateX"], NUMBER["Invert"]]])
    params = [{"operation": numbers, "magnitude": torch.tensor([[7.9, 0.0]], dtype=torch.float64)}]
    assert torch.equal(pipeline.apply_masks(masks, params)[:, :, 7:], masks[:, :, :-7])
    boxes = pipeline.apply_boxes(torch.tensor([[[5.0, 6.0, 20.0, 30.0]]]), params)
    torch.testing.assert_close(boxes, torch.tensor([[[12.0, 6.0, 27.0, 30.0]]]))
    points = pipeline.apply_keypoints(torch.tensor([[[5.0, 6.0], [45.0, 6.0]]]), params)
    torch.testing.assert_close(points, torch.tensor([[[12.0, 6.0], [math.nan, math.nan]]]), equal_nan=True)


def test_each_image_of_a_batch_gets_what_it_alone_would_get() -> None:
    images = smooth_images(40)
    rows = np.arange(500, 540)
    pipeline = Pipeline([RandomApply([AutoAugment()], 0.8), Normalize(0.5, 0.5)], (3, 32, 32), seed=4)
    together = pipeline(images, rows)
    for i in range(40):
        assert torch.equal(pipeline(images[i : i + 1], rows[i : i + 1])[0], together[i])


def test_the_text_names_it_and_torchvisions_policies_are_understood(torchvision: Any) -> None:
    (made,) = parse("AutoAugment('svhn', 'bilinear', fill=9)")
    assert isinstance(made, AutoAugment)
    assert (made.policy, made.interpolation, made.fill) == ("svhn", "bilinear", 9)
    assert AutoAugment(torchvision.AutoAugmentPolicy.CIFAR10).policy == "cifar10"


def test_mistakes_are_sentences() -> None:
    assert refusal(lambda: AutoAugment("mnist")) == (
        "AutoAugment: policy is 'mnist'; 'imagenet', 'cifar10', 'svhn' are allowed. Pass one of them."
    )
    assert refusal(lambda: Pipeline([ToDtype(), AutoAugment()], (3, 8, 8))) == (
        "AutoAugment: the images are torch.float32; torch.uint8 is allowed. Put it before ToDtype and Normalize."
    )
