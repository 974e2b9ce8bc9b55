"""TrivialAugmentWide and RandAugment: their tables, their chances, and each operation against Pillow's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from packer.augment import Pipeline, RandAugment, RandomApply, RandomResizedCrop, ToDtype, TrivialAugmentWide
from packer.augment.pass_stages import PartStage, PassStage
from packer.augment.policies import OPERATIONS
from tests.augment.conftest import assert_fair, one, refusal

SIGNED = OPERATIONS[1:10]


def photographs(count: int, size: int = 48, channels: int = 3) -> Tensor:
    """Ramps, discs and noise: uint8 [N, C, H, W], channels_last."""
    draws = np.random.default_rng(count)
    y, x = np.mgrid[:size, :size]
    pixels = np.empty((count, size, size, channels))
    for image in pixels:
        image[:] = x[..., None] * draws.uniform(-3, 3, channels) + draws.uniform(60, 180, channels)
        disc = (x - draws.integers(size)) ** 2 + (y - draws.integers(size)) ** 2 < (size / 4) ** 2
        image[disc] = draws.uniform(0, 255, channels)
    pixels += draws.normal(0, 12, pixels.shape)
    return torch.from_numpy(pixels.clip(0, 255).astype(np.uint8)).permute(0, 3, 1, 2)


# The numbers that the policies' tables come to, worked out by hand: the largest of each row, and its kind.
WIDE = {
    "Shear": 0.99,
    "Translate": 32.0,
    "Rotate": 135.0,
    "Brightness": 0.99,
    "Color": 0.99,
    "Contrast": 0.99,
}
RAND = {"Shear": 0.3, "TranslateX": 150 / 331 * 200, "TranslateY": 150 / 331 * 100, "Rotate": 30.0}
RAND |= dict.fromkeys(("Brightness", "Color", "Contrast", "Sharpness"), 0.9)
WIDE["Sharpness"] = 0.99


@pytest.mark.parametrize("policy", ["wide", "rand"])
def test_magnitudes_are_the_papers(policy: str) -> None:
    table = (TrivialAugmentWide() if policy == "wide" else RandAugment()).magnitudes((3, 100, 200))
    most = WIDE if policy == "wide" else RAND
    assert table.shape == (14, 31)
    for name, row in zip(OPERATIONS, table, strict=True):
        found = [value for key, value in most.items() if name.startswith(key)]
        if found:
            np.testing.assert_allclose(row, np.linspace(0, found[0], 31), rtol=2e-7, atol=1e-7)
        elif name == "Solarize":
            np.testing.assert_allclose(row, np.linspace(1, 0, 31), rtol=2e-7, atol=1e-7)
        elif name == "Posterize" and policy == "wide":
            assert row.tolist() == [8.0] * 3 + [7] * 5 + [6] * 5 + [5] * 5 + [4] * 5 + [3] * 5 + [2] * 3
        elif name == "Posterize":
            assert row.tolist() == [8.0] * 4 + [7] * 8 + [6] * 7 + [5] * 8 + [4] * 4
        else:
            assert not row.any(), name


def test_translations_that_are_whole_stay_whole_in_float32() -> None:
    assert np.trunc(
        TrivialAugmentWide(33).magnitudes((3, 9, 9))[OPERATIONS.index("TranslateX")]
    ).tolist() == list(range(33))


def drawn(
    policy: TrivialAugmentWide | RandAugment, count: int, epoch: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    params = Pipeline([policy], (3, 100, 200), seed=1).sample(np.arange(count), epoch)[0]
    return params["operation"].numpy(), params["magnitude"].numpy()


def test_all_operations_are_equally_likely_in_each_place() -> None:
    operation, _ = drawn(RandAugment(2), 40_000)
    assert_fair(np.bincount(operation[:, 0], minlength=14))
    assert_fair(np.bincount(operation[:, 1], minlength=14))
    assert_fair(np.bincount(operation[:, 0] * 14 + operation[:, 1], minlength=196))
    assert_fair(np.bincount(drawn(TrivialAugmentWide(), 40_000)[0][:, 0], minlength=14))


def test_wide_draws_each_strength_and_each_sign_alike() -> None:
    operation, magnitude = drawn(TrivialAugmentWide(), 60_000)
    table = TrivialAugmentWide().magnitudes((3, 100, 200))
    for name in SIGNED:
        number = OPERATIONS.index(name)
        mine = magnitude[operation[:, 0] == number, 0]
        bins = np.abs(np.abs(mine)[:, None] - table[number]).argmin(1)
        assert np.array_equal(np.abs(mine), table[number, bins]), name
        assert_fair(np.bincount(bins, minlength=31))
        assert abs((mine[mine != 0] < 0).mean() - 0.5) < 4 * 0.5 / math.sqrt(len(mine)), name
    for name in ("Posterize", "Solarize"):
        assert (magnitude[operation[:, 0] == OPERATIONS.index(name)] >= 0).all()


def test_rand_has_one_strength() -> None:
    operation, magnitude = drawn(RandAugment(3, magnitude=20), 3000)
    table = RandAugment().magnitudes((3, 100, 200))
    assert operation.shape == magnitude.shape == (3000, 3)
    assert np.array_equal(np.abs(magnitude), table[operation, 20])


def test_draws_are_a_rows_own() -> None:
    policy = RandAugment()
    operation, magnitude = drawn(policy, 300)
    pipeline = Pipeline([policy], (3, 100, 200), seed=1)
    some = np.array([250, 3, 77])
    params = pipeline.sample(some)[0]
    assert np.array_equal(params["operation"], operation[some])
    assert np.array_equal(params["magnitude"], magnitude[some])
    assert not np.array_equal(drawn(policy, 300, epoch=1)[0], operation)


def forced(images: Tensor, name: str, magnitude: float, **options: Any) -> Tensor:
    """All images through one operation of one strength."""
    policy = TrivialAugmentWide(**options)
    count = len(images)
    params = {
        "operation": torch.full((count, 1), OPERATIONS.index(name)),
        "magnitude": torch.full((count, 1), magnitude, dtype=torch.float64),
    }
    return one(policy, images).apply(images, [params])


def pillow(image: Image.Image, name: str, m: float) -> Image.Image:
    """The operations as the papers' authors wrote them, for Pillow."""
    matrices = {
        "ShearX": (1, m, 0, 0, 1, 0),
        "ShearY": (1, 0, 0, m, 1, 0),
        "TranslateX": (1, 0, -int(m), 0, 1, 0),
        "TranslateY": (1, 0, 0, 0, 1, -int(m)),
    }
    if name in matrices:
        return image.transform(image.size, Image.Transform.AFFINE, matrices[name])
    enhancers: dict[str, Any] = {
        "Brightness": ImageEnhance.Brightness,
        "Color": ImageEnhance.Color,
        "Contrast": ImageEnhance.Contrast,
        "Sharpness": ImageEnhance.Sharpness,
    }
    if name in enhancers:
        enhanced: Image.Image = enhancers[name](image).enhance(1 + m)
        return enhanced
    if name == "Rotate":
        return image.rotate(m)
    if name == "Posterize":
        return ImageOps.posterize(image, int(m))
    if name == "Solarize":
        return image.point([i if i < 255 * m else 255 - i for i in range(256)] * len(image.getbands()))
    return ImageOps.autocontrast(image) if name == "AutoContrast" else ImageOps.equalize(image)


STRENGTHS = [
    (name, sign * m) for name, m in (("ShearX", 0.3), ("ShearY", 0.99), ("Rotate", 31.5)) for sign in (1, -1)
]
STRENGTHS += [("TranslateX", 9.6), ("TranslateX", -9.6), ("TranslateY", 31.0), ("TranslateY", -1.5)]


@pytest.mark.parametrize(("name", "magnitude"), STRENGTHS)
def test_geometry_is_pillows(name: str, magnitude: float) -> None:
    images = photographs(4)
    made = forced(images, name, magnitude)
    wrong = 0
    for image, found in zip(images, made, strict=True):
        expected = np.asarray(pillow(Image.fromarray(image.permute(1, 2, 0).numpy()), name, magnitude))
        wrong += int((found.permute(1, 2, 0).numpy() != expected).any(-1).sum())
    # Pillow's positions are fixed-point numbers, so a few pixels lie on the other side of a border.
    allowed = 0 if name.startswith("Translate") else 0.005
    assert wrong <= allowed * 4 * 48 * 48


# Pillow rounds down where a pass rounds to the nearest; its contrast keeps a mean rounded to a whole number.
COLOURS = [
    ("Brightness", 0.5, 1),
    ("Brightness", -0.66, 1),
    ("Color", 0.9, 2),
    ("Color", -0.5, 2),
    ("Contrast", 0.6, 2),
]
COLOURS += [
    ("Contrast", -0.99, 2),
    ("Sharpness", 0.99, 1),
    ("Sharpness", -0.33, 1),
    ("Posterize", 3, 0),
    ("Posterize", 8, 0),
]
COLOURS += [
    ("Solarize", 0.5, 0),
    ("Solarize", 0.0, 0),
    ("Solarize", 1.0, 0),
    ("AutoContrast", 0, 1),
    ("Equalize", 0, 0),
]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("name", "magnitude", "allowed"), COLOURS)
def test_colours_are_pillows(name: str, magnitude: float, allowed: int, channels: int) -> None:
    if channels == 1 and name == "Color":
        return  # Pillow's greyscale of a grey image is itself; nothing to compare
    images = photographs(4, channels=channels)
    made = forced(images, name, magnitude)
    for image, found in zip(images, made, strict=True):
        source = Image.fromarray(image.permute(1, 2, 0).numpy().squeeze())
        expected = np.asarray(pillow(source, name, magnitude)).reshape(48, 48, channels)
        assert np.abs(found.permute(1, 2, 0).numpy().astype(int) - expected).max() <= allowed


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
def test_identity_leaves_every_bit(interpolation: str) -> None:
    images = photographs(5)
    assert torch.equal(forced(images, "Identity", 0.0, interpolation=interpolation), images)


def test_fill_is_seen_beyond_the_edges() -> None:
    made = forced(photographs(2), "TranslateX", 10.0, fill=(1, 2, 3))
    assert (made[:, :, :, :10] == torch.tensor([1, 2, 3], dtype=torch.uint8)[None, :, None, None]).all()


def test_each_image_of_a_batch_gets_what_it_alone_would_get() -> None:
    images = photographs(60, 32)
    rows = np.arange(500, 560)
    for policy in (TrivialAugmentWide(), RandAugment(3, 15), RandAugment(interpolation="bilinear")):
        pipeline = Pipeline([policy], (3, 32, 32), seed=4)
        before = images.clone()
        together = pipeline(images, rows)
        for i in range(60):
            assert torch.equal(pipeline(images[i : i + 1], rows[i : i + 1])[0], together[i])
        assert torch.equal(images, before)
        assert (together != images).flatten(1).any(1).sum() > 30


def test_the_second_operation_works_on_what_the_first_made() -> None:
    images = photographs(6)
    order = [OPERATIONS.index("Rotate"), OPERATIONS.index("Equalize")]
    params = {
        "operation": torch.tensor([order] * 6),
        "magnitude": torch.tensor([[30.0, 0.0]] * 6, dtype=torch.float64),
    }
    made = Pipeline([RandAugment()], (3, 48, 48)).apply(images, [params])
    assert torch.equal(made, forced(forced(images, "Rotate", 30.0), "Equalize", 0.0))


def test_a_bilinear_crop_before_it_keeps_its_own_pass() -> None:
    pipeline = Pipeline([RandomResizedCrop(32), TrivialAugmentWide(), ToDtype()], (3, 48, 48))
    assert [type(stage) for stage in pipeline._stages] == [PassStage, PartStage, PassStage]


def test_masks_boxes_and_points_follow() -> None:
    masks = torch.arange(48 * 48).view(1, 48, 48)
    pipeline = Pipeline([TrivialAugmentWide()], (3, 48, 48))
    params = [{"operation": torch.tensor([[3]]), "magnitude": torch.tensor([[7.9]], dtype=torch.float64)}]
    moved = pipeline.apply_masks(masks, params)
    assert torch.equal(moved[:, :, 7:], masks[:, :, :-7])
    assert not moved[:, :, :7].any()
    boxes = pipeline.apply_boxes(torch.tensor([[[5.0, 6.0, 20.0, 30.0]]]), params)
    torch.testing.assert_close(boxes, torch.tensor([[[12.0, 6.0, 27.0, 30.0]]]))


def test_random_apply_spares_whole_images() -> None:
    images = photographs(80, 32)
    pipeline = Pipeline([RandomApply([TrivialAugmentWide()], 0.5)], (3, 32, 32))
    params = pipeline.sample(np.arange(80))
    spared = ~params[0]["apply"]
    made = pipeline.apply(images, params)
    assert torch.equal(made[spared], images[spared])
    assert (made[~spared] != images[~spared]).flatten(1).any(1).sum() > 20


def test_no_operations_leave_the_images() -> None:
    images = photographs(3)
    assert torch.equal(Pipeline([RandAugment(0)], (3, 48, 48))(images, np.arange(3)), images)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"num_ops": -1}, "num_ops is -1; whole numbers from 0 up are allowed. Pass one of them."),
        ({"magnitude": 31}, "magnitude is 31; whole numbers from 0 to 30 are allowed. Pass one of them."),
        (
            {"num_magnitude_bins": 1},
            "num_magnitude_bins is 1; whole numbers from 2 up are allowed. Pass one of them.",
        ),
        (
            {"interpolation": "cubic"},
            "interpolation is 'cubic'; 'nearest', 'nearest-exact', 'bilinear' are allowed. Pass one of them.",
        ),
        ({"fill": "red"}, "fill is 'red'; a number, or one a channel, is allowed. Pass such."),
    ],
)
def test_impossible_arguments_are_refused(arguments: dict[str, Any], sentence: str) -> None:
    assert refusal(lambda: RandAugment(**arguments)) == f"RandAugment: {sentence}"


@pytest.mark.parametrize("policy", [TrivialAugmentWide(), RandAugment()])
def test_floating_point_images_are_refused(policy: TrivialAugmentWide | RandAugment) -> None:
    assert refusal(lambda: Pipeline([ToDtype(), policy], (3, 48, 48))) == (
        f"{type(policy).__name__}: the images are torch.float32; torch.uint8 is allowed. Put it before ToDtype and Normalize."
    )


@pytest.mark.parametrize(("name", "magnitude"), [(name, magnitude) for name, magnitude, _ in COLOURS])
def test_colours_keep_a_fourth_channel(name: str, magnitude: float) -> None:
    images = photographs(4, channels=4)
    made = forced(images, name, magnitude)
    assert torch.equal(made[:, 3], images[:, 3])
    colours = images[:, :3].contiguous(memory_format=torch.channels_last)
    # Of three channels a compiled pass makes it, of four the plain one: halves may be rounded to either side.
    difference = made[:, :3].int() - forced(colours, name, magnitude).int()
    assert difference.abs().max() <= 1
    assert (difference != 0).double().mean() < 0.001


def test_geometry_moves_a_fourth_channel_too() -> None:
    images = photographs(4, channels=4)
    assert torch.equal(forced(images, "TranslateX", 7.0)[..., 7:], images[..., :-7])


def test_other_channels_are_refused() -> None:
    assert refusal(lambda: Pipeline([TrivialAugmentWide()], (2, 8, 8))) == (
        "TrivialAugmentWide: the images have 2 channels; 1, 3 and 4 are allowed. "
        "Convert with channels= gray, rgb or rgba."
    )
