"""v2 transforms of torchvision, called as they are elsewhere: with tv_tensors."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.load.processes.transforms import Roles, leave_out, name_of


class SampleCall:
    """A v2 transform, given a sample of tv_tensors: Image [C, H, W], Mask, BoundingBoxes (XYXY), KeyPoints.

    Labels are ``label``, and ``labels`` for those of boxes, as SanitizeBoundingBoxes expects them; other arrays are plain
    tensors, which v2 leaves alone where there is an image. What it returns goes back to the pack's names and [H, W, C].
    """

    def __init__(self, fn: Any, known: Roles, batched: bool) -> None:
        self._fn, self._known, self._batched = fn, known, batched
        self.ragged: frozenset[str] = frozenset() if batched else known.lists
        self._torch: Any = sys.modules["torch"]
        self._labels = "labels" if known.box_label and "labels" not in known.names else "box_label"
        name = name_of(fn)
        self._tv: Any = importlib.import_module("torchvision.tv_tensors")
        if not known.image and not known.masks:
            raise UsageError(
                f"transform: {name} works on images, and there are none among {', '.join(known.names)}. Pass fields with 'image'."
            )
        if not known.image and (known.boxes or known.keypoints):
            raise UsageError(
                f"transform: {name} moves boxes and keypoints within an image, and there is none among"
                f" {', '.join(known.names)}. Pass fields with 'image'."
            )
        if known.keypoints and not hasattr(self._tv, "KeyPoints"):
            version = getattr(sys.modules["torchvision"], "__version__", "")
            raise UsageError(
                f"transform: torchvision {version} has no KeyPoints, so {name} would leave 'keypoints' where they are; 0.23 or newer"
                f" is allowed. Upgrade torchvision. {leave_out(['keypoints'], known)}"
            )
        if batched and known.boxes:
            raise UsageError(
                f"transform: {name} takes a batch as arrays, and each row has boxes of another number; rows one by one are"
                " allowed. Leave out batched=True."
            )

    def __call__(self, sample: dict[str, Any]) -> Any:
        """Return the transformed sample: arrays, field names as in the pack."""
        given = self._wrapped(sample)
        result = self._fn(given)
        if not isinstance(result, dict):
            return result

        def ours(name: str) -> str:
            return "box_label" if name == self._labels else name

        made = {ours(name): self._array(ours(name), value) for name, value in result.items()}
        names = {ours(name) for name in given}
        # The order is the pack's, and what v2 was not given goes along.
        order = [name for name in sample if name in made or name not in names]
        return {name: made.get(name, sample.get(name)) for name in order} | made

    def _wrapped(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Convert the sample to tv_tensors; leave out lists, and arrays if there is no image, which v2 would treat as images."""
        tv, known = self._tv, self._known
        wrapped: dict[str, Any] = {}
        size: tuple[int, ...] = ()
        if known.image:
            image = sample["image"]
            size = image.shape[1:3] if self._batched else image.shape[:2]
        for name, value in sample.items():
            key = name
            if name == "image" and known.image:
                value = tv.Image(self._channels_first(value))
            elif name in known.masks:
                value = tv.Mask(self._channels_first(value) if known.masks[name] else self._tensor(value))
            elif name == "boxes" and known.boxes:
                value = tv.BoundingBoxes(self._tensor(value), format="XYXY", canvas_size=size)
            elif name == "keypoints" and known.keypoints:
                value = tv.KeyPoints(self._tensor(value), canvas_size=size)
            elif isinstance(value, np.ndarray) and known.image:
                value = self._tensor(value)
                key = self._labels if name == "box_label" and known.box_label else name
            elif not isinstance(value, (str, np.generic)):
                continue
            wrapped[key] = value
        return wrapped

    def _tensor(self, array: NDArray[Any]) -> Any:
        return self._torch.from_numpy(array if array.flags.writeable else array.copy())

    def _channels_first(self, array: NDArray[Any]) -> Any:
        return self._tensor(array).permute(*range(array.ndim - 3), -1, -3, -2)

    def _array(self, name: str, value: Any) -> Any:
        """Convert a value back to NumPy."""
        if isinstance(value, self._torch.Tensor):
            value = value.as_subclass(self._torch.Tensor).detach().numpy()
            if value.ndim == 3 + self._batched and (name == "image" or self._known.masks.get(name)):
                value = np.moveaxis(value, -3, -1)
            return value
        return _pixels(value)


def _pixels(value: Any) -> Any:
    """Return a PIL image as an array [H, W, C]; anything else as it is."""
    pil = sys.modules.get("PIL.Image")
    if pil is None or not isinstance(value, pil.Image):
        return value
    pixels = np.array(value)
    return pixels[..., None] if pixels.ndim == 2 else pixels
