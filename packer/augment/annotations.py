"""Masks, soft maps, boxes, keypoints and labels moved and mixed as the images of a pipeline are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from packer.augment import kinds
from packer.augment.mixing import MixPart
from packer.augment.pass_stages import PassStage, PreparedDraws, Stage
from packer.augment.passes import pass_spec
from packer.augment.validation import check_tensor
from packer.errors import UsageError

Drawn = list[dict[str, Tensor]]
Given = Drawn | PreparedDraws
"""What `Pipeline.sample` returned, or what `Pipeline.prepare` made of it."""


class Followers(ABC):
    """The part of a pipeline that moves what goes with its images.

    mask_fill, soft_fill: see Pipeline. _stages: those of the images. _later: the same but for the one that makes images that differ in
    size alike. _taken: the images before these.
    """

    shape: Any
    mask_fill: Any
    soft_fill: Any
    first: PassStage
    _stages: list[Stage]
    _later: list[Stage]
    _taken: kinds.PixelFormat

    @abstractmethod
    def prepare(self, params: Given, count: int | None = None) -> PreparedDraws:
        """Turn draws into the numbers that the stages need, for so many samples."""

    @property
    def num_classes(self) -> int | None:
        """The number of classes of the soft labels that mixing makes; None if nothing is mixed or the operations do not say."""
        return next((part.num_classes for part in self._mixing if part.num_classes is not None), None)

    @property
    def mixes(self) -> bool:
        """True if labels become soft ones."""
        return bool(self._mixing)

    @property
    def blends(self) -> bool:
        """True if values come between those of two images, as MixUp's do; masks have no such values."""
        return any(part.blends for part in self._mixing)

    @property
    def _mixing(self) -> list[MixPart]:
        return [stage.mixing for stage in self._stages if stage.mixing is not None]

    def begin_masks(self, masks: Tensor, columns: Tensor, out: Tensor, *, soft: bool = False) -> None:
        """Make masks of images that differ in size alike: the first stage of `apply_masks`, or of `apply_soft`.

        masks: of the images' full sizes, in one memory: [P, 1], at most 4 bytes a number. columns: of the first stage, `placed`.
        out: [N, h, w] of their dtype, contiguous; filled.
        """
        fill = self.soft_fill if soft else self.mask_fill
        out.copy_(_moved_layers([self.first], columns, masks, fill, soft)[..., 0])

    def apply_masks(self, masks: Tensor, params: Given) -> Tensor:
        """Move masks as the images: the nearest pixel's value, never a new one, and mask_fill beyond the edges.

        masks: [N, H, W] or [N, K, H, W], integers, bool or floating point, any device; not modified. Of images that differ in size
            what `begin_masks` filled.
        Returns: the same with (h, w); the same memory if nothing moves.
        Raises UsageError if masks are of another size than the images, or MixUp would have to mix them.
        """
        return self._apply_layers("masks", masks, params, self.mask_fill, soft=False)

    def apply_soft(self, maps: Tensor, params: Given) -> Tensor:
        """Move soft maps, such as mattes or depth, as the images: sampled as these are, not changed in colour, and soft_fill
        beyond the edges.

        maps: as for `apply_masks`. A pixel that is sampled from NaN is NaN. MixUp blends them.
        Returns: the same dtype with (h, w), whole numbers rounded; the same memory if nothing moves.
        Raises UsageError if maps are of another size than the images.
        """
        return self._apply_layers("maps", maps, params, self.soft_fill, soft=True)

    def _apply_layers(self, what: str, masks: Tensor, params: Given, fill: float, soft: bool) -> Tensor:
        self._known()
        size = self._taken.size
        wanted = f"[N, {size[0]}, {size[1]}] or [N, K, {size[0]}, {size[1]}]"
        check_tensor(
            f"Pipeline: {what} are", masks, wanted, lambda m: m.ndim in (3, 4) and m.shape[-2:] == size
        )
        columns = self.prepare(params, len(masks)).on(masks.device)
        if masks.ndim == 3:
            return _moved_layers(self._later, columns, masks[..., None], fill, soft)[..., 0]
        moved = _moved_layers(self._later, columns, masks.permute(0, 2, 3, 1), fill, soft)
        return moved.permute(0, 3, 1, 2)

    def apply_boxes(self, boxes: Tensor, params: Given) -> Tensor:
        """Move boxes as the images, and clip them to what is seen.

        boxes: floating point [N, K, 4], left, top, right, bottom, in pixels from the top left corner, any device; not modified. Edges
            count as inside.
        Returns: the same, each the smallest upright box about the moved one; without area if nothing of it is seen.
        """
        return self._apply_places("boxes", boxes, params, 4, _moved_boxes)

    def apply_keypoints(self, points: Tensor, params: Given) -> Tensor:
        """Move points as the images.

        points: floating point [N, K, 2], x and y in pixels from the top left corner, NaN where there is none, any device.
        Returns: the same; NaN for points that are not seen, so that none is taken for a point at an edge.
        """
        return self._apply_places("points", points, params, 2, _moved_points)

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
                f"{self._mixing[0].name}: {what} are not mixed; images and labels are. Leave it out for such data."
            )
        columns = self.prepare(params, len(places)).on(places.device)
        for stage in self._stages:
            if stage.moves:
                places = move(places.double(), columns[:, stage.at], stage.result.size).to(places.dtype)
        return places

    def apply_labels(self, labels: Tensor, params: Given, num_classes: int | None = None) -> Tensor:
        """Mix labels as the images.

        labels: whole numbers [N], shares floating point [N, K], or other floating-point numbers [N], in the order of the batch that
            `apply` gets. num_classes: K; the mixing operation's if None.
        Returns: float32 [N, K], of other numbers [N], if images are mixed, else the labels.
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
                own = stage.mixing.share(mine)[:, None]
                soft = own * soft + (1 - own) * soft.index_select(0, stage.mixing.partners(mine))
        return soft

    def _known(self) -> None:
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


def _moved_layers(stages: list[Stage], columns: Tensor, pixels: Tensor, fill: float, soft: bool) -> Tensor:
    """Move masks, or with `soft` soft maps, of any type by the stages' numbers: [N, h, w, K].

    columns: float32 [N, P], of all stages of the pipeline. pixels: [N, H, W, K], or [P, K] of a ragged pass. fill: what is beyond the
    edges. A mask's pixel of any type moves as that many bytes, the nearest one's; soft maps are sampled as the images, in float32.
    """
    if not any(stage.moves or stage.mixing is not None for stage in stages):
        return pixels
    planes, filling = _planes_of(_dense(pixels), fill, soft)
    planes = planes.movedim(-1, 1)
    for stage in stages:
        mine = columns[:, stage.at]
        if isinstance(stage, PassStage):
            planes = stage.run_masks(planes, mine, filling) if stage.moves else planes
        elif stage.mixing is not None:
            planes = stage.mixing.mix_masks(planes, mine)
    planes = planes.permute(0, 2, 3, 1)
    if not soft:
        return _dense(planes).view(pixels.dtype)
    if pixels.dtype.is_floating_point:
        return planes.to(pixels.dtype)
    limits = torch.iinfo(pixels.dtype)
    return planes.add(0.5).floor_().clamp_(limits.min, limits.max).to(pixels.dtype)


def _planes_of(pixels: Tensor, fill: float, soft: bool) -> tuple[Tensor, tuple[float, ...]]:
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
