"""The kernels of packer.augment.passes.triton_pass in Triton's interpreter, against torch: equal, and noticed where they are not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from packer.augment.passes.pass_agreement import last_place
from tests.augment.passes.pass_cases import CASES

HERE = Path(__file__).parent


def interpret(*given: str) -> Any:
    """What interpreted.py prints."""
    triton = pytest.importorskip("triton", reason="Triton cannot be imported")
    if not hasattr(triton, "knobs"):
        pytest.skip("this Triton is too old: plain torch takes the place of the kernel")
    done = subprocess.run(
        [sys.executable, HERE / "interpreted.py", *given],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(HERE.parents[2])},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def cases() -> dict[str, list[float]]:
    found: dict[str, list[float]] = interpret("cases")
    return found


@pytest.mark.parametrize("name", CASES)
def test_the_interpreter_equals_plain(cases: dict[str, list[float]], name: str) -> None:
    difference, disagreement = cases[name]
    assert difference <= last_place(CASES[name][0])  # not a number is not
    assert disagreement <= 1


@pytest.mark.parametrize("count", [4, pytest.param(300, marks=pytest.mark.soak)])
def test_right_kernels_agree_on_random_passes(count: int) -> None:
    made, largest, _ = interpret("random", str(count))
    assert made == count
    assert largest <= 1


@pytest.mark.parametrize("every", [16, pytest.param(1, marks=pytest.mark.soak)])
def test_wrong_kernels_are_noticed(every: int) -> None:
    """Of each mutation of the kernels: in every pass whose numbers it changes."""
    found = interpret("mutations", "1", str(every))
    assert {
        mutation: counts for mutation, counts in found.items() if counts[0] != counts[1] or not counts[0]
    } == {}
    assert len(found) >= 3
