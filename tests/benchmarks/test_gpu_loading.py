"""benchmarks/gpu_loading.py runs, on the CPU where there is no GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "gpu_loading.py"


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


def test_it_runs() -> None:
    done = bench("--smoke")
    assert done.returncode == 0, done.stderr
    assert "disk, rows, bf16, normalised" in done.stdout
    assert "ResNet-50 step: " in done.stdout


def test_it_says_that_there_is_no_gpu() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is one")
    done = bench()
    assert (done.returncode, done.stderr) == (
        2,
        "torch sees no CUDA device here; pass --smoke to see that the benchmark runs.\n",
    )
