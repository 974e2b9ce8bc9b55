"""Notes on images of equal bytes that are in two splits, or have two labels."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from packer.convert.conversion_task import ConversionTask, Report
from packer.convert.image_rows import ImageRows
from packer.convert.some_rows import split_numbers
from packer.given_values import call_text
from packer.inputs.file_names import UNLABELED


def notes_on_copies(task: ConversionTask, report: Report, rows: int) -> Iterator[str]:
    """Yield notes on the images that this process has packed. Files are compared by checksums of 64 bits.

    rows: of the complete pack, which a resumed run and one of several processes have not read.
    """
    maker = task.maker
    assert isinstance(maker, ImageRows)
    samples, splits = np.asarray(task.order.samples), task.order.splits
    digests, labels = maker.digests[samples], maker.columns(samples).get("label")
    parts = split_numbers(splits, len(samples))
    known: dict[str, NDArray[np.generic]] = {}
    if len(splits) > 1:
        known["in another split, so results on that split are too good"] = parts
    if isinstance(labels, np.ndarray):
        known["with another label"] = labels
    if not known or report.already:
        return
    order = np.argsort(digests, kind="stable")
    order = order[np.count_nonzero(digests == 0) :]
    lists = call_text("report", "PACK")
    for where, values in known.items():
        some = order if values is parts or not maker.unlabeled else order[values[order] != UNLABELED]
        count, (one, other) = _differing(digests[some], values[some])
        if count:
            first, second = (maker.key(int(samples[some[at]])) for at in (one, other))
            yield (
                f"{count:,} image{' has a copy' if count == 1 else 's have copies'} of equal bytes {where}, "
                f"such as {first} and {second}. Keep one of each; {lists} lists them."
            )
    if len(order) < rows:
        yield (
            f"{len(order):,} of {rows:,} images were searched for copies of equal bytes, those that were "
            f"read by this process; {lists} searches all."
        )


def _differing(digests: NDArray[np.uint64], values: NDArray[np.generic]) -> tuple[int, tuple[int, int]]:
    """Return the number of digests that have several values, and the positions of two that differ.

    digests: ascending. values: [N, ...], compared by their bytes.
    """
    data = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1 if len(values) else 0)
    differ = np.flatnonzero((digests[1:] == digests[:-1]) & (data[1:] != data[:-1]).any(axis=1))
    if not len(differ):
        return 0, (0, 0)
    return len(np.unique(digests[differ])), (int(differ[0]), int(differ[0]) + 1)
