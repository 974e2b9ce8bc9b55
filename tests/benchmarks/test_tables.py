"""benchmarks/tables.py runs: every lane that can be imported reads all rows."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(FOLDER)
    made: ModuleType = pytest.importorskip("tables")
    return made


@pytest.mark.parametrize("name", ["polars", "pandas", "packer"])
def test_a_lane_reads_all_rows(
    tables: ModuleType, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not tables.installed(name):
        pytest.skip(f"{name} is not installed")
    table = tmp_path / "numbers.csv"
    table.write_text("".join(f"{row % 2},{row}.5,2\n" for row in range(40)))
    tables.main([str(table), "--lane", name, "--out", str(tmp_path / "out.h5"), "--workers", "1"])
    assert json.loads(capsys.readouterr().out)["rows"] == 40
