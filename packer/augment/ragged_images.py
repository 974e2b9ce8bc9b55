"""Images that differ in size, side by side in one memory, and what that changes in the columns of their pass.

A pass reads each image from its own place, so nothing is resized before it. An image may lie there smaller than it is: decoders of
JPEG files make 1/2, 1/4 or 1/8 of the pixels in less time, and where the result is smaller still, nothing of it is lost.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from packer.augment.passes import pass_spec
from packer.augment.transform import Columns

REDUCTIONS = (1, 2, 4, 8)
"""How many times smaller, across and down, images may lie in memory than they are."""


def placed(
    columns: Tensor, places: NDArray[np.int64], sizes: NDArray[np.int64], reductions: NDArray[np.int64]
) -> Tensor:
    """Return the columns of a ragged pass over images in one memory: float32 [N, P].

    columns: of the same images at their full size. places: int64 [N], each image's first pixel. sizes: int64 [N, 2], heights and widths
    as they lie there, rows following each other. reductions: int64 [N], how many times larger they are in truth.
    """
    made = columns.numpy().copy()
    reduce(made, reductions)
    source = made[:, -pass_spec.SOURCE_WIDTH :]
    source[:, 0], source[:, 1] = np.divmod(places, pass_spec.PLACE_STEP)
    source[:, 2:4], source[:, 4] = sizes, sizes[:, 1]
    return torch.from_numpy(made)


def reductions(columns: Columns) -> NDArray[np.int64]:
    """Return how many times smaller each image may lie in memory, so that the part that is seen still has the result's size.

    columns: float32 [N, P], of a pass that resizes with antialiasing. Returns: of REDUCTIONS, int64 [N].
    """
    shrinks = columns[:, pass_spec.SUPPORT_AT : pass_spec.FRAME_AT].min(axis=1)
    found: NDArray[np.int64] = np.array(REDUCTIONS, np.int64)[
        np.searchsorted(REDUCTIONS, shrinks * (1 + 1e-6), "right") - 1
    ]
    return found


def rows_seen(columns: Columns) -> NDArray[np.int64]:
    """Return the first row of pixels that the pass may read of each image, and the one after the last: int64 [N, 2].

    columns: float32 [N, P], of the images at their full size.
    """
    top, bottom = columns[:, pass_spec.TAPS_AT + 1], columns[:, pass_spec.TAPS_AT + 3]
    return np.stack([top, bottom + 1], axis=1).astype(np.int64)


def reduce(columns: Columns, by: NDArray[np.int64]) -> None:
    """Change the columns of a pass, float32 [N, P], to those over the same images `by` times smaller, int64 [N]."""
    some = np.flatnonzero(by > 1)
    if not some.size:
        return
    part, factor = columns[some].astype(np.float64), by[some, None].astype(np.float64)
    part[:, :6] /= factor
    for at in (2, 5):  # the middle of the first pixel is half a pixel from the edge
        part[:, at] += 0.5 / factor[:, 0] - 0.5
    part[:, 6:8] = np.floor(part[:, 6:8] / factor)
    part[:, 8:10] = np.ceil((part[:, 8:10] + 1) / factor) - 1
    part[:, 10:12] = np.maximum(part[:, 10:12] / factor, 1)
    part[:, 12:16] = (part[:, 12:16] + 0.5) / factor - 0.5
    part[:, 16:18] *= factor
    columns[some] = part
