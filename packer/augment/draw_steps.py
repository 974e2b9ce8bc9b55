"""RandomApply and RandomChoice, and the flat list of a pipeline's transforms for which it draws."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from packer.augment import kinds, validation
from packer.augment.filters import CustomPart
from packer.augment.validation import Parameter, ParamLayout, Unfit, check_drawn, check_params
from packer.errors import UsageError

EQUAL_SIZES = (
    "RandomResizedCrop(size), Resize((height, width)), LetterBox(size), CenterCrop(size) and "
    "RandomCrop(size, pad_if_needed=True) make them alike"
)

_ANY = 1 << 20
"""Placeholder for the side of images that differ in size: large enough for every transform."""

Transforms: TypeAlias = Parameter[Sequence[kinds.Transform], tuple[kinds.Transform, ...]]


def _listed(value: Any) -> tuple[kinds.Transform, ...]:
    """Return transforms, checked to be allowed inside RandomApply and RandomChoice."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise Unfit("a list of transforms is allowed. Put it in brackets.")
    for each in value:
        if isinstance(kinds.check_transform(each), GatedTransforms | kinds.ScalePart):
            raise Unfit(f"{type(each).__name__} cannot be left out for an image. Put it outside.")
    return tuple(value)


class GatedTransforms(kinds.Transform):
    """A group of size-preserving transforms, each applied to some of the images."""

    transforms: Transforms

    @abstractmethod
    def decide(self, draws: kinds.Draws, number: int) -> NDArray[np.bool_]:
        """Return the rows that get transform `number`: bool [N]."""


@dataclass(eq=False)
class RandomApply(GatedTransforms):
    """Apply all of these transforms to an image, or none, with a decision for each image.

    Otherwise as torchvision.transforms.v2.RandomApply, which decides for a batch.

    transforms: any that preserve the images' size, except ToDtype and Normalize. p: 0 <= p <= 1.
    """

    transforms: Transforms = Parameter(_listed)
    p: validation.Number = Parameter(validation.number, 0.5, 0, 1)

    def decide(self, draws: kinds.Draws, number: int) -> NDArray[np.bool_]:
        return draws.happens("apply", self.p)


def _shares(value: Any) -> tuple[float, ...]:
    """Return the numbers of a sequence, from 0 up."""
    if not isinstance(value, Sequence):
        raise Unfit("a list of numbers, one a transform, is allowed. Pass such.")
    return tuple(validation.number(share, 0, 1e9) for share in value)


@dataclass(eq=False)
class RandomChoice(GatedTransforms):
    """Apply one of these transforms to an image, chosen for each image.

    Otherwise as torchvision.transforms.v2.RandomChoice, which chooses for a batch.

    transforms: as RandomApply's; MixUp and CutMix are allowed. p: their relative probabilities, numbers from
        0 up; equal if None.
    """

    transforms: Transforms = Parameter(_listed)
    p: Any = Parameter(_shares, None)

    def __post_init__(self) -> None:
        count, shares = len(self.transforms), self._shares
        if not count:
            raise UsageError("RandomChoice: there are no transforms; at least one is needed. Pass some.")
        if len(shares) != count or not sum(shares):
            raise UsageError(
                f"RandomChoice: p is {list(shares)} for {count} transforms; "
                "one number each, not all 0, is allowed. Pass as many."
            )

    @property
    def _shares(self) -> tuple[float, ...]:
        return (1.0,) * len(self.transforms) if self.p is None else self.p

    def decide(self, draws: kinds.Draws, number: int) -> NDArray[np.bool_]:
        shares = np.cumsum(self._shares)
        drawn: NDArray[np.bool_] = (
            np.searchsorted(shares / shares[-1], draws.uniform("choice"), "right") == number
        )
        return drawn


class DrawStep(NamedTuple):
    """A transform of a pipeline, or of a RandomApply or RandomChoice in it.

    place: key of its draws: 3 for the fourth transform of the list, "3.0" for the first inside it.
    gate: the group that selects images, its place, and the transform's index in it.
    """

    transform: kinds.Transform
    place: int | str
    gate: tuple[GatedTransforms, int, int] | None

    def output_shape(self, shape: Any) -> Any:
        """Return the shape of the results for images of `shape`. Raises UsageError if it is not supported."""
        name = type(self.transform if self.gate is None else self.gate[0]).__name__
        if isinstance(shape[1], np.ndarray):
            parts = () if _has_apply(self.transform) or self.gate is not None else self.transform.parts()
            if not parts or any(not isinstance(part, kinds.GeometryPart) or part.turns for part in parts):
                raise UsageError(
                    f"{name}: takes images of one size, and these differ in size; {EQUAL_SIZES}. "
                    "Put one of them before it."
                )
            least = (int(side.min(initial=_ANY)) for side in shape[1:])
            self.transform.output_shape((shape[0], *least))  # its error names a single size
        made = self.transform.output_shape(shape)
        if self.gate is not None and made != shape:
            raise UsageError(
                f"{name}: {type(self.transform).__name__} makes images {list(made)} of {list(shape)}; "
                "transforms that keep the size are allowed. Put it outside."
            )
        return made

    def sample(self, draws: kinds.Draws, shape: kinds.Shape) -> dict[str, Tensor]:
        """Draw for the rows of `draws`, with this step's keys: name -> tensor on the CPU."""
        name = type(self.transform).__name__
        params = dict(self.transform.sample(draws.keyed(self.place, name), shape))
        if self.gate is not None:
            gated, place, number = self.gate
            params["apply"] = gated.decide(draws.keyed(place, type(gated).__name__), number)
        return {key: torch.from_numpy(np.ascontiguousarray(drawn)) for key, drawn in params.items()}

    def parts(self, layout: ParamLayout) -> Sequence[kinds.TransformPart]:
        """Return the parts of the transform. layout: shapes and dtypes of its draws."""
        return (CustomPart(self.transform, layout),) if _has_apply(self.transform) else self.transform.parts()


def steps(transforms: Sequence[kinds.Transform]) -> list[DrawStep]:
    """Return the transforms of a pipeline, including those in groups. Raises UsageError for other objects."""
    found = []
    for place, transform in enumerate(transforms):
        if isinstance(transform, GatedTransforms):
            for number, inner in enumerate(transform.transforms):
                found.append(DrawStep(inner, f"{place}.{number}", (transform, place, number)))
        else:
            found.append(DrawStep(kinds.check_transform(transform), place, None))
    for step in found:
        kind = type(step.transform)
        if kind.parts is kinds.Transform.parts and not _has_apply(step.transform):
            raise UsageError(
                f"{kind.__name__}: it has no apply(images, params); "
                "a transform of your own needs one. Add it."
            )
    return found


def _has_apply(transform: kinds.Transform) -> bool:
    return type(transform).apply is not kinds.Transform.apply


class DrawPlan:
    """The draws of a pipeline for images of a given shape.

    steps: its transforms, including those in groups.
    shape: (C, H, W), or (C, None, None) for images that differ in size.
    parts: of all transforms, each with the index of its transform.
    size: (H, W); arrays of placeholder values for images that differ in size.
    """

    steps: Sequence[DrawStep]
    ragged: bool
    parts: list[Any]

    def __init__(self, steps: Sequence[DrawStep], shape: Any) -> None:
        sides = shape[:1] if tuple(shape[1:]) == (None, None) else shape
        if len(shape) != 3 or not all(isinstance(side, int) and side > 0 for side in sides):
            raise UsageError(
                f"Pipeline: shape is {shape!r}; (channels, height, width) is allowed. Pass that of an image."
            )
        self.steps, self.ragged, self._channels = steps, shape[1] is None, shape[0]
        self._shapes = self._shapes_for(*([np.full(2, _ANY)] * 2 if self.ragged else shape[1:]))
        self.size: Any = self._shapes[0][1:]
        self._layouts, self.parts = [], []
        two = kinds.Draws(np.zeros(2, np.int64), 0, 0)
        for number, (step, before) in enumerate(zip(steps, self._shapes, strict=False)):
            check_drawn(type(step.transform).__name__, step.transform.sample(two, before), len(two))
            drawn = step.sample(two, before)
            self._layouts.append({key: (tuple(p.shape[1:]), p.numpy().dtype) for key, p in drawn.items()})
            self.parts += [(part, number) for part in step.parts(self._layouts[-1])]

    def _shapes_for(self, height: Any, width: Any) -> list[Any]:
        """Return the images' shape before each step and after the last. Raises like DrawStep.output_shape."""
        shapes: list[Any] = [(self._channels, height, width)]
        for step in self.steps:
            shapes.append(step.output_shape(shapes[-1]))
        return shapes

    def checked_sizes(self, sizes: Any, count: int) -> NDArray[np.int64]:
        """Return sizes as int64 [N, 2]. Raises UsageError for another type or shape."""
        found = np.asarray(sizes)
        if not self.ragged or found.shape != (count, 2) or found.dtype.kind not in "iu" or (found < 1).any():
            raise UsageError(
                f"Pipeline: sizes are {found.dtype} {list(found.shape)} for {count} images; "
                f"whole numbers [{count}, 2] are needed where images differ in size, and nowhere else. "
                "Pass each image's height and width."
            )
        return found.astype(np.int64)

    def sample(self, draws: kinds.Draws, sizes: Any) -> list[dict[str, Tensor]]:
        """Draw for rows. sizes: [N, 2] for images that differ in size, else None."""
        shapes = self._shapes
        if sizes is not None or self.ragged:
            found = self.checked_sizes(sizes, len(draws))
            if (refused := self.first_refused(found)) is not None:
                raise refused[1]
            shapes = self._shapes_for(*found.T)
        return [step.sample(draws, shape) for step, shape in zip(self.steps, shapes, strict=False)]

    def first_refused(self, sizes: NDArray[np.int64]) -> tuple[int, UsageError] | None:
        """Return the index of the first too small image, and the error; else None. sizes: int64 [N, 2]."""
        try:
            self._shapes_for(*sizes.T)
        except UsageError:
            for number, size in enumerate(sizes.tolist()):
                try:
                    self._shapes_for(*size)
                except UsageError as error:
                    return number, error
        return None

    def checked(self, params: Any, count: int | None) -> tuple[list[dict[str, NDArray[Any]]], int]:
        """Return draws as arrays, and the number of samples. Raises UsageError unless they match `sample`."""
        listed = isinstance(params, Sequence) and all(isinstance(each, Mapping) for each in params)
        if not listed or len(params) != len(self.steps):
            raise UsageError(
                f"Pipeline: params are no list of {len(self.steps)} dictionaries, one a transform. "
                "Pass what sample() returned."
            )
        drawn = [p for each in params for p in each.values()]
        count = count if count is not None else len(drawn[0]) if drawn else 1
        for step, each, layout in zip(self.steps, params, self._layouts, strict=True):
            check_params(type(step.transform).__name__, each, layout, count)
        return [{name: p.numpy() for name, p in each.items()} for each in params], count
