"""Training while packing, killed again and again: the training process, the one that fills, or both, at random moments."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from packer import PackedBatchDataset, fill_pack
from packer.convert.image_conversion import convert_images

KILLS = 10
TRAIN = """
import json, os, sys
import numpy as np
from packer import PackedBatchDataset, fill_pack

images, out, log = sys.argv[1:]
dataset = PackedBatchDataset(fill_pack(images, out, size=512, workers=1), 32, shuffle=True, seed=5, output="numpy")
if os.path.exists(log):
    with open(log) as file:
        lines = [line for line in file if line.endswith("\\n")]
    if lines:
        dataset.load_state_dict(json.loads(lines[-1])[1])
with open(log, "a") as file:
    for image, label in dataset:
        file.write(json.dumps([int(image.astype(np.uint64).sum()), dataset.state_dict()]) + "\\n")
        file.flush()
dataset.close()
"""


def fillers(out: Path) -> list[int]:
    """Return the processes that have a file of the unfinished pack open, training aside."""
    found = []
    for name in os.listdir("/proc"):
        with suppress(OSError):
            if name.isdigit() and b"filling_process" in Path("/proc", name, "cmdline").read_bytes():
                links = [os.readlink(f"/proc/{name}/fd/{fd}") for fd in os.listdir(f"/proc/{name}/fd")]
                if any(link.startswith(f"{out}.packing") for link in links):
                    found.append(int(name))
    return found


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
def test_killed_ten_times_in_the_first_epoch(seed: int, tmp_path: Path) -> None:
    images, out, log = tmp_path / "images", tmp_path / "p.h5", tmp_path / "log"
    draws, chance = np.random.default_rng(seed), random.Random(seed)
    for number in range(1500):
        (images / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        pixels = draws.integers(0, 256, (96, 128, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(images / "ab"[number % 2] / f"{number}.jpg")
    command = [sys.executable, "-c", TRAIN, str(images), str(out), str(log)]
    kills = 0
    while kills < KILLS and not out.exists():
        running = subprocess.Popen(command)
        time.sleep(chance.uniform(0.3, 2.5))
        whom = chance.choice(["training", "filling", "both"])
        if whom != "training":
            for number in fillers(out):
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
            time.sleep(chance.uniform(0, 0.3))
        running.kill()
        running.wait()
        kills += 1
    finished = PackedBatchDataset(
        fill_pack(images, out, size=512, workers=1), 32, shuffle=True, seed=5, output="numpy"
    )
    total = len(finished)
    finished.close()
    if not log.exists() or log.read_text().count("\n") < total:
        subprocess.run(command, check=True)
    else:  # killed just before it had closed
        with PackedBatchDataset(fill_pack(images, out, size=512, workers=1), 32, output="numpy") as dataset:
            list(dataset)
    convert_images(images, tmp_path / "made.h5", size=512)
    assert out.read_bytes() == (tmp_path / "made.h5").read_bytes()
    with PackedBatchDataset(tmp_path / "made.h5", 32, shuffle=True, seed=5, output="numpy") as dataset:
        expected = [int(image.astype(np.uint64).sum()) for image, _ in dataset]
    noted = [json.loads(line)[0] for line in log.read_text().splitlines() if line.endswith("}]")]
    assert noted == expected
