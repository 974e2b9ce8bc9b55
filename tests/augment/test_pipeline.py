"""packer.augment.pipeline: draws follow the row, order matters, passes and devices do not."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from packer.augment import Normalize, Pipeline, RandomCrop, RandomHorizontalFlip, pipeline
from packer.errors import UsageError
from packer.randomness import key

SHAPE = (3, 10, 9)


def make_images(count: int) -> Tensor:
    pixels = np.random.default_rng(count).integers(0, 256, (count, 10, 9, 3), dtype=np.uint8)
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)


def make_stack(dtype: torch.dtype = torch.float32) -> Pipeline:
    return Pipeline(
        [
            RandomHorizontalFlip(),
            RandomCrop(8, padding=2, padding_mode="reflect"),
            Normalize([0.5, 0.4, 0.3], [0.25, 0.2, 0.3], dtype),
        ]
    )


class Recorder:
    """Adds what was drawn, and remembers the keys and shapes it was given."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, tuple[int, int, int]]] = []

    def output_shape(self, shape: tuple[int, int, int]) -> tuple[int, int, int]:
        return shape

    def sample(
        self, rows: NDArray[np.int64], key: int, shape: tuple[int, int, int]
    ) -> dict[str, NDArray[Any]]:
        self.seen.append((key, shape))
        return {"add": rows}

    def apply(self, images: Tensor, params: dict[str, Tensor]) -> Tensor:
        return images + params["add"][:, None, None, None]


def test_operations_are_applied_in_order() -> None:
    images, rows = make_images(6), np.arange(6)
    stack = make_stack()
    draws = stack.sample(rows, 1, 2, SHAPE)
    expected = images
    for transform, drawn in zip(stack.transforms, draws, strict=True):
        expected = transform.apply(expected, {name: torch.from_numpy(draw) for name, draw in drawn.items()})
    result = stack.apply(images, draws)
    assert torch.equal(result, expected)
    assert torch.equal(stack(images, rows, seed=1, epoch=2), expected)
    assert tuple(result.shape[1:]) == stack.output_shape(SHAPE) == (3, 8, 8)
    assert result.is_contiguous(memory_format=torch.channels_last)


def test_a_row_gets_the_same_draws_in_every_batch() -> None:
    images, rows = make_images(40), np.arange(1000, 1040)
    stack = make_stack()
    together = stack(images, rows, seed=3, epoch=1)
    shuffled = np.random.default_rng(0).permutation(40)
    assert torch.equal(stack(images[shuffled], rows[shuffled], seed=3, epoch=1), together[shuffled])
    alone = [stack(images[i : i + 1], rows[i : i + 1], seed=3, epoch=1) for i in range(40)]
    assert torch.equal(torch.cat(alone), together)


def test_seed_epoch_and_place_change_the_draws() -> None:
    rows = np.arange(64)
    flips = Pipeline([RandomHorizontalFlip(), RandomHorizontalFlip()])
    draws = [
        flips.sample(rows, seed, epoch, SHAPE)[place]["flip"].tobytes()
        for seed in (0, 1)
        for epoch in (0, 1)
        for place in (0, 1)
    ]
    assert len(set(draws)) == 8


def test_keys_and_shapes_are_as_promised() -> None:
    first, second = Recorder(), Recorder()
    Pipeline([first, RandomCrop(4), second]).sample(np.arange(2), 7, 8, SHAPE)
    assert first.seen == [(key(7, 8, "augment", 0, "Recorder"), SHAPE)]
    assert second.seen == [(key(7, 8, "augment", 2, "Recorder"), (3, 4, 4))]


@pytest.mark.parametrize("pass_bytes", [1, 270 * 4, 270 * 5, 1 << 30])
def test_passes_do_not_change_the_result(pass_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    images, rows = make_images(13), np.arange(13)
    stack = make_stack(torch.float16)
    whole = stack(images, rows)
    monkeypatch.setattr(pipeline, "_CPU_PASS_BYTES", pass_bytes)
    assert torch.equal(stack(images, rows), whole)
    out = torch.empty_like(whole)
    assert stack.apply(images, stack.sample(rows, 0, 0, SHAPE), out=out) is out
    assert torch.equal(out, whole)


def test_large_batches_are_cut_into_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting(Recorder):
        def apply(self, images: Tensor, params: dict[str, Tensor]) -> Tensor:
            counts.append(len(images))
            return super().apply(images, params)

    counts: list[int] = []
    monkeypatch.setattr(pipeline, "_CPU_PASS_BYTES", 270 * 4)
    result = Pipeline([Counting()])(make_images(10).long(), np.arange(10))
    assert counts == [1] * 10  # int64 images are 8 times as large
    counts.clear()
    assert Pipeline([Counting()])(make_images(10), np.arange(10)).equal(result)
    assert counts == [4, 4, 2]


def test_an_empty_pipeline_returns_the_images() -> None:
    images = make_images(3)
    assert Pipeline([])(images, np.arange(3)) is images


def test_a_pipeline_survives_pickling() -> None:
    images, rows = make_images(4), np.arange(4)
    stack = make_stack()
    before = stack(images, rows)
    assert torch.equal(pickle.loads(pickle.dumps(stack))(images, rows), before)


def test_a_crop_that_does_not_fit_after_another_is_refused() -> None:
    stack = Pipeline([RandomCrop(6), RandomCrop(8)])
    for attempt in (
        lambda: stack.output_shape(SHAPE),
        lambda: stack.sample(np.arange(2), 0, 0, SHAPE),
    ):
        with pytest.raises(UsageError) as error:
            attempt()
        assert str(error.value) == (
            "RandomCrop: size is 8x8; the images allow at most 6x6, their padding included. "
            "Crop less, or pad more."
        )


def test_draws_for_other_rows_are_refused() -> None:
    flips = Pipeline([RandomHorizontalFlip()])
    with pytest.raises(UsageError) as error:
        flips.apply(make_images(4), flips.sample(np.arange(3), 0, 0, SHAPE))
    assert str(error.value) == (
        "RandomHorizontalFlip: flip was drawn for 3 rows and there are 4 images; "
        "one draw an image is allowed. Sample the batch's rows."
    )


@pytest.mark.parametrize(
    "out", [torch.empty(4, 3, 8, 8, dtype=torch.float16), torch.empty(5, 3, 8, 8), torch.empty(4, 3, 10, 9)]
)
def test_an_out_that_does_not_fit_is_refused(out: Tensor) -> None:
    stack = make_stack()
    with pytest.raises(UsageError) as error:
        stack.apply(make_images(4), stack.sample(np.arange(4), 0, 0, SHAPE), out=out)
    assert str(error.value) == (
        f"out: it is {out.dtype} {list(out.shape)} on cpu; torch.float32 [4, 3, 8, 8] on cpu is allowed. "
        "Allocate that, or pass none."
    )


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_cuda_equals_cpu(dtype: torch.dtype) -> None:
    images, rows = make_images(33), np.arange(33)
    stack = make_stack(dtype)
    on_cpu = stack(images, rows, seed=1)
    on_cuda = stack(images.cuda(), rows, seed=1)
    assert on_cuda.is_cuda
    assert on_cuda.is_contiguous(memory_format=torch.channels_last)
    # A fused multiply-add rounds once where the CPU may round twice.
    tolerance = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(on_cuda.cpu(), on_cpu, rtol=0, atol=tolerance)
    geometry = Pipeline(stack.transforms[:2])
    assert torch.equal(geometry(images.cuda(), rows).cpu(), geometry(images, rows))


@pytest.mark.gpu
def test_applying_does_not_wait_for_the_device() -> None:
    images, rows = make_images(33).cuda(), np.arange(33)
    stack = make_stack()
    stack(images, rows)  # the coefficients of Normalize are uploaded once
    draws = stack.sample(rows, 0, 0, SHAPE)
    torch.cuda.set_sync_debug_mode("error")
    try:
        stack.apply(images, draws)
    finally:
        torch.cuda.set_sync_debug_mode("default")
