"""Images a second that a core augments: packer, OpenCV image by image, kornia, and a plain copy.

    python benchmarks/augment.py                       (about two minutes, one thread; a GPU: gpu_augment.py)
    python benchmarks/augment.py --threads 2 --json FILE
    python benchmarks/augment.py --smoke               (tiny sizes, checks that everything runs)

Subjects take turns within each round. Times include the random draws of all of them. A stack ends in float32
images [N, C, h, w] in reused memory, like a loader's. "copy" moves as many bytes as packer's pass reads and
writes.

OpenCV's lane is a careful Dataset: crop by slicing, cv2.flip, cv2.resize (INTER_AREA for shrinking),
cv2.warpAffine, lookup tables (cv2.LUT) for brightness, contrast and normalisation, cv2.cvtColor for hue and
saturation.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

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
from packer.bench.bench_report import MeasuredLane
from packer.bench.hardware_limits import machine, versions
from packer.bench.lanes import Lane, measured, run_rounds

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
JITTER = (0.4, 0.4, 0.4, 0.1)
ROUNDS = 7

Image = NDArray[np.uint8]


@dataclass(frozen=True)
class Case:
    """A batch of square images and their stack of transforms; sides in pixels."""

    name: str
    count: int
    side: int
    size: int


CASES = (
    Case("crop, flip, normalize", 256, 256, 224),
    Case("resized crop, flip, normalize", 256, 256, 224),
    Case("resized crop, flip, jitter, normalize, erase", 128, 256, 224),
    Case("rotate, flip, normalize", 256, 224, 224),
    Case("pad, crop, flip, normalize", 1024, 32, 32),
    Case("pad, crop, flip, jitter, normalize, erase", 1024, 32, 32),
)
SMOKE = tuple(Case(case.name, 4, 16, 12 if case.side > case.size else 16) for case in CASES)


def transforms(case: Case) -> list[Transform]:
    """Return the stack of a case as a user of packer writes it."""
    words = case.name.split(", ")
    padding = case.size // 8 if "pad" in words else None
    known: dict[str, Transform] = {
        "crop": RandomCrop(case.size, padding, padding_mode="reflect"),
        "resized crop": RandomResizedCrop(case.size),
        "rotate": RandomRotation(15, interpolation="bilinear"),
        "flip": RandomHorizontalFlip(),
        "jitter": ColorJitter(*JITTER),
        "normalize": Normalize(MEAN, STD),
        "erase": RandomErasing(),
    }
    return [known[word] for word in words if word != "pad"]


class OpenCV:
    """The same stack, image by image, with OpenCV."""

    def __init__(self, case: Case) -> None:
        self._words, self._size = case.name.split(", "), case.size
        self._random = np.random.default_rng(0)
        levels = np.arange(256, dtype=np.float32)[:, None] / 255
        self._table = np.ascontiguousarray(
            ((levels - np.array(MEAN)) / np.array(STD)).reshape(256, 1, 3), np.float32
        )
        self._resized = RandomResizedCrop(case.size)

    def __call__(self, images: Image, out: NDArray[np.float32]) -> None:
        """Augment [N, H, W, 3] into [N, h, w, 3]."""
        for image, result in zip(images, out, strict=True):
            result[...] = self.one(image)

    def one(self, image: Any) -> Any:
        """Augment one image."""
        draw, size = self._random, self._size
        for word in self._words:
            height, width = image.shape[:2]
            if word == "pad":
                by = size // 8
                image = cv2.copyMakeBorder(image, by, by, by, by, cv2.BORDER_REFLECT_101)
            elif word == "crop":
                top, left = draw.integers(height - size + 1), draw.integers(width - size + 1)
                image = image[top : top + size, left : left + size]
            elif word == "resized crop":
                image = self._cut(image)
                shrinks = image.shape[0] > size
                image = cv2.resize(
                    image, (size, size), interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
                )
            elif word == "rotate":
                matrix = cv2.getRotationMatrix2D(
                    (width / 2 - 0.5, height / 2 - 0.5), draw.uniform(-15, 15), 1
                )
                image = cv2.warpAffine(image, matrix, (width, height), flags=cv2.INTER_LINEAR)
            elif word == "flip":
                image = cv2.flip(image, 1) if draw.random() < 0.5 else image
            elif word == "jitter":
                image = self._jittered(image)
            elif word == "normalize":
                image = cv2.LUT(np.ascontiguousarray(image), self._table)
            elif word == "erase" and draw.random() < 0.5:
                area, ratio = draw.uniform(0.02, 0.33), np.exp(draw.uniform(np.log(0.3), np.log(3.3)))
                h = min(height - 1, round(height * (area * ratio) ** 0.5))
                w = min(width - 1, round(width * (area / ratio) ** 0.5))
                top, left = draw.integers(height - h + 1), draw.integers(width - w + 1)
                image[top : top + h, left : left + w] = 0
        return image

    def _cut(self, image: Any) -> Any:
        height, width = image.shape[:2]
        for _ in range(10):
            area = height * width * self._random.uniform(0.08, 1)
            ratio = np.exp(self._random.uniform(np.log(3 / 4), np.log(4 / 3)))
            w, h = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
            if 0 < w <= width and 0 < h <= height:
                top, left = self._random.integers(height - h + 1), self._random.integers(width - w + 1)
                return image[top : top + h, left : left + w]
        return image

    def _jittered(self, image: Any) -> Any:
        draw = self._random
        levels = np.arange(256, dtype=np.float32)
        for which in draw.permutation(4):
            if which == 3:
                hsv = cv2.cvtColor(image, cv2.COLOR_RGB2HSV_FULL)
                turn = np.uint8(int(draw.uniform(-JITTER[3], JITTER[3]) * 256) & 255)
                hsv[..., 0] += turn  # uint8 overflow wraps like the hue
                image = cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB_FULL)
                continue
            factor = draw.uniform(1 - JITTER[which], 1 + JITTER[which])
            if which == 2:
                grey = cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
                image = cv2.addWeighted(image, factor, grey, 1 - factor, 0)
                continue
            offset = 0.0
            if which == 1:
                offset = (1 - factor) * float(cv2.mean(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY))[0])
            image = cv2.LUT(image, np.clip(levels * factor + offset, 0, 255).astype(np.uint8))
        return image


def measure(case: Case, rounds: int, least: float) -> tuple[MeasuredLane, ...]:
    """Time every subject in turn, `rounds` times, each for at least `seconds`."""
    generator = np.random.default_rng(0)
    small = generator.integers(
        0, 256, (case.count, max(2, case.side // 8), max(2, case.side // 8), 3), np.uint8
    )
    images = np.stack([cv2.resize(i, (case.side, case.side), interpolation=cv2.INTER_CUBIC) for i in small])
    batch = torch.from_numpy(images).permute(0, 3, 1, 2)
    pipeline = Pipeline(transforms(case), (3, case.side, case.side))
    epoch = iter(range(1 << 30))
    rows = np.arange(case.count)
    out = torch.empty(
        (case.count, *pipeline.output_shape), dtype=torch.float32, memory_format=torch.channels_last
    )
    opencv, theirs = OpenCV(case), np.empty((case.count, case.size, case.size, 3), np.float32)
    moved = case.count * (case.size**2 * 3 * (4 + 1)) // 2  # a copy reads as many bytes as it writes
    source, target = np.ones(moved, np.uint8), np.ones(moved, np.uint8)
    works: dict[str, Callable[[], object]] = {
        "packer": lambda: pipeline.apply(batch, pipeline.sample(rows, next(epoch)), out=out),
        "OpenCV": lambda: opencv(images, theirs),
        "copy": lambda: np.copyto(target, source),
    }
    for work in works.values():
        work()
    check(out.permute(0, 2, 3, 1).numpy(), theirs)
    lanes = [Lane(name, partial(rate, work, case.count, least)) for name, work in works.items()]
    run_rounds({case.name: lanes}, rounds, lambda _: None)
    return measured(lanes)


def rate(work: Callable[[], object], count: int, least: float) -> float:
    """Return images a second, measured for at least `seconds`."""
    began, runs = time.perf_counter(), 0
    while not runs or time.perf_counter() - began < least:
        work()
        runs += 1
    return runs * count / (time.perf_counter() - began)


def check(ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> None:
    """Check that both stacks give similar images: equal ranges, close means and deviations."""
    assert ours.shape == theirs.shape
    assert np.isfinite(ours).all()
    if ours.size > 1 << 20:
        assert abs(ours.mean() - theirs.mean()) < 0.1, (ours.mean(), theirs.mean())
        assert abs(ours.std() - theirs.std()) < 0.1, (ours.std(), theirs.std())


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table, and write JSON if requested."""
    parser = argparse.ArgumentParser(description="Time augmentation on the CPU beside OpenCV and a copy.")
    parser.add_argument(
        "--threads", type=int, default=1, help="threads for packer, torch and OpenCV (default: 1)"
    )
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, one round")
    options = parser.parse_args(arguments)
    before = torch.get_num_threads(), cv2.getNumThreads()
    torch.set_num_threads(options.threads)
    cv2.setNumThreads(options.threads)
    rounds = 1 if options.smoke else ROUNDS
    about = {
        **machine(),
        "threads": options.threads,
        "versions": versions() | {"opencv": cv2.__version__},
        "rounds": rounds,
    }
    print(json.dumps(about))
    results = []
    try:
        for case in SMOKE if options.smoke else CASES:
            title = f"{case.name}, {case.side} to {case.size} px"
            print(f"\n{title}\n{'':10} {'images/s':>12} {'x packer':>9} {'spread':>7}")
            for lane in measure(case, rounds, 0 if options.smoke else 0.4):
                spread = max(lane.rates) / min(lane.rates)
                print(f"{lane.name:10} {lane.rate:12,.0f} {lane.times_baseline:9.2f} {spread:6.2f}x")
                found = {"images_a_second": lane.rate, "of_packer": lane.times_baseline, "spread": spread}
                results.append({"case": title, "subject": lane.name, **found})
    finally:
        torch.set_num_threads(before[0])
        cv2.setNumThreads(before[1])
    if options.json:
        options.json.write_text(json.dumps(about | {"results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
