"""benchmarks/tables_loading.py runs, compares what every lane delivers with the table, and says which goals were met."""

from __future__ import annotations

import json
import re
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
    monkeypatch.setattr(made, "LIMIT_SECONDS", 0.0)
    return made


def test_lanes_are_compared_measured_and_kept(
    tables: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = tmp_path / "found.json"
    arguments = ["--rows", "300000", "--columns", "5", "--batch", "20000", "--rounds", "2", "--seconds", "0"]
    arguments += [
        "--work",
        str(tmp_path),
        "--json",
        str(found),
        "--touch",
        "--only",
        "packer rows,slices shuffled",
    ]
    tables.main(arguments)
    printed = capsys.readouterr().out
    assert "300,000 rows of 5 float32 and a number, batches of 20,000, 2 threads, 2 rounds" in printed
    assert re.search(
        r"^batch 20,000: packer rows / slices shuffled: [\d.]+; goal 1, (met|MISSED)$", printed, re.M
    )
    record = json.loads(found.read_text())["batches"]["20000"]
    lanes = ["packer rows", "slices shuffled"]
    assert list(record["rates"]) == [*lanes, "memcpy, 1 threads", "memcpy, 2 threads"]
    assert {len(rates) for rates in record["rates"].values()} == {2}
    assert sorted(record["memory"]) == lanes
    assert all(0 < own <= every for own, every in record["memory"].values())
    assert (tmp_path / "table-300000x5.h5").exists()


def test_every_lane_gives_the_table(tables: ModuleType, tmp_path: Path) -> None:
    features, numbers = tables.table(700, 3)
    pack = str(tmp_path / "t.h5")
    tables.write(pack, features, numbers)
    setting = tables.Setting(700, 3, 64, 2, pack)
    for name in tables.names_of(None):
        tables.check(name, tables.open_lane(name, setting, lambda: (features, numbers)), features, numbers)


def test_what_is_wrong_is_found(tables: ModuleType) -> None:
    import torch

    features, numbers = tables.table(100, 3)
    every = torch.randperm(100, generator=torch.Generator().manual_seed(0))

    def check(name: str, rows: Any, values: Any) -> None:
        def epoch() -> Iterator[Any]:
            return zip(values.split(10), rows.split(10), strict=True)

        tables.check(name, epoch, features, numbers)

    check("slices shuffled", every, features[every])
    check("slices", numbers, features)
    with pytest.raises(RuntimeError, match=r"^slices: rows differ from the table's\.$"):
        check("slices", numbers, features[every])
    with pytest.raises(RuntimeError, match=r"^slices: 10 rows of 100 did not come once\.$"):
        check("slices", numbers[10:], features[10:])
    with pytest.raises(RuntimeError, match=r"^packer rows: was not shuffled\.$"):
        check("packer rows", numbers, features)


def test_ratios_are_of_the_same_round(tables: ModuleType) -> None:
    found = {"DataLoader": [1.0, 2.0, 4.0], "packer sequential": [300.0, 300.0, 400.0]}
    assert tables.ratio(found, "packer sequential", "DataLoader") == 150
    assert tables.ratio(found, "packer rows", "DataLoader") is None
    assert list(tables.goals(1024, found, {})) == [
        "batch 1,024: packer sequential / DataLoader: 150.0; goal 200, MISSED"
    ]
    assert list(tables.goals(16384, found, {})) == []


def test_wrong_usage_is_a_sentence(tables: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        tables.main(["--only", "ffcv"])
    assert "error: --only ffcv: no lane has that in its name; there are packer sequential; packer" in (
        capsys.readouterr().err
    )
