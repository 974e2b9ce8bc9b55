"""benchmarks/headroom.py trains in each lane; its trace is as long as the time."""

from __future__ import annotations

import json
import os
import runpy
from pathlib import Path

import pytest

from tests.conftest import Script

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("lane", ["packer", "replay"])
def test_it_trains_in_a_lane(script: Script, photo_folder: Path, tmp_path: Path, lane: str) -> None:
    cores = os.sched_getaffinity(0)
    done = script(
        "benchmarks/headroom.py", photo_folder, "--work", tmp_path, "--train", lane, "--batches", "2"
    )
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout.splitlines()[-1])
    assert len(run["waits"]) == len(run["steps"]) == 2
    assert run["rows"] == 2 * 24
    assert os.sched_getaffinity(0) == cores


def test_a_character_of_a_trace_is_20_ms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    trace = runpy.run_path(str(ROOT / "benchmarks/headroom.py"))["trace"]
    assert trace([0.04, 0.0], [0.06, 0.02]) == "..####"
    assert trace([0.0] * 99, [0.03] * 99) == "#" * 30
