"""benchmarks/tables_higgs.py trains each loader's net in turn, and compares their epochs."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from packer.format.fields import Field
from packer.writing.pack_writer import PackWriter

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    pytest.importorskip("torch")
    return pytest.importorskip("tables_higgs")


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    """Rows whose label is the sign of a sum."""
    out, rows = tmp_path / "t.h5", 1500
    features = np.random.default_rng(0).standard_normal((rows, 2)).astype("f4")
    label = (features.sum(axis=1) > 0).astype("f4")
    fields = Field("features", "<f4", (2,)), Field("label", "<f4", ())
    with PackWriter(str(out), fields=fields, rows=rows, block_rows=rows, format="h5") as writer:
        writer.write_block(0, {"features": features, "label": label})
        splits = {"train": ((0, 1100),), "test": ((1100, 1500),)}
        writer.finish(rows=rows, ragged={}, splits=splits)
    return out


@pytest.mark.usefixtures("one_thread")
def test_each_loader_trains_a_net(
    bench: ModuleType, pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = tmp_path / "found.json"
    bench.main(
        [str(pack), "--epochs", "2", "--batch-size", "100", "--train-rows", "1000", "--json", str(found)]
    )
    printed = capsys.readouterr().out
    assert printed.startswith("1,000 rows, batches of 100, cpu\n")
    record = json.loads(found.read_text())["epochs"]
    assert list(record) == ["packer", "dataloader", "slices", "cached"]
    assert all(len(epochs) == 2 for epochs in record.values())
    for name in ("packer", "dataloader", "slices"):
        assert record[name][-1]["auc"] > 0.9, name
        assert 0 <= record[name][-1]["waited"] < record[name][-1]["seconds"]


def test_ratios_are_of_paired_epochs(bench: ModuleType) -> None:
    found = {
        name: [{"seconds": s, "waited": 0.5, "auc": 0.5, "loss": 1.0} for s in seconds]
        for name, seconds in {"packer": (9.0, 2.0, 6.0), "cached": (1.0, 1.0, 4.0)}.items()
    }
    row = bench.show(found, 60).splitlines()[1]
    assert row.split() == ["packer", "4.00", "16.67%", "1.750", "15", "0.5000", "0.5000", "0.5000"]


def test_an_unknown_loader_is_refused(
    bench: ModuleType, pack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        bench.main([str(pack), "--loaders", "packer,ffcv"])
    sentence = "--loaders ffcv: is not one of packer, dataloader, slices, cached. Pass some of these.\n"
    assert capsys.readouterr().err.endswith(sentence)
