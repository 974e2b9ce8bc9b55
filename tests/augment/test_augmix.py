"""AugMix: torchvision's draws, and its mixture of what its operations make; masks, boxes and points are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from packer.augment import AugMix, Normalize, Pipeline, RandomApply, RandomHorizontalFlip, ToDtype, parse
from packer.augment.policies import NUMBER
from packer.augment.transform import Draws
from tests.augment.conftest import assert_alike, assert_fair, one, refusal, smooth_images

NAMES = list(NUMBER)


def drawn(count: int = 20_000, **options: Any) -> dict[str, NDArray[Any]]:
    return dict(AugMix(**options).sample(Draws(np.arange(count), 1, 0, 0, "AugMix"), (3, 90, 120)))


@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        ({}, 0.35),
        ({"interpolation": "nearest", "severity": 10}, 0.35),
        ({"chain_depth": 2, "mixture_width": 2, "all_ops": False}, 0.35),
        ({"mixture_width": 1, "chain_depth": 1, "alpha": 0.3, "fill": 128}, 0.35),
    ],
)
def test_images_are_torchvisions(options: dict[str, Any], allowed: float, torchvision: Any) -> None:
    """The same draws: each chain by torchvision, one operation after the other, and the mixture in float64."""
    images = smooth_images(40, 3, 40, 48)
    before = images.clone()
    pipeline = one(AugMix(**options), images)
    params = pipeline.sample(np.arange(40))
    found = pipeline.apply(images, params)
    theirs = torchvision.AugMix(**options)
    expected = torch.empty(40, 3, 40, 48, dtype=torch.float64)
    for i, image in enumerate(images):
        share = params[0]["share"][i]
        expected[i] = share[0] * image
        for chain in range(len(share) - 1):
            made = image
            for number, m in zip(
                params[0]["operation"][i, chain].tolist(),
                params[0]["magnitude"][i, chain].tolist(),
                strict=True,
            ):
                made = theirs._apply_image_or_video_transform(
                    made, NAMES[number], m, theirs.interpolation, theirs._fill
                )
            expected[i] += share[chain + 1] * made
    difference = (found.double() - expected).abs()
    assert difference.mean() < allowed  # half a level is rounded away: 0.25 of it
    assert difference.flatten(1).median(1).values.max() < 1.5
    assert torch.equal(images, before)
    assert found.is_contiguous(memory_format=torch.channels_last)


def test_draws_are_torchvisions(torchvision: Any) -> None:
    """Shares, depths, operations, strengths and signs, each as torchvision's class draws them from its own tables."""
    theirs = torchvision.AugMix()
    params = drawn()
    operation, magnitude, share = params["operation"], params["magnitude"], params["share"]
    assert operation.shape == magnitude.shape == (20_000, 3, 3)
    torch.manual_seed(0)
    own = torch._sample_dirichlet(torch.ones(20_000, 2))
    each = torch._sample_dirichlet(torch.ones(20_000, 3)) * own[:, 1:]
    assert_alike(share[:, 0], own[:, 0].numpy())
    for chain in range(3):
        assert_alike(share[:, 1 + chain], each[:, chain].numpy())
    np.testing.assert_allclose(share.sum(1), 1, rtol=1e-12)
    depth = (operation != 0).sum(2)
    assert_fair(np.bincount(depth.ravel(), minlength=4)[1:])
    assert ((operation != 0) == (np.arange(3) < depth[..., None])).all()  # Identity after the end alone
    assert set(NAMES) - {"Identity", "Invert"} == set(theirs._AUGMENTATION_SPACE)
    assert_fair(np.bincount(operation[operation != 0], minlength=14)[1:14])
    for name, (made, signed) in theirs._AUGMENTATION_SPACE.items():
        mine = magnitude[operation == NUMBER[name]]
        table = made(10, 90, 120)
        strengths = np.zeros(3) if table is None else table[:3].double().numpy()
        assert np.isin(np.abs(mine).round(6), strengths.round(6)).all(), name
        if len(set(strengths)) == 3:
            assert_fair((np.abs(mine)[:, None].round(6) == strengths.round(6)).sum(0))
        if signed:
            assert_fair(np.array([(mine < 0).sum(), (mine > 0).sum()]))
        else:
            assert (mine >= 0).all()


@pytest.mark.parametrize("alpha", [0.2, 3.0])
def test_shares_follow_alpha(alpha: float) -> None:
    share = drawn(alpha=alpha, mixture_width=2)["share"]
    torch.manual_seed(1)
    own = torch._sample_dirichlet(torch.full((20_000, 2), alpha, dtype=torch.float64))
    mixed = torch._sample_dirichlet(torch.full((20_000, 2), alpha, dtype=torch.float64)) * own[:, 1:]
    assert_alike(share[:, 0], own[:, 0].numpy())
    assert_alike(share[:, 2], mixed[:, 1].numpy())


def test_a_depth_a_width_and_fewer_operations_are_kept() -> None:
    params = drawn(500, chain_depth=4, mixture_width=2, all_ops=False)
    assert params["operation"].shape == (500, 2, 4)
    found = {NAMES[n] for n in np.unique(params["operation"])}
    assert found == {
        "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Posterize", "Solarize", "AutoContrast", "Equalize",
    }  # fmt: skip
    assert params["share"].shape == (500, 3)


def test_an_image_of_chains_that_change_nothing_stays_to_the_bit() -> None:
    """Where torchvision, which rounds down, may make each value one less."""
    images = smooth_images(30, 4)
    pipeline = one(AugMix(), images)
    params = pipeline.sample(np.arange(30))
    params[0]["operation"].zero_()
    params[0]["magnitude"].zero_()
    assert torch.equal(pipeline.apply(images, params), images)


def test_each_image_of_a_batch_gets_what_it_alone_would_get() -> None:
    images = smooth_images(24)
    rows = np.arange(500, 524)
    gated = [RandomHorizontalFlip(), RandomApply([AugMix()], 0.7), Normalize(0.5, 0.5)]
    pipeline = Pipeline(gated, (3, 32, 32), seed=4)
    assert pipeline.stages == ("pass", "AugMix", "pass")
    params = pipeline.sample(rows)
    together = pipeline.apply(images, params)
    for i in range(24):
        torch.testing.assert_close(
            pipeline(images[i : i + 1], rows[i : i + 1])[0], together[i], rtol=0, atol=1e-6
        )
    spared = ~params[1]["apply"]
    assert 0 < spared.sum() < 24
    plain = Pipeline([gated[0], gated[2]], (3, 32, 32), seed=4).apply(images, [params[0], {}])
    assert torch.equal(together[spared], plain[spared])


def test_one_transform_serves_images_of_several_shapes() -> None:
    mix = AugMix()
    for channels, side in ((3, 24), (1, 16), (4, 32)):
        images = smooth_images(4, channels, side, side)
        assert one(mix, images)(images, np.arange(4)).shape == images.shape


SENTENCE = (
    "AugMix: there are {}, and they cannot follow a mixture of copies that were moved apart; images and labels are allowed. "
    "Use RandAugment, or pass none."
)


def test_masks_boxes_and_points_are_refused_and_labels_stay() -> None:
    pipeline = Pipeline([AugMix()], (3, 16, 16))
    params = pipeline.sample(np.arange(2))
    assert refusal(lambda: pipeline.apply_masks(torch.zeros(2, 16, 16), params)) == SENTENCE.format("masks")
    moved = SENTENCE.format("boxes and points")
    assert refusal(lambda: pipeline.apply_boxes(torch.zeros(2, 1, 4), params)) == moved
    assert refusal(lambda: pipeline.apply_keypoints(torch.zeros(2, 1, 2), params)) == moved
    labels = torch.tensor([3, 4])
    assert pipeline.apply_labels(labels, params) is labels


def test_the_text_names_it() -> None:
    (made,) = parse("AugMix(severity=5, all_ops=False)")
    assert isinstance(made, AugMix)
    assert (made.severity, made.all_ops) == (5, False)


@pytest.mark.parametrize(
    ("attempt", "sentence"),
    [
        (lambda: AugMix(11), "severity is 11; whole numbers from 1 to 10 are allowed. Pass one of them."),
        (
            lambda: AugMix(mixture_width=0),
            "mixture_width is 0; whole numbers from 1 up are allowed. Pass one of them.",
        ),
        (lambda: AugMix(alpha=0), "alpha is 0; numbers from 0.001 up are allowed. Pass one of them."),
        (
            lambda: Pipeline([AugMix(fill=300)], (3, 8, 8)),
            "fill is 300.0 and the images' values are 0 to 255; those are allowed. Pass it in the images' own scale.",
        ),
        (
            lambda: Pipeline([ToDtype(), AugMix()], (3, 8, 8)),
            "the images are torch.float32; torch.uint8 is allowed. Put it before ToDtype and Normalize.",
        ),
        (
            lambda: Pipeline([AugMix()], (2, 8, 8)),
            "the images have 2 channels; 1, 3 and 4 are allowed. Convert with channels= gray, rgb or rgba.",
        ),
    ],
)
def test_mistakes_are_sentences(attempt: Any, sentence: str) -> None:
    assert refusal(attempt) == f"AugMix: {sentence}"
