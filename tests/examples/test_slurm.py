from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from packer import open_pack, verify_pack

SCRIPT = Path(__file__).parents[2] / "examples" / "slurm.sh"

pytestmark = pytest.mark.skipif(not Path("/bin/bash").exists(), reason="there is no bash")


def test_it_is_bash_and_knows_its_steps():
    assert not subprocess.run(["bash", "-n", SCRIPT], check=True, capture_output=True).stderr
    done = subprocess.run(["bash", SCRIPT, "trian"], check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "examples/slurm.sh: trian is not a step; convert, index and train are.\n"


def test_an_array_of_two_makes_one_pack(photo_folder: Path, tmp_path: Path):
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "packer").write_text(f'#!/bin/bash\nexec {sys.executable} -m packer "$@"\n')
    (commands / "packer").chmod(0o755)
    pack = tmp_path / "train"

    def run(*arguments: str | Path, **slurm: str) -> None:
        path = f"{commands}{os.pathsep}{os.environ['PATH']}"
        root = {"PATH": path, "PYTHONPATH": str(SCRIPT.parents[1])}
        done = subprocess.run(
            ["bash", SCRIPT, *arguments],
            check=False,
            capture_output=True,
            text=True,
            env=os.environ | root | slurm,
        )
        assert done.returncode == 0, done.stderr

    options = ("--size", "32", "--shard-rows", "12", "--workers", "1")
    for array in (
        {"SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_TASK_COUNT": "2"},
        {"SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_TASK_COUNT": "1", "PARTS": "2"},  # submitted alone
    ):
        run("convert", photo_folder, pack, *options, **array)
    assert not pack.exists()
    run("index", pack)
    assert open_pack(pack).rows == 24
    verify_pack(pack)
