"""Notes on values of arrays that may be meant otherwise: flattened images, one-hot labels, labels from 1."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.format.fields import Field
from packer.samples.array_problems import flat_sides, some
from packer.samples.columns import Column, ColumnField
from packer.samples.field_plan import LABEL, pixel_notes

_MOST_CLASSES = 1000


def check_classes(
    subject: str, label: Column | None, spans: Mapping[str, range], classes: Sequence[str] | None
) -> list[str]:
    """Raise UsageError if a split has classes that train lacks; return a note if labels are plain numbers.

    classes: names of the numbers, None for plain ones.
    """
    if (
        label is None
        or label.slab
        or "train" not in spans
        or label.dtype.kind not in "iu"
        or len(label.shape) > 2
    ):
        return []
    values = {split: np.unique(label.part(span.start, span.stop)) for split, span in spans.items()}
    if len(values["train"]) > _MOST_CLASSES:
        return []
    notes = []
    for split, numbers in values.items():
        new = np.setdiff1d(numbers, values["train"]).tolist()
        if new:
            said = f"{subject}: {split} has the labels "
            said += f"{some([classes[n] if classes else str(n) for n in new])}, which train lacks. "
            if classes:
                raise UsageError(f"{said}Correct them, or pass all classes: classes={','.join(classes)!r}.")
            notes.append(f"{said}If they are classes, correct them.")
    return notes


def column_notes(columns: Mapping[str, ColumnField], classes: tuple[str, ...] | None) -> list[str]:
    """Return notes on fields that are transposed or flattened, on unusual images, and on labels.

    classes: names of the label's classes, if they come from the source.
    """
    notes = []
    for name, field in columns.items():
        notes += pixel_notes(field.plan.field)
        if field.plan.channels_first:
            notes.append(
                f"{name}: rows are [C, H, W] and are stored [H, W, C]; torch batches are again [N, C, H, W]."
            )
        column = field.column
        if column is not None and column.shape[0]:
            notes += _flat_notes(name, column)
            notes += _mask_notes(field.plan.field, column)
    if classes is not None:
        listed = ", ".join(classes[:8]) + (", ..." if len(classes) > 8 else "")
        notes.append(f"label: numbers {len(classes):,} classes: {listed:.200}.")
    elif LABEL in columns:
        notes += _label_notes(columns[LABEL])
    return notes


def _flat_notes(name: str, column: Column) -> Iterator[str]:
    """Yield a note on rows that are flattened images."""
    if side := flat_sides(column):
        count = column.shape[1]
        channels = count // side**2
        shape = f"{side}, {side}" if channels == 1 else f"{channels}, {side}, {side}"
        yield (
            f"{name}: rows of {count:,} bytes may be flattened images; they load flat. For images pass"
            f" {name}.reshape(-1, {shape}) as image."
        )


def _mask_notes(field: Field, column: Column) -> Iterator[str]:
    """Yield a note on masks of black and white."""
    if field.about.get("sampling") == "nearest" and column.dtype == np.uint8:
        rows = next(iter(column.pieces()))
        if rows.max() == 255 and ((rows == 0) | (rows == 255)).all():
            yield (
                f"{field.name}: holds only 0 and 255 in its first {len(rows):,} rows; losses number classes"
                f" from 0. For classes 0 and 1 pass {field.name} // 255."
            )


def _label_notes(field: ColumnField) -> Iterator[str]:
    """Yield notes on labels that are one-hot, numbered from 1, or classes as floats."""
    if field.column is None or field.column.dtype.kind not in "biuf":
        return
    rows: NDArray[np.generic] = next(iter(field.column.pieces()))
    if rows.ndim == 2 and rows.shape[1] > 1:
        if (((rows == 0) | (rows == 1)).all(1) & ((rows != 0).sum(1) == 1)).all():
            yield (
                f"label: rows are one-hot, of {rows.shape[1]:,} classes, and load as such. For class numbers"
                " pass y.argmax(1)."
            )
    elif rows.size == len(rows):
        values = np.unique(np.concatenate([*field.column.pieces()]))
        count, floats = len(values), rows.dtype.kind == "f"
        if floats and 1 < count <= _MOST_CLASSES and (values == np.trunc(values)).all():
            yield (
                f"label: {count:,} different whole numbers, stored as {rows.dtype.name}; a loss over classes"
                " needs integers. For classes pass y.astype('int64')."
            )
        elif not floats and 1 < count <= _MOST_CLASSES and values[0] == 1 and values[-1] == count:
            yield (
                f"label: the numbers 1 to {count:,}, and no 0; losses number classes from 0. For classes"
                f" pass y - 1, or let the network have {count + 1:,} outputs."
            )
