"""The named tuple that loading hands out: ``batch.image``, or ``images, labels = batch``."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np

from packer.format.header import Field


@cache
def batch_type(fields: tuple[str, ...]) -> type[tuple[Any, ...]]:
    """Return the named tuple class with these fields: one class for each tuple of names, picklable."""
    base = namedtuple("Batch", fields)  # type: ignore[misc]
    return type("Batch", (base,), {"__slots__": (), "__reduce__": _reduce, "__module__": __name__})


def make_batch(fields: tuple[str, ...], values: Iterable[Any]) -> Any:
    """Return a batch with these values. Unpickling calls it too."""
    return batch_type(fields)(*values)


def _reduce(self: Any) -> tuple[Any, ...]:
    return make_batch, (self._fields, tuple(self))


def as_tensor(row: Any, field: Field) -> Any:
    """Convert a row of decode_ragged to torch: pixels [h, w, C] become a tensor [C, h, w], other arrays a tensor; str and bytes stay."""
    if not isinstance(row, np.ndarray):
        return row
    import torch

    tensor = torch.from_numpy(row)
    return tensor.permute(2, 0, 1) if field.about.get("layout") == "HWC" else tensor
