"""benchmarks/augment.py runs, so that it cannot rot."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest


def test_the_benchmark_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "augment.py"
    runpy.run_path(str(script))["main"](["--smoke", "--json", str(tmp_path / "r.json")])
    printed = capsys.readouterr().out
    assert "rotate, flip, normalize, 16 to 16 px" in printed
    assert printed.count("OpenCV ") == 6
    results = json.loads((tmp_path / "r.json").read_text())["results"]
    assert all(r["images_a_second"] > 0 for r in results)
