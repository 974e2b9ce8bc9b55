"""How long a batch's augmentation keeps a GPU, beside what its memory takes to carry the same bytes, and beside peers.

    python benchmarks/gpu_augment.py                   (a few minutes; most of it the plain operations and torch.compile)
    python benchmarks/gpu_augment.py --smoke           (tiny sizes; on the CPU where there is no GPU)

Two stacks, each one pass: crop, flip and normalise; and resized crop, turn, four color changes, erase and normalise.
A time is the median over `--repeats` batches, each between two CUDA events, while the queue was never empty, after a warm-up;
images and results take turns in more memory than the cache has. "host": what enqueuing one takes on the CPU meanwhile.
GB/s counts the uint8 pixels that a stack needs (each once), the result and the columns; "of copy" is that over what a
device-to-device copy of 512 MB reads and writes a second, measured before each case.
Peers, where they can be imported: kornia (float images, own draws for each image), torchvision v2 (one draw for a batch).
Their draws are included, and packer's are not: its columns are made and uploaded beforehand, as the loader does on its thread.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import math
import platform
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from packer.augment.passes import pass_spec, torch_pass, triton_pass
from packer.augment.passes.pass_spec import Pass
from packer.bench.conditions import versions

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SCALE = tuple(1 / (255 * s) for s in STD)
SHIFT = tuple(-m / s for m, s in zip(MEAN, STD, strict=True))
STACKS = ("crop, flip", "resized crop, turn, color, erase")
TURN = math.radians(15)
CACHE = 200 << 20
"""Bytes to rotate over: more than the largest cache of a GPU so far."""


@dataclass(frozen=True)
class Case:
    """Square images and results, in pixels."""

    batch: int
    side: int
    size: int
    padding: int


CASES = tuple(Case(batch, *sizes) for sizes in ((256, 224, 0), (32, 32, 4)) for batch in (256, 1024))
SMOKE_CASES = (Case(4, 16, 12, 0), Case(5, 8, 8, 2))
DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Result:
    """One subject; times in microseconds a batch. spread: the 90th percentile over the 10th. host: None where not measured."""

    stack: str
    case: str
    dtype: str
    subject: str
    microseconds: float
    spread: float
    gigabytes_per_second: float
    share_of_copy: float
    host_microseconds: float | None


def crop_and_flip(case: Case, dtype: str, draws: torch.Generator) -> tuple[Pass, Tensor, float]:
    """The pass, its columns, and the source's bytes that it needs."""
    n, size, padding = case.batch, case.size, case.padding
    what = Pass(
        3,
        (size, size),
        framed=padding > 0,
        fill=(0.0, 0.0, 0.0) if padding else (),
        scale=SCALE,
        shift=SHIFT,
        dtype=dtype,
    )
    columns = torch.zeros(n, what.width)
    left, top = torch.randint(-padding, case.side + padding - size + 1, (2, n), generator=draws)
    flipped = torch.rand(n, generator=draws) < 0.5
    columns[:, 0] = torch.where(flipped, -1.0, 1.0)
    columns[:, 2] = left + torch.where(flipped, size - 1, 0)
    columns[:, 4], columns[:, 5] = 1, top
    columns[:, 8:10] = case.side - 1
    columns[:, 10:12] = 1
    columns[:, 12:14], columns[:, 14:16] = -0.5, case.side - 0.5
    columns[:, 16:18] = 1
    seen = [(start.clamp(min=0) - (start + size).clamp(max=case.side)).abs() for start in (left, top)]
    return what, columns, float((seen[0] * seen[1]).sum()) * 3


def everything(case: Case, dtype: str, draws: torch.Generator) -> tuple[Pass, Tensor, float]:
    """The same for the stack of many."""
    n, size, side = case.batch, case.size, case.side
    what = Pass(
        3,
        (size, size),
        sampling="linear",
        framed=True,
        fill=(0.0, 0.0, 0.0),
        steps=4,
        contrast=True,
        scale=SCALE,
        shift=SHIFT,
        boxes=1,
        box_fill=(0.0, 0.0, 0.0),
        dtype=dtype,
    )

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(n, generator=draws)

    area = uniform(0.08, 1) * side * side
    ratio = uniform(math.log(3 / 4), math.log(4 / 3)).exp()
    width, height = ((area * ratio).sqrt().clamp(max=side), (area / ratio).sqrt().clamp(max=side))
    angle = uniform(-TURN, TURN)
    across, down = width / size, height / size
    flip = torch.where(uniform(0, 1) < 0.5, -1.0, 1.0)
    columns = torch.zeros(n, what.width)
    columns[:, 0], columns[:, 1] = across * angle.cos() * flip, -across * angle.sin()
    columns[:, 3], columns[:, 4] = down * angle.sin() * flip, down * angle.cos()
    middle = (size - 1) / 2
    for start, extent, at in ((0, width, 2), (3, height, 5)):
        centre = (side - extent) * uniform(0, 1) + (extent - 1) / 2
        columns[:, at] = centre - middle * (columns[:, start] + columns[:, start + 1])
    columns[:, 8:10] = side - 1
    columns[:, 10], columns[:, 11] = across.clamp(min=1), down.clamp(min=1)
    columns[:, 12:14], columns[:, 14:16] = -0.5, side - 0.5
    columns[:, 16], columns[:, 17] = 1 / across, 1 / down
    grey = torch.tensor(pass_spec.GREY)
    for step, (kind, factor) in enumerate(
        (
            (pass_spec.MATRIX, uniform(0.6, 1.4)),
            (pass_spec.CONTRAST, uniform(0.6, 1.4)),
            (pass_spec.MATRIX, uniform(0.6, 1.4)),
            (pass_spec.HUE, uniform(-0.1, 0.1)),
        )
    ):
        at = pass_spec.STEPS_AT + pass_spec.STEP_WIDTH * step
        columns[:, at], columns[:, at + 1] = kind, factor
        if kind == pass_spec.MATRIX:  # the brightness, then the saturation
            matrix = torch.zeros(n, 3, 4)
            matrix[:, :, :3] = factor[:, None, None] * torch.eye(3)
            if step:
                matrix[:, :, :3] += (1 - factor)[:, None, None] * grey
            columns[:, at + 1 : at + 13] = matrix.flatten(1)
    erased = uniform(0, 1) < 0.25
    box = columns[:, what.boxes_at : what.boxes_at + 4]
    box[:, :2] = (torch.stack([uniform(0, 0.6), uniform(0, 0.6)], 1) * size).floor()
    box[:, 2:] = box[:, :2] + (size * 0.4 * erased[:, None]).floor()
    return what, columns, float((width * height).sum()) * 3


BUILDERS = dict(zip(STACKS, (crop_and_flip, everything), strict=True))


def synchronise(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def fill_queue(device: torch.device) -> None:
    """Keep the device busy for some tens of milliseconds, so that what follows waits for it and not for the host."""
    if device.type == "cuda":
        torch.cuda._sleep(50_000_000)


def times_of(call: Callable[[int], object], device: torch.device, repeats: int) -> list[float]:
    """Microseconds on the device of each of so many calls; call gets a number that grows by one."""
    if device.type != "cuda":
        times = []
        for k in range(repeats):
            began = time.perf_counter()
            call(k)
            times.append((time.perf_counter() - began) * 1e6)
        return times
    events = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)
    ]
    for start in range(0, repeats, 50):  # so few that none is done before all are enqueued
        fill_queue(device)
        for k, (before, after) in enumerate(events[start : start + 50], start):
            before.record()
            call(k)
            after.record()
        synchronise(device)
    return [before.elapsed_time(after) * 1e3 for before, after in events]


def host_microseconds(call: Callable[[int], object], device: torch.device, calls: int) -> float:
    """What one call keeps the host for, while the device is busy with other things: the median of five times so many calls."""
    times = []
    for _ in range(5):
        fill_queue(device)
        began = time.perf_counter()
        for k in range(calls):
            call(k)
        times.append((time.perf_counter() - began) / calls * 1e6)
        synchronise(device)
    return statistics.median(times)


def copy_rate(device: torch.device, nbytes: int) -> float:
    """Bytes a second that a copy on the device reads and writes."""
    source = torch.empty(nbytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    return 2 * nbytes / statistics.median(times_of(lambda _: target.copy_(source), device, 20)) * 1e6


def peers(case: Case, stack: str, dtype: torch.dtype) -> dict[str, Callable[[Tensor], Tensor]]:
    """What else does about the same, as far as it is installed."""
    made: dict[str, Callable[[Tensor], Tensor]] = {}
    size = (case.size, case.size)
    try:
        v2: Any = importlib.import_module("torchvision.transforms.v2")
    except ImportError:
        pass
    else:
        if stack == STACKS[0]:
            middle = [v2.RandomCrop(size, case.padding or None), v2.RandomHorizontalFlip()]
        else:
            middle = [
                v2.RandomResizedCrop(size),
                v2.RandomHorizontalFlip(),
                v2.RandomRotation(15, v2.InterpolationMode.BILINEAR),
                v2.ColorJitter(0.4, 0.4, 0.4, 0.1),
            ]
        last = [v2.ToDtype(dtype, scale=True), v2.Normalize(MEAN, STD)]
        made["torchvision v2"] = v2.Compose(
            middle + last + ([v2.RandomErasing(0.25)] if stack != STACKS[0] else [])
        )
    try:
        k: Any = importlib.import_module("kornia.augmentation")
    except ImportError:
        pass
    else:
        if stack == STACKS[0]:
            steps = [k.RandomCrop(size, padding=case.padding or None), k.RandomHorizontalFlip()]
        else:
            steps = [
                k.RandomResizedCrop(size),
                k.RandomHorizontalFlip(),
                k.RandomRotation(15.0, p=1.0),
                k.ColorJitter(0.4, 0.4, 0.4, 0.1, p=1.0),
                k.RandomErasing(p=0.25),
            ]
        both = torch.nn.Sequential(*steps, k.Normalize(torch.tensor(MEAN), torch.tensor(STD)))
        made["kornia"] = lambda images: both(images.float() / 255).to(dtype)
    return made


@dataclass(frozen=True)
class Work:
    """One stack on one case: as many batches of images and results as are needed to outgrow the cache."""

    what: Pass
    columns: Tensor
    images: list[Tensor]
    outs: list[Tensor]
    nbytes: float

    def call(self, run: Callable[..., None], **options: object) -> Callable[[int], object]:
        """A function of a number that makes one of the batches."""
        turns = len(self.images)
        return lambda k: run(
            self.what, self.images[k % turns], self.columns, None, self.outs[k % turns], **options
        )

    def call_peer(self, peer: Callable[[Tensor], Tensor]) -> Callable[[int], object]:
        """The same for what takes images and draws for itself."""
        return lambda k: peer(self.images[k % len(self.images)])


def make_work(case: Case, stack: str, dtype: str, device: torch.device, rotate: int) -> Work:
    """Draw images and columns, and check that the kernel and plain operations agree on them."""
    draws = torch.Generator().manual_seed(0)
    what, columns, source = BUILDERS[stack](case, dtype, draws)
    kept = getattr(torch, dtype)
    shape = (case.batch, case.side, case.side, 3)
    result = (case.batch, case.size, case.size, 3)
    nbytes = source + math.prod(result) * kept.itemsize + columns.numel() * 4
    turns = max(2, math.ceil(rotate / nbytes))
    images = [
        torch.randint(0, 256, shape, dtype=torch.uint8, device=device).permute(0, 3, 1, 2)
        for _ in range(turns)
    ]
    outs = [torch.empty(result, dtype=kept, device=device).permute(0, 3, 1, 2) for _ in range(turns)]
    work = Work(what, columns.to(device), images, outs, nbytes)
    some = min(case.batch, 32)
    triton_pass.run(what, images[0][:some], work.columns[:some], None, outs[0][:some])
    torch_pass.run(what, images[0][:some], work.columns[:some], None, outs[1][:some])
    apart = (outs[0][:some].float() - outs[1][:some].float()).abs() > 0.05
    if float(apart.float().mean()) > 1e-3:
        raise SystemExit(f"{stack}, {case}, {dtype}: the kernel and plain operations differ.")
    return work


def compiled_plain() -> Callable[..., None]:
    """What torch.compile makes of the plain operations."""
    run: Callable[..., None] = torch.compile(torch_pass.run, dynamic=False)
    return run


def measure(
    cases: tuple[Case, ...], dtypes: tuple[str, ...], device: torch.device, repeats: int, small: bool
) -> list[Result]:
    """Every subject on every case."""
    results = []
    for case, stack, dtype in itertools.product(cases, STACKS, dtypes):
        limit = copy_rate(device, 1 << 20 if small else 512 << 20)
        work = make_work(case, stack, dtype, device, 1 if small else CACHE)
        calls = {"packer": work.call(triton_pass.run), "plain torch": work.call(torch_pass.run)}
        if not small and dtype == "bfloat16":
            calls["plain torch, compiled"] = work.call(compiled_plain())
        for name, peer in peers(case, stack, getattr(torch, dtype)).items():
            calls[name] = work.call_peer(peer)
        for name, call in calls.items():
            ours = name == "packer"
            few = repeats if ours else max(2, repeats // 10)
            try:
                for k in range(1 if small else 5):
                    call(k)
                synchronise(device)
                times = sorted(times_of(call, device, few))
            except Exception as error:  # a peer, or torch.compile, that cannot is no reason to lose the rest
                if ours:
                    raise
                print(
                    f"{stack}, {case}, {dtype}: {name}: {type(error).__name__}: {error}"[:300],
                    file=sys.stderr,
                )
                continue
            middle = statistics.median(times)
            rate = work.nbytes / middle * 1e6
            results.append(
                Result(
                    stack,
                    f"{case.batch} x {case.side} -> {case.size}",
                    dtype,
                    name,
                    middle,
                    times[len(times) * 9 // 10] / times[len(times) // 10],
                    rate / 1e9,
                    rate / limit,
                    host_microseconds(call, device, min(repeats, 50)) if ours else None,
                )
            )
    return results


def conditions(device: torch.device) -> dict[str, Any]:
    """Return the device and the versions."""
    found: dict[str, Any] = {"device": platform.machine(), **versions()}
    if device.type == "cuda":
        found |= {"device": torch.cuda.get_device_name(device), "cuda": torch.version.cuda}
        found["capability"] = list(torch.cuda.get_device_capability(device))
    for name in ("triton", "kornia", "torchvision"):
        with suppress(ImportError):
            found[name] = str(importlib.import_module(name).__version__)
    return found


def main() -> None:
    """Measure, print, and write what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    device = (
        torch.device("cuda", torch.cuda.current_device())
        if torch.cuda.is_available()
        else torch.device("cpu")
    )
    if device.type == "cpu" and not options.smoke:
        parser.exit(2, "torch sees no CUDA device here; pass --smoke to see that the benchmark runs.\n")
    cases, repeats = (SMOKE_CASES, 2) if options.smoke else (CASES, options.repeats)
    where = conditions(device)
    print(", ".join(f"{name} {value}" for name, value in where.items()))
    results = measure(cases, tuple(options.dtypes), device, repeats, options.smoke)
    print(
        f"{'stack, batch, result, subject':86} {'us':>9} {'spread':>7} {'GB/s':>7} {'of copy':>8} {'host us':>8}"
    )
    for r in results:
        host = f"{r.host_microseconds:8.1f}" if r.host_microseconds is not None else ""
        print(
            f"{f'{r.stack}; {r.case}; {r.dtype}; {r.subject}':86} {r.microseconds:9.1f} {r.spread:7.2f}"
            f" {r.gigabytes_per_second:7.1f} {r.share_of_copy:8.2f} {host}"
        )
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"conditions": where, "results": [asdict(r) for r in results]}, file, indent=1)


if __name__ == "__main__":
    main()
