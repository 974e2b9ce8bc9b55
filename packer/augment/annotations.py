"""Masks, soft maps, boxes, keypoints and labels, transformed like the images of a pipeline."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from packer.augment import kinds
from packer.augment.mixing import MixPart
from packer.augment.pass_stages import PassStage, Stage
from packer.augment.passes import pass_spec
from packer.augment.passes.prepared_draws import PreparedDraws
from packer.augment.validation import check_tensor
from packer.errors import UsageError

Drawn = list[dict[str, Tensor]]
Given = Drawn | PreparedDraws
"""The result of `Pipeline.sample` or `Pipeline.prepare`."""


class AnnotationTransforms(ABC):
    """The part of a pipeline that transforms annotations of its images.

    mask_fill, soft_fill, flip_pairs: see Pipeline. first: the stage that brings images that differ in size to
    one size.
    _stages: all stages of the images. _later: all stages except `first`. _taken: the images before `_later`.
    """

    shape: Any
    mask_fill: Any
    soft_fill: Any
    flip_pairs: Any
    first: PassStage
    _stages: list[Stage]
    _later: list[Stage]
    _taken: kinds.PixelFormat
    _counterparts: dict[tuple[int, torch.device], Tensor]

    @abstractmethod
    def prepare(self, params: Given, count: int | None = None) -> PreparedDraws:
        """Convert draws to the columns that the stages need, for `count` samples."""

    @property
    def num_classes(self) -> int | None:
        """Number of classes of mixed labels; None without mixing, or if no operation defines it."""
        return next((part.num_classes for part in self._mixing if part.num_classes is not None), None)

    @property
    def mixes(self) -> bool:
        """True if the pipeline mixes images, so that labels become soft."""
        return bool(self._mixing)

    @property
    def blends(self) -> bool:
        """True if results interpolate between two images, as MixUp's do; masks do not support this."""
        return any(part.blends for part in self._mixing)

    @property
    def _mixing(self) -> list[MixPart]:
        return [stage.mixing for stage in self._stages if stage.mixing is not None]

    def begin_masks(self, masks: Tensor, columns: Tensor, out: Tensor, *, soft: bool = False) -> None:
        """Run the first stage of `apply_masks` or `apply_soft` on masks of images that differ in size.

        masks: [P, 1], all masks in one array, in the images' full sizes; at most 4 bytes a number.
        columns: those of the first stage, after `placed`. soft: True for soft maps.
        out: [N, h, w] of their dtype, contiguous; receives the result.
        """
        fill = self.soft_fill if soft else self.mask_fill
        out.copy_(_moved_layers([self.first], PreparedDraws(columns), masks, fill, soft)[..., 0])

    def apply_masks(self, masks: Tensor, params: Given) -> Tensor:
        """Transform masks like the images: values of the nearest pixel, and mask_fill beyond the edges.

        masks: [N, H, W] or [N, K, H, W], integers, bool or floating point, any device; not modified. For
            images that differ in size, the output of `begin_masks`.
        Returns: the same shape with (h, w) for (H, W); the same memory if no stage moves pixels.
        Raises UsageError if masks differ in size from the images, or the pipeline has MixUp.
        """
        return self._apply_layers("masks", masks, params, self.mask_fill, soft=False)

    def apply_soft(self, maps: Tensor, params: Given) -> Tensor:
        """Transform soft maps, such as mattes or depth, like the images, with soft_fill beyond the edges.

        Maps are interpolated like the images, colour operations are left out, and MixUp blends maps.

        maps: as for `apply_masks`. A pixel sampled from NaN is NaN.
        Returns: the same dtype with (h, w) for (H, W), integers rounded; the same memory if no stage moves
            pixels.
        Raises UsageError if maps differ in size from the images.
        """
        return self._apply_layers("maps", maps, params, self.soft_fill, soft=True)

    def _apply_layers(self, what: str, masks: Tensor, params: Given, fill: float, soft: bool) -> Tensor:
        self._check_shape()
        size = self._taken.size
        wanted = f"[N, {size[0]}, {size[1]}] or [N, K, {size[0]}, {size[1]}]"
        check_tensor(
            f"Pipeline: {what} are", masks, wanted, lambda m: m.ndim in (3, 4) and m.shape[-2:] == size
        )
        draws = self.prepare(params, len(masks))
        if masks.ndim == 3:
            return _moved_layers(self._later, draws, masks[..., None], fill, soft)[..., 0]
        moved = _moved_layers(self._later, draws, masks.permute(0, 2, 3, 1), fill, soft)
        return moved.permute(0, 3, 1, 2)

    def apply_boxes(self, boxes: Tensor, params: Given) -> Tensor:
        """Transform boxes like the images, and clip them to the visible part.

        boxes: floating point [N, K, 4]: left, top, right, bottom, in pixels from the top left corner, any
            device; not modified. Points on an edge are inside.
        Returns: the same shape: the bounding box of each transformed box; without area if no part is visible.
        """
        return self._apply_places("boxes", boxes, params, 4, _moved_boxes)

    def apply_keypoints(self, points: Tensor, params: Given) -> Tensor:
        """Transform points like the images, and exchange the `flip_pairs` of mirrored images.

        An image is mirrored if its matrix has a negative determinant: a flip left to right or top to bottom,
        which is a mirror image turned by 180 degrees, but not both.

        points: floating point [N, K, 2]: x and y in pixels from the top left corner, NaN for missing points,
            any device.
        Returns: the same shape; NaN for points that are not visible, never a point clipped to an edge.
        """
        moved = self._apply_places("points", points, params, 2, _moved_points)
        if not self.flip_pairs:
            return moved
        columns = self.prepare(params, len(points)).on(points.device)
        mirrored = torch.zeros(len(points), dtype=torch.bool, device=points.device)
        for stage in self._stages:
            if stage.moves:
                a, b, _, c, d, _ = columns[:, stage.at][:, : pass_spec.TAPS_AT].unbind(-1)
                mirrored ^= a * d < b * c
        exchanged = moved.index_select(1, self._exchanged(moved.shape[1], points.device))
        return torch.where(mirrored[:, None, None], exchanged, moved)

    def _exchanged(self, count: int, device: torch.device) -> Tensor:
        """Return the number of each point's counterpart in a mirrored image; int64 [count], copied once."""
        if (count, device) not in self._counterparts:
            order = list(range(count))
            for a, b in self.flip_pairs or ():
                if b >= count:
                    raise UsageError(
                        f"Pipeline: flip_pairs has the point {b} and there are {count}; their numbers, from"
                        " 0, are allowed. Pass those."
                    )
                order[a], order[b] = b, a
            self._counterparts[count, device] = torch.tensor(order, dtype=torch.int64, device=device)
        return self._counterparts[count, device]

    def _apply_places(
        self, what: str, places: Tensor, params: Given, width: int, move: Callable[..., Tensor]
    ) -> Tensor:
        check_tensor(
            f"Pipeline: {what} are",
            places,
            f"floating point [N, K, {width}]",
            lambda p: p.ndim == 3 and p.shape[-1] == width and p.is_floating_point(),
        )
        if self.mixes:
            raise UsageError(
                f"{self._mixing[0].name}: {what} cannot be mixed; images and labels are allowed."
                f" Leave it out for data with {what}."
            )
        columns = self.prepare(params, len(places)).on(places.device)
        for stage in self._stages:
            if stage.moves:
                places = move(places.double(), columns[:, stage.at], stage.result.size).to(places.dtype)
        return places

    def apply_labels(self, labels: Tensor, params: Given, num_classes: int | None = None) -> Tensor:
        """Mix labels like the images.

        labels: class numbers (integers [N]), class probabilities (floating point [N, K]) or regression
            targets (floating point [N]), in the order of the batch passed to `apply`.
        num_classes: K; that of the mixing operation takes precedence.
        Returns: float32 [N, K], or [N] for regression targets; the labels themselves without mixing.
        """
        if not self.mixes:
            return labels
        if isinstance(labels, Tensor) and labels.ndim == 1 and labels.is_floating_point():
            return self.apply_labels(labels[:, None], params)[:, 0]
        soft = soft_labels(labels, self.num_classes or num_classes)
        columns = self.prepare(params, len(labels)).on(labels.device)
        for stage in self._stages:
            if stage.mixing is not None:
                mine = columns[:, stage.at]
                weight = stage.mixing.share(mine)[:, None]
                soft = weight * soft + (1 - weight) * soft.index_select(0, stage.mixing.partners(mine))
        return soft

    def _check_shape(self) -> None:
        if self.shape is None:
            raise UsageError(
                "Pipeline: the images' shape is not known. Pass shape=(C, H, W), or call at(shape) first."
            )


def _moved_boxes(boxes: Tensor, columns: Tensor, size: tuple[int, int]) -> Tensor:
    low, high = _seen_part(columns)
    left, top = boxes[..., :2].maximum(low).minimum(high).unbind(-1)
    right, bottom = boxes[..., 2:].maximum(low).minimum(high).unbind(-1)
    corners = torch.stack([left, top, right, top, right, bottom, left, bottom], dim=-1)
    moved = _moved(corners.reshape(len(boxes), 4 * boxes.shape[1], 2), columns).reshape(
        *boxes.shape[:2], 4, 2
    )
    first, end = (_clipped(corner, size) for corner in (moved.amin(dim=2), moved.amax(dim=2)))
    # A box clipped to a line would have area again after a rotation.
    nothing = (right <= left) | (bottom <= top)
    return torch.cat([first, torch.where(nothing[..., None], first, end)], dim=-1)


def _moved_points(points: Tensor, columns: Tensor, size: tuple[int, int]) -> Tensor:
    low, high = _seen_part(columns)
    moved = _moved(points, columns)
    inside = _clipped(moved, size)
    seen = (points >= low) & (points <= high) & ((moved - inside).abs() <= _NEAR)
    return torch.where(seen.all(-1, keepdim=True), inside, torch.nan)


def _seen_part(columns: Tensor) -> tuple[Tensor, Tensor]:
    """Return the top left and bottom right corner of the source's visible part: float64 [N, 1, 2] each."""
    taps = columns[:, None, pass_spec.TAPS_AT : pass_spec.SUPPORT_AT].double()
    frame = columns[:, None, pass_spec.FRAME_AT : pass_spec.SHARPNESS_AT].double() + 0.5
    return taps[..., :2].maximum(frame[..., :2]), (taps[..., 2:] + 1).minimum(frame[..., 2:])


def _clipped(points: Tensor, size: tuple[int, int]) -> Tensor:
    """Return points clamped to a picture of size (h, w).

    The bounds are Python numbers: copying a tensor of them to a GPU would synchronise.
    """
    x, y = points.unbind(-1)
    return torch.stack([x.clamp(0, size[1]), y.clamp(0, size[0])], dim=-1)


def moved_lists(
    boxes: Sequence[Tensor], box_fields: Mapping[str, Sequence[Tensor]], move: Callable[[Tensor], Tensor]
) -> tuple[list[Tensor], dict[str, list[Tensor]]]:
    """Transform a varying number of boxes an image; drop boxes without area, and their box_fields.

    boxes: N tensors [k, 4]. box_fields: name -> N tensors [k, ...], such as labels of boxes.
    move: transforms floating point [N, K, 4], like Pipeline.apply_boxes.
    Returns: boxes, floating point (float32 for integers); box_fields.
    Raises UsageError for boxes of another shape, and box_fields without an entry for each box.
    """
    for name, rows in box_fields.items():
        for row, its in zip(rows, boxes, strict=True):
            if len(row) != len(its):
                raise UsageError(
                    f"augment: {name!r} of a row has {len(row)} entries for {len(its)} boxes; a field named"
                    " box_... has an entry for each box. Give the field another name."
                )
    if not boxes:
        return [], {name: [] for name in box_fields}
    every = _joined(boxes)
    every = every if every.is_floating_point() else every.float()
    every = every if len(every) else every.new_zeros((0, 4))
    if every.shape[1:] != (4,):
        raise UsageError(
            f"augment: each of the boxes has the shape {list(every.shape[1:])}; [4] is allowed: left, top, right,"
            " bottom. Pass such."
        )
    counts = torch.tensor([len(its) for its in boxes], dtype=torch.int64, device=every.device)
    most = max(map(len, boxes))
    used = torch.arange(most, dtype=torch.int64, device=every.device) < counts[:, None]
    places = used.flatten().nonzero()[:, 0]  # of every box, in the images' padded lists
    padded = every.new_zeros((used.numel(), 4)).index_copy_(0, places, every)
    # Not moved[places]: it waits for torch's threads, on a busy machine for milliseconds.
    moved = move(padded.view(*used.shape, 4)).flatten(0, 1).index_select(0, places)
    keep = (moved[:, 2:] > moved[:, :2]).all(dim=-1).nonzero()[:, 0]
    left = torch.bincount(places.index_select(0, keep) // max(most, 1), minlength=len(boxes)).tolist()
    kept = {name: _joined(rows).index_select(0, keep).split(left) for name, rows in box_fields.items()}
    return list(moved.index_select(0, keep).split(left)), {name: list(rows) for name, rows in kept.items()}


def _joined(rows: Sequence[Tensor]) -> Tensor:
    """Concatenate tensors [k, ...]; empty ones do not decide the dtype."""
    return torch.cat([row for row in rows if len(row)] or list(rows[:1]))


_NEAR = 1e-3  # tolerance for float32 columns: points on an edge remain visible


def _moved(points: Tensor, columns: Tensor) -> Tensor:
    """Return the positions in the result of points in the source: float64 [N, K, 2]."""
    a, b, c, d, e, f = (column[:, None] for column in columns[:, : pass_spec.TAPS_AT].double().unbind(-1))
    # The matrix maps pixel centres of the result to pixel centres of the source; this is its inverse.
    x, y = points.unbind(-1)
    x, y = x - 0.5 - c, y - 0.5 - f
    determinant = a * e - b * d
    return torch.stack([(e * x - b * y) / determinant, (a * y - d * x) / determinant], dim=-1) + 0.5


def _moved_layers(
    stages: list[Stage], draws: PreparedDraws, pixels: Tensor, fill: float, soft: bool
) -> Tensor:
    """Transform masks, or soft maps if `soft`, through stages: [N, h, w, K], same dtype.

    draws: of all stages of the pipeline. pixels: [N, H, W, K], or [P, K] for a ragged pass.
    fill: value beyond the edges.
    Masks of any dtype are moved as bytes, from the nearest pixel; soft maps are sampled like the images, as
    float32.
    """
    if not any(stage.moves or stage.mixing is not None for stage in stages):
        return pixels
    planes, filling = _planes_of(_dense(pixels), fill, soft)
    planes = planes.movedim(-1, 1)
    draws.on(pixels.device)  # one copy for all stages
    for stage in stages:
        mine = draws[:, stage.at]
        if isinstance(stage, PassStage):
            planes = stage.run_masks(planes, mine, filling) if stage.moves else planes
        elif stage.mixing is not None:
            planes = stage.mixing.mix_masks(planes, mine.on(planes.device))
    planes = planes.permute(0, 2, 3, 1)
    if not soft:
        return _dense(planes).view(pixels.dtype)
    if pixels.dtype.is_floating_point:
        return planes.to(pixels.dtype)
    limits = torch.iinfo(pixels.dtype)
    return planes.add(0.5).floor_().clamp_(limits.min, limits.max).to(pixels.dtype)


def _planes_of(pixels: Tensor, fill: float, soft: bool) -> tuple[Tensor, tuple[float, ...]]:
    """Return the planes of masks or soft maps that a pass moves, and their fill.

    pixels: [..., K], contiguous. Returns: uint8 (masks) or float32 (soft maps) [..., B], and B numbers.
    Raises UsageError if the dtype of pixels cannot represent the fill.
    """
    depth = pixels.shape[-1]
    if soft and pixels.dtype.is_floating_point:
        return pixels.float(), (fill,) * depth
    exact = torch.float64 if isinstance(fill, float) else torch.int64
    one = torch.tensor([fill], dtype=exact, device="cpu").to(pixels.dtype)
    if one.to(torch.float64).item() != fill:
        raise UsageError(
            f"Pipeline: {'soft_fill' if soft else 'mask_fill'} is {fill} and the masks are {pixels.dtype};"
            " a number of this type is allowed. Pass another."
        )
    if soft:
        return pixels.float(), (float(fill),) * depth
    return pixels.view(torch.uint8), tuple(map(float, one.view(torch.uint8).tolist() * depth))


def _dense(pixels: Tensor) -> Tensor:
    """Return the tensor contiguous, with a last stride of 1 even for a last dimension of 1."""
    return pixels.reshape(-1).contiguous().view(pixels.shape)


def soft_labels(labels: Tensor, classes: int | None) -> Tensor:
    """Return class probabilities, float32 [N, K], for class numbers [N] or probabilities [N, K].

    Raises UsageError for other tensors and, on the CPU, for class numbers out of range. On a GPU, where this
    check would synchronise, the rows of such numbers are 0.
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
            f"MixUp, CutMix: labels are {int(labels.min())} to {int(labels.max())}; 0 to {classes - 1} are"
            " allowed. Pass the right num_classes."
        )
    number = torch.arange(classes, dtype=torch.int64, device=labels.device)
    return (labels[:, None] == number).float()
