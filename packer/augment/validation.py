"""Checks of parameters, draws and images; each error names the transform."""

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
from packer.given_values import shown

ParamLayout = Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
"""Name of a draw -> its shape without the first dimension, and its dtype."""

_INF = math.inf

Given = TypeVar("Given")
Kept = TypeVar("Kept")


class Unfit(ValueError):
    """A refused value of a parameter. Its text completes the error: the allowed values and the remedy."""


def checked(name: str, what: str, value: Any, check: Callable[..., Kept], *bounds: Any) -> Kept:
    """Return a value as converted by its check; raise UsageError with the operation and parameter."""
    try:
        return check(value, *bounds)
    except Unfit as unfit:
        raise UsageError(f"{name}: {what} is {shown(value)}; {unfit}") from None


class Parameter(Generic[Given, Kept]):
    """A dataclass field of a transform that checks each assigned value and stores the result of the check.

    check: called with the value and `bounds`; raises Unfit. None is not checked if it is the default.
    """

    def __init__(self, check: Callable[..., Kept], default: Any = MISSING, *bounds: Any) -> None:
        self._check, self._default, self._bounds = check, default, bounds

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, transform: object | None, owner: type) -> Kept:
        if transform is not None:
            kept: Kept = transform.__dict__[self._name]
            return kept
        if self._default is MISSING:
            raise AttributeError(self._name)  # tells the dataclass that the parameter has no default
        default: Kept = self._default
        return default

    def __set__(self, transform: object, value: Given) -> None:
        kept: Any = value
        if value is not None or self._default is not None:
            kept = checked(type(transform).__name__, self._name, value, self._check, *self._bounds)
        transform.__dict__[self._name] = kept


Number: TypeAlias = Parameter[float, float]
Integer: TypeAlias = Parameter[int, int]
Flag: TypeAlias = Parameter[bool, bool]
Word: TypeAlias = Parameter[str, str]
Sides: TypeAlias = Parameter[int | Sequence[int], tuple[int, int]]
Margins: TypeAlias = Parameter[int | Sequence[int], tuple[int, int, int, int]]
Interval: TypeAlias = Parameter[Sequence[float], tuple[float, float]]
Around: TypeAlias = Parameter[float | Sequence[float], tuple[float, float]]
OptionalAround: TypeAlias = Parameter[float | Sequence[float] | None, tuple[float, float] | None]
Colour: TypeAlias = Parameter[float | Sequence[float], float | tuple[float, ...]]
OptionalInteger: TypeAlias = Parameter[int | None, int | None]
OptionalMargins: TypeAlias = Parameter[int | Sequence[int] | None, tuple[int, int, int, int] | None]
OptionalPair: TypeAlias = Parameter[Sequence[float] | None, tuple[float, float] | None]


def listed(value: Any) -> list[Any]:
    """Return the elements of a sequence, or a list of a single value."""
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str | bytes) else [value]


def integer(value: Any, least: float = -_INF, most: float = _INF) -> int:
    """Return an int within bounds."""
    found = as_whole(value)
    if found is None or not least <= found <= most:
        raise Unfit(f"whole numbers{_bounds(least, most)} are allowed. Pass one of them.")
    return found


def number(value: Any, least: float = -_INF, most: float = _INF) -> float:
    """Return a finite float within bounds."""
    if not is_number(value) or not least <= value <= most:
        raise Unfit(f"numbers{_bounds(least, most)} are allowed. Pass one of them.")
    return float(value)


def sides(value: Any) -> tuple[int, int]:
    """Return (height, width) from one integer for both, or from two."""
    many = [as_whole(v, 1) for v in listed(value)]
    if len(many) not in (1, 2) or None in many:
        raise Unfit("a whole number from 1 up, or two (height, width), are allowed. Pass the side in pixels.")
    return many[0] or 1, many[-1] or 1


def margins(value: Any) -> tuple[int, int, int, int]:
    """Return (left, top, right, bottom) from one integer, (left and right, top and bottom), or all four."""
    many = [as_whole(v, 0) for v in listed(value)]
    if len(many) not in (1, 2, 4) or None in many:
        raise Unfit("one, two or four whole numbers from 0 up are allowed. Pass (left, top, right, bottom).")
    left, top, right, bottom = [v or 0 for v in many] * (4 // len(many))
    return left, top, right, bottom


def pair(value: Any, least: float = -_INF, most: float = _INF, rising: bool = False) -> tuple[float, float]:
    """Return two floats within bounds: (across, down), or if `rising` (low, high) with low <= high."""
    given = listed(value)
    fit = len(given) == 2 and all(is_number(v) and least <= v <= most for v in given)
    if not fit or (rising and given[0] > given[1]):
        what, order = ("low, high", ", the smaller first") if rising else ("across, down", "")
        raise Unfit(f"two numbers ({what}){_bounds(least, most)} are allowed. Pass those{order}.")
    return float(given[0]), float(given[1])


def number_pairs(value: Any) -> tuple[tuple[int, int], ...]:
    """Return pairs of whole numbers from 0, each number in one pair."""
    found = [[as_whole(number, 0) for number in listed(pair)] for pair in listed(value)]
    numbers = [number for pair in found for number in pair]
    if any(len(pair) != 2 for pair in found) or None in numbers or len(set(numbers)) < len(numbers):
        raise Unfit("pairs of numbers from 0 up are allowed, each number in one. Pass for example [(0, 1)].")
    return tuple((a or 0, b or 0) for a, b in found)


def interval(value: Any, least: float = -_INF, most: float = _INF) -> tuple[float, float]:
    """Return (low, high), low <= high, both within bounds."""
    return pair(value, least, most, rising=True)


def around(value: Any, middle: float, least: float = -_INF, most: float = _INF) -> tuple[float, float]:
    """Return (low, high): given, or middle -+ value, clipped at `least`, as in torchvision's ColorJitter."""
    if is_number(value) and 0 <= value <= most - middle:
        return max(middle - float(value), least), middle + float(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return interval(value, least, most)
    one, two = _bounds(0, most - middle), _bounds(least, most)
    raise Unfit(f"a number{one}, or two (low, high){two}, is allowed. Pass how far it may go.")


def one_of(value: Any, allowed: Iterable[str]) -> str:
    """Return an allowed word; enumerations such as torchvision's InterpolationMode are read by value."""
    word = getattr(value, "value", value)
    if not isinstance(word, str) or word not in allowed:
        raise Unfit(f"{', '.join(map(repr, allowed))} are allowed. Pass one of them.")
    return word


def flag(value: Any) -> bool:
    """Return a bool; refuse other types."""
    if not isinstance(value, bool):
        raise Unfit("True and False are allowed. Pass one of them.")
    return value


def colour(value: Any) -> float | tuple[float, ...]:
    """Return a number, or a tuple of numbers by channel; None, torchvision's default `fill`, is 0."""
    given = listed(0.0 if value is None else value)
    if not given or not all(map(is_number, given)):
        raise Unfit("a number, or one a channel, is allowed. Pass such.")
    return tuple(map(float, given)) if isinstance(value, Sequence) else float(given[0])


def _bounds(least: float, most: float) -> str:
    if math.isinf(most):
        return "" if math.isinf(least) else f" from {least:g} up"
    return f" from {least:g} to {most:g}"


def is_number(value: Any) -> bool:
    """Return True for finite real numbers, including NumPy's, except bool."""
    real = isinstance(value, numbers.Real) and math.isfinite(value)
    return real and not isinstance(value, bool)


def check_channels(name: str, shape: tuple[int, int, int]) -> None:
    """Raise UsageError unless shape, (C, H, W), has 1, 3 or 4 channels (the fourth is alpha)."""
    if shape[0] not in (1, 3, 4):
        raise UsageError(
            f"{name}: the images have {shape[0]} channels; 1, 3 and 4 are allowed. Convert with "
            "channels= gray, rgb or rgba."
        )


def described(value: Any, like: Any = Tensor) -> str:
    """Return dtype and shape of an instance of `like`, or the type of another value, for errors."""
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, like) else f"a {type(value).__name__}"


def check_drawn(name: str, drawn: Any, count: int) -> None:
    """Raise UsageError unless `drawn` is a dictionary of NumPy arrays with an entry for each row."""
    if not isinstance(drawn, Mapping):
        raise UsageError(
            f"{name}: sample returned {type(drawn).__name__}; a dictionary of arrays is allowed. Return one."
        )
    if "apply" in drawn:
        raise UsageError(f"{name}: sample draws 'apply', which is RandomApply's name. Choose another one.")
    for key, p in drawn.items():
        if not isinstance(p, np.ndarray) or p.ndim == 0 or len(p) != count or p.dtype.kind not in "biuf":
            raise UsageError(
                f"{name}: sample drew {key}, {described(p, np.ndarray)}, for {count} rows; a NumPy array of "
                "numbers, an entry a row, is allowed. Return such."
            )


def check_params(name: str, params: Mapping[str, Any], layout: ParamLayout, count: int) -> None:
    """Raise UsageError unless params, which the user may have changed, have the layout of the draws."""
    if set(params) != set(layout):
        given, wanted = (", ".join(names) or "none" for names in (params, layout))
        raise UsageError(
            f"{name}: the params are {given}; {wanted} are allowed. Pass what sample() returned, in order."
        )
    for key, (shape, dtype) in layout.items():
        p = params[key]
        plain = isinstance(p, Tensor) and p.device.type == "cpu" and not p.requires_grad
        if (
            not plain
            or p.shape != (count, *shape)
            or p.dtype == torch.bfloat16
            or (p.dtype == torch.bool, p.is_floating_point()) != (dtype.kind == "b", dtype.kind == "f")
        ):
            raise UsageError(
                f"{name}: {key} is {described(p)}; a plain tensor on the CPU, "
                f"torch.{dtype} {[count, *shape]}, is allowed. Keep its type, and sample the batch's rows."
            )


def check_tensor(what: str, value: Any, wanted: str, fits: Callable[[Tensor], bool]) -> None:
    """Raise UsageError unless a value is a tensor for which `fits` is True. what: start of the sentence."""
    if not isinstance(value, Tensor) or not fits(value):
        raise UsageError(f"{what} {described(value)}; {wanted} is allowed. Pass such.")


def check_images(who: str, images: Any, shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    """Raise UsageError for another type, layout or size. who: start of the sentence."""
    remedy = "Pass such a batch."
    if not isinstance(images, Tensor):
        remedy = "Pass torch.from_numpy(images) or the like."
    elif images.ndim == 4 and images.shape[1:] == shape:
        if images.dtype == dtype:
            return
        remedy = f"Pass such, or create the pipeline with dtype={images.dtype}."
    elif images.ndim == 4 and images.shape[1:] == (*shape[1:], shape[0]):
        remedy = "They look channels-last: pass images.permute(0, 3, 1, 2)."
    wanted = f"{dtype} [N, {', '.join(map(str, shape))}]"
    raise UsageError(f"{who}: the images are {described(images)}; {wanted} is allowed. {remedy}")


def check_range(who: str, images: Tensor) -> None:
    """Raise UsageError unless floating-point images are from 0 to 1. Synchronises."""
    if not images.numel():
        return
    low, high = (float(end) for end in images.aminmax())
    if not (low >= 0 and high <= 1):
        raise UsageError(
            f"{who}: the images' values go from {low:g} to {high:g}; floating-point images from 0 to 1 are "
            "allowed. Divide them by 255, or pass uint8; normalise last."
        )
