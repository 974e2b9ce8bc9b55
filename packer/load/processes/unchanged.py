"""A transform that changes nothing: noticing it in the first batch, and saying what to pass instead.

Transforms that are written for tensors or PIL images pass NumPy arrays through. Nothing fails then; the network is trained without.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from packer.load.processes.libraries import leaves, library_of, name_of

CHANGED = -1
ENOUGH_ROWS = 32
"""Rows left as they were, of one batch or of several, after which it is said: what spares half of the images spares so many
two times in ten billion, what spares nine of ten three times in a hundred."""

# albumentations' names of what packer.augment calls otherwise
_TWINS = {
    "Affine": "RandomAffine",
    "AutoContrast": "RandomAutocontrast",
    "CoarseDropout": "RandomErasing",
    "Equalize": "RandomEqualize",
    "HorizontalFlip": "RandomHorizontalFlip",
    "InvertImg": "RandomInvert",
    "Posterize": "RandomPosterize",
    "Rotate": "RandomRotation",
    "Sharpen": "RandomAdjustSharpness",
    "Solarize": "RandomSolarize",
    "ToGray": "RandomGrayscale",
    "VerticalFlip": "RandomVerticalFlip",
}
_NO_TWINS = ("Compose", "Pipeline", "RandomApply", "RandomChoice", "Transform")


def kept(before: Any, after: Any) -> bool:
    """Return True if two samples, or values, are equal in names, dtypes, shapes and numbers."""
    if isinstance(before, Mapping):
        return (
            isinstance(after, Mapping)
            and before.keys() == after.keys()
            and all(kept(value, after[name]) for name, value in before.items())
        )
    if isinstance(before, (np.ndarray, np.generic)):
        if not isinstance(after, (np.ndarray, np.generic)):
            return False
        real = before.dtype.kind in "fc"
        return before.dtype == after.dtype and np.array_equal(before, after, equal_nan=real)
    if isinstance(before, list):
        return (
            isinstance(after, (list, tuple))
            and len(before) == len(after)
            and all(kept(b, a) for b, a in zip(before, after, strict=True))
        )
    return bool(type(before) is type(after) and before == after)


def copied(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a sample that fn has no reference to."""
    return copy.deepcopy(dict(sample))


def warning(fn: Any, path: str, rows: int) -> str:
    """Return the warning for a transform that left the first rows unchanged."""
    names = list(dict.fromkeys(_twins(fn)))
    instead = ", ".join(f"{name}()" for name in names)
    if names:
        remedy = (
            f"Pass augment=[{instead}] of packer.augment, or the library's own transform as transform=, which is given what it"
            " takes."
        )
    else:
        remedy = "Return the changed arrays, or pass augment=[...] with transforms of packer.augment."
    return (
        f"{path}: transform={name_of(fn)} left all fields of the first {rows} rows as they were."
        f" Transforms that are made for tensors or PIL images pass NumPy arrays through unchanged. {remedy}"
    )


def _twins(fn: Any) -> Iterator[str]:
    """Return the names in packer.augment that match the library transforms that a function is, holds or refers to."""
    try:
        from packer import augment
    except ImportError:  # torch
        return
    for one in _reached(fn):
        for leaf in leaves(one):
            name = type(leaf).__name__
            name = _TWINS.get(name, name)
            if library_of(leaf) and name in augment.__all__ and name not in _NO_TWINS:
                yield name


def _reached(fn: Any) -> Iterator[Any]:
    yield fn
    if hasattr(fn, "__dict__") and not inspect.isfunction(fn):
        yield from vars(fn).values()
    function = getattr(fn, "__func__", fn)
    if not inspect.isfunction(function):
        function = inspect.getattr_static(type(fn), "__call__", None)
    if inspect.isfunction(function):
        found = inspect.getclosurevars(function)
        yield from found.nonlocals.values()
        yield from found.globals.values()
