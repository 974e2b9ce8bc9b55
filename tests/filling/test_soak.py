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
from typing import Any

import numpy as np
import pytest
from PIL import Image

from packer import PackedBatchDataset, open_pack
from packer.convert.image_conversion import convert_images
from tests.filling.test_filling_pack import fillers
from tests.format.packs import files_of

KILLS = 10
ROWS = 1500
EPOCHS = 2
TRAIN = """
import json, os, sys
import numpy as np
from packer import PackedBatchDataset, fill_pack

images, out, log, options = sys.argv[1:]
pack = fill_pack(images, out, **json.loads(options))
fields = ["image", "row"]
dataset = PackedBatchDataset(pack, 32, shuffle=True, seed=5, output="numpy", fields=fields)
if os.path.exists(log):
    with open(log) as file:
        lines = [line for line in file if line.endswith("]\\n")]
    if lines:
        dataset.load_state_dict(json.loads(lines[-1])[-1])
with open(log, "a") as file:
    file.write("\\n")  # ends a line that a kill has cut
    while dataset.state_dict()["epoch"] < 2:
        for image, row in dataset:
            state = dataset.state_dict()
            if state["epoch"] == 2:
                break
            sums = image.reshape(len(image), -1).astype(np.uint64).sum(1).tolist()
            file.write(json.dumps([state["epoch"], row.tolist(), sums, state]) + "\\n")
            file.flush()
dataset.close()
"""


@pytest.mark.soak
@pytest.mark.parametrize(
    "options",
    [
        {"format": "h5"},
        {"format": "npy"},
        {"format": "h5", "store": "jpeg"},
        {"format": "h5", "shards": 400},
        {"format": "h5", "shards": 400, "store": "zstd"},
    ],
)
def test_killed_ten_times_while_the_pack_is_filled(options: dict[str, Any], tmp_path: Path) -> None:
    images, out, log = tmp_path / "images", tmp_path / "p", tmp_path / "log"
    chance, draws = random.Random(str(options)), np.random.default_rng(1)
    options = {"size": 512, "workers": 1, **options}
    for number in range(ROWS):
        (images / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        pixels = draws.integers(0, 256, (96, 128, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(images / "ab"[number % 2] / f"{number}.jpg")
    command = [sys.executable, "-c", TRAIN, str(images), str(out), str(log), json.dumps(options)]
    running, kills, alone = subprocess.Popen(command), 0, 0
    while running.poll() is None:
        with suppress(subprocess.TimeoutExpired):
            running.wait(chance.uniform(0.2, 2.5))
        if kills == KILLS or running.poll() is not None:
            continue
        # A process that is killed four times before it has made a row is an error.
        whom = chance.choice(["training", "filling", "filling", "both"] if alone < 2 else ["training"])
        alone = alone + 1 if whom == "filling" else 0
        if whom != "training":
            for process in fillers(out):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        if whom != "filling":
            time.sleep(chance.uniform(0, 0.3))
            running.kill()
            running.wait()
            running = subprocess.Popen(command)
        kills += 1
    assert running.returncode == 0
    convert_images(images, tmp_path / "made", **options)
    assert files_of(out) == files_of(tmp_path / "made")
    with PackedBatchDataset(open_pack(tmp_path / "made"), 32, output="numpy", fields=["image"]) as dataset:
        expected = [
            total
            for (image,) in dataset
            for total in image.reshape(len(image), -1).astype(np.uint64).sum(1).tolist()
        ]
    noted: dict[int, list[tuple[int, int]]] = {epoch: [] for epoch in range(EPOCHS)}
    for line in log.read_text().splitlines():
        if line.endswith("]"):
            epoch, rows, sums, _ = json.loads(line)
            noted[epoch] += zip(rows, sums, strict=True)
    assert noted[0] == list(enumerate(expected))  # the pack's own order
    assert sorted(noted[1]) == list(enumerate(expected))
    assert noted[1] != sorted(noted[1])
