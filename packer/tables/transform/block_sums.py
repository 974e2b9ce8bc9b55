"""Sums over blocks of records: the one loop over all cells that statistics need.

It is written twice: in C (``native/table_sums.c``), and in NumPy where that was not compiled. Both add in the same order and give
the same bits. A million rows of 28 float32: 45 ms against 500.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer import native

BLOCK = 8192  # rows whose sums begin anew
COUNT, SHIFT, SUM, SQUARES, LEAST, MOST = range(6)


def block_sums(
    records: NDArray[Any], members: list[str], fit: NDArray[np.bool_] | None
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Add up each block of BLOCK rows.

    records: [n], C-contiguous, packed; members: those of it that count, each <f4 or <f8, NaN for missing;
    fit: the rows that count, None for all.
    Returns: float64 [blocks, members, 6]: the count of present values; the first of them, x0; the sums of x - x0 and of its square;
    the least and the greatest (inf and -inf if there is none). And bool [members]: True where all present values are whole numbers.
    """
    fields: Mapping[str, Any] = records.dtype.fields or {}
    blocks = -(-len(records) // BLOCK)
    if native.COMPILED:
        figures = np.empty((blocks, len(members), 6))
        whole = np.ones(len(members), np.uint8)
        offsets = np.array([fields[m][1] for m in members], np.int64)
        single = np.array([fields[m][0].itemsize == 4 for m in members], np.uint8)
        mask = None if fit is None else np.ascontiguousarray(fit).view(np.uint8)
        native.loops.block_sums(
            records.view(np.uint8), records.dtype.itemsize, BLOCK, mask, offsets, single, figures, whole
        )
        return figures, whole.astype(np.bool_)
    figures = np.zeros((blocks, len(members), 6))
    figures[:, :, LEAST], figures[:, :, MOST] = np.inf, -np.inf
    whole_numbers = np.ones(len(members), np.bool_)
    for b in range(blocks):
        part = slice(b * BLOCK, (b + 1) * BLOCK)
        block = records[part] if fit is None else records[part][fit[part]]
        if len(block) and members:
            _add_block(block, members, figures[b], whole_numbers)
    return figures, whole_numbers


def _add_block(
    block: NDArray[Any], members: list[str], figures: NDArray[np.float64], whole: NDArray[np.bool_]
) -> None:
    x = np.zeros((len(block), len(members) + 1))  # NumPy adds a lone column in another order
    for i, member in enumerate(members):
        x[:, i] = block[member]
    present = ~np.isnan(x)
    first = np.take_along_axis(x, present.argmax(axis=0)[None], axis=0)[0]
    first[~present.any(axis=0)] = 0.0
    with np.errstate(all="ignore"):  # as in C; what overflows is found where the sums are put together
        distance = np.where(present, x - first, 0.0)
        sums = np.add.reduce(distance, axis=0) + 0.0
        squares = np.add.reduce(distance * distance, axis=0)
    found = np.stack(
        [
            present.sum(axis=0),
            first,
            sums,
            squares,
            np.where(present, x, np.inf).min(axis=0) + 0.0,
            np.where(present, x, -np.inf).max(axis=0) + 0.0,
        ],
        axis=1,
    )
    figures[:] = found[:-1]
    whole &= (~present | (x == np.trunc(x))).all(axis=0)[:-1]
