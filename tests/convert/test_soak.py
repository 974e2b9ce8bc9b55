"""Minutes of SIGKILL, Ctrl-C and SIGTERM at random moments, over every way of storing. Run with `make soak`."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.format.packs import files_of

KILLS = 25  # of each way
WAYS = {
    "raw.h5": [],
    "raw": [],
    "jpeg.h5": ["--store", "jpeg"],
    "gzip.h5": ["--compress", "gzip"],
    "shards": ["--shard-rows", "50", "--on-error", "skip"],
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 photos of 600x400, four of them damaged: about a second of work."""
    folder = tmp_path_factory.mktemp("soak") / "photos"
    draws = np.random.default_rng(0)
    for label in ("cat", "dog"):
        (folder / label).mkdir(parents=True)
        for number in range(200):
            small = draws.integers(0, 256, (40, 60, 3), dtype=np.uint8)
            Image.fromarray(small).resize((600, 400)).save(folder / label / f"{number}.jpg")
    for number in (3, 77):
        (folder / "cat" / f"{number}.jpg").write_bytes(b"")
        (folder / "dog" / f"{number}.jpg").write_bytes(b"\xff\xd8\xff")
    return folder


@pytest.mark.soak
@pytest.mark.parametrize("out", WAYS)
def test_killed_at_random_moments_and_resumed(photos: Path, tmp_path: Path, out: str) -> None:
    def command(name: str, *more: str) -> list[str]:
        options = ["--size", "256", "--on-error", "skip", "--quiet", *WAYS[out], *more]
        return [sys.executable, "-m", "packer", "convert", str(photos), str(tmp_path / name), *options]

    def run(name: str, *more: str) -> int:
        return subprocess.run(command(name, *more), check=False, stderr=subprocess.DEVNULL).returncode

    began = time.perf_counter()
    assert run(f"whole-{out}") == 3
    length = time.perf_counter() - began
    whole, draws, killed, resumed = files_of(tmp_path / f"whole-{out}"), random.Random(out), 0, 0
    while killed < KILLS:
        for _ in range(draws.choice((1, 1, 2))):
            work = subprocess.Popen(command(out), stderr=subprocess.DEVNULL)
            time.sleep(draws.uniform(0.2, length))
            number = draws.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGINT, signal.SIGTERM))
            work.send_signal(number)
            code = work.wait(60)
            # Python itself takes some milliseconds to start, in which a signal ends it.
            # The one before may have been done when the signal came; then this one is refused.
            finished = code == 2 and (tmp_path / out).exists()
            assert finished or code in (3, 130, -number), "an interruption has its own exit code"
        killed += not (tmp_path / out).exists()
        resumed += (tmp_path / f"{out}.packing").exists()
        assert run(out, "--resume") in ((0, 3) if (tmp_path / out).exists() else (3,))
        assert files_of(tmp_path / out) == whole
        assert not (tmp_path / f"{out}.packing").exists()
        (shutil.rmtree if os.path.isdir(tmp_path / out) else os.unlink)(tmp_path / out)
    assert resumed


@pytest.mark.soak
def test_a_job_array_of_which_one_task_is_killed(photos: Path, tmp_path: Path) -> None:
    """examples/slurm.sh: four parts side by side, one of them killed and run again, then the index."""
    script = str(Path(__file__).parents[2] / "examples" / "slurm.sh")
    options = ["--size", "128", "--shard-rows", "20", "--on-error", "skip", "--quiet"]
    path = os.pathsep.join((os.path.dirname(sys.executable), os.environ["PATH"]))

    def start(step: str, *given: str, task: int = 0) -> subprocess.Popen[bytes]:
        array = {"SLURM_ARRAY_TASK_ID": str(task), "SLURM_ARRAY_TASK_COUNT": "4"}
        return subprocess.Popen(
            ["bash", script, step, *given],
            cwd=tmp_path,
            env={**os.environ, **array, "PATH": path},
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def convert(task: int) -> subprocess.Popen[bytes]:
        return start("convert", str(photos), "train", *options, task=task)

    tasks = {task: convert(task) for task in (1, 2, 3, 4)}
    while tasks[3].poll() is None and not list(tmp_path.glob("train.part-3-of-4.packing/pack/*.h5")):
        time.sleep(0.01)
    os.killpg(tasks[3].pid, signal.SIGKILL)
    codes = {task: work.wait(60) for task, work in tasks.items()}
    assert codes.pop(3) == -9
    assert set(codes.values()) <= {0, 3}
    assert start("index", "train").wait(60) == 2
    assert convert(3).wait(60) in (0, 3)
    assert start("index", "train").wait(60) == 3
    one = [sys.executable, "-m", "packer", "convert", str(photos), str(tmp_path / "one"), *options]
    assert subprocess.run(one, check=False, stderr=subprocess.DEVNULL).returncode == 3
    assert files_of(tmp_path / "train") == files_of(tmp_path / "one")
    assert sorted(os.listdir(tmp_path)) == ["one", "train"]
