"""A pack inside a DALI pipeline, beside DALI's own readers of the same pictures, on its CPU back end.

    python benchmarks/dali.py photos/train train.h5      (packer convert photos/train train.h5; pip install nvidia-dali-cuda120)

Shuffled batches, "pixels" uint8 as in the pack, or "augmented", float32, cropped (32 pixels less) and flipped by draws, normalised. "DALI"
reads JPEG files, decodes them, resizes the shorter side, antialiased, and crops the centre; "pack in DALI" is external_source; "packer" is
PackedBatchDataset alone. A round is as many batches as an epoch has of each lane in turn, after some that fill its queues; the lane
before has then finished what it was ahead. The first round is not counted. Ratios are medians of paired ones.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from statistics import median
from time import perf_counter, process_time, sleep
from typing import Any

from nvidia.dali import fn, pipeline_def

from packer import PackedBatchDataset, open_pack
from packer.augment import Normalize, RandomCrop, RandomHorizontalFlip
from packer.bench.conditions import load, machine
from packer.format.pack import Pack
from packer.integrations.dali import external_source
from packer.machine import cores

MEAN, STD, CUT, BATCH, QUEUED = [0.5] * 3, [0.25] * 3, 32, 256, 4


def lanes(photos: str, pack: Pack) -> dict[str, Iterator[int]]:
    """Return endless iterators that yield the rows of each batch."""
    height, width, _ = pack.header.field("image").shape or ()
    crop = (height - CUT, width - CUT)

    def augmented(images: Any) -> Any:
        draws = {f"crop_pos_{axis}": fn.random.uniform(range=(0, 1)) for axis in "xy"}
        scaled = {"mean": [255 * m for m in MEAN], "std": [255 * s for s in STD]}
        return fn.crop_mirror_normalize(images, crop=crop, mirror=fn.random.coin_flip(), **draws, **scaled)

    @pipeline_def(batch_size=BATCH, num_threads=cores(), device_id=None)  # type: ignore[untyped-decorator]
    def dali(augment: bool, own: bool) -> Any:
        if own:
            files, labels = fn.readers.file(file_root=photos, random_shuffle=True)
            images = fn.resize(fn.decoders.image(files), resize_shorter=height, antialias=True)
            images = fn.crop(images, crop=(height, width))
        else:
            images, labels = external_source(pack, BATCH, shuffle=True, cycle="quiet")
        return augmented(images) if augment else images, labels

    def batches(pipeline: Any) -> Iterator[int]:
        while True:
            yield len(pipeline.run()[1])

    def packer(augment: bool) -> Iterator[int]:
        steps = [RandomCrop(crop), RandomHorizontalFlip(), Normalize(MEAN, STD)] if augment else None
        dataset = PackedBatchDataset(
            pack, BATCH, shuffle=True, augment=steps, output="torch" if augment else "numpy"
        )
        while True:
            yield from (len(labels) for _, labels in dataset)

    made: dict[str, Iterator[int]] = {}
    for what, augment in (("pixels", False), ("augmented", True)):
        made[f"DALI, {what}"] = batches(dali(augment, True))
        made[f"pack in DALI, {what}"] = batches(dali(augment, False))
        made[f"packer, {what}"] = packer(augment)
    return made


def main() -> None:
    """Parse the command line, measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("photos", help="a folder of class folders")
    parser.add_argument("pack", help="what packer convert made of it")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    pack = open_pack(options.pack)
    rates: dict[str, list[float]] = {}
    costs: dict[str, list[float]] = {}
    given = lanes(options.photos, pack).items()
    for number, (name, batches) in itertools.product(range(options.rounds + 1), given):
        busy = 1.0
        while busy > 0.01:  # the lane before still reads ahead
            busy = -process_time()
            sleep(0.05)
            busy += process_time()
        sum(itertools.islice(batches, QUEUED))
        began, used = perf_counter(), process_time()
        rows = sum(itertools.islice(batches, -(-pack.rows // BATCH)))
        if number:
            rates.setdefault(name, []).append(rows / (perf_counter() - began))
            costs.setdefault(name, []).append((process_time() - used) / rows * 1e6)
    for name, own in rates.items():
        ratio = median(a / b for a, b in zip(own, rates["DALI," + name.partition(",")[2]], strict=True))
        spread = f"({min(own):,.0f} to {max(own):,.0f})"
        print(
            f"{name:24} {median(own):8,.0f} images/s {spread}, x{ratio:.1f}, {median(costs[name]):,.0f} CPU s a million"
        )
    print(machine(), "load", load())


if __name__ == "__main__":
    main()
