"""The implementation of a pass for CUDA: one launch of a Triton kernel (triton_kernels.py) for each batch.

Triton compiles a kernel for each kind of pass and size of result at its first use (about a second), and
caches it on disk. The first batch of a pass is compared with torch operations on some of its rows, which
synchronises with the device once. Nothing else does, and only the means of CONTRAST are allocated.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from packer.augment.passes import torch_pass
from packer.augment.passes.pass_agreement import disagreement, revealing_rows
from packer.augment.passes.pass_spec import DTYPES, Pass
from packer.augment.passes.prepared_draws import PreparedDraws

_LOG = logging.getLogger("packer.augment")
_DTYPES = {name: getattr(torch, name) for name in DTYPES}
_LARGEST = 2**31
"""Limit of the numbers of an image, exclusive: offsets within an image are 32 bits wide."""
_ALIGNED = 16
"""Bytes to which results are aligned, so that a kernel is compiled once."""


@dataclass(frozen=True)
class LaunchShape:
    """The division of a pass among Triton programs.

    across, down: size of a block, powers of 2: numbers of a line and lines (kernel `flat`), or consecutive
        pixels and 1 (kernel `pixels`).
    loops: blocks of a program. warps: of 32 threads, of a program.
    """

    across: int
    down: int
    loops: int
    warps: int


def can(what: Pass, images: Tensor, out: Tensor) -> bool:
    """Return True if the kernels support the pass, and Triton is installed and did not fail."""
    return (
        ((images.is_cuda and out.is_cuda) or _interprets())
        and not what.ragged  # the CPU threads that read ragged images bring them to one size
        and images.dtype in _DTYPES.values()
        and out.dtype is _DTYPES.get(what.dtype)
        and what.in_loops
        and images.shape[1] == what.channels
        and max(images.shape[1:].numel(), out.shape[1:].numel()) < _LARGEST
        and _kernels() is not None
        and _agreed.get((what, images.dtype, images.device), True)
    )


_agreed: dict[tuple[Pass, torch.dtype, torch.device], bool] = {}
"""Passes whose first batch was compared with torch operations: True if they agreed."""


def run(what: Pass, images: Tensor, draws: PreparedDraws, out: Tensor) -> None:
    """Enqueue a pass on the current stream; arguments as of run_pass (pass_stages.py).

    A pass that Triton cannot compile here, or computes differently from torch operations, is run by these,
    with a warning the first time.
    """
    kind, problem = (what, images.dtype, images.device), ""
    if not can(what, images, out):
        torch_pass.run(what, images, draws, out)
        return
    if kind in _agreed:
        _launch(what, images, draws, out)
        return
    try:
        _launch(what, images, draws, out)
        if not _agrees(what, images, draws, out):
            problem = "its result differs from that of torch operations"
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:  # any error of Triton's compiler, ptxas, the C compiler or the driver
        problem = f"{type(error).__name__}: {error}"
    _agreed[kind] = not problem
    if problem:
        _warn(f"augment: Triton failed at a pass ({problem}); torch operations run it, which is slower.")
        torch_pass.run(what, images, draws, out)


def _agrees(what: Pass, images: Tensor, draws: PreparedDraws, out: Tensor) -> bool:
    """Return True if some rows of a result are those of torch operations. It waits for the device."""
    apart = []
    for row in revealing_rows(what, draws.host):  # one at a time takes little memory
        one = slice(row, row + 1)
        expected = torch.empty_like(out[one])
        torch_pass.run(what, images[one], draws[one], expected)
        apart.append(disagreement(what, out[one], expected))
    return bool(torch.stack(apart).amax() <= 1)


@functools.cache
def _warn(text: str) -> None:
    """Warn, once for each text."""
    _LOG.warning(text)


@functools.cache
def _kernels() -> ModuleType | None:
    try:
        import triton

        from packer.augment.passes import triton_kernels
    except ImportError as error:
        problem = str(error)
    else:
        if hasattr(triton, "knobs"):  # older ones have no tuples of numbers
            return triton_kernels
        problem = f"{triton.__version__} is installed, and 3.4 or newer is needed"
    _warn(f"augment: Triton is not available ({problem}); torch operations run passes, which is slower.")
    return None


def _interprets() -> bool:
    """Return True if Triton interprets kernels on the CPU (TRITON_INTERPRET=1 at its import)."""
    kernels = _kernels()
    return kernels is not None and type(kernels.flat).__name__ == "InterpretedFunction"


def is_flat(what: Pass) -> bool:
    """Return True if each number of the result depends on one number of the source."""
    return not what.weighted and not what.steps


@dataclass(frozen=True)
class _LaunchPlan:
    """The constant part of all launches of a pass.

    kernel: `flat` or `pixels`, with its constants. programs: Triton programs for each sample.
    numbers: fill, scale, shift and box_fill, four numbers each.
    means: the kernel for the means of CONTRAST, and mean_constants; None without such steps.
    """

    kernel: Any
    constants: dict[str, Any]
    programs: int
    numbers: tuple[tuple[float, ...], ...]
    means: Any
    mean_constants: dict[str, Any]


@functools.lru_cache(maxsize=1024)
def _plan(what: Pass) -> _LaunchPlan:
    kernels = _kernels()
    assert kernels is not None
    (height, width), shape = what.size, launch_shape(what)
    # The compiled kernel depends on the form of a pass, and takes these numbers as arguments.
    scale: tuple[float, ...] | None = () if what.scaled else None
    limit = what.limit if what.sampling == "cubic" else 0.0
    form = replace(what, limit=limit, fill=(), box_fill=(), scale=scale, shift=scale)
    if is_flat(what):
        programs = -(-width * what.channels // shape.across) * -(-height // (shape.down * shape.loops))
    else:
        programs = -(-height * width // (shape.across * shape.loops))
    constants = {"WHAT": form, "num_stages": 1}
    means, mean_constants = (
        kernels.means if what.contrast and what.steps else None,
        constants | {"num_warps": 8},
    )
    constants |= {"SHAPE": shape, "num_warps": shape.warps}
    kernel = kernels.flat if is_flat(what) else kernels.pixels
    return _LaunchPlan(kernel, constants, programs, what.colours, means, mean_constants)


def launch_shape(what: Pass) -> LaunchShape:
    """Return the launch shape that was fastest over typical passes."""
    if not is_flat(what):
        return LaunchShape(across=512 if what.steps else 256, down=1, loops=4, warps=4)
    height, line = what.size[0], what.size[1] * what.channels
    warps = 4 if height * line >= 1 << 14 else 2
    across = next(n for n in (256, 128, 64, 32) if -(-line // n) * n <= 1.06 * line or n == 32)
    down = 256 * warps // across  # 8 numbers a thread: 16 bytes of a 16-bit result
    blocks = -(-height // down)
    return LaunchShape(across, down, loops=-(-blocks // max(1, round(blocks / 8))), warps=warps)


def _launch(what: Pass, images: Tensor, draws: PreparedDraws, out: Tensor) -> None:
    if images.is_cuda and images.device.index != torch.cuda.current_device():
        with torch.cuda.device(images.device):
            _launch(what, images, draws, out)
        return
    plan, columns, count = _plan(what), draws.on(images.device), len(out)
    images = images.contiguous(memory_format=torch.channels_last)
    fit = out.is_contiguous(memory_format=torch.channels_last) and out.data_ptr() % _ALIGNED == 0
    result = out if fit else torch.empty_like(out, memory_format=torch.channels_last)
    strides = images.stride(0), images.stride(2), columns.stride(0)
    launch = plan.kernel[(count * plan.programs,)]
    if is_flat(what):
        launch(result, images, columns, *strides, *plan.numbers, **plan.constants)
    else:
        means, limit = columns, float(what.limit)
        if plan.means is not None:
            means = torch.empty((count, what.steps), dtype=torch.float32, device=images.device)
            average = plan.means[(count,)]
            average(means, images, columns, *strides, limit, plan.numbers[0], **plan.mean_constants)
        launch(result, images, columns, means, *strides, limit, *plan.numbers, **plan.constants)
    if result is not out:
        out.copy_(result)
