"""benchmarks/store_orders.py runs, and regions fetch what each node keeps once."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tests.conftest import Script


def test_it_runs(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    quality = importlib.import_module("order_quality")
    monkeypatch.setattr(quality, "_ROWS", 1 << 16)  # estimates of fewer batches
    monkeypatch.setattr(quality, "_PLACED", 1 << 18)
    done = script(
        "benchmarks/store_orders.py", "--rows", "40000", "--batch", "64", "--nodes", "4", "--cache", "60"
    )
    assert done.returncode == 0, done.stderr
    lines = {
        line.split("|")[1].strip(): line.split("|")[2:]
        for line in done.stdout.splitlines()
        if line.startswith("| ")
    }
    assert [float(value) for value in lines["regions, window 8"][:2]] == [1.0, 0.0]
    assert float(lines["blocks"][1]) > 1
