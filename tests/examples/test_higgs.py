"""examples/higgs.py: the AUC, the three loaders, and a whole run from a table to TensorBoard's scalars."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import product
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.conftest import Script

FOLDER = Path(__file__).parents[2] / "examples"
EPOCH = re.compile(
    r"epoch (\d): loss (\d\.\d{4}), AUC (\d\.\d{4}), \d+\.\d\d s, [\d,]+ rows/s, \d+\.\d\d% of the time waiting for data"
)


@pytest.fixture
def higgs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(FOLDER)
    pytest.importorskip("torch")
    return pytest.importorskip("higgs")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """6,000 simulated rows, compressed."""
    out = tmp_path_factory.mktemp("higgs") / "small.csv.gz"
    tool = FOLDER.parent / "tools" / "make_higgs_like.py"
    command = [sys.executable, tool, out, "--rows", "6000", "--workers", "1"]
    subprocess.run(command, check=True, capture_output=True)
    return out


@pytest.mark.parametrize("levels", [2, 7, 1000])
def test_the_auc_is_the_share_of_pairs_in_the_right_order(higgs: ModuleType, levels: int) -> None:
    draws = np.random.default_rng(levels)
    scores = draws.integers(0, levels, 80).astype(np.float32)
    labels = draws.random(80) < 0.4
    pairs = list(product(scores[labels], scores[~labels]))
    share = sum(1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs) / len(pairs)
    assert higgs.roc_auc(scores, labels) == pytest.approx(share, abs=1e-12)
    assert higgs.roc_auc(labels.astype(float), labels) == 1.0
    assert higgs.roc_auc(np.zeros(80), labels) == 0.5


def test_each_loader_gives_every_training_row_once(higgs: ModuleType, table: Path) -> None:
    import torch

    pack = higgs.packed(table, 2000)
    assert pack == table.with_name("small.h5")
    found = {}
    for name in ("packer", "dataloader", "slices"):
        loader, rows = higgs.make_loader(name, pack, 300, 3500, "cpu")
        assert rows == 3500
        for _ in range(2):
            batches = [tuple(values.clone() for values in batch) for batch in loader]
            assert [len(label) for _, label in batches] == [300] * 11 + [200]
            every = torch.cat([torch.cat([x, y[:, None].float()], 1) for x, y in batches]).numpy()
            assert every.shape == (3500, 22)
            found.setdefault(name, []).append(every)
    first = found["packer"][0]
    assert not np.array_equal(first, found["packer"][1])
    for each in (each for several in found.values() for each in several):
        assert np.array_equal(np.sort(each.view("V88"), axis=0), np.sort(first.view("V88"), axis=0))
    loader, _ = higgs.make_loader("cached", pack, 300, 3500, "cpu")
    assert sum(len(label) for _, label in loader) == 3500


def test_it_learns_from_a_table_and_writes_scalars(script: Script, table: Path, tmp_path: Path) -> None:
    data, logs = tmp_path / "t.csv.gz", tmp_path / "logs"
    data.symlink_to(table)
    arguments = ("--test-rows", "2000", "--batch-size", "200", "--epochs", "4", "--device", "cpu")
    done = script("examples/higgs.py", data, *arguments, "--logdir", logs)
    assert done.returncode == 0, done.stderr
    converted, *lines = done.stdout.splitlines()
    assert re.fullmatch(rf"{re.escape(str(tmp_path / 't.h5'))}: converted in \d+\.\d s", converted)
    epochs = [EPOCH.fullmatch(line) for line in lines]
    assert [match[1] for match in epochs if match] == list("1234"), lines
    first, last = epochs[0], epochs[-1]
    assert first is not None
    assert last is not None
    assert float(last[2]) < float(first[2])
    assert float(last[3]) > 0.58  # guessing gives 0.5, a line 0.65
    written = b"".join(file.read_bytes() for file in logs.iterdir())
    for name in (b"train/loss", b"test/auc", b"epoch/seconds", b"epoch/waiting"):
        assert written.count(name) == 4


def test_a_pack_without_splits_is_refused(higgs: ModuleType, table: Path, tmp_path: Path) -> None:
    import packer

    pack = tmp_path / "whole.h5"
    packer.convert_table(table, pack, csv=packer.Csv(header=False), label="0", features=["1"])
    with pytest.raises(SystemExit) as exit:
        higgs.make_loader("packer", pack, 100, None, "cpu")
    assert exit.value.code == (
        f"{pack}: has no splits train and test; this example needs them. Convert the table again."
    )


def test_without_tensorboard_it_says_so(
    higgs: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(higgs, "find_spec", lambda name: None)
    assert higgs.make_writer(str(tmp_path / "logs")) is None
    assert capsys.readouterr().out == (
        "--logdir: neither tensorboard nor tensorboardX is installed; no scalars are written. Install one of them.\n"
    )
    assert higgs.make_writer("") is None
    assert not list(tmp_path.iterdir())
