"""The trainings of examples/ that share training_ways.py: in plain PyTorch, Lightning, accelerate and Hugging Face's Trainer."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from packer import convert_images
from tests.conftest import Script

FOLDER = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.filterwarnings("ignore")  # the frameworks' own
EPOCHS = "--epochs", "3", "--batch-size", "8", "--size", "16"
ONE_DEVICE = "--threads", "2", "--prefetch", "2", "--no-gradients"


@pytest.fixture
def pack(photo_folder: Path, tmp_path: Path) -> Path:
    """24 photos of 3 classes, 32 x 32."""
    convert_images(photo_folder, tmp_path / "train.h5", size=32)
    return tmp_path / "train.h5"


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(FOLDER)
    pytest.importorskip("torch")
    return pytest.importorskip("training_ways")


def result_of(run: Any) -> dict[str, float]:
    assert run.returncode == 0, run.stderr
    found: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return found


def check_alike(one: dict[str, float], other: dict[str, float]) -> None:
    for name in ("epochs", "validation_loss", "accuracy"):
        assert other[name] == pytest.approx(one[name], rel=1e-3), name


def test_lightning_and_torch_train_alike(script: Script, pack: Path):
    pytest.importorskip("torch")
    plain = result_of(script("examples/torch_train.py", pack, pack, *EPOCHS, *ONE_DEVICE))
    assert plain["epochs"] == 3
    assert plain["images_per_second"] > 0
    pytest.importorskip("lightning")
    check_alike(plain, result_of(script("examples/lightning_train.py", pack, pack, *EPOCHS)))


@pytest.mark.soak
def test_two_devices_that_share_a_model_train_as_one(script: Script, pack: Path):
    pytest.importorskip("torch")
    plain = result_of(script("examples/torch_train.py", pack, pack, *EPOCHS, *ONE_DEVICE))
    command = [sys.executable, FOLDER / "torch_train.py", pack, pack, *EPOCHS, "--devices", "2", "--fsdp"]
    environment = {"PYTHONPATH": str(FOLDER.parent), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=400, env=os.environ | environment
    )
    sharded = result_of(run)
    assert sharded["state_mb"] < 0.6 * plain["state_mb"]
    check_alike(plain, sharded)


@pytest.mark.parametrize("name", ["torch", "lightning"])
def test_early_stopping_and_mixed_precision(
    script: Script, ways: ModuleType, pack: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    """A model that does not learn is given up after the patience."""
    torch = pytest.importorskip("torch")
    pytest.importorskip(name)
    monkeypatch.setattr(ways, "optimizer_of", lambda model: torch.optim.SGD(model.parameters(), 0.0))
    flags = ("--patience", "1", "--precision", "bf16")
    assert result_of(script(f"examples/{name}_train.py", pack, pack, *EPOCHS, *flags))["epochs"] == 2


def test_the_table_has_each_way(
    ways: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    names = (
        "epochs",
        "images_per_second",
        "cpu_ms",
        "waiting",
        "validation_loss",
        "accuracy",
        "validation_seconds",
    )
    flags = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        flags.append(command[4:])
        values = dict.fromkeys((*names, "memory_mb", "state_mb"), float(len(flags)))
        return subprocess.CompletedProcess(command, 0, f"GPU: none\n{json.dumps(values)}\n", "")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(ways.torch.cuda, "device_count", lambda: 0)
    arguments = ways.without_table(["a.h5", "--table", "3", "b.h5"])
    ways.print_table(3, "s.py", arguments)
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[0].removeprefix("| ") for row in rows] == list(ways.WAYS)
    assert len(flags) == 3 * 7
    assert ["--devices", "2", "--fsdp", "--seed", "2"] in flags
    assert [row[2] for row in rows] == [
        "8",
        "9",
        "10",
        "11",
        "needs 1 GPU",
        "12",
        "needs 2 GPUs",
        "13",
        "needs 2 GPUs",
        "14",
    ]


@pytest.fixture
def _accelerate() -> Iterator[None]:
    """Its state is the process's, and would decide for later tests."""
    state = pytest.importorskip("accelerate.state")
    yield
    state.AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.usefixtures("_accelerate")
def test_accelerate_goes_on_in_mid_epoch(script: Script, pack: Path, tmp_path: Path):
    common = (pack, "--batch-size", "5", "--cpu", "--checkpoint")
    whole = script("examples/accelerate_train.py", *common, tmp_path / "whole").stdout.splitlines()
    assert [re.sub(r"\d\.\d{4}", "", line) for line in whole] == [
        f"epoch {number}: 24 rows, loss " for number in range(3)
    ]
    assert (
        script("examples/accelerate_train.py", *common, tmp_path / "part", "--stop-after", "7").returncode
        == 0
    )
    rest = script("examples/accelerate_train.py", *common, tmp_path / "part").stdout.splitlines()
    assert rest[-1] == whole[-1]
    assert len(rest) == 2


@pytest.mark.usefixtures("_accelerate")
def test_hugging_faces_trainer_goes_on_in_mid_epoch(script: Script, pack: Path, tmp_path: Path):
    pytest.importorskip("transformers")
    common = (pack, pack, "--batch-size", "5", "--cpu", "--save-every", "7", "--out")
    whole = result_of(script("examples/hf_trainer.py", *common, tmp_path / "whole"))
    assert whole["epoch"] == 3
    assert script("examples/hf_trainer.py", *common, tmp_path / "part", "--stop-after", "7").returncode == 0
    state = json.loads((tmp_path / "part" / "checkpoint-7" / "packer.json").read_text())
    assert (state["epoch"], state["rows"]) == (1, 10)
    rest = result_of(script("examples/hf_trainer.py", *common, tmp_path / "part", "--resume"))
    assert rest["eval_loss"] == pytest.approx(whole["eval_loss"], rel=1e-6)
