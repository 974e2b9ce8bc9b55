"""Headroom of a faster loader: the waiting time of a training loop, and its rate when it never waits.

    python benchmarks/headroom.py photos/train --work bench/ --json headroom.json     (pip install
    torchvision)

The training loop runs on the first core, which stands for a GPU, and the loader on all others. The network
"small" is faster than decoding, "large" is slower. Three lanes give each network the same batches: 64 crops
of 224 px, randomly flipped, normalised.

    folder    torchvision's ImageFolder and transforms in a DataLoader, a worker a core
    packer    PackedBatchDataset from a pack of the folder; its augmentation runs on the core of the loop
    replay    eight batches of the pack, repeated from memory: the limit of every loader

Lanes take turns, each in a separate process. The first five batches are not measured. The means of all values
must agree between lanes. Needs Linux and two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from statistics import median
from typing import Any

import torch
from lanes.origin import origin
from torch import nn
from torch.utils.data import DataLoader

from packer import PackedBatchDataset, convert_images
from packer.augment import Normalize, RandomCrop, RandomHorizontalFlip
from packer.machine import cores

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BATCH, SIDE, CROP = 64, 256, 224
NETWORKS = {"small": (16, 1), "large": (48, 2)}  # channels, convolutions of 3x3
LANES = ("folder", "packer", "replay")
WARM_UP = 5  # batches before the measurement
APART = 0.1  # largest difference of two lanes' means: crops are random, and replay has eight batches
SLOT = 0.02  # seconds for each character of a trace

Epoch = Callable[[], Iterable[Any]]


def network(channels: int, depth: int, classes: int) -> nn.Module:
    """Return a network whose first convolution reduces 224 px to 28."""
    layers: list[nn.Module] = [nn.Conv2d(3, channels, 8, 8), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def torchvision(part: str) -> Any:
    """Import a part of torchvision, even if its wheel is built for CUDA and torch is not."""
    try:
        return import_module(f"torchvision.{part}")
    except RuntimeError:  # operator torchvision::nms does not exist
        operators = torch.library.Library("torchvision", "DEF")
        _KEPT.append(operators)
        for name in ("nms", "qnms"):
            operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        return import_module(f"torchvision.{part}")


_KEPT: list[Any] = []  # declared operators live as long as their library


def epochs(lane: str, photos: str, pack: str) -> Epoch:
    """Return a function that starts an epoch of a lane."""
    if lane == "folder":
        of = torchvision("transforms")
        steps = [of.Resize(SIDE), of.CenterCrop(SIDE), of.RandomCrop(CROP), of.RandomHorizontalFlip()]
        images = torchvision("datasets").ImageFolder(
            photos, of.Compose([*steps, of.ToTensor(), of.Normalize(MEAN, STD)])
        )
        loader = DataLoader(images, BATCH, shuffle=True, num_workers=cores(), persistent_workers=True)
        return lambda: loader
    augment = [RandomCrop(CROP), RandomHorizontalFlip(), Normalize(MEAN, STD)]
    dataset = PackedBatchDataset(pack, BATCH, shuffle=True, augment=augment)
    return (lambda: dataset) if lane == "packer" else dataset.replay


def train(epoch: Epoch, model: nn.Module, step_core: int, batches: int, seconds: float) -> dict[str, Any]:
    """Train until enough batches are measured, or the seconds are over.

    Returns the seconds waited for each batch, the seconds of each step, the rows, and the images' mean.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    waits, steps, means, rows = list[float](), list[float](), list[float](), 0
    while True:
        source = iter(epoch())
        while True:
            asked = time.perf_counter()
            batch = next(source, None)
            came = time.perf_counter()
            if batch is None:
                break
            if not waits:
                os.sched_setaffinity(0, {step_core})  # only this thread; the loader's have started
            images, labels = batch
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            ended = time.perf_counter()
            waits.append(round(came - asked, 5))
            steps.append(round(ended - came, 5))
            means.append(float(images[..., ::16, ::16].mean()))
            rows += len(labels) if len(waits) > WARM_UP else 0
            measured = waits[WARM_UP:] + steps[WARM_UP:]
            if len(waits) >= WARM_UP + batches or (len(waits) > 2 * WARM_UP and sum(measured) > seconds):
                mean = sum(means) / len(means)
                return {"waits": waits[WARM_UP:], "steps": steps[WARM_UP:], "rows": rows, "mean": mean}


def train_alone(options: argparse.Namespace, pack: str) -> dict[str, Any]:
    """Train in one lane, the loop on the first core, the loader on the others. Returns train's result."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    classes = sum(entry.is_dir() for entry in os.scandir(options.photos))
    model = network(*NETWORKS[options.network or "small"], classes)
    all_cores = os.sched_getaffinity(0)
    step_core, *loader_cores = sorted(all_cores)
    try:
        os.sched_setaffinity(0, loader_cores or all_cores)  # processes and threads inherit it
        lane = epochs(options.train, options.photos, pack)
        return train(lane, model, step_core, options.batches, options.seconds)
    finally:
        os.sched_setaffinity(0, all_cores)


def figures(run: dict[str, Any]) -> tuple[float, float]:
    """Return images a second, and the share of time spent waiting."""
    waited, total = sum(run["waits"]), sum(run["waits"]) + sum(run["steps"])
    return run["rows"] / total, waited / total


def trace(waits: Sequence[float], steps: Sequence[float], width: int = 30) -> str:
    """Return a timeline: "." while the loop waits, "#" while the network works."""
    line = ""
    now = 0.0
    for wait, step in zip(waits, steps, strict=True):
        for seconds, character in ((wait, "."), (step, "#")):
            now += seconds
            line += character * (round(now / SLOT) - len(line))
    return line[:width]


def report(found: dict[str, dict[str, list[dict[str, Any]]]]) -> None:
    """Print a table and the traces of the first round."""
    print("| network | lane | images/s | waiting | predicted without waiting |\n|---|---|---|---|---|")
    for name, lanes in found.items():
        for lane, runs in lanes.items():
            rates, shares = zip(*map(figures, runs), strict=True)
            limit = median(rate / (1 - share) for rate, share in zip(rates, shares, strict=True))
            print(f"| {name} | {lane} | {median(rates):,.0f} | {median(shares):.1%} | {limit:,.0f} |")
    print(f'\nA character is {1000 * SLOT:.0f} ms: "." the loop waits, "#" the network works.')
    for name, lanes in found.items():
        for lane, runs in lanes.items():
            print(f"{name} {lane:<8}{trace(runs[0]['waits'], runs[0]['steps'])}")


def main(argv: list[str] | None = None) -> int:
    """Measure every lane in turn, or train in one; print a table and traces."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("photos", help="folder of a folder of JPEGs a class")
    parser.add_argument("--work", metavar="DIR", default="demo/headroom", help="where the pack is made")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=40, help="that are measured, at most")
    parser.add_argument("--seconds", type=float, default=5.0, help="that are measured, at most")
    parser.add_argument("--train", choices=LANES, help="train in this lane only")
    parser.add_argument("--network", choices=NETWORKS, help="default: both")
    parser.add_argument("--json", metavar="FILE", help="write everything here, too")
    options = parser.parse_args(argv)
    pack = os.path.join(options.work, "headroom.h5")
    os.makedirs(options.work, exist_ok=True)
    if not os.path.exists(pack):
        convert_images(options.photos, pack, size=SIDE)
    if options.train:
        print(json.dumps(train_alone(options, pack)))
        return 0
    names = [options.network] if options.network else list(NETWORKS)
    about = origin(["torchvision"]) | {"rounds": options.rounds, "batch": BATCH}
    found: dict[str, dict[str, list[dict[str, Any]]]] = {name: {lane: [] for lane in LANES} for name in names}
    command = [sys.executable, "-W", "ignore", __file__, options.photos, "--work", options.work]
    command += ["--batches", str(options.batches), "--seconds", str(options.seconds)]
    for _ in range(options.rounds):
        for name, lanes in found.items():
            for lane, runs in lanes.items():
                words = [*command, "--network", name, "--train", lane]
                said = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
                runs.append(json.loads(said.stdout.splitlines()[-1]))
    means = [run.pop("mean") for lanes in found.values() for runs in lanes.values() for run in runs]
    if max(means) - min(means) > APART:
        raise SystemExit(
            f"the lanes hand out different images: their means are {min(means)} to {max(means)}."
        )
    report(found)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            file.write(json.dumps({"conditions": about, "networks": found}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
