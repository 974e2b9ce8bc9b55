"""Masks, soft maps, boxes, keypoints and labels moved and mixed as the images of a pipeline are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from packer.augment.pass_stages import PartStage, PassStage, Stage, each_stage
from packer.augment.passes import pass_spec
from packer.augment.transform import WarpPart
from packer.errors import UsageError


def moved_boxes(boxes: Tensor, columns: Tensor, size: tuple[int, int]) -> Tensor:
    """Move boxes and clip them to what is seen.

    boxes: [N, K, 4], left, top, right, bottom, in pixels from the source's top left corner; not modified.
    columns: float32 [N, P], of a pass (pass_spec.py). size: (h, w) of the result.
    Returns: [N, K, 4], same dtype, the smallest upright boxes about the moved ones, within the result; without area if
    nothing of them is seen.
    """
    low, high = _seen(columns)
    left, top = boxes[..., :2].double().maximum(low).minimum(high).unbind(-1)
    right, bottom = boxes[..., 2:].double().maximum(low).minimum(high).unbind(-1)
    corners = torch.stack([left, top, right, top, right, bottom, left, bottom], dim=-1)
    moved = _moved(corners.reshape(len(boxes), 4 * boxes.shape[1], 2), columns).reshape(
        *boxes.shape[:2], 4, 2
    )
    first, end = (_clipped(corner, size) for corner in (moved.amin(dim=2), moved.amax(dim=2)))
    # What was clipped to a line would have area again once it is turned.
    nothing = (right <= left) | (bottom <= top)
    return torch.cat([first, torch.where(nothing[..., None], first, end)], dim=-1).to(boxes.dtype)


def moved_keypoints(points: Tensor, columns: Tensor, size: tuple[int, int]) -> Tensor:
    """Move points; those that are not seen become NaN.

    points: [N, K, 2]. columns, size, Returns: as moved_boxes. Edges count as inside.
    """
    low, high = _seen(columns)
    moved = _moved(points.double(), columns)
    inside = _clipped(moved, size)
    seen = (points >= low) & (points <= high) & ((moved - inside).abs() <= _NEAR)
    return torch.where(seen.all(-1, keepdim=True), inside, torch.nan).to(points.dtype)


def warped_boxes(boxes: Tensor, columns: Tensor, size: tuple[int, int], part: WarpPart) -> Tensor:
    """Move boxes by a part that stands between passes. size: (h, w) of the images. Returns: as moved_boxes."""
    left, top, right, bottom = boxes.double().unbind(-1)
    left, right = left.clamp(0, size[1]), right.clamp(0, size[1])
    top, bottom = top.clamp(0, size[0]), bottom.clamp(0, size[0])
    corners = torch.stack([left, top, right, top, right, bottom, left, bottom], dim=-1)
    moved = part.move_points(corners.reshape(len(boxes), 4 * boxes.shape[1], 2), columns, size)
    moved = moved.reshape(*boxes.shape[:2], 4, 2)
    first, end = (_clipped(corner, size) for corner in (moved.amin(dim=2), moved.amax(dim=2)))
    nothing = (right <= left) | (bottom <= top)
    return torch.cat([first, torch.where(nothing[..., None], first, end)], dim=-1).to(boxes.dtype)


def warped_keypoints(points: Tensor, columns: Tensor, size: tuple[int, int], part: WarpPart) -> Tensor:
    """Move points by a part that stands between passes; those that are not seen become NaN."""
    before = points.double()
    moved = part.move_points(before, columns, size)
    inside = _clipped(moved, size)
    seen = (before == _clipped(before, size)) & ((moved - inside).abs() <= _NEAR)
    return torch.where(seen.all(-1, keepdim=True), inside, torch.nan).to(points.dtype)


def _clipped(points: Tensor, size: tuple[int, int]) -> Tensor:
    """Moved into a picture of this (h, w). By Python's numbers: a tensor of them would have to be waited for on a GPU."""
    x, y = points.unbind(-1)
    return torch.stack([x.clamp(0, size[1]), y.clamp(0, size[0])], dim=-1)


def moved_lists(
    boxes: Sequence[Tensor], followers: Mapping[str, Sequence[Tensor]], move: Callable[[Tensor], Tensor]
) -> tuple[list[Tensor], dict[str, list[Tensor]]]:
    """Move boxes of images that have each their own number; those without area then go, and what belongs to them.

    boxes: N of [k, 4]. followers: name -> N of [k, ...], such as labels. move: what moves [N, K, 4] floating point,
    Pipeline.apply_boxes. Returns: boxes, floating point, float32 if they were whole numbers; followers.
    Raises UsageError for followers that have not an entry a box.
    """
    for name, rows in followers.items():
        for row, its in zip(rows, boxes, strict=True):
            if len(row) != len(its):
                raise UsageError(
                    f"augment: {name!r} of a row has {len(row)} entries and there are {len(its)} boxes; fields named box_... have one a "
                    "box, and go with it. Give the field another name."
                )
    counts = [len(one) for one in boxes]
    kind = boxes[0].dtype if boxes and boxes[0].is_floating_point() else torch.float32
    together = torch.zeros(len(boxes), max(counts, default=0), 4, dtype=kind)
    for row, one in zip(together, boxes, strict=True):
        row[: len(one)] = one
    moved = move(together)
    seen = (moved[..., 2:] > moved[..., :2]).all(dim=-1)
    keep = [each[:count] for each, count in zip(seen, counts, strict=True)]
    kept = [row[: len(k)][k] for row, k in zip(moved, keep, strict=True)]
    return kept, {
        name: [each[k] for each, k in zip(rows, keep, strict=True)] for name, rows in followers.items()
    }


_NEAR = 1e-3  # columns are float32: points on an edge must stay there


def _seen(columns: Tensor) -> tuple[Tensor, Tensor]:
    """Return the part of the source of which anything is seen: its first and last corner, float64 [N, 1, 2] each."""
    taps = columns[:, None, pass_spec.TAPS_AT : pass_spec.SUPPORT_AT].double()
    frame = columns[:, None, pass_spec.FRAME_AT : pass_spec.SHARPNESS_AT].double() + 0.5
    return taps[..., :2].maximum(frame[..., :2]), (taps[..., 2:] + 1).minimum(frame[..., 2:])


def _moved(points: Tensor, columns: Tensor) -> Tensor:
    """float64 [N, K, 2] in the source -> the same in the result."""
    a, b, c, d, e, f = (column[:, None] for column in columns[:, : pass_spec.TAPS_AT].double().unbind(-1))
    # The matrix goes from the middles of pixels to the middles of pixels, and the other way round.
    x, y = points.unbind(-1)
    x, y = x - 0.5 - c, y - 0.5 - f
    determinant = a * e - b * d
    return torch.stack([(e * x - b * y) / determinant, (a * y - d * x) / determinant], dim=-1) + 0.5


_TOGETHER = 4  # bytes of a pixel that one pass moves


def move_masks(
    stages: Sequence[Stage], columns: Tensor, layers: Tensor, fill: int, implementation: str
) -> Tensor:
    """Move masks [N, K, H, W] of any type by the stages' numbers, float32 [N, P]: [N, K, h, w].

    fill: what is beyond the edges. A pixel of any type moves as that many bytes, four in a pass.
    """
    count, depth, height, width = layers.shape
    filling = _filling(fill, layers.dtype).view(torch.uint8).tolist() * depth
    moving = _numbers(layers).view(torch.uint8).view(count, height, width, len(filling)).permute(0, 3, 1, 2)
    for stage, mine in each_stage(stages, columns):
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
        elif isinstance(stage, PartStage) and stage.warping is not None:
            moving = stage.warping.move_masks(moving, mine, filling)
        elif stage.mixing is not None:
            moving = stage.mixing.mix_masks(moving, mine)
    size = moving.shape[-2:]
    return _numbers(moving).view(layers.dtype).view(count, *size, depth).permute(0, 3, 1, 2)


def move_soft(
    stages: Sequence[Stage], columns: Tensor, layers: Tensor, fill: float, implementation: str
) -> Tensor:
    """Move soft maps [N, K, H, W] of any type by the stages' numbers, float32 [N, P], sampled as the images: [N, K, h, w].

    fill: what is beyond the edges.
    """
    if not any(_moves(stage) for stage in stages):
        return layers
    filling = _soft_fill(fill, layers.dtype)
    moving = layers.float()
    for stage, mine in each_stage(stages, columns):
        if stage.mixing is not None:
            moving = stage.mixing.mix(moving.clone(), mine)
        elif _moves(stage):
            parts = [
                _moved_soft(stage, part, mine, (filling,) * part.shape[1], implementation)
                for part in moving.split(_TOGETHER, dim=1)
            ]
            moving = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
    return _rounded(moving, layers.dtype)


def begin_masks(
    stage: PassStage, columns: Tensor, masks: Tensor, fill: int, implementation: str, out: Tensor
) -> None:
    """Make masks of images that differ in size alike.

    columns: float32 [N, P], of the ragged pass over the masks. masks: [P, 1], of up to 4 bytes a number. fill: what is beyond the
    edges. out: [N, h, w] of their dtype, contiguous; filled.
    """
    filling = tuple(map(float, _filling(fill, masks.dtype).view(torch.uint8).tolist()))
    to = out.view(torch.uint8).view(*out.shape, len(filling)).permute(0, 3, 1, 2)
    stage.run_masks(masks.view(torch.uint8), columns, filling, implementation, to)


def begin_soft(
    stage: PassStage, columns: Tensor, maps: Tensor, fill: float, implementation: str, out: Tensor
) -> None:
    """Make soft maps of images that differ in size alike; the arguments are those of begin_masks."""
    filling = (_soft_fill(fill, maps.dtype),)
    moved = stage.run_masks(maps.float().contiguous(), columns, filling, implementation)
    out.copy_(_rounded(moved, maps.dtype)[:, 0])


def _soft_fill(fill: float, dtype: torch.dtype) -> float:
    """Return what soft maps of this type get beyond the edges. Raises UsageError if they hold no such number."""
    return fill if dtype.is_floating_point else float(_filling(fill, dtype, "soft_fill").item())


def _rounded(maps: Tensor, dtype: torch.dtype) -> Tensor:
    """Return maps, float32, as another type, whole numbers rounded; the maps may be overwritten."""
    if dtype.is_floating_point:
        return maps.to(dtype)
    limits = torch.iinfo(dtype)
    return maps.add_(0.5).floor_().clamp_(limits.min, limits.max).to(dtype)  # a copy of whole numbers


def _moves(stage: Stage) -> bool:
    """Return True if a stage moves or mixes pixels."""
    if isinstance(stage, PassStage):
        return stage.moves
    return stage.warping is not None or stage.mixing is not None


def _moved_soft(
    stage: Stage, maps: Tensor, columns: Tensor, fill: tuple[float, ...], implementation: str
) -> Tensor:
    """Move at most four soft maps of each image by a stage: float32 [N, K, H, W] -> [N, K, h, w]."""
    if isinstance(stage, PassStage):
        together = maps.contiguous(memory_format=torch.channels_last)
        return stage.run_masks(together, columns, fill, implementation)
    assert stage.warping is not None
    return stage.warping.move_masks(maps, columns, fill)


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


def _numbers(images: Tensor) -> Tensor:
    """Return all numbers of [N, C, H, W], pixel after pixel."""
    return images.permute(0, 2, 3, 1).reshape(-1).contiguous()


def _filling(value: float, dtype: torch.dtype, name: str = "mask_fill") -> Tensor:
    """Return one number of a mask's type. Raises UsageError if it holds no such number."""
    fill = torch.tensor([value]).to(dtype)
    if fill.to(torch.float64).item() != value:
        raise UsageError(
            f"Pipeline: {name} is {value} and the masks are {dtype}; a number that they hold is allowed. Pass another."
        )
    return fill
