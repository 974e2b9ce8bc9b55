"""Crops of any scale and aspect from whole pictures: packer, ffcv, SPDL, Lance, DataLoader, bare decoder.

    packer convert photos/train whole.h5 --size max=512 --store jpeg
    python benchmarks/whole_pictures.py photos/train whole.h5 --json whole.json
    (pip install ffcv spdl pylance torchvision; missing lanes are skipped. SPDL needs FFmpeg's libraries.)

All lanes shuffle batches of 256, apply `RandomResizedCrop` and a random flip, and normalise to float32 [N, 3,
SIDE, SIDE], with as many threads or workers as cores. "ffcv" reads a beton of the same pictures, JPEG of
quality 90 and at most 512 px; it resizes without antialiasing. "DataLoader" is torchvision's ImageFolder and
transforms over the files. "Lance" is a table of the pack's JPEGs, taken by lists of rows in spawned
processes, with the same transforms. "SPDL" decodes, crops and resizes the files with FFmpeg, in threads.
"decode" only decodes the pack's complete rows into reused memory, as RGB, in threads that run free. A round is
an epoch of each lane in turn, from iter() on. The first round is not counted: it compares the mean of all
values, as crops are random.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any

import numpy as np
from lanes.lane import random_batches
from lanes.origin import origin
from lanes.process import cpu_seconds

from packer import PackedBatchDataset, PackedDataset
from packer.augment import Normalize, RandomHorizontalFlip, RandomResizedCrop
from packer.codecs import jpeg
from packer.machine import cores
from packer.orders.runs import one_run
from packer.packs.pack import Pack
from packer.packs.pack_opening import open_pack as opened
from packer.read.array_store import PackStore

MEAN, STD, BATCH = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 256
DECODED = 64  # rows that a thread of the limit takes at once
APART = 0.05  # most by which a lane's mean differs from packer's; random crops differ by 0.01
PEERS = ("torchvision", "pillow", "ffcv", "pylance", "spdl")

Epoch = Callable[[], Iterable[Any]]


def of_packer(pack: str, side: int) -> Epoch:
    """Return packer's epochs."""
    steps = [RandomResizedCrop(side), RandomHorizontalFlip(), Normalize(MEAN, STD)]
    dataset = PackedBatchDataset(pack, BATCH, shuffle=True, augment=steps, threads=cores())
    return lambda: (images for images, _ in dataset)


def of_decoder(pack: Pack) -> Epoch:
    """Return epochs of decoding alone: each thread takes the next rows, and waits for no other."""
    reader = PackStore(pack, [pack.header.field("image")])
    rows = reader.ragged("image", one_run(0, pack.rows))
    sizes = [jpeg.size(row)[:2] for row in rows]
    most = max(height * width for height, width in sizes)
    spare = [np.empty((most, 3), np.uint8) for _ in range(cores())]

    def decode(start: int) -> range:
        numbers, memory = range(start, min(start + DECODED, len(rows))), spare.pop()
        for i in numbers:
            height, width = sizes[i]
            jpeg.decode_upright_into(rows[i], memory[: height * width].reshape(height, width, 3))
        spare.append(memory)
        return numbers

    def epoch() -> Iterator[range]:
        with ThreadPoolExecutor(cores()) as threads:
            yield from threads.map(decode, range(0, len(rows), DECODED))

    return epoch


def _transforms(side: int) -> Any:
    """Return torchvision's crop, flip and normalisation of a PIL image."""
    transforms = import_module("torchvision.transforms")
    steps = [
        transforms.RandomResizedCrop(side),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize(MEAN, STD),
    ]
    return transforms.Compose(steps)


def of_dataloader(photos: str, side: int) -> Epoch:
    """Return the epochs of a DataLoader over the files."""
    data = import_module("torchvision.datasets").ImageFolder(photos, _transforms(side))
    loader = import_module("torch.utils.data").DataLoader(
        data, BATCH, shuffle=True, num_workers=cores(), persistent_workers=True
    )
    return lambda: (images for images, _ in loader)


def of_ffcv(photos: str, work: str, side: int) -> Epoch:
    """Return ffcv's epochs, of a beton written from the files."""
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


def of_lance(pack: Pack, work: str, side: int) -> Epoch:
    """Return the epochs of a DataLoader over a Lance table of the pack's JPEGs."""
    path = os.path.join(work, "whole.lance")
    arrow = import_module("pyarrow")
    rows = PackStore(pack, [pack.header.field("image")]).ragged("image", one_run(0, pack.rows))
    import_module("lance").write_dataset(arrow.table({"image": arrow.array(rows, arrow.binary())}), path)
    data: Any = _Jpegs(path, _transforms(side))
    loader = import_module("torch.utils.data").DataLoader(
        data,
        batch_size=None,
        sampler=random_batches(len(rows), BATCH),
        num_workers=cores(),
        persistent_workers=True,
        multiprocessing_context="spawn",
    )
    return lambda: loader


class _Jpegs:
    """Lists of rows of a Lance table, decoded, transformed. Each process opens it: Lance is not fork-safe."""

    def __init__(self, path: str, transform: Any) -> None:
        self._path, self._transform = path, transform
        self._table: Any = None

    def __getitem__(self, rows: list[int]) -> Any:
        if self._table is None:
            self._table = import_module("lance").dataset(self._path)
        opened = import_module("PIL.Image").open
        found = self._table.take(sorted(rows), columns=["image"])["image"].to_pylist()
        images = [self._transform(opened(io.BytesIO(jpeg)).convert("RGB")) for jpeg in found]
        return import_module("torch").stack(images)


def of_spdl(photos: str, side: int) -> Epoch:
    """Return SPDL's epochs: FFmpeg decodes, crops, resizes and flips a file; frames are joined to batches."""
    media, torch = import_module("spdl.io"), import_module("torch")
    crop = import_module("torchvision.transforms").RandomResizedCrop
    paths = [str(path) for path in _files(photos)]
    mean, std = (torch.tensor(numbers).mul(255).view(3, 1, 1) for numbers in (MEAN, STD))

    def decode(number: int) -> Any:
        packets = media.demux_image(paths[number])
        whole = torch.empty((3, packets.height, packets.width), device="meta")
        top, left, height, width = crop.get_params(whole, (0.08, 1.0), (3 / 4, 4 / 3))
        flip = "hflip," if torch.rand(()) < 0.5 else ""
        steps = f"crop={width}:{height}:{left}:{top},scale={side}:{side},{flip}format=pix_fmts=rgb24"
        return media.decode_packets(packets, filter_desc=steps)

    def batch(frames: list[Any]) -> Any:
        pixels = media.to_torch(media.convert_frames(frames)).permute(0, 3, 1, 2)
        return pixels.float().sub_(mean).div_(std)

    def epoch() -> Iterator[Any]:
        order = torch.randperm(len(paths)).tolist()
        builder = import_module("spdl.pipeline").PipelineBuilder().add_source(order)
        builder = builder.pipe(decode, concurrency=cores()).aggregate(BATCH).pipe(batch)
        pipeline = builder.add_sink(3).build(num_threads=cores())
        with pipeline.auto_stop():
            yield from pipeline

    return epoch


def _files(photos: str) -> list[Path]:
    return sorted(path for path in Path(photos).rglob("*") if path.is_file())


class _Photographs:
    """The files as PIL images, for ffcv's writer."""

    def __init__(self, photos: str) -> None:
        self._paths = _files(photos)

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, row: int) -> tuple[Any]:
        return (import_module("PIL.Image").open(self._paths[row]).convert("RGB"),)


def opened_lanes(options: argparse.Namespace, work: str) -> dict[str, Epoch]:
    """Return the lanes whose packages are installed.

    Forks processes first, before other lanes hold memory that they would copy.
    """
    lanes: dict[str, Epoch] = {}
    if find_spec("torchvision"):
        lanes["DataLoader"] = of_dataloader(options.photos, options.side)
    if find_spec("ffcv"):
        lanes["ffcv"] = of_ffcv(options.photos, work, options.side)
    pack = opened(options.pack)
    lanes["decode"] = of_decoder(pack)
    lanes["packer"] = of_packer(options.pack, options.side)
    if find_spec("torchvision") and find_spec("lance"):
        lanes["Lance"] = of_lance(pack, work, options.side)
    if find_spec("torchvision") and find_spec("spdl"):
        lanes["SPDL"] = of_spdl(options.photos, options.side)
    return lanes


def means(epoch: Epoch) -> Any:
    """Return the mean of each channel over an epoch."""
    sums = [(images.double().mean((2, 3)).sum(0), len(images)) for images in epoch()]
    return sum(values for values, _ in sums) / sum(count for _, count in sums)


def measure(lanes: Mapping[str, Epoch], rows: int, rounds: int) -> tuple[dict[str, list[float]], ...]:
    """Return images/s, and processor seconds for a million images, of each lane and round."""
    rates: dict[str, list[float]] = {name: [] for name in lanes}
    costs: dict[str, list[float]] = {name: [] for name in lanes}
    for _ in range(rounds):
        for name, epoch in lanes.items():
            sleep(0.5)
            began, used = perf_counter(), cpu_seconds()
            found = sum(len(images) for images in epoch())
            if found != rows:
                raise SystemExit(f"{name}: {found} of {rows} rows came.")
            rates[name].append(rows / (perf_counter() - began))
            costs[name].append((cpu_seconds() - used) / rows * 1e6)
    return rates, costs


def main() -> None:
    """Parse the command line, measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("photos", help="a folder of class folders")
    parser.add_argument("pack", help="its pack by packer convert, --size max=512 --store jpeg")
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", help="file for results")
    options = parser.parse_args()
    rows = len(PackedDataset(options.pack))
    with tempfile.TemporaryDirectory() as work:
        lanes = opened_lanes(options, work)
        expected = means(lanes["packer"])
        for name, epoch in lanes.items():
            if name == "decode":
                sum(map(len, epoch()))
            elif (apart := float((means(epoch) - expected).abs().max())) > APART:
                raise SystemExit(f"{name}: the mean of its values is {apart:.3f} from packer's.")
        rates, costs = measure(lanes, rows, options.rounds)
    for name, own in rates.items():
        ratio = median(a / b for a, b in zip(rates["packer"], own, strict=True))
        spread = f"({min(own):,.0f} to {max(own):,.0f})"
        print(
            f"{name:12} {median(own):7,.0f} images/s {spread}, {median(costs[name]):,.0f} CPU s a million;"
            f" packer x{ratio:.2f}"
        )
    about = origin(PEERS) | {"rows": rows, "rounds": options.rounds, "side": options.side}
    print(about)
    if options.json:
        found_all = {"conditions": about, "images/s": rates, "CPU s a million": costs}
        Path(options.json).write_text(json.dumps(found_all, indent=1) + "\n")


if __name__ == "__main__":
    main()
