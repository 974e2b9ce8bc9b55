"""examine_gpu(): loading and augmenting on this machine's GPU, checked and measured in about a minute."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from packer.augment.pass_stages import implementation, new_images, run_pass
from packer.augment.passes import torch_pass, triton_pass
from packer.augment.passes.pass_agreement import disagreement
from packer.augment.passes.pass_spec import Pass
from packer.augment.pipeline import Pipeline
from packer.doctor.traps import version_of
from packer.errors import UsageError
from packer.load.batch_dataset import PackedBatchDataset
from packer.packs.own_arrays import open_arrays
from packer.packs.pack import Pack
from packer.units import size
from packer.version import __version__

PASSES = {
    "crop and flip": "RandomCrop({side}), RandomHorizontalFlip(), Normalize(0.5, 0.2)",
    "crop of bytes": "RandomCrop({side}), RandomHorizontalFlip()",
    "resized crop": "RandomResizedCrop({side}), RandomHorizontalFlip(), Normalize(0.5, 0.2, bfloat16)",
    "turned": "RandomRotation(30), Normalize(0.5, 0.2, float16)",
    "colours": "RandomResizedCrop({side}), ColorJitter(0.4, 0.4, 0.4, 0.1), RandomSolarize(128, 0.2),"
    " RandomPosterize(4, 0.2), Normalize(0.5, 0.2, float16), RandomErasing(0.5, value='random')",
}
"""Augmentations that are one pass each, by the name of their check."""
_AUGMENT = "resized crop"  # of the checks of batches
_PINNED_SHARE = 0.7  # least share of the bus that copies of batches reach
_OTHER_BUFFERS = 8  # batches: an epoch ends with some buffers more or fewer than another, as its reads come
_LONGEST = 1.1  # times the computation alone; a copy that waits adds a fifth or more


class GpuCheck(NamedTuple):
    """A check. found: what was measured. problem: a sentence with its remedy; "" if the check passed."""

    name: str
    found: str
    problem: str = ""


@dataclass(frozen=True)
class GpuExamination:
    """The result of `examine_gpu`. versions: of software, and the names of the GPUs."""

    versions: dict[str, str]
    checks: list[GpuCheck]

    @property
    def passed(self) -> bool:
        """True if no check found a problem."""
        return not any(check.problem for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON values."""
        return asdict(self) | {"passed": self.passed, "checks": [check._asdict() for check in self.checks]}

    def __str__(self) -> str:
        lines = [f"{name:10} {version}" for name, version in self.versions.items()]
        width = max(len(check.name) for check in self.checks)
        lines += [
            "",
            *(f"{'FAILED' if c.problem else 'ok':7} {c.name:{width}}  {c.found}" for c in self.checks),
        ]
        lines += ["", *(f"- {check.problem}" for check in self.checks if check.problem)]
        return "\n".join([*lines, "All checks passed."] if self.passed else lines)


@dataclass(frozen=True)
class Sizes:
    """Sizes of the checks. rows, side: of the pack's images. batches: of the check of memory."""

    rows: int = 2000  # no multiple of the batch, so that the last one is short
    side: int = 224
    batch: int = 128
    batches: int = 1000


class MeasuredGpu:
    """The current CUDA device; times are those between events on its current stream."""

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise UsageError(
                "GPU: torch sees no CUDA device here, so nothing can be checked. Run it where the GPU is, with"
                " torch for CUDA."
            )
        self.device = torch.device("cuda", torch.cuda.current_device())
        self._cycles = 1e7 / self.seconds(lambda: torch.cuda._sleep(10_000_000), 20)

    def wait(self) -> None:
        """Wait for the device."""
        torch.cuda.synchronize(self.device)

    def seconds(self, call: Callable[[], object], repeats: int) -> float:
        """Return the device's time for a call, after a first one."""
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        call()
        began.record()
        for _ in range(repeats):
            call()
        ended.record()
        self.wait()
        return float(began.elapsed_time(ended)) / repeats / 1e3

    def compute(self, seconds: float) -> None:
        """Keep the current stream busy."""
        torch.cuda._sleep(int(seconds * self._cycles))

    def pinned_rate(self, nbytes: int) -> float:
        """Return the bytes a second of a plain copy from pinned memory."""
        source = torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)
        target = torch.empty(nbytes, dtype=torch.uint8, device=self.device)
        return nbytes / self.seconds(lambda: target.copy_(source, non_blocking=True), 20)

    def compiled_kernels(self) -> int:
        """Return the number of kernels that this process has compiled, or taken from Triton's cache."""
        kernels = vars(sys.modules.get("packer.augment.passes.triton_kernels", object)).values()
        return sum(len(cache[0]) for k in kernels for cache in getattr(k, "device_caches", {}).values())

    def allocated(self) -> int:
        """Return the bytes of tensors on the device."""
        self.wait()
        return torch.cuda.memory_allocated(self.device)

    def versions(self) -> dict[str, str]:
        """Return the versions of software, and the names of the GPUs."""
        names = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
        return {
            "GPU": ", ".join(names),
            "driver": _driver(),
            "CUDA": str(torch.version.cuda),
            "torch": torch.__version__,
            "Triton": version_of("triton") or "none",
            "packer": __version__,
        }


def examine_gpu(gpu: MeasuredGpu | None = None, sizes: Sizes | None = None) -> GpuExamination:
    """Check loading and augmenting on the current GPU, with a pack of noise in a temporary folder.

    Raises UsageError where torch sees no GPU.
    """
    gpu, sizes = gpu or MeasuredGpu(), sizes or Sizes()
    with tempfile.TemporaryDirectory() as folder:
        noise = np.random.default_rng(0).integers(0, 256, (sizes.rows, sizes.side, sizes.side, 3), np.uint8)
        paths = {name: os.path.join(folder, f"{name}.npy") for name in ("image", "label")}
        np.save(paths["image"], noise)
        np.save(paths["label"], np.arange(sizes.rows))
        return GpuExamination(gpu.versions(), [*_checks(gpu, open_arrays(**paths), sizes)])


def _checks(gpu: MeasuredGpu, pack: Pack, sizes: Sizes) -> Iterator[GpuCheck]:
    yield check_copies(gpu, pack, sizes)
    yield check_overlap(gpu, pack, sizes)
    for placement in ("disk", "gpu"):
        for augment in ("", PASSES[_AUGMENT].format(side=sizes.side)):
            yield check_batches(gpu, pack, sizes, placement, augment)
    for name, text in PASSES.items():
        yield check_pass(gpu, sizes, name, text.format(side=sizes.side))
    yield check_repetition(gpu, pack, sizes)


def _dataset(
    gpu: MeasuredGpu, pack: Pack, batch: int, placement: str = "disk", augment: str = ""
) -> PackedBatchDataset:
    return PackedBatchDataset(
        pack, batch, order="rows", device=str(gpu.device), placement=placement, augment=augment or None
    )


def check_copies(gpu: MeasuredGpu, pack: Pack, sizes: Sizes) -> GpuCheck:
    """Compare the rate of the copies of batches with that of a plain copy of as many pinned bytes."""
    limit = gpu.pinned_rate(sizes.batch * sizes.side**2 * 3)
    with _dataset(gpu, pack, sizes.batch) as dataset:
        for _ in range(3):
            deque(dataset, maxlen=0)
            gpu.wait()
        stats = dataset.stats()
    rate = stats.nbytes / stats.copy_seconds if stats.copy_seconds else 0.0
    problem = (
        f"Copies of batches reach {rate / limit:.0%} of a plain pinned copy; {_PINNED_SHARE:.0%} is expected."
        " Check that memory may be pinned (ulimit -l), and that no other program copies."
    )
    found = f"{rate / 1e9:.1f} of {limit / 1e9:.1f} GB/s"
    return GpuCheck("pinned copies", found, problem * (rate < _PINNED_SHARE * limit))


def check_overlap(gpu: MeasuredGpu, pack: Pack, sizes: Sizes) -> GpuCheck:
    """Compare an epoch with computation for each batch with the computation alone."""

    def epoch(dataset: PackedBatchDataset, work: float) -> float:
        began = 0.0
        for _ in dataset:
            began = began or time.perf_counter()  # the first batch waits for its copy
            if work:
                gpu.compute(work)
        gpu.wait()
        return time.perf_counter() - began

    with _dataset(gpu, pack, sizes.batch) as dataset:
        epoch(dataset, 0)
        count = len(dataset)
        wanted = 1.3 * min(epoch(dataset, 0) for _ in range(3)) / (count - 1)
        # Its clock is faster now than when it idled.
        work = wanted**2 / gpu.seconds(lambda: gpu.compute(wanted), 5)
        alone = count * gpu.seconds(lambda: gpu.compute(work), 5)
        times = min(epoch(dataset, work) for _ in range(3)) / alone
    problem = (
        f"An epoch takes {times:.2f} times its computation; {_LONGEST} is expected, as copies run beside it."
        " Check that no other program uses the GPU and the cores."
    )
    return GpuCheck("copies overlap", f"{times:.2f} of the computation", problem * (times > _LONGEST))


def check_batches(gpu: MeasuredGpu, pack: Pack, sizes: Sizes, placement: str, augment: str) -> GpuCheck:
    """Compare the batches of an epoch with those of the CPU."""
    what = _pass(augment, sizes)[0] if augment else None
    images, apart, equal, began = 0, 0.0, True, 0.0
    usual = PackedBatchDataset(pack, sizes.batch, order="rows", augment=augment or None)
    with usual, _dataset(gpu, pack, sizes.batch, placement, augment) as dataset:
        for (found, label), (expected, number) in zip(dataset, usual, strict=True):
            equal &= torch.equal(label.cpu(), number) and (
                what is not None or torch.equal(found.cpu(), expected)
            )
            apart = apart if what is None else max(apart, float(disagreement(what, found.cpu(), expected)))
        began = time.perf_counter()
        for found, _ in dataset:
            images += len(found)
        gpu.wait()
    rate = images / (time.perf_counter() - began)
    name = f"placement={placement!r}, {'augmented' if augment else 'plain'}"
    problem = f"{name}: batches differ from those of the CPU. Please report this table."
    return GpuCheck(name, f"as on the CPU; {rate:,.0f} images/s", problem * (not equal or not apart <= 1))


def check_pass(gpu: MeasuredGpu, sizes: Sizes, name: str, text: str) -> GpuCheck:
    """Compare the implementation of a pass with torch operations."""
    what, pipeline = _pass(text, sizes)
    draws = pipeline.prepare(pipeline.sample(np.arange(sizes.batch)))
    shape = (sizes.batch, sizes.side, sizes.side, 3)
    images = torch.from_numpy(np.random.default_rng(1).integers(0, 256, shape, np.uint8)).to(gpu.device)
    images = images.permute(0, 3, 1, 2)
    found, expected = (
        new_images((sizes.batch, *what.size, what.channels), getattr(torch, what.dtype), gpu.device)
        for _ in range(2)
    )
    run_pass(what, images, draws, found)
    runs = implementation(what, images, found)
    times = [
        gpu.seconds(partial(module.run, what, images, draws, expected), 3) for module in (runs, torch_pass)
    ]
    largest = float((found.float() - expected.float()).abs().max())
    problem = ""
    if not float(disagreement(what, found, expected)) <= 1:
        problem = f"{name}: differs from torch operations by up to {largest:.3g}. Please report this table."
    elif runs is not triton_pass:
        problem = (
            f"{name}: torch operations run it; Triton is expected. The warning of packer.augment says why."
        )
    runner = "Triton" if runs is triton_pass else "torch"
    taken = f"{runner} {times[0] * 1e3:.2f} ms, torch {times[1] * 1e3:.2f} ms"
    return GpuCheck(f"pass: {name}", f"{taken}, difference {largest:.2g}", problem)


def _pass(text: str, sizes: Sizes) -> tuple[Pass, Pipeline]:
    pipeline = Pipeline(text, (3, sizes.side, sizes.side))
    (what,) = pipeline.passes
    return what, pipeline


def check_repetition(gpu: MeasuredGpu, pack: Pack, sizes: Sizes) -> GpuCheck:
    """Load many batches: after the first epochs, neither memory nor the number of kernels grows."""
    batch, done = max(1, sizes.batch // 4), 0
    with _dataset(gpu, pack, batch, augment=PASSES[_AUGMENT].format(side=sizes.side)) as dataset:
        for _ in range(2):
            deque(dataset, maxlen=0)
        before, kernels = gpu.allocated(), gpu.compiled_kernels()
        while done < sizes.batches:
            done += sum(1 for _ in dataset)
        grown, compiled = gpu.allocated() - before, gpu.compiled_kernels() - kernels
    problem = ""
    if grown > _OTHER_BUFFERS * batch * sizes.side**2 * 3:
        problem = f"Memory on the GPU grew by {size(grown)} in {done} batches. Please report this table."
    if compiled:
        problem = (
            f"{compiled} kernels were compiled after the first epoch; none is expected. Please report it."
        )
    found = f"memory grew by {size(max(grown, 0))}, {compiled} kernels compiled"
    return GpuCheck(f"{done:,} batches", found, problem)


def _driver() -> str:
    """Return the version of NVIDIA's driver."""
    try:
        with open("/proc/driver/nvidia/version", encoding="utf-8") as file:
            found = re.search(r"\d+\.\d+(\.\d+)?", file.read())
    except OSError:
        found = None
    return found.group() if found else "unknown"
