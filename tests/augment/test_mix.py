"""MixUp and CutMix: proportions, partners, rectangles, images, masks and labels."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from packer.augment import CutMix, MixUp, Normalize, Pipeline, RandomHorizontalFlip, mixing
from tests.augment.conftest import assert_fair, noise_images, refusal

SHAPE = (3, 20, 26)


def images_of(count: int) -> Tensor:
    return noise_images(count, 3, 20, 26)


def partners_of(drawn: Mapping[str, Tensor]) -> list[int]:
    """Whom each is mixed with, found by hand: whoever comes before it, by the drawn fractions; the last before the first."""
    fractions = drawn["partner"].float().tolist()
    order = sorted(range(len(fractions)), key=lambda i: (fractions[i], i))
    return [order[order.index(i) - 1] for i in range(len(order))]


def lam_of(alpha: float, count: int = 20_000) -> NDArray[np.float64]:
    drawn = Pipeline([MixUp(alpha)], SHAPE, seed=5).sample(np.arange(count))[0]["lam"]
    return np.asarray(drawn)


def beta_quantile(alpha: float, share: float) -> float:
    """Of the symmetric beta distribution, by adding up its density in x = sin(t)**2, where it has no poles."""
    t = (np.arange(200_000) + 0.5) / 200_000 * np.pi / 2
    density = np.sin(t) ** (2 * alpha - 1) * np.cos(t) ** (2 * alpha - 1)
    total = np.cumsum(density) / density.sum()
    return float(np.sin(t[np.searchsorted(total, share)]) ** 2)


@pytest.mark.parametrize("alpha", [0.5, 0.8, 1.0, 4.0])
def test_proportions_have_the_beta_distribution(alpha: float) -> None:
    lam = lam_of(alpha)
    assert lam.min() >= 0
    assert lam.max() <= 1
    deviation = np.sqrt(1 / (4 * (2 * alpha + 1)))
    assert abs(lam.mean() - 0.5) < 4 * deviation / np.sqrt(len(lam))
    assert abs(lam.std() - deviation) < 0.01
    for share in (0.05, 0.25, 0.5, 0.75, 0.95):
        below = (lam <= beta_quantile(alpha, share)).mean()
        assert abs(below - share) < 4 * np.sqrt(share * (1 - share) / len(lam))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 9, 70])
def test_bytes_are_blended_with_the_partner_and_rounded_once(count: int) -> None:
    images = images_of(count)
    before = images.clone()
    pipeline = Pipeline([MixUp()], SHAPE)
    params = pipeline.sample(np.arange(count))
    made = pipeline.apply(images, params)
    lam = params[0]["lam"].double().view(-1, 1, 1, 1)
    expected = lam * images.double() + (1 - lam) * images[partners_of(params[0])].double()
    assert (made.double() - expected).abs().max() <= 0.5 + 1e-4
    assert made.dtype == torch.uint8
    assert torch.equal(images, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_normalised_images_are_blended(dtype: torch.dtype) -> None:
    images = images_of(11)
    plain = Pipeline([Normalize([0.4] * 3, [0.25] * 3, dtype)], SHAPE)(images, np.arange(11)).double()
    pipeline = Pipeline([Normalize([0.4] * 3, [0.25] * 3, dtype), MixUp(0.4)], SHAPE)
    params = pipeline.sample(np.arange(11))
    made = pipeline.apply(images, params)
    lam = params[1]["lam"].view(-1, 1, 1, 1)
    expected = lam * plain + (1 - lam) * plain[partners_of(params[1])]
    # The difference of two images, its product and the sum are rounded, each at most 4 large.
    allowed = {torch.float32: 2e-6, torch.float16: 2**-8, torch.bfloat16: 2**-5}[dtype]
    assert (made.double() - expected).abs().max() <= allowed
    assert made.dtype == dtype


def boxes_of(alpha: float, count: int, shape: tuple[int, int, int] = SHAPE) -> NDArray[np.int64]:
    params = Pipeline([CutMix(alpha)], shape, seed=2).sample(np.arange(count))[0]
    return np.stack([params[name].numpy() for name in ("left", "top", "right", "bottom")], axis=1)


def test_rectangles_lie_in_the_image_and_have_its_proportions() -> None:
    left, top, right, bottom = boxes_of(1.0, 5000, (3, 200, 300)).T
    assert (left >= 0).all()
    assert (top >= 0).all()
    assert (left <= right).all()
    assert (top <= bottom).all()
    assert right.max() == 300
    assert bottom.max() == 200
    inside = (left > 0) & (top > 0) & (right < 300) & (bottom < 200)
    assert 200 < inside.sum() < 4000
    assert np.abs((right - left)[inside] / 300 - (bottom - top)[inside] / 200).max() < 2 / 200


def test_rectangles_have_the_areas_that_the_proportions_say() -> None:
    left, top, right, bottom = boxes_of(1.0, 40_000, (3, 400, 400)).T
    # Sides are s = sqrt(1 - lam) of the image's, lam is uniform and so is the middle: cut where it leaves the image, a
    # side is s - s**2 / 4 long on average, in both directions by themselves.
    s = np.sqrt((np.arange(100_000) + 0.5) / 100_000)
    expected = ((s - s**2 / 4) ** 2).mean()
    found = ((right - left) * (bottom - top) / 400**2).mean()
    assert (
        abs(found - expected) < 0.005
    )  # sides are whole pixels, and the mean of 40,000 has a deviation of 0.001


@pytest.mark.parametrize("count", [1, 2, 7, 70])
def test_rectangles_of_the_partner_are_put_in(count: int) -> None:
    images = images_of(count)
    before = images.clone()
    pipeline = Pipeline([CutMix()], SHAPE)
    params = pipeline.sample(np.arange(count))
    made = pipeline.apply(images, params)
    expected = images.clone()
    partner = images[partners_of(params[0])]
    for i in range(count):
        left, top, right, bottom = (int(params[0][name][i]) for name in ("left", "top", "right", "bottom"))
        expected[i, :, top:bottom, left:right] = partner[i, :, top:bottom, left:right]
    assert torch.equal(made, expected)
    assert torch.equal(images, before)


@pytest.mark.parametrize("group", [1, 4, 64])
def test_a_device_that_does_not_know_the_places_makes_the_same(
    monkeypatch: pytest.MonkeyPatch, group: int
) -> None:
    monkeypatch.setattr(mixing, "_GPU_IMAGES", group)
    pipeline = Pipeline([CutMix()], SHAPE)
    columns = pipeline.prepare(pipeline.sample(np.arange(10))).host
    one_by_one, together = images_of(10), images_of(10)
    CutMix().mix_on_cpu(one_by_one, columns)
    CutMix().mix_on_gpu(together, columns)
    assert torch.equal(one_by_one, together)
    assert not torch.equal(together, images_of(10))


@pytest.mark.parametrize("group", [1, 4, 64])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_a_device_that_does_not_know_the_shares_makes_the_same(
    monkeypatch: pytest.MonkeyPatch, group: int, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(mixing, "_GPU_IMAGES", group)
    pipeline = Pipeline([MixUp()], SHAPE)
    columns = pipeline.prepare(pipeline.sample(np.arange(10))).host
    one_by_one, together = images_of(10).to(dtype), images_of(10).to(dtype)
    MixUp().mix_on_cpu(one_by_one, columns)
    MixUp().mix_on_gpu(together, columns)
    torch.testing.assert_close(one_by_one, together, rtol=0, atol=1e-4)
    assert not torch.equal(together, images_of(10).to(dtype))


def test_masks_are_mixed_as_images_and_stay_themselves() -> None:
    masks = torch.arange(6).view(6, 1, 1).expand(6, 20, 26).contiguous() * 1000
    before = masks.clone()
    pipeline = Pipeline([RandomHorizontalFlip(1), CutMix()], SHAPE)
    params = pipeline.sample(np.arange(6))
    mixed = pipeline.apply_masks(masks, params)
    area = (mixed != masks).double().mean(dim=(1, 2))
    labels = pipeline.apply_labels(torch.arange(6), params, 6)
    torch.testing.assert_close(1 - area.float(), labels.diagonal(), rtol=0, atol=1e-6)
    Pipeline([CutMix()], SHAPE).apply_masks(masks, params[1:])
    assert torch.equal(masks, before)
    changed = mixed != masks
    assert torch.equal(mixed[changed], masks[partners_of(params[1])][changed])
    layered = pipeline.apply_masks(torch.stack([masks, masks + 1], 1), params)
    assert torch.equal(layered, torch.stack([mixed, mixed + 1], 1))


def test_masks_cannot_be_blended() -> None:
    pipeline = Pipeline([MixUp()], SHAPE)
    assert refusal(
        lambda: pipeline.apply_masks(torch.zeros(2, 20, 26, dtype=torch.uint8), pipeline.sample(np.arange(2)))
    ) == (
        "MixUp: there are masks, whose classes cannot be blended; images and labels are allowed. "
        "Use CutMix, or pass no masks."
    )


@pytest.mark.parametrize("operation", [MixUp(0.7, num_classes=5), CutMix(0.7, num_classes=5)])
def test_labels_have_the_shares_of_the_images(operation: MixUp | CutMix) -> None:
    pipeline = Pipeline([operation], SHAPE)
    labels = torch.tensor([4, 0, 0, 3, 1, 2])
    params = pipeline.sample(np.arange(6))
    soft = pipeline.apply_labels(labels, params)
    assert pipeline.num_classes == 5
    assert pipeline.mixes
    assert soft.shape == (6, 5)
    torch.testing.assert_close(soft.sum(1), torch.ones(6))
    drawn = {name: value.double().numpy() for name, value in params[0].items()}
    if isinstance(operation, MixUp):
        own = drawn["lam"]
    else:
        own = 1 - (drawn["right"] - drawn["left"]) * (drawn["bottom"] - drawn["top"]) / (20 * 26)
    partners = partners_of(params[0])
    for i in range(6):
        expected = np.zeros(5)
        expected[labels[i]] += own[i]
        expected[labels[partners[i]]] += 1 - own[i]
        np.testing.assert_allclose(soft[i], expected, atol=1e-6)


@pytest.mark.parametrize("operation", [MixUp(), CutMix()])
@pytest.mark.parametrize("count", [1, 2, 3, 50])
def test_partners_are_one_ring(operation: MixUp | CutMix, count: int) -> None:
    pipeline = Pipeline([operation], SHAPE, seed=3)
    params = pipeline.sample(np.arange(count))
    partners = operation.partners(pipeline.prepare(params).host).tolist()
    assert partners == partners_of(params[0])
    seen = [0]
    while len(seen) < count:
        seen.append(partners[seen[-1]])
    assert sorted(seen) == list(range(count))
    assert partners[seen[-1]] == 0


@pytest.mark.parametrize("operation", [MixUp(), CutMix()])
def test_a_batchs_partners_are_others_in_each_epoch_and_all_alike(operation: MixUp | CutMix) -> None:
    pipeline = Pipeline([operation], SHAPE, seed=3)
    rows = np.arange(8)
    met = np.zeros((8, 8), int)
    for epoch in range(1400):
        columns = pipeline.prepare(pipeline.sample(rows, epoch)).host
        met[rows, operation.partners(columns).numpy()] += 1
    assert not met.diagonal().any()
    assert_fair(met[~np.eye(8, dtype=bool)])


@pytest.mark.parametrize("operation", [MixUp(), CutMix()])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_samples_whose_columns_are_zeros_stay(operation: MixUp | CutMix, dtype: torch.dtype) -> None:
    images = (noise_images(30, 3, 20, 26, torch.float32) * 255).to(dtype)
    pipeline = Pipeline([operation], SHAPE, seed=1)
    columns = pipeline.prepare(pipeline.sample(np.arange(30))).host.clone()
    spared = torch.arange(30) % 3 == 0
    columns[spared] = 0
    made = operation.mix(images.clone(), columns)
    assert torch.equal(made[spared], images[spared])
    assert (operation.share(columns)[spared] == 1).all()
    # The others are mixed with the partners they are said to have, spared ones among these.
    partners = operation.partners(columns)
    assert spared[partners[~spared]].any()
    for i in torch.arange(30)[~spared].tolist():
        pair = torch.stack([images[i], images[partners[i]]])
        both = columns[[i, i]].clone()
        both[:, -1] = torch.tensor([1.0, 0.0])
        torch.testing.assert_close(operation.mix(pair, both)[0], made[i], rtol=0, atol=0)
    masks = images[:, :1].to(torch.uint8)
    if isinstance(operation, CutMix):
        assert torch.equal(operation.mix_masks(masks, columns)[spared], masks[spared])


@pytest.mark.parametrize("operation", [MixUp(), CutMix()])
def test_draws_are_a_rows_own(operation: MixUp | CutMix) -> None:
    pipeline = Pipeline([operation], SHAPE, seed=9)
    every = pipeline.sample(np.arange(50), epoch=3)[0]
    some = pipeline.sample(np.array([41, 7]), epoch=3)[0]
    for name, drawn in every.items():
        assert torch.equal(some[name], drawn[[41, 7]])
        assert len(drawn.unique()) > 5


def test_images_before_mixing_and_passes_after_it_both_work() -> None:
    images = images_of(8)
    rows = np.arange(8)
    parts = [CutMix(), Normalize([0.5] * 3, [0.5] * 3)]
    pipeline = Pipeline(parts, SHAPE)
    params = pipeline.sample(rows)
    mixed = Pipeline(parts[:1], SHAPE).apply(images, params[:1])
    normalised = Pipeline(parts[1:], SHAPE).apply(mixed, params[1:])
    assert torch.equal(pipeline.apply(images, params), normalised)


def test_an_empty_batch_stays_empty() -> None:
    for operation in (MixUp(), CutMix()):
        assert len(Pipeline([operation], SHAPE)(images_of(1)[:0], np.arange(0))) == 0


@pytest.mark.parametrize("operation", [MixUp, CutMix])
def test_impossible_arguments_are_refused(operation: type[MixUp]) -> None:
    name = operation.__name__
    assert (
        refusal(lambda: operation(alpha=0))
        == f"{name}: alpha is 0; numbers from 0.001 up are allowed. Pass one of them."
    )
    assert refusal(lambda: operation(num_classes=0)) == (
        f"{name}: num_classes is 0; whole numbers from 1 up are allowed. Pass one of them."
    )


def test_labels_without_a_number_of_classes_are_refused() -> None:
    pipeline = Pipeline([MixUp()], SHAPE)
    assert refusal(lambda: pipeline.apply_labels(torch.arange(3), pipeline.sample(np.arange(3)))) == (
        "MixUp, CutMix: num_classes is None; the number of classes is needed. Pass num_classes."
    )
