"""benchmarks/gpu_augment.py runs, on the CPU where there is no GPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.conftest import Script


def test_it_runs(script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also beside a torchvision that is built for another torch."""
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text("raise RuntimeError('no operator nms')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    done = script("benchmarks/gpu_augment.py", "--smoke", "--json", tmp_path / "results.json")
    assert done.returncode == 0, done.stderr
    written = json.loads((tmp_path / "results.json").read_text())
    ours = [r for r in written["results"] if r["subject"] == "packer"]
    assert len(ours) == 2 * 2 * 3  # cases, stacks, dtypes
    assert all(r["microseconds"] > 0 and r["host_microseconds"] > 0 for r in ours)
    assert written["conditions"]["torch"]
    assert "crop, flip; 4 x 16 -> 12; bfloat16; packer" in done.stdout


def test_it_says_that_there_is_no_gpu(script: Script) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is one")
    done = script("benchmarks/gpu_augment.py")
    assert (done.returncode, done.stderr) == (
        2,
        "torch sees no CUDA device here; pass --smoke to see that the benchmark runs.\n",
    )
