"""Time of a batch's augmentation on a GPU, compared with the memory traffic it needs, and with peers.

    python benchmarks/gpu_augment.py                   (minutes; mostly plain operations, torch.compile)
    python benchmarks/gpu_augment.py --smoke           (tiny sizes; on the CPU without a GPU)

Two stacks, each a single pass: crop, flip and normalise; and resized crop, rotation, four colour changes,
erase and normalise. A time is the median over `--repeats` batches after a warm-up, each between two CUDA
events, with a queue that never empties; images and results rotate through more memory than the cache holds.
"host": CPU time to enqueue a batch meanwhile. GB/s counts the uint8 pixels that a stack needs (each once),
the result and the columns; "of copy" divides it by the bytes that a 512 MB device-to-device copy reads and
writes a second, measured before each case. Peers, where importable: kornia (float images, separate draws for
each image), torchvision v2 (a draw for the batch). Times include their draws, but not packer's: its columns
are drawn and uploaded beforehand, as the loader does on its thread.
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
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from packer.augment import (
    ColorJitter,
    Normalize,
    Pipeline,
    RandomCrop,
    RandomErasing,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomRotation,
    Transform,
)
from packer.augment.passes import torch_pass, triton_pass
from packer.augment.passes.pass_agreement import disagreement
from packer.augment.passes.pass_spec import Pass
from packer.augment.passes.prepared_draws import PreparedDraws
from packer.bench.hardware_limits import versions

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
JITTER = (0.4, 0.4, 0.4, 0.1)
STACKS = ("crop, flip", "resized crop, turn, color, erase")
CACHE = 200 << 20
"""Bytes to rotate over: more than the largest cache of a GPU so far."""


@dataclass(frozen=True)
class Case:
    """Square images and results, sides in pixels."""

    batch: int
    side: int
    size: int
    padding: int


CASES = tuple(Case(batch, *sizes) for sizes in ((256, 224, 0), (32, 32, 4)) for batch in (256, 1024))
SMOKE_CASES = (Case(4, 16, 12, 0), Case(5, 8, 8, 2))
DTYPES = ("float32", "float16", "bfloat16")


def stacked(case: Case, stack: str, dtype: torch.dtype) -> tuple[Pass, PreparedDraws]:
    """Return a stack as one pass, and its draws."""
    if stack == STACKS[0]:
        first: list[Transform] = [RandomCrop(case.size, case.padding or None), RandomHorizontalFlip()]
    else:
        first = [RandomResizedCrop(case.size), RandomHorizontalFlip()]
        first += [RandomRotation(15, interpolation="bilinear"), ColorJitter(*JITTER)]
    last = [RandomErasing(0.25)] if stack != STACKS[0] else []
    pipeline = Pipeline([*first, Normalize(MEAN, STD, dtype=dtype), *last], (3, case.side, case.side))
    (what,) = pipeline.passes
    return what, pipeline.prepare(pipeline.sample(np.arange(case.batch)))


def source_bytes(columns: Tensor, case: Case) -> float:
    """Return the bytes of the images that the results show: their areas within the edges."""
    a, b, c, d, e, f = columns[:, :6].T
    needed = (a * e - b * d).abs() * case.size**2
    for along, across, start in ((a, b, c), (d, e, f)):
        middle = (along + across) * (case.size - 1) / 2 + start + 0.5
        half = (along.abs() + across.abs()) * case.size / 2
        inside = (middle + half).clamp(max=case.side) - (middle - half).clamp(min=0)
        needed = needed * inside.clamp(min=0) / (2 * half)
    return float(needed.sum()) * 3


def synchronise(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def fill_queue(device: torch.device) -> None:
    """Keep the device busy for tens of milliseconds, so that the next calls are queued behind it."""
    if device.type == "cuda":
        torch.cuda._sleep(50_000_000)


def times_of(call: Callable[[int], object], device: torch.device, repeats: int) -> list[float]:
    """Return microseconds on the device of each call. call: called with an increasing number."""
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
    for start in range(0, repeats, 50):  # few enough to be enqueued before the first is done
        fill_queue(device)
        for k, (before, after) in enumerate(events[start : start + 50], start):
            before.record()
            call(k)
            after.record()
        synchronise(device)
    return [before.elapsed_time(after) * 1e3 for before, after in events]


def host_microseconds(call: Callable[[int], object], device: torch.device, calls: int) -> float:
    """Return the host's time for a call while the device is busy: the median of five series."""
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
    """Return the bytes a second that a copy on the device reads and writes."""
    source = torch.empty(nbytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    return 2 * nbytes / statistics.median(times_of(lambda _: target.copy_(source), device, 20)) * 1e6


def imported(name: str) -> Any:
    """Return a module, or None if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def peers(case: Case, stack: str, dtype: torch.dtype) -> dict[str, Callable[[Tensor], Tensor]]:
    """Return the installed peers that do about the same work."""
    made: dict[str, Callable[[Tensor], Tensor]] = {}
    size, plain = (case.size, case.size), stack == STACKS[0]
    if v2 := imported("torchvision.transforms.v2"):
        if plain:
            steps = [v2.RandomCrop(size, case.padding or None), v2.RandomHorizontalFlip()]
        else:
            steps = [v2.RandomResizedCrop(size), v2.RandomHorizontalFlip()]
            steps += [v2.RandomRotation(15, v2.InterpolationMode.BILINEAR), v2.ColorJitter(*JITTER)]
        steps += [v2.ToDtype(dtype, scale=True), v2.Normalize(MEAN, STD)]
        made["torchvision v2"] = v2.Compose(steps if plain else [*steps, v2.RandomErasing(0.25)])
    if k := imported("kornia.augmentation"):
        if plain:
            steps = [k.RandomCrop(size, padding=case.padding or None), k.RandomHorizontalFlip()]
        else:
            steps = [k.RandomResizedCrop(size), k.RandomHorizontalFlip(), k.RandomRotation(15.0, p=1.0)]
            steps += [k.ColorJitter(*JITTER, p=1.0), k.RandomErasing(p=0.25)]
        both = torch.nn.Sequential(*steps, k.Normalize(torch.tensor(MEAN), torch.tensor(STD)))
        made["kornia"] = lambda images: both(images.float() / 255).to(dtype)
    return made


@dataclass(frozen=True)
class Work:
    """A stack for a case, with enough batches of images and results to exceed the cache."""

    what: Pass
    draws: PreparedDraws
    images: list[Tensor]
    outs: list[Tensor]
    nbytes: float

    def call(self, run: Callable[..., None], **options: object) -> Callable[[int], object]:
        """Return a function of a number that computes one of the batches."""
        turns = len(self.images)
        return lambda k: run(self.what, self.images[k % turns], self.draws, self.outs[k % turns], **options)

    def call_peer(self, peer: Callable[[Tensor], Tensor]) -> Callable[[int], object]:
        """Return the same for a peer, which takes images and draws for itself."""
        return lambda k: peer(self.images[k % len(self.images)])


def make_work(case: Case, stack: str, dtype: str, device: torch.device, rotate: int) -> Work:
    """Draw images and parameters, and check that the kernel agrees with plain operations."""
    kept = getattr(torch, dtype)
    what, draws = stacked(case, stack, kept)
    draws.on(device)
    shape = (case.batch, case.side, case.side, 3)
    result = (case.batch, case.size, case.size, 3)
    nbytes = source_bytes(draws.host, case) + math.prod(result) * kept.itemsize + draws.host.numel() * 4
    turns = max(2, math.ceil(rotate / nbytes))
    images = [
        torch.randint(0, 256, shape, dtype=torch.uint8, device=device).permute(0, 3, 1, 2)
        for _ in range(turns)
    ]
    outs = [torch.empty(result, dtype=kept, device=device).permute(0, 3, 1, 2) for _ in range(turns)]
    work = Work(what, draws, images, outs, nbytes)
    some = min(case.batch, 32)
    triton_pass.run(what, images[0][:some], draws[:some], outs[0][:some])
    torch_pass.run(what, images[0][:some], draws[:some], outs[1][:some])
    if float(disagreement(what, outs[0][:some], outs[1][:some])) > 1:
        raise SystemExit(f"{stack}, {case}, {dtype}: the kernel and plain operations differ.")
    return work


def compiled_plain() -> Callable[..., None]:
    """Return the plain operations after torch.compile."""
    run: Callable[..., None] = torch.compile(torch_pass.run, dynamic=False)
    return run


def measure(
    cases: tuple[Case, ...], dtypes: tuple[str, ...], device: torch.device, repeats: int, small: bool
) -> list[dict[str, Any]]:
    """Measure all subjects and cases: microseconds a batch, spread: 90th percentile / 10th."""
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
            except Exception as error:  # keep the other results if a peer or torch.compile fails
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
                {
                    "stack": stack,
                    "case": f"{case.batch} x {case.side} -> {case.size}",
                    "dtype": dtype,
                    "subject": name,
                    "microseconds": middle,
                    "spread": times[len(times) * 9 // 10] / times[len(times) // 10],
                    "gigabytes_per_second": rate / 1e9,
                    "share_of_copy": rate / limit,
                    "host_microseconds": host_microseconds(call, device, min(repeats, 50)) if ours else None,
                }
            )
    return results


def conditions(device: torch.device) -> dict[str, Any]:
    """Return the device and the versions."""
    found: dict[str, Any] = {"device": platform.machine(), **versions()}
    if device.type == "cuda":
        found |= {"device": torch.cuda.get_device_name(device), "cuda": torch.version.cuda}
        found["capability"] = list(torch.cuda.get_device_capability(device))
    modules = {name: imported(name) for name in ("triton", "kornia", "torchvision")}
    return found | {name: str(module.__version__) for name, module in modules.items() if module}


def main() -> None:
    """Measure, print, and write the requested files."""
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
        f"{'stack, batch, result, subject':86} {'us':>9} {'spread':>7} {'GB/s':>7} {'of copy':>8}"
        f" {'host us':>8}"
    )
    for r in results:
        title = "; ".join(r[key] for key in ("stack", "case", "dtype", "subject"))
        host = "" if r["host_microseconds"] is None else f"{r['host_microseconds']:8.1f}"
        rates = f"{r['gigabytes_per_second']:7.1f} {r['share_of_copy']:8.2f}"
        print(f"{title:86} {r['microseconds']:9.1f} {r['spread']:7.2f} {rates} {host}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"conditions": where, "results": results}, file, indent=1)


if __name__ == "__main__":
    main()
