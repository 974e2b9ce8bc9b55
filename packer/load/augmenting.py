"""Augmentation of batches: parses the argument `augment` into pipelines, one for each view, and runs them.

Parameters are drawn per row. The pipelines run on the device and move all fields that belong to the image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from keyword import iskeyword
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from packer import randomness
from packer.errors import UsageError
from packer.format.fields import (
    Field,
    find_field,
)
from packer.load.batch import Batched, Slots, allocate, batch_type
from packer.orders.epochs import ReadRequest
from packer.orders.runs import Subset
from packer.packs.pack import Pack
from packer.read.array_store import PackStore, key_in_brackets
from packer.read.encoded_images import channels_of, dtype_of, is_encoded
from packer.read.row_selection import is_mask

if TYPE_CHECKING:
    import torch

    from packer.augment import Pipeline, Transform
    from packer.augment.passes.prepared_draws import PreparedDraws

    One: TypeAlias = str | Sequence[Transform] | Pipeline
    Augment: TypeAlias = One | Mapping[str, One]
    Draws = tuple[PreparedDraws, ...]


class Augmenter:
    """The pipelines of a dataset: draw parameters per row, make each view, move masks, boxes and points.

    `draw` is thread-safe. For images that differ in size the reading threads run the first stage
    (ragged_rows.py); this class runs the rest.

    views: field name in the batch -> pipeline that makes it from "image"; masks, boxes, points and labels
        follow the first view.
    masks, soft: names of the masks and soft maps among the fields.
    fields: fields that are loaded. num_classes: number of classes of mixed labels. rows: most rows in a
        batch.
    spare: free result buffers to keep.
    """

    views: dict[str, Pipeline]
    masks: list[str]
    soft: list[str]

    def __init__(
        self,
        views: Mapping[str, Pipeline],
        fields: Sequence[Field],
        num_classes: int | None,
        rows: int,
        spare: int,
    ) -> None:
        self.views, self._rows, self._spare = dict(views), rows, spare
        self._slots: dict[str, Slots] = {}
        self._first = first = next(iter(views.values()))
        self.ragged: bool = first.ragged
        self._names = tuple(name for f in fields for name in (views if f.name == "image" else (f.name,)))
        self._type: Any = batch_type(self._names, Batched)
        kinds = {f.name: follows(f, first) for f in fields}
        self.masks, self.soft, self._boxes, self._with_boxes = (
            [name for name in kinds if kinds[name] == kind]
            for kind in ("mask", "soft", "boxes", "with boxes")
        )
        moves: dict[str, Any] = {
            "mask": first.apply_masks,
            "soft": first.apply_soft,
            "points": first.apply_keypoints,
            "label": lambda labels, draws: first.apply_labels(labels, draws, num_classes),
        }
        self._moves = {name: moves[kind] for name, kind in kinds.items() if kind in moves}

    def read_fields(self, fields: Sequence[Field]) -> tuple[Field, ...]:
        """Return the fields as they are read: for images of different sizes, results of the first stages."""
        if not self.ragged:
            return tuple(fields)
        found: list[Field] = []
        for f in fields:
            if f.name == "image":
                for name, pipeline in self.views.items():
                    made = pipeline.first.result
                    kind = np.dtype(f"u{made.dtype.itemsize}").str  # of the same size: NumPy has no bfloat16
                    found.append(Field(name, kind, (*made.size, made.channels), {"layout": "HWC"}))
            elif f.name in (*self.masks, *self.soft):
                found.append(Field(f.name, dtype_of(f), self._first.first.result.size, f.about))
            else:
                found.append(f)
        return tuple(found)

    def concatenate(self, parts: Sequence[Draws]) -> Draws:
        """Return the parameters of all parts of a request, one after the other."""
        return tuple(each[0].concatenate(each) for each in zip(*parts, strict=True))

    def draw(
        self,
        request: ReadRequest,
        start: int = 0,
        stop: int | None = None,
        sizes: NDArray[np.int64] | None = None,
    ) -> Draws:
        """Return the parameters of each pipeline for entries start..stop-1 of a request, by default all.

        sizes: int64 [N, 2], (h, w) of images that differ in size. Draws use the epoch's seed plus the
        pipeline's; every view after the first uses a hash of that sum and the view's number.
        """
        rows, counters = request.rows(start, stop).rows(), request.counters(start, stop)
        found = []
        keys = None if counters is None else counters.rows()
        for number, pipeline in enumerate(self.views.values()):
            seed = seed_of(request.order.seed + pipeline.seed, number)
            drawn = pipeline.sample(rows, request.epoch, seed=seed, sizes=sizes, counters=keys)
            found.append(pipeline.prepare(drawn, len(rows), sizes=sizes))
        return tuple(found)

    def apply(self, batch: Any, draws: Draws, first: int) -> Any:
        """Return the augmented batch.

        first: index of its first row in `draws`, which may cover several batches.
        """
        images = [getattr(batch, name if self.ragged else "image") for name in self.views]
        for drawn in draws:
            drawn.on(images[0].device)  # one copy for all batches of the request
        each = [drawn[first : first + len(images[0])] for drawn in draws]
        made = dict(zip(self.views, map(self._view, self.views, images, each), strict=True))
        for name, move in self._moves.items():
            made[name] = move(getattr(batch, name), each[0])
        if self._boxes:
            from packer.augment.annotations import moved_lists

            made["boxes"], with_boxes = moved_lists(
                batch.boxes,
                {name: getattr(batch, name) for name in self._with_boxes},
                lambda boxes: self._first.apply_boxes(boxes, each[0]),
            )
            made |= with_boxes
        return self._type._make(made[name] if name in made else getattr(batch, name) for name in self._names)

    def _view(self, name: str, images: torch.Tensor, draws: PreparedDraws) -> Any:
        """Return the augmented images of a batch for one view."""
        pipeline, out = self.views[name], None
        if pipeline.ragged:
            images = images.view(pipeline.first.result.dtype)
        elif images.device.type == "cpu" and pipeline.transforms and not pipeline.mixes:
            out = self._lend(name, len(images))
        return pipeline.apply(images, draws, out=out)

    def _lend(self, name: str, count: int) -> torch.Tensor:
        """Return a reused result buffer for a batch: filling new memory takes twice as long."""
        import torch

        (channels, height, width), dtype = self.views[name].output_shape, self.views[name].output_dtype
        row_bytes = channels * height * width * dtype.itemsize
        if name not in self._slots:
            self._slots[name] = Slots(row_bytes * self._rows, allocate, self._spare)
        memory = torch.from_numpy(self._slots[name].lend())[: count * row_bytes]
        return memory.view(dtype).view(count, height, width, channels).permute(0, 3, 1, 2)


def follows(field: Field, pipeline: Pipeline) -> str:
    """Return how a field follows the images of a pipeline; "" if it does not.

    "mask": a mask; "soft": a soft map; "boxes": ragged, [k, 4]; "with boxes": ragged, named box_..., with an
    entry for each box; "points": keypoints; "label": labels that are mixed with the images.
    """
    _, *size = pipeline.shape or (0, 0, 0)
    if is_mask(field, size):
        return "mask"
    if is_mask(field, size, "linear"):
        return "soft"
    if field.name == "boxes" and field.about.get("row_shape") == [4]:
        return "boxes"
    if field.ragged:
        return "with boxes" * (field.name.startswith("box_") and "row_shape" in field.about)
    if field.name == "keypoints" and (field.shape or ())[1:] == (2,) and field.dtype[1] == "f":
        return "points"
    return "label" * (field.name == "label" and pipeline.mixes)


def flip_pairs(fields: Sequence[Field]) -> list[tuple[int, int]] | None:
    """Return numbers of points that are sides, as recorded with the field of points; None if unknown."""
    about = next((f.about for f in fields if f.name == "keypoints"), {})
    if "flip_pairs" not in about:
        return None
    names = about["points"]
    return [(names.index(a), names.index(b)) for a, b in about["flip_pairs"]]


def unknown_sides(views: Mapping[str, Pipeline], fields: Sequence[Field], path: str) -> str | None:
    """Return a warning if a pipeline mirrors several points of which it is unknown which are sides."""
    first = next(iter(views.values()), None)
    points = find_field(fields, "keypoints")
    if first is None or points is None or not first.mirrors or follows(points, first) != "points":
        return None
    count = (points.shape or (0,))[0]
    if count < 2 or first.flip_pairs is not None or "flip_pairs" in points.about:
        return None
    return (
        f"{path}: augment mirrors images, and it does not say which of its {count} keypoints"
        " are sides, such as left and right eye, so each keeps its number. Convert it again with"
        " labels=Labels(flip_pairs='LEFT:RIGHT') (or 'none'), or pass augment=Pipeline(...,"
        " flip_pairs=[(0, 1)]) with the numbers of the points ([] for none)."
    )


def seed_of(seed: int, view: int) -> int:
    """Return the seed of a view's draws: a hash, since sums would collide between views of adjacent seeds."""
    return randomness.key(seed, "view", view) if view else seed


def parse_views(
    augment: Augment | None, output: str, normalization: Mapping[str, Sequence[float]]
) -> dict[str, Pipeline]:
    """Return field name -> pipeline that makes it from "image"; empty if `augment` asks for nothing.

    A single pipeline makes "image" itself. normalization: as for pipeline_of. Raises UsageError for
    anything but pipelines, and MissingDependencyError (torch).
    """
    if augment is None or (isinstance(augment, list | tuple | dict) and not augment):
        return {}
    if output != "torch":
        raise UsageError("augment: works on torch tensors. Pass output='torch'.")
    views = augment if isinstance(augment, Mapping) else {"image": augment}
    for name in views:
        if not isinstance(name, str) or not name.isidentifier() or iskeyword(name) or name.startswith("_"):
            raise UsageError(
                f"augment: {name!r} is no name for a view; names such as 'view1' are allowed. Rename it."
            )
    return {name: pipeline_of(one, normalization) for name, one in views.items()}


def normalizes(augment: Augment | None) -> bool:
    """Return True if `augment` may need the pack's mean and std: a Normalize() without numbers, or a text."""
    views = augment.values() if isinstance(augment, Mapping) else (augment,)
    return any(
        "Normalize" in one
        if isinstance(one, str)
        else isinstance(one, list | tuple) and any(getattr(each, "known", True) is False for each in one)
        for one in (getattr(view, "transforms", view) for view in views)  # a Pipeline has its transforms
    )


def pipeline_of(augment: Any, normalization: Mapping[str, Sequence[float]]) -> Pipeline:
    """Return the pipeline for a list of transforms, a Pipeline, or a text that names transforms.

    normalization: mean and std for Normalize() without numbers, as Header.normalization. Raises UsageError
    and MissingDependencyError.
    """
    from packer.augment import Normalize, Pipeline

    pipeline = augment if isinstance(augment, Pipeline) else Pipeline(augment)
    transforms: Any = pipeline.transforms
    if isinstance(augment, str) and not transforms:
        raise UsageError(
            "augment: the text names no transform; transforms with their arguments are allowed. "
            "Write for example RandomCrop(32), or leave it out."
        )
    numbered = [one.using(normalization) if isinstance(one, Normalize) else one for one in transforms]
    return pipeline.at(pipeline.shape, transforms=numbered)


def fit_views(
    views: Mapping[str, Pipeline],
    fields: Sequence[Field],
    path: str,
    num_classes: int | None,
    ragged: str | None = None,
) -> dict[str, Pipeline]:
    """Return the pipelines bound to the shape of the images. num_classes: number of classes, None if unknown.

    ragged: the device if the reading threads can crop images of different sizes, else None. For a device
    other than the CPU the threads only do the geometry: a copy of uint8 has a quarter of float32's bytes,
    and the device does the rest. Raises UsageError for images that a pipeline cannot take, and for fields
    that cannot be augmented with them.
    """
    import torch

    image = _images(fields, path, ragged is not None)
    shape: Any = image.loaded.shape or (None, None, channels_of(image))
    found, dtype = (shape[2], *shape[:2]), torch.from_numpy(np.empty(0, dtype_of(image))).dtype
    made = {}
    for name, pipeline in views.items():
        if name != "image" and find_field(fields, name) is not None:
            raise UsageError(f"augment: {name!r} is the name of another field of the batch. Pass another.")
        whole = pipeline.dtype == torch.uint8 and dtype == torch.uint16
        alike = pipeline.shape is None or tuple(pipeline.shape) == found
        if not alike or not (whole or pipeline.dtype == dtype):
            raise UsageError(
                f"augment: the pipeline is for {pipeline.dtype} {pipeline.shape and list(pipeline.shape)} and"
                f" the images of {path} are {dtype} {list(found)}. Make it without a shape: Pipeline([...],"
                f" dtype={dtype})."
            )
        split = pipeline.split or ragged not in (None, "cpu")
        sides = flip_pairs(fields) if pipeline.flip_pairs is None else pipeline.flip_pairs
        made[name] = pipeline = pipeline.at(found, dtype=dtype, split=split, flip_pairs=sides)
        if pipeline.mixes and len(views) > 1:
            raise UsageError(
                f"augment: {name!r} mixes images and labels, and there are {len(views)} views; mixing is"
                " allowed for a single view. Leave MixUp and CutMix out."
            )
        if pipeline.mixes:
            _check_mixing(pipeline, fields, path, num_classes)
    return made


def _images(fields: Sequence[Field], path: str, ragged: bool) -> Field:
    """Return the field of the images.

    Raises UsageError for images or accompanying fields that cannot be augmented.
    ragged: True where images that differ in size are allowed.
    """
    image = find_field(fields, "image")
    if image is None:
        raise UsageError(
            "augment: works on the field 'image', and there is none. Pass fields with 'image', or a transform"
            " that returns it."
        )
    if ragged and is_encoded(image):
        for f in fields:
            own = f.own_size is not None and f.own_size.channels is None
            if f.name != "image" and ("sampling" in f.about or "layout" in f.about) and not own:
                raise UsageError(
                    f"augment: the images of {path} differ in size, and {f.name!r} cannot follow them; boxes,"
                    " keypoints, and masks stored at their images' sizes can. Name the other fields."
                )
    elif len(image.loaded.shape or ()) != 3 or image.about.get("layout") != "HWC":
        shape, remedy = "sizes of their own", "Convert the pack (packer repack with size=)"
        if image.loaded.shape is not None:
            shape, remedy = str(list(image.loaded.shape)), "Pack uint8 images"
        raise UsageError(
            f"augment: works on uint8 or uint16 images [H, W, C] of one size; 'image' of {path} is"
            f" {np.dtype(image.dtype)} {shape}. {remedy}, or have the transform return such images."
        )
    return image


def check_sizes(views: Mapping[str, Pipeline], pack: Pack, subset: Subset) -> None:
    """Raise UsageError, naming the row, if an image of a ragged field is too small for a pipeline.

    Reads heights and widths of all rows if any pipeline has a minimum: 10 to 100 ms a million rows.
    """
    pixel = np.ones((1, 2), np.int64)  # the smallest image
    refusing = [one for one in views.values() if one.ragged and one.first_refused(pixel) is not None]
    if not refusing or pack.pending or not {f.name for f in pack.fields} >= {"height", "width"}:
        return
    store = PackStore(pack, (), subset)
    sizes = np.stack([store.column(name) for name in ("height", "width")], axis=1)
    for pipeline in refusing:
        if (found := pipeline.first_refused(sizes.astype(np.int64))) is not None:
            number, error = found
            row = int(subset.numbers(np.array([number]))[0])
            raise UsageError(
                f"{pack.path}: the image of row {row}{key_in_brackets(pack, row)} is too small. {error}"
            )


def _check_mixing(pipeline: Pipeline, fields: Sequence[Field], path: str, num_classes: int | None) -> None:
    """Raise UsageError for fields that cannot be mixed."""
    for f in fields:
        numbered = f.name == "label" and f.shape == () and np.dtype(f.dtype).kind != "f"
        if numbered and (pipeline.num_classes or num_classes or 0) < (num_classes or 1):
            raise UsageError(
                f"augment: mixes labels, and needs the number of classes; {path} names"
                f" {num_classes or 0}. Pass num_classes to MixUp or CutMix, as many or more."
            )
        if f.name in ("boxes", "keypoints"):
            raise UsageError(
                f"augment: mixes images, and {f.name} of {path} cannot be mixed. Name the other fields, or"
                " leave MixUp and CutMix out."
            )
        if pipeline.blends and follows(f, pipeline) == "mask":
            raise UsageError(
                f"augment: MixUp blends images, and values of the mask {f.name!r} cannot be blended. "
                "Use CutMix, or name the other fields."
            )
