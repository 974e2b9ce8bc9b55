"""Where boxes and points go with an image."""

from __future__ import annotations

import torch
from torch import Tensor

from packer.augment.passes import spec


def moved_boxes(boxes: Tensor, columns: Tensor, size: tuple[int, int]) -> Tensor:
    """Move boxes and clip them to what is seen.

    boxes: [N, K, 4], left, top, right, bottom, in pixels from the source's top left corner; not modified.
    columns: float32 [N, P], of a pass (spec.py). size: (h, w) of the result.
    Returns: [N, K, 4], same dtype, the smallest upright boxes about the moved ones, within the result; without area if
    nothing of them is seen.
    """
    low, high = _seen(columns)
    left, top = boxes[..., :2].double().maximum(low).minimum(high).unbind(-1)
    right, bottom = boxes[..., 2:].double().maximum(low).minimum(high).unbind(-1)
    corners = torch.stack([left, top, right, top, right, bottom, left, bottom], dim=-1)
    moved = _moved(corners.reshape(len(boxes), -1, 2), columns).reshape(*boxes.shape[:2], 4, 2)
    edge = torch.tensor([size[1], size[0]], dtype=moved.dtype, device=moved.device)
    first, end = (corner.clamp(min=0).minimum(edge) for corner in (moved.amin(dim=2), moved.amax(dim=2)))
    # What was clipped to a line would have area again once it is turned.
    nothing = (right <= left) | (bottom <= top)
    return torch.cat([first, torch.where(nothing[..., None], first, end)], dim=-1).to(boxes.dtype)


def moved_keypoints(points: Tensor, columns: Tensor, size: tuple[int, int]) -> Tensor:
    """Move points; those that are not seen become NaN.

    points: [N, K, 2]. columns, size, Returns: as moved_boxes. Edges count as inside.
    """
    low, high = _seen(columns)
    moved = _moved(points.double(), columns)
    edge = torch.tensor([size[1], size[0]], dtype=moved.dtype, device=moved.device)
    seen = (points >= low) & (points <= high) & (moved >= -_NEAR) & (moved <= edge + _NEAR)
    inside = moved.clamp(min=0).minimum(edge)
    return torch.where(seen.all(-1, keepdim=True), inside, torch.nan).to(points.dtype)


_NEAR = 1e-3  # columns are float32: points on an edge must stay there


def _seen(columns: Tensor) -> tuple[Tensor, Tensor]:
    """The part of the source of which anything is seen: its first and last corner, float64 [N, 1, 2] each."""
    taps = columns[:, None, spec.TAPS_AT : spec.SUPPORT_AT].double()
    frame = columns[:, None, spec.FRAME_AT : spec.SHARPNESS_AT].double() + 0.5
    return taps[..., :2].maximum(frame[..., :2]), (taps[..., 2:] + 1).minimum(frame[..., 2:])


def _moved(points: Tensor, columns: Tensor) -> Tensor:
    """float64 [N, K, 2] in the source -> the same in the result."""
    a, b, c, d, e, f = (column[:, None] for column in columns[:, : spec.TAPS_AT].double().unbind(-1))
    # The matrix goes from the middles of pixels to the middles of pixels, and the other way round.
    x, y = points.unbind(-1)
    x, y = x - 0.5 - c, y - 0.5 - f
    determinant = a * e - b * d
    return torch.stack([(e * x - b * y) / determinant, (a * y - d * x) / determinant], dim=-1) + 0.5
