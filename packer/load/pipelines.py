"""What `augment` means, to the dataset and to the preview: pipelines by the names that their images have in a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from keyword import iskeyword
from typing import TYPE_CHECKING, Any

import numpy as np

from packer.errors import MissingDependencyError, UsageError
from packer.format.header import Field, Header
from packer.read.loaded_fields import is_mask

if TYPE_CHECKING:
    from packer.augment import Pipeline, Transform

    One = str | Sequence[Transform] | Pipeline
    Augment = One | Mapping[str, One]


def parse_views(augment: Augment | None, output: str, header: Header) -> dict[str, Pipeline]:
    """Pipelines by the fields that they make of "image"; none if there is nothing to do.

    A single one makes "image" itself. Raises UsageError for what is no pipeline, and MissingDependencyError (torch).
    """
    if augment is None or (isinstance(augment, list | tuple) and not augment):
        return {}
    if output != "torch":
        raise UsageError("augment: works on torch tensors. Pass output='torch'.")
    if not isinstance(augment, Mapping):
        return {"image": pipeline_of(augment, header)}
    for name in augment:
        if not isinstance(name, str) or not name.isidentifier() or iskeyword(name) or name.startswith("_"):
            raise UsageError(
                f"augment: {name!r} is no name for a view; names such as 'view1' are allowed. Pass such."
            )
    if not augment:
        raise UsageError(
            "augment: the mapping is empty; a list of transforms for each view is allowed. Pass one."
        )
    return {name: pipeline_of(one, header) for name, one in augment.items()}


def pipeline_of(augment: Any, header: Header) -> Pipeline:
    """A pipeline of what a user may pass for one: transforms, a pipeline, or a text that names transforms.

    header: the pack's, whose normalization is what Normalize() in a text means. Raises UsageError and MissingDependencyError.
    """
    try:
        from packer.augment import Pipeline, parse
    except ImportError:
        raise MissingDependencyError("torch", "augment", "torch") from None
    if isinstance(augment, Pipeline):
        return augment
    if isinstance(augment, str):
        known = header.normalization
        transforms = parse(augment, known.get("mean"), known.get("std"))
        if not transforms:
            raise UsageError(
                "augment: the text names no transform; transforms with their arguments are allowed. "
                "Write for example RandomCrop(32), or leave it out."
            )
        return Pipeline(transforms)
    if isinstance(augment, Mapping):
        raise UsageError(
            "augment: several views are given; one list of transforms is allowed. Pass one of them."
        )
    if not isinstance(augment, Sequence):
        _check_transform(augment)
        listed = (
            f"[{type(augment).__name__}(...)]"
            if _is_transform(augment)
            else "a list of transforms of packer.augment"
        )
        raise UsageError(f"augment={augment!r}: is no list. Pass {listed}.")
    for one in augment:
        _check_transform(one)
    return Pipeline(augment)


def fit_views(
    views: Mapping[str, Pipeline], fields: Sequence[Field], path: str, num_classes: int | None
) -> dict[str, Pipeline]:
    """The pipelines for the images of these fields. num_classes: of labels, None if not known.

    Raises UsageError for images that they cannot take, and for fields that cannot go with them.
    """
    image = next((f for f in fields if f.name == "image"), None)
    if image is None:
        raise UsageError(
            "augment: works on the field 'image', and there is none. Pass fields with 'image', or a transform that returns it."
        )
    made = {name: fit(pipeline, image, path) for name, pipeline in views.items()}
    for name, pipeline in made.items():
        if name != "image" and any(f.name == name for f in fields):
            raise UsageError(
                f"augment: {name!r} is the name of another field of the batch; other names for views are allowed. Pass another."
            )
        if pipeline.mixes and len(made) > 1:
            raise UsageError(
                f"augment: {name!r} mixes images and labels, and there are {len(made)} views; one list alone may mix. "
                "Leave MixUp and CutMix out."
            )
        if pipeline.mixes:
            _check_mixing(pipeline, fields, path, num_classes)
    return made


def fit(pipeline: Pipeline, image: Field, path: str) -> Pipeline:
    """The pipeline for the images of this field. Raises UsageError if it is for others."""
    import torch

    shape = image.loaded.shape
    if shape is None:
        raise UsageError(
            f"augment: works on images of one size; those of {path} kept their own. Run packer repack with a --size first."
        )
    if len(shape) != 3 or image.about.get("layout") != "HWC":
        raise UsageError(
            f"augment: works on images [H, W, C]; the transform returns {list(shape)}. Return such, or drop augment."
        )
    found = (shape[2], shape[0], shape[1])
    if pipeline.shape is not None and tuple(pipeline.shape) != found:
        raise UsageError(
            f"augment: the pipeline is for images {list(pipeline.shape)} and those of {path} are {list(found)}; the same "
            "shape is allowed. Make it without one."
        )
    dtype = torch.from_numpy(np.empty(0, image.dtype)).dtype
    if pipeline.dtype != dtype:
        raise UsageError(
            f"augment: the pipeline is for images of {pipeline.dtype} and those of {path} are {dtype}; the same is "
            f"allowed. Pass Pipeline([...], dtype={dtype})."
        )
    return pipeline.at(found)


def _check_mixing(pipeline: Pipeline, fields: Sequence[Field], path: str, num_classes: int | None) -> None:
    """Refuse fields that cannot be mixed."""
    _, height, width = pipeline.shape or (0, 0, 0)
    for f in fields:
        if f.name == "label" and f.shape == () and np.dtype(f.dtype).kind != "f":
            if not (pipeline.num_classes or num_classes):
                raise UsageError(
                    f"augment: mixes labels, and {path} does not name its classes. Pass num_classes to MixUp or CutMix."
                )
            if pipeline.num_classes and num_classes and pipeline.num_classes < num_classes:
                raise UsageError(
                    f"augment: num_classes is {pipeline.num_classes} and {path} has {num_classes} classes; as many or "
                    "more are allowed. Leave it out."
                )
        if f.name in ("boxes", "keypoints"):
            raise UsageError(
                f"augment: mixes images, and {f.name} of {path} cannot be mixed. Name the other fields, or leave it out."
            )
        if pipeline.blends and is_mask(f, (height, width)):
            raise UsageError(
                f"augment: MixUp blends images, and between two values of the mask {f.name!r} there is no third. "
                "Use CutMix, or name the other fields."
            )


def _is_transform(one: Any) -> bool:
    from packer.augment import Transform

    return isinstance(one, Transform)


def _check_transform(one: Any) -> None:
    """Say what to write instead of something that looks like a transform."""
    from torch import nn

    from packer.augment.transform_text import REMEDIES

    if _is_transform(one):
        return
    name = one.__name__ if hasattr(one, "__name__") else type(one).__name__
    if isinstance(one, str):
        raise UsageError(
            f"augment: {one!r} in the list is a text; transforms are allowed. Pass one text for all of them, without a list."
        )
    if name in REMEDIES:
        raise UsageError(f"augment: {name} is no transform of packer.augment. {REMEDIES[name]}.")
    if isinstance(one, nn.Module) or (isinstance(one, type) and issubclass(one, nn.Module)):
        raise UsageError(
            f"augment: {name} is a module of torch; transforms of packer.augment are allowed. "
            f"{'Take that of packer.augment' if _is_known(name) else 'Call it on the batch in the loop'}."
        )
    if isinstance(one, type):
        raise UsageError(
            f"augment: {name} is a class; transforms are allowed. Write {name}() with its arguments."
        )
    if callable(one):
        raise UsageError(
            f"augment: {name} is a function; transforms of packer.augment are allowed. Pass it as transform=."
        )


def _is_known(name: str) -> bool:
    from packer import augment

    return name in augment.__all__
