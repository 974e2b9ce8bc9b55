"""Pipeline: a sequence of operations that draws random numbers for rows, then applies them deterministically.

The host draws, with keys of (seed, epoch, position in the pipeline, name of the operation) and the row as
counter: a row gets the same flip and crop in every batch and on every rank and device. The stages
(pass_stages.py) convert the draws to a row of numbers for each sample before they process images.
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
from packer.augment.annotations import Drawn, Given
from packer.augment.batch_fields import BatchTransforms
from packer.augment.draw_steps import EQUAL_SIZES, DrawPlan, steps
from packer.augment.kinds import Sizes
from packer.augment.pass_stages import PassStage, run_stages, staged
from packer.augment.passes.pass_spec import Pass
from packer.augment.passes.prepared_draws import PreparedDraws
from packer.augment.validation import Integer, Number, Parameter, checked
from packer.errors import UsageError
from packer.given_values import shown

_DTYPES = (torch.uint8, torch.uint16, torch.float32, torch.float16, torch.bfloat16)
_LIMITS = {torch.uint8: 255.0, torch.uint16: 65_535.0}  # largest pixel values; 1 for floating point


@dataclass(eq=False, repr=False)
class Pipeline(BatchTransforms):
    """Transforms applied in order.

    transforms: a list of transforms, or its text; an empty pipeline returns the images themselves.
    shape: (C, H, W) of the input images; (C, None, None) if they differ in size; None to set it later, by
        `at`.
    seed: seed of all draws. dtype: of the images, torch.uint8, torch.uint16, or floating point from 0 to 1.
    mask_fill: value of masks beyond an image's edges. soft_fill: value of soft maps there.
    flip_pairs: pairs of numbers of points, from 0, that are exchanged in mirrored images: [(0, 1)] for a left
        and a right eye; [] for none. None: those that the pack records, for a pipeline of a dataset.
    split: True to only bring images that differ in size to one size, in their dtype, before `apply`. `apply`
        may then run on another device, to which fewer bytes are copied.
    first: the stage that brings images that differ in size to one size when they are read; `apply`,
        `apply_masks` and `apply_soft` take its results.
    Raises UsageError if a transform does not support the images that reach it.
    """

    transforms: Sequence[kinds.Transform] | str
    shape: Any = None
    _: KW_ONLY
    seed: Integer = Parameter(validation.integer, 0)
    dtype: torch.dtype = torch.uint8
    mask_fill: Integer = Parameter(validation.integer, 0)
    soft_fill: Number = Parameter(validation.number, 0.0)
    flip_pairs: Any = Parameter(validation.number_pairs, None)
    split: bool = False

    def __post_init__(self) -> None:
        if all(self.dtype is not one for one in _DTYPES):
            allowed = ", ".join(map(str, _DTYPES))
            raise UsageError(
                f"Pipeline: dtype is {shown(self.dtype)}; {allowed} are allowed. Convert the images first."
            )
        self.transforms: tuple[kinds.Transform, ...] = listed(self.transforms)
        self._stages = []
        self._checked = False
        self._counterparts = {}
        drawing = steps(self.transforms)
        if self.shape is None:
            return
        self._plan = DrawPlan(drawing, self.shape)
        limit = _LIMITS.get(self.dtype, 1.0)
        self._taken = kinds.PixelFormat(self.shape[0], self._plan.size, self.dtype, limit)
        self._stages = staged(self._plan.parts, self._taken, self.split and self.ragged)
        if any(np.ndim(stage.result.size[0]) for stage in self._stages) or (self.ragged and not self._stages):
            raise UsageError(
                "Pipeline: the images differ in size, and the first pass has to bring them to one size, "
                f"with one resize and one fill. {EQUAL_SIZES}. Put one of them first."
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
        """Return the pipeline for images of another shape, and with changed arguments."""
        return replace(self, shape=shape, **changes)

    @property
    def ragged(self) -> bool:
        """True if images differ in size."""
        return self.shape is not None and self.shape[1] is None

    @property
    def mirrors(self) -> bool:
        """True if images may be mirrored."""
        parts = (part for step in steps(listed(self.transforms)) for part in step.transform.parts())
        return any(isinstance(part, kinds.GeometryPart) and part.mirrors for part in parts)

    @property
    def output_shape(self) -> kinds.Shape:
        """Shape (C, H, W) of the results."""
        return self._result.shape

    @property
    def output_dtype(self) -> torch.dtype:
        """Dtype of the results."""
        return self._result.dtype

    @property
    def _result(self) -> kinds.PixelFormat:
        self._check_shape()
        return self._later[-1].result if self._later else self._taken

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of the stages, in order: "pass", or the name of a transform between passes."""
        return tuple("pass" if isinstance(s, PassStage) else s.part.name for s in self._stages)

    @property
    def passes(self) -> tuple[Pass, ...]:
        """Specifications of the stages that are passes, in order."""
        return tuple(stage.what for stage in self._stages if isinstance(stage, PassStage))

    @np.errstate(under="ignore")  # numbers near 0, whatever np.seterr says
    def sample(
        self,
        rows: NDArray[np.int64] | Tensor,
        epoch: int = 0,
        *,
        seed: int | None = None,
        sizes: Sizes | None = None,
        counters: NDArray[np.int64] | None = None,
    ) -> Drawn:
        """Return the draws for rows of an epoch: a dictionary for each transform, also for those in groups.

        rows: integers [N], the images' row numbers. seed: replaces the pipeline's.
        sizes: integers [N, 2], heights and widths of images that differ in size.
        counters: int64 [N], the keys of draws if not the rows, for orders that repeat rows in an epoch.
        Returns name -> tensor [N, ...] on the CPU; the names are documented by each operation's `sample`. The
            caller may change the values.
        """
        self._check_shape()
        epoch = checked("Pipeline", "epoch", epoch, validation.integer, 0)
        seed = self.seed if seed is None else checked("Pipeline", "seed", seed, validation.integer)
        found = rows.cpu().numpy() if isinstance(rows, Tensor) else np.asarray(rows)
        if found.ndim != 1 or not (np.issubdtype(found.dtype, np.integer) or not found.size):
            raise UsageError(
                f"Pipeline: rows are {found.dtype} {list(found.shape)}; whole numbers [N] are allowed. "
                "Pass row numbers."
            )
        return self._plan.sample(kinds.Draws(found.astype(np.int64), seed, epoch, counters=counters), sizes)

    def first_refused(self, sizes: Sizes) -> tuple[int, UsageError] | None:
        """Return the index of the first image that is too small, and the error; None if all are large enough.

        sizes: int64 [N, 2], heights and widths of images that differ in size.
        """
        self._check_shape()
        return self._plan.first_refused(sizes)

    @np.errstate(under="ignore")
    def prepare(
        self, params: Given, count: int | None = None, *, sizes: Sizes | None = None
    ) -> PreparedDraws:
        """Convert draws to the columns of the stages, once for several calls of `apply` and `apply_masks`.

        params: the result of `sample`. count: number of samples; required if no transform draws.
        sizes: as passed to `sample`.
        Raises UsageError if params are of another pipeline or another number of samples.
        """
        self._check_shape()
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

    def apply(self, images: Tensor, params: Given, *, out: Tensor | None = None) -> Tensor:
        """Apply draws to images.

        images: [N, C, H, W], any device, best with channels_last strides; not modified. For images that
            differ in size, the results of the first stage.
        params: the result of `sample` or `prepare` for these images.
        out: receives the result if given; must have its shape and dtype, channels_last, same device. A CPU
            fills reused memory about twice as fast as new memory.
        Returns: out, or a new tensor, channels_last; the images themselves for an empty pipeline.
        Raises UsageError if images, params and out do not match.
        """
        self._check(images)
        count = len(images)
        prepared = self.prepare(params, count)
        shape, dtype = (count, *self.output_shape), self.output_dtype
        if out is not None and (out.shape, out.dtype, out.device) != (shape, dtype, images.device):
            raise UsageError(
                f"out: it is {out.dtype} {list(out.shape)} on {out.device}; {dtype} {list(shape)} on "
                f"{images.device} is allowed. Allocate that, or pass none."
            )
        alone = [*takewhile(lambda stage: stage.mixing is None, self._later)]  # each image by itself
        mixing = self._later[len(alone) :]
        # A pass may write a pixel before it reads the same memory for another pixel.
        shared = out is not None and out.untyped_storage().data_ptr() == images.untyped_storage().data_ptr()
        target = None if mixing or shared else out
        made = run_stages(alone, images, prepared, target)
        if self._stages and not self.ragged and made.data_ptr() == images.data_ptr():
            # No stage changed the images, and mixing overwrites its input.
            made = made.clone(memory_format=torch.channels_last)
        return run_stages(mixing, made, prepared, out)

    def _check(self, images: Tensor) -> None:
        """Raise UsageError for images of another format. On a GPU, values are checked once."""
        self._check_shape()
        who = type(self.transforms[0]).__name__ if self.transforms and not self.ragged else "Pipeline"
        validation.check_images(who, images, self._taken.shape, self._taken.dtype)
        if self.ragged or not self.dtype.is_floating_point:
            return
        if images.device.type == "cpu" or not self._checked:
            validation.check_range(who, images)
            self._checked = len(images) > 0


def listed(transforms: Any) -> tuple[kinds.Transform, ...]:
    """Return the transforms of a list or a text."""
    if isinstance(transforms, str):
        from packer.augment.transform_text import parse  # it imports all operations

        return tuple(parse(transforms))
    if isinstance(transforms, kinds.Transform):
        raise UsageError(f"augment={transforms!r}: is no list. Pass [{type(transforms).__name__}(...)].")
    if not isinstance(transforms, Sequence):
        kinds.check_transform(transforms)
    return tuple(transforms)
