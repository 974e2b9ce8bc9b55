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


def run(*arguments: str | Path, text: str | None = None, **environment: str) -> list[str]:
    """What a process prints that reads a text, line by line."""
    run = subprocess.run(
        [sys.executable, *arguments],
        input=text,
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


START = """
import json, os, socket, sys
import torch._dynamo, torch.nn.parallel, packer.load.batch_dataset  # once for all ranks: they take some seconds

for world, code, sys.argv in json.load(sys.stdin):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(world)}
    ranks = []
    for rank in range(world):
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        if not (child := os.fork()):
            exec(code, {"__name__": "__main__"})
            sys.exit()
        ranks.append(child)
    if any([os.waitpid(child, 0)[1] for child in ranks]):
        sys.exit("a rank failed")
    print("ended", flush=True)
"""
PLAIN = "import runpy, sys; runpy.run_path(sys.argv[0], run_name='__main__')"
SPIED = """
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
runpy.run_path(sys.argv[0], run_name="__main__")
"""


ALONE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}


def torchrun(ranks: int) -> tuple[str | Path, ...]:
    """Arguments of Python that start the script in so many processes."""
    return "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", SCRIPT


def test_it_goes_on_in_another_number_of_processes_as_if_nothing_had_been(photo_folder: Path, tmp_path: Path):
    """And no thread that holds a tensor outlives the process group. Ranks are forked here; below torchrun starts them.

    Such a thread would abort the process, were it late when the interpreter ends: "terminate called without an active exception".
    """
    pack = tmp_path / "train.h5"
    convert_images(photo_folder, pack, size=32)
    checkpoint = [
        "--checkpoint",
        str(tmp_path / "checkpoint.pt"),
        "--save-every",
        "5",
    ]  # once: there are 9 steps
    runs = [
        (world, code, [str(SCRIPT), str(pack), "--batch-size", str(8 // world), *checkpoint])
        for world, code in ((2, PLAIN), (1, SPIED))
    ]
    lines = run("-c", START, text=json.dumps(runs))
    whole = epochs(lines[: lines.index("ended")])
    assert [whole[epoch][0] for epoch in range(3)] == [24, 24, 24]
    assert whole[2][1] < whole[0][1]
    *printed, spied, _ = lines[lines.index("ended") + 1 :]
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
