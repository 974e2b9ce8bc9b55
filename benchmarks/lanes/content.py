"""Checks that every row occurs once, with the pixels that belong to its label."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lanes.lane import Batch, Rows

LEAST_DB = 20.0
"""Least PSNR of lossy stores. JPEGs of quality 90 reach at least 26 dB, a wrong photograph about 10."""


def pixels_of(images: Any) -> NDArray[np.uint8]:
    """Return a batch's images as an array [N, H, W, C], without a copy if the layout allows."""
    array = images.numpy() if hasattr(images, "numpy") else np.asarray(images)
    if array.shape[-1] != 3 and array.shape[1] == 3:
        array = array.transpose(0, 2, 3, 1)
    return array


def labels_of(labels: Any) -> NDArray[np.int64]:
    """Return a batch's labels as an array [N]."""
    array = labels.numpy() if hasattr(labels, "numpy") else np.asarray(labels)
    return array.reshape(-1).astype(np.int64)


def check(epoch: Iterable[Batch], rows: Rows, *, exact: bool, least_db: float = LEAST_DB) -> dict[str, float]:
    """Compare an epoch with the rows. Returns least and mean PSNR in dB, {} if exact. Raises ValueError."""
    place = np.empty(len(rows), np.int64)
    place[rows.labels] = np.arange(len(rows))
    seen = np.zeros(len(rows), np.int64)
    fidelity: list[float] = []
    for images, batch_labels in epoch:
        pixels, labels = pixels_of(images), labels_of(batch_labels)
        if len(pixels) != len(labels):
            raise ValueError(f"a batch has {len(pixels)} images and {len(labels)} labels")
        for image, label in zip(pixels, labels, strict=True):
            if not 0 <= label < len(rows):
                raise ValueError(f"label {label} does not exist")
            seen[label] += 1
            wanted = rows.images[place[label]]
            if exact and not np.array_equal(image, wanted):
                raise ValueError(f"the pixels with label {label} are not those of the pack")
            if not exact:
                fidelity.append(psnr(image, wanted))
                if fidelity[-1] < least_db:
                    raise ValueError(
                        f"the pixels with label {label} are {fidelity[-1]:.1f} dB from the pack's"
                    )
    if not (seen == 1).all():
        raise ValueError(f"{(seen == 0).sum()} rows were missing, {(seen > 1).sum()} came more than once")
    return {"least_db": min(fidelity), "mean_db": float(np.mean(fidelity))} if fidelity else {}


def psnr(image: NDArray[np.uint8], wanted: NDArray[np.uint8]) -> float:
    """Return the PSNR in dB, at most 100."""
    difference = (image.astype(np.float32) - wanted).reshape(-1)
    error = float(difference @ difference) / difference.size
    return float(10 * np.log10(255**2 / max(error, 255**2 / 1e10)))


def touch(images: Any) -> int:
    """Read every byte of a batch once. Returns the sum of its words."""
    array = pixels_of(images)
    flat = array.reshape(-1) if array.flags.c_contiguous else np.ascontiguousarray(array).reshape(-1)
    return int(np.add.reduce(flat.view(np.int64) if flat.nbytes % 8 == 0 else flat, dtype=np.int64))
