"""The implementation of a pass in C (native/augment.c), for the CPU, on several threads.

Microseconds an image on one core of a shared Xeon with AVX-512, 256 px to 224 px, with a flip, normalised to
float32, best of 15 batches of 256 (filling as many bytes took 103): crop 51, resized crop 110, resized crop
with four colour steps and an erased box 343, rotation 410. 32 px: crop with padding 1.4.
"""

from __future__ import annotations

import math
import struct
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import lru_cache, partial
from itertools import pairwise

import torch
from torch import Tensor

from packer import native
from packer.augment.passes.pass_spec import DTYPES, OUTSIDES, SAMPLINGS, Pass
from packer.augment.passes.prepared_draws import PreparedDraws
from packer.starting import ForkSafeThreads

_SOURCES = (torch.uint8, torch.float32)
_MOST_STEPS = 64
_MOST_PIXELS = 2**31 - 1  # of an image: the C code uses 32-bit offsets
_MOST_SIDE = 2**24  # float32 represents every whole number up to here exactly

# From this size of the result's memory on, stores bypass the caches; smaller results are read again from the
# caches.
PAST_BYTES = 16 << 20
# Least bytes of a result for each thread: writing fewer takes no longer than handing them to a thread.
THREAD_WORK = 4 << 20


def can(what: Pass, images: Tensor, out: Tensor) -> bool:
    """Return True if the C extension is compiled and supports the pass (uint8, float32; CPU)."""
    sides = images.shape[2:]
    return (
        native.COMPILED
        and images.device.type == out.device.type == "cpu"
        and images.dtype in _SOURCES
        and what.dtype in DTYPES
        and out.dtype == getattr(torch, what.dtype)
        and what.in_loops
        and 0 <= what.steps <= _MOST_STEPS
        and 1 <= min(what.size) <= max(what.size) <= _MOST_SIDE
        and (what.ragged or 1 <= min(sides) <= max(sides) <= _MOST_SIDE)
        and math.prod(sides) <= _MOST_PIXELS
    )


def run(what: Pass, images: Tensor, draws: PreparedDraws, out: Tensor) -> None:
    """Run a pass for which `can` returns True; arguments as of run_pass (pass_stages.py).

    Raises ValueError if shapes or dtypes do not match, or columns of a ragged pass point outside the memory.
    """
    columns, count = draws.host, len(draws)
    sourced = images.ndim == 2 and images.is_contiguous() if what.ragged else len(images) == count
    if (
        not (sourced and can(what, images, out) and columns.dtype == torch.float32)
        or images.shape[1] not in ((3, 4) if what.wider else (what.channels,))
        or columns.shape != (count, what.width)
        or out.shape != (count, what.channels, *what.size)
    ):
        given = {"images": images, "columns": columns, "out": out}
        found = ", ".join(f"{name} {p.dtype} {list(p.shape)}" for name, p in given.items())
        raise ValueError(f"a pass: {found} do not match, or the C extension does not support them: {what}.")
    if not count:
        return
    source, height, width = images, len(images), 1
    if not what.ragged:
        source, height, width = images.permute(0, 2, 3, 1).contiguous(), images.shape[2], images.shape[3]
    pixels, columns = out.permute(0, 2, 3, 1), columns.contiguous()
    result = pixels if pixels.is_contiguous() else pixels.new_empty(pixels.shape)
    past = int(result.untyped_storage().nbytes() >= PAST_BYTES)
    make = partial(
        native.loops.augment,
        _packed(what, str(source.dtype).removeprefix("torch."), images.shape[1]),
        source.data_ptr(),
        height,
        width,
        columns.data_ptr(),
        result.data_ptr(),
    )
    # Measured at 32 and 224 px: a weighted byte costs as much as two copied ones, and so does a colour step.
    work = result.nbytes * (1 + what.weighted + 2 * what.steps)
    threads = max(1, min(torch.get_num_threads(), count, work // THREAD_WORK))
    if threads == 1:
        make(0, count, past)
    else:
        # Samples take different times: more parts than threads balance the load.
        parts = min(count, 4 * threads)
        bounds = [count * part // parts for part in range(parts + 1)]
        _share(threads, lambda begin, end: make(begin, end, past), [*pairwise(bounds)])
    if result is not pixels:
        pixels.copy_(result)


def _share(threads: int, make: Callable[[int, int], None], bounds: Sequence[tuple[int, int]]) -> None:
    """Run all parts on this thread and on pool threads."""
    parts = deque(bounds)  # an iterator that threads share may repeat a part in free-threaded Python

    def work() -> None:
        while True:
            try:
                begin, end = parts.popleft()
            except IndexError:
                return
            make(begin, end)

    pool, others = _threads(torch.get_num_threads()), list[Future[None]]()
    try:
        others.extend(pool.submit(work) for _ in range(threads - 1))
        work()
    finally:
        parts.clear()
        wait(others)  # the memory must stay allocated while a part runs
    for other in others:
        other.result()


_threads = lru_cache(maxsize=1)(ForkSafeThreads)


@lru_cache(maxsize=64)
def _packed(what: Pass, dtype: str, pixel: int) -> bytes:
    """Return the C struct What of augment_loops.h. dtype: of the source. pixel: numbers of a source pixel."""
    words = [SAMPLINGS.index(what.sampling), OUTSIDES.index(what.outside)]
    words += [what.framed, what.steps, what.contrast, what.scaled, what.boxes, what.noise]
    words += [DTYPES.index(what.dtype), DTYPES.index(dtype), *what.strides, what.ragged, pixel]
    numbers = [number for colour in what.colours for number in colour]
    return struct.pack("17i17f", what.channels, *what.size, *words, what.limit, *numbers)
