"""Stages of a pipeline: parts of transforms, combined to as few stages as possible, most of them a pass.

A pass takes any number of geometric parts, then colours, then scales and erased boxes. A part starts a new
stage if its result in the same pass would differ from that of separate passes. Intended differences, listed
in docs/augmentation.md, are exempt: positions are composed, so pixels are interpolated once for all
operations; colours are not rounded between operations; a second rotation sees again what the first moved
beyond the edges; a resize after a rotation may read beyond its crop; shrunk padding meets the picture in a
linear ramp.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from packer import native
from packer.augment import kinds
from packer.augment.kinds import Sizes
from packer.augment.mixing import MixPart
from packer.augment.passes import native_pass, pass_spec, torch_pass
from packer.augment.passes.pass_spec import MOST_CHANNELS, Pass
from packer.augment.passes.prepared_draws import PreparedDraws
from packer.augment.placement import AffinePlacement
from packer.errors import UsageError
from packer.starting import ForkSafeLock

# Bytes of images that a CPU takes through several stages at a time: intermediate results then stay in the
# cache, and in mapped memory (a new allocation of more than 32 MB costs a page fault every 4 KiB).
CPU_STAGE_BYTES = 4 << 20


class PassStage:
    """A pass over images, built part by part: call `take` until it returns False.

    source, result: formats of the images before and after it. what: the pass so far.
    at: its columns among those of the pipeline.
    moves: True if it has geometry, which also applies to masks, boxes and points.
    moves_only: True to take geometry only, so that results keep the images' dtype.
    """

    at: slice

    at, moves = slice(0), False
    mixing: MixPart | None = None

    def __init__(self, source: kinds.PixelFormat, moves_only: bool = False) -> None:
        self.source = self.result = source
        self.what = self._moving = Pass(
            channels=source.channels,
            size=source.size,
            limit=source.limit or 1.0,
            dtype=str(source.dtype).removeprefix("torch."),
            ragged=isinstance(source.size[0], np.ndarray),
        )
        self._moves_only = moves_only
        self._geometry: list[tuple[kinds.GeometryPart, int]] = []
        self._drawn: list[tuple[kinds.ColorPart | kinds.ErasePart, int]] = []

    @property
    def width(self) -> int:
        """Number of columns of a sample."""
        return self.what.width

    @property
    def reducible(self) -> bool:
        """True if it resizes with antialiasing, so that images may be stored reduced (see placement.py)."""
        return any(part.antialias for part, _ in self._geometry) and self.what.sampling == "linear"

    @property
    def wider(self) -> bool:
        """True if ragged images of 3 channels may be stored as [P, 4]: `Pass.wider`, and no part turns."""
        return self.what.wider and not any(part.turns for part, _ in self._geometry)

    def take(self, part: kinds.TransformPart, transform: int) -> bool:
        """Add a part to the pass; return False, without adding it, if it must start a new stage.

        transform: number of its transform in the pipeline.
        """
        if isinstance(part, kinds.GeometryPart):
            return self._take_geometry(part, transform)
        if self._moves_only:
            return False
        part.output_shape(self.result.shape)
        if isinstance(part, kinds.ScalePart):
            return self._take_scale(part)
        assert isinstance(part, kinds.ColorPart | kinds.ErasePart)
        taken = self._take_colour(part) if isinstance(part, kinds.ColorPart) else self._take_erase(part)
        if taken:
            self._drawn.append((part, transform))
        return taken

    def columns(self, draws: Sequence[kinds.Params], count: int, sizes: Sizes | None = None) -> kinds.Columns:
        """Return the columns of each sample: float32 [count, width]. draws: those of each transform.

        sizes: int64 [count, 2], (h, w) of each image of a ragged pass, whose source columns are left 0 (see
            `placed`).
        """
        sides = sizes.T if sizes is not None and self.what.ragged else self.source.size
        placement = AffinePlacement(count, (sides[0], sides[1]))
        for part, transform in self._geometry:
            part.place_some(placement, draws[transform])
        pieces = [placement.columns()]
        pixels = replace(self.source, size=self.result.size)
        pieces += [part.gated_columns(draws[number], count, pixels) for part, number in self._drawn]
        if self.what.ragged:
            pieces.append(np.zeros((count, pass_spec.SOURCE_WIDTH), np.float32))
        return np.concatenate(pieces, axis=1) if len(pieces) > 1 else pieces[0]

    def run(self, images: Tensor, draws: PreparedDraws, out: Tensor | None) -> Tensor:
        """Return the results of the pass. draws: this stage's columns; out: as in run_pass."""
        return run_pass(self.what, images, draws, out)

    def run_masks(self, masks: Tensor, draws: PreparedDraws, fill: tuple[float, ...]) -> Tensor:
        """Run the geometry of the pass on masks: [N, K, h, w].

        masks: [N, K, H, W], or [P, K] for a ragged pass: uint8 takes the nearest pixel, float32 (soft maps)
            is sampled like the images. fill: K numbers.
        """
        soft, numbers = masks.dtype == torch.float32, draws[:, slice(pass_spec.STEPS_AT)]
        if self.what.ragged:
            numbers = PreparedDraws(torch.cat([numbers.host, draws.host[:, self.what.source_at :]], dim=1))
        what = replace(
            self._moving,
            channels=masks.shape[1],
            sampling=self.what.sampling if soft or self.what.sampling == "shift" else "nearest",
            fill=fill,
            limit=1.0 if soft else 255.0,
            dtype="float32" if soft else "uint8",
        )
        return run_pass(what, masks, numbers)

    def _take_geometry(self, part: kinds.GeometryPart, transform: int) -> bool:
        what, mine = self.what, [p for p, _ in self._geometry]
        looking = next((p for p in mine if p.outside is not None), None)
        resampled = what.sampling != "shift"
        if (
            self._drawn
            or what.scaled
            or (resampled and part.sampling not in ("shift", what.sampling))
            or (part.antialias is not None and any(p.antialias is not None for p in mine))
            or (looking and looking.outside != "constant" and part.sampling != "shift")
            or (part.outside not in ("constant", None) and (looking or resampled))
        ):
            return False
        if part.outside == "constant" and looking:
            if (looking.outside, looking.fill) != ("constant", part.fill):
                return False
            if any(p.turns for p in mine) and not part.turns:
                return False
        if part.sampling != "shift":
            what = replace(what, sampling=part.sampling)
        if part.outside == "constant":
            what = replace(what, framed=True, fill=_colour(part.name, part.fill, self.result))
        elif part.outside is not None:
            what = replace(what, outside=part.outside)
        self._geometry.append((part, transform))
        self.moves = True
        size = part.output_shape(self.result.shape)[1:]
        self.what = self._moving = replace(what, size=size)
        self.result = replace(self.result, size=size)
        return True

    def _take_colour(self, part: kinds.ColorPart) -> bool:
        part.accept(self.result)
        if self.what.scaled or self.what.boxes:
            return False
        steps = self.what.steps + part.width // pass_spec.STEP_WIDTH
        self.what = replace(self.what, steps=steps, contrast=self.what.contrast or part.needs_means)
        return True

    def _take_scale(self, part: kinds.ScalePart) -> bool:
        channels = self.source.channels
        scale, shift, limit = part.factors(self.result.limit, channels)
        before = self.what.scale or (1.0,) * channels, self.what.shift or (0.0,) * channels
        self.result = replace(self.result, dtype=part.dtype or self.result.dtype, limit=limit)
        self.what = replace(
            self.what,
            scale=tuple(new * old for new, old in zip(scale, before[0], strict=True)),
            shift=tuple(new * old + s for new, old, s in zip(scale, before[1], shift, strict=True)),
            box_fill=tuple(v * f + s for v, f, s in zip(self.what.box_fill, scale, shift, strict=False)),
            dtype=str(self.result.dtype).removeprefix("torch."),
        )
        return True

    def _take_erase(self, part: kinds.ErasePart) -> bool:
        noise = part.value is None
        if noise and self.result.limit is not None:
            raise UsageError(
                f"{part.name}: value is 'random', draws of N(0, 1), and the images are not normalised yet; "
                "that is allowed after Normalize. Put it there, or pass a number."
            )
        fill = () if noise else _colour(part.name, part.value, self.result, "value")
        if self.what.boxes and (self.what.box_fill, self.what.noise) != (fill, noise):
            return False
        self.what = replace(self.what, boxes=self.what.boxes + 1, box_fill=fill, noise=noise)
        return True


def _colour(name: str, value: Any, pixels: kinds.PixelFormat, what: str = "fill") -> tuple[float, ...]:
    """Return a number for each channel. Raises UsageError if it is out of the range of this format."""
    numbers = (value,) * pixels.channels if isinstance(value, int | float) else tuple(value)
    if len(numbers) != pixels.channels:
        raise UsageError(
            f"{name}: {what} has {len(numbers)} numbers and the images {pixels.channels} channels; "
            "one number, or one a channel, is allowed. Pass as many as there are channels."
        )
    if pixels.limit is not None and not all(0 <= number <= pixels.limit for number in numbers):
        raise UsageError(
            f"{name}: {what} is {value!r} and the images' values are 0 to {pixels.limit:g}; "
            "those are allowed. Pass it in the images' own scale."
        )
    return tuple(float(number) for number in numbers)


class PartStage:
    """An operation on image tensors between passes: on each image, or on a batch and its labels.

    source, result, at: as of PassStage. mixing: the part if it combines images, else None.
    """

    at: slice
    moves: bool
    width: int

    at, moves = slice(0), False

    def __init__(self, source: kinds.PixelFormat, part: kinds.WholeImagePart, transform: int) -> None:
        part.accept(source)
        self.source = self.result = source
        self.part, self._transform, self.width = part, transform, part.width
        self.mixing: MixPart | None = part if isinstance(part, MixPart) else None

    def columns(self, draws: Sequence[kinds.Params], count: int, sizes: Sizes | None = None) -> kinds.Columns:
        """Return the columns of each sample: float32 [count, width]."""
        return self.part.gated_columns(draws[self._transform], count, self.source)

    def run(self, images: Tensor, draws: PreparedDraws, out: Tensor | None) -> Tensor:
        """Return the changed images; `out` is unused, and mixing may overwrite `images`."""
        with exact(images.device.type):
            return self.part.change(images, draws.on(images.device), draws.host.numpy())


_switching = ForkSafeLock()


@contextmanager
def exact(device: str) -> Iterator[None]:
    """Compute in float32, whatever torch's autocast and its precision of matrix products are set to.

    device: type of the tensors' device. Passes need no such switch: they have no operation that these change.
    """
    with ExitStack() as stack:
        if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
            stack.enter_context(torch.autocast(device, enabled=False))
        get, put, full = _product_precision(device)
        if get() not in full:
            stack.enter_context(_switching)
            before = get()
            put(full[0])
            stack.callback(put, before)
        yield


def _product_precision(device: str) -> tuple[Callable[[], str], Callable[[str], None], tuple[str, ...]]:
    """Return functions that get and set the precision of matrix products, and the names of full float32."""
    backend: Any = torch.backends.cuda if device == "cuda" else torch.backends.mkldnn
    matmul: Any = getattr(backend, "matmul", None)
    if hasattr(matmul, "fp32_precision"):  # torch 2.9; its older functions fail where both are used
        put = partial(setattr, matmul, "fp32_precision")
        return lambda: matmul.fp32_precision, put, ("ieee", "none")
    return torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, ("highest",)


Stage = PassStage | PartStage


def staged(
    parts: Sequence[tuple[kinds.TransformPart, int]], source: kinds.PixelFormat, moves_first: bool = False
) -> list[Stage]:
    """Combine parts, each with the number of its transform in the pipeline, to stages.

    moves_first: True if the first stage takes geometry only.
    Raises UsageError if a part does not support the images that reach it.
    """
    stages: list[Stage] = []
    for part, transform in parts:
        last, result = (stages[-1], stages[-1].result) if stages else (None, source)
        if isinstance(part, kinds.WholeImagePart):
            stages.append(PartStage(result, part, transform))
        elif not (isinstance(last, PassStage) and last.take(part, transform)):
            stages.append(new := PassStage(result, moves_first and not stages))
            if not new.take(part, transform):
                raise AssertionError(f"{part.name}: no pass takes it")
    at = 0
    for stage in stages:
        stage.at = slice(at, at := at + stage.width)
    return stages


def run_stages(stages: Sequence[Stage], images: Tensor, draws: PreparedDraws, out: Tensor | None) -> Tensor:
    """Run stages on images. draws: of all stages of the pipeline. out: as in run_pass.

    A CPU takes a few images at a time through several stages, unless a stage mixes images.
    """
    count, step = len(draws), len(draws)
    if images.device.type == "cpu" and len(stages) > 1 and not any(stage.mixing for stage in stages):
        step = max(1, CPU_STAGE_BYTES // max(1, images[:1].nbytes))
    if step < count:
        if out is None:
            result = stages[-1].result
            out = new_images((count, *result.size, result.channels), result.dtype, images.device)
        for start in range(0, count, step):
            part = slice(start, start + step)
            run_stages(stages, images[part], draws[part], out[part])
        return out
    draws.on(images.device)  # one copy for all stages
    for stage in stages:
        last = out if stage is stages[-1] else None
        images = stage.run(images, draws[:, stage.at], last)
    if out is not None and images is not out:
        out.copy_(images)
        return out
    return images


def run_pass(what: Pass, images: Tensor, draws: PreparedDraws, out: Tensor | None = None) -> Tensor:
    """Run a pass by the fastest implementation that supports it.

    images: [N, C, H, W], or [P, C] for a ragged pass; uint8, uint16 or floating point, best with
        channels_last strides; not modified.
    draws: the columns of the pass; values are not checked.
    out: [N, C, h, w] of the pass's dtype, channels_last, same device; allocated if None.
    Returns out.
    """
    if out is None:
        out = new_images((len(draws), *what.size, what.channels), getattr(torch, what.dtype), images.device)
    many = what.channels > MOST_CHANNELS and not what.noise
    if len(draws) and (torch.uint16 in (images.dtype, out.dtype) or many):
        _run_deep(what, images, draws, out)
    elif len(draws):
        implementation(what, images, out).run(what, images, draws, out)
    return out


def _run_deep(what: Pass, images: Tensor, draws: PreparedDraws, out: Tensor) -> None:
    """Run a pass on 16-bit images, as float32, or on more than four channels, four at a time.

    Channels are independent, except in noise. A CPU takes a few images at a time, which stay in its caches.
    """
    count = channels = max(len(out), what.channels)
    if images.device.type == "cpu" and not what.ragged:
        count = max(1, CPU_STAGE_BYTES // images[:1].nbytes)
    if not what.noise:
        channels = MOST_CHANNELS
    for start in range(0, len(out), count):
        part = slice(start, start + count)
        pixels = images if what.ragged else images[part]
        pixels = pixels.float() if pixels.dtype == torch.uint16 else pixels
        for first in range(0, what.channels, channels):
            some = slice(first, first + channels)
            form = replace(
                what,
                channels=min(channels, what.channels - first),
                fill=what.fill[some],
                scale=what.scale and what.scale[some],
                shift=what.shift and what.shift[some],
                box_fill=what.box_fill[some],
                dtype="float32" if what.dtype == "uint16" else what.dtype,
            )
            source = pixels[:, some].movedim(1, -1).contiguous().movedim(-1, 1)  # channels_last
            made = run_pass(form, source, draws[part])
            out[part, some] = made.clamp_(0, 65_535).add_(0.5) if out.dtype == torch.uint16 else made


def new_images(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Allocate images [N, C, h, w], channels_last, uninitialised. shape: (N, h, w, C).

    On the CPU the memory comes from NumPy, which requests huge pages: a pass into it takes half as long as
    into memory of torch.
    """
    if device.type == "cpu" and 0 not in shape:  # strides of empty NumPy arrays are 0
        memory = torch.from_numpy(np.empty(math.prod(shape) * dtype.itemsize, np.uint8))
        return memory.view(dtype).view(shape).permute(0, 3, 1, 2)
    return torch.empty(shape, dtype=dtype, device=device).permute(0, 3, 1, 2)


def implementation(what: Pass, images: Tensor, out: Tensor) -> ModuleType:
    """Return the module with the fastest implementation of a pass here: in C, Triton or torch operations."""
    if images.device.type == "cuda":
        from packer.augment.passes import triton_pass  # imports Triton, only if there is a GPU

        if triton_pass.can(what, images, out):
            return triton_pass
    if images.device.type == "cpu":
        if native_pass.can(what, images, out):
            return native_pass
        if not native.COMPILED:
            native.warn("augment")
    return torch_pass
