"""Crops of any scale and aspect from whole pictures: packer beside ffcv, a DataLoader and the bare decoder, in one run.

    packer convert photos/train whole.h5 --size max=512 --store jpeg
    python benchmarks/whole_pictures.py photos/train whole.h5 --json whole.json      (pip install ffcv torchvision; lanes can be missing)

All lanes shuffle batches of 256, `RandomResizedCrop`, flip by chance and normalise to float32 [N, 3, SIDE, SIDE], with as many threads
or workers as there are cores. "ffcv" reads a beton of the same pictures, JPEG of quality 90 and 512 px at most; it resizes without
antialiasing. "DataLoader" is torchvision's ImageFolder and transforms over the files. "decode" decodes the pack's rows, whole, into
memory that is used again, and does nothing else. A round is an epoch of each lane in turn, from iter() on; the first is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any

import numpy as np
from lanes.process import cpu_seconds

from packer import PackedBatchDataset, PackedDataset
from packer.augment import Normalize, RandomHorizontalFlip, RandomResizedCrop
from packer.bench.hardware_limits import load, machine
from packer.codecs import jpeg
from packer.format.pack import Pack
from packer.format.pack_opening import open_pack as opened
from packer.machine import cores
from packer.orders.runs import one_run
from packer.read.array_store import PackStore

MEAN, STD, BATCH = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 256

Epoch = Callable[[], Iterable[Any]]


def of_packer(pack: str, side: int) -> Epoch:
    """Return packer's epochs."""
    steps = [RandomResizedCrop(side), RandomHorizontalFlip(), Normalize(MEAN, STD)]
    dataset = PackedBatchDataset(pack, BATCH, shuffle=True, augment=steps, threads=cores())
    return lambda: (images for images, _ in dataset)


def of_decoder(pack: Pack) -> Epoch:
    """Return epochs of decoding alone."""
    reader = PackStore(pack, [pack.header.field("image")])
    rows = reader.ragged("image", one_run(0, pack.rows))
    sizes = [jpeg.size(row)[:2] for row in rows]
    memory = [np.empty((max(h * w for h, w in sizes), 4), np.uint8) for _ in range(cores())]

    def decode(core: int, start: int) -> int:
        numbers = range(start + core, min(start + BATCH, len(rows)), cores())
        for i in numbers:
            height, width = sizes[i]
            jpeg.decode_upright_into(
                rows[i], memory[core][: height * width].reshape(height, width, 4), reduced=False
            )
        return len(numbers)

    def epoch() -> Iterator[range]:
        with ThreadPoolExecutor(cores()) as threads:
            for start in range(0, len(rows), BATCH):
                yield range(sum(threads.map(decode, range(cores()), [start] * cores())))

    return epoch


def of_dataloader(photos: str, side: int) -> Epoch:
    """Return the epochs of a DataLoader over the files."""
    transforms, folder = import_module("torchvision.transforms"), import_module("torchvision.datasets")
    steps = [
        transforms.RandomResizedCrop(side),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize(MEAN, STD),
    ]
    data = folder.ImageFolder(photos, transforms.Compose(steps))
    loader = import_module("torch.utils.data").DataLoader(
        data, BATCH, shuffle=True, num_workers=cores(), persistent_workers=True
    )
    return lambda: (images for images, _ in loader)


def of_ffcv(photos: str, work: str, side: int) -> Epoch:
    """Return ffcv's epochs, of a beton made of the files."""
    fields, decoders = import_module("ffcv.fields"), import_module("ffcv.fields.decoders")
    transforms, loader = import_module("ffcv.transforms"), import_module("ffcv.loader")
    path = os.path.join(work, "whole.beton")
    image = fields.RGBImageField(write_mode="jpg", max_resolution=512, jpeg_quality=90)
    writer = import_module("ffcv.writer").DatasetWriter(path, {"image": image}, num_workers=cores())
    writer.from_indexed_dataset(_Photographs(photos))
    scaled = [np.array(numbers) * 255 for numbers in (MEAN, STD)]
    steps = [
        decoders.RandomResizedCropRGBImageDecoder((side, side)),
        transforms.RandomHorizontalFlip(),
        transforms.NormalizeImage(*scaled, np.float32),
        transforms.ToTensor(),
        transforms.ToTorchImage(),
    ]
    made = loader.Loader(
        path,
        batch_size=BATCH,
        num_workers=cores(),
        order=loader.OrderOption.RANDOM,
        os_cache=True,
        drop_last=False,
        pipelines={"image": steps},
    )
    return lambda: (images for (images,) in made)


class _Photographs:
    """The files as PIL images, for ffcv's writer."""

    def __init__(self, photos: str) -> None:
        self._paths = sorted(path for path in Path(photos).rglob("*") if path.is_file())

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, row: int) -> tuple[Any]:
        return (import_module("PIL.Image").open(self._paths[row]).convert("RGB"),)


def main() -> None:
    """Parse the command line, measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("photos", help="a folder of class folders")
    parser.add_argument("pack", help="what packer convert made of it, --size max=512 --store jpeg")
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", help="where results go")
    options = parser.parse_args()
    rows = len(PackedDataset(options.pack))
    lanes: dict[str, Epoch] = {}
    with tempfile.TemporaryDirectory() as work:
        # Its processes are forked first, while no other lane has memory that would be copied when it is written again.
        if find_spec("torchvision"):
            lanes["DataLoader"] = of_dataloader(options.photos, options.side)
        if find_spec("ffcv"):
            lanes["ffcv"] = of_ffcv(options.photos, work, options.side)
        lanes["decode"] = of_decoder(opened(options.pack))
        lanes["packer"] = of_packer(options.pack, options.side)
        rates: dict[str, list[float]] = {name: [] for name in lanes}
        costs: dict[str, list[float]] = {name: [] for name in lanes}
        for number in range(options.rounds + 1):
            for name, epoch in lanes.items():
                sleep(0.5)
                began, used = perf_counter(), cpu_seconds()
                found = sum(len(images) for images in epoch())
                if found != rows:
                    raise SystemExit(f"{name}: {found} of {rows} rows came.")
                if number:
                    rates[name].append(rows / (perf_counter() - began))
                    costs[name].append((cpu_seconds() - used) / rows * 1e6)
    for name, own in rates.items():
        ratio = median(a / b for a, b in zip(rates["packer"], own, strict=True))
        spread = f"({min(own):,.0f} to {max(own):,.0f})"
        print(
            f"{name:12} {median(own):7,.0f} images/s {spread}, {median(costs[name]):,.0f} CPU s a million; packer x{ratio:.2f}"
        )
    print(machine(), "load", load())
    if options.json:
        found_all = {"machine": machine(), "side": options.side, "images/s": rates, "CPU s a million": costs}
        Path(options.json).write_text(json.dumps(found_all, indent=1))


if __name__ == "__main__":
    main()
