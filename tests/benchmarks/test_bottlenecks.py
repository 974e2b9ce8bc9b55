"""benchmarks/bottlenecks.py sets up every situation, and says what was named. Few photos name less than many."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Script


@pytest.mark.soak
def test_it_runs(script: Script, photo_folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed: pip install obstore")
    found = tmp_path / "found.json"
    done = script(
        "benchmarks/bottlenecks.py", photo_folder, "--work", tmp_path / "w", "--images", "48", "--json", found
    )
    assert done.returncode in (0, 1), done.stderr
    situations = json.loads(found.read_text())["situations"]
    assert len(situations) + done.stdout.count(": left out (") == 10
    assert f" of {len(situations)} named" in done.stdout
    named = {one["situation"]: one["named"] for one in situations}
    assert named["a step of 50 ms"] == "training"
    assert named["a transform in Python"] == "transform"
