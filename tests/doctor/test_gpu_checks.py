"""packer doctor --gpu on a GPU that is none: it passes, and each check fails when its subject is broken."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from packer import PackedBatchDataset
from packer.augment.passes import torch_pass
from packer.cli import cli
from packer.doctor import gpu_checks
from packer.doctor.gpu_checks import MeasuredGpu, Sizes, examine_gpu
from packer.errors import UsageError

SIZES = Sizes(rows=38, side=20, batch=4, batches=30)
BUS = 1e9
ALL = ["pinned copies", "copies overlap", "placement='disk', plain", "pass: colours", "38 batches"]


class StandIn(MeasuredGpu):
    """A GPU that computes beside the CPU, whose time it takes."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self._until = 0.0
        self.leak = 0
        self.kernels = 0
        self.asked = 0

    def wait(self) -> None:
        time.sleep(max(0.0, self._until - time.perf_counter()))

    def seconds(self, call: Callable[[], object], repeats: int) -> float:
        began = time.perf_counter()
        call()
        self.wait()
        return time.perf_counter() - began

    def compute(self, seconds: float) -> None:
        self._until = max(self._until, time.perf_counter()) + seconds

    def pinned_rate(self, nbytes: int) -> float:
        return BUS

    def allocated(self) -> int:
        self.asked += 1
        return self.leak * self.asked

    def compiled_kernels(self) -> int:
        return self.kernels * self.asked

    def versions(self) -> dict[str, str]:
        return {"GPU": "H9"}


class Dataset:
    """A dataset on the stand-in: loading takes time, and may wait for computation; images may be wrong."""

    rate, waits, wrong = 0.9 * BUS, False, 0

    def __init__(
        self, gpu: StandIn, pack: Any, batch: int, placement: str = "disk", augment: str = ""
    ) -> None:
        self.gpu = gpu
        self.real = PackedBatchDataset(pack, batch, order="rows", augment=augment or None)

    def __enter__(self) -> Dataset:
        return self

    def __exit__(self, *_: object) -> None:
        self.real.close()

    def __len__(self) -> int:
        return len(self.real)

    def __iter__(self) -> Iterator[Any]:
        for batch in self.real:
            if self.waits:
                self.gpu.wait()
            time.sleep(0.01)
            batch.image[0, 0].view(-1)[: self.wrong] = 1
            yield batch

    def stats(self) -> Any:
        return SimpleNamespace(nbytes=1e6, copy_seconds=1e6 / self.rate)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """The stand-in; the compiled pass, or torch's, takes Triton's place."""
    gpu = StandIn()
    monkeypatch.setattr(gpu_checks, "_dataset", Dataset)
    monkeypatch.setattr(gpu_checks, "_LONGEST", 1.4)  # machines that run tests are busy
    runs = SimpleNamespace(run=torch_pass.run)
    monkeypatch.setattr(gpu_checks, "triton_pass", runs)
    monkeypatch.setattr(gpu_checks, "implementation", lambda *_: runs)
    return gpu


def failures(gpu: StandIn) -> list[str]:
    examination = examine_gpu(gpu, SIZES)
    assert set(ALL) <= {check.name for check in examination.checks}
    assert examination.passed == (not any(check.problem for check in examination.checks))
    assert all(check.problem.count(". ") >= 1 for check in examination.checks if check.problem)
    return [check.name for check in examination.checks if check.problem]


def test_a_gpu_that_works(gpu: StandIn) -> None:
    assert failures(gpu) == []


@pytest.mark.parametrize(
    ("broken", "names"),
    [
        ({"rate": 0.3 * BUS}, ["pinned copies"]),
        ({"waits": True}, ["copies overlap"]),
        ({"wrong": 200}, [f"placement={p!r}, {w}" for p in ("disk", "gpu") for w in ("plain", "augmented")]),
    ],
)
def test_loading_that_is_broken(
    gpu: StandIn, monkeypatch: pytest.MonkeyPatch, broken: dict[str, Any], names: list[str]
) -> None:
    for name, value in broken.items():
        monkeypatch.setattr(Dataset, name, value)
    assert failures(gpu) == names


def test_memory_that_grows(gpu: StandIn) -> None:
    gpu.leak = 8 * 20 * 20 * 3  # an epoch may end with some buffers more than the one before
    assert failures(gpu) == []
    gpu.leak += 1
    assert failures(gpu) == ["38 batches"]


def test_kernels_that_are_compiled_again(gpu: StandIn) -> None:
    gpu.kernels = 2
    assert failures(gpu) == ["38 batches"]


@pytest.mark.parametrize("wrong", [True, False])
def test_passes_that_differ_or_are_not_tritons(
    gpu: StandIn, monkeypatch: pytest.MonkeyPatch, wrong: bool
) -> None:
    run_pass = gpu_checks.run_pass

    def differ(what: Any, images: Any, draws: Any, out: Any) -> Any:
        return run_pass(what, images, draws, out).add_(4)

    if wrong:
        monkeypatch.setattr(gpu_checks, "run_pass", differ)
    else:
        monkeypatch.setattr(gpu_checks, "implementation", lambda *_: torch_pass)
    assert failures(gpu) == [f"pass: {name}" for name in gpu_checks.PASSES]


def test_the_command(gpu: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_checks, "MeasuredGpu", lambda: gpu)
    monkeypatch.setattr(gpu_checks, "Sizes", lambda: SIZES)
    done = CliRunner().invoke(cli, ["doctor", "--gpu"])
    assert done.exit_code == 0
    assert done.stdout.startswith("GPU        H9\n\nok      pinned copies ")
    assert done.stdout.endswith("\n\nAll checks passed.\n")
    gpu.leak = 10_000
    done = CliRunner().invoke(cli, ["doctor", "--gpu", "--json"])
    assert done.exit_code == 1
    record = json.loads(done.stdout)
    assert (record["command"], record["passed"], record["versions"]) == ("doctor", False, {"GPU": "H9"})
    assert [check["name"] for check in record["checks"] if check["problem"]] == ["38 batches"]


def test_without_a_gpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    done = CliRunner().invoke(cli, ["doctor", "--gpu"])
    assert isinstance(done.exception, UsageError)
    assert str(done.exception).startswith("GPU: torch sees no CUDA device here, so nothing can be checked.")


@pytest.mark.gpu
def test_this_gpu() -> None:
    examination = examine_gpu()
    assert examination.passed, str(examination)
