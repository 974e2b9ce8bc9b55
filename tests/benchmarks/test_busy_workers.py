"""benchmarks/busy_workers.py runs, and its workers are busy."""

from __future__ import annotations

import re

from tests.conftest import Script


def test_it_runs(script: Script) -> None:
    done = script("benchmarks/busy_workers.py", "--workers", "8", "--seconds", "1.5")
    assert done.returncode == 0, done.stderr
    shares = [float(share) for share in re.findall(r"busy share, .* ([0-9.]+)\n", done.stdout)]
    assert len(shares) == 2
    assert min(shares) > 0.2
