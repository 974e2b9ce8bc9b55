"""Accuracy of a small network trained on whole pictures, and on packs of centre crops.

    packer convert photos/train whole.h5 --size max=512 --store jpeg
    packer convert photos/train square.h5 --size 128
    (and both for photos/test, with --like whole.h5 and --like square.h5)
    python benchmarks/crops_accuracy.py whole.h5 whole_test.h5 square.h5 square_test.h5 --epochs 16 \
        --json accuracy.json

The network and its schedule are those of examples/train_images.py, at 112 px. "whole, RandomResizedCrop" sees
another part and aspect of each picture in every epoch; "square, RandomCrop" sees the centre crop, shifted by
up to 16 px; "square, RandomResizedCrop" is between. All flip. Each is evaluated on the centres of its test
pictures: shorter side resized to 128 px, cropped to 112. A seed sets weights, order and draws, equally for
all.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import mean, stdev

import torch
from torch.nn import functional

from packer import PackedBatchDataset, open_pack
from packer.augment import CenterCrop, Normalize, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Resize
from packer.bench.hardware_limits import machine
from packer.errors import PackerError

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from train_images import accuracy, small_resnet

SIDE, SHORTER = 112, 128


def learned(way: str, packs: tuple[str, str], epochs: int, seed: int) -> float:
    """Train on the first pack. Returns the accuracy on the second."""
    torch.manual_seed(seed)
    header = open_pack(packs[0]).header
    numbers = header.normalization
    normalize = Normalize(numbers["mean"], numbers["std"])
    cut = RandomResizedCrop(SIDE) if "Resized" in way else RandomCrop(SIDE)
    augment = [cut, RandomHorizontalFlip(), normalize]
    middle = (
        [Resize(SHORTER), CenterCrop(SIDE), normalize] if "whole" in way else [CenterCrop(SIDE), normalize]
    )
    train = PackedBatchDataset(packs[0], 32, shuffle=True, seed=seed, augment=augment)
    judged = open_pack(packs[1])
    train.pack.check_classes(judged)
    test = PackedBatchDataset(judged, 128, augment=middle)
    model = small_resnet(SIDE, 3, len(header.classes or ())).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=epochs * len(train))
    with train, test:
        for _ in range(epochs):
            for images, labels in train:
                optimizer.zero_grad()
                functional.cross_entropy(model(images), labels).backward()
                optimizer.step()
                schedule.step()
        return accuracy(model, test)


def main() -> None:
    """Parse the command line, train and print."""
    parser = argparse.ArgumentParser()
    for name in ("whole", "whole_test", "square", "square_test"):
        parser.add_argument(name)
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", help="file for results")
    options = parser.parse_args()
    whole, square = (options.whole, options.whole_test), (options.square, options.square_test)
    ways = {
        "whole, RandomResizedCrop": whole,
        "square, RandomCrop": square,
        "square, RandomResizedCrop": square,
    }
    found: dict[str, list[float]] = {way: [] for way in ways}
    for seed in range(options.seeds):
        for way, packs in ways.items():
            began = time.perf_counter()
            try:
                found[way].append(learned(way, packs, options.epochs, seed))
            except PackerError as error:
                sys.exit(str(error))
            print(
                f"seed {seed}, {way}: {found[way][-1]:.3f}, {time.perf_counter() - began:.0f} s", flush=True
            )
    for way, shares in found.items():
        spread = stdev(shares) if len(shares) > 1 else 0.0
        print(f"{way:26} {mean(shares):.3f}, standard deviation {spread:.3f}")
    print(machine())
    if options.json:
        Path(options.json).write_text(json.dumps({"epochs": options.epochs, "accuracy": found}, indent=1))


if __name__ == "__main__":
    main()
