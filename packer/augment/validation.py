"""Parameters of transforms, and checks of draws and images; each error names the transform."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from packer.arguments import as_whole
from packer.errors import UsageError
from packer.sentence import Option

ParamLayout = Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
"""Name of a draw -> its shape but for the first dimension, and its dtype."""

Given = TypeVar("Given")
Kept = TypeVar("Kept")


class Parameter(Generic[Given, Kept]):
    """A parameter of a transform: a dataclass field whose value is checked when it is set, and kept as the check returns it.

    check: called with the transform's name, the parameter's, the value, and `bounds`; None is not checked if it is the default.
    """

    def __init__(self, check: Callable[..., Kept], default: Any = MISSING, *bounds: Any) -> None:
        self._check, self._default, self._bounds = check, default, bounds

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, transform: object | None, owner: type) -> Kept:
        if transform is not None:
            kept: Kept = transform.__dict__[self._name]
        elif self._default is MISSING:
            raise AttributeError(self._name)  # so the dataclass takes it for a parameter without a default
        else:
            kept = self._default
        return kept

    def __set__(self, transform: object, value: Given) -> None:
        kept: Any = value
        if value is not None or self._default is not None:
            kept = self._check(type(transform).__name__, self._name, value, *self._bounds)
        transform.__dict__[self._name] = kept


Number: TypeAlias = Parameter[float, float]
Whole: TypeAlias = Parameter[int, int]
Flag: TypeAlias = Parameter[bool, bool]
Word: TypeAlias = Parameter[str, str]
Sides: TypeAlias = Parameter[int | Sequence[int], tuple[int, int]]
Margins: TypeAlias = Parameter[int | Sequence[int], tuple[int, int, int, int]]
Interval: TypeAlias = Parameter[Sequence[float], tuple[float, float]]
Around: TypeAlias = Parameter[float | Sequence[float], tuple[float, float]]
OptionalAround: TypeAlias = Parameter[float | Sequence[float] | None, tuple[float, float] | None]
Colour: TypeAlias = Parameter[float | Sequence[float], float | tuple[float, ...]]
OptionalWhole: TypeAlias = Parameter[int | None, int | None]
OptionalMargins: TypeAlias = Parameter[int | Sequence[int] | None, tuple[int, int, int, int] | None]
OptionalPair: TypeAlias = Parameter[Sequence[float] | None, tuple[float, float] | None]


def whole(name: str, what: str, value: Any, least: int | None, most: int | None = None) -> int:
    """Return a whole number within bounds; another one is an error that names the operation."""
    number = as_whole(value, least, most)
    if number is None:
        bounds = "" if least is None else f" from {least} up" if most is None else f" from {least} to {most}"
        raise UsageError(f"{name}: {what} is {value!r}; whole numbers{bounds} are allowed. Pass one of them.")
    return number


def _listed(value: Any) -> list[Any]:
    """Return the elements of a sequence, or a value alone."""
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]


def sides(name: str, what: str, value: Any) -> tuple[int, int]:
    """(height, width): both from one whole number, or two of them."""
    many = [as_whole(v, 1) for v in _listed(value)]
    if len(many) not in (1, 2) or None in many:
        raise UsageError(
            f"{name}: {what} is {value!r}; a whole number from 1 up, or two (height, width), are allowed. "
            "Pass the side in pixels."
        )
    return many[0] or 1, many[-1] or 1


def margins(name: str, what: str, value: Any) -> tuple[int, int, int, int]:
    """(left, top, right, bottom): all from one whole number, from (left and right, top and bottom), or given."""
    many = [as_whole(v, 0) for v in _listed(value)]
    if len(many) not in (1, 2, 4) or None in many:
        raise UsageError(
            f"{name}: {what} is {value!r}; one, two or four whole numbers from 0 up are allowed. "
            "Pass (left, top, right, bottom)."
        )
    left, top, right, bottom = [v or 0 for v in many] * (4 // len(many))
    return left, top, right, bottom


def pair(
    name: str, what: str, value: Any, least: float = -math.inf, most: float = math.inf
) -> tuple[float, float]:
    """(across, down), both within bounds."""
    given = _listed(value)
    if len(given) != 2 or not all(is_number(v) and least <= v <= most for v in given):
        raise UsageError(
            f"{name}: {what} is {value!r}; two numbers (across, down){_bounds(least, most)} are allowed. Pass those."
        )
    return float(given[0]), float(given[1])


def check_padding(name: str, padding: tuple[Any, Any, Any, Any], mode: str, height: Any, width: Any) -> None:
    """Raise UsageError if images of this size, or of these, cannot be mirrored so far."""
    left, top, right, bottom = padding
    if mode == "reflect" and np.any((np.maximum(top, bottom) >= height) | (np.maximum(left, right) >= width)):
        raise UsageError(
            f"{name}: padding is {padding} and the images are {height}x{width}; reflect allows less than their height and "
            "width. Pad less, or with padding_mode='edge'."
        )


def interval(
    name: str, what: str, value: Any, least: float = -math.inf, most: float = math.inf
) -> tuple[float, float]:
    """(low, high), low <= high, both within bounds."""
    given = _listed(value)
    if len(given) != 2 or not all(is_number(v) and least <= v <= most for v in given) or given[0] > given[1]:
        raise UsageError(
            f"{name}: {what} is {value!r}; two numbers (low, high){_bounds(least, most)} are allowed. "
            "Pass those, the smaller first."
        )
    return float(given[0]), float(given[1])


def around(
    name: str, what: str, value: Any, middle: float, least: float = -math.inf, most: float = math.inf
) -> tuple[float, float]:
    """(low, high): given, or middle - value to middle + value, cut at `least`, as torchvision's ColorJitter has it."""
    if is_number(value) and 0 <= value <= most - middle:
        return max(middle - float(value), least), middle + float(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return interval(name, what, value, least, most)
    raise UsageError(
        f"{name}: {what} is {value!r}; a number{_bounds(0, most - middle)}, or two (low, high){_bounds(least, most)}, is "
        "allowed. Pass how far it may go."
    )


def one_of(name: str, what: str, value: Any, allowed: Iterable[str]) -> str:
    """Return one of these words; torchvision's InterpolationMode and the like count by their value."""
    word = getattr(value, "value", value)
    if not isinstance(word, str) or word not in allowed:
        words = ", ".join(map(repr, allowed))
        raise UsageError(f"{name}: {what} is {value!r}; {words} are allowed. Pass one of them.")
    return word


def flag(name: str, what: str, value: Any) -> bool:
    """True or False, and nothing that only counts as one."""
    if not isinstance(value, bool):
        raise UsageError(f"{name}: {what} is {value!r}; True and False are allowed. Pass one of them.")
    return value


def colour(name: str, what: str, value: Any) -> float | tuple[float, ...]:
    """Return one number, or one a channel; None, torchvision's default for `fill`, is 0."""
    if value is None:
        return 0.0
    if is_number(value):
        return float(value)
    if (
        not isinstance(value, Sequence)
        or isinstance(value, str)
        or not value
        or not all(is_number(v) for v in value)
    ):
        raise UsageError(f"{name}: {what} is {value!r}; a number, or one a channel, is allowed. Pass such.")
    return tuple(float(v) for v in value)


def number(name: str, what: str, value: Any, least: float = -math.inf, most: float = math.inf) -> float:
    """Return a finite number within bounds."""
    if not is_number(value) or not least <= value <= most:
        raise UsageError(
            f"{name}: {what} is {value!r}; numbers{_bounds(least, most)} are allowed. Pass one of them."
        )
    return float(value)


def _bounds(least: float, most: float) -> str:
    if math.isinf(least) and math.isinf(most):
        return ""
    if math.isinf(most):
        return f" from {least:g} up"
    return f" from {least:g} to {most:g}"


def is_number(value: Any) -> bool:
    """Return True if it is a finite number, NumPy's too, but no truth value."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    return math.isfinite(value)


def check_channels(name: str, shape: tuple[int, int, int]) -> None:
    """Raise UsageError unless images of this (C, H, W) have 1, 3 or 4 channels, the fourth being alpha."""
    if shape[0] not in (1, 3, 4):
        raise UsageError(
            f"{name}: the images have {shape[0]} channels; 1, 3 and 4 are allowed. Convert with "
            f"{Option('channels')} gray, rgb or rgba."
        )


def described(value: Any) -> str:
    """Return the dtype and shape of a tensor, the type of anything else."""
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


def check_drawn(name: str, drawn: Any, count: int) -> None:
    """Raise UsageError unless these are draws for so many rows: a dictionary of NumPy arrays, an entry a row."""
    if not isinstance(drawn, Mapping):
        raise UsageError(
            f"{name}: sample returned {type(drawn).__name__}; a dictionary of arrays is allowed. Return one."
        )
    for key, p in drawn.items():
        if not isinstance(p, np.ndarray) or p.ndim == 0 or len(p) != count or p.dtype.kind not in "biuf":
            found = f"{p.dtype} {list(p.shape)}" if isinstance(p, np.ndarray) else f"a {type(p).__name__}"
            raise UsageError(
                f"{name}: sample drew {key}, {found}, for {count} rows; a NumPy array of numbers, an entry a row, is "
                "allowed. Return such."
            )


def check_params(name: str, params: Mapping[str, Any], layout: ParamLayout, count: int) -> None:
    """Raise UsageError unless params, perhaps changed by hand, are such as a transform draws, for so many samples."""
    if set(params) != set(layout):
        raise UsageError(
            f"{name}: the params are {_named(params)}; {_named(layout)} are allowed. Pass what sample() returned, in order."
        )
    for key, (shape, dtype) in layout.items():
        p = params[key]
        wanted = torch.from_numpy(np.empty(0, dtype)).dtype
        plain = isinstance(p, Tensor) and p.device.type == "cpu" and not p.requires_grad
        if (
            not plain
            or p.shape != (count, *shape)
            or p.dtype == torch.bfloat16
            or _kind(p.dtype) != _kind(wanted)
        ):
            raise UsageError(
                f"{name}: {key} is {described(p)}; a plain tensor on the CPU, {wanted} {[count, *shape]}, is allowed. "
                "Keep its type, and sample the batch's rows."
            )


def _kind(dtype: torch.dtype) -> str:
    return "truth" if dtype == torch.bool else "fraction" if dtype.is_floating_point else "whole"


def _named(names: Mapping[str, Any]) -> str:
    return ", ".join(names) or "none"


def check_tensor(what: str, value: Any, wanted: str, fits: Callable[[Tensor], bool]) -> None:
    """Raise UsageError unless a value is a tensor that fits. what: begins the sentence."""
    if not isinstance(value, Tensor) or not fits(value):
        raise UsageError(f"{what} {described(value)}; {wanted} is allowed. Pass such.")


def check_images(who: str, images: Any, shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    """Raise UsageError for another type, layout or size. who: begins the sentence."""
    remedy = "Pass such a batch."
    if not isinstance(images, Tensor):
        remedy = "Pass torch.from_numpy(images) or the like."
    elif images.ndim == 4 and images.shape[1:] == shape:
        if images.dtype == dtype:
            return
        remedy = f"Pass such, or make the pipeline with dtype={images.dtype}."
    elif images.ndim == 4 and images.shape[1:] == (*shape[1:], shape[0]):
        remedy = "They look channels-last: pass images.permute(0, 3, 1, 2)."
    wanted = f"{dtype} [N, {', '.join(map(str, shape))}]"
    raise UsageError(f"{who}: the images are {described(images)}; {wanted} is allowed. {remedy}")


def check_range(who: str, images: Tensor) -> None:
    """Raise UsageError unless floating-point images are from 0 to 1. Waits for the device."""
    if not images.numel():
        return
    low, high = (float(end) for end in images.aminmax())
    if not (low >= 0 and high <= 1):
        raise UsageError(
            f"{who}: the images' values go from {low:g} to {high:g}; floating-point images from 0 to 1 are allowed. "
            "Divide them by 255, or pass uint8; normalise last."
        )
