"""Stages of a pipeline: parts of transforms joined to as few stages as keep their meaning, most of them one pass.

A pass takes any number of geometric parts, then colours, then scales and boxes to erase. What would come out
differently in one pass than one after the other begins a new stage, but for differences that are meant: positions are
composed, so pixels are interpolated once and not once an operation; colours are not rounded between operations; a second
turn sees again what a first one moved beyond the edges, and a resize after a turn may read beyond its crop; padding that is
shrunk meets the picture in a straight ramp. docs/augmentation.md lists them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from packer.augment import passes
from packer.augment.affine_placement import AffinePlacement
from packer.augment.passes import pass_spec
from packer.augment.passes.pass_spec import Pass
from packer.augment.transform import (
    ColorPart,
    Columns,
    ErasePart,
    GeometryPart,
    MixPart,
    Params,
    ScalePart,
    TransformPart,
    WholeImagePart,
)
from packer.errors import UsageError


class PreparedDraws:
    """The numbers that stages need, one row a sample; slices are batches of fewer samples.

    host: float32 [N, P].
    """

    def __init__(self, host: Tensor) -> None:
        self.host = host
        self._device: Tensor | None = None

    def __len__(self) -> int:
        return len(self.host)

    def __getitem__(self, samples: slice) -> PreparedDraws:
        part = PreparedDraws(self.host[samples])
        if self._device is not None:
            part._device = self._device[samples]
        return part

    def on(self, device: torch.device) -> Tensor:
        """Return the same on a device; copied there once, on the current stream, without waiting.

        Slices that are made afterwards share that copy, and are to be used on the same stream.
        """
        if device.type == "cpu":
            return self.host
        if self._device is None or self._device.device != device:
            host = self.host.pin_memory() if device.type == "cuda" else self.host
            self._device = host.to(device, non_blocking=True)
        return self._device


Draws = Sequence[Params]
"""What each transform of a pipeline drew."""


@dataclass(frozen=True)
class StagedPart:
    """A part of a transform. transform: its number in the pipeline, and so in the draws."""

    part: TransformPart
    transform: int


@dataclass(frozen=True)
class PixelFormat:
    """The size, channels and type of images between two stages. limit: their largest value, None after Normalize."""

    channels: int
    size: tuple[int, int]
    dtype: torch.dtype
    limit: float | None


class PassStage:
    """A pass over images, put together part by part: `take` until it returns False, then `end`."""

    def __init__(self, source: PixelFormat) -> None:
        self.source = source
        self.result = source
        self._geometry: list[tuple[StagedPart, GeometryPart]] = []
        self._colours: list[tuple[StagedPart, ColorPart]] = []
        self._scales: list[ScalePart] = []
        self._erasers: list[tuple[StagedPart, ErasePart]] = []
        self._scale: tuple[tuple[float, ...], tuple[float, ...]] | None = None
        self._fill: tuple[float, ...] = ()
        self._box_fill: tuple[float, ...] = ()
        self._masks: dict[tuple[int, tuple[float, ...]], Pass] = {}
        self.what = Pass(source.channels, source.size)

    @property
    def empty(self) -> bool:
        """True if no part was taken yet."""
        return not (self._geometry or self._colours or self._scales or self._erasers)

    @property
    def width(self) -> int:
        """Columns a sample."""
        return self.what.width

    @property
    def moves(self) -> bool:
        """True if it has geometry, which masks, boxes and points follow."""
        return bool(self._geometry)

    def take(self, entry: StagedPart) -> bool:
        """Take one more part if that keeps the meaning; False if a new stage must begin."""
        part = entry.part
        if isinstance(part, GeometryPart):
            return self._take_geometry(entry, part)
        if isinstance(part, ColorPart):
            return self._take_colour(entry, part)
        if isinstance(part, ScalePart):
            self._take_scale(part)
            return True
        if isinstance(part, ErasePart):
            return self._take_erase(entry, part)
        return False

    def end(self) -> None:
        """Fix what the pass is."""
        geometry = [part for _, part in self._geometry]
        looking = [part for part in geometry if part.outside is not None]
        outside = looking[0].outside if looking else None
        scale, shift = self._scale or (None, None)
        self.what = Pass(
            channels=self.source.channels,
            size=self.result.size,
            sampling=self._sampling(),
            outside=outside or "fill",
            framed=outside == "fill",
            fill=self._fill,
            steps=sum(part.steps for _, part in self._colours),
            contrast=any(part.contrast for _, part in self._colours),
            limit=self.source.limit or 1.0,
            scale=scale,
            shift=shift,
            boxes=sum(part.boxes for _, part in self._erasers),
            box_fill=self._box_fill,
            noise=any(part.value is None for _, part in self._erasers),
            dtype=str(self.result.dtype).removeprefix("torch."),
        )

    def columns(self, draws: Draws, count: int) -> Columns:
        """Return the numbers that each sample needs: float32 [count, width]."""
        placement = AffinePlacement(count, self.source.size)
        for entry, part in self._geometry:
            params = draws[entry.transform]
            before = placement.copy() if "apply" in params else None
            part.place(placement, params)
            if before is not None:
                placement.restore(~params["apply"], before)
        pieces = [placement.columns()]
        for entry, colour in self._colours:
            params = draws[entry.transform]
            steps = colour.colour(params, count, self.what.limit)
            pieces.append(_applied(steps, params).reshape(count, pass_spec.STEP_WIDTH * colour.steps))
        for entry, eraser in self._erasers:
            params = draws[entry.transform]
            boxes = eraser.erase(params, self.result.size)
            pieces.append(_applied(boxes, params).reshape(count, pass_spec.BOX_WIDTH * eraser.boxes))
        return np.concatenate(pieces, axis=1) if len(pieces) > 1 else pieces[0]

    def run(
        self,
        images: Tensor,
        columns: Tensor,
        rows: Tensor | None = None,
        out: Tensor | None = None,
        implementation: str = "auto",
    ) -> Tensor:
        """Make the results; see passes.run."""
        return passes.run(self.what, images, columns, rows, out, implementation)

    def run_masks(
        self, masks: Tensor, columns: Tensor, fill: tuple[float, ...], implementation: str
    ) -> Tensor:
        """Move masks uint8 [N, K, H, W] as the images: [N, K, h, w]. fill: K numbers."""
        key = masks.shape[1], fill
        if key not in self._masks:
            self._masks[key] = Pass(
                channels=masks.shape[1],
                size=self.result.size,
                sampling="shift" if self.what.sampling == "shift" else "nearest",
                outside=self.what.outside,
                framed=self.what.framed,
                fill=fill,
                dtype="uint8",
            )
        return passes.run(
            self._masks[key], masks, columns[:, : pass_spec.STEPS_AT], None, None, implementation
        )

    def _take_geometry(self, entry: StagedPart, part: GeometryPart) -> bool:
        if self._colours or self._scales or self._erasers:
            return False
        mine = [p for _, p in self._geometry]
        samplings = {p.sampling for p in (*mine, part)} - {"shift"}
        resizes = [p for p in (*mine, part) if p.antialias is not None]
        looking = [p for p in mine if p.outside is not None]
        if len(samplings) > 1 or len(resizes) > 1:
            return False
        if looking and looking[0].outside != "fill" and part.sampling != "shift":
            return False
        if part.outside in ("edge", "reflect") and (looking or any(p.sampling != "shift" for p in mine)):
            return False
        if part.outside == "fill" and looking:
            if looking[0].outside != "fill" or looking[0].fill != part.fill:
                return False
            if any(p.turns for p in mine) and not part.turns:
                return False
        if part.outside == "fill":
            self._fill = self._colour(part.name, part.fill)
        channels, height, width = part.check((self.source.channels, *self.result.size))
        self._geometry.append((entry, part))
        self.result = replace(self.result, channels=channels, size=(height, width))
        return True

    def _take_colour(self, entry: StagedPart, part: ColorPart) -> bool:
        if self.result.limit is None:
            raise UsageError(
                f"{part.name}: the images are normalised already; values from 0 to 1, or uint8, are allowed. "
                "Put it before Normalize."
            )
        if self._scales or self._erasers:
            return False
        part.check((self.source.channels, *self.result.size))
        part.accept(self.result.limit)
        self._colours.append((entry, part))
        return True

    def _take_scale(self, part: ScalePart) -> None:
        channels = self.source.channels
        part.check((channels, *self.result.size))
        scale, shift, limit = part.scale(self.result.limit, channels)
        before = self._scale or ((1.0,) * channels, (0.0,) * channels)
        self._scale = (
            tuple(new * old for new, old in zip(scale, before[0], strict=True)),
            tuple(new * old + s for new, old, s in zip(scale, before[1], shift, strict=True)),
        )
        self._box_fill = tuple(v * f + s for v, f, s in zip(self._box_fill, scale, shift, strict=False))
        self._scales.append(part)
        self.result = replace(self.result, dtype=part.dtype or self.result.dtype, limit=limit)

    def _take_erase(self, entry: StagedPart, part: ErasePart) -> bool:
        if part.value is None:
            if self.result.limit is not None:
                raise UsageError(
                    f"{part.name}: value is 'random', draws of N(0, 1), and the images are not normalised yet; "
                    "that is allowed after Normalize. Put it there, or pass a number."
                )
            fill: tuple[float, ...] = ()
        else:
            fill = self._colour(part.name, part.value, "value")
        if self._erasers and (self._box_fill != fill or (part.value is None) != self.noisy):
            return False
        part.check((self.source.channels, *self.result.size))
        self._box_fill = fill
        self._erasers.append((entry, part))
        return True

    @property
    def noisy(self) -> bool:
        """True if boxes are filled with noise."""
        return any(part.value is None for _, part in self._erasers)

    def _sampling(self) -> pass_spec.Sampling:
        for _, part in self._geometry:
            if part.sampling != "shift":
                return part.sampling
        return "shift"

    def _colour(self, name: str, value: Any, what: str = "fill") -> tuple[float, ...]:
        """Return one number a channel."""
        channels, limit = self.source.channels, self.result.limit
        numbers = (value,) * channels if isinstance(value, int | float) else tuple(value)
        if len(numbers) != channels:
            raise UsageError(
                f"{name}: {what} has {len(numbers)} numbers and the images {channels} channels; one number, or one a "
                "channel, is allowed. Pass as many as there are channels."
            )
        if limit is not None and not all(0 <= number <= limit for number in numbers):
            raise UsageError(
                f"{name}: {what} is {value!r} and the images' values are 0 to {limit:g}; those are allowed. "
                "Pass it in the images' own scale."
            )
        return tuple(float(number) for number in numbers)


class WholeImageStage:
    """An operation on the images as tensors, between passes."""

    moves = False

    def __init__(self, source: PixelFormat, entry: StagedPart, part: WholeImagePart) -> None:
        part.check((source.channels, *source.size))
        if part.bytes_only and source.dtype != torch.uint8:
            raise UsageError(
                f"{part.name}: the images are {source.dtype}; torch.uint8 is allowed. Put it before ToDtype and Normalize."
            )
        self.source = self.result = source
        self._entry, self.part = entry, part

    @property
    def width(self) -> int:
        """Columns a sample."""
        return self.part.width

    def columns(self, draws: Draws, count: int) -> Columns:
        """Return the numbers that each sample needs: float32 [count, width]."""
        params = draws[self._entry.transform]
        return _applied(self.part.columns(params, count), params)

    def run(self, images: Tensor, columns: Tensor, known: NDArray[np.float32]) -> Tensor:
        """Return the changed images."""
        return self.part.apply(images, columns, known)


class MixStage:
    """An operation that combines images of a batch, and their labels."""

    moves = False

    def __init__(self, source: PixelFormat, entry: StagedPart, part: MixPart) -> None:
        part.check((source.channels, *source.size))
        self.source = self.result = source
        self._entry, self.part = entry, part

    @property
    def width(self) -> int:
        """Columns a sample."""
        return self.part.width

    def columns(self, draws: Draws, count: int) -> Columns:
        """Return the numbers that each sample needs: float32 [count, width]."""
        params = draws[self._entry.transform]
        return _applied(self.part.columns(params, count, self.source.size), params)


Stage = PassStage | WholeImageStage | MixStage


def staged(entries: Sequence[StagedPart], source: PixelFormat) -> list[Stage]:
    """Put parts into stages. Raises UsageError if one cannot take the images it would get."""
    stages: list[Stage] = []
    current = PassStage(source)

    def close() -> None:
        if not current.empty:
            current.end()
            stages.append(current)

    for entry in entries:
        part = entry.part
        if isinstance(part, WholeImagePart | MixPart):
            close()
            before = stages[-1].result if stages else source
            stages.append(
                WholeImageStage(before, entry, part)
                if isinstance(part, WholeImagePart)
                else MixStage(before, entry, part)
            )
            current = PassStage(before)
        elif not current.take(entry):
            close()
            current = PassStage(current.result)
            if not current.take(entry):
                raise AssertionError(f"{part.name}: no pass takes it")
    close()
    return stages


def _applied(columns: Columns, params: Params) -> Columns:
    """Zeros, which change nothing, where RandomApply decided so."""
    if "apply" in params:
        columns = columns.copy()
        columns[~params["apply"]] = 0
    return columns
