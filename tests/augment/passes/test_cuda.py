"""packer.augment.passes.triton_pass: compiled for GPUs that are not here, launched on a driver that is none, and on a GPU
where there is one. test_interpreted.py compares its numbers with torch's."""

from __future__ import annotations

import importlib
import logging
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

from packer.augment.passes import torch_pass, triton_pass
from packer.augment.passes.pass_agreement import disagreement
from packer.augment.passes.pass_spec import Pass
from packer.augment.passes.prepared_draws import PreparedDraws
from tests.augment.passes.pass_cases import CASES, TINY, both, make_columns, make_images, normalised

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


def compiled(what: Pass, architecture: int, means: bool = False) -> Any:
    """Compile the kernel of a pass, or that of its means, for uint8 images and compute capability architecture / 10."""
    compiler, backends = map(importlib.import_module, ("triton.compiler", "triton.backends.compiler"))
    plan = triton_pass._plan(what)
    kernel, constants = (plan.means, plan.mean_constants) if means else (plan.kernel, plan.constants)
    pointers = {"out": TYPES[what.dtype], "images": "u8"} | dict.fromkeys(
        ("columns", "means", "result"), "fp32"
    )
    signature: dict[str, Any] = {}
    attributes = {}
    for place, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
        elif name in pointers:
            signature[name] = f"*{pointers[name]}"
            if name in ("out", "result"):
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
    for means in [False, True] if what.contrast else [False]:
        assert local_memory(compiled(what, architecture, means), architecture, tmp_path) == 0


@pytest.mark.usefixtures("own_cache")
def test_stores_are_as_wide_as_they_come() -> None:
    assert re.search(r"st\.global\.v4\.b32", compiled(COMPILED["crop and flip"], 90).asm["ptx"])


class Driver:
    """A driver of Triton for an H100 that is not there."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        return importlib.import_module("triton.backends.compiler").GPUTarget("cuda", 90, 32)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The keys of kernels that launches would have compiled."""
    triton = pytest.importorskip("triton", reason="Triton cannot be imported")
    if not hasattr(triton, "knobs") or triton_pass._interprets():
        pytest.skip("this Triton is too old, or interprets")
    found: set[str] = set()
    monkeypatch.setattr(triton.runtime.driver, "_active", Driver())
    monkeypatch.setattr(triton.JITFunction, "_do_compile", lambda function, key, *_: found.add(key))
    return found


@pytest.mark.parametrize("name", [*COMPILED, "odd"])
def test_an_epoch_launches_one_kernel_a_pass(kernels: set[str], name: str) -> None:
    """Batches of several sizes out of one request, at any offsets, with draws of a second stage, into any results."""
    what = Pass(3, (11, 13), boxes=1, noise=True) if name == "odd" else replace(COMPILED[name], size=(11, 13))
    images, columns = make_images(40, what.channels, 15), make_columns(what, 40, 15)
    wide = torch.cat([torch.zeros(40, 7), columns], 1)
    memory = torch.empty((40, *what.size, what.channels), dtype=getattr(torch, what.dtype))
    for draws in (PreparedDraws(columns), PreparedDraws(wide)[:, slice(7, None)]):
        for first, count in ((0, 16), (16, 16), (32, 8), (1, 1), (3, 2), (5, 33)):
            part = slice(first, first + count)
            for out in (memory[part], memory[:count]):
                triton_pass._launch(what, images[part], draws[part], out.permute(0, 3, 1, 2))
    assert len(kernels) == 1 + what.contrast * (what.steps > 0)


def test_other_numbers_launch_the_same_kernel() -> None:
    pytest.importorskip("triton", reason="Triton cannot be imported")
    others = replace(JITTERED, fill=(4, 5, 6), scale=(1, 1, 1), shift=(0, 0, 0), limit=1.0)
    first, second = map(triton_pass._plan, (JITTERED, others))
    assert (first.kernel, first.constants) == (second.kernel, second.constants)
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
    assert not triton_pass.can(TINY, images.double(), out)
    assert not triton_pass.can(TINY, images, out.half())
    assert not triton_pass.can(TINY, images[:, :2], out)
    assert not triton_pass.can(Pass(5, (7, 7)), make_images(2, 5, 13), make_images(2, 5, 7))
    ragged, pixels = replace(TINY, ragged=True), torch.zeros(40, 3, dtype=torch.uint8)
    assert not triton_pass.can(ragged, pixels, out)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Batches that a stand-in for Triton made: those of torch, but for row 5, whose red it adds to as many as `launched` says."""
    pytest.importorskip("triton", reason="Triton cannot be imported")
    batches = [0]

    def launch(what: Pass, images: Tensor, draws: PreparedDraws, out: Tensor) -> None:
        torch_pass.run(what, images, draws, out)
        out[5, 0].view(-1)[: batches[0]] += 100
        batches.append(len(out))

    monkeypatch.setattr(triton_pass, "_interprets", lambda: True)
    monkeypatch.setattr(triton_pass, "_agreed", {})
    monkeypatch.setattr(triton_pass, "_launch", launch)
    triton_pass._warn.cache_clear()
    return batches


@pytest.mark.parametrize("sampling", ["shift", "linear"])
@pytest.mark.parametrize("wrong", [0, 6, 20])
def test_the_first_batch_proves_a_pass(
    launched: list[int], caplog: pytest.LogCaptureFixture, sampling: Any, wrong: int
) -> None:
    """Six numbers of an image that is sampled may be of ties."""
    what, images = replace(TINY, sampling=sampling), make_images(6, 3, 13)
    draws = PreparedDraws(make_columns(what, 6, 13))
    expected = torch.empty((6, *what.size, 3)).permute(0, 3, 1, 2)
    torch_pass.run(what, images, draws, expected)
    launched[0] = wrong
    for _ in range(3):
        out = torch.zeros_like(expected)
        triton_pass.run(what, images, draws, out)
    trusted = wrong <= (6 if sampling == "linear" else 0)
    assert len(launched) == (4 if trusted else 2)
    assert torch.equal(out, expected) == (wrong == 0 or not trusted)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * (not trusted)
    if not trusted:
        assert caplog.messages == [
            "augment: Triton failed at a pass (its result differs from that of torch operations); torch operations run it,"
            " which is slower."
        ]


def test_a_pass_that_does_not_compile_is_plain(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """There is no CUDA for a CPU's tensors, which is as good a failure as any."""
    pytest.importorskip("triton", reason="Triton cannot be imported")
    if triton_pass._interprets():
        pytest.skip("the interpreter does not fail")
    monkeypatch.setattr(triton_pass, "_interprets", lambda: True)
    monkeypatch.setattr(triton_pass, "_agreed", {})
    triton_pass._warn.cache_clear()
    what, images = TINY, make_images(2, 3, 13)
    columns, out = make_columns(what, 2, 13), make_images(2, 3, 11, torch.float32)[:, :, :7].contiguous()
    out = out.contiguous(memory_format=torch.channels_last)
    wanted = torch.empty_like(out)
    torch_pass.run(what, images, PreparedDraws(columns), wanted)
    with caplog.at_level(logging.INFO, "packer.augment"):
        for _ in range(2):
            out.zero_()
            triton_pass.run(what, images, PreparedDraws(columns), out)
            assert torch.equal(out, wanted)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert caplog.messages[0].startswith("augment: Triton failed at a pass (")
    assert not triton_pass.can(what, images, out)


def test_without_triton_it_is_plain(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "packer.augment.passes.triton_kernels", raising=False)
    monkeypatch.delattr("packer.augment.passes.triton_kernels", raising=False)
    triton_pass._kernels.cache_clear()
    triton_pass._warn.cache_clear()
    what, images = TINY, make_images(2, 3, 13)
    out = torch.empty(2, 3, 7, 11).contiguous(memory_format=torch.channels_last)
    wanted = torch.empty_like(out)
    columns = make_columns(what, 2, 13)
    torch_pass.run(what, images, PreparedDraws(columns), wanted)
    try:
        with caplog.at_level(logging.INFO, "packer.augment"):
            for _ in range(2):
                triton_pass.run(what, images, PreparedDraws(columns), out)
    finally:
        triton_pass._kernels.cache_clear()
    assert torch.equal(out, wanted)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert caplog.messages[0].startswith("augment: Triton is not available (")


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_a_gpu_equals_plain(name: str) -> None:
    pytest.importorskip("triton")
    what, dtype = CASES[name]
    images = make_images(64, what.channels, 40, dtype, "cuda")
    for seed in range(4):
        found, expected = both(what, images, make_columns(what, 64, 40, seed))
        assert float(disagreement(what, found, expected)) <= 1


@pytest.mark.gpu
@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.parametrize(("count", "side"), [(256, 256), (1024, 40)])
def test_a_gpu_equals_plain_on_whole_batches(name: str, count: int, side: int) -> None:
    pytest.importorskip("triton")
    what = COMPILED[name]
    if side == 40:
        what = replace(what, size=(32, 32))
    images = make_images(64, what.channels, side, device="cuda").repeat(count // 64, 1, 1, 1)
    images = images.contiguous(memory_format=torch.channels_last)
    columns = make_columns(what, count, side)
    made = []
    for start in range(0, count, 64):  # plain takes much memory
        part = slice(start, start + 64)
        found, expected = both(what, images[part], columns[part])
        assert float(disagreement(what, found, expected)) <= 1
        made.append(found)
    out = torch.empty((count, what.channels, *what.size), dtype=getattr(torch, what.dtype), device="cuda")
    out = out.contiguous(memory_format=torch.channels_last)
    triton_pass.run(what, images, PreparedDraws(columns), out)
    assert torch.equal(out, torch.cat(made))


@pytest.mark.gpu
def test_images_of_more_than_2_gigabytes() -> None:
    pytest.importorskip("triton")
    what = Pass(3, (64, 64), dtype="bfloat16", **normalised())
    images = torch.empty((11500, 256, 256, 3), dtype=torch.uint8, device="cuda").permute(0, 3, 1, 2)
    assert images.numel() > 2**31
    images[-32:] = make_images(32, 3, 256, device="cuda")
    draws = PreparedDraws(make_columns(what, 32, 256).repeat(360, 1)[-11500:])
    out = torch.empty((11500, 64, 64, 3), dtype=torch.bfloat16, device="cuda").permute(0, 3, 1, 2)
    expected = torch.empty_like(out[-32:])
    triton_pass.run(what, images, draws, out)
    triton_pass.run(what, images[-32:], draws[-32:], expected)
    assert torch.equal(out[-32:], expected)
    assert all(triton_pass._agreed.values())


@pytest.mark.gpu
def test_it_runs_on_the_current_stream_and_does_not_wait() -> None:
    pytest.importorskip("triton")
    what = JITTERED
    draws, images = PreparedDraws(make_columns(what, 64, 256)), make_images(64, 3, 256, device="cuda")
    wanted = torch.empty((64, 3, 224, 224), dtype=torch.bfloat16, device="cuda").contiguous(
        memory_format=torch.channels_last
    )
    triton_pass.run(what, images, draws, wanted)
    late, out = torch.zeros_like(images), torch.zeros_like(wanted)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(200_000_000)
            late.copy_(images)
            triton_pass.run(what, late, draws, out)
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
    columns, images = make_columns(what, 64, 256), make_images(64, 3, 256, device="cuda")
    columns[:, 6:10] = torch.tensor([0.0, 0.0, -1e5, -1e5])
    columns[:, 12:16] = torch.tensor([1e6, 1e6, 1e6, 1e6])
    out = torch.empty((64, 3, 224, 224), device="cuda").contiguous(memory_format=torch.channels_last)
    triton_pass.run(what, images, PreparedDraws(columns), out)
    torch.cuda.synchronize()
    assert torch.equal(out, torch.tensor([1.0, 2.0, 3.0], device="cuda")[:, None, None].expand_as(out))


@pytest.mark.gpu
def test_images_and_results_of_other_strides() -> None:
    pytest.importorskip("triton")
    what = TINY
    images, draws = make_images(8, 3, 40, device="cuda"), PreparedDraws(make_columns(what, 8, 40))
    out = torch.empty((8, 3, 7, 11), device="cuda").contiguous(memory_format=torch.channels_last)
    wanted = torch.empty_like(out)
    triton_pass.run(what, images, draws, wanted)
    for strided in (images.contiguous(), images.repeat_interleave(2, 0)[::2]):
        for result in (out, out.contiguous(), torch.empty((8, 3, 7, 22), device="cuda")[..., ::2]):
            triton_pass.run(what, strided, draws, result)
            assert torch.equal(result, wanted)
