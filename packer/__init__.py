"""packer: turn a folder of images, or a table, into one file that trains at memory speed.

    convert_images, Report         a folder, list or archive becomes one pack      (packer.convert)
    Labels, Soft                   labels read from a CSV, soft maps beside images (packer.inputs)
    Split                          splits by shares, a column, whole groups        (packer.convert)
    convert_table                  a CSV, Parquet or Arrow table becomes one pack  (packer.convert)
    pack_dataset, create           arrays, datasets, generators; sample by sample  (packer.samples)
    Fields                         what samples become                             (packer.samples)
    PackBuilder                    a pack that create() begins                     (packer.samples)
    Csv, Encode                    how a table's text is read, its features made   (packer.tables)
    append_images, merge_packs     more images into a pack, packs into one         (packer.convert)
    merge_shards                   shards that several machines made become a pack (packer.convert)
    split_pack, repack             one pack into several, or stored another way    (packer.convert)
    append_table                   more rows of a table into a pack                (packer.convert)
    export_images                  image files of a pack                           (packer.convert)
    verify_pack, repair_pack       every byte against its checksums                (packer.format, packer.convert)
    seal_pack                      a pack that was edited in place                 (packer.convert)
    PackedBatchDataset             batches of a pack for a training loop           (packer.load)
    PackedDataset                  rows of a pack for torch's DataLoader           (packer.load)
    Sequential, Slices, Blocks,
    Rows                           orders, with their lengths                      (packer.orders)
    Buckets                        an order: images alike in size together         (packer.orders)
    Weighted, Balanced             orders that draw some rows more often           (packer.orders)
    Padding                        batches of images that differ in size, padded   (packer.load)
    PythonTransform                a Python function in processes of its own       (packer.load)
    preview                        a contact sheet of one batch                    (packer.previews)
    report                         the data card of packs: one HTML page           (packer.reports)
    show                           a batch as a picture, in a notebook             (packer.previews)
    open_pack, Pack                what a pack holds: fields, header, rows         (packer.filling, packer.format)
    join_fields                    packs whose rows have the fields of all         (packer.format)
    fill_pack                      a pack that is made while it is loaded from     (packer.filling)
    PackerError                    base of every error raised on purpose           (packer.errors)
    Preprocess                     new images as rows of a pack, for a server      (packer.serving)
    packer.augment                 augmentations on the batch's device
    packer.tables                  a pack's mapping of columns, applied to new rows

Names are imported when they are first used, so that converting never loads torch, and loading never loads OpenCV.
"""

from __future__ import annotations

import sys
from importlib import import_module
from itertools import pairwise

from packer.version import NOT_ON_WINDOWS, __version__


def _homes() -> dict[str, str]:
    """Return public name -> module, as __init__.pyi imports them: ``from packer.format.pack import Pack as Pack``."""
    stub: bytes = __spec__.loader.get_data(f"{__path__[0]}/__init__.pyi")
    words = stub.decode().replace(",", " ").split()
    homes, module = {}, ""
    for before, word in pairwise(words):
        module = word if before == "from" else module
        if before == "as" and word != "__version__":
            homes[word] = module
    return homes


_HOMES = _homes()
__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'packer' has no attribute {name!r}")
    if sys.platform == "win32":
        raise ImportError(NOT_ON_WINDOWS)
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
