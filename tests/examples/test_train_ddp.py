from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from packer import convert_images

SCRIPT = Path(__file__).parents[2] / "examples" / "train_ddp.py"


def train(processes: int, *arguments: str | Path) -> dict[int, tuple[int, float]]:
    """torchrun's output: epoch -> rows, loss."""
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={processes}",
            SCRIPT,
            *arguments,
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,  # ranks that wait for each other would do so for half an hour
        env=os.environ
        | {"PYTHONPATH": str(SCRIPT.parents[1]), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )
    assert run.returncode == 0, run.stderr
    lines = [
        re.fullmatch(r"epoch (\d): (\d+) rows, loss (\d\.\d+)", line) for line in run.stdout.splitlines()
    ]
    assert all(lines)
    return {int(match[1]): (int(match[2]), float(match[3])) for match in lines if match}


def test_it_goes_on_in_another_number_of_processes_as_if_nothing_had_been(photo_folder: Path, tmp_path: Path):
    pack = tmp_path / "train.h5"
    convert_images(photo_folder, pack, size=32)
    checkpoint = ("--checkpoint", tmp_path / "checkpoint.pt", "--save-every", "5")  # once: there are 9 steps
    whole = train(2, pack, "--batch-size", "4", *checkpoint)
    assert [whole[epoch][0] for epoch in range(3)] == [24, 24, 24]
    assert whole[2][1] < whole[0][1]
    rest = train(1, pack, "--batch-size", "8", *checkpoint)
    assert list(rest) == [1, 2]
    assert rest[1][0] == 24
    # What was left of epoch 1 was the same rows, so epoch 2 found the same weights.
    assert abs(rest[2][1] - whole[2][1]) < 1e-3
