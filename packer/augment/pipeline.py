"""Operations one after the other: draw for every row first, then apply without chance.

Draws are made on the host, keyed by (seed, epoch, place in the pipeline, name of the operation) and counted by row, so a
row gets the same flip and the same crop in whichever batch, on whichever rank and device it is processed. Before images
are touched, the draws become one row of numbers a sample; stages.py says how.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from packer.augment import passes
from packer.augment.apply import RandomApply
from packer.augment.boxes import moved_boxes, moved_keypoints
from packer.augment.checks import whole
from packer.augment.draws import Draws
from packer.augment.stages import Entry, MixStage, PassStage, Pixels, Stage, WholeStage, staged
from packer.augment.transform import Params, Shape, Transform
from packer.errors import UsageError

_DTYPES = (torch.uint8, torch.float32, torch.float16, torch.bfloat16)

# Images that go through several stages on a CPU at a time, in bytes: what lies between two stages then stays in the
# cache, and in memory that is mapped already (a new block of more than 32 MB costs a page fault every 4 KiB).
_CPU_STAGE_BYTES = 4 << 20

Drawn = list[dict[str, Tensor]]


class Prepared:
    """The numbers that stages need, one row a sample; slices are batches of fewer samples.

    host: float32 [N, P].
    """

    def __init__(self, host: Tensor) -> None:
        self.host = host
        self._device: Tensor | None = None

    def __len__(self) -> int:
        return len(self.host)

    def __getitem__(self, samples: slice) -> Prepared:
        part = Prepared(self.host[samples])
        if self._device is not None:
            part._device = self._device[samples]
        return part

    def on(self, device: torch.device) -> Tensor:
        """The same on a device; copied there once, without waiting."""
        if device.type == "cpu":
            return self.host
        if self._device is None or self._device.device != device:
            host = self.host.pin_memory() if device.type == "cuda" else self.host
            self._device = host.to(device, non_blocking=True)
        return self._device


class Pipeline:
    """Transforms applied in order.

    transforms: any number; an empty pipeline returns the images themselves.
    shape: (C, H, W) of the images that go in; None: `at` says it later.
    seed: of all draws. dtype: of the images, torch.uint8, or floating point from 0 to 1.
    mask_fill: what masks get beyond an image's edges.
    implementation: of passes: "auto", or "plain", "compiled", "cuda" by name, for tests.
    Raises UsageError if a transform cannot take the images it would get.
    """

    def __init__(
        self,
        transforms: Sequence[Transform],
        shape: Shape | None = None,
        *,
        seed: int = 0,
        dtype: torch.dtype = torch.uint8,
        mask_fill: int = 0,
        implementation: str = "auto",
    ) -> None:
        for transform in transforms:
            if not isinstance(transform, Transform):
                raise UsageError(
                    f"Pipeline: {transform!r} is no transform; those of packer.augment are allowed, and classes derived "
                    "from its Transform. Pass such."
                )
        if dtype not in _DTYPES:
            raise UsageError(
                f"Pipeline: dtype is {dtype!r}; {', '.join(map(str, _DTYPES))} are allowed. Convert the images first."
            )
        whole("Pipeline", "seed", seed, None)
        if implementation not in passes.IMPLEMENTATIONS:
            raise UsageError(
                f"Pipeline: implementation is {implementation!r}; {', '.join(passes.IMPLEMENTATIONS)} are allowed. "
                "Pass one of them."
            )
        self.transforms = tuple(transforms)
        self._steps = _flat(self.transforms)
        self.shape = shape
        self.seed, self.dtype, self.mask_fill, self.implementation = seed, dtype, mask_fill, implementation
        self._stages: list[Stage] = []
        self._shapes: list[Shape] = []
        self._checked = dtype == torch.uint8
        if shape is not None:
            self._build(shape)

    def at(self, shape: Shape, seed: int | None = None) -> Pipeline:
        """The same transforms for images of this (C, H, W), and with another seed if given."""
        return Pipeline(
            self.transforms,
            shape,
            seed=self.seed if seed is None else seed,
            dtype=self.dtype,
            mask_fill=self.mask_fill,
            implementation=self.implementation,
        )

    @property
    def output_shape(self) -> Shape:
        """(C, H, W) of the results."""
        shape = self._known()
        return (self._stages[-1].result.channels, *self._stages[-1].result.size) if self._stages else shape

    @property
    def output_dtype(self) -> torch.dtype:
        """Of the results."""
        return self._stages[-1].result.dtype if self._stages else self.dtype

    @property
    def stages(self) -> int:
        """What the transforms became: passes, and operations that stand between them."""
        return len(self._stages)

    @property
    def passes(self) -> int:
        """How many of the stages are one pass over the pixels."""
        return sum(isinstance(stage, PassStage) for stage in self._stages)

    @property
    def num_classes(self) -> int | None:
        """Of the soft labels that mixing makes; None if nothing is mixed or the operations do not say."""
        return next((s.part.num_classes for s in self._mixes() if s.part.num_classes is not None), None)

    @property
    def mixes(self) -> bool:
        """Whether labels become soft ones."""
        return bool(self._mixes())

    def sample(self, rows: NDArray[np.int64] | Tensor, epoch: int = 0, *, seed: int | None = None) -> Drawn:
        """Draw for these rows of an epoch, one dictionary a transform, in their order, those of RandomApply among them.

        rows: whole numbers [N], the images' row numbers. seed: another than the pipeline's.
        Returns tensors on the CPU whose first dimension is N; each operation's `sample` names them. They may be changed.
        """
        self._known()
        counted = np.asarray(rows, dtype=np.int64).reshape(-1)
        seed = self.seed if seed is None else seed
        drawn: Drawn = []
        for place, ((transform, gate), shape) in enumerate(zip(self._steps, self._shapes, strict=True)):
            params = dict(
                transform.sample(Draws(counted, seed, epoch, place, type(transform).__name__), shape)
            )
            if gate is not None:
                params["apply"] = Draws(counted, seed, epoch, gate[0], "RandomApply").happens(
                    "apply", gate[1]
                )
            drawn.append({name: torch.from_numpy(np.ascontiguousarray(p)) for name, p in params.items()})
        return drawn

    def prepare(self, params: Drawn | Prepared, count: int | None = None) -> Prepared:
        """Turn draws into the numbers that the stages need; what several calls share is then worked out once.

        params: what `sample` returned. count: samples; needed where nothing is drawn.
        Raises UsageError if params are not this pipeline's, or for another number of samples.
        """
        if isinstance(params, Prepared):
            found = len(params)
            columns = params
        else:
            self._known()
            if len(params) != len(self._steps):
                raise UsageError(
                    f"Pipeline: params has {len(params)} entries; {len(self._steps)} are allowed, one a transform. "
                    "Pass what sample() returned."
                )
            found = next((len(p) for each in params for p in each.values()), 1 if count is None else count)
            for (transform, _), each in zip(self._steps, params, strict=True):
                for name, p in each.items():
                    if len(p) != (found if count is None else count):
                        raise UsageError(
                            f"{type(transform).__name__}: {name} was drawn for {len(p)} rows and there are "
                            f"{found if count is None else count} images; one draw an image is allowed. "
                            "Sample the batch's rows."
                        )
            draws: list[Params] = [{name: p.numpy() for name, p in each.items()} for each in params]
            pieces = [stage.columns(draws, found) for stage in self._stages]
            joined = np.concatenate(pieces, axis=1) if pieces else np.zeros((found, 0), np.float32)
            columns = Prepared(torch.from_numpy(joined))
        if count is not None and found != count:
            raise UsageError(
                f"Pipeline: params are of {found} samples and there are {count} images; as many are allowed. "
                "Sample the batch's rows."
            )
        return columns

    def apply(
        self,
        images: Tensor,
        params: Drawn | Prepared,
        *,
        rows: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """Apply what was drawn.

        images: [N, C, H, W], any device, best with channels_last strides; not modified.
        params: what `sample` or `prepare` returned for these images.
        rows: int64 [N] on the images' device, the images to take (not checked); they are then [M, C, H, W], a whole
            field for example, and no batch is put together before it is augmented.
        out: takes the result if given: the result's shape and dtype, channels_last, same device. A CPU fills memory it
            has used before about twice as fast as new memory.
        Returns: out, or a new tensor, channels_last (for an empty pipeline the images themselves).
        Raises UsageError if images, params and out do not fit together.
        """
        self._check(images)
        count = len(images) if rows is None else len(rows)
        prepared = self.prepare(params, count)
        shape = (count, *self.output_shape)
        if out is not None and (out.shape, out.dtype, out.device) != (
            shape,
            self.output_dtype,
            images.device,
        ):
            raise UsageError(
                f"out: it is {out.dtype} {list(out.shape)} on {out.device}; {self.output_dtype} {list(shape)} on "
                f"{images.device} is allowed. Allocate that, or pass none."
            )
        mixing = [i for i, stage in enumerate(self._stages) if isinstance(stage, MixStage)]
        each = mixing[0] if mixing else len(self._stages)  # stages that work on each image by itself
        step = count
        if images.device.type == "cpu" and each > 1:
            step = max(1, _CPU_STAGE_BYTES // max(1, images[:1].nbytes))
        if step >= count:
            made = self._run(0, each, images, prepared, rows, out if each == len(self._stages) else None)
        else:
            result = self._stages[each - 1].result
            made = (
                out if out is not None and each == len(self._stages) else _empty(count, result, images.device)
            )
            for start in range(0, count, step):
                part = slice(start, start + step)
                source, chosen = (images[part], None) if rows is None else (images, rows[part])
                self._run(0, each, source, prepared[part], chosen, made[part])
        if self._stages and made.data_ptr() == images.data_ptr():
            made = made.clone()  # operations may have had nothing to do, and mixing overwrites what it gets
        made = self._run(each, len(self._stages), made, prepared, None, None)
        if out is not None and made is not out:
            out.copy_(made)
            return out
        return made

    def apply_masks(self, masks: Tensor, params: Drawn | Prepared) -> Tensor:
        """Move masks as the images: the nearest pixel's value, never a new one, and mask_fill beyond the edges.

        masks: [N, H, W] or [N, K, H, W], integers, bool or floating point, any device. Returns: the same with (h, w).
        Raises UsageError if masks are of another size than the images, or MixUp would have to mix them.
        """
        _, height, width = self._known()
        if masks.ndim not in (3, 4) or tuple(masks.shape[-2:]) != (height, width):
            raise UsageError(
                f"Pipeline: masks are {list(masks.shape)}; [N, {height}, {width}] and [N, K, {height}, {width}] are "
                "allowed. Pass masks of the images' size."
            )
        prepared = self.prepare(params, len(masks))
        columns = prepared.on(masks.device)
        layered = masks if masks.ndim == 4 else masks[:, None]
        fill = _filling(self.mask_fill, masks.dtype)
        # A pixel of any type moves as that many bytes.
        layers = layered.shape[1]
        stride = layers * masks.element_size()
        moving = (
            _pixels(layered).view(torch.uint8).view(len(masks), height, width, stride).permute(0, 3, 1, 2)
        )
        fills = tuple(float(byte) for byte in fill.view(torch.uint8).tolist()) * layers
        at = 0
        for stage in self._stages:
            mine = columns[:, at : at + stage.width]
            at += stage.width
            if isinstance(stage, PassStage) and stage.moves:
                moving = stage.run_masks(moving, mine, fills, self.implementation)
            elif isinstance(stage, MixStage):
                moving = stage.part.mix_masks(moving, mine)
        size = moving.shape[-2:]
        moved = _pixels(moving).view(masks.dtype).view(len(masks), *size, layers).permute(0, 3, 1, 2)
        return moved if masks.ndim == 4 else moved[:, 0]

    def apply_boxes(self, boxes: Tensor, params: Drawn | Prepared) -> Tensor:
        """Move boxes as the images, and clip them to what is seen.

        boxes: floating point [N, K, 4], left, top, right, bottom, in pixels from the top left corner, any device.
        Returns: the same, each the smallest upright box about the moved one; without area if nothing of it is seen.
        """
        return self._move(moved_boxes, boxes, params, 4)

    def apply_keypoints(self, points: Tensor, params: Drawn | Prepared) -> Tensor:
        """Move points as the images.

        points: floating point [N, K, 2], x and y in pixels from the top left corner, NaN where there is none, any device.
        Returns: the same; NaN for points that are not seen, so that none is taken for a point at an edge.
        """
        return self._move(moved_keypoints, points, params, 2)

    def apply_labels(
        self, labels: Tensor, params: Drawn | Prepared, num_classes: int | None = None
    ) -> Tensor:
        """Mix labels as the images.

        labels: whole numbers [N], or shares floating point [N, K], in the order of the batch that `apply` gets.
        num_classes: K; the mixing operation's if None. Returns: float32 [N, K] if images are mixed, else the labels.
        """
        if not self.mixes:
            return labels
        prepared = self.prepare(params, len(labels))
        soft = labels.float()
        if labels.ndim == 1:
            classes = self.num_classes or num_classes
            if classes is None:
                raise UsageError(
                    "MixUp, CutMix: num_classes is None; the number of classes is needed. Pass num_classes."
                )
            soft = torch.nn.functional.one_hot(labels.long(), classes).float()
        columns, at = prepared.on(labels.device), 0
        for stage in self._stages:
            if isinstance(stage, MixStage):
                own = stage.part.share(columns[:, at : at + stage.width])[:, None]
                soft = own * soft + (1 - own) * soft.roll(1, 0)
            at += stage.width
        return soft

    def __call__(self, images: Tensor, rows: NDArray[np.int64] | Tensor, epoch: int = 0) -> Tensor:
        """Draw and apply: images [N, C, H, W] of these rows, whole numbers [N]."""
        return self.apply(images, self.sample(rows, epoch))

    def _build(self, shape: Shape) -> None:
        if len(shape) != 3 or min(shape) < 1:
            raise UsageError(
                f"Pipeline: shape is {shape!r}; (channels, height, width) is allowed. Pass that of an image."
            )
        entries, now = [], shape
        for number, (transform, gate) in enumerate(self._steps):
            self._shapes.append(now)
            if gate is not None:
                RandomApply([transform]).output_shape(now)  # raises if it changes the size
            now = transform.output_shape(now)
            entries += [Entry(part, number) for part in transform.parts()]
        limit = 255.0 if self.dtype == torch.uint8 else 1.0
        self._stages = staged(entries, Pixels(shape[0], (shape[1], shape[2]), self.dtype, limit))

    def _known(self) -> Shape:
        if self.shape is None:
            raise UsageError(
                "Pipeline: the images' shape is not known. Pass shape=(C, H, W), or call at(shape) first."
            )
        return self.shape

    def _mixes(self) -> list[MixStage]:
        return [stage for stage in self._stages if isinstance(stage, MixStage)]

    def _check(self, images: Tensor) -> None:
        """Raise UsageError for images that are not what the pipeline was made for."""
        shape = self._known()
        who = type(self.transforms[0]).__name__ if self.transforms else "Pipeline"
        if images.ndim != 4 or tuple(images.shape[1:]) != tuple(shape):
            last = " They look channels-last: pass images.permute(0, 3, 1, 2)."
            found = tuple(images.shape[1:])
            raise UsageError(
                f"{who}: the images are {list(images.shape)}; [N, {', '.join(map(str, shape))}] is allowed."
                + (
                    last
                    if len(found) == 3 and (found[2], found[0], found[1]) == tuple(shape)
                    else " Pass such a batch."
                )
            )
        if images.dtype != self.dtype:
            raise UsageError(
                f"{who}: the images are {images.dtype}; {self.dtype} is allowed. Pass such, or make the pipeline with "
                f"dtype={images.dtype}."
            )
        if not self._checked and len(images):
            low, high = (float(v) for v in images[:4].aminmax())
            if low < 0 or high > 1:
                raise UsageError(
                    f"{who}: the images' values go from {low:g} to {high:g}; floating-point images from 0 to 1 are "
                    "allowed. Divide them by 255, or pass uint8."
                )
            self._checked = True

    def _run(
        self,
        first: int,
        stop: int,
        images: Tensor,
        prepared: Prepared,
        rows: Tensor | None,
        out: Tensor | None,
    ) -> Tensor:
        """Take images through stages first..stop-1, the last of which fills out if that is given."""
        at = sum(stage.width for stage in self._stages[:first])
        columns = prepared.on(images.device)
        for number in range(first, stop):
            stage = self._stages[number]
            span = slice(at, at + stage.width)
            at += stage.width
            if isinstance(stage, PassStage):
                images = stage.run(
                    images, columns[:, span], rows, out if number == stop - 1 else None, self.implementation
                )
            else:
                if rows is not None:
                    images = images.index_select(0, rows)
                if isinstance(stage, WholeStage):
                    images = stage.run(images, columns[:, span], prepared.host[:, span].numpy())
                else:
                    images = stage.part.mix(images, columns[:, span])
            rows = None
        if out is not None and images is not out:
            out.copy_(images)
            return out
        return images if rows is None else images.index_select(0, rows)

    def _move(self, moved: Any, places: Tensor, params: Drawn | Prepared, width: int) -> Tensor:
        """Take boxes or points through the stages that move pixels."""
        self._known()
        what = "boxes are" if width == 4 else "points are"
        if places.ndim != 3 or places.shape[-1] != width or not places.is_floating_point():
            raise UsageError(
                f"Pipeline: {what} {places.dtype} {list(places.shape)}; floating point [N, K, {width}] is allowed. Pass such."
            )
        if self.mixes:
            raise UsageError(
                f"{self._mixes()[0].part.name}: {what} not mixed; images and labels are. Leave it out for such data."
            )
        columns, at = self.prepare(params, len(places)).on(places.device), 0
        for stage in self._stages:
            if isinstance(stage, PassStage) and stage.moves:
                places = moved(places, columns[:, at : at + stage.width], stage.result.size)
            at += stage.width
        return places


def _filling(value: int, dtype: torch.dtype) -> Tensor:
    """One number of a mask's type. Raises UsageError if it holds no such number."""
    fill = torch.tensor([value]).to(dtype)
    if fill.to(torch.float64).item() != value:
        raise UsageError(
            f"Pipeline: mask_fill is {value} and the masks are {dtype}; a number that they hold is allowed. Pass another."
        )
    return fill


def _flat(transforms: Sequence[Transform]) -> list[tuple[Transform, tuple[str, float] | None]]:
    """Transforms, and for those of a RandomApply its place and probability."""
    steps: list[tuple[Transform, tuple[str, float] | None]] = []
    for place, transform in enumerate(transforms):
        if isinstance(transform, RandomApply):
            steps += [(inner, (f"apply {place}", transform.p)) for inner in transform.transforms]
        else:
            steps.append((transform, None))
    return steps


def _pixels(images: Tensor) -> Tensor:
    """All numbers of [N, C, H, W], pixel after pixel."""
    return images.permute(0, 2, 3, 1).reshape(-1).contiguous()


def _empty(count: int, pixels: Pixels, device: torch.device) -> Tensor:
    return passes.new((count, *pixels.size, pixels.channels), pixels.dtype, device)
