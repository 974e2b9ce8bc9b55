"""The compiled pass against the plain one for passes of every kind; against columns of nonsense; threads and forks."""

from __future__ import annotations

import dataclasses
import math
import multiprocessing
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from packer import native
from packer.augment import Pipeline, RandomHorizontalFlip
from packer.augment.pass_stages import run_pass
from packer.augment.passes import native_pass, pass_spec, torch_pass
from packer.augment.passes.pass_spec import Pass
from packer.augment.passes.prepared_draws import PreparedDraws
from tests.conftest import Beside

built = pytest.mark.skipif(not native.COMPILED, reason="packer was installed without a compiler")

HALVES = {"float32": 0.0, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""What rounding to the dtype may change, relative."""


ALLOWED = 2e-2
"""Of 255 steps, after colour steps: they multiply what rounding changed in weighted sums."""


def boxed(draws: np.random.Generator, columns: Tensor, width: int, height: int) -> None:
    """Boxes of taps: the whole image for most samples."""
    for column in columns:
        if draws.random() < 0.7:
            column[6:10] = torch.tensor([0, 0, width - 1, height - 1])
            continue
        x0, x1 = sorted(draws.integers(0, width, 2))
        y0, y1 = sorted(draws.integers(0, height, 2))
        column[6:10] = torch.tensor([x0, y0, x1, y1])


def placed(
    draws: np.random.Generator, what: Pass, columns: Tensor, width: int, height: int, way: str
) -> None:
    """Where results lie, and the filter's widths."""
    h, w = what.size
    for column in columns:
        a, e = (float(sign) for sign in draws.choice([1, -1], 2))
        matrix: list[float]
        if way == "whole":
            c, f = float(draws.integers(-6, width + 6)), float(draws.integers(-6, height + 6))
            matrix = [a, 0, c, 0, e, f] if draws.random() < 0.8 else [0, a, c, e, 0, f]
        elif way == "straight":
            x, y = draws.uniform(0.2, 2.5, 2)
            c, f = draws.uniform(-3, width + 3), draws.uniform(-3, height + 3)
            matrix = [a * x, 0, c if a < 0 else c - width / 2, 0, e * y, f if e < 0 else f - height / 2]
        else:
            angle, size = draws.uniform(0, 2 * math.pi), draws.uniform(0.5, 1.7)
            cos, sin = size * math.cos(angle), size * math.sin(angle)
            shear = draws.uniform(-0.3, 0.3)
            c = width / 2 - cos * w / 2 + sin * h / 2 + draws.uniform(-3, 3)
            f = height / 2 - sin * w / 2 - cos * h / 2 + draws.uniform(-3, 3)
            matrix = [cos, shear - sin, c, sin, cos, f]
        column[:6] = torch.tensor(matrix, dtype=torch.float32)
        column[10] = max(1.0, abs(matrix[0])) if draws.random() < 0.7 else draws.uniform(1, 3.2)
        column[11] = max(1.0, abs(matrix[4])) if draws.random() < 0.7 else draws.uniform(1, 3.2)
        if way == "turned" and draws.random() < 0.5:
            column[10:12] = 1
    if what.sampling == "cubic":
        columns[:, 10:12] *= 2
    columns[:, 12:16] = torch.tensor([-0.5, -0.5, width - 0.5, height - 0.5]) + torch.from_numpy(
        draws.uniform(-2, 2, (len(columns), 4))
    )
    columns[:, 16:18] = torch.from_numpy(draws.uniform(0.4, 2, (len(columns), 2)))


def coloured(draws: np.random.Generator, what: Pass, columns: Tensor) -> None:
    """Colour steps of all kinds. Thresholds lie between whole numbers, so that rounding does not cross them."""
    for column in columns:
        for step in range(what.steps):
            at = pass_spec.STEPS_AT + pass_spec.STEP_WIDTH * step
            kind = int(draws.choice([0, 1, 2, 3] if what.contrast else [0, 1, 3]))
            column[at] = kind
            if kind == pass_spec.MATRIX:
                matrix = draws.uniform(-0.4, 1.2, (3, 4))
                matrix[:, 3] *= 0.2 * what.limit
                if draws.random() < 0.5:
                    matrix[:, :3] *= np.eye(3)
                column[at + 1 : at + 13] = torch.from_numpy(matrix.ravel())
            else:
                column[at + 1] = (
                    draws.uniform(0, 2) if kind == pass_spec.CONTRAST else draws.uniform(-1.5, 1.5)
                )


def made(
    number: int, way: str = "", dtype: str = "", channels: int = 0, sampling: pass_spec.Sampling | None = None
) -> tuple[Pass, Tensor, Tensor]:
    """A pass, images and columns, all by chance."""
    draws = np.random.default_rng(number)
    sampling = sampling or ("shift", "nearest", "linear")[number % 3]
    outside: pass_spec.Outside = ("constant", "edge", "reflect", "symmetric")[number // 3 % 4]
    way = way or ("whole" if sampling == "shift" else str(draws.choice(["whole", "straight", "turned"])))
    channels = channels or int(draws.choice([1, 2, 3, 3, 3, 4]))
    dtype = dtype or str(draws.choice(["uint8", "float32", "float32", "float16", "bfloat16"]))
    floating = bool(draws.random() < 0.3)
    limit = 1.0 if floating and dtype != "uint8" else 255.0
    steps = int(draws.integers(0, 5)) if channels in (1, 3) else 0
    scaled, noise = (
        dtype != "uint8" and bool(draws.random() < 0.7),
        dtype != "uint8" and bool(draws.random() < 0.5),
    )
    whole_fill = bool(draws.random() < 0.5)
    fill = (
        draws.integers(0, 256, channels) if whole_fill and limit == 255 else draws.uniform(0, limit, channels)
    )
    size = (int(draws.integers(1, 60)), int(draws.integers(1, 60)))
    if draws.random() < 0.1:
        size = (int(draws.integers(100, 110)), int(draws.integers(200, 320)))  # a grid of strides 2 and 3
    what = Pass(
        channels=channels,
        size=size,
        sampling=sampling,
        outside=outside,
        framed=bool(draws.random() < 0.5),
        fill=tuple(map(float, fill)),
        steps=steps,
        contrast=steps > 0 and bool(draws.random() < 0.7),
        limit=limit,
        scale=tuple(draws.uniform(0.5, 1.5, channels) / limit) if scaled else None,
        shift=tuple(draws.uniform(-1, 1, channels)) if scaled else None,
        boxes=int(draws.integers(0, 3)),
        box_fill=tuple(map(float, draws.integers(0, 2, channels))),
        noise=noise,
        dtype=dtype,
    )
    height, width = (int(side) for side in draws.integers(1, 60, 2))
    count, images = int(draws.integers(1, 5)), int(draws.integers(1, 5))
    rows = torch.from_numpy(draws.integers(0, images, count)) if draws.random() < 0.5 else None
    images = count if rows is None else images
    bytes_ = torch.from_numpy(draws.integers(0, 256, (images, height, width, channels), dtype=np.uint8))
    bytes_ = bytes_ if rows is None else bytes_[rows]
    pixels = (bytes_.float() * (limit / 255) if floating else bytes_).permute(0, 3, 1, 2)
    columns = torch.zeros(count, what.width)
    boxed(draws, columns, width, height)
    placed(draws, what, columns, width, height, way)
    coloured(draws, what, columns)
    for box in range(what.boxes):
        at = what.boxes_at + pass_spec.BOX_WIDTH * box
        columns[:, at : at + 4] = torch.from_numpy(draws.uniform(-10, 60, (count, 4))).round()
        columns[:, at + 4] = torch.from_numpy(draws.integers(0, 2**24, count))
    return what, pixels, columns


def results(what: Pass, count: int) -> Tensor:
    dtype = getattr(torch, what.dtype)
    return torch.empty(count, what.channels, *what.size, dtype=dtype).contiguous(
        memory_format=torch.channels_last
    )


def both(what: Pass, images: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Results of the compiled and of the plain pass, in float64."""
    given, expected = results(what, len(columns)), results(what, len(columns))
    assert native_pass.can(what, images, given)
    native_pass.run(what, images, PreparedDraws(columns), given)
    torch_pass.run(what, images, PreparedDraws(columns), expected)
    return given.double(), expected.double()


def largest_difference(what: Pass, given: Tensor, expected: Tensor) -> float:
    """In units of a pixel's 255th, less what rounding to a half may do."""
    if what.dtype == "uint8":
        return float((given - expected).abs().max())
    if what.dtype == "uint16":
        return float(((given - expected).abs() - 1).clamp(min=0).max()) / 257
    unit = max(what.scale) if what.scale else 1.0
    allowed = HALVES[what.dtype] * expected.abs() * 1.01
    if what.noise:
        allowed += 1e-4
    away = ((given - expected).abs() - allowed).clamp(min=0)
    return float(away.max()) / unit * 255 / what.limit


@built
@pytest.mark.parametrize("sampling", ["shift", "nearest", "linear", "cubic"])
def test_it_makes_what_the_plain_pass_makes(sampling: pass_spec.Sampling) -> None:
    """Positions drawn by chance do not sit on ties, but for whole ones, which both take exactly."""
    for number in range(60):
        what, images, columns = made(number, sampling=sampling)
        given, expected = both(what, images, columns)
        assert torch.isfinite(given).all()
        allowed = 1.0 if what.dtype == "uint8" else ALLOWED
        assert largest_difference(what, given, expected) <= allowed, (number, what)


def deep(number: int, **given: Any) -> tuple[Pass, Tensor, Tensor]:
    """A pass like one of `made` over images of 16 bits, or of many channels, without noise."""
    what, images, columns = made(number, **given)
    draws = np.random.default_rng(number)
    pixels = torch.from_numpy(draws.integers(0, 65_536, images.permute(0, 2, 3, 1).shape, dtype=np.uint16))
    times = 65_535 / what.limit
    what = dataclasses.replace(
        what,
        limit=65_535.0,
        fill=tuple(number * times for number in what.fill),
        scale=what.scale and tuple(number / times for number in what.scale),
        dtype="uint16" if what.dtype == "uint8" else what.dtype if what.scale else "float32",
        noise=False,
    )
    return what, pixels.permute(0, 3, 1, 2), columns


def both_deep(what: Pass, images: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Results by the compiled pass, and of the plain one on all channels at a time, in float64."""
    given = run_pass(what, images, PreparedDraws(columns))
    assert given.dtype == getattr(torch, what.dtype)
    as_floats = dataclasses.replace(what, dtype="float32" if what.dtype == "uint16" else what.dtype)
    expected = results(as_floats, len(columns))
    torch_pass.run(as_floats, images.to(torch.int32).float(), PreparedDraws(columns), expected)
    if what.dtype == "uint16":
        expected = (expected.clamp(0, 65_535) + 0.5).floor()
    return given.double(), expected.double()


@built
@pytest.mark.parametrize("sampling", ["shift", "nearest", "linear", "cubic"])
@pytest.mark.parametrize("channels", [0, 7])
def test_images_of_16_bits_and_of_bands(sampling: pass_spec.Sampling, channels: int) -> None:
    for number in range(8 if channels else 18):
        what, images, columns = deep(number, sampling=sampling, channels=channels)
        given, expected = both_deep(what, images, columns)
        assert largest_difference(what, given, expected) <= ALLOWED, (number, what)


@built
@pytest.mark.parametrize("channels", [1, 3, 4, 6])
def test_shifts_of_16_bits_are_exact(channels: int) -> None:
    for number in range(12):
        what, images, columns = deep(number, way="whole", dtype="uint8", channels=channels, sampling="shift")
        fill = tuple(float(round(number)) for number in what.fill)
        what = dataclasses.replace(what, steps=0, contrast=False, boxes=0, fill=fill)
        given, expected = both_deep(what, images, columns[:, : what.width].contiguous())
        assert torch.equal(given, expected), (number, what)


@built
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_shifts_are_exact(channels: int, dtype: str) -> None:
    for number in range(20):
        what, images, columns = made(number, "whole", dtype, channels, "shift")
        what = dataclasses.replace(
            what, steps=0, contrast=False, boxes=0, noise=False, scale=None, shift=None
        )
        given, expected = both(what, images, columns[:, : what.width].contiguous())
        assert torch.equal(given, expected), (number, what)


@built
@pytest.mark.parametrize("way", ["straight", "turned"])
@pytest.mark.parametrize("outside", ["constant", "edge", "reflect", "symmetric"])
def test_weighted_sums_are_right_to_float32s_rounding(way: str, outside: pass_spec.Outside) -> None:
    """A position near 200 is right to 2**-17 of a pixel; between a black and a white one that is 0.002, across and down."""
    for number in range(20):
        what, images, columns = made(number, way, "float32", sampling="linear")
        what = dataclasses.replace(what, steps=0, contrast=False, boxes=0, noise=False, outside=outside)
        given, expected = both(what, images, columns[:, : what.width].contiguous())
        assert largest_difference(what, given, expected) <= 1e-2, (number, what)


@built
def test_steps_that_round_are_those_of_the_plain_pass() -> None:
    """On bytes that are not weighted, so that no value lies near a threshold but on it."""
    for kind, argument in (
        (pass_spec.SOLARIZE, 128.0),
        (pass_spec.POSTERIZE, 32.0),
        (pass_spec.POSTERIZE, 1.0),
        (pass_spec.SOLARIZE, 0.0),
    ):
        for channels in (1, 3):
            what = Pass(channels, (9, 11), "shift", steps=1)
            images = torch.arange(9 * 11 * channels).remainder(256).to(torch.uint8).view(1, 9, 11, channels)
            columns = torch.zeros(1, what.width)
            columns[0, [0, 4, 10, 11]] = 1
            columns[0, 6:10] = torch.tensor([0, 0, 10, 8])
            columns[0, pass_spec.STEPS_AT : pass_spec.STEPS_AT + 2] = torch.tensor([kind, argument])
            given, expected = both(what, images.permute(0, 3, 1, 2), columns)
            assert torch.equal(given, expected)


@built
def test_noise_is_the_plain_passs() -> None:
    what = Pass(3, (70, 90), "shift", boxes=2, noise=True)
    images = torch.zeros(4, 3, 70, 90, dtype=torch.uint8)
    columns = torch.zeros(4, what.width)
    columns[:, [0, 4, 10, 11]] = 1
    columns[:, 8:10] = torch.tensor([89, 69])
    columns[:, what.boxes_at :] = torch.tensor([0.0, 0, 90, 70, 0, 10, 20, 30, 40, 2**24 - 1])
    columns[:, what.boxes_at + 4] = torch.tensor([0.0, 1, 12345, 2**24 - 1])
    given, expected = both(what, images, columns)
    assert (given - expected).abs().max() <= 1e-4
    assert 0.97 < given.std() < 1.03


@built
def test_numbers_are_rounded_to_halves_as_torch_rounds_them() -> None:
    """Every kind of float32: normal, too small, too large, ties, infinite."""
    draws = np.random.default_rng(0)
    bits = draws.integers(0, 2**32, 4096, dtype=np.uint64).astype(np.uint32)
    ties = np.arange(0x38000000, 0x48000000, 0x1000, dtype=np.uint32)[::7]
    tiny = np.arange(0x33000000, 0x38800000, 0x8000, dtype=np.uint32)
    values = np.concatenate([bits, ties, tiny, tiny | np.uint32(1 << 31), ties | np.uint32(1 << 31)]).view(
        np.float32
    )
    values = values[~np.isnan(values)]
    images = torch.from_numpy(values).view(1, 1, 1, -1)
    for dtype in ("float16", "bfloat16"):
        what = Pass(1, (1, len(values)), "shift", dtype=dtype)
        columns = torch.zeros(1, what.width)
        columns[0, [0, 4, 10, 11]] = 1
        columns[0, 8] = len(values) - 1
        given = results(what, 1)
        native_pass.run(what, images, PreparedDraws(columns), given)
        assert torch.equal(given, images.to(given.dtype))


@built
def test_nonsense_in_the_columns_reads_nothing_outside_and_a_forked_child_works(beside: Beside) -> None:
    """In a process of its own, with each image at the very end of readable memory, and then at its beginning.

    Its child is forked when it has used its threads.
    """
    beside(NONSENSE + (FORKED if "fork" in multiprocessing.get_all_start_methods() else ""))


NONSENSE = """
import ctypes, mmap
import numpy as np, torch
from packer.augment.passes import native_pass
from packer.augment.passes.pass_spec import Pass
from packer.augment.passes.prepared_draws import PreparedDraws

draws = np.random.default_rng(0)
page = mmap.PAGESIZE
fence = mmap.mmap(-1, 5 * page)
start = ctypes.addressof(ctypes.c_char.from_buffer(fence))
protect = ctypes.CDLL(None, use_errno=True).mprotect
protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
assert protect(start, page, 0) == 0 and protect(start + 4 * page, page, 0) == 0
middle = np.frombuffer(fence, np.uint8)[page : 4 * page]
middle[...] = 100
strange = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 1e9, -1e9, 3e38, 0.5, -7, 1, 0, 12], np.float32)
for number in range(1200):
    sampling = ("shift", "nearest", "linear", "cubic")[number // 300]
    channels = int(draws.integers(1, 5))
    outside = ("constant", "edge", "reflect", "symmetric")[number % 4]
    steps = 3 if channels in (1, 3) else 0
    what = Pass(channels, (5, 9), sampling, outside, framed=number % 2 == 0, fill=(3.0,) * channels, steps=steps,
                contrast=True, boxes=1, box_fill=(1.0,) * channels, noise=number % 5 == 0, dtype="float32")
    kind = np.float32 if number % 7 == 0 else np.uint8
    shape = (1, int(draws.integers(1, 12)), int(draws.integers(1, 12)), channels)
    size = int(np.prod(shape)) * np.dtype(kind).itemsize
    part = middle[len(middle) - size :] if number % 4 else middle[:size]
    images = torch.from_numpy(part.view(kind).reshape(shape)).permute(0, 3, 1, 2)
    columns = draws.choice(strange, (1, what.width))
    some = draws.random((1, what.width)) < draws.random()
    sound = np.zeros((1, what.width), np.float32)
    sound[0, [0, 4, 10, 11]] = 1, 1, draws.choice([1, 1.3, 2.5]), 1
    if draws.random() < 0.5:
        sound[0, :6] = draws.uniform(-3, 3, 6)
    sound[0, 6:10] = 0, 0, shape[2] - 1, shape[1] - 1
    columns = torch.from_numpy(np.where(some, columns, sound).astype(np.float32))
    out = torch.empty(1, channels, *what.size).contiguous(memory_format=torch.channels_last)
    native_pass.run(what, images, PreparedDraws(columns), out)
"""


@built
def test_shapes_that_do_not_match_are_an_error() -> None:
    what, images, columns = made(0)
    with pytest.raises(ValueError, match=" do not match"):
        native_pass.run(what, images[:1], PreparedDraws(columns[:1].repeat(3, 1)), results(what, 3))
    with pytest.raises(ValueError, match=" do not match"):
        native_pass.run(what, images, PreparedDraws(columns[:, :-1]), results(what, len(columns)))
    with pytest.raises(ValueError, match=" do not match"):
        native_pass.run(what, images, PreparedDraws(columns), results(what, len(columns))[..., :-1])


@built
def test_it_says_what_it_does_not_take() -> None:
    what, images, columns = made(2, dtype="float32", channels=3)
    out = results(what, len(columns))
    assert native_pass.can(what, images, out)
    assert not native_pass.can(what, images.half(), out)
    assert not native_pass.can(what, images, out.half())
    assert not native_pass.can(dataclasses.replace(what, channels=4, steps=1), images, out)
    assert not native_pass.can(dataclasses.replace(what, channels=5, steps=0), images, out)
    assert not native_pass.can(what, images.to(torch.uint16), out)
    with pytest.raises(ValueError, match=r"^a pass: images torch\.float16 "):
        native_pass.run(what, images.half(), PreparedDraws(columns), out)


@built
def test_images_and_results_of_other_strides() -> None:
    for number in range(12):
        what, images, columns = made(number)
        expected, given = results(what, len(columns)), torch.zeros(len(columns), what.channels, *what.size)
        native_pass.run(what, images, PreparedDraws(columns), expected)
        given = given.to(expected.dtype)
        native_pass.run(what, images.contiguous(), PreparedDraws(columns), given)
        assert torch.equal(given, expected)
        wide = torch.zeros(len(columns), what.channels, what.size[0], 2 * what.size[1]).to(expected.dtype)
        native_pass.run(what, images, PreparedDraws(columns), wide[..., ::2])
        assert torch.equal(wide[..., ::2], expected)
        assert not wide[..., 1::2].any()


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def many() -> tuple[Pass, Tensor, Tensor]:
    what, images, columns = made(5, dtype="float32", channels=3)
    return what, images.repeat(40, 1, 1, 1), columns.repeat(40, 1)


@built
@pytest.mark.usefixtures("threads")
def test_threads_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    what, images, columns = many()
    monkeypatch.setattr(native_pass, "THREAD_WORK", 1)
    made_by = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        made_by.append(results(what, len(columns)))
        native_pass.run(what, images, PreparedDraws(columns), made_by[-1])
    assert torch.equal(made_by[0], made_by[1])
    assert torch.equal(made_by[0], made_by[2])


@built
def test_storing_past_the_caches_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        what, images, columns = made(number)
        made_by = []
        for limit in (0, 1 << 62):
            monkeypatch.setattr(native_pass, "PAST_BYTES", limit)
            made_by.append(results(what, len(columns)).zero_())  # memory that nobody used is never stored so
            native_pass.run(what, images, PreparedDraws(columns), made_by[-1])
        assert torch.equal(*made_by)


@built
@pytest.mark.parametrize("width", [1, 15, 16, 17, 48, 100, 224])
@pytest.mark.parametrize("pixel", [3, 4])
def test_resized_rows_are_made_several_at_a_time(
    monkeypatch: pytest.MonkeyPatch, width: int, pixel: int
) -> None:
    """Of 16 pixels they are whole cache lines, which may be stored past the caches; the memory ends with the last pixel."""
    draws = np.random.default_rng(width)
    sizes = np.concatenate([draws.integers(1, 6, (4, 2)), draws.integers(30, 150, (8, 2))])
    what = Pass(3, (13, width), "linear", scale=(0.1, 0.2, 0.3), shift=(1.0, 2.0, 3.0), ragged=True)
    memory = torch.from_numpy(draws.integers(0, 256, (int(sizes.prod(axis=1).sum()), pixel), np.uint8))
    columns = torch.zeros(len(sizes), what.width)
    for column, place, (high, wide) in zip(
        columns, np.cumsum(sizes.prod(axis=1)), sizes.tolist(), strict=True
    ):
        x, y = wide / width, high / 13
        column[:6] = torch.tensor([x, 0, 0.5 * x - 0.5, 0, y, 0.5 * y - 0.5])
        if draws.random() < 0.5:
            column[0], column[2] = -x, wide - 0.5 - 0.5 * x
        column[6:12] = torch.tensor([0, 0, wide - 1, high - 1, max(x, 1), max(y, 1)])
        column[-5:] = torch.tensor([0, int(place) - high * wide, high, wide, wide])
    expected, made_by = results(what, len(columns)), []
    torch_pass.run(what, memory, PreparedDraws(columns), expected)
    for limit in (0, 1 << 62):
        monkeypatch.setattr(native_pass, "PAST_BYTES", limit)
        made_by.append(results(what, len(columns)).zero_())
        native_pass.run(what, memory, PreparedDraws(columns), made_by[-1])
    assert torch.equal(*made_by)
    torch.testing.assert_close(made_by[0], expected, rtol=0, atol=2e-3)  # positions are rounded, too


FORKED = """
import os

native_pass.THREAD_WORK = 1
torch.set_num_threads(2)
what = Pass(3, (20, 20), dtype="uint8")
images = torch.arange(16 * 1200).remainder(256).to(torch.uint8).view(16, 20, 20, 3).permute(0, 3, 1, 2)
columns = torch.zeros(16, what.width)
columns[:, [0, 4, 10, 11]] = 1
columns[:, 8:10] = 19

def same():
    out = torch.zeros_like(images)
    native_pass.run(what, images, PreparedDraws(columns), out)
    return torch.equal(out, images)

assert same()
child = os.fork()
if child == 0:
    os._exit(0 if same() else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert same()
"""


def test_it_is_said_once_that_the_loops_are_missing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(native, "COMPILED", False)
    native.warn.cache_clear()
    images = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
    stack = Pipeline([RandomHorizontalFlip()], (3, 8, 8))
    for _ in range(2):
        stack(images, np.arange(2))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert native.without("augment") in caplog.text
