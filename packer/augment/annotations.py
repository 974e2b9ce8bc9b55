"""Masks, soft maps, boxes, keypoints and labels moved and mixed as the images of a pipeline are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from packer.augment.pass_stages import PassStage, Stage
from packer.augment.passes import pass_spec
from packer.augment.validation import check_tensor
from packer.errors import UsageError


def move_places(stages: Sequence[Stage], columns: Tensor, places: Tensor) -> Tensor:
    """Move boxes, or points, as the stages move pixels.

    places: [N, K, 4], left, top, right, bottom, or [N, K, 2], in pixels from the source's top left corner; not modified.
    columns: float32 [N, P], of all stages of the pipeline.
    Returns: the same shape and dtype. Boxes become the smallest upright ones about the moved ones, clipped to the result, without area
    if nothing of them is seen; points that are not seen become NaN. Edges count as inside.
    """
    for stage in stages:
        if stage.moves:
            moved = _moved_points if places.shape[-1] == 2 else _moved_boxes
            places = moved(places.double(), columns[:, stage.at], stage.result.size).to(places.dtype)
    return places


def _moved_boxes(boxes: Tensor, columns: Tensor, size: tuple[int, int]) -> Tensor:
    low, high = _seen_part(columns)
    left, top = boxes[..., :2].maximum(low).minimum(high).unbind(-1)
    right, bottom = boxes[..., 2:].maximum(low).minimum(high).unbind(-1)
    corners = torch.stack([left, top, right, top, right, bottom, left, bottom], dim=-1)
    moved = _moved(corners.reshape(len(boxes), 4 * boxes.shape[1], 2), columns).reshape(
        *boxes.shape[:2], 4, 2
    )
    first, end = (_clipped(corner, size) for corner in (moved.amin(dim=2), moved.amax(dim=2)))
    # What was clipped to a line would have area again once it is turned.
    nothing = (right <= left) | (bottom <= top)
    return torch.cat([first, torch.where(nothing[..., None], first, end)], dim=-1)


def _moved_points(points: Tensor, columns: Tensor, size: tuple[int, int]) -> Tensor:
    low, high = _seen_part(columns)
    moved = _moved(points, columns)
    inside = _clipped(moved, size)
    seen = (points >= low) & (points <= high) & ((moved - inside).abs() <= _NEAR)
    return torch.where(seen.all(-1, keepdim=True), inside, torch.nan)


def _seen_part(columns: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first and last corner of the part of the source of which anything is seen."""
    taps = columns[:, None, pass_spec.TAPS_AT : pass_spec.SUPPORT_AT].double()
    frame = columns[:, None, pass_spec.FRAME_AT : pass_spec.SHARPNESS_AT].double() + 0.5
    return taps[..., :2].maximum(frame[..., :2]), (taps[..., 2:] + 1).minimum(frame[..., 2:])


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
    kind = boxes[0].dtype if boxes and boxes[0].is_floating_point() else torch.float32
    together = pad_sequence([its.to(kind) for its in boxes], True) if boxes else torch.zeros(0, 0, 4)
    moved = move(together)
    seen = (moved[..., 2:] > moved[..., :2]).all(dim=-1)
    keep = [each[: len(its)] for each, its in zip(seen, boxes, strict=True)]
    kept = [row[: len(k)][k] for row, k in zip(moved, keep, strict=True)]
    return kept, {
        name: [each[k] for each, k in zip(rows, keep, strict=True)] for name, rows in followers.items()
    }


_NEAR = 1e-3  # columns are float32: points on an edge must stay there


def _moved(points: Tensor, columns: Tensor) -> Tensor:
    """float64 [N, K, 2] in the source -> the same in the result."""
    a, b, c, d, e, f = (column[:, None] for column in columns[:, : pass_spec.TAPS_AT].double().unbind(-1))
    # The matrix goes from the middles of pixels to the middles of pixels, and the other way round.
    x, y = points.unbind(-1)
    x, y = x - 0.5 - c, y - 0.5 - f
    determinant = a * e - b * d
    return torch.stack([(e * x - b * y) / determinant, (a * y - d * x) / determinant], dim=-1) + 0.5


def move_layers(stages: Sequence[Stage], columns: Tensor, layers: Tensor, fill: float, soft: bool) -> Tensor:
    """Move masks, or with `soft` soft maps, [N, K, H, W] of any type by the stages' numbers: [N, K, h, w].

    columns: float32 [N, P], of all stages of the pipeline. fill: what is beyond the edges. A mask's pixel of any type moves as that
    many bytes, the nearest one's; soft maps are sampled as the images, in float32.
    """
    if not any(stage.moves or stage.mixing is not None for stage in stages):
        return layers
    planes, filling = planes_of(_dense(layers.permute(0, 2, 3, 1)), fill, soft)
    planes = planes.permute(0, 3, 1, 2)
    for stage in stages:
        mine = columns[:, stage.at]
        if isinstance(stage, PassStage):
            planes = stage.run_masks(planes, mine, filling) if stage.moves else planes
        elif stage.mixing is not None:
            planes = stage.mixing.mix_masks(planes, mine)
    return values_of(planes.permute(0, 2, 3, 1), layers.dtype, soft).permute(0, 3, 1, 2)


def planes_of(pixels: Tensor, fill: float, soft: bool) -> tuple[Tensor, tuple[float, ...]]:
    """Return what a pass moves of masks or soft maps [..., K], contiguous, and the fill: uint8 or float32 [..., B], B numbers.

    Raises UsageError if they hold no such number as the fill.
    """
    depth = pixels.shape[-1]
    if soft and pixels.dtype.is_floating_point:
        return pixels.float(), (fill,) * depth
    one = torch.tensor([fill]).to(pixels.dtype)
    if one.to(torch.float64).item() != fill:
        raise UsageError(
            f"Pipeline: {'soft_fill' if soft else 'mask_fill'} is {fill} and the masks are "
            f"{pixels.dtype}; a number that they hold is allowed. Pass another."
        )
    if soft:
        return pixels.float(), (float(fill),) * depth
    return pixels.view(torch.uint8), tuple(map(float, one.view(torch.uint8).tolist() * depth))


def _dense(pixels: Tensor) -> Tensor:
    """Return the same, contiguous, its last stride 1 where that dimension is 1 too."""
    return pixels.reshape(-1).contiguous().view(pixels.shape)


def values_of(planes: Tensor, dtype: torch.dtype, soft: bool) -> Tensor:
    """Return the masks or soft maps of moved planes [N, h, w, B]: [N, h, w, K] of this dtype, whole numbers rounded."""
    if not soft:
        return _dense(planes).view(dtype)
    if dtype.is_floating_point:
        return planes.to(dtype)
    limits = torch.iinfo(dtype)
    return planes.add(0.5).floor_().clamp_(limits.min, limits.max).to(dtype)


def mixed_labels(stages: Sequence[Stage], columns: Tensor, soft: Tensor) -> Tensor:
    """Mix shares of classes, float32 [N, K], as the stages mix images. columns: float32 [N, P], of all stages of the pipeline."""
    for stage in stages:
        if stage.mixing is not None:
            mine = columns[:, stage.at]
            own = stage.mixing.share(mine)[:, None]
            soft = own * soft + (1 - own) * soft.index_select(0, stage.mixing.partners(mine))
    return soft


def soft_labels(labels: Tensor, classes: int | None) -> Tensor:
    """Shares of classes, float32 [N, K], of class numbers [N] or shares [N, K].

    Raises UsageError for others, and on the CPU for numbers beyond the classes; on a GPU, which would have to be waited
    for, such rows are all 0.
    """
    wanted = "a tensor, whole numbers [N] or shares [N, K],"
    check_tensor(
        "MixUp, CutMix: labels are",
        labels,
        wanted,
        lambda t: t.ndim == 2 or (t.ndim == 1 and not t.is_floating_point()),
    )
    if labels.ndim == 2:
        return labels.float()
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
