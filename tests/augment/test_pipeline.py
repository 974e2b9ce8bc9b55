"""packer.augment.pipeline: draws follow the row, nothing else; masks go where images go; one sentence a mistake."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from packer.augment import (
    AlternatingHorizontalFlip,
    CenterCrop,
    ColorJitter,
    Cutout,
    Normalize,
    Pad,
    Pipeline,
    RandomAffine,
    RandomApply,
    RandomCrop,
    RandomErasing,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomRotation,
    RandomVerticalFlip,
    Resize,
    Transform,
    pass_stages,
)
from tests.augment.conftest import assert_unrelated, forced, noise_images, refusal

SHAPE = (3, 24, 20)
MEAN, STD = [0.5, 0.4, 0.3], [0.25, 0.2, 0.3]


def all_operations(dtype: torch.dtype = torch.float32) -> list[Transform]:
    return [
        AlternatingHorizontalFlip(),
        RandomVerticalFlip(),
        RandomResizedCrop((20, 24), (0.3, 1.0)),
        RandomCrop(20, padding=3),
        RandomRotation(20, "bilinear"),
        RandomApply([ColorJitter(0.4, 0.4, 0.4, 0.1), RandomGrayscale(0.3)], 0.7),
        Cutout(5),
        Normalize(MEAN, STD, dtype),
        RandomErasing(0.6, value="random"),
    ]


def make_stack(**options: Any) -> Pipeline:
    return Pipeline(all_operations(), SHAPE, **options)


def equal(first: Any, second: Any) -> bool:
    """Whether two samples hold the same numbers."""
    return len(first) == len(second) and all(
        a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
        for a, b in zip(first, second, strict=True)
    )


# --- draws -------------------------------------------------------------------------------------------------


def test_draws_are_plain_tensors_on_the_cpu_an_entry_a_row() -> None:
    drawn = make_stack().sample(np.arange(7), 1)
    # One entry an operation, those of RandomApply among them.
    assert [sorted(each) for each in drawn] == [
        ["flip"],
        ["flip"],
        ["height", "left", "top", "width"],
        ["left", "top"],
        ["angle"],
        ["apply", "brightness", "contrast", "hue", "order", "saturation"],
        ["apply", "gray"],
        ["x", "y"],
        [],
        ["height", "left", "seed", "top", "width"],
    ]
    for each in drawn:
        for values in each.values():
            assert type(values) is Tensor
            assert values.device.type == "cpu"
            assert len(values) == 7
            values.zero_()  # they are the caller's


def test_a_row_draws_the_same_in_any_batch_order_split_and_rank() -> None:
    stack = make_stack(seed=5)
    rows = np.random.default_rng(0).permutation(500)
    whole = stack.sample(np.arange(500), 3)

    def part(chosen: Any) -> list[dict[str, Tensor]]:
        return [{name: values[chosen] for name, values in each.items()} for each in whole]

    for size in (1, 7, 128, 500):
        for start in range(0, 500, size):
            batch = rows[start : start + size]
            assert equal(stack.sample(batch, 3), part(batch))
            if size == 1 and start > 20:
                break
    for world in (2, 3):
        for rank in range(world):
            mine = rows[rank::world]
            assert equal(stack.sample(mine, 3), part(mine))
    assert equal(stack.sample(torch.from_numpy(rows), 3), part(rows))
    # A process that takes up an epoch in its middle has drawn nothing before.
    assert equal(make_stack(seed=5).sample(rows[250:], 3), part(rows[250:]))


def test_epochs_and_seeds_draw_anew_and_may_be_given() -> None:
    stack = make_stack(seed=5)
    rows = np.arange(50)
    assert equal(stack.sample(rows, 0), stack.sample(rows))
    assert not equal(stack.sample(rows, 0), stack.sample(rows, 1))
    assert not equal(stack.sample(rows), make_stack(seed=6).sample(rows))
    assert equal(stack.sample(rows, seed=6), make_stack(seed=6).sample(rows))
    assert equal(stack.at(SHAPE, seed=6).sample(rows), make_stack(seed=6).sample(rows))


def test_those_of_a_randomapply_are_applied_together_with_its_probability() -> None:
    gated = Pipeline([RandomApply([RandomHorizontalFlip(), RandomRotation(9)], 0.2)], SHAPE)
    flip, turn = (each["apply"] for each in gated.sample(np.arange(40_000)))
    assert torch.equal(flip, turn)
    assert abs(flip.double().mean() - 0.2) < 3.5 * (0.16 / 40_000) ** 0.5


def test_operations_samples_and_epochs_are_unrelated() -> None:
    stack = Pipeline(
        [
            RandomHorizontalFlip(),
            RandomVerticalFlip(),
            RandomCrop(12),
            RandomCrop(8),
            RandomRotation(9),
            RandomRotation(9),
            ColorJitter(0.4, 0.4),
            ColorJitter(0.4, 0.4),
            Cutout(3),
            RandomErasing(1, (0.1, 0.1), (1, 1)),
        ],
        SHAPE,
    )
    columns = [
        values[:20_000].double().numpy()
        for epoch in (0, 1)
        for each in stack.sample(np.arange(20_001), epoch)
        for name, values in each.items()
        if name not in ("order", "height", "width")
    ]
    after = [
        values[1:].double().numpy() for each in stack.sample(np.arange(20_001), 0) for values in each.values()
    ]
    assert_unrelated(*columns, after[0], after[2])


# --- images ------------------------------------------------------------------------------------------------


def test_applying_twice_gives_the_same_bits_and_leaves_the_images(implementation: str) -> None:
    images = noise_images(9, *SHAPE)
    before = images.clone()
    stack = make_stack()
    params = stack.sample(np.arange(9))
    first = stack.apply(images, params)
    assert torch.equal(stack.apply(images, params), first)
    assert torch.equal(stack(images, np.arange(9)), first)
    assert torch.equal(stack.apply(images, stack.prepare(params)), first)
    assert torch.equal(images, before)
    assert first.shape == (9, *stack.output_shape) == (9, 3, 20, 20)
    assert first.dtype == stack.output_dtype == torch.float32
    assert first.permute(0, 2, 3, 1).is_contiguous()


def test_a_sample_is_the_same_in_any_batch(implementation: str) -> None:
    images = noise_images(24, *SHAPE)
    stack = make_stack()
    rows = np.arange(1000, 1024)
    whole = stack(images, rows, 2)
    order = np.random.default_rng(0).permutation(24)
    assert torch.equal(stack(images[order], rows[order], 2), whole[order])
    for start in range(0, 24, 9):
        part = slice(start, start + 9)
        assert torch.equal(stack(images[part], rows[part], 2), whole[part])
    params = stack.prepare(stack.sample(rows, 2))
    assert len(params) == 24
    assert torch.equal(stack.apply(images[5:12], params[5:12]), whole[5:12])


@pytest.mark.parametrize("transforms", [all_operations(), [RandomCrop(8)], []])
def test_out_takes_the_result(transforms: list[Transform], implementation: str) -> None:
    images = noise_images(9, *SHAPE)
    stack = Pipeline(transforms, SHAPE)
    params = stack.sample(np.arange(9))
    expected = stack.apply(images, params)
    out = torch.empty_like(expected)
    assert stack.apply(images, params, out=out) is out
    assert torch.equal(out, expected)


def test_large_batches_go_through_the_stages_in_parts(
    monkeypatch: pytest.MonkeyPatch, implementation: str
) -> None:
    images = noise_images(15, *SHAPE)
    stack = make_stack()
    params = stack.sample(np.arange(15))
    whole = stack.apply(images, params)
    monkeypatch.setattr(pass_stages, "CPU_STAGE_BYTES", 4 * images[0].nbytes)
    assert len(stack._stages) > 1
    assert torch.equal(stack.apply(images, params), whole)
    assert torch.equal(stack.apply(images, params, out=torch.empty_like(whole)), whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_floating_point_images_are_taken_from_zero_to_one(dtype: torch.dtype, implementation: str) -> None:
    bytes_ = noise_images(9, *SHAPE)
    images = (bytes_.double() / 255).to(dtype)
    stack = Pipeline(all_operations()[:-1], SHAPE, dtype=dtype)
    expected = Pipeline(all_operations()[:-1], SHAPE)(bytes_, np.arange(9))
    found = stack(images, np.arange(9))
    allowed = {torch.float32: 2e-4, torch.float16: 5e-3, torch.bfloat16: 4e-2}[dtype] / min(STD)
    if dtype != torch.float32:  # between two stages floats are not rounded as bytes are
        allowed += 1.5 / 255 / min(STD)
    torch.testing.assert_close(found, expected, rtol=0, atol=max(allowed, 2.5 / 255 / min(STD)))
    geometry = Pipeline([RandomCrop(8)], SHAPE, dtype=dtype)
    assert geometry(images, np.arange(9)).dtype == dtype


def test_floating_point_values_of_every_image_are_looked_at() -> None:
    """On the CPU. On a GPU looking waits for the device, so only a first batch is looked at."""
    stack = Pipeline([RandomHorizontalFlip()], SHAPE, dtype=torch.float32)
    images = noise_images(9, *SHAPE, torch.float32)
    stack(images, np.arange(9))
    for wrong in (7.0, -0.5, torch.nan):
        images[8, 0, 3, 4] = wrong
        assert "floating-point images from 0 to 1 are allowed" in refusal(lambda: stack(images, np.arange(9)))


def test_any_strides_are_taken(implementation: str) -> None:
    images = noise_images(9, *SHAPE)
    stack = make_stack()
    params = stack.sample(np.arange(9))
    expected = stack.apply(images, params)
    assert torch.equal(stack.apply(images.contiguous(), params), expected)
    wide = torch.zeros(9, 3, 24, 40, dtype=torch.uint8)
    wide[..., ::2] = images
    assert torch.equal(stack.apply(wide[..., ::2], params), expected)


def test_no_images_make_none(implementation: str) -> None:
    stack = make_stack()
    nothing = stack(noise_images(0, *SHAPE), np.arange(0))
    assert nothing.shape == (0, 3, 20, 20)
    assert nothing.dtype == torch.float32
    assert stack.apply_masks(torch.zeros(0, 24, 20), stack.sample(np.arange(0))).shape == (0, 20, 20)


def test_an_empty_pipeline_returns_the_images() -> None:
    images = noise_images(3, *SHAPE)
    stack = Pipeline([], SHAPE)
    assert stack(images, np.arange(3)) is images
    assert stack.output_shape == SHAPE
    assert stack.output_dtype == torch.uint8


def test_a_pipeline_survives_pickling() -> None:
    images = noise_images(4, *SHAPE)
    stack = make_stack(seed=3)
    assert torch.equal(pickle.loads(pickle.dumps(stack))(images, np.arange(4)), stack(images, np.arange(4)))


def test_a_pipeline_is_made_for_a_shape_later() -> None:
    unknown = Pipeline(all_operations(), seed=3, mask_fill=255)
    for shape in (SHAPE, (3, 40, 33)):
        known = unknown.at(shape)
        images = noise_images(4, *shape)
        expected = Pipeline(all_operations(), shape, seed=3)(images, np.arange(4))
        assert torch.equal(known(images, np.arange(4)), expected)
        assert known.mask_fill == 255


# --- masks -------------------------------------------------------------------------------------------------

GEOMETRIES: list[list[Transform]] = [
    [RandomHorizontalFlip(), RandomVerticalFlip()],
    [RandomCrop(14)],
    [RandomCrop((22, 20), padding=5)],
    [RandomCrop(20, padding=5, padding_mode="edge"), RandomHorizontalFlip()],
    [RandomCrop(20, padding=5, padding_mode="reflect")],
    [CenterCrop(11)],
    [Resize((30, 17), "nearest")],
    [RandomResizedCrop(16, interpolation="nearest")],
    [RandomRotation(70)],
    [RandomAffine(40, (0.2, 0.2), (0.6, 1.5), 20)],
    [
        RandomResizedCrop(16, interpolation="nearest"),
        RandomHorizontalFlip(),
        RandomRotation(30),
        CenterCrop(12),
    ],
    [RandomRotation(70), RandomCrop(24, padding=4), RandomApply([RandomVerticalFlip()], 0.5)],
]


@pytest.mark.parametrize("transforms", GEOMETRIES)
@pytest.mark.parametrize("channels", [1, 3])
def test_a_mask_moves_as_an_image_of_its_values(
    transforms: list[Transform], channels: int, implementation: str
) -> None:
    images = noise_images(10, channels, 24, 20)
    stack = Pipeline(transforms, (channels, 24, 20))
    params = stack.sample(np.arange(10))
    expected = stack.apply(images, params)
    before = images.clone()
    assert torch.equal(stack.apply_masks(images, params), expected)
    assert torch.equal(stack.apply_masks(images[:, 0], params), expected[:, 0])
    assert torch.equal(images, before)


NUMBERS = ("uint8", "int8", "bool", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")


@pytest.mark.parametrize("transforms", GEOMETRIES)
def test_masks_of_every_number_type_keep_their_values(
    transforms: list[Transform], implementation: str
) -> None:
    numbers = noise_images(10, 2, 24, 20)[:, 0] % 100
    for dtype in (getattr(torch, name) for name in NUMBERS):
        masks = (numbers % 2).bool() if dtype == torch.bool else numbers.to(dtype)
        fill = 1 if dtype == torch.bool else 117
        stack = Pipeline(transforms, SHAPE, mask_fill=fill)
        params = stack.sample(np.arange(10))
        moved, reference = stack.apply_masks(masks, params), stack.apply_masks(numbers, params)
        assert moved.dtype == dtype
        if dtype == torch.bool:
            assert torch.equal(moved, (reference % 2).bool()), dtype  # the fill, 1, is odd as 117 is
        else:
            assert torch.equal(moved, reference.to(dtype)), dtype
        assert set(reference.unique().tolist()) <= set(range(100)) | {fill}, dtype


def test_class_numbers_beyond_a_byte_and_nan_survive(implementation: str) -> None:
    stack = Pipeline([RandomAffine(40, (0.2, 0.2), (0.6, 1.5), 20, "bilinear")], SHAPE, mask_fill=-100)
    masks = torch.randint(0, 3, (20, 24, 20), generator=torch.Generator().manual_seed(0)) * 2**40 - 7
    params = stack.sample(np.arange(20))
    assert set(stack.apply_masks(masks, params).unique().tolist()) == {-7, 2**40 - 7, 2**41 - 7, -100}
    depths = torch.full((20, 1, 24, 20), torch.nan)
    moved = stack.apply_masks(depths, params)
    assert (moved.isnan() | (moved == -100)).all()


@pytest.mark.parametrize(
    "transforms",
    [
        [RandomResizedCrop(40, (0.3, 1)), RandomHorizontalFlip(), RandomRotation(40, "bilinear")],
        [
            RandomAffine(40, (0.2, 0.2), (0.6, 1.5), 20, "bilinear"),
            ColorJitter(hue=0.1),
            RandomCrop(40, padding=6),
        ],
        [Resize(64), RandomCrop(48), Normalize([0.0], [1.0]), RandomErasing(0)],
    ],
)
def test_masks_of_smooth_sampling_are_in_step_with_the_image(
    transforms: list[Transform], implementation: str
) -> None:
    """An image that is 0 on one side of a line and 255 on the other: the mask is where it is brighter than half."""
    draws = np.random.default_rng(2)
    y, x = np.mgrid[0:48, 0:48] - 23.5
    normal = draws.normal(size=(2, 10, 1, 1))
    sides = (normal[0] * x + normal[1] * y > 0).astype(np.uint8)
    masks = torch.from_numpy(sides)
    images = 255 * masks[:, None]
    stack = Pipeline(transforms, (1, 48, 48))
    params = stack.sample(np.arange(10))
    made = stack.apply(images, params)[:, 0].double()
    moved = stack.apply_masks(masks, params)
    bright = made > made.max() / 2
    assert set(moved.unique().tolist()) == {0, 1}
    # They disagree where the line or an edge runs through a pixel.
    assert (bright != moved.bool()).double().mean() < 0.02


def test_masks_are_not_blotted_out(implementation: str) -> None:
    stack = Pipeline([Cutout(9), Normalize(MEAN, STD), RandomErasing(1)], SHAPE)
    masks = noise_images(5, 1, 24, 20)[:, 0]
    assert torch.equal(stack.apply_masks(masks, stack.sample(np.arange(5))), masks)


# --- mistakes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attempt", "sentence"),
    [
        (
            lambda: Pipeline([torch.nn.Identity()], SHAPE),  # type: ignore[list-item]
            "augment: Identity is no transform of packer.augment. Pass a list of these, or one text; a function of the sample is "
            "passed as transform=.",
        ),
        (
            lambda: Pipeline([], SHAPE, dtype=torch.int64),
            "Pipeline: dtype is torch.int64; torch.uint8, torch.uint16, torch.float32, torch.float16, torch.bfloat16 are allowed. "
            "Convert the images first.",
        ),
        (
            lambda: Pipeline([], (24, 20)),  # type: ignore[arg-type]
            "Pipeline: shape is (24, 20); (channels, height, width) is allowed. Pass that of an image.",
        ),
        (
            lambda: Pipeline([], (3, 0, 20)),
            "Pipeline: shape is (3, 0, 20); (channels, height, width) is allowed. Pass that of an image.",
        ),
        (
            lambda: Pipeline([RandomHorizontalFlip()]).sample(np.arange(3)),
            "Pipeline: the images' shape is not known. Pass shape=(C, H, W), or call at(shape) first.",
        ),
        (
            lambda: make_stack()(noise_images(4, 3, 20, 24), np.arange(4)),
            "AlternatingHorizontalFlip: the images are torch.uint8 [4, 3, 20, 24]; torch.uint8 [N, 3, 24, 20] is allowed. "
            "Pass such a batch.",
        ),
        (
            lambda: make_stack().apply(
                noise_images(4, *SHAPE).permute(0, 2, 3, 1), make_stack().sample(np.arange(4))
            ),
            "AlternatingHorizontalFlip: the images are torch.uint8 [4, 24, 20, 3]; torch.uint8 [N, 3, 24, 20] is allowed. "
            "They look channels-last: pass images.permute(0, 3, 1, 2).",
        ),
        (
            lambda: make_stack()(noise_images(4, *SHAPE)[0], np.arange(1)),
            "AlternatingHorizontalFlip: the images are torch.uint8 [3, 24, 20]; torch.uint8 [N, 3, 24, 20] is allowed. Pass such a batch.",
        ),
        (
            lambda: make_stack()(noise_images(4, *SHAPE).float(), np.arange(4)),
            "AlternatingHorizontalFlip: the images are torch.float32 [4, 3, 24, 20]; torch.uint8 [N, 3, 24, 20] is allowed. "
            "Pass such, or create the pipeline with dtype=torch.float32.",
        ),
        (
            lambda: make_stack(dtype=torch.float32)(noise_images(4, *SHAPE), np.arange(4)),
            "AlternatingHorizontalFlip: the images are torch.uint8 [4, 3, 24, 20]; torch.float32 [N, 3, 24, 20] is allowed. "
            "Pass such, or create the pipeline with dtype=torch.uint8.",
        ),
        (
            lambda: make_stack(dtype=torch.float32)(torch.full((4, *SHAPE), 128.0), np.arange(4)),
            "AlternatingHorizontalFlip: the images' values go from 128 to 128; floating-point images from 0 to 1 are "
            "allowed. Divide them by 255, or pass uint8; normalise last.",
        ),
        (
            lambda: make_stack(dtype=torch.float32)(torch.full((4, *SHAPE), -0.5), np.arange(4)),
            "AlternatingHorizontalFlip: the images' values go from -0.5 to -0.5; floating-point images from 0 to 1 are "
            "allowed. Divide them by 255, or pass uint8; normalise last.",
        ),
        (
            lambda: make_stack().apply(noise_images(4, *SHAPE), make_stack().sample(np.arange(3))),
            "AlternatingHorizontalFlip: flip is torch.bool [3]; a plain tensor on the CPU, torch.bool [4], is allowed. "
            "Keep its type, and sample the batch's rows.",
        ),
        (
            lambda: make_stack().apply(
                noise_images(4, *SHAPE), make_stack().prepare(make_stack().sample(np.arange(3)))
            ),
            "Pipeline: params are of 3 samples and there are 4 images; as many are allowed. Sample the batch's rows.",
        ),
        (
            lambda: make_stack().apply(noise_images(4, *SHAPE), make_stack().sample(np.arange(4))[1:]),
            "Pipeline: params are no list of 10 dictionaries, one a transform. Pass what sample() returned.",
        ),
        (
            lambda: make_stack().apply_masks(torch.zeros(4, 20, 24), make_stack().sample(np.arange(4))),
            "Pipeline: masks are torch.float32 [4, 20, 24]; [N, 24, 20] or [N, K, 24, 20] is allowed. Pass such.",
        ),
        (
            lambda: make_stack().apply_masks(torch.zeros(24, 20), make_stack().sample(np.arange(4))),
            "Pipeline: masks are torch.float32 [24, 20]; [N, 24, 20] or [N, K, 24, 20] is allowed. Pass such.",
        ),
        (
            lambda: Pipeline([RandomHorizontalFlip()], SHAPE, mask_fill=300).apply_masks(
                torch.zeros(1, *SHAPE[1:], dtype=torch.uint8), [{"flip": torch.zeros(1, dtype=torch.bool)}]
            ),
            "Pipeline: mask_fill is 300 and the masks are torch.uint8; a number of this type is allowed. Pass another.",
        ),
        (
            lambda: Pipeline([], SHAPE, seed=1.5),  # type: ignore[arg-type]
            "Pipeline: seed is 1.5; whole numbers are allowed. Pass one of them.",
        ),
    ],
)
def test_mistakes_are_sentences(attempt: Any, sentence: str) -> None:
    assert refusal(attempt) == sentence


@pytest.mark.parametrize(
    "out",
    [
        torch.empty(4, 3, 20, 20, dtype=torch.float16),
        torch.empty(5, 3, 20, 20),
        torch.empty(4, 3, 24, 20),
        torch.empty(4, 3, 20, 20, device="meta"),
    ],
)
def test_an_out_that_does_not_fit_is_refused(out: Tensor) -> None:
    stack = make_stack()
    assert refusal(lambda: stack.apply(noise_images(4, *SHAPE), stack.sample(np.arange(4)), out=out)) == (
        f"out: it is {out.dtype} {list(out.shape)} on {out.device}; torch.float32 [4, 3, 20, 20] on cpu is allowed. "
        "Allocate that, or pass none."
    )


# --- a GPU -------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_cuda_equals_the_cpu(dtype: torch.dtype, implementation: str) -> None:
    images = noise_images(33, *SHAPE)
    for transforms in (all_operations(dtype), [RandomCrop(16, padding=4), Normalize(MEAN, STD, dtype)]):
        stack = Pipeline(transforms, SHAPE)
        params = stack.sample(np.arange(33))
        with forced("plain"):
            on_cpu = stack.apply(images, params)
        on_cuda = stack.apply(images.cuda(), params)
        assert on_cuda.is_cuda
        assert on_cuda.permute(0, 2, 3, 1).is_contiguous()
        difference = (on_cuda.cpu().double() - on_cpu.double()).abs()
        # A byte between two stages may be rounded the other way.
        assert (
            difference.max()
            <= 2 / 255 / min(STD) + {torch.float32: 0, torch.float16: 4e-3, torch.bfloat16: 4e-2}[dtype]
        )
        assert difference.mean() < 2e-3


@pytest.mark.gpu
@pytest.mark.parametrize("transforms", GEOMETRIES)
def test_masks_boxes_and_points_move_on_cuda_as_on_the_cpu(transforms: list[Transform]) -> None:
    stack = Pipeline(transforms, SHAPE)
    params = stack.sample(np.arange(30))
    masks = noise_images(30, 1, 24, 20)[:, 0].long()
    on_cpu, on_cuda = stack.apply_masks(masks, params), stack.apply_masks(masks.cuda(), params).cpu()
    assert (on_cpu != on_cuda).double().mean() < 2e-3
    boxes = torch.rand(30, 4, 4, dtype=torch.float64) * 20
    torch.testing.assert_close(
        stack.apply_boxes(boxes.cuda(), params).cpu(), stack.apply_boxes(boxes, params)
    )
    points = boxes[..., :2]
    torch.testing.assert_close(
        stack.apply_keypoints(points.cuda(), params).cpu(),
        stack.apply_keypoints(points, params),
        equal_nan=True,
    )


@pytest.mark.gpu
def test_applying_does_not_wait_for_the_device() -> None:
    images = noise_images(33, *SHAPE).cuda()
    stack = make_stack()
    params = stack.sample(np.arange(33))
    stack.apply(images, params)  # kernels are compiled once
    torch.cuda.set_sync_debug_mode("error")
    try:
        stack.apply(images, params)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_results_may_go_where_the_images_are(implementation: str) -> None:
    """Not that it saves anything: a pass may write a pixel before it reads it for another."""
    images = noise_images(6, *SHAPE)
    stack = Pipeline([RandomVerticalFlip(1.0), RandomHorizontalFlip(1.0)], SHAPE)
    params = stack.sample(np.arange(6))
    expected = stack.apply(images, params).clone()
    assert torch.equal(stack.apply(images, params, out=images), expected)
    assert torch.equal(images, expected)


def test_a_text_is_a_list() -> None:
    stack = Pipeline("RandomCrop(16, padding=2), RandomHorizontalFlip(p=0.25)", SHAPE)
    assert [type(t).__name__ for t in stack.transforms] == ["RandomCrop", "RandomHorizontalFlip"]
    assert stack.transforms[1].p == 0.25  # type: ignore[attr-defined]
    assert repr(stack).startswith("Pipeline([RandomCrop(size=(16, 16), padding=(2, 2, 2, 2), ")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"turn": torch.ones(4, dtype=torch.bool)},
            "RandomHorizontalFlip: the params are turn; flip are allowed. Pass what sample() returned, in order.",
        ),
        (
            {"flip": torch.tensor([1, 0, 1, 0])},
            "RandomHorizontalFlip: flip is torch.int64 [4]; a plain tensor on the CPU, torch.bool [4], is allowed. "
            "Keep its type, and sample the batch's rows.",
        ),
        (
            {"flip": torch.ones(3, dtype=torch.bool)},
            "RandomHorizontalFlip: flip is torch.bool [3]; a plain tensor on the CPU, torch.bool [4], is allowed. "
            "Keep its type, and sample the batch's rows.",
        ),
        (
            {"flip": np.ones(4, np.bool_)},
            "RandomHorizontalFlip: flip is a ndarray; a plain tensor on the CPU, torch.bool [4], is allowed. "
            "Keep its type, and sample the batch's rows.",
        ),
    ],
)
def test_changed_params_must_stay_what_they_were(change: dict[str, Any], sentence: str) -> None:
    stack = Pipeline([RandomHorizontalFlip()], SHAPE)
    assert refusal(lambda: stack.apply(noise_images(4, *SHAPE), [change])) == sentence


def test_masks_of_many_bytes_move_as_others() -> None:
    stack = Pipeline([RandomCrop(20, padding=4), RandomRotation(30)], SHAPE, mask_fill=-7)
    params = stack.sample(np.arange(5))
    masks = torch.from_numpy(np.random.default_rng(0).integers(-(2**62), 2**62, (5, 3, *SHAPE[1:])))
    moved = stack.apply_masks(masks, params)
    for layer in range(3):
        assert torch.equal(moved[:, layer], stack.apply_masks(masks[:, layer], params))
    small = stack.apply_masks((masks % 100).to(torch.int16), params)
    inside = moved != -7
    assert torch.equal(small[inside].long(), (moved % 100)[inside])
    assert (small[~inside] == -7).all()


def test_what_was_prepared_by_another_pipeline_is_refused() -> None:
    flip, jitter = Pipeline([RandomHorizontalFlip()], SHAPE), Pipeline([ColorJitter(0.5)], SHAPE)
    prepared = flip.prepare(flip.sample(np.arange(2)))
    assert refusal(lambda: jitter.apply(noise_images(2, *SHAPE), prepared)) == (
        "Pipeline: params were prepared by another pipeline. Prepare them by this one."
    )


@pytest.mark.parametrize(
    ("transform", "changes"),
    [
        (Resize(9), {"interpolation": "nearest"}),
        (RandomRotation(40), {"interpolation": "bilinear"}),
        (Pad(0), {"padding": 2, "padding_mode": "edge"}),
        (RandomCrop(8), {"padding": 3, "padding_mode": "symmetric"}),
        (ColorJitter(0.4), {"brightness": 0.9, "contrast": 0.5}),
    ],
)
def test_a_parameter_that_is_set_counts_as_if_it_had_been_passed(
    transform: Transform, changes: dict[str, Any]
) -> None:
    before = {name: getattr(transform, name) for name in type(transform).__dataclass_fields__}  # type: ignore[attr-defined]
    for name, value in changes.items():
        setattr(transform, name, value)
    passed = type(transform)(**(before | changes))
    assert repr(transform) == repr(passed)
    images, rows = noise_images(6, 3, 16, 16), np.arange(6)
    found, expected = (Pipeline([one], (3, 16, 16))(images, rows) for one in (transform, passed))
    assert torch.equal(found, expected)
