"""A pass on the CPU, in C (native/augment.c), on several threads.

Measured on one core of a Xeon with AVX-512, shared with others, best of 15 batches of 256 images of 256 px, to 224 px, with a
flip, normalised to float32 (of 103 us that filling as many bytes took): crop 51 us an image, resized crop 110 us, resized
crop with four colour steps and a box erased 343 us, rotation 410 us. 32 px: crop with padding 1.4 us.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import lru_cache, partial
from itertools import pairwise

import torch
from torch import Tensor

from packer import native
from packer.augment.passes.pass_spec import DTYPES, OUTSIDES, SAMPLINGS, Pass
from packer.starting import ForkSafeThreads

_SOURCES = (torch.uint8, torch.float32)
_MOST_STEPS = 64
_MOST_PIXELS = 2**31 - 1  # of an image: C counts them in 32 bits
_MOST_SIDE = 2**24  # float32 holds every whole number up to here

# Of the memory that a result is a part of, from which it is stored past the caches; smaller ones are read again from there.
PAST_BYTES = 16 << 20
# Bytes of a result that a thread copies at least: less takes about as long as handing it over.
THREAD_WORK = 4 << 20


def can(what: Pass, images: Tensor, out: Tensor) -> bool:
    """Return True if the loops in C were compiled and take such images: uint8 or float32, on the CPU."""
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


def run(what: Pass, images: Tensor, columns: Tensor, rows: Tensor | None, out: Tensor) -> None:
    """Fill out, as run_pass (pass_stages.py) says, for what `can` takes.

    Raises: ValueError if shapes or dtypes do not go together, or columns of a ragged pass lead outside the memory; IndexError if
        rows lead outside the images.
    """
    count = len(columns)
    if rows is not None:
        sourced = not what.ragged and rows.shape == (count,) and rows.dtype == torch.int64
    else:
        sourced = images.ndim == 2 and images.is_contiguous() if what.ragged else len(images) == count
    if (
        not (sourced and can(what, images, out) and columns.dtype == torch.float32)
        or images.shape[1] not in ((3, 4) if what.wider else (what.channels,))
        or columns.shape != (count, what.width)
        or out.shape != (count, what.channels, *what.size)
    ):
        given = {"images": images, "columns": columns, "rows": rows, "out": out}
        found = ", ".join(f"{name} {p.dtype} {list(p.shape)}" for name, p in given.items() if p is not None)
        raise ValueError(f"a pass: {found} do not go together, or the loops do not take such: {what}.")
    if not count:
        return
    if rows is not None:
        first, last = (int(end) for end in rows.aminmax())
        if first < 0 or last >= len(images):
            raise IndexError(
                f"a pass: rows are {first} to {last}; 0 to {len(images) - 1} are allowed. Pass rows of these images."
            )
        rows = rows.contiguous()
    source, height, width = images, len(images), 1
    if not what.ragged:
        source, height, width = images.permute(0, 2, 3, 1), images.shape[2], images.shape[3]
        if rows is not None and not source.is_contiguous():  # not all of a field laid out anew for a few rows
            source, rows = source.index_select(0, rows), None
        source = source.contiguous()
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
        0 if rows is None else rows.data_ptr(),
        result.data_ptr(),
    )
    # Measured of 32 and of 224 px: a weighted byte takes as long as two copied ones, and so does a colour step.
    work = result.nbytes * (1 + what.weighted + 2 * what.steps)
    threads = max(1, min(torch.get_num_threads(), count, work // THREAD_WORK))
    if threads == 1:
        make(0, count, past)
    else:
        # Samples differ in how long they take: more parts than threads even that out.
        parts = min(count, 4 * threads)
        bounds = [count * part // parts for part in range(parts + 1)]
        _share(threads, lambda begin, end: make(begin, end, past), [*pairwise(bounds)])
    if result is not pixels:
        pixels.copy_(result)


def _share(threads: int, make: Callable[[int, int], None], bounds: Sequence[tuple[int, int]]) -> None:
    """Do all parts on this thread and others."""
    parts = iter(bounds)  # of a list, so several threads may take the next one

    def work() -> None:
        for begin, end in parts:
            make(begin, end)

    pool, others = _threads(torch.get_num_threads()), list[Future[None]]()
    try:
        others.extend(pool.submit(work) for _ in range(threads - 1))
        work()
    finally:
        for _ in parts:
            pass
        wait(others)  # nobody may free the memory while a part is at work
    for other in others:
        other.result()


_threads = lru_cache(maxsize=1)(ForkSafeThreads)


@lru_cache(maxsize=64)
def _packed(what: Pass, dtype: str, pixel: int) -> bytes:
    """Pack what augment_loops.h reads as What. dtype: of the source. pixel: numbers of a source's pixel."""
    words = [SAMPLINGS.index(what.sampling), OUTSIDES.index(what.outside)]
    words += [what.framed, what.steps, what.contrast, what.scaled, what.boxes, what.noise]
    words += [DTYPES.index(what.dtype), DTYPES.index(dtype), *what.strides, what.ragged, pixel]
    numbers = [number for colour in what.colours for number in colour]
    return struct.pack("17i17f", what.channels, *what.size, *words, what.limit, *numbers)
