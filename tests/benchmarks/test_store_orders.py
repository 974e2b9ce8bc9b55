"""benchmarks/store_orders.py runs, and regions fetch what each node keeps once."""

from __future__ import annotations

from tests.conftest import Script


def test_it_runs(script: Script) -> None:
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
