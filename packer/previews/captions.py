"""Labels as words: what stands under each image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.previews.rows import Batch

GLUE = "\N{NO-BREAK SPACE}"
"""Between words that stay on one line."""

_LISTED = 4  # classes or numbers named under one image
_LEAST_SHARE = 0.005


def captions(batch: Batch, classes: Sequence[str] | None, columns: Sequence[str] | None) -> list[str]:
    """One text an image: its class, its classes, their shares, its numbers, or without labels its row.

    classes: names by number, or None. columns: names of the label's numbers where it has several, or None.
    """
    if batch.label is None and batch.box_label is not None:
        return [_counted(labels, classes) for labels in batch.box_label]
    if batch.label is None:
        return [f"row{GLUE}{row:,}" for row in batch.rows]
    return [_caption(label, classes, columns) for label in batch.label]


def name_of(number: int, classes: Sequence[str] | None) -> str:
    """A class's name, or its number."""
    return classes[number] if classes is not None and 0 <= number < len(classes) else str(number)


def _caption(label: Any, classes: Sequence[str] | None, columns: Sequence[str] | None) -> str:
    """label: a number, or several of them."""
    if np.ndim(label) == 0:
        return name_of(int(label), classes) if label.dtype.kind in "iub" else f"{float(label):.4g}"
    names = [*(classes or columns or ())]
    names += [str(number) for number in range(len(names), len(label))]
    if label.dtype.kind in "iub":
        return _listed([names[i] for i in np.flatnonzero(label)], ", ") or "none"
    if classes is None and columns is not None:
        return _listed([f"{name}{GLUE}{value:.3g}" for name, value in zip(names, label, strict=False)], " ")
    return _listed(_shares(names, label), " ") or "none"


def _shares(names: Sequence[str], label: NDArray[Any]) -> list[str]:
    """Classes with their shares, the largest first."""
    largest = [int(i) for i in np.argsort(-label, kind="stable") if abs(label[i]) >= _LEAST_SHARE]
    if len(largest) == 1 and abs(label[largest[0]] - 1) < _LEAST_SHARE:
        return [names[largest[0]]]
    return [f"{names[i]}{GLUE}{label[i]:.2f}".removesuffix("0") for i in largest]


def _counted(labels: NDArray[Any], classes: Sequence[str] | None) -> str:
    """What is in the boxes: "2 cat, dog"."""
    numbers, counts = np.unique(labels, return_counts=True)
    words = [
        (f"{count}{GLUE}" if count > 1 else "") + name_of(int(number), classes)
        for number, count in zip(numbers, counts, strict=True)
    ]
    return _listed(words, ", ") or "no boxes"


def _listed(words: list[str], between: str) -> str:
    more = [f"and{GLUE}{len(words) - _LISTED}{GLUE}more"] if len(words) > _LISTED else []
    return between.join(words[:_LISTED] + more)
