"""packer: turn a folder of images into one file that trains at memory speed.

    convert_images, Report         a folder, list or archive becomes one pack      (packer.convert)
    PackedBatchDataset             batches of a pack for a training loop           (packer.load)
    PackedDataset                  rows of a pack for torch's DataLoader           (packer.load)
    open_pack, Pack                what a pack holds: fields, header, rows         (packer.format)
    PackerError                    base of every error raised on purpose           (packer.errors)
    packer.augment                 augmentations on the batch's device

Names are imported when they are first used, so that converting never loads torch, and loading never loads OpenCV.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from packer.convert.images import Report, convert_images
    from packer.errors import PackerError
    from packer.format.pack import Pack, open_pack
    from packer.load.batches import PackedBatchDataset
    from packer.load.rows import PackedDataset

__version__ = "0.1.0"

_HOMES = {
    "Pack": "packer.format.pack",
    "PackedBatchDataset": "packer.load.batches",
    "PackedDataset": "packer.load.rows",
    "PackerError": "packer.errors",
    "Report": "packer.convert.images",
    "convert_images": "packer.convert.images",
    "open_pack": "packer.format.pack",
}

__all__ = [
    "Pack",
    "PackedBatchDataset",
    "PackedDataset",
    "PackerError",
    "Report",
    "__version__",
    "convert_images",
    "open_pack",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'packer' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
