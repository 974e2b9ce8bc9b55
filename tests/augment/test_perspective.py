"""RandomPerspective: torchvision's maps and draws; masks, boxes and points go where the pixels go."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from packer.augment import (
    CenterCrop,
    Normalize,
    Pipeline,
    RandomApply,
    RandomHorizontalFlip,
    RandomPerspective,
    ToDtype,
    Transform,
    parse,
)
from packer.augment.transform import Draws
from packer.augment.warps import coefficients
from tests.augment.conftest import (
    Drawn,
    assert_fair,
    assert_unrelated,
    given,
    levels,
    noise_images,
    one,
    refusal,
    smooth_images,
)

FILL = (200.0, 30.0, 117.0)
SIZES = [(24, 31), (31, 24), (7, 5)]


def corners(count: int, size: tuple[int, int], scale: float = 0.5, seed: int = 0) -> NDArray[np.int64]:
    drawn = RandomPerspective(scale).sample(Draws(np.arange(count), seed, 0, 0, "r"), (3, *size))
    found: NDArray[np.int64] = drawn["corners"]
    return found


def drawn(places: NDArray[np.int64], change: Any = True) -> Drawn:
    return given(corners=places, change=np.broadcast_to(change, len(places)).copy())


def by_torchvision(
    v2: Any, kind: Any, places: NDArray[np.int64], size: tuple[int, int], **options: Any
) -> Any:
    height, width = size
    starts = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
    return v2.functional.perspective(kind, starts, places.tolist(), **options)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scale", [0.2, 0.5, 0.9])
def test_linear_images_are_torchvisions(size: tuple[int, int], scale: float, torchvision: Any) -> None:
    """At the edge the picture is laid over the fill by its mask; torchvision multiplies by the mask once more."""
    images = noise_images(12, 3, *size, torch.float32)
    fill = tuple(number / 255 for number in FILL)
    places = corners(12, size, scale)
    pipeline = one(RandomPerspective(p=1, fill=fill), images)
    found = 255 * levels(pipeline.apply(images, drawn(places)))
    for image, result, mine in zip(images, found, places, strict=True):
        with_mask = torch.cat([image, torch.ones(1, *size)])[None]
        made = 255 * levels(by_torchvision(torchvision, with_mask, mine, size, fill=None))[0]
        mask = made[..., 3:] / 255
        np.testing.assert_allclose(result, made[..., :3] + (1 - mask) * np.array(FILL), rtol=0, atol=0.02)
        expected = 255 * levels(by_torchvision(torchvision, image[None], mine, size, fill=list(fill)))[0]
        sure = (mask < 1e-4) | (mask > 1 - 1e-4)
        np.testing.assert_allclose((result - expected) * sure, 0, atol=0.02)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_bytes_are_torchvisions_to_a_level(channels: int, torchvision: Any) -> None:
    images = smooth_images(10, channels, 40, 33)
    before = images.clone()
    places = corners(10, (40, 33))
    found = one(RandomPerspective(fill=128), images).apply(images, drawn(places))
    for image, result, mine in zip(images, found, places, strict=True):
        expected = by_torchvision(torchvision, image, mine, (40, 33), fill=128)
        mask = by_torchvision(torchvision, torch.ones(1, 40, 33), mine, (40, 33), fill=None)[0]
        sure = (mask < 1e-4) | (mask > 1 - 1e-4)  # the edges: see above
        assert sure.double().mean() > 0.75
        difference = (result.int() - expected.int()).abs()[:, sure]
        assert difference.max() <= 1
        assert difference.double().mean() < 0.01
    assert found.dtype == torch.uint8
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(images, before)


def test_nearest_images_and_masks_are_torchvisions_away_from_ties(torchvision: Any) -> None:
    images = noise_images(20, 3, 24, 31)
    places = corners(20, (24, 31))
    pipeline = Pipeline([RandomPerspective(1, 1, "nearest", FILL)], (3, 24, 31), mask_fill=-5)
    params = drawn(places)
    found = pipeline.apply(images, params)
    masks = torch.arange(24 * 31).view(1, 24, 31).repeat(20, 1, 1) - 9
    moved = pipeline.apply_masks(masks, params)
    other = 0
    for i, mine in enumerate(places):
        options = {"interpolation": torchvision.InterpolationMode.NEAREST}
        expected = by_torchvision(torchvision, images[i], mine, (24, 31), fill=list(FILL), **options)
        other += int((found[i] != expected).any(0).sum())
        expected = by_torchvision(torchvision, masks[i : i + 1].float(), mine, (24, 31), fill=-5.0, **options)
        other += int((moved[i] != expected[0]).sum())
    assert other <= 0.004 * 2 * 20 * 24 * 31
    assert (moved == -5).any()


def test_points_and_boxes_are_torchvisions(torchvision: Any) -> None:
    from torchvision import tv_tensors

    draws = np.random.default_rng(0)
    places = corners(30, (24, 31), 0.6)
    points = torch.from_numpy(draws.uniform(0, (31, 24), (30, 5, 2)))
    sides = torch.from_numpy(draws.uniform(2, 9, (30, 5, 2)))
    boxes = torch.cat([points, torch.minimum(points + sides, torch.tensor([31.0, 24.0]))], dim=-1)
    pipeline = Pipeline([RandomPerspective()], (3, 24, 31))
    moved, moved_boxes = (
        pipeline.apply_keypoints(points, drawn(places)),
        pipeline.apply_boxes(boxes, drawn(places)),
    )
    for i, mine in enumerate(places):
        wrapped: Any = tv_tensors.KeyPoints(points[i], canvas_size=(24, 31))
        expected = by_torchvision(torchvision, wrapped, mine, (24, 31))
        seen = ((expected >= 0) & (expected <= torch.tensor([31.0, 24.0]))).all(-1, keepdim=True)
        expected = torch.where(seen, expected.as_subclass(Tensor), torch.nan)
        torch.testing.assert_close(moved[i], expected, rtol=0, atol=2e-3, equal_nan=True)
        wrapped = tv_tensors.BoundingBoxes(boxes[i], format="XYXY", canvas_size=(24, 31))
        expected = by_torchvision(torchvision, wrapped, mine, (24, 31))
        torch.testing.assert_close(moved_boxes[i], expected.as_subclass(Tensor), rtol=0, atol=2e-3)


@pytest.mark.parametrize(
    "transforms",
    [
        [RandomPerspective(0.6, 0.7)],
        [RandomHorizontalFlip(), RandomPerspective(0.4, 0.7), CenterCrop(40), RandomHorizontalFlip()],
        [RandomApply([RandomPerspective(0.4, 1), RandomPerspective(0.3, 1)], 0.6)],
    ],
)
def test_a_painted_blob_goes_where_its_point_goes(transforms: list[Transform]) -> None:
    count = 40
    centres = np.random.default_rng(3).integers(12, (44, 36), (count, 1, 2)) + 0.5
    y, x = np.mgrid[0:48, 0:56] + 0.5
    distance = np.hypot(x - centres[..., 0][..., None], y - centres[..., 1][..., None])
    blobs = np.rint(255 * (1 - distance / 3.5).clip(0, 1)).astype(np.uint8)
    pipeline = Pipeline(transforms, (1, 48, 56))
    params = pipeline.sample(np.arange(count))
    around = np.array([[0, 0], [5, 0], [0, 5], [-5, 0], [0, -5]])
    moved = pipeline.apply_keypoints(torch.from_numpy(centres + around), params).numpy()
    images = pipeline.apply(torch.from_numpy(blobs)[:, None], params).numpy()[:, 0].astype(float)
    v, u = np.mgrid[0 : images.shape[1], 0 : images.shape[2]] + 0.5
    whole = 0
    for image, points in zip(images, moved, strict=True):
        if not np.isnan(points).any():
            found = np.array([(image * u).sum(), (image * v).sum()]) / image.sum()
            assert np.hypot(*(found - points[0])) < 0.25  # a blob's middle is not its image's to the last
            whole += 1
    assert whole > count / 2


def test_images_that_are_spared_stay_to_the_bit_and_so_do_their_masks_and_points() -> None:
    images = noise_images(40, 3, 20, 22)
    points = torch.from_numpy(np.random.default_rng(0).uniform(0, 20, (40, 3, 2)))
    masks = images[:, 0].to(torch.int16)
    for transform, name in (
        (RandomPerspective(), "change"),
        (RandomApply([RandomPerspective(p=1)]), "apply"),
    ):
        pipeline = Pipeline([transform], (3, 20, 22))
        params = pipeline.sample(np.arange(40))
        chosen = params[0][name]
        assert 8 < int(chosen.sum()) < 32
        for given_, made in (
            (images, pipeline.apply(images, params)),
            (masks, pipeline.apply_masks(masks, params)),
            (points, pipeline.apply_keypoints(points, params)),
        ):
            assert torch.equal(made[~chosen], given_[~chosen])
            assert (made[chosen] != given_[chosen]).flatten(1).any(1).all()


def test_each_image_of_a_batch_gets_what_it_alone_would_get() -> None:
    images = noise_images(20, 3, 24, 20)
    pipeline = Pipeline(
        [RandomPerspective(), RandomHorizontalFlip(), Normalize(0.5, 0.5)], (3, 24, 20), seed=4
    )
    rows = np.arange(500, 520)
    together = pipeline(images, rows)
    for i in range(20):
        torch.testing.assert_close(
            pipeline(images[i : i + 1], rows[i : i + 1])[0], together[i], rtol=0, atol=1e-6
        )
    assert pipeline.stages == ("RandomPerspective", "pass")
    taken = pipeline.apply(images, pipeline.sample(rows[[3, 3, 7]]), rows=torch.tensor([3, 3, 7]))
    torch.testing.assert_close(taken, together[[3, 3, 7]], rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_other_dtypes_are_kept(dtype: torch.dtype) -> None:
    images = noise_images(3, 3, 12, 12, dtype)
    made = one(RandomPerspective(p=1, fill=0.5), images)(images, np.arange(3))
    assert made.dtype == dtype
    after = Pipeline([Normalize(0.5, 0.5, dtype), RandomPerspective(p=1, fill=-1)], (3, 12, 12))
    assert after(noise_images(3, 3, 12, 12), np.arange(3)).dtype == dtype


@pytest.mark.parametrize(("scale", "size"), [(0.5, (40, 64)), (1.0, (9, 12)), (0.0, (8, 8)), (0.3, (1, 2))])
def test_corners_are_drawn_as_torchvisions(scale: float, size: tuple[int, int], torchvision: Any) -> None:
    """Uniform over as many pixels, from the same end."""
    height, width = size
    drawn = corners(20_000, size, scale)
    assert drawn.dtype == np.int64
    ours = torchvision.RandomPerspective(scale)
    image = torch.zeros(1, height, width)
    torch.manual_seed(0)
    starts = np.array([[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]])
    across, down = int(scale * (width // 2)) + 1, int(scale * (height // 2)) + 1
    first = np.array([[0, 0], [width - across, 0], [width - across, height - down], [0, height - down]])
    for corner in range(4):
        for axis, many in ((0, across), (1, down)):
            counts = np.bincount(drawn[:, corner, axis] - first[corner, axis], minlength=many)
            assert len(counts) == many
            if many > 1:
                assert_fair(counts)
    if scale == 0.5:
        assert_unrelated(*drawn.reshape(len(drawn), 8).T)
        for _ in range(20):  # where torchvision's own corners come to lie
            a, b, c, d, e, f, g, h = ours.make_params([image])["coefficients"]
            matrix = np.array([[a, b, c], [d, e, f], [g, h, 1]])
            places = np.linalg.solve(matrix, np.c_[starts, np.ones(4)].T)
            places = (places[:2] / places[2]).T - first
            assert (places > -0.01).all()
            assert (places < np.array([across, down]) - 0.99).all()


def test_the_maps_are_torchvisions_and_lines_have_one_too(torchvision: Any) -> None:
    from torchvision.transforms.functional import _get_perspective_coeffs

    places = corners(50, (24, 31), 0.6)
    starts = [[0, 0], [30, 0], [30, 23], [0, 23]]
    expected = [_get_perspective_coeffs(starts, mine.tolist()) for mine in places]
    np.testing.assert_allclose(coefficients(places, (24, 31)), expected, rtol=1e-4, atol=1e-5)
    flat = places.copy()
    flat[0] = [[0, 0], [10, 0], [20, 0], [30, 0]]
    made = coefficients(flat, (24, 31))
    assert np.isfinite(made).all()
    np.testing.assert_allclose(made[1:], expected[1:], rtol=1e-4, atol=1e-5)
    images = noise_images(50, 3, 24, 31)
    pipeline = one(RandomPerspective(), images)
    pipeline.apply(images, drawn(flat))
    assert pipeline.apply_keypoints(torch.full((50, 1, 2), 5.0), drawn(flat)).shape == (50, 1, 2)


def test_nothing_is_moved_where_the_corners_stay() -> None:
    images = noise_images(4, 3, 24, 31)
    for interpolation in ("nearest", "bilinear"):
        assert torch.equal(one(RandomPerspective(0, 1, interpolation), images)(images, np.arange(4)), images)


def test_the_text_names_it() -> None:
    (made,) = parse("RandomPerspective(0.3, p=1, interpolation='nearest')")
    assert isinstance(made, RandomPerspective)
    assert (made.distortion_scale, made.p, made.sampling) == (0.3, 1, "nearest")


@pytest.mark.parametrize(
    ("attempt", "sentence"),
    [
        (
            lambda: RandomPerspective(1.5),
            "RandomPerspective: distortion_scale is 1.5; numbers from 0 to 1 are allowed. Pass one of them.",
        ),
        (
            lambda: RandomPerspective(interpolation="cubic"),
            "RandomPerspective: interpolation is 'cubic'; 'nearest', 'nearest-exact', 'bilinear' are allowed. "
            "Pass one of them.",
        ),
        (
            lambda: Pipeline([RandomPerspective(fill=(1, 2))], (3, 8, 8)),
            "RandomPerspective: fill has 2 numbers and the images 3 channels; one number, or one a channel, is allowed. "
            "Pass as many as there are channels.",
        ),
        (
            lambda: Pipeline([ToDtype(), RandomPerspective(fill=9)], (3, 8, 8)),
            "RandomPerspective: fill is 9.0 and the images' values are 0 to 1; those are allowed. "
            "Pass it in the images' own scale.",
        ),
    ],
)
def test_mistakes_are_sentences(attempt: Any, sentence: str) -> None:
    assert refusal(attempt) == sentence
