"""benchmarks/gpu_augment.py runs, on the CPU where there is no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "gpu_augment.py"


def bench(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


def test_it_runs(tmp_path: Path) -> None:
    done = bench("--smoke", "--json", tmp_path / "results.json")
    assert done.returncode == 0, done.stderr
    written = json.loads((tmp_path / "results.json").read_text())
    ours = [r for r in written["results"] if r["subject"] == "packer"]
    assert len(ours) == 2 * 2 * 3  # cases, stacks, dtypes
    assert all(r["microseconds"] > 0 and r["host_microseconds"] > 0 for r in ours)
    assert written["conditions"]["torch"]
    assert "crop, flip; 4 x 16 -> 12; bfloat16; packer" in done.stdout


def test_it_says_that_there_is_no_gpu() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is one")
    done = bench()
    assert (done.returncode, done.stderr) == (
        2,
        "torch sees no CUDA device here; pass --smoke to see that the benchmark runs.\n",
    )
