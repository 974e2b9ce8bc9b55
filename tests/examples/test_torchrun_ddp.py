from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from packer import convert_images

SCRIPT = Path(__file__).parents[2] / "examples" / "torchrun_ddp.py"


def run(*arguments: str | Path, **environment: str) -> list[str]:
    """What a process prints, line by line."""
    run = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=400,  # ranks that wait for each other would do so for half an hour
        env=os.environ
        | {"PYTHONPATH": str(SCRIPT.parents[1]), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        | environment,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


def epochs(printed: list[str]) -> dict[int, tuple[int, float]]:
    """Epoch -> rows, loss."""
    lines = [re.fullmatch(r"epoch (\d): (\d+) rows, loss (\d\.\d+)", line) for line in printed]
    assert all(lines)
    return {int(match[1]): (int(match[2]), float(match[3])) for match in lines if match}


RUN = """
import json, os, runpy, sys, weakref
from torch import distributed

groups, reduced = [], []
new_group, all_reduce, destroy = distributed.new_group, distributed.all_reduce, distributed.destroy_process_group

def threads():
    names = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
    return sum(name.startswith("pt_gloo_runloop") for name in names)

def spied_group():
    group = new_group()
    groups.append(weakref.ref(group))
    return group

def spied_reduce(tensor, group=None):
    reduced.append(group is not None and group is groups[0]())
    return all_reduce(tensor, group=group)

def spied_destroy():
    before = threads()
    destroy()
    print(json.dumps({"before": before, "after": threads(), "reduced": reduced, "lives": groups[0]() is not None}))

distributed.new_group, distributed.all_reduce, distributed.destroy_process_group = spied_group, spied_reduce, spied_destroy
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


ALONE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}


def torchrun(ranks: int) -> tuple[str | Path, ...]:
    """Arguments of Python that start the script in so many processes."""
    return "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", SCRIPT


def test_it_goes_on_in_another_number_of_processes_as_if_nothing_had_been(photo_folder: Path, tmp_path: Path):
    """And no thread that holds a tensor outlives the process group.

    Such a thread would abort the process, were it late when the interpreter ends: "terminate called without an active exception".
    """
    pack = tmp_path / "train.h5"
    convert_images(photo_folder, pack, size=32)
    checkpoint = ("--checkpoint", tmp_path / "checkpoint.pt", "--save-every", "5")  # once: there are 9 steps
    whole = epochs(run(*torchrun(2), pack, "--batch-size", "4", *checkpoint))
    assert [whole[epoch][0] for epoch in range(3)] == [24, 24, 24]
    assert whole[2][1] < whole[0][1]
    *printed, spied = run("-c", RUN, SCRIPT, pack, "--batch-size", "8", *checkpoint, **ALONE)
    rest = epochs(printed)
    assert list(rest) == [1, 2]
    assert rest[1][0] == 24
    # What was left of epoch 1 was the same rows, so epoch 2 found the same weights.
    assert abs(rest[2][1] - whole[2][1]) < 1e-3
    found = json.loads(spied)
    assert found["reduced"] == [True, True]
    assert not found["lives"]
    assert found["after"] < found["before"] or not found["before"]  # torch 2.4 gives its threads no name


@pytest.mark.soak
def test_losses_are_those_of_one_process_and_four_go_on_as_two(photo_folder: Path, tmp_path: Path):
    pack = tmp_path / "train.h5"
    convert_images(photo_folder, pack, size=32)

    def losses(start: tuple[str | Path, ...], ranks: int, *options: str | Path, **more: str) -> list[float]:
        found = epochs(run(*start, pack, "--batch-size", str(12 // ranks), *options, **more))
        assert {rows for rows, _ in found.values()} == {24}
        return [loss for _, loss in found.values()]

    four, saving = ("--epochs", "4"), ("--checkpoint", tmp_path / "four.pt", "--save-every", "3")
    alone = losses((SCRIPT,), 1, *four, **ALONE)
    assert alone[3] < alone[0]
    for ranks in (2, 3, 4):
        more = saving if ranks == 4 else ()
        assert losses(torchrun(ranks), ranks, *four, *more) == pytest.approx(alone, abs=2e-4)
    # There are two steps an epoch, and the last checkpoint was of step 6. One of step 3 is in the middle of epoch 1.
    (tmp_path / "four.pt").unlink()
    losses(torchrun(4), 4, "--epochs", "2", *saving)
    assert losses(torchrun(2), 2, *four, *saving[:2])[1:] == pytest.approx(alone[2:], abs=2e-4)
