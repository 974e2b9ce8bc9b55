"""Functions of one row's image and label, as torchvision's datasets take them: what PackedDataset allows, and batches of results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from packer.errors import UsageError
from packer.format.header import Field

ARGUMENTS = {"image": "transform", "label": "target_transform"}
"""The field that each argument's function is for."""


def check_transform(transform: Any, fields: Sequence[Field], path: str) -> None:
    """Raise UsageError for what is no function of an image [C, H, W], or would leave masks and boxes where they are."""
    if transform is None:
        return
    home = type(transform).__module__.partition(".")[0]
    if home == "packer":
        argument = "transform=..." if type(transform).__name__ == "PythonTransform" else "augment=[...]"
        raise UsageError(
            f"transform: {type(transform).__name__} of packer works on batches; functions of one image are allowed."
            f" Pass it to PackedBatchDataset({argument})."
        )
    if home == "albumentations":
        raise UsageError(
            "transform: albumentations takes named NumPy arrays; functions of a tensor [C, H, W] are allowed."
            " Pass it to PackedBatchDataset(transform=...)."
        )
    if not callable(transform) or isinstance(transform, type):
        raise UsageError(
            f"transform={transform!r}: cannot be called with an image. Pass a function, or a Compose of torchvision.transforms.v2."
        )
    image = next((f for f in fields if f.name == "image"), None)
    if image is None:
        raise UsageError(
            f"transform: works on the field 'image', and {_names(fields)} of {path} have none. Leave it out."
        )
    beside = [
        f.name for f in fields if f.name in ("boxes", "keypoints") or (f != image and "sampling" in f.about)
    ]
    if beside:
        raise UsageError(
            f"transform: gets the image alone, and {', '.join(beside)} of {path} would not move with it. Name fields without"
            " these, or take PackedBatchDataset(augment=...), which moves them together."
        )
    for step in _steps(transform):
        name = type(step).__name__
        if not type(step).__module__.startswith("torchvision.") or name == "ToPILImage":
            return
        if name == "ToTensor":
            raise UsageError(
                "transform: ToTensor takes PIL images and arrays; images here are uint8 tensors [C, H, W]."
                " Write v2.ToDtype(torch.float32, scale=True) in its place."
            )


def check_target_transform(transform: Any, fields: Sequence[Field], path: str) -> None:
    """Raise UsageError for what is no function of a label, or where no label is loaded."""
    if transform is None:
        return
    if not callable(transform):
        raise UsageError(f"target_transform={transform!r}: cannot be called with a label. Pass a function.")
    if all(f.name != "label" for f in fields):
        raise UsageError(
            f"target_transform: works on the field 'label', and {_names(fields)} of {path} have none. Leave it out."
        )


def plain(label: Any) -> Any:
    """A label as torchvision hands it to a target_transform: a Python number, or a tensor of several."""
    return label.item() if getattr(label, "ndim", None) == 0 else label


def stack(values: list[Any], argument: str) -> Any:
    """What a function returned for each row, as one batch. Raises UsageError for values that make none."""
    from torch.utils.data import default_collate

    try:
        return default_collate(values)
    except (RuntimeError, TypeError) as error:
        raise UsageError(
            f"{argument}: what it returned for {len(values)} rows makes no batch ({error}); tensors of one shape, or numbers, are"
            " allowed. Return such, or read rows one by one."
        ) from None


def _steps(transform: Any) -> Iterable[Any]:
    """The transforms of a Compose, or of an nn.Sequential; a transform alone is one."""
    inner = getattr(transform, "transforms", None)
    if inner is None and type(transform).__name__ == "Sequential":
        inner = transform.children()
    return [transform] if inner is None else list(inner)


def _names(fields: Sequence[Field]) -> str:
    return "the fields " + ", ".join(f.name for f in fields)
