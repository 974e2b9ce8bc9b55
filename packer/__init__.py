"""packer: turn a folder of images, or a table, into one file that trains at memory speed.

    convert_images, Report         convert a folder, list or archive to a pack     (packer.convert)
    Labels, Soft                   labels read from a CSV, soft maps beside images (packer.inputs)
    Sequences                      frames and steps in order, for windows          (packer.convert)
    Split                          splits by shares, a column or whole groups      (packer.convert)
    convert_table                  convert a CSV, Parquet or Arrow table to a pack (packer.convert)
    pack_dataset, create           pack arrays, datasets, generators, samples      (packer.samples)
    Fields                         fields that samples become                      (packer.samples)
    PackBuilder                    the unfinished pack that create() returns       (packer.samples)
    Csv, Encode                    options for a table's text and its features     (packer.tables)
    append_images, merge_packs     add images to a pack, merge packs into one      (packer.convert)
    merge_shards                   list shards of several machines as one pack     (packer.convert)
    split_pack, repack             split a pack, or store it in another way        (packer.convert)
    append_table                   add rows of a table to a pack                   (packer.convert)
    export_images                  write a pack's images as files                  (packer.convert)
    verify_pack                    compare every byte of a pack with its checksum  (packer.packs)
    seal_pack                      seal a pack that was edited in place            (packer.convert)
    PackedBatchDataset             batches of a pack for a training loop           (packer.load)
    PackedDataset                  rows of a pack for torch's DataLoader           (packer.load)
    Sequential, Slices, Blocks,
    Rows                           orders, with their lengths                      (packer.orders)
    Buckets                        an order that groups images of similar size     (packer.orders)
    Weighted                       an order that draws some rows more often        (packer.orders)
    Windows                        samples of consecutive rows: clips, time series (packer.orders)
    Padding                        batches of images that differ in size, padded   (packer.load)
    PythonTransform                a Python function in separate processes         (packer.load)
    preview                        a contact sheet of a source, or of a batch      (packer.previews)
    report                         the data card of packs: an HTML page            (packer.reports)
    show                           a batch as a picture, in a notebook             (packer.previews)
    open_pack, Pack                an opened pack: fields, header, rows            (packer.filling, .packs)
    open_arrays                    own HDF5, .npy and arrays, loaded as a pack     (packer.packs)
    join_fields                    join fields of several packs row by row         (packer.packs)
    fill_pack                      a pack that is converted while it is loaded     (packer.filling)
    PackerError                    base of every error raised on purpose           (packer.errors)
    Preprocess                     new images as rows of a pack, for a server      (packer.serving)
    packer.augment                 augmentations on the batch's device
    packer.tables                  a pack's mapping of columns, applied to new rows

Names are imported on first use, so that converting never loads torch, and loading never loads OpenCV.
"""

from __future__ import annotations

import sys
from importlib import import_module
from itertools import pairwise

from packer.version import NOT_ON_WINDOWS, __version__


def _homes() -> dict[str, str]:
    """Return public name -> module from __init__.pyi: ``from packer.packs.pack import Pack as Pack``."""
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
