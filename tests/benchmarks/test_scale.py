"""benchmarks/scale.py runs, and what it writes is a pack."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Script


@pytest.mark.soak
def test_it_runs(script: Script, tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    out = tmp_path / "found.json"
    done = script(
        "benchmarks/scale.py", "--rows", "200000", "--ranks", "16", "--work", tmp_path, "--json", out
    )
    assert done.returncode == 0, done.stderr
    assert "| regions of ranks | all rows |" in done.stdout
    (point,) = json.loads(out.read_text())["points"]
    assert (point["shards"], point["index_requests"], point["largest"]) == (4, 1, 1.0)
    assert all(
        min(own["first"]) > 0 and own["state_bytes"] < 300 for own in point["local"]["orders"].values()
    )
    shares = {name: own["node_share_new"] for name, own in point["simulated"].items()}
    assert shares["regions of ranks"] == shares["sequential"] == 0 < shares["slices"]
