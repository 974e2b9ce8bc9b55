"""The agreement of two implementations of a pass: the differences that rounding explains.

A GPU multiplies and adds in one rounding, and approximates logarithms, so that numbers differ in the last
places. Where a position lies between two pixels, or a colour at a threshold, rounding decides which side it
falls to, and numbers differ by any amount.
"""

from __future__ import annotations

import torch
from torch import Tensor

from packer.augment.passes import pass_spec
from packer.augment.passes.pass_spec import Pass

_LAST_PLACE = {"float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}
_ROUNDED = 2e-4
"""Error of colours that are computed from several pixels or by colour steps, as a share of their range."""
_SHARE, _LEAST = 2e-3, 6
"""Numbers of an image that ties and thresholds may change: a share of all, or two pixels."""
_OTHER_BYTES = 0.25
"""Share of an image's bytes that may round the other way."""
_LARGEST_NOISE = 6.0
_SPREAD = 8


def tolerance(what: Pass) -> float:
    """Return the largest difference of a number that rounding makes, except at ties and thresholds."""
    if what.dtype == "uint8" or not _computes(what):
        return last_place(what)
    slope = max(map(abs, what.scale)) if what.scale is not None else 1.0
    return max(last_place(what), _ROUNDED * what.limit * slope)


def last_place(what: Pass) -> float:
    """Return the largest difference of a number if both implementations round positions and products alike.

    Bytes that are moved without arithmetic do not differ.
    """
    return float(_computes(what)) if what.dtype == "uint8" else _LAST_PLACE[what.dtype] * _size(what)


def _computes(what: Pass) -> bool:
    return what.weighted or what.steps > 0


def _size(what: Pass) -> float:
    """Return the largest number of a result, if those of the source are at most `limit`."""
    size = what.limit
    if what.scale is not None and what.shift is not None:
        pairs = zip(what.scale, what.shift, strict=True)
        size = max(max(abs(shift), abs(scale * what.limit + shift)) for scale, shift in pairs)
    if what.boxes:
        size = max(size, _LARGEST_NOISE if what.noise else max(map(abs, what.box_fill)))
    return size


def disagreement(what: Pass, found: Tensor, expected: Tensor) -> Tensor:
    """Return how far a result of a pass is from that of torch_pass.py: at most 1 if rounding explains it.

    found, expected: one image, or several, of which each may have as many ties. NaN of a soft map spreads as
    far as the taps of a filter, which implementations choose.
    Returns: float32 [], on the device of the results, without synchronising with it.
    """
    a, b = found.float(), expected.float()
    larger = (b.nan_to_num(0.0, 0.0, 0.0).abs().amax() / _size(what)).clamp(min=1.0)
    alike = ((a - b).abs() <= tolerance(what) * larger) | (a == b)
    alike |= b.isnan() | (a.isnan() & b.isnan().any())
    turns = what.sampling != "shift" or what.steps > 0 or what.noise
    allowed = max(_LEAST, _SHARE * found[0].numel()) if turns else 0
    beyond = (~alike).flatten(1).sum(dim=1).amax().float() / (allowed + 0.5)
    if what.dtype != "uint8":
        return beyond
    # A byte that rounds the other way is within the tolerance; most would be if all were cut off.
    other = (a != b).flatten(1).sum(dim=1).amax().float() / (_LEAST + _OTHER_BYTES * found[0].numel())
    return torch.maximum(beyond, other)


def revealing_rows(what: Pass, columns: Tensor) -> list[int]:
    """Return some rows of a batch whose results would reveal a wrong implementation.

    They are spread over the batch, and among them is a row for everything that a pass does to some rows only.
    columns: float32 [N, P], in host memory, N > 0.
    """
    last = len(columns) - 1
    spread = [last * n // (_SPREAD - 1) for n in range(_SPREAD)]
    kinds = columns[:, pass_spec.STEPS_AT : what.boxes_at : pass_spec.STEP_WIDTH]
    signs = [(kinds == kind).any(dim=1).float() for kind in pass_spec.KINDS]
    left, top, right, bottom = (
        columns[:, what.boxes_at + side : what.source_at : pass_spec.BOX_WIDTH] for side in range(4)
    )
    signs.append(((right - left).clamp(min=0) * (bottom - top).clamp(min=0)).sum(dim=1))
    widths = columns[:, 10] + columns[:, 11]
    signs += [columns[:, 1].abs() + columns[:, 3].abs(), widths, -widths]
    return sorted({*spread, *torch.stack(signs).argmax(dim=1).tolist()})
