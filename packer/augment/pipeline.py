"""Operations one after the other: draw for every row first, then apply without chance.

Draws are made on the host, keyed by (seed, epoch, place in the pipeline, name of the operation) and counted by row, so a
row gets the same flip and the same crop in whichever batch, on whichever rank and device it is processed. Before images
are touched, the draws become one row of numbers a sample; pass_stages.py says how.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import takewhile
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from packer.augment import kinds, validation
from packer.augment.annotations import (
    mixed_labels,
    move_layers,
    move_places,
    planes_of,
    soft_labels,
    values_of,
)
from packer.augment.draw_steps import EQUAL_SIZES, DrawPlan, steps
from packer.augment.mixing import MixPart
from packer.augment.pass_stages import PassStage, PreparedDraws, Stage, run_stages, staged
from packer.augment.validation import Number, Parameter, Whole, check_tensor, checked
from packer.errors import UsageError

_DTYPES = (torch.uint8, torch.uint16, torch.float32, torch.float16, torch.bfloat16)
_LIMITS = {torch.uint8: 255.0, torch.uint16: 65_535.0}  # of floating point 1

Drawn = list[dict[str, Tensor]]
Sizes = NDArray[np.int64]


@dataclass(eq=False, repr=False)
class Pipeline:
    """Transforms applied in order.

    transforms: any number, or the text of a list; an empty pipeline returns the images themselves.
    shape: (C, H, W) of the images that go in; (C, None, None): they differ in size; None: `at` says it later.
    seed: of all draws. dtype: of the images, torch.uint8, torch.uint16, or floating point from 0 to 1.
    mask_fill: what masks get beyond an image's edges. soft_fill: what soft maps get there.
    split: images that differ in size are made alike in their own dtype, and all else is left to `apply`, which may then run
        on another device: less is copied there.
    first: for images that differ in size, the stage that makes them alike as they are read; `apply` and those beside it take what it made.
    Raises UsageError if a transform cannot take the images it would get.
    """

    transforms: Sequence[kinds.Transform] | str
    shape: Any = None
    _: KW_ONLY
    seed: Whole = Parameter(validation.whole, 0)
    dtype: torch.dtype = torch.uint8
    mask_fill: Whole = Parameter(validation.whole, 0)
    soft_fill: Number = Parameter(validation.number, 0.0)
    split: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in _DTYPES:
            allowed = ", ".join(map(str, _DTYPES))
            raise UsageError(
                f"Pipeline: dtype is {self.dtype!r}; {allowed} are allowed. Convert the images first."
            )
        self.transforms: tuple[kinds.Transform, ...] = listed(self.transforms)
        self._stages: list[Stage] = []
        self._checked = False
        drawing = steps(self.transforms)
        if self.shape is None:
            return
        self._plan = DrawPlan(drawing, self.shape)
        limit = _LIMITS.get(self.dtype, 1.0)
        self._taken = kinds.PixelFormat(self.shape[0], self._plan.shape[1:], self.dtype, limit)
        self._stages = staged(self._plan.parts, self._taken, self.split and self.ragged)
        if any(np.ndim(stage.result.size[0]) for stage in self._stages) or (self.ragged and not self._stages):
            raise UsageError(
                "Pipeline: the images differ in size, and one pass has to make them alike: by one resize, and with one fill. "
                f"{EQUAL_SIZES}. Put one of them first."
            )
        self._later = self._stages
        if self.ragged:
            assert isinstance(self._stages[0], PassStage)
            self.first, self._later = self._stages[0], self._stages[1:]
            self._taken = self.first.result

    def __repr__(self) -> str:
        about = f"shape={self.shape}, seed={self.seed}, dtype={self.dtype}, mask_fill={self.mask_fill}"
        return f"Pipeline({list(self.transforms)}, {about})"

    def at(self, shape: kinds.Shape | tuple[int, None, None] | None, **changes: Any) -> Pipeline:
        """Return the same pipeline for images of this (C, H, W), and with other arguments if given."""
        return replace(self, shape=shape, **changes)

    @property
    def ragged(self) -> bool:
        """True for images that differ in size."""
        return self.shape is not None and self.shape[1] is None

    @property
    def output_shape(self) -> kinds.Shape:
        """(C, H, W) of the results."""
        return self._result.shape

    @property
    def output_dtype(self) -> torch.dtype:
        """The dtype of the results."""
        return self._result.dtype

    @property
    def _result(self) -> kinds.PixelFormat:
        self._known()
        return self._later[-1].result if self._later else self._taken

    @property
    def stages(self) -> tuple[str, ...]:
        """For each stage "pass", or the name of the transform that stands between passes, in order."""
        return tuple("pass" if isinstance(s, PassStage) else s.part.name for s in self._stages)

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

    def sample(
        self,
        rows: NDArray[np.int64] | Tensor,
        epoch: int = 0,
        *,
        seed: int | None = None,
        sizes: Sizes | None = None,
        counters: NDArray[np.int64] | None = None,
    ) -> Drawn:
        """Draw for these rows of an epoch, one dictionary a transform, in their order, those of RandomApply among them.

        rows: whole numbers [N], the images' row numbers. seed: another than the pipeline's. sizes: of images that differ in size,
        whole numbers [N, 2], heights and widths. counters: int64 [N],
        what keys the draws in place of the rows, where a row comes several times in an epoch.
        Returns tensors on the CPU whose first dimension is N; each operation's `sample` names them. They may be changed.
        """
        self._known()
        epoch = checked("Pipeline", "epoch", epoch, validation.whole, 0)
        seed = self.seed if seed is None else checked("Pipeline", "seed", seed, validation.whole)
        found = rows.cpu().numpy() if isinstance(rows, Tensor) else np.asarray(rows)
        if found.ndim != 1 or not (np.issubdtype(found.dtype, np.integer) or not found.size):
            raise UsageError(
                f"Pipeline: rows are {found.dtype} {list(found.shape)}; whole numbers [N] are allowed. Pass row numbers."
            )
        return self._plan.sample(kinds.Draws(found.astype(np.int64), seed, epoch, counters=counters), sizes)

    def first_refused(self, sizes: Sizes) -> tuple[int, UsageError] | None:
        """Return the number of the first image that is too small, and why; None if there is none.

        sizes: of images that differ in size, int64 [N, 2], heights and widths.
        """
        self._known()
        return self._plan.first_refused(sizes)

    def prepare(
        self, params: Drawn | PreparedDraws, count: int | None = None, *, sizes: Sizes | None = None
    ) -> PreparedDraws:
        """Turn draws into the numbers that the stages need; what several calls share is then worked out once.

        params: what `sample` returned. count: samples; needed where nothing is drawn. sizes: as `sample` got them.
        Raises UsageError if params are not this pipeline's, or for another number of samples.
        """
        self._known()
        count = len(sizes) if count is None and sizes is not None else count
        if isinstance(params, PreparedDraws):
            found, prepared = len(params), params
            if params.host.shape[1] != sum(stage.width for stage in self._stages):
                raise UsageError(
                    "Pipeline: params were prepared by another pipeline. Prepare them by this one."
                )
        else:
            draws, found = self._plan.checked(params, count)
            if sizes is not None or self.ragged:
                sizes = self._plan.checked_sizes(sizes, found)
            pieces = [stage.columns(draws, found, sizes) for stage in self._stages]
            joined = np.concatenate(pieces or [np.zeros((found, 0), np.float32)], axis=1)
            prepared = PreparedDraws(torch.from_numpy(joined))
        if count is not None and found != count:
            raise UsageError(
                f"Pipeline: params are of {found} samples and there are {count} images; as many are allowed. "
                "Sample the batch's rows."
            )
        return prepared

    def apply(
        self,
        images: Tensor,
        params: Drawn | PreparedDraws,
        *,
        rows: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """Apply what was drawn.

        images: [N, C, H, W], any device, best with channels_last strides; not modified. Of images that differ in size what the first
            stage made.
        params: what `sample` or `prepare` returned for these images.
        rows: int64 [N] on the images' device, the images to take (not checked there); they are then [M, C, H, W], a whole
            field for example, and no batch is put together before it is augmented.
        out: takes the result if given: the result's shape and dtype, channels_last, same device. A CPU fills memory it
            has used before about twice as fast as new memory.
        Returns: out, or a new tensor, channels_last (for an empty pipeline the images themselves).
        Raises UsageError if images, params and out do not fit together.
        """
        self._check(images)
        if rows is not None:
            row_numbers = "a tensor int64 [N]"
            check_tensor(
                "Pipeline: rows are", rows, row_numbers, lambda r: r.dtype == torch.int64 and r.ndim == 1
            )
        count = len(images) if rows is None else len(rows)
        prepared = self.prepare(params, count)
        shape, dtype = (count, *self.output_shape), self.output_dtype
        if out is not None and (out.shape, out.dtype, out.device) != (shape, dtype, images.device):
            raise UsageError(
                f"out: it is {out.dtype} {list(out.shape)} on {out.device}; {dtype} {list(shape)} on {images.device} is allowed. "
                "Allocate that, or pass none."
            )
        alone = [*takewhile(lambda stage: stage.mixing is None, self._later)]  # each image by itself
        mixing = self._later[len(alone) :]
        # A pass may write a pixel before it reads it for another one.
        shared = out is not None and out.untyped_storage().data_ptr() == images.untyped_storage().data_ptr()
        target = None if mixing or shared else out
        made = run_stages(alone, images, prepared, rows, target)
        if self._stages and not self.ragged and made.data_ptr() == images.data_ptr():
            # Operations may have had nothing to do, and mixing overwrites what it gets.
            made = made.clone(memory_format=torch.channels_last)
        return run_stages(mixing, made, prepared, None, out)

    def begin_masks(self, masks: Tensor, columns: Tensor, out: Tensor, *, soft: bool = False) -> None:
        """Make masks of images that differ in size alike: the first stage of `apply_masks`, or of `apply_soft`.

        masks: of the images' full sizes, in one memory: [P, 1], at most 4 bytes a number. columns: of the first stage, `placed`.
        out: [N, h, w] of their dtype, contiguous; filled.
        """
        fill = self.soft_fill if soft else self.mask_fill
        planes, filling = planes_of(masks, fill, soft)
        moved = self.first.run_masks(planes, columns, filling)
        out.copy_(values_of(moved.permute(0, 2, 3, 1), masks.dtype, soft)[..., 0])

    def apply_masks(self, masks: Tensor, params: Drawn | PreparedDraws) -> Tensor:
        """Move masks as the images: the nearest pixel's value, never a new one, and mask_fill beyond the edges.

        masks: [N, H, W] or [N, K, H, W], integers, bool or floating point, any device; not modified. Of images that differ in size
            what `begin_masks` filled.
        Returns: the same with (h, w); the same memory if nothing moves.
        Raises UsageError if masks are of another size than the images, or MixUp would have to mix them.
        """
        return self._moved_layers("masks", masks, params, self.mask_fill, soft=False)

    def apply_soft(self, maps: Tensor, params: Drawn | PreparedDraws) -> Tensor:
        """Move soft maps, such as mattes or depth, as the images: sampled as these are, not changed in colour, and soft_fill
        beyond the edges.

        maps: as for `apply_masks`. A pixel that is sampled from NaN is NaN. MixUp blends them.
        Returns: the same dtype with (h, w), whole numbers rounded; the same memory if nothing moves.
        Raises UsageError if maps are of another size than the images.
        """
        return self._moved_layers("maps", maps, params, self.soft_fill, soft=True)

    def apply_boxes(self, boxes: Tensor, params: Drawn | PreparedDraws) -> Tensor:
        """Move boxes as the images, and clip them to what is seen.

        boxes: floating point [N, K, 4], left, top, right, bottom, in pixels from the top left corner, any device.
        Returns: the same, each the smallest upright box about the moved one; without area if nothing of it is seen.
        """
        return self._moved("boxes", boxes, params, 4)

    def apply_keypoints(self, points: Tensor, params: Drawn | PreparedDraws) -> Tensor:
        """Move points as the images.

        points: floating point [N, K, 2], x and y in pixels from the top left corner, NaN where there is none, any device.
        Returns: the same; NaN for points that are not seen, so that none is taken for a point at an edge.
        """
        return self._moved("points", points, params, 2)

    def apply_labels(
        self, labels: Tensor, params: Drawn | PreparedDraws, num_classes: int | None = None
    ) -> Tensor:
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
        return mixed_labels(self._stages, columns, soft)

    def __call__(self, images: Tensor, rows: NDArray[np.int64] | Tensor, epoch: int = 0) -> Tensor:
        """Draw and apply: images [N, C, H, W] of these rows, whole numbers [N]."""
        return self.apply(images, self.sample(rows, epoch))

    def _known(self) -> None:
        if self.shape is None:
            raise UsageError(
                "Pipeline: the images' shape is not known. Pass shape=(C, H, W), or call at(shape) first."
            )

    def _moved_layers(
        self, what: str, masks: Tensor, params: Drawn | PreparedDraws, fill: float, soft: bool
    ) -> Tensor:
        """Take masks or soft maps through the stages, but for the one that `begin_masks` did."""
        self._known()
        size = self._taken.size
        wanted = f"[N, {size[0]}, {size[1]}] or [N, K, {size[0]}, {size[1]}]"
        check_tensor(
            f"Pipeline: {what} are", masks, wanted, lambda m: m.ndim in (3, 4) and m.shape[-2:] == size
        )
        layers = masks if masks.ndim == 4 else masks[:, None]
        columns = self.prepare(params, len(masks)).on(masks.device)
        moved = move_layers(self._later, columns, layers, fill, soft)
        return moved if masks.ndim == 4 else moved[:, 0]

    def _check(self, images: Tensor) -> None:
        """Raise UsageError for images that are not what the pipeline was made for; on a GPU values are looked at once."""
        self._known()
        who = type(self.transforms[0]).__name__ if self.transforms and not self.ragged else "Pipeline"
        validation.check_images(who, images, self._taken.shape, self._taken.dtype)
        if self.ragged or not self.dtype.is_floating_point:
            return
        if images.device.type == "cpu" or not self._checked:
            validation.check_range(who, images)
            self._checked = len(images) > 0

    def _moved(self, what: str, places: Tensor, params: Drawn | PreparedDraws, width: int) -> Tensor:
        """Take boxes or points through the stages that move pixels."""
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
        return move_places(self._stages, columns, places)


def listed(transforms: Any) -> tuple[kinds.Transform, ...]:
    """Return a list of transforms, or the text of one."""
    if isinstance(transforms, str):
        from packer.augment.transform_text import parse  # it knows all operations by name

        return tuple(parse(transforms))
    if isinstance(transforms, kinds.Transform):
        raise UsageError(f"augment={transforms!r}: is no list. Pass [{type(transforms).__name__}(...)].")
    if not isinstance(transforms, Sequence):
        kinds.check_transform(transforms)
    return tuple(transforms)
