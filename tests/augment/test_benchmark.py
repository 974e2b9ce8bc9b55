"""benchmarks/augment.py runs, so that it cannot rot."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest


def test_the_benchmark_runs(capsys: pytest.CaptureFixture[str]) -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "augment.py"
    runpy.run_path(str(script))["main"](["--smoke"])
    printed = capsys.readouterr().out
    assert "stack float32" in printed
    assert "5 uint8 images of 8 px, crop 8 px, padding 2" in printed
