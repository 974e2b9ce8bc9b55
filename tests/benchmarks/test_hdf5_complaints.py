"""benchmarks/hdf5_complaints.py: what each lane delivers is compared with the data."""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def complaint(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(FOLDER)
    pytest.importorskip("torch")
    return importlib.import_module(f"complaints.{request.param}").COMPLAINT


@pytest.mark.parametrize(("complaint", "rows"), [("windows", 48), ("tensors", 8)], indirect=["complaint"])
def test_lanes_deliver_every_row_and_wrong_ones_are_found(
    complaint: Any, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from complaints.complaint import Epochs
    from complaints.serving import check, run

    if hasattr(module := sys.modules[complaint.write.__module__], "LENGTH"):
        monkeypatch.setattr(module, "LENGTH", 24)
    complaint.write(tmp_path, rows)
    lanes = [lane for lane in complaint.lanes.values() if all(map(find_spec, lane.needs))]
    opened = [lane.open(tmp_path / lane.store, 0) for lane in lanes]
    assert {check(epochs, complaint, tmp_path) for epochs in opened} == {len(opened[0].numbers)}
    assert run(opened[0], 5)["samples"] == 5
    values, numbers = next(iter(opened[0].begin(None)))
    with pytest.raises(ValueError, match=r"of .* samples came"):
        check(Epochs(lambda limit: [(values, numbers)] * 2, opened[0].numbers), complaint, tmp_path)
    shifted = Epochs(lambda limit: [(values, np.roll(numbers, 1) + 1)], opened[0].numbers)
    with pytest.raises(ValueError, match="other"):
        check(shifted, complaint, tmp_path)
