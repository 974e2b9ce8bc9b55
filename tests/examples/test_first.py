"""examples/first.py: it packs, trains, goes on after Ctrl-C as if nothing had been, predicts, and draws its mistakes."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import Script

FIRST, STOP_AT = "examples/first.py", 8


def of_last(folder: Path) -> dict[str, Any]:
    return torch.load(folder / "photos-last.pt")["model"]


def test_it_goes_the_whole_way(
    script: Script, photo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    options = ("--epochs", "3", "--batch-size", "4")
    for name in ("whole", "stopped"):
        shutil.copytree(photo_folder, tmp_path / name / "photos")
    done = script(FIRST, tmp_path / "whole" / "photos", *options)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"right; epoch (\d):", done.stdout) == ["0", "1", "2"]
    assert "24 photos of blue, green, red\n" in done.stdout

    steps, zero_grad = [0], torch.optim.AdamW.zero_grad

    def interrupted(optimizer: Any) -> None:
        steps[0] += 1
        if steps[0] == STOP_AT:
            raise KeyboardInterrupt
        zero_grad(optimizer)

    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "zero_grad", interrupted)
        stopped = script(FIRST, tmp_path / "stopped" / "photos", *options)
    assert (stopped.returncode, stopped.stderr) == (1, "\nStopped. The same command goes on.\n")
    again = script(FIRST, tmp_path / "stopped" / "photos", *options)
    assert "going on with epoch 1, 3 batches left\n" in again.stdout
    wanted, found = of_last(tmp_path / "whole"), of_last(tmp_path / "stopped")
    assert all(torch.equal(wanted[name], found[name]) for name in wanted)

    photo = photo_folder / "red" / "0.jpg"
    said = script(FIRST, tmp_path / "whole" / "photos", "--predict", photo)
    assert said.stdout.startswith(f"{photo}: ")
    assert sum(name in said.stdout for name in ("red ", "green ", "blue ")) == 3
    if "mistakes" in done.stdout:
        assert (tmp_path / "whole" / "photos-mistakes.png").read_bytes().startswith(b"\x89PNG")


def test_what_it_cannot_train_on_is_a_sentence(script: Script, photo_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(photo_folder / "red", tmp_path / "flat")
    flat = script(FIRST, tmp_path / "flat")
    assert flat.stderr.endswith("flat: has no classes. Put the photos of each class into a folder.\n")
    missing = script(FIRST, tmp_path / "none")
    assert missing.stderr.startswith(f"{tmp_path}/none: no such file or folder")
    assert len(missing.stderr.splitlines()) == 1
    assert {flat.returncode, missing.returncode} == {1}
    early = script(FIRST, tmp_path / "flat", "--predict", "x.jpg")
    assert "flat-best.pt" in early.stderr.splitlines()[0]
    assert early.stderr.splitlines()[1] == f"To begin anew, move away: {tmp_path}/flat.h5"
