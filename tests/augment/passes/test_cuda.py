"""packer.augment.passes.triton_pass against plain: on the CPU through Triton's interpreter, compiled for GPUs that are not here,
and on a GPU where there is one.

Run as a script, this file prints the interpreter's differences as JSON: Triton reads TRITON_INTERPRET when it is imported.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from packer.augment.passes import pass_spec, torch_pass, triton_pass
from packer.augment.passes.pass_spec import Pass

ROOT = Path(__file__).parents[3]


def normalised(channels: int = 3) -> dict[str, Any]:
    return {
        "scale": tuple(0.02 + 0.003 * c for c in range(channels)),
        "shift": tuple(0.3 * c - 2 for c in range(channels)),
    }


def make_columns(what: Pass, count: int, side: int, seed: int = 0) -> Tensor:
    """Columns that use everything that a pass has: every second sample is straight, the others are turned."""
    draws = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float, *size: int) -> Tensor:
        return low + (high - low) * torch.rand(size or (count,), generator=draws)

    def whole(low: int, high: int) -> Tensor:
        return torch.randint(low, high, (count,), generator=draws).float()

    columns = torch.zeros(count, what.width)
    h, w = what.size
    if what.sampling == "shift":
        quarter = whole(0, 4) * (torch.arange(count) % 2)
        flip = torch.where(whole(0, 2) > 0, -1.0, 1.0)
        cos = torch.tensor([1.0, 0.0, -1.0, 0.0])[quarter.long()]
        sin = torch.tensor([0.0, 1.0, 0.0, -1.0])[quarter.long()]
        columns[:, 0], columns[:, 1], columns[:, 3], columns[:, 4] = cos * flip, -sin, sin * flip, cos
        columns[:, 2] = whole(-3, max(side - w, 0) + 4) + (w - 1) * (columns[:, 0] < 0) + (h - 1) * (sin > 0)
        columns[:, 5] = (
            whole(-3, max(side - h, 0) + 4) + (h - 1) * (columns[:, 4] < 0) + (w - 1) * (columns[:, 3] < 0)
        )
    else:
        angle = uniform(-3, 3) * (torch.arange(count) % 2)
        zoom = uniform(0.6, 2)
        cos, sin = zoom * angle.cos(), zoom * angle.sin()
        columns[:, 0], columns[:, 1], columns[:, 3], columns[:, 4] = cos, -sin, sin, cos
        columns[:, 2] = side / 2 - (w - 1) / 2 * cos + (h - 1) / 2 * sin + uniform(-1, 1)
        columns[:, 5] = side / 2 - (w - 1) / 2 * sin - (h - 1) / 2 * cos + uniform(-1, 1)
        columns[:, 10], columns[:, 11] = zoom.clamp(min=1), (0.8 * zoom).clamp(min=1)
        if what.sampling == "cubic":
            columns[:, 10:12] *= 2
    columns[:, 6:8] = torch.stack([whole(0, 3), whole(0, 3)], 1)
    columns[:, 8:10] = side - 1 - torch.stack([whole(0, 3), whole(0, 3)], 1)
    columns[:, 12:14], columns[:, 14:16] = uniform(-1, 1, count, 2), side - uniform(0, 2, count, 2)
    columns[:, 16:18] = uniform(0.5, 2, count, 2)
    for number in range(what.steps):
        at = pass_spec.STEPS_AT + pass_spec.STEP_WIDTH * number
        columns[:, at] = (torch.arange(count) + number + seed) % 6
        if not what.contrast:
            columns[:, at][columns[:, at] == pass_spec.CONTRAST] = pass_spec.MATRIX
        numbers = {
            pass_spec.MATRIX: uniform(-0.3, 0.9, count, 12),
            pass_spec.CONTRAST: uniform(0.5, 1.5, count, 1),
            pass_spec.HUE: uniform(-0.5, 0.5, count, 1),
            pass_spec.SOLARIZE: uniform(0.3, 0.8, count, 1) * what.limit,
            pass_spec.POSTERIZE: 2.0 ** whole(0, 7)[:, None],
        }
        for kind, values in numbers.items():
            columns[:, at + 1 : at + 1 + values.shape[1]] = torch.where(
                columns[:, at, None] == kind, values, columns[:, at + 1 : at + 1 + values.shape[1]]
            )
    for number in range(what.boxes):
        at = what.boxes_at + pass_spec.BOX_WIDTH * number
        columns[:, at], columns[:, at + 1] = whole(0, w), whole(0, h)
        columns[:, at + 2] = columns[:, at] + whole(-2, w)
        columns[:, at + 3] = columns[:, at + 1] + whole(0, h)
        columns[:, at + 4] = whole(0, 1 << 24)
    return columns


def make_images(
    count: int, channels: int, side: int, dtype: torch.dtype = torch.uint8, device: str = "cpu"
) -> Tensor:
    draws = torch.Generator().manual_seed(count)
    small = torch.randint(0, 256, (count, channels, side, side), generator=draws)
    # Smooth from row to row, so that a position's rounding is no jump of colour.
    images = (torch.arange(side)[:, None] * 2 + torch.arange(side) + 40 * small[:, :, :1, :1]) % 256
    images = torch.where(small < 32, small, images)
    if dtype != torch.uint8:
        images = images / 255
    return images.to(device, dtype).contiguous(memory_format=torch.channels_last)


def difference(what: Pass, images: Tensor, columns: Tensor, rows: Tensor | None) -> Tensor:
    """|cuda - plain| of every number, in float32; columns with a gap between rows, as they may have."""
    dtype = getattr(torch, what.dtype)
    wanted = torch.empty(
        (len(columns), what.channels, *what.size), dtype=dtype, device=images.device
    ).contiguous(memory_format=torch.channels_last)
    got = torch.full_like(wanted, 77)
    torch_pass.run(what, images, columns, rows, wanted)
    wide = torch.full((len(columns), what.width + 3), float("nan"), device=columns.device)
    wide[:, : what.width] = columns
    assert triton_pass.can(what, images, got)
    triton_pass.run(what, images, wide[:, : what.width], rows, got)
    assert not triton_pass._failed
    return (got.float() - wanted.float()).abs()


TINY = Pass(3, (7, 11))
CASES: dict[str, tuple[Pass, torch.dtype]] = {
    "shift": (TINY, torch.uint8),
    "shift, uint8": (replace(TINY, dtype="uint8"), torch.uint8),
    "shift, gray": (Pass(1, (7, 11), dtype="uint8"), torch.uint8),
    "shift, two channels, filled": (Pass(2, (7, 11), framed=True, fill=(9, 8)), torch.uint8),
    "shift, four channels, erased": (
        Pass(4, (7, 11), outside="edge", boxes=1, box_fill=(1, 2, 3, 4), **normalised(4)),
        torch.uint8,
    ),
    "shift, bfloat16, reflected": (
        replace(TINY, outside="reflect", dtype="bfloat16", **normalised()),
        torch.uint8,
    ),
    "shift, noise": (replace(TINY, boxes=2, noise=True, **normalised()), torch.uint8),
    "shift, colors": (replace(TINY, steps=2, contrast=True), torch.uint8),
    "shift, colors, gray, of 1": (Pass(1, (7, 11), steps=2, contrast=True, limit=1.0), torch.float16),
    "shift, large, contrast": (Pass(1, (100, 3), steps=1, contrast=True), torch.uint8),
    "nearest, framed": (replace(TINY, sampling="nearest", framed=True, fill=(9, 8, 7)), torch.float32),
    "nearest, reflected": (replace(TINY, sampling="nearest", outside="reflect"), torch.uint8),
    "cubic, framed": (
        replace(TINY, sampling="cubic", framed=True, fill=(9, 8, 7), **normalised()),
        torch.uint8,
    ),
    "cubic, reflected, floats": (
        replace(TINY, sampling="cubic", outside="reflect", dtype="float32"),
        torch.float32,
    ),
    "nearest, symmetric": (replace(TINY, sampling="nearest", outside="symmetric"), torch.uint8),
    "nearest, colors, erased": (
        replace(TINY, sampling="nearest", steps=3, boxes=1, box_fill=(5, 6, 7), **normalised()),
        torch.uint8,
    ),
    "linear": (replace(TINY, sampling="linear"), torch.uint8),
    "linear, gray, edge, uint8": (
        Pass(1, (7, 11), sampling="linear", outside="edge", dtype="uint8"),
        torch.uint8,
    ),
    "linear, two channels": (Pass(2, (7, 11), sampling="linear"), torch.bfloat16),
    "linear, four channels, framed": (
        Pass(4, (7, 11), sampling="linear", framed=True, fill=(9, 8, 7, 6)),
        torch.uint8,
    ),
    "linear, reflected": (replace(TINY, sampling="linear", outside="reflect", dtype="float16"), torch.uint8),
    "linear, everything": (
        replace(
            TINY,
            sampling="linear",
            framed=True,
            fill=(9, 8, 7),
            steps=3,
            contrast=True,
            boxes=1,
            noise=True,
            **normalised(),
        ),
        torch.uint8,
    ),
}
# The interpreter takes as long for what lies beyond a tiny image as for what lies in it.
SMALL = triton_pass.LaunchShape(across=64, down=1, loops=2, warps=1)


def tolerance(what: Pass) -> float:
    """What rounding may do. Of whole numbers that are only moved: nothing."""
    if what.dtype == "uint8":
        return 0 if what.sampling == "shift" and not what.steps else 1
    last = {"float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}[what.dtype]
    return last * (255 if what.scale is None else 8)


def interpret() -> None:
    """Print {case: [its largest difference, its tolerance]}."""
    torch.set_num_threads(1)
    launch_shape, found = triton_pass.launch_shape, {}
    patch = pytest.MonkeyPatch()
    patch.setattr(
        triton_pass, "launch_shape", lambda what: launch_shape(what) if triton_pass.is_flat(what) else SMALL
    )
    for name, (what, dtype) in CASES.items():
        count, side = 6 if what.steps else 3, 13
        images, columns = make_images(5, what.channels, side, dtype), make_columns(what, count, side)
        rows = torch.tensor([4, 0, 2, 2, 1, 3])[:count] if what.channels == 3 else None
        if rows is None:
            images, columns = images[:3], columns[:3]
        found[name] = float(difference(what, images, columns, rows).max())
    print(json.dumps(found))


@pytest.fixture(scope="module")
def interpreted() -> dict[str, float]:
    triton = pytest.importorskip("triton", reason="Triton cannot be imported")
    if not hasattr(triton, "knobs"):
        pytest.skip("this Triton is too old: plain torch takes the place of the kernel")
    done = subprocess.run(
        [sys.executable, __file__],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, float] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", CASES)
def test_the_interpreter_equals_plain(interpreted: dict[str, float], name: str) -> None:
    assert interpreted[name] <= tolerance(CASES[name][0])  # not a number is not


# What is compiled for GPUs that may not be here.
JITTERED = Pass(
    3,
    (224, 224),
    sampling="linear",
    framed=True,
    fill=(0, 0, 0),
    steps=4,
    contrast=True,
    boxes=1,
    noise=True,
    dtype="bfloat16",
    **normalised(),
)
COMPILED = {
    "crop and flip": Pass(3, (224, 224), dtype="bfloat16", **normalised()),
    "pad, crop and flip": Pass(3, (32, 32), framed=True, fill=(0, 0, 0), **normalised()),
    "crop of bytes": Pass(3, (224, 224), dtype="uint8"),
    "gray, reflected": Pass(1, (28, 28), outside="reflect", **normalised(1)),
    "resized crop": Pass(3, (224, 224), sampling="linear", outside="edge", dtype="float16", **normalised()),
    "turned, jittered, erased": JITTERED,
}
TYPES = {"uint8": "u8", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


def compiled(whole: triton_pass._Kernel | None, what: Pass, architecture: int) -> Any:
    """Compile a kernel for uint8 images and rows, for compute capability architecture / 10."""
    compiler, backends = map(importlib.import_module, ("triton.compiler", "triton.backends.compiler"))
    assert whole is not None
    kernel, constants = whole.function, whole.constants
    pointers = {"out": TYPES[what.dtype], "images": "u8", "rows": "i64"} | dict.fromkeys(
        ("columns", "means", "result"), "fp32"
    )
    signature: dict[str, Any] = {}
    attributes = {}
    for place, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
        elif name in pointers:
            signature[name] = f"*{pointers[name]}"
            attributes[(place,)] = [["tt.divisibility", 16]]
        elif name in ("fill", "scale", "shift", "box"):
            signature[name] = ("fp32",) * 4
        else:
            signature[name] = "i32" if name.endswith("stride") else "fp32"
    return compiler.compile(
        compiler.ASTSource(
            kernel, signature, {n: c for n, c in constants.items() if n in signature}, attributes
        ),
        target=backends.GPUTarget("cuda", architecture, 32),
        options={"num_warps": constants["num_warps"], "num_stages": constants["num_stages"]},
    )


def local_memory(code: Any, architecture: int, folder: Path) -> int:
    """Bytes of local memory that ptxas says a thread has: its stack, and registers that it spilt."""
    triton = pytest.importorskip("triton")
    (folder / "kernel.ptx").write_text(code.asm["ptx"])
    suffix = "a" if architecture >= 90 else ""
    said = subprocess.run(
        [
            triton.knobs.nvidia.ptxas.path,
            "-v",
            f"--gpu-name=sm_{architecture}{suffix}",
            folder / "kernel.ptx",
            "-o",
            folder / "kernel.cubin",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stderr
    numbers = re.findall(r"(\d+) bytes (?:stack frame|spill stores|spill loads)", said)
    assert len(numbers) == 3, said
    return sum(map(int, numbers))


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    triton = pytest.importorskip("triton", reason="Triton cannot be imported")
    if not hasattr(triton, "knobs") or triton_pass._interprets():
        pytest.skip("this Triton is too old, or interprets")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton.knobs.cache, "dir", str(tmp_path_factory.mktemp("triton")))
        yield


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize(
    ("architecture", "steps"), [(90, 2), *(pytest.param(a, 4, marks=pytest.mark.soak) for a in (80, 90))]
)
@pytest.mark.parametrize("name", COMPILED)
def test_it_compiles_without_local_memory(name: str, architecture: int, steps: int, tmp_path: Path) -> None:
    """Four steps of colour take five seconds to compile."""
    what = replace(COMPILED[name], steps=min(steps, COMPILED[name].steps))
    plan = triton_pass._plan(what, torch.uint8, True)
    code = compiled(plan.kernel, what, architecture)
    assert local_memory(code, architecture, tmp_path) == 0
    if what.contrast:
        code = compiled(plan.means, what, architecture)
        assert local_memory(code, architecture, tmp_path) == 0


@pytest.mark.usefixtures("own_cache")
def test_stores_are_as_wide_as_they_come() -> None:
    what = COMPILED["crop and flip"]
    plan = triton_pass._plan(what, torch.uint8, False)
    assert re.search(r"st\.global\.v4\.b32", compiled(plan.kernel, what, 90).asm["ptx"])


def test_a_launch_names_the_constants_of_its_kernel() -> None:
    """Triton refuses others, but only where there is a GPU."""
    pytest.importorskip("triton", reason="Triton cannot be imported")
    for what in COMPILED.values():
        plan = triton_pass._plan(what, torch.uint8, True)
        for kernel in (plan.kernel, plan.means):
            if kernel is not None:
                constants = [name for name in kernel.function.arg_names if name.isupper()]
                assert {*kernel.constants} == {*constants, "num_warps", "num_stages"}


def test_other_numbers_launch_the_same_kernel() -> None:
    pytest.importorskip("triton", reason="Triton cannot be imported")
    others = replace(JITTERED, fill=(4, 5, 6), scale=(1, 1, 1), shift=(0, 0, 0), limit=1.0)
    first, second = (triton_pass._plan(what, torch.uint8, True) for what in (JITTERED, others))
    assert first.kernel.constants == second.kernel.constants
    assert first.numbers != second.numbers


def test_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="Triton cannot be imported")
    images, out = make_images(2, 3, 13), make_images(2, 3, 7, torch.float32)
    if not triton_pass._interprets():
        assert not triton_pass.can(TINY, images, out)  # on the CPU
        monkeypatch.setattr(triton_pass, "_interprets", lambda: True)
    assert triton_pass.can(TINY, images, out)
    assert triton_pass.can(TINY, images[1:], out)
    assert triton_pass.can(TINY, make_images(4, 3, 13)[::2], out)
    assert not triton_pass.can(TINY, images.contiguous(), out)
    assert not triton_pass.can(TINY, images[:, :, :, 1:], out)
    assert not triton_pass.can(TINY, images, out.contiguous())
    assert not triton_pass.can(TINY, images.double(), out)
    assert not triton_pass.can(TINY, images, out.half())
    assert not triton_pass.can(TINY, images[:, :2], out)
    assert not triton_pass.can(Pass(5, (7, 7)), make_images(2, 5, 13), make_images(2, 5, 7))
    ragged, pixels = replace(TINY, ragged=True), torch.zeros(40, 3, dtype=torch.uint8)
    assert not triton_pass.can(ragged, pixels, out)


def test_a_pass_that_does_not_compile_is_plain(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """There is no CUDA for a CPU's tensors, which is as good a failure as any."""
    pytest.importorskip("triton", reason="Triton cannot be imported")
    if triton_pass._interprets():
        pytest.skip("the interpreter does not fail")
    monkeypatch.setattr(triton_pass, "_interprets", lambda: True)
    monkeypatch.setattr(triton_pass, "_failed", set())
    monkeypatch.setattr(triton_pass, "_plan", triton_pass._plan.__wrapped__)
    what, images = TINY, make_images(2, 3, 13)
    columns, out = make_columns(what, 2, 13), make_images(2, 3, 11, torch.float32)[:, :, :7].contiguous()
    out = out.contiguous(memory_format=torch.channels_last)
    wanted = torch.empty_like(out)
    torch_pass.run(what, images, columns, None, wanted)
    with caplog.at_level(logging.INFO, "packer.augment"):
        for _ in range(2):
            out.zero_()
            triton_pass.run(what, images, columns, None, out)
            assert torch.equal(out, wanted)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert caplog.messages[0].startswith("augment: Triton did not compile a pass (")
    assert not triton_pass.can(what, images, out)


def test_without_triton_it_is_plain(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "packer.augment.passes.triton_kernels", raising=False)
    monkeypatch.delattr("packer.augment.passes.triton_kernels", raising=False)
    triton_pass._kernels.cache_clear()
    what, images = TINY, make_images(2, 3, 13)
    out = torch.empty(2, 3, 7, 11).contiguous(memory_format=torch.channels_last)
    wanted = torch.empty_like(out)
    columns = make_columns(what, 2, 13)
    torch_pass.run(what, images, columns, None, wanted)
    try:
        with caplog.at_level(logging.INFO, "packer.augment"):
            for _ in range(2):
                triton_pass.run(what, images, columns, None, out)
    finally:
        triton_pass._kernels.cache_clear()
    assert torch.equal(out, wanted)
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert caplog.messages[0].startswith("augment: Triton is not available (")


def assert_alike(what: Pass, found: Tensor) -> None:
    """A GPU multiplies and adds in one rounding, so that positions are a little apart, and a position near a tie, or a
    colour near a threshold, may fall to the other side: few numbers, of passes that have such; none of others."""
    moved = what.sampling != "shift" or what.steps > 0
    allowed = max(tolerance(what), (255 if what.scale is None else 8) * 2e-4 if moved else 0)
    beyond = float((~(found <= allowed)).float().mean())
    assert beyond <= (2e-3 if moved else 0), beyond


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_a_gpu_equals_plain(name: str) -> None:
    pytest.importorskip("triton")
    what, dtype = CASES[name]
    images = make_images(64, what.channels, 40, dtype, "cuda")
    for seed in range(4):
        columns = make_columns(what, 64, 40, seed).cuda()
        rows = torch.randint(64, (64,), generator=torch.Generator().manual_seed(seed)).cuda()
        for chosen in (rows, None):
            assert_alike(what, difference(what, images, columns, chosen))


@pytest.mark.gpu
@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.parametrize(("count", "side"), [(256, 256), (1024, 40)])
def test_a_gpu_equals_plain_on_whole_batches(name: str, count: int, side: int) -> None:
    pytest.importorskip("triton")
    what = COMPILED[name]
    if side == 40:
        what = replace(what, size=(32, 32))
    images = make_images(64, what.channels, side, device="cuda")
    columns = make_columns(what, count, side).cuda()
    rows = torch.arange(count, device="cuda") * 7 % 64
    for start in range(0, count, 64):  # plain takes much memory
        part = slice(start, start + 64)
        assert_alike(what, difference(what, images, columns[part], rows[part]))
    out = torch.empty((count, what.channels, *what.size), dtype=getattr(torch, what.dtype), device="cuda")
    out = out.contiguous(memory_format=torch.channels_last)
    triton_pass.run(what, images, columns, rows, out)
    again = torch.empty_like(out)
    for start in range(0, count, 64):
        triton_pass.run(
            what, images, columns[start : start + 64], rows[start : start + 64], again[start : start + 64]
        )
    assert torch.equal(out, again)


@pytest.mark.gpu
def test_a_field_of_more_than_2_gigabytes() -> None:
    pytest.importorskip("triton")
    what = Pass(3, (224, 224), dtype="bfloat16", **normalised())
    field = torch.empty((11500, 256, 256, 3), dtype=torch.uint8, device="cuda").permute(0, 3, 1, 2)
    assert field.numel() > 2**31
    images = make_images(32, 3, 256, device="cuda")
    rows = torch.cat([torch.arange(11484, 11500), torch.arange(16)]).cuda()
    field[rows] = images
    columns = make_columns(what, 32, 256).cuda()
    out = torch.empty((32, 3, 224, 224), dtype=torch.bfloat16, device="cuda").contiguous(
        memory_format=torch.channels_last
    )
    wanted = torch.empty_like(out)
    triton_pass.run(what, field, columns, rows, out)
    triton_pass.run(what, images, columns, None, wanted)
    assert torch.equal(out, wanted)
    assert not triton_pass._failed


@pytest.mark.gpu
def test_it_runs_on_the_current_stream_and_does_not_wait() -> None:
    pytest.importorskip("triton")
    what = JITTERED
    columns, images = make_columns(what, 64, 256).cuda(), make_images(64, 3, 256, device="cuda")
    wanted = torch.empty((64, 3, 224, 224), dtype=torch.bfloat16, device="cuda").contiguous(
        memory_format=torch.channels_last
    )
    triton_pass.run(what, images, columns, None, wanted)
    late, out = torch.zeros_like(images), torch.zeros_like(wanted)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(200_000_000)
            late.copy_(images)
            triton_pass.run(what, late, columns, None, out)
            assert not stream.query()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    stream.synchronize()
    assert torch.equal(out, wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("outside", ["constant", "reflect"])
@pytest.mark.parametrize("sampling", ["shift", "linear"])
def test_an_empty_box_reads_nothing_beyond_the_images(sampling: Any, outside: Any) -> None:
    pytest.importorskip("triton")
    what = Pass(3, (224, 224), sampling=sampling, outside=outside, framed=True, fill=(1, 2, 3))
    columns, images = make_columns(what, 64, 256).cuda(), make_images(64, 3, 256, device="cuda")
    columns[:, 6:10] = torch.tensor([0.0, 0.0, -1e5, -1e5])
    columns[:, 12:16] = torch.tensor([1e6, 1e6, 1e6, 1e6])
    out = torch.empty((64, 3, 224, 224), device="cuda").contiguous(memory_format=torch.channels_last)
    triton_pass.run(what, images, columns, None, out)
    torch.cuda.synchronize()
    assert torch.equal(out, torch.tensor([1.0, 2.0, 3.0], device="cuda")[:, None, None].expand_as(out))


@pytest.mark.gpu
def test_images_that_it_does_not_take_are_made_by_plain() -> None:
    pytest.importorskip("triton")
    what = TINY
    images, columns = make_images(8, 3, 40, device="cuda"), make_columns(what, 8, 40).cuda()
    out = torch.empty((8, 3, 7, 11), device="cuda").contiguous(memory_format=torch.channels_last)
    wanted = torch.empty_like(out)
    triton_pass.run(what, images, columns, None, wanted)
    triton_pass.run(what, images.contiguous(), columns, None, out)
    assert torch.equal(out, wanted)


if __name__ == "__main__":
    interpret()
