"""Rate at which batches reach a GPU, compared with its bus, and its effect on a training step.

    python benchmarks/gpu_loading.py PACK                   (a pack of 256 px images; about three minutes)
    python benchmarks/gpu_loading.py --rows 12000           (a temporary pack of noise with that many rows)
    python benchmarks/gpu_loading.py --smoke                (tiny sizes; on the CPU without a GPU)

Rates are images a second over complete epochs, with the device synchronised after each. The limit of a lane
is a bare asynchronous copy of the same bytes from one pinned buffer; for rows resident on the GPU, an
`index_select` of the same bytes there. All lanes run in turn, round after round, each right after its limit;
ratios are medians of paired rounds. Whole pictures are a pack of raw noise of various sizes, each cut by
`RandomResizedCrop` on the device. Their limit copies the bytes of the pictures, and for resident rows gathers
the bytes of the crops. The last part trains a ResNet-50 (bf16, channels_last) on batches of the loader and on
cached batches (`replay`).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

import packer
from packer import PackedBatchDataset, open_pack, units
from packer.augment import Normalize, RandomHorizontalFlip, RandomResizedCrop
from packer.bench.bench_report import MeasuredLane
from packer.bench.lanes import Lane, epochs_rate, measured, run_rounds
from packer.format.fields import Field
from packer.writing.pack_writer import PackWriter

PLACEMENTS = ("disk", "ram", "gpu")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def make_pack(path: str, rows: int, side: int) -> None:
    """Write a pack of noise."""
    fields = (Field("image", "|u1", (side, side, 3), {"layout": "HWC"}), Field("label", "<i8", ()))
    size = min(rows, 64)
    noise = np.random.default_rng(0).integers(0, 256, (size, side, side, 3), dtype=np.uint8)
    with PackWriter(path, fields=fields, rows=rows, block_rows=size, format="h5") as writer:
        for block in range(-(-rows // size)):
            count = min(size, rows - block * size)
            numbers = block * size + np.arange(count)
            images = np.roll(noise[:count], block, axis=2)
            writer.write_block(block, {"image": images, "label": numbers % 1000})
        writer.finish(rows=rows, ragged={})


def make_whole_pack(path: str, rows: int, side: int) -> int:
    """Write a pack of noise, sides from ``side`` to twice that. Returns the mean bytes of a picture."""
    fields = (
        Field("image", "|u1", None, {"layout": "HWC", "color": "rgb"}),
        Field("label", "<i8", ()),
        *(Field(name, "<i4", (), {"of": "image"}) for name in ("height", "width")),
    )
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (4 * side**2 + rows) * 3, dtype=np.uint8)
    sides = rng.integers(side, 2 * side + 1, (2, rows), np.int32)
    with PackWriter(path, fields=fields, rows=rows, block_rows=rows, format="h5") as writer:
        labels = np.arange(rows) % 1000
        writer.write_block(0, {"label": labels, "height": sides[0], "width": sides[1]})
        images = [noise[3 * k : 3 * (k + h * w)].tobytes() for k, (h, w) in enumerate(sides.T.tolist())]
        writer.finish(rows=rows, ragged={"image": images})
    return sum(map(len, images)) // rows


def synchronise(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def bare_copy(nbytes: int, device: torch.device, repeats: int) -> float:
    """Return bytes a second from one pinned buffer to the device."""
    pinned = device.type == "cuda"
    source = torch.empty(nbytes, dtype=torch.uint8, pin_memory=pinned)
    target = torch.empty(nbytes, dtype=torch.uint8, device=device)
    target.copy_(source, non_blocking=True)
    synchronise(device)
    began = time.perf_counter()
    for _ in range(repeats):
        target.copy_(source, non_blocking=True)
    synchronise(device)
    return nbytes * repeats / (time.perf_counter() - began)


def bare_gather(rows: int, shape: tuple[int, ...], batch: int, device: torch.device, repeats: int) -> float:
    """Return bytes a second of random rows gathered on the device."""
    source = torch.empty((rows, *shape), dtype=torch.uint8, device=device)
    numbers = [torch.randint(rows, (batch,), device=device) for _ in range(4)]
    source.index_select(0, numbers[0])
    synchronise(device)
    began = time.perf_counter()
    for k in range(repeats):
        source.index_select(0, numbers[k % 4])
    synchronise(device)
    return batch * int(np.prod(shape)) * repeats / (time.perf_counter() - began)


class Epochs:
    """Epochs of a dataset, each followed by a synchronisation of the device."""

    def __init__(self, dataset: PackedBatchDataset, device: torch.device) -> None:
        self.dataset, self._device = dataset, device

    def __iter__(self) -> Iterator[object]:
        yield from self.dataset
        synchronise(self._device)


def measure(path: str, batch: int, device: torch.device, rounds: int, seconds: float) -> list[MeasuredLane]:
    """Measure every lane and its limit. Returns images a second."""
    pack = open_pack(path)
    shape = pack.header.field("image").loaded.shape or ()
    row_bytes = int(np.prod(shape))
    repeats = max(2, int(seconds * 10e9 / (batch * row_bytes)))
    limits = {
        "gpu": lambda: bare_gather(pack.rows, shape, batch, device, repeats) / row_bytes,
        "": lambda: bare_copy(batch * row_bytes, device, repeats) / row_bytes,
    }
    lanes = []
    for placement, order, bf16 in itertools.product(PLACEMENTS, ("slices", "rows"), (False, True)):
        if device.type != "cuda" and placement != "disk":
            continue
        dataset = PackedBatchDataset(
            pack,
            batch,
            order=order,
            placement=placement,
            device=str(device),
            augment=[Normalize(MEAN, STD, dtype=torch.bfloat16)] if bf16 else None,
        )
        name = f"{placement}, {order}, {'bf16, normalised' if bf16 else 'uint8'}"
        lanes.append(lane_of(name, dataset, pack.rows, seconds, device, limits.get(placement, limits[""])))
    run_rounds({"loading": lanes}, rounds, lambda _: None)
    return [MeasuredLane(lane.name, tuple(lane.rates), limit=tuple(lane.limits)) for lane in lanes]


def measure_whole(
    path: str, row_bytes: int, batch: int, size: int, device: torch.device, rounds: int, seconds: float
) -> list[MeasuredLane]:
    """Measure pictures of various sizes, cut to ``size``, and their limits. Returns images a second."""
    pack = open_pack(path)
    crop = (size, size, 3)
    cut_bytes = int(np.prod(crop))
    repeats = max(2, int(seconds * 10e9 / (batch * row_bytes)))
    limits = {
        "gpu": lambda: bare_gather(pack.rows, crop, batch, device, repeats) / cut_bytes,
        "": lambda: bare_copy(batch * row_bytes, device, repeats) / row_bytes,
    }
    steps = [RandomResizedCrop(size), RandomHorizontalFlip(), Normalize(MEAN, STD, dtype=torch.bfloat16)]
    lanes = []
    for placement in PLACEMENTS if device.type == "cuda" else PLACEMENTS[:1]:
        dataset = PackedBatchDataset(
            pack, batch, order="rows", placement=placement, device=str(device), augment=steps
        )
        name = f"{placement}, rows, bf16, resized crop of whole pictures"
        lanes.append(lane_of(name, dataset, pack.rows, seconds, device, limits.get(placement, limits[""])))
    run_rounds({"whole pictures": lanes}, rounds, lambda _: None)
    return [MeasuredLane(lane.name, tuple(lane.rates), limit=tuple(lane.limits)) for lane in lanes]


def lane_of(
    name: str,
    dataset: PackedBatchDataset,
    rows: int,
    seconds: float,
    device: torch.device,
    limit: Callable[[], float],
) -> Lane:
    """Return a lane whose dataset has allocated its slots and placed its rows."""
    for _ in range(2):
        deque(dataset, maxlen=0)
    until = time.perf_counter() + 120
    while not (dataset.resident or name.startswith("disk")) and time.perf_counter() < until:
        time.sleep(0.05)
    return Lane(name, partial(epochs_rate, Epochs(dataset, device), rows, seconds), limit)


class Bottleneck(nn.Module):
    """A residual block of He et al., "Deep residual learning for image recognition", 2016; stride in the 3x3
    convolution.
    """

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.body = nn.Sequential(
            *(nn.Conv2d(inside, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
            *(
                nn.Conv2d(width, width, 3, stride, 1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(inplace=True),
            ),
            *(nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out)),
        )
        self.short: nn.Module = nn.Identity()
        if stride > 1 or inside != out:
            self.short = nn.Sequential(nn.Conv2d(inside, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        """Map [N, inside, H, W] to [N, 4 * width, H / stride, W / stride]."""
        return torch.relu(self.body(x) + self.short(x))


def resnet50(blocks: tuple[int, ...] = (3, 4, 6, 3)) -> nn.Sequential:
    """Return ResNet-50 with 1,000 classes."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    inside = 64
    for stage, count in enumerate(blocks):
        for k in range(count):
            layers.append(Bottleneck(inside, 64 << stage, 2 if stage and not k else 1))
            inside = 256 << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 1000))


def training(
    path: str, batch: int, device: torch.device, rounds: int, steps: int, blocks: tuple[int, ...]
) -> dict[str, float]:
    """Return milliseconds a training step with the loader, with cached batches, and the ratio."""
    model = resnet50(blocks).to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()
    dataset = PackedBatchDataset(
        path,
        batch,
        order="rows",
        drop_last=True,
        device=str(device),
        placement="disk",
        augment=[Normalize(MEAN, STD, dtype=torch.bfloat16)],
    )

    def milliseconds(batches: Callable[[], Iterable[Sequence[Tensor]]]) -> float:
        done, began = 0, time.perf_counter()
        while done < steps:
            for images, labels in batches():
                with torch.autocast(device.type, torch.bfloat16):
                    loss = loss_of(model(images), labels)
                optimiser.zero_grad(set_to_none=True)
                loss.backward()
                optimiser.step()
                done += 1
                if done == steps:
                    break
        synchronise(device)
        return (time.perf_counter() - began) / steps * 1e3

    replay = Lane("replay", lambda: 1 / milliseconds(lambda: dataset.replay(4)))
    lanes = [replay, Lane("loader", lambda: 1 / milliseconds(lambda: dataset))]
    for lane in lanes:
        lane.measure()
    run_rounds({"steps": lanes}, rounds, lambda _: None)
    found = {lane.name: lane for lane in measured(lanes)}
    ratio = 1 / (found["loader"].times_baseline or 1)
    return {name: 1 / lane.rate for name, lane in found.items()} | {"ratio": ratio}


def main() -> None:
    """Measure, print, and write the requested files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("pack", nargs="?")
    parser.add_argument("--rows", type=int, default=6000)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and not options.smoke:
        parser.exit(2, "torch sees no CUDA device here; pass --smoke to see that the benchmark runs.\n")
    side, blocks = (32, (1, 1, 1, 1)) if options.smoke else (256, (3, 4, 6, 3))
    if options.smoke:
        options.rows, options.batch_size, options.rounds, options.seconds, options.steps = 24, 4, 1, 0.01, 1
    with tempfile.TemporaryDirectory() as folder:
        path = options.pack
        if path is None:
            path = os.path.join(folder, "noise.h5")
            make_pack(path, options.rows, side)
        results = measure(path, options.batch_size, device, options.rounds, options.seconds)
        whole = os.path.join(folder, "whole.h5")
        whole_bytes = make_whole_pack(whole, options.rows, side)
        cut = measure_whole(
            whole, whole_bytes, options.batch_size, side * 7 // 8, device, options.rounds, options.seconds
        )
        steps = training(path, options.batch_size, device, options.rounds, options.steps, blocks)
        pack = open_pack(path)
        rows, row_bytes = pack.rows, pack.header.field("image").loaded.row_bytes
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    print(
        f"{name}, torch {torch.__version__}, packer {packer.__version__}; {units.count(rows, 'row')},"
        f" batches of {options.batch_size}"
    )
    print(f"{'placement, order, result':54} {'images/s':>10} {'GB/s':>7} {'of limit':>9} {'spread':>7}")
    for lanes, nbytes in ((results, row_bytes), (cut, whole_bytes)):
        for r in lanes:
            rate = f"{r.rate:10,.0f} {r.rate * nbytes / 1e9:7.1f} {r.of_limit:9.2f}"
            print(f"{r.name:54} {rate} {max(r.rates) / min(r.rates):7.2f}")
    print(
        f"ResNet-50 step: {steps['loader']:.1f} ms with the loader,"
        f" {steps['replay']:.1f} ms on cached batches:"
        f" {steps['ratio']:.3f} of it"
    )
    if options.json:
        about = {"device": name, "torch": torch.__version__, "rows": rows, "batch_size": options.batch_size}
        loading = [asdict(lane) for lane in (*results, *cut)]
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"conditions": about, "loading": loading, "step": steps}, file, indent=1)


if __name__ == "__main__":
    main()
