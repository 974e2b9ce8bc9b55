"""How fast augmentation is, beside the rate at which the device copies memory.

    python benchmarks/augment.py            (about a minute; CPU, and CUDA where there is one)
    python benchmarks/augment.py --smoke    (tiny sizes, checks that everything runs)

Each round times a plain copy of the images and then each subject; "of copy" is the median over the rounds of
(bytes read + bytes written by the subject) / time, over the same of the copy. On a CPU `apply` fills a result
it has filled before, as the copy does; on CUDA times come from events and include the upload of the draws.
Draws are made beforehand; the last column says what they cost on the host.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from packer.augment import Normalize, Pipeline, RandomCrop, RandomHorizontalFlip

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Case:
    """A batch of square images and the crop that is cut from them, in pixels."""

    count: int
    side: int
    crop: int
    padding: int


CASES = (Case(256, 256, 224, 0), Case(512, 32, 32, 4))
SMOKE_CASES = (Case(4, 16, 12, 0), Case(5, 8, 8, 2))


@dataclass(frozen=True)
class Result:
    """One subject on one case; the spread is the highest round's rate over the lowest's."""

    name: str
    images_a_second: float
    gigabytes_a_second: float
    share_of_copy: float
    spread: float
    draw_microseconds: float


def subjects(case: Case) -> dict[str, Pipeline]:
    """Name what is timed; the half-precision stack is what a GPU would train on."""
    flip, crop = RandomHorizontalFlip(), RandomCrop(case.crop, case.padding or None)
    return {
        "flip": Pipeline([flip]),
        "crop": Pipeline([crop]),
        "normalize float32": Pipeline([Normalize(MEAN, STD)]),
        "normalize float16": Pipeline([Normalize(MEAN, STD, torch.float16)]),
        "stack float32": Pipeline([flip, crop, Normalize(MEAN, STD)]),
        "stack float16": Pipeline([flip, crop, Normalize(MEAN, STD, torch.float16)]),
    }


def seconds(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Time one run of the work, from `repeats` of them back to back."""
    if device.type == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(repeats):
            work()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / repeats
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    return (time.perf_counter() - start) / repeats


def measure(case: Case, device: torch.device, rounds: int, repeats: int) -> list[Result]:
    """Time the copy and every subject in turn, `rounds` times."""
    draws_of_pixels = torch.Generator().manual_seed(0)
    memory = torch.randint(
        0, 256, (case.count, case.side, case.side, 3), dtype=torch.uint8, generator=draws_of_pixels
    )
    images = memory.to(device).permute(0, 3, 1, 2)
    rows = np.arange(case.count)
    shape = (3, case.side, case.side)
    copy = torch.empty_like(images)
    pipelines = subjects(case)
    works: dict[str, Callable[[], Tensor]] = {"copy": lambda: copy.copy_(images)}
    draw_seconds = {"copy": 0.0}
    for name, pipeline in pipelines.items():
        start = time.perf_counter()
        params = pipeline.sample(rows, 0, 0, shape)
        draw_seconds[name] = time.perf_counter() - start
        first = pipeline.apply(images, params)
        check(case, pipeline, images, first)
        out = first if device.type == "cpu" else None
        works[name] = lambda p=pipeline, d=params, o=out: p.apply(images, d, out=o)  # type: ignore[misc]
    moved = {name: images.nbytes + work().nbytes for name, work in works.items()}

    rates: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            rates[name].append(moved[name] / seconds(work, device, repeats))
    return [
        Result(
            name,
            case.count * statistics.median(rates[name]) / moved[name],
            statistics.median(rates[name]) / 1e9,
            statistics.median(own / limit for own, limit in zip(rates[name], rates["copy"], strict=True)),
            max(rates[name]) / min(rates[name]),
            draw_seconds[name] * 1e6,
        )
        for name in works
    ]


def check(case: Case, pipeline: Pipeline, images: Tensor, result: Tensor) -> None:
    """Make sure that what is timed is the real thing: shape, layout, and the same images one at a time."""
    assert tuple(result.shape) == (case.count, *pipeline.output_shape((3, case.side, case.side)))
    assert result.is_contiguous(memory_format=torch.channels_last)
    last = case.count - 1
    assert torch.equal(pipeline(images[last:], np.arange(last, case.count)), result[last:])


def conditions(device: torch.device, rounds: int, repeats: int) -> str:
    """Say what the numbers were measured on and how."""
    where = f"{os.cpu_count()} CPUs ({platform.machine()}), {torch.get_num_threads()} threads"
    if device.type == "cuda":
        where = torch.cuda.get_device_name(device)
    return (
        f"{where}; torch {torch.__version__}, numpy {np.__version__}, Python {platform.python_version()}; "
        f"median of {rounds} rounds of {repeats} runs, after a warm-up"
    )


def report(case: Case, results: Sequence[Result]) -> str:
    """Lay the results out as a table."""
    lines = [
        f"{case.count} uint8 images of {case.side} px, crop {case.crop} px, padding {case.padding}",
        f"{'':18} {'images/s':>12} {'GB/s':>8} {'of copy':>8} {'spread':>7} {'draws us':>9}",
    ]
    for r in results:
        lines.append(
            f"{r.name:18} {r.images_a_second:12,.0f} {r.gigabytes_a_second:8.1f} {r.share_of_copy:8.2f} "
            f"{r.spread:6.1f}x {r.draw_microseconds:9.0f}"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure on the CPU and, where there is one, on the first CUDA device."""
    parser = argparse.ArgumentParser(description="Time augmentation beside a plain copy.")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, one round")
    smoke = parser.parse_args(arguments).smoke
    rounds = 1 if smoke else 9
    devices = [torch.device("cpu")] + [torch.device("cuda", 0)] * torch.cuda.is_available()
    for device in devices:
        # Enough work a round to drown the clock and the launches: about 0.2 s on two cores, 30 ms on a GPU.
        repeats = 1 if smoke else {"cpu": 4, "cuda": 50}[device.type]
        print(conditions(device, rounds, repeats))
        for case in SMOKE_CASES if smoke else CASES:
            print(report(case, measure(case, device, rounds, repeats)), end="\n\n")


if __name__ == "__main__":
    main()
