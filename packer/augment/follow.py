"""What follows the images through a pipeline's stages: masks, boxes, points, labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from packer.augment.stages import MixStage, PassStage, Stage
from packer.errors import UsageError

_TOGETHER = 4  # bytes of a pixel that one pass moves


def masks(stages: Sequence[Stage], columns: Tensor, layers: Tensor, fill: int, implementation: str) -> Tensor:
    """Move masks [N, K, H, W] of any type by the stages' numbers, float32 [N, P]: [N, K, h, w].

    fill: what is beyond the edges. A pixel of any type moves as that many bytes, four in a pass.
    """
    count, depth, height, width = layers.shape
    filling = _filling(fill, layers.dtype).view(torch.uint8).tolist() * depth
    moving = _numbers(layers).view(torch.uint8).view(count, height, width, len(filling)).permute(0, 3, 1, 2)
    for stage, mine in _each(stages, columns):
        if isinstance(stage, PassStage) and stage.moves:
            parts = [
                stage.run_masks(
                    moving[:, at : at + _TOGETHER].contiguous(memory_format=torch.channels_last),
                    mine,
                    tuple(map(float, filling[at : at + _TOGETHER])),
                    implementation,
                )
                for at in range(0, len(filling), _TOGETHER)
            ]
            moving = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        elif isinstance(stage, MixStage):
            moving = stage.part.mix_masks(moving, mine)
    size = moving.shape[-2:]
    return _numbers(moving).view(layers.dtype).view(count, *size, depth).permute(0, 3, 1, 2)


def places(
    stages: Sequence[Stage],
    columns: Tensor,
    points: Tensor,
    moved: Callable[[Tensor, Tensor, tuple[int, int]], Tensor],
) -> Tensor:
    """Move boxes or points, [N, K, 4 or 2], by moved_boxes or moved_keypoints."""
    for stage, mine in _each(stages, columns):
        if isinstance(stage, PassStage) and stage.moves:
            points = moved(points, mine, stage.result.size)
    return points


def labels(stages: Sequence[Stage], columns: Tensor, soft: Tensor) -> Tensor:
    """Mix shares of classes, float32 [N, K]."""
    for stage, mine in _each(stages, columns):
        if isinstance(stage, MixStage):
            own = stage.part.share(mine)[:, None]
            soft = own * soft + (1 - own) * soft.index_select(0, stage.part.partners(mine))
    return soft


def soft_labels(labels: Tensor, classes: int | None) -> Tensor:
    """Shares of classes, float32 [N, K], of class numbers [N] or shares [N, K].

    Raises UsageError for others, and on the CPU for numbers beyond the classes; on a GPU, which would have to be waited
    for, such rows are all 0.
    """
    if labels.ndim == 2:
        return labels.float()
    if labels.ndim != 1 or labels.is_floating_point():
        raise UsageError(
            f"MixUp, CutMix: labels are {labels.dtype} {list(labels.shape)}; whole numbers [N], or shares [N, K], are "
            "allowed. Pass such."
        )
    if classes is None:
        raise UsageError(
            "MixUp, CutMix: num_classes is None; the number of classes is needed. Pass num_classes."
        )
    if (
        labels.device.type == "cpu"
        and len(labels)
        and not 0 <= int(labels.min()) <= int(labels.max()) < classes
    ):
        raise UsageError(
            f"MixUp, CutMix: labels are {int(labels.min())} to {int(labels.max())}; 0 to {classes - 1} are allowed. "
            "Pass the right num_classes."
        )
    return (labels[:, None] == torch.arange(classes, device=labels.device)).float()


def _each(stages: Sequence[Stage], columns: Tensor) -> Iterator[tuple[Stage, Tensor]]:
    at = 0
    for stage in stages:
        yield stage, columns[:, at : at + stage.width]
        at += stage.width


def _numbers(images: Tensor) -> Tensor:
    """All numbers of [N, C, H, W], pixel after pixel."""
    return images.permute(0, 2, 3, 1).reshape(-1).contiguous()


def _filling(value: int, dtype: torch.dtype) -> Tensor:
    """One number of a mask's type. Raises UsageError if it holds no such number."""
    fill = torch.tensor([value]).to(dtype)
    if fill.to(torch.float64).item() != value:
        raise UsageError(
            f"Pipeline: mask_fill is {value} and the masks are {dtype}; a number that they hold is allowed. Pass another."
        )
    return fill
