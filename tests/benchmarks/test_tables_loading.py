"""benchmarks/tables_loading.py runs, and compares what every lane delivers with the table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(FOLDER)
    pytest.importorskip("torch")
    made: ModuleType = pytest.importorskip("tables_loading")
    return made


def test_lanes_are_compared_measured_and_kept(
    tables: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = tmp_path / "found.json"
    arguments = ["--rows", "3000", "--columns", "5", "--batch", "200", "--rounds", "2", "--seconds", "0.001"]
    tables.main([*arguments, "--work", str(tmp_path), "--json", str(found)])
    printed = capsys.readouterr().out
    assert "3,000 rows of 5 float32 and a number, batches of 200" in printed
    (report,) = json.loads(found.read_text())
    (ways,) = report["sections"].values()
    assert [way["name"] for way in ways] == [
        *("DataLoader, rows", "DataLoader, batches", "slices", "index_select"),
        *("packed, sequential", "packed, slices", "packed, blocks", "packed, rows"),
        "limit: memcpy, 2 threads",
    ]
    assert all(len(way["rates"]) == 2 for way in ways[:-1])
    assert (tmp_path / "table-3000x5.h5").exists()


def test_what_is_wrong_is_found(tables: ModuleType) -> None:
    import torch

    features, numbers = tables.table(100, 3)
    every = torch.randperm(100, generator=torch.Generator().manual_seed(0))

    def check(name: str, rows: Any, values: Any) -> None:
        def epoch() -> Iterator[Any]:
            return zip(values.split(10), rows.split(10), strict=True)

        tables.check(name, epoch(), features, numbers)

    check("slices", every, features[every])
    check("packed, sequential", numbers, features)
    with pytest.raises(RuntimeError, match=r"^slices: rows differ from the table's\.$"):
        check("slices", numbers, features[every])
    with pytest.raises(RuntimeError, match=r"^slices: 10 rows of 100 did not come once\.$"):
        check("slices", numbers[10:], features[10:])
    with pytest.raises(RuntimeError, match=r"^packed, rows: was not shuffled\.$"):
        check("packed, rows", numbers, features)
