"""Soft maps are moved as images: held to torchvision, which moves them as such."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from packer.augment import (
    ColorJitter,
    CutMix,
    MixUp,
    Normalize,
    Pipeline,
    RandomAffine,
    RandomErasing,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomRotation,
    RandomVerticalFlip,
    Transform,
)
from tests.augment.conftest import noise_images, refusal, smooth_images

SHAPE = (3, 36, 32)
ROWS = np.arange(6)
COLOURS = (ColorJitter(0.4, 0.4), Normalize([0.5] * 3, [0.2] * 3), RandomErasing(p=1))
Move = Callable[[Tensor], Tensor]


def stack(*transforms: Transform, **options: Any) -> Pipeline:
    return Pipeline(transforms, SHAPE, **options)


def maps_of(dtype: torch.dtype) -> Tensor:
    """[6, 36, 32] of a dtype, that change slowly, or the oracle and the pass would part by their rounding of places."""
    maps = smooth_images(len(ROWS), 1, *SHAPE[1:])[:, 0].float()
    return (maps if dtype == torch.uint8 else maps * (256 if dtype == torch.uint16 else 1 / 51)).to(dtype)


def resized_crop(torchvision: Any, mine: dict[str, Any]) -> Move:
    place = [int(mine[name]) for name in ("top", "left", "height", "width")]
    return lambda image: torchvision.functional.resized_crop(image, *place, [20, 24], antialias=True)


def affine(torchvision: Any, mine: dict[str, Any]) -> Move:
    shear = [float(mine["shear_x"]), float(mine["shear_y"])]
    move = [int(mine["move_x"]), int(mine["move_y"])]
    mode = torchvision.InterpolationMode.BILINEAR
    return lambda image: torchvision.functional.affine(
        image, float(mine["angle"]), move, float(mine["scale"]), shear, mode
    )


MOVES = {
    "crop": (RandomResizedCrop((20, 24), scale=(0.2, 1.0)), resized_crop),
    "affine": (RandomAffine(30, (0.2, 0.2), (0.7, 1.4), 10, "bilinear"), affine),
}


@pytest.mark.parametrize("kind", MOVES)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.float32], ids=str)
def test_maps_move_as_torchvisions_images(
    kind: str, dtype: torch.dtype, implementation: str, torchvision: Any
) -> None:
    """To a level of rounding, and at the picture's edges aside, where torchvision multiplies by its mask once more."""
    from torchvision import tv_tensors

    transform, oracle = MOVES[kind]
    pipeline = stack(transform, *COLOURS)
    params = pipeline.sample(ROWS)
    maps = maps_of(dtype)
    moved = pipeline.apply_soft(maps, params)
    assert moved.dtype == dtype
    level = {torch.uint8: 1.0, torch.uint16: 256.0, torch.float32: 1 / 51}[dtype]
    seen = 0
    for number in range(len(ROWS)):
        move = oracle(torchvision, {name: drawn[number] for name, drawn in params[0].items()})
        expected = move(tv_tensors.Image(maps[number].float()[None]))[0]
        inside = move(tv_tensors.Image(torch.ones(1, *SHAPE[1:])))[0]
        away = (moved[number].float() - expected).abs() / level
        assert away[inside > 1 - 1e-5].max() < (0.1 if dtype == torch.float32 else 0.6)
        assert (moved[number].float()[inside == 0] == 0).all()
        seen += int((inside > 1 - 1e-5).sum())
    assert seen > 0.3 * moved.numel()


@pytest.mark.parametrize("channels", [1, 3, 6])
def test_a_map_moves_as_an_image_of_its_values(channels: int, implementation: str) -> None:
    """Several moves in one pass and out of one, and channels each by itself."""
    moves = (
        RandomHorizontalFlip(),
        RandomAffine(40, interpolation="bilinear"),
        RandomRotation(20),
        RandomResizedCrop(20),
    )
    maps = noise_images(len(ROWS), channels, *SHAPE[1:], dtype=torch.float32)
    pipeline = stack(*moves, *COLOURS)
    params = pipeline.sample(ROWS)
    alone = Pipeline(moves, (1, *SHAPE[1:]), dtype=torch.float32)
    expected = [alone.apply(maps[:, c : c + 1], params[:4])[:, 0] for c in range(channels)]
    torch.testing.assert_close(pipeline.apply_soft(maps, params), torch.stack(expected, 1))


def test_what_is_sampled_from_nan_is_nan_and_nothing_else_changes(implementation: str) -> None:
    pipeline = stack(RandomVerticalFlip(p=0), MOVES["crop"][0])
    params = pipeline.sample(ROWS)
    maps = maps_of(torch.float32)
    whole = pipeline.apply_soft(maps, params)
    reached = torch.zeros_like(maps)
    reached[:, 8:20, 10:] = 1
    holed = pipeline.apply_soft(torch.where(reached > 0, torch.nan, maps), params)
    missing, share = holed.isnan(), pipeline.apply_soft(reached, params)
    assert missing[share > 1e-4].all()
    assert missing.sum() < 1.3 * (share > 0).sum()  # taps of no weight
    torch.testing.assert_close(holed[~missing], whole[~missing])


@pytest.mark.parametrize("fill", [0.0, 2.5])
def test_beyond_the_edges_is_the_fill(fill: float, implementation: str) -> None:
    """In two stages."""
    moves = (RandomAffine(30, (0.3, 0.3), interpolation="bilinear"), RandomRotation(30))
    pipeline = stack(*moves, soft_fill=fill)
    params = pipeline.sample(ROWS)
    maps = torch.full((len(ROWS), *SHAPE[1:]), 5.0)
    whole = pipeline.apply_soft(maps, params)
    assert {round(float(v), 4) for v in whole.unique()} >= {fill, 5.0}
    if fill == 0.0:
        assert pipeline.apply_soft(maps.to(torch.uint8), params).min() == 0
    else:
        message = refusal(lambda: pipeline.apply_soft(maps.to(torch.uint8), params))
        assert message.startswith("Pipeline: soft_fill is 2.5 and the masks are torch.uint8;")


def test_a_fill_that_is_no_number_is_refused() -> None:
    assert refusal(lambda: stack(soft_fill=math.nan)) == (
        "Pipeline: soft_fill is nan; numbers are allowed. Pass one of them."
    )


def test_flips_move_every_bit_and_nothing_returns_the_maps() -> None:
    pipeline = stack(RandomHorizontalFlip(p=1), *COLOURS)
    depths = torch.from_numpy(np.random.default_rng(3).normal(size=(6, 36, 32)).astype(np.float32))
    depths[:, 4] = torch.nan
    moved = pipeline.apply_soft(depths, pipeline.sample(ROWS))
    assert torch.equal(moved.nan_to_num(9), depths.flip(-1).nan_to_num(9))
    deep = torch.arange(6 * 36 * 32).view(6, 36, 32).to(torch.uint16)
    assert torch.equal(pipeline.apply_soft(deep, pipeline.sample(ROWS)).int(), deep.int().flip(-1))
    still = stack(*COLOURS)
    assert still.apply_soft(deep, still.sample(ROWS)).data_ptr() == deep.data_ptr()


@pytest.mark.parametrize("mixing", [MixUp(num_classes=2), CutMix(num_classes=2)], ids=["MixUp", "CutMix"])
def test_mixing_mixes_maps_as_images_and_leaves_those_given(mixing: Transform) -> None:
    pipeline = stack(mixing)
    params = pipeline.sample(ROWS)
    maps = maps_of(torch.float32)
    before = maps.clone()
    expected = Pipeline([mixing], (1, *SHAPE[1:]), dtype=torch.float32).apply(maps[:, None] / 5, params)[:, 0]
    torch.testing.assert_close(pipeline.apply_soft(maps, params), expected * 5)
    assert torch.equal(maps, before)


def test_maps_of_another_size_are_refused() -> None:
    pipeline = stack(RandomHorizontalFlip())
    assert refusal(lambda: pipeline.apply_soft(torch.zeros(6, 9, 9), pipeline.sample(ROWS))) == (
        "Pipeline: maps are torch.float32 [6, 9, 9]; [N, 36, 32] or [N, K, 36, 32] is allowed. Pass such."
    )
