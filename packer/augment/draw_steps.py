"""A list of transforms taken apart: what is drawn, in which place, for which images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from packer.augment.containers import GatedTransforms
from packer.augment.filters import changed
from packer.augment.random_draws import Draws
from packer.augment.transform import Columns, Params, Shape, Transform, TransformPart, WholeImagePart
from packer.errors import UsageError

ParamLayout = Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
"""Name of a draw -> its shape but for the first dimension, and its dtype."""


class CustomPart(WholeImagePart):
    """transform: that has `apply`. layout: of its draws.

    The first column says whether an image is changed at all: RandomApply makes it 0.
    """

    def __init__(self, transform: Transform, layout: ParamLayout) -> None:
        self._transform = transform
        self._layout = {name: kept for name, kept in layout.items() if name != "apply"}
        self.width = 1 + sum(math.prod(shape) for shape, _ in self._layout.values())

    @property
    def name(self) -> str:
        """The operation's class."""
        return type(self._transform).__name__

    def columns(self, params: Params, count: int) -> Columns:
        """Return all draws side by side; raises UsageError for numbers that float32 does not hold."""
        pieces = [np.ones((count, 1), np.float32)]
        for name, (shape, dtype) in self._layout.items():
            drawn = np.asarray(params[name])
            if np.issubdtype(dtype, np.integer) and drawn.size and np.abs(drawn).max() > 1 << 24:
                raise UsageError(
                    f"{self.name}: {name} holds {np.abs(drawn).max():,}; whole numbers up to 2**24 are allowed. "
                    "Draw smaller ones."
                )
            pieces.append(_rounded_in(drawn.reshape(count, math.prod(shape))))
        return np.concatenate(pieces, axis=1)

    def apply(self, images: Tensor, columns: Tensor, known: Columns) -> Tensor:
        """Return the result of the user's `apply`; raises UsageError if its shape or dtype is another."""
        chosen = known[:, 0] != 0
        if chosen.all():
            return self._made(images, columns)

        def change(pixels: Tensor, mine: Tensor, _: Columns) -> Tensor:
            return self._made(pixels.permute(0, 3, 1, 2), mine).permute(0, 2, 3, 1)

        return changed(images, columns, known, [(chosen, change)])

    def _made(self, images: Tensor, columns: Tensor) -> Tensor:
        params, at = {}, 1
        for name, (shape, dtype) in self._layout.items():
            width = math.prod(shape)
            like = torch.from_numpy(np.empty(0, dtype)).dtype
            params[name] = columns[:, at : at + width].reshape(len(columns), *shape).to(like)
            at += width
        tracked = not images.is_inference()
        version = images._version if tracked else 0
        made: Any = self._transform.apply(images, params)
        if tracked and images._version != version:
            raise UsageError(f"{self.name}: apply changed the images that it was given. Return new ones.")
        if not isinstance(made, Tensor) or made.shape != images.shape or made.dtype != images.dtype:
            found = f"{made.dtype} {list(made.shape)}" if isinstance(made, Tensor) else type(made).__name__
            raise UsageError(
                f"{self.name}: apply returned {found} for {images.dtype} {list(images.shape)}; the same shape and dtype "
                "are allowed. Return those."
            )
        return made


def _rounded_in(drawn: NDArray[Any]) -> Columns:
    """Return float32, rounded towards zero: a fraction below 1 must not become 1."""
    with np.errstate(over="ignore"):
        near = drawn.astype(np.float32)
    further = np.abs(near.astype(np.float64)) > np.abs(drawn.astype(np.float64))
    near[further] = np.nextafter(near[further], np.float32(0))
    return near


class DrawStep(NamedTuple):
    """A transform of a pipeline, or of a RandomApply or RandomChoice in it.

    place: keys its draws: 3 is the fourth of the list, "3.0" the first within it. gate: what decides for which images, and
    its own place and the transform's number in it.
    """

    transform: Transform
    place: int | str
    gate: tuple[GatedTransforms, int, int] | None

    def sample(self, rows: NDArray[np.int64], seed: int, epoch: int, shape: Shape) -> dict[str, Tensor]:
        """Draw for rows, int64 [N]: tensors on the CPU."""
        name = type(self.transform).__name__
        params = dict(self.transform.sample(Draws(rows, seed, epoch, self.place, name), shape))
        if "apply" in params:
            raise UsageError(
                f"{name}: sample draws 'apply', which is RandomApply's name. Choose another one."
            )
        if self.gate is not None:
            gated, place, number = self.gate
            params["apply"] = gated.decide(Draws(rows, seed, epoch, place, type(gated).__name__), number)
        return {key: torch.from_numpy(np.ascontiguousarray(drawn)) for key, drawn in params.items()}

    def layout(self, shape: Shape) -> ParamLayout:
        """Return the shapes and dtypes of the draws for images of a shape. Raises UsageError unless they have an entry a row."""
        rows, name = np.zeros(2, np.int64), type(self.transform).__name__
        drawn = self.transform.sample(Draws(rows, 0, 0, self.place, name), shape)
        if not isinstance(drawn, Mapping):
            raise UsageError(
                f"{name}: sample returned {type(drawn).__name__}; a dictionary of arrays is allowed. Return one."
            )
        for key, p in drawn.items():
            if (
                not isinstance(p, np.ndarray)
                or p.ndim == 0
                or len(p) != len(rows)
                or p.dtype.kind not in "biuf"
            ):
                found = f"{p.dtype} {list(p.shape)}" if isinstance(p, np.ndarray) else f"a {type(p).__name__}"
                raise UsageError(
                    f"{name}: sample drew {key}, {found}, for {len(rows)} rows; a NumPy array of numbers, an entry a row, is "
                    "allowed. Return such."
                )
        return {
            key: (tuple(p.shape[1:]), p.numpy().dtype) for key, p in self.sample(rows, 0, 0, shape).items()
        }

    def parts(self, layout: ParamLayout) -> Sequence[TransformPart]:
        """Return the parts of the transform."""
        return (CustomPart(self.transform, layout),) if _has_apply(self.transform) else self.transform.parts()

    def check(self, params: Mapping[str, Any], layout: ParamLayout, count: int) -> None:
        """Raise UsageError unless params, perhaps changed by hand, are such as it draws, for so many samples."""
        name = type(self.transform).__name__
        if set(params) != set(layout):
            raise UsageError(
                f"{name}: the params are {_named(params)}; {_named(layout)} are allowed. Pass what sample() returned, in order."
            )
        for key, (shape, dtype) in layout.items():
            p = params[key]
            if not isinstance(p, Tensor):
                raise UsageError(
                    f"{name}: {key} is a {type(p).__name__}; a tensor on the CPU is allowed. Pass such."
                )
            if p.device.type != "cpu" or p.ndim == 0 or p.dtype == torch.bfloat16 or p.requires_grad:
                raise UsageError(
                    f"{name}: {key} is {p.dtype} {list(p.shape)} on {p.device}{', with gradients' * p.requires_grad}; a plain "
                    "tensor on the CPU, an entry an image, is allowed. Pass such."
                )
            if len(p) != count:
                raise UsageError(
                    f"{name}: {key} was drawn for {len(p)} rows and there are {count} images; one draw an image is "
                    "allowed. Sample the batch's rows."
                )
            wanted = torch.from_numpy(np.empty(0, dtype)).dtype
            if tuple(p.shape[1:]) != shape or _kind(p.dtype) != _kind(wanted):
                raise UsageError(
                    f"{name}: {key} is {p.dtype} {list(p.shape)}; {wanted} {[count, *shape]} is allowed. Keep its type."
                )


def steps(transforms: Sequence[Transform]) -> list[DrawStep]:
    """Return the transforms of a pipeline, those within others too. Raises UsageError for what is none."""
    found = []
    for place, transform in enumerate(transforms):
        if isinstance(transform, GatedTransforms):
            for number, inner in enumerate(transform.transforms):
                found.append(DrawStep(_checked(inner), f"{place}.{number}", (transform, place, number)))
        else:
            found.append(DrawStep(_checked(transform), place, None))
    return found


def _checked(transform: Any) -> Transform:
    if isinstance(transform, type) and issubclass(transform, Transform):
        raise UsageError(
            f"Pipeline: {transform.__name__} is a class; transforms are allowed. Write {transform.__name__}(...)."
        )
    if not isinstance(transform, Transform):
        raise UsageError(
            f"Pipeline: {transform!r} is no transform; those of packer.augment are allowed, and classes derived "
            "from its Transform. Pass such."
        )
    kind = type(transform)
    if kind.parts is Transform.parts and not _has_apply(transform):
        raise UsageError(
            f"{kind.__name__}: it has no apply(images, params); a transform of your own needs one. Add it."
        )
    return transform


def _has_apply(transform: Transform) -> bool:
    return type(transform).apply is not Transform.apply


def _kind(dtype: torch.dtype) -> str:
    return "truth" if dtype == torch.bool else "fraction" if dtype.is_floating_point else "whole"


def _named(names: Mapping[str, Any]) -> str:
    return ", ".join(names) or "none"
