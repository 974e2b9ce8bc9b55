"""Training while packing, compared with conversion alone, a DataLoader over the images, the finished pack.

    python benchmarks/filling.py photos/ --size 256 --rounds 5          a folder, list or archive of images

Each lane runs in a separate process, like a training script, in turn within every round. The step is the
same: a linear layer on a few pixels of the images, with a wait for its result. The first batch and the first
epoch count from the end of the imports, so they include opening the source and starting processes. Bytecode
is written, as in an installation: a process that first compiles packer starts 0.1 s later.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.utils.data import DataLoader

from packer import PackedBatchDataset, fill_pack
from packer.bench.hardware_limits import load, machine, versions
from packer.bench.image_baseline import RawImages, Resized
from packer.inputs.image_sources import open_source
from packer.pixels.decode_resize import PixelSpec

EPOCHS = 6
STEP = 32  # distance of the pixels that the step reads


def train(epochs: Iterable[Iterable[Any]], began: float) -> dict[str, float]:
    """Run the epochs. Returns seconds to the first batch, and images a second of each epoch."""
    found: dict[str, float] = {}
    weights = torch.zeros(10, 3 * 64)
    torch.set_num_threads(1)  # OpenMP's other threads would busy-wait on a core of the decoders
    for number, batches in enumerate(epochs):
        started, rows = time.perf_counter() if number else began, 0
        for images, labels in batches:
            if not found:
                found["first batch"] = time.perf_counter() - began
            pixels = images.permute(0, 3, 1, 2) if images.shape[-1] == 3 else images
            scores = pixels[:, :, ::STEP, ::STEP].float().flatten(1)[:, : weights.shape[1]] @ weights.T
            float(torch.nn.functional.cross_entropy(scores, labels.clamp(min=0) % 10))
            rows += len(images)
        found[f"epoch {number + 1}"] = rows / (time.perf_counter() - started)
    return found


def lane(name: str, images: str, pack: str, size: int, batch_size: int) -> dict[str, float]:
    """Run one lane in this process."""
    began = time.perf_counter()
    if name == "DataLoader":
        with open_source(images) as source:
            every = torch.arange(len(source)).numpy()
            items = RawImages(source, every, every, Resized(PixelSpec((size, size))))
            loader: DataLoader[Any] = DataLoader(
                items, batch_size, shuffle=True, num_workers=len(os.sched_getaffinity(0)), persistent_workers=True,
                multiprocessing_context="fork",
            )  # fmt: skip
            return train(
                [loader] * 2, began
            )  # the second like the others, and each takes as long as converting
    given: Any = fill_pack(images, pack, size=size) if name == "filling" else pack
    with PackedBatchDataset(given, batch_size, shuffle=True) as dataset:
        found = train([dataset] * EPOCHS, began)
        found["rows"] = dataset.rows
        return found


def convert(images: str, pack: str, size: int) -> dict[str, float]:
    """Convert with the command line; includes the start of Python and the flush."""
    began = time.perf_counter()
    command = [
        sys.executable,
        "-m",
        "packer",
        "convert",
        images,
        pack,
        "--size",
        str(size),
        "--quiet",
        "--overwrite",
    ]
    subprocess.run(command, check=True)
    return {"seconds": time.perf_counter() - began}


def main(argv: list[str] | None = None) -> int:
    """Measure, print the medians, and check that the filled pack equals the converted pack."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("images")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="for the packs; default: a temporary one")
    parser.add_argument("--lane", nargs=2, metavar=("NAME", "PACK"), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.lane:
        name, pack = options.lane
        print(json.dumps(lane(name, options.images, pack, options.size, options.batch_size)))
        return 0
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    found: dict[str, list[dict[str, float]]] = {"convert": [], "filling": [], "DataLoader": [], "pack": []}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        made, filled = os.path.join(folder, "made.h5"), os.path.join(folder, "filled.h5")
        for _ in range(options.rounds):
            for file in (made, filled):
                Path(file).unlink(missing_ok=True)
            found["convert"].append(convert(options.images, made, options.size))
            for name, pack in (("filling", filled), ("DataLoader", ""), ("pack", made)):
                command = [sys.executable, __file__, options.images, "--lane", name, pack]
                command += ["--size", str(options.size), "--batch-size", str(options.batch_size)]
                output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
                found[name].append(json.loads(output))
            if Path(made).read_bytes() != Path(filled).read_bytes():
                raise SystemExit(f"{filled}: differs from {made}.")
    rows = found["pack"][0]["rows"]
    print(
        f"{rows:,.0f} images at {options.size} px, batches of {options.batch_size},"
        f" medians of {options.rounds} rounds; load {load():.1f}"
    )
    print(f"convert alone: {rows / median(run['seconds'] for run in found['convert']):,.0f} images/s, all in")
    for name in ("filling", "DataLoader", "pack"):
        print(
            name,
            *(
                f"{key} {median(run[key] for run in found[name]):,.2f}"
                for key in found[name][0]
                if key != "rows"
            ),
            sep="  ",
        )
    for key, other in (
        ("epoch 1", "DataLoader"),
        ("epoch 2", "pack"),
        ("epoch 3", "pack"),
        ("epoch 6", "pack"),
    ):
        ratios = [a[key] / b[key] for a, b in zip(found["filling"], found[other], strict=True)]
        print(f"filling, {key}: {median(ratios):.2f} of {other}'s ({min(ratios):.2f} to {max(ratios):.2f})")
    print(json.dumps({"machine": machine(), "versions": versions(), "rounds": found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
