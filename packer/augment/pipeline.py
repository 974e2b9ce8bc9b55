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
from packer.augment.annotations import Drawn, Followers, Given
from packer.augment.draw_steps import EQUAL_SIZES, DrawPlan, steps
from packer.augment.kinds import Sizes
from packer.augment.pass_stages import PassStage, PreparedDraws, run_stages, staged
from packer.augment.validation import Number, Parameter, Whole, check_tensor, checked
from packer.errors import UsageError

_DTYPES = (torch.uint8, torch.uint16, torch.float32, torch.float16, torch.bfloat16)
_LIMITS = {torch.uint8: 255.0, torch.uint16: 65_535.0}  # of floating point 1


@dataclass(eq=False, repr=False)
class Pipeline(Followers):
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
        self._stages = []
        self._checked = False
        drawing = steps(self.transforms)
        if self.shape is None:
            return
        self._plan = DrawPlan(drawing, self.shape)
        limit = _LIMITS.get(self.dtype, 1.0)
        self._taken = kinds.PixelFormat(self.shape[0], self._plan.size, self.dtype, limit)
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
        self, params: Given, count: int | None = None, *, sizes: Sizes | None = None
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
        self, images: Tensor, params: Given, *, rows: Tensor | None = None, out: Tensor | None = None
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

    def __call__(self, images: Tensor, rows: NDArray[np.int64] | Tensor, epoch: int = 0) -> Tensor:
        """Draw and apply: images [N, C, H, W] of these rows, whole numbers [N]."""
        return self.apply(images, self.sample(rows, epoch))

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
