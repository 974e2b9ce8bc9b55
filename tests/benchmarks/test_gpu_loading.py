"""benchmarks/gpu_loading.py runs, on the CPU where there is no GPU."""

from __future__ import annotations

import pytest

from tests.conftest import Script


def test_it_runs(script: Script) -> None:
    done = script("benchmarks/gpu_loading.py", "--smoke")
    assert done.returncode == 0, done.stderr
    assert "disk, rows, bf16, normalised" in done.stdout
    assert "disk, rows, bf16, resized crop of whole pictures" in done.stdout
    assert "ResNet-50 step: " in done.stdout


def test_it_says_that_there_is_no_gpu(script: Script) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is one")
    done = script("benchmarks/gpu_loading.py")
    assert (done.returncode, done.stderr) == (
        2,
        "torch sees no CUDA device here; pass --smoke to see that the benchmark runs.\n",
    )
