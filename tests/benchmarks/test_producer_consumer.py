"""benchmarks/producer_consumer.py: all lanes hand out the same batches."""

from __future__ import annotations

import importlib.util
import re

import pytest

from tests.conftest import Script

LANES = ("serial", "Queue", "DataLoader", "packer", "Ray tasks", "Ray actors", "Ray Data")


@pytest.mark.parametrize("lanes", [("packer",), pytest.param(LANES, marks=pytest.mark.soak)])
def test_it_runs(script: Script, lanes: tuple[str, ...]) -> None:
    if "Ray Data" in lanes and not importlib.util.find_spec("ray"):
        pytest.skip("Ray is not installed")
    small = ("--scene", "cpu", "--rounds", "1", "--rows", "2", "--batches", "4", "--lanes", *lanes)
    done = script("benchmarks/producer_consumer.py", *small)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^\| (\w[\w ]*) \| [\d.]", done.stdout, flags=re.MULTILINE) == list(lanes)
