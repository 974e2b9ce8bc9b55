"""Where boxes and points go with an image."""

from __future__ import annotations

import torch
from torch import Tensor


def moved_boxes(boxes: Tensor, matrix: Tensor, size: tuple[int, int]) -> Tensor:
    """Move boxes and clip them.

    boxes: [N, K, 4], left, top, right, bottom, in pixels from the source's top left corner; not modified.
    matrix: float32 [N, 6], of a pass (spec.py). size: (h, w) of the result.
    Returns: [N, K, 4], same dtype, the smallest upright boxes about the moved ones, within the result.
    """
    left, top, right, bottom = boxes.unbind(-1)
    corners = torch.stack([left, top, right, top, right, bottom, left, bottom], dim=-1)
    moved = _moved(corners.reshape(len(boxes), -1, 2), matrix).reshape(*boxes.shape[:2], 4, 2)
    low, high = moved.amin(dim=2), moved.amax(dim=2)
    edge = torch.tensor([size[1], size[0]], dtype=low.dtype, device=low.device)
    low, high = low.clamp(min=0).minimum(edge), high.clamp(min=0).minimum(edge)
    return torch.cat([low, high], dim=-1).to(boxes.dtype)


def moved_keypoints(points: Tensor, matrix: Tensor, size: tuple[int, int]) -> Tensor:
    """Move points; those that are not seen become NaN.

    points: [N, K, 2]. matrix, size, Returns: as moved_boxes. Edges count as inside.
    """
    moved = _moved(points, matrix)
    x, y = moved.unbind(-1)
    seen = (x >= 0) & (x <= size[1]) & (y >= 0) & (y <= size[0])
    return torch.where(seen[..., None], moved, torch.nan).to(points.dtype)


def _moved(points: Tensor, matrix: Tensor) -> Tensor:
    """[N, K, 2] in the source -> float64 [N, K, 2] in the result."""
    a, b, c, d, e, f = (column[:, None] for column in matrix.double().unbind(-1))
    # The matrix goes from the middles of pixels to the middles of pixels, and the other way round.
    x, y = points.double().unbind(-1)
    x, y = x - 0.5 - c, y - 0.5 - f
    determinant = a * e - b * d
    return torch.stack([(e * x - b * y) / determinant, (a * y - d * x) / determinant], dim=-1) + 0.5
