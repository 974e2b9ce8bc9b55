"""benchmarks/remote.py runs, and compares what packer loads with the pack."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Script


@pytest.mark.soak
def test_it_runs(script: Script, photo_folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed: pip install obstore")
    options = [
        "--images",
        "24",
        "--size",
        "16",
        "--batch",
        "8",
        "--latency",
        "0",
        "--rate",
        "0",
        "--rounds",
        "1",
    ]
    found = tmp_path / "found.json"
    done = script("benchmarks/remote.py", photo_folder, "--work", tmp_path / "w", *options, "--json", found)
    assert done.returncode == 0, done.stderr
    assert "packer, opened: " in done.stdout
    assert {"first", "cold", "warm"} <= json.loads(found.read_text())["rounds"]["packer"][0].keys()
