"""packer doctor: what it prints, and machines that lack something."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest
from click.testing import CliRunner

from packer.cli import cli
from packer.doctor import examination
from packer.doctor.examination import Gpu, examine
from packer.doctor.traps import Trap
from packer.errors import UsageError


def test_a_machine_is_described(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["doctor", str(tmp_path)])
    assert done.exit_code == 0
    words = [line.split()[0] for line in done.stdout.splitlines()[:6]]
    assert words == ["system", "cores", "memory", "disk", "GPU", "libraries"]
    assert "numpy" in done.stdout


def test_as_json(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["doctor", str(tmp_path), "--json"])
    record = json.loads(done.stdout)
    assert record["command"] == "doctor"
    assert record["folder"] == str(tmp_path)
    assert record["free"] > 0
    assert 0 < record["available"] <= record["memory"]


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


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_processes_that_are_forked_beside_a_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, method: str
) -> None:
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: [method, "spawn"])
    monkeypatch.setattr(examination, "find_traps", lambda _: [])
    monkeypatch.setattr(examination, "gpus", lambda: [Gpu("H9", 3, 4)])
    examined = examine(tmp_path)
    assert "GPU        H9: 3 bytes free of 4 bytes" in str(examined)
    remedies = [trap.remedy for trap in examined.traps]
    assert ["multiprocessing_context='forkserver'" in one for one in remedies] == [True] * (method == "fork")


@pytest.mark.gpu
def test_a_gpu_is_named() -> None:
    found = examination.gpus()
    assert found
    assert all(isinstance(one, Gpu) and one.name and 0 < one.free <= one.total for one in found)
