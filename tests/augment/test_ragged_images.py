"""Images that differ in size: each is what a pipeline for its own size makes of it, wherever it lies and however small."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from packer import native
from packer.augment import (
    CenterCrop,
    ColorJitter,
    CutMix,
    GaussianBlur,
    LetterBox,
    Normalize,
    Pad,
    Pipeline,
    RandomAffine,
    RandomApply,
    RandomCrop,
    RandomErasing,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomRotation,
    RandomVerticalFlip,
    Resize,
    ToDtype,
    Transform,
)
from packer.augment.pass_stages import run_pass
from packer.augment.passes.prepared_draws import PreparedDraws
from packer.augment.placement import boxes_seen, placed, reduce, reductions
from packer.errors import UsageError
from tests.augment.conftest import RaggedImages, begin, forced, noise_images, side_by_side, smooth_images

SIZES = np.array([(40, 31), (24, 24), (25, 70), (64, 48), (33, 90)])
ROWS = np.array([5, 900, 3, 12345678901, 7])

PIPELINES: list[Sequence[Transform]] = [
    [RandomResizedCrop((20, 16)), RandomHorizontalFlip(), Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))],
    [RandomVerticalFlip(), RandomResizedCrop(24, antialias=False)],
    [RandomResizedCrop(48, scale=(0.9, 1), ratio=(0.1, 0.2))],  # the middle, as ten draws do not fit
    [RandomResizedCrop(12, interpolation="nearest"), ColorJitter(0.4, 0.4, 0.4, 0.2), RandomErasing(1)],
    [Resize((30, 24))],
    [Resize(26), CenterCrop((21, 24)), Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))],
    [CenterCrop((23, 20)), RandomRotation(30)],
    [RandomHorizontalFlip(), RandomCrop(26, padding=3, fill=7)],
    [RandomCrop(24, padding=8, padding_mode="reflect"), GaussianBlur(3)],
    [RandomCrop(40, padding=20, padding_mode="symmetric"), RandomRotation(30, "bilinear")],
    [Pad((5, 2, 0, 9), 7), RandomResizedCrop(20), ToDtype()],
    [RandomVerticalFlip(), Pad(9, padding_mode="edge"), CenterCrop(40)],
    [RandomResizedCrop((20, 30), interpolation="bicubic"), ColorJitter(0.4), Normalize(0.5, 0.5)],
    [RandomCrop((35, 60), 1, True, 7), RandomHorizontalFlip()],
    [RandomHorizontalFlip(), LetterBox((30, 41)), ColorJitter(0.4)],
    [Resize(26, max_size=40), RandomCrop((35, 60), pad_if_needed=True)],
    [CenterCrop(20), RandomAffine(30, scale=(2, 3), interpolation="bilinear", center=(19, 19)), ToDtype()],
]


def each_own(smooth: bool = False) -> list[Tensor]:
    make = smooth_images if smooth else noise_images
    return [make(1, 3, height, width, seed=i) for i, (height, width) in enumerate(SIZES.tolist())]


def together(images: Sequence[Tensor]) -> RaggedImages:
    return side_by_side([image[0].permute(1, 2, 0).numpy() for image in images])


@pytest.mark.parametrize("transforms", PIPELINES, ids=lambda some: type(some[0]).__name__ + str(len(some)))
def test_each_image_is_what_a_pipeline_for_its_size_makes(
    transforms: Sequence[Transform], implementation: str
) -> None:
    images = each_own()
    ragged = Pipeline(transforms, (3, None, None), seed=4)
    drawn = ragged.prepare(ragged.sample(ROWS, 2, sizes=SIZES), len(ROWS), sizes=SIZES)
    made = ragged.apply(begin(ragged, together(images), drawn), drawn)
    boxes = torch.tensor([[[2.0, 3, 20, 21], [0, 0, 60, 60]]])
    for i, image in enumerate(images):
        own = Pipeline(transforms, tuple(image.shape[1:]), seed=4)
        params = own.sample(ROWS[i : i + 1], 2)
        assert torch.equal(made[i], own.apply(image, params)[0])
        assert torch.equal(ragged.apply_boxes(boxes, drawn[i : i + 1]), own.apply_boxes(boxes, params))


@pytest.mark.parametrize("transforms", PIPELINES, ids=lambda some: type(some[0]).__name__ + str(len(some)))
def test_of_an_image_only_the_part_that_is_seen_need_be_there(
    transforms: Sequence[Transform], implementation: str
) -> None:
    images = each_own()
    pipeline = Pipeline(transforms, (3, None, None))
    drawn = pipeline.prepare(pipeline.sample(ROWS, sizes=SIZES), len(ROWS), sizes=SIZES)
    columns = drawn.host[:, : pipeline.first.width]
    boxes = boxes_seen([columns.numpy()])
    cut = zip(images, boxes.tolist(), strict=True)
    parts = together([image[..., top:bottom, left:right] for image, (left, top, right, bottom) in cut])
    numbers = placed(columns, parts.places, boxes, parts.reductions)
    made = run_pass(pipeline.first.what, parts.pixels, PreparedDraws(numbers))
    assert torch.equal(made, begin(pipeline, together(images), drawn))


@pytest.mark.skipif(not native.COMPILED, reason="needs the compiled loops")
@pytest.mark.parametrize("transforms", PIPELINES[:4], ids=str)
def test_both_loops_read_rows_that_lie_apart(transforms: Sequence[Transform]) -> None:
    """Images as windows of one large picture: their strides are its width."""
    picture = noise_images(1, 3, 100, 120)[0].permute(1, 2, 0).contiguous()
    pipeline = Pipeline(transforms, (3, None, None), seed=1)
    columns = pipeline.prepare(pipeline.sample(ROWS, sizes=SIZES), sizes=SIZES).host[
        :, : pipeline.first.width
    ]
    top, left = np.array([0, 9, 70, 36, 60]), np.array([89, 1, 50, 72, 30])
    columns[:, -4] = torch.from_numpy(top * 120 + left)
    columns[:, -3:-1], columns[:, -1] = torch.from_numpy(SIZES), 120
    flat = picture.view(-1, 3)
    with forced("plain"):
        plain = run_pass(pipeline.first.what, flat, PreparedDraws(columns))
    compiled = run_pass(pipeline.first.what, flat, PreparedDraws(columns))
    torch.testing.assert_close(compiled, plain, rtol=0, atol=1 if plain.dtype == torch.uint8 else 2e-4)
    alone = together(
        [
            picture[y : y + h, x : x + w].permute(2, 0, 1)[None]
            for y, x, (h, w) in zip(top, left, SIZES, strict=True)
        ]
    )
    assert torch.equal(
        run_pass(pipeline.first.what, alone.pixels, PreparedDraws(alone.placed(columns))), compiled
    )


@pytest.mark.parametrize(
    "transforms", [*PIPELINES[:3], [Resize(30), RandomCrop(26), ColorJitter(contrast=1)]]
)
def test_a_fourth_number_of_a_pixel_is_passed_over(
    transforms: Sequence[Transform], implementation: str
) -> None:
    images = together(each_own())
    pipeline = Pipeline(transforms, (3, None, None))
    assert pipeline.first.wider
    drawn = pipeline.prepare(pipeline.sample(ROWS, sizes=SIZES), sizes=SIZES)
    last = torch.randint(0, 256, (len(images.pixels), 1), dtype=torch.uint8)
    wider = replace(images, pixels=torch.cat([images.pixels, last], dim=1))
    assert torch.equal(begin(pipeline, wider, drawn), begin(pipeline, images, drawn))


@pytest.mark.skipif(not native.COMPILED, reason="needs the compiled loops")
def test_pixels_that_turn_are_not_wider() -> None:
    images = together(each_own())
    wider = replace(images, pixels=torch.cat([images.pixels, images.pixels[:, :1]], dim=1))
    for transforms, sentence in (
        (
            [RandomResizedCrop(9), RandomRotation(30, interpolation="bilinear")],
            "point outside the images' memory",
        ),
        ([CenterCrop(9)], "the C extension does not support them"),
    ):
        pipeline = Pipeline(transforms, (3, None, None))
        assert not pipeline.first.wider
        with pytest.raises(ValueError, match=sentence), forced("compiled"):
            begin(pipeline, wider, pipeline.prepare(pipeline.sample(ROWS, sizes=SIZES), sizes=SIZES))


@pytest.mark.skipif(not native.COMPILED, reason="needs the compiled loops")
@pytest.mark.parametrize(
    ("column", "number"),
    [(-5, 1.0), (-4, 1.0), (-4, -1.0), (-3, 0.0), (-3, 41.0), (-2, 2.0), (-1, 1e9), (-2, np.nan)],
)
def test_nothing_outside_the_memory_is_read(column: int, number: float) -> None:
    pipeline = Pipeline([CenterCrop(8)], (3, None, None))
    images = together(each_own()[:1])
    columns = images.placed(
        pipeline.prepare(pipeline.sample(ROWS[:1], sizes=SIZES[:1]), 1, sizes=SIZES[:1]).host
    )
    run_pass(pipeline.first.what, images.pixels, PreparedDraws(columns))
    columns[0, column] = number if column != -2 or np.isnan(number) else 32.0
    with pytest.raises(ValueError, match="point outside the images' memory"):
        run_pass(pipeline.first.what, images.pixels, PreparedDraws(columns))


@pytest.mark.skipif(not native.COMPILED, reason="needs the compiled loops")
def test_numbers_of_pixels_that_32_bits_do_not_hold_are_refused() -> None:
    pipeline = Pipeline([CenterCrop(8), RandomRotation(30)], (3, None, None))
    drawn = pipeline.prepare(pipeline.sample(ROWS[:1], sizes=SIZES[:1]), 1, sizes=SIZES[:1])
    bottom, right, stride = 2**24 - 1, 2**24, 128
    place = -(bottom - 1) * stride - (right - 1)
    columns = drawn.host[:, : pipeline.first.width].clone()
    columns[0, 6:10] = torch.tensor([right - 1, bottom - 1] * 2)
    columns[0, -5:] = torch.tensor([*divmod(place, 2**24), bottom, right, stride])
    with pytest.raises(ValueError, match="point outside the images' memory"):
        run_pass(pipeline.first.what, torch.zeros(1, 3, dtype=torch.uint8), PreparedDraws(columns))


def test_large_memories_have_exact_places() -> None:
    place = np.array([2**40 + 12345679])
    images = RaggedImages(torch.zeros(1, 3), place, np.array([[7, 9]]), np.ones(1, np.int64))
    high, low, *rest = images.placed(torch.zeros(1, 23))[0, -5:].double().tolist()
    assert high * 2**24 + low == place[0]
    assert rest == [7, 9, 9]


def test_images_lie_as_small_as_the_result_allows() -> None:
    sizes = np.array([(100, 100), (224, 230), (224, 223), (448, 448), (2000, 900), (8000, 9000)])
    pipeline = Pipeline([Resize((112, 112))], (3, None, None))
    assert pipeline.first.reducible
    columns = pipeline.prepare([{}], len(sizes), sizes=sizes).host.numpy()
    assert reductions(columns).tolist() == [1, 2, 1, 4, 8, 8]
    for other in ([Resize((112, 112), antialias=False)], [Resize((9, 9), "nearest")], [CenterCrop(9)]):
        assert not Pipeline(other, (3, None, None)).first.reducible


@pytest.mark.parametrize("by", [2, 4, 8])
def test_smaller_images_give_nearly_the_same(by: int) -> None:
    """Averages of by x by pixels, as libjpeg makes them; at edges that do not divide, of those there are."""
    images = each_own(smooth=True)
    sides = -(-SIZES // by)
    small = [
        torch.nn.functional.avg_pool2d(image.float(), by, ceil_mode=True, count_include_pad=False)
        .round()
        .byte()
        for image in images
    ]
    assert [tuple(one.shape[2:]) for one in small] == [*map(tuple, sides.tolist())]
    pipeline = Pipeline(
        [RandomResizedCrop(4, scale=(0.7, 1)), RandomHorizontalFlip(), Normalize((0, 0, 0), (1 / 255,) * 3)],
        (3, None, None),
    )
    drawn = pipeline.prepare(pipeline.sample(ROWS, sizes=SIZES), sizes=SIZES)
    full = begin(pipeline, together(images), drawn)
    lying = together(small)
    reduced = RaggedImages(lying.pixels, lying.places, lying.sizes, np.full(len(SIZES), by))
    assert (begin(pipeline, reduced, drawn) - full).abs().mean() < by / 2
    columns = drawn.host.numpy()[:, :-5].copy()
    reduce(columns, np.full(len(SIZES), by))
    assert (columns[:, 8:10] < sides[:, ::-1]).all()


ALIKE = (
    "RandomResizedCrop(size), Resize((height, width)), LetterBox(size), CenterCrop(size) and RandomCrop(size, pad_if_needed=True) "
    "make them alike"
)
FIRST = (
    "Pipeline: the images differ in size, and the first pass has to bring them to one size, with one resize and one fill. "
    f"{ALIKE}. Put one of them first."
)
BEFORE = f"takes images of one size, and these differ in size; {ALIKE}. Put one of them before it."


@pytest.mark.parametrize(
    ("transforms", "sentence"),
    [
        ([], FIRST),
        ([RandomHorizontalFlip(), Resize(9)], FIRST),
        ([Resize(30), RandomResizedCrop(9)], FIRST),
        ([ColorJitter(0.1), CenterCrop(9)], f"ColorJitter: {BEFORE}"),
        ([RandomApply([RandomHorizontalFlip()]), CenterCrop(9)], f"RandomApply: {BEFORE}"),
    ],
)
def test_what_does_not_make_them_alike_is_refused(transforms: Sequence[Transform], sentence: str) -> None:
    with pytest.raises(UsageError) as error:
        Pipeline(transforms, (3, None, None))
    assert str(error.value) == sentence


def test_an_image_that_is_too_small_is_refused() -> None:
    pipeline = Pipeline([CenterCrop(25)], (3, None, None))
    with pytest.raises(UsageError, match="CenterCrop: size is 25x25 and the images are 24x24"):
        pipeline.sample(ROWS, sizes=SIZES)
    with pytest.raises(UsageError, match=r"sizes are int64 \[5, 2\] for 4 images"):
        pipeline.sample(ROWS[:4], sizes=SIZES)
    with pytest.raises(UsageError, match="nowhere else"):
        Pipeline([CenterCrop(25)], (3, 30, 30)).sample(ROWS, sizes=SIZES)


def test_mixing_follows() -> None:
    images = each_own()
    pipeline = Pipeline([RandomResizedCrop(16), CutMix(num_classes=3)], (3, None, None))
    drawn = pipeline.prepare(pipeline.sample(ROWS, sizes=SIZES), sizes=SIZES)
    alike = begin(pipeline, together(images), drawn)
    alone = Pipeline([CutMix()], (3, 16, 16)).apply(alike.clone(), drawn_by(drawn, pipeline))
    assert torch.equal(pipeline.apply(alike, drawn), alone)


def drawn_by(drawn, pipeline):  # type: ignore[no-untyped-def]
    """The draws of what follows the first stage."""
    return type(drawn)(drawn.host[:, pipeline.first.width :])


def test_what_is_too_large_for_every_image_is_said_with_one_size() -> None:
    with pytest.raises(UsageError, match="size is 24x24 and the images are 20x20; up to 20x20"):
        Pipeline([Resize(20), CenterCrop(24)], (3, None, None))
