"""ElasticTransform: torchvision's maps and the distribution of its moves; masks, boxes and points go where the pixels go."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from packer.augment import ElasticTransform, Normalize, Pipeline, RandomApply, RandomHorizontalFlip, parse
from tests.augment.conftest import (
    Drawn,
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

FILL = (200.0, 30.0, 117.0)
SEEDS = [0, 5, 2**24 - 1, 77]


def drawn(seeds: list[int]) -> Drawn:
    return given(seed=seeds)


def theirs(elastic: ElasticTransform, size: tuple[int, int], seeds: list[int] = SEEDS) -> Tensor:
    """The moves as torchvision has them, in halves of the image: float32 [N, 1, h, w, 2]."""
    moves = elastic.displacement(torch.tensor(seeds), size)
    return (moves * 2 / torch.tensor([size[1], size[0]]))[:, None]


@pytest.mark.parametrize(
    ("size", "sigma"), [((40, 47), 3.0), ((47, 40), 5.0), ((30, 30), (2.0, 4.0)), ((9, 7), 0)]
)
def test_linear_images_are_torchvisions(size: tuple[int, int], sigma: Any, torchvision: Any) -> None:
    """At the edge the picture is laid over the fill by its mask; torchvision multiplies by the mask once more."""
    images = noise_images(4, 3, *size, torch.float32)
    fill = tuple(number / 255 for number in FILL)
    elastic = ElasticTransform((60.0, 90.0), sigma, fill=fill)
    found = 255 * levels(one(elastic, images).apply(images, drawn(SEEDS)))
    for image, result, moves in zip(images, found, theirs(elastic, size), strict=True):
        with_mask = torch.cat([image, torch.ones(1, *size)])[None]
        made = 255 * levels(torchvision.functional.elastic(with_mask, moves, fill=None))[0]
        mask = made[..., 3:] / 255
        np.testing.assert_allclose(result, made[..., :3] + (1 - mask) * np.array(FILL), rtol=0, atol=0.02)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_bytes_are_torchvisions_to_a_level(channels: int, torchvision: Any) -> None:
    images = smooth_images(4, channels, 44, 50)
    before = images.clone()
    elastic = ElasticTransform(fill=128)
    found = one(elastic, images).apply(images, drawn(SEEDS))
    for image, result, moves in zip(images, found, theirs(elastic, (44, 50)), strict=True):
        expected = torchvision.functional.elastic(image, moves, fill=128)
        mask = torchvision.functional.elastic(torch.ones(1, 44, 50), moves, fill=None)[0]
        sure = (mask < 1e-4) | (mask > 1 - 1e-4)
        assert sure.double().mean() > 0.9
        difference = (result.int() - expected.int()).abs()[:, sure]
        assert difference.max() <= 1
        assert difference.double().mean() < 0.01
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(images, before)
    assert (found != images).any()


def test_nearest_images_and_masks_are_torchvisions_away_from_ties(torchvision: Any) -> None:
    images = noise_images(4, 3, 44, 50)
    elastic = ElasticTransform(90.0, 4.0, "nearest", FILL)
    pipeline = Pipeline([elastic], (3, 44, 50), mask_fill=-5)
    found = pipeline.apply(images, drawn(SEEDS))
    masks = torch.arange(44 * 50).view(1, 44, 50).repeat(4, 1, 1) - 9
    moved = pipeline.apply_masks(masks, drawn(SEEDS))
    nearest = torchvision.InterpolationMode.NEAREST
    other = 0
    for i, moves in enumerate(theirs(elastic, (44, 50))):
        expected = torchvision.functional.elastic(images[i], moves, interpolation=nearest, fill=list(FILL))
        other += int((found[i] != expected).any(0).sum())
        expected = torchvision.functional.elastic(
            masks[i : i + 1].float(), moves, interpolation=nearest, fill=-5.0
        )
        other += int((moved[i] != expected[0]).sum())
    assert other <= 0.004 * 2 * 4 * 44 * 50
    assert (moved == -5).any()


@pytest.mark.parametrize(("alpha", "sigma"), [(50.0, 5.0), ((80.0, 30.0), (3.0, 6.0)), (2.0, 0.0)])
def test_moves_are_distributed_as_torchvisions(alpha: Any, sigma: Any, torchvision: Any) -> None:
    """Their deviation, and the correlation of neighbours in both directions, across and down."""
    size, count = (60, 60), 40
    ours = theirs(ElasticTransform(alpha, sigma), size, list(range(count)))[:, 0].double()
    torch.manual_seed(0)
    made = torchvision.ElasticTransform(alpha, sigma)
    other = torch.cat(
        [made.make_params([torch.zeros(1, *size)])["displacement"] for _ in range(count)]
    ).double()
    for axis in range(2):
        mine, his = ours[..., axis], other[..., axis]
        assert mine.mean().abs() < 0.1 * his.std()
        assert abs(mine.std() / his.std() - 1) < 0.08
        for dim in (1, 2):
            away = 3
            both = [
                float((x * x.roll(away, dim)).narrow(dim, away, 60 - away).mean() / x.var())
                for x in (mine, his)
            ]
            assert abs(both[0] - both[1]) < 0.08
    assert_unrelated(ours[:, ::20, ::20, 0].flatten().numpy(), ours[:, ::20, ::20, 1].flatten().numpy())


def test_without_smoothing_moves_are_uniform_and_unrelated() -> None:
    moves = ElasticTransform((2.0, 6.0), 0).displacement(torch.tensor([3]), (120, 90))[0].double()
    assert_uniform((moves[..., 0].flatten().numpy() + 1) / 2)
    assert_uniform((moves[..., 1].flatten().numpy() + 3) / 6)
    assert_unrelated(moves[..., 0].flatten().numpy(), moves[..., 1].flatten().numpy())
    assert_unrelated(moves[1:, :, 0].flatten().numpy(), moves[:-1, :, 0].flatten().numpy())


def test_seeds_are_uniform() -> None:
    seeds = Pipeline([ElasticTransform()], (3, 48, 48)).sample(np.arange(20_000))[0]["seed"].numpy()
    assert_fair(np.bincount(seeds >> 18, minlength=64))
    assert len(np.unique(seeds)) > 19_900


def test_a_painted_blob_goes_where_its_point_goes() -> None:
    """To a quarter of a pixel: a blob that is pulled unevenly has another middle."""
    count = 30
    centres = np.random.default_rng(3).integers(12, (44, 36), (count, 1, 2)) + 0.5
    y, x = np.mgrid[0:48, 0:56] + 0.5
    distance = np.hypot(x - centres[..., 0][..., None], y - centres[..., 1][..., None])
    blobs = np.rint(255 * (1 - distance / 3.5).clip(0, 1)).astype(np.uint8)
    pipeline = Pipeline(
        [RandomHorizontalFlip(), ElasticTransform(180.0, 10.0), RandomHorizontalFlip()], (1, 48, 56)
    )
    params = pipeline.sample(np.arange(count))
    moved = pipeline.apply_keypoints(torch.from_numpy(centres), params).numpy()
    images = pipeline.apply(torch.from_numpy(blobs)[:, None], params).numpy()[:, 0].astype(float)
    away = []
    for image, point in zip(images, moved[:, 0], strict=True):
        away.append(np.hypot(*(np.array([(image * x).sum(), (image * y).sum()]) / image.sum() - point)))
    assert np.max(away) < 0.25
    assert np.median(away) < 0.1
    still = RandomHorizontalFlip()
    flips = Pipeline([still, still], (1, 48, 56)).apply_keypoints(
        torch.from_numpy(centres), [params[0], params[2]]
    )
    assert np.median(np.hypot(*(flips.numpy() - moved)[:, 0].T)) > 0.6  # it was moved by more than that


def test_points_come_back_by_the_map_of_the_image() -> None:
    points = torch.from_numpy(np.random.default_rng(0).uniform(8, 40, (4, 6, 2)))
    elastic = ElasticTransform(80.0, 5.0)
    moved = Pipeline([elastic], (3, 48, 48)).apply_keypoints(points, drawn(SEEDS))
    moves = elastic.displacement(torch.tensor(SEEDS), (48, 48)).permute(0, 3, 1, 2).double()
    there = torch.nn.functional.grid_sample(moves, (moved / 24 - 1)[:, None], align_corners=False)
    torch.testing.assert_close(moved + there[:, :, 0].transpose(1, 2), points, rtol=0, atol=1e-4)
    assert (moved - points).abs().max() > 1


def test_points_and_boxes_are_torchvisions_but_for_its_rounding(torchvision: Any) -> None:
    from torchvision import tv_tensors

    draws = np.random.default_rng(0)
    first = torch.from_numpy(draws.uniform(6, 30, (4, 5, 2)))
    boxes = torch.cat([first, first + torch.from_numpy(draws.uniform(4, 12, (4, 5, 2)))], dim=-1)
    elastic = ElasticTransform()
    pipeline = Pipeline([elastic], (3, 48, 48))
    moved, moved_boxes = (
        pipeline.apply_keypoints(first, drawn(SEEDS)),
        pipeline.apply_boxes(boxes, drawn(SEEDS)),
    )
    for i, moves in enumerate(theirs(elastic, (48, 48))):
        wrapped: Any = tv_tensors.KeyPoints(first[i], canvas_size=(48, 48))
        expected = torchvision.functional.elastic(wrapped, moves).as_subclass(Tensor)
        torch.testing.assert_close(moved[i], expected, rtol=0, atol=1.6)  # it cuts off fractions
        wrapped = tv_tensors.BoundingBoxes(boxes[i], format="XYXY", canvas_size=(48, 48))
        expected = torchvision.functional.elastic(wrapped, moves).as_subclass(Tensor)
        torch.testing.assert_close(moved_boxes[i], expected, rtol=0, atol=1.6)


def test_what_is_outside_is_gone() -> None:
    pipeline = Pipeline([ElasticTransform(1.0, 3.0)], (3, 48, 48))
    points = torch.tensor([[[-1.0, 5], [20, 20], [49, 3], [torch.nan, 7]]])
    moved = pipeline.apply_keypoints(points, drawn([1]))
    assert moved.isnan().all(-1).tolist() == [[True, False, True, True]]
    boxes = pipeline.apply_boxes(torch.tensor([[[-9.0, 5, -2, 9], [40, 40, 60, 60]]]), drawn([1]))[0]
    assert boxes[0, 2] - boxes[0, 0] == 0
    torch.testing.assert_close(boxes[1], torch.tensor([40.0, 40, 48, 48]), rtol=0, atol=0.5)


def test_images_that_random_apply_spares_stay_to_the_bit_and_so_do_their_masks_and_points() -> None:
    images = noise_images(30, 3, 24, 26)
    points = torch.from_numpy(np.random.default_rng(0).uniform(4, 20, (30, 3, 2)))
    masks = images[:, 0].to(torch.int16)
    pipeline = Pipeline([RandomApply([ElasticTransform(60.0, 2.0)])], (3, 24, 26))
    params = pipeline.sample(np.arange(30))
    chosen = params[0]["apply"]
    assert 5 < int(chosen.sum()) < 25
    for before, made in (
        (images, pipeline.apply(images, params)),
        (masks, pipeline.apply_masks(masks, params)),
        (points, pipeline.apply_keypoints(points, params)),
    ):
        torch.testing.assert_close(made[~chosen], before[~chosen], rtol=0, atol=0)
        assert (made[chosen] != before[chosen]).flatten(1).any(1).all()


def test_each_image_of_a_batch_gets_what_it_alone_would_get() -> None:
    images = noise_images(20, 3, 24, 20)
    pipeline = Pipeline([ElasticTransform(30.0, 2.0), Normalize(0.5, 0.5)], (3, 24, 20), seed=4)
    rows = np.arange(500, 520)
    together = pipeline(images, rows)
    assert pipeline.stages == ("ElasticTransform", "pass")
    for i in range(20):
        alone = pipeline(images[i : i + 1], rows[i : i + 1])[0]
        torch.testing.assert_close(alone, together[i], rtol=0, atol=1.5 * 2 / 255)  # sums in another order
    points = torch.full((20, 1, 2), 9.0)
    moved = pipeline.apply_keypoints(points, pipeline.sample(rows))
    alone = pipeline.apply_keypoints(points[17:18], pipeline.sample(rows[17:18]))
    torch.testing.assert_close(alone, moved[17:18], rtol=0, atol=1e-4)


def test_no_moves_are_no_change() -> None:
    images = noise_images(3, 3, 44, 44)
    for interpolation in ("nearest", "bilinear"):
        assert torch.equal(
            one(ElasticTransform(0, interpolation=interpolation), images)(images, np.arange(3)), images
        )


def test_the_text_names_it() -> None:
    (made,) = parse("ElasticTransform(alpha=[20, 30], sigma=4)")
    assert isinstance(made, ElasticTransform)
    assert (made.alpha, made.sigma) == ((20, 30), (4, 4))


NUMBERS = "a number, or two (across, down) from 0 up are allowed. Pass those."


@pytest.mark.parametrize(
    ("attempt", "sentence"),
    [
        (lambda: ElasticTransform(-1), f"alpha is -1; {NUMBERS}"),
        (lambda: ElasticTransform(50, (1, 2, 3)), f"sigma is (1, 2, 3); {NUMBERS}"),
        (lambda: ElasticTransform("50"), f"alpha is '50'; {NUMBERS}"),  # type: ignore[arg-type]
        (
            lambda: ElasticTransform(50, (0, 3)),
            "sigma is (0, 3); two numbers above 0, or 0 for no smoothing, are allowed. Pass both, or 0.",
        ),
        (
            lambda: Pipeline([ElasticTransform()], (3, 20, 64)),
            "sigma is (5.0, 5.0) and the images are 20x64; smoothing reaches 20 pixels, and less than their height and width is "
            "allowed. Pass a smaller sigma.",
        ),
        (
            lambda: Pipeline([ElasticTransform(fill=(1, 2))], (3, 48, 48)),
            "fill has 2 numbers and the images 3 channels; one number, or one a channel, is allowed. "
            "Pass as many as there are channels.",
        ),
    ],
)
def test_mistakes_are_sentences(attempt: Any, sentence: str) -> None:
    assert refusal(attempt) == f"ElasticTransform: {sentence}"
