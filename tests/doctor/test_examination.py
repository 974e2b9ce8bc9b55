"""packer doctor: what it prints, what it leaves behind, and machines that lack something."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from packer.cli import cli
from packer.doctor import examination
from packer.doctor.examination import Gpu, examine
from packer.doctor.traps import Trap
from packer.errors import UsageError


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "SECONDS", 0.05)
    monkeypatch.setattr(examination, "_BATCH_BYTES", 1 << 20)
    monkeypatch.setattr(examination, "_FILE_BYTES", 16 << 20)


def test_a_machine_is_described_and_nothing_is_left(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["doctor", str(tmp_path)])
    assert done.exit_code == 0
    words = [line.split()[0] for line in done.stdout.splitlines()[:6]]
    assert words == ["system", "cores", "memory", "disk", "GPU", "libraries"]
    assert "numpy" in done.stdout
    assert os.listdir(tmp_path) == []


def test_as_json(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["doctor", str(tmp_path), "--json"])
    record = json.loads(done.stdout)
    assert record["command"] == "doctor"
    assert record["folder"] == str(tmp_path)
    assert record["copy"] > 0
    assert record["disk"]["write"] > 0


def test_what_is_missing_and_in_the_way_is_told_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = examination.version_of
    monkeypatch.setattr(examination, "version_of", lambda name: None if name == "isal" else real(name))
    monkeypatch.setattr(examination, "find_traps", lambda _: [Trap("A trap.", "A remedy.")])
    monkeypatch.setattr(examination, "gpus", lambda: None)
    text = str(examine(tmp_path))
    assert "missing    isal (.csv.gz takes two to three times as long)" in text
    assert "GPU        unknown: torch is not installed" in text
    assert text.endswith("1 problem:\n- A trap.\n  A remedy.")


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no directory"):
        examine(tmp_path / "none")


def test_disks_that_cannot_be_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(examination.hardware_limits, "CAN_DROP", False)
    assert examination.disk_rate(str(tmp_path)).read is None
    assert "the page cache cannot be emptied" in str(examine(tmp_path))

    def refuse(**_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(examination.tempfile, "NamedTemporaryFile", refuse)
    assert "not measured (Permission denied)" in str(examine(tmp_path))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0, total=0))
    assert examination.disk_rate(str(tmp_path)).why == "too little free space"


def test_a_gpu_is_measured_by_a_stand_in() -> None:
    """Without a device: the calls, in their order."""
    calls: list[str] = []

    class Tensor:
        def pin_memory(self) -> Tensor:
            calls.append("pinned")
            return self

        def copy_(self, other: Tensor, non_blocking: bool) -> None:
            calls.append("copied")

    cuda = SimpleNamespace(
        mem_get_info=lambda _: (np.int64(3), np.int64(4)),
        get_device_name=lambda _: "H9",
        synchronize=lambda _: calls.append("waited"),
        device=nullcontext,
    )
    torch = SimpleNamespace(
        cuda=cuda,
        uint8=0,
        device=lambda *_: 0,
        empty=lambda *_, **__: Tensor(),
        ones=lambda *_, **__: Tensor(),
    )
    found = examination.gpu(torch, 0)
    assert (found.name, found.free, found.total) == ("H9", 3, 4)
    assert found.pinned > 0
    assert found.pageable > 0
    assert calls[:3] == ["pinned", "copied", "waited"]
    assert calls.count("pinned") == 1
    assert "GPU        H9: 3 bytes free of 4 bytes" in examination._of_gpus([found])[0]


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_processes_that_are_forked_beside_a_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, method: str
) -> None:
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: [method, "spawn"])
    monkeypatch.setattr(examination, "find_traps", lambda _: [])
    monkeypatch.setattr(examination, "gpus", lambda: [Gpu("H9", 3, 4, 1.0, 1.0)])
    remedies = [trap.remedy for trap in examine(tmp_path).traps]
    assert ["multiprocessing_context='forkserver'" in one for one in remedies] == [True] * (method == "fork")


@pytest.mark.gpu
def test_a_gpu_is_measured() -> None:
    found = examination.gpus()
    assert found is not None
    assert all(isinstance(one, Gpu) and one.pinned > 1e9 for one in found)
