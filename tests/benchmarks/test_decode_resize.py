"""benchmarks/decode_resize.py runs."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import Script


def test_it_runs(script: Script, photo_folder: Path) -> None:
    done = script(
        "benchmarks/decode_resize.py", photo_folder, "--size", "16", "--count", "2", "--rounds", "1"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "DecodeResize + sums" in done.stdout
