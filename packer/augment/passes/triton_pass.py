"""The implementation of a pass for CUDA: one launch of a Triton kernel (triton_kernels.py) for each batch.

No function synchronises with the device, and only the means of CONTRAST are allocated. Triton compiles a
kernel for each kind of pass and size of result at its first use (about a second), and caches it on disk.
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
from packer.augment.passes.pass_spec import DTYPES, Pass

_LOG = logging.getLogger("packer.augment")
_DTYPES = {name: getattr(torch, name) for name in DTYPES}
_LARGEST = 2**31
"""Limit of the numbers of an image, exclusive: offsets within an image are 32 bits wide."""


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
    """Return True if the kernels support the pass, and Triton is installed and did not fail to compile it."""
    return (
        ((images.is_cuda and out.is_cuda) or _interprets())
        and not what.ragged  # the CPU threads that read ragged images bring them to one size
        and images.dtype in _DTYPES.values()
        and out.dtype is _DTYPES.get(what.dtype)
        and what.in_loops
        and images.shape[1] == what.channels
        and _pixels_last(images)
        and _pixels_last(out)
        and out.is_contiguous(memory_format=torch.channels_last)
        and _kernels() is not None
        and not (_failed and (what, images.dtype) in _failed)
    )


def run(what: Pass, images: Tensor, columns: Tensor, rows: Tensor | None, out: Tensor) -> None:
    """Enqueue a pass on the current stream; arguments as of run_pass (pass_stages.py).

    columns: the row stride may be larger than P.
    A pass that Triton cannot compile here is run by torch operations, with a warning the first time.
    """
    if not len(out):
        return
    if not can(what, images, out):
        torch_pass.run(what, images, columns, rows, out)
        return
    plan = _plan(what, images.dtype, rows is not None)
    try:
        _launch(plan, images, columns, rows, out)
    except Exception as error:  # any error of Triton's compiler, ptxas, the C compiler or the driver
        if plan.launched or isinstance(error, torch.cuda.OutOfMemoryError):
            raise
        _failed.add((what, images.dtype))
        _LOG.warning(
            "augment: Triton did not compile a pass (%s: %s); torch operations run it, which is slower.",
            type(error).__name__,
            error,
        )
        torch_pass.run(what, images, columns, rows, out)
    else:
        plan.launched = True


_failed: set[tuple[Pass, torch.dtype]] = set()


@functools.cache
def _kernels() -> ModuleType | None:
    try:
        from packer.augment.passes import triton_kernels
    except ImportError as error:
        _LOG.info("augment: Triton is not available (%s); torch operations run passes on CUDA.", error)
        return None
    return triton_kernels


def _interprets() -> bool:
    """Return True if Triton interprets kernels on the CPU (TRITON_INTERPRET=1 at its import)."""
    kernels = _kernels()
    return kernels is not None and type(kernels.flat).__name__ == "InterpretedFunction"


def _pixels_last(images: Tensor) -> bool:
    """Return True if each image is contiguous and channels-last; images may have any distance."""
    _, channels, height, width = images.shape
    _, between_channels, between_rows, between_pixels = images.stride()
    return (
        (channels == 1 or between_channels == 1)
        and (width == 1 or between_pixels == channels)
        and (height == 1 or between_rows == channels * width)
        and channels * height * width < _LARGEST
    )


def is_flat(what: Pass) -> bool:
    """Return True if each number of the result depends on one number of the source."""
    return not what.weighted and not what.steps


class _Kernel:
    """A Triton function with its constants, launched with little overhead.

    At each launch Triton looks up the compiled kernel by types, alignments and constants, which takes longer
    than everything else here. If all pointers are multiples of 16 and strides fit 32 bits, `launch` calls the
    kernel compiled for the first such launch directly.
    """

    def __init__(self, function: Any, constants: dict[str, Any], direct: bool) -> None:
        self.function, self.constants, self._direct = function, constants, direct
        self._values = [constants[name] for name in function.arg_names if name in constants]
        self._ready: dict[int, Any] = {}

    def launch(self, programs: int, tensors: tuple[Tensor, ...], numbers: tuple[Any, ...]) -> None:
        """Enqueue the kernel. tensors, numbers: the function's first arguments, in order."""
        device = tensors[0].get_device()
        usual = numbers[0] < _LARGEST and not any(tensor.data_ptr() & 15 for tensor in tensors)
        if usual and device in self._ready:
            self._ready[device][programs, 1, 1](*tensors, *numbers, *self._values)
            return
        compiled = self.function[programs, 1, 1](*tensors, *numbers, **self.constants)
        if usual and self._direct and compiled is not None:  # the interpreter compiles nothing
            self._ready[device] = compiled


@dataclass
class _LaunchPlan:
    """The constant part of all launches of a pass on images of a dtype, with or without rows.

    programs: Triton programs for each sample. numbers: fill, scale, shift and box_fill, four numbers each.
    means: the kernel for the means of CONTRAST, or None. launched: True after the first successful launch.
    """

    what: Pass
    kernel: _Kernel
    programs: int
    numbers: tuple[tuple[float, ...], ...]
    means: _Kernel | None
    launched: bool = False


@functools.lru_cache(maxsize=1024)
def _plan(what: Pass, dtype: torch.dtype, rows: bool) -> _LaunchPlan:
    kernels = _kernels()
    assert kernels is not None
    (height, width), shape = what.size, launch_shape(what)
    # The compiled kernel depends on the form of a pass, and takes these numbers as arguments.
    scale: tuple[float, ...] | None = () if what.scaled else None
    limit = what.limit if what.sampling == "cubic" else 0.0
    form = replace(what, limit=limit, fill=(), box_fill=(), scale=scale, shift=scale)
    constants = {"WHAT": form, "ROWS": rows, "num_stages": 1}
    if is_flat(what):
        programs = -(-width * what.channels // shape.across) * -(-height // (shape.down * shape.loops))
    else:
        programs = -(-height * width // (shape.across * shape.loops))
    means = None
    if what.contrast and what.steps:
        means = _Kernel(kernels.means, constants | {"num_warps": 8}, kernels.DIRECT)
    constants |= {"SHAPE": shape, "num_warps": shape.warps}
    kernel = _Kernel(kernels.flat if is_flat(what) else kernels.pixels, constants, kernels.DIRECT)
    return _LaunchPlan(what, kernel, programs, what.colours, means)


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


def _launch(plan: _LaunchPlan, images: Tensor, columns: Tensor, rows: Tensor | None, out: Tensor) -> None:
    if images.is_cuda and images.device.index != torch.cuda.current_device():
        with torch.cuda.device(images.device):
            _launch(plan, images, columns, rows, out)
        return
    if columns.stride(1) != 1:
        columns = columns.contiguous()
    count, what = out.shape[0], plan.what
    strides = images.stride(0), images.stride(2), columns.stride(0)
    rows = columns if rows is None else rows
    if is_flat(what):
        plan.kernel.launch(count * plan.programs, (out, images, columns, rows), (*strides, *plan.numbers))
        return
    means = columns
    if plan.means is not None:
        means = torch.empty((count, what.steps), dtype=torch.float32, device=images.device)
        plan.means.launch(
            count, (means, images, columns, rows), (*strides, float(what.limit), plan.numbers[0])
        )
    numbers = (*strides, float(what.limit), *plan.numbers)
    plan.kernel.launch(count * plan.programs, (out, images, columns, rows, means), numbers)
