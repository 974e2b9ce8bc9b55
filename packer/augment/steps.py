"""A list of transforms taken apart: what is drawn, in which place, for which images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from packer.augment.apply import Gated
from packer.augment.custom import Custom, Layout
from packer.augment.draws import Draws
from packer.augment.transform import Part, Shape, Transform
from packer.errors import UsageError


class Step(NamedTuple):
    """A transform of a pipeline, or of a RandomApply or RandomChoice in it.

    place: keys its draws: 3 is the fourth of the list, "3.0" the first within it. gate: what decides for which images, and
    its own place and the transform's number in it.
    """

    transform: Transform
    place: int | str
    gate: tuple[Gated, int, int] | None

    def sample(self, rows: NDArray[np.int64], seed: int, epoch: int, shape: Shape) -> dict[str, Tensor]:
        """What is drawn for rows, int64 [N]: tensors on the CPU."""
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

    def layout(self, shape: Shape) -> Layout:
        """Of what it draws for images of this shape. Raises UsageError for draws that are no arrays with an entry a row."""
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

    def parts(self, layout: Layout) -> Sequence[Part]:
        """What the transform consists of."""
        return (Custom(self.transform, layout),) if _has_apply(self.transform) else self.transform.parts()

    def check(self, params: Mapping[str, Any], layout: Layout, count: int) -> None:
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


def steps(transforms: Sequence[Transform]) -> list[Step]:
    """The transforms of a pipeline, those within others too. Raises UsageError for what is none."""
    found = []
    for place, transform in enumerate(transforms):
        if isinstance(transform, Gated):
            for number, inner in enumerate(transform.transforms):
                found.append(Step(_checked(inner), f"{place}.{number}", (transform, place, number)))
        else:
            found.append(Step(_checked(transform), place, None))
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
