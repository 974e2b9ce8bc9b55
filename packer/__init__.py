"""packer: turn a folder of images, or a table, into one file that trains at memory speed.

    convert_images, Report         a folder, list or archive becomes one pack      (packer.convert)
    Labels, Soft                   labels read from a CSV, soft maps beside images (packer.inputs)
    convert_table, TableReport     a CSV, Parquet or Arrow table becomes one pack  (packer.convert)
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
    order_quality                  how far an order is from a uniform shuffle      (packer.load)
    Padding                        batches of images that differ in size, padded   (packer.load)
    PythonTransform                a Python function in processes of its own       (packer.load)
    preview                        a contact sheet of one batch                    (packer.previews)
    report                         the data card of packs: one HTML page           (packer.reports)
    show                           a batch as a picture, in a notebook             (packer.previews)
    open_pack, Pack                what a pack holds: fields, header, rows         (packer.filling, packer.format)
    fill_pack                      a pack that is made while it is loaded from     (packer.filling)
    PackerError                    base of every error raised on purpose           (packer.errors)
    packer.augment                 augmentations on the batch's device
    packer.tables                  a pack's mapping of columns, applied to new rows

Names are imported when they are first used, so that converting never loads torch, and loading never loads OpenCV.
"""

# ruff: noqa: I001 - aliases, by which type checkers see public names, would be a statement each

from __future__ import annotations

import sys
from importlib import import_module

from packer.version import NOT_ON_WINDOWS, __version__

TYPE_CHECKING = False  # as type checkers know it; importing typing takes 10 ms, in which nothing of ours answers Ctrl-C yet
if TYPE_CHECKING:
    from typing import Any

    from packer.convert.conversion_run import Report as Report
    from packer.convert.export import export_images as export_images
    from packer.convert.image_conversion import convert_images as convert_images
    from packer.convert.repacking import (
        append_images as append_images,
        merge_packs as merge_packs,
        merge_shards as merge_shards,
        repack as repack,
        split_pack as split_pack,
    )
    from packer.convert.repair import repair_pack as repair_pack
    from packer.convert.sealing import seal_pack as seal_pack
    from packer.errors import PackerError as PackerError
    from packer.filling.opening import fill_pack as fill_pack, open_pack as open_pack
    from packer.format.pack import Pack as Pack
    from packer.format.verify import verify_pack as verify_pack
    from packer.inputs.image_pairs import Soft as Soft
    from packer.inputs.label_options import Labels as Labels
    from packer.load.batch_dataset import PackedBatchDataset as PackedBatchDataset
    from packer.load.order_quality import order_quality as order_quality
    from packer.load.padded_batches import Padding as Padding
    from packer.load.processes.transforms import PythonTransform as PythonTransform
    from packer.load.row_dataset import PackedDataset as PackedDataset
    from packer.orders.buckets import Buckets as Buckets
    from packer.orders.mixture import Mixture as Mixture
    from packer.orders.regions import Regions as Regions
    from packer.orders.row_orders import (
        Blocks as Blocks,
        Rows as Rows,
        Sequential as Sequential,
        Slices as Slices,
    )
    from packer.orders.sampling import Balanced as Balanced, Weighted as Weighted
    from packer.previews.contact_sheet import preview as preview, show as show
    from packer.reports.data_card import report as report
    from packer.samples.pack_builder import PackBuilder as PackBuilder, create as create
    from packer.samples.pack_dataset import pack_dataset as pack_dataset
    from packer.samples.packing import Fields as Fields
    from packer.tables.table_conversion import (
        TableReport as TableReport,
        append_table as append_table,
        convert_table as convert_table,
    )
    from packer.tables.table_options import Csv as Csv, Encode as Encode

_NAMES = {
    "packer.convert.conversion_run": "Report",
    "packer.convert.export": "export_images",
    "packer.convert.image_conversion": "convert_images",
    "packer.convert.repacking": "append_images merge_packs merge_shards repack split_pack",
    "packer.convert.repair": "repair_pack",
    "packer.convert.sealing": "seal_pack",
    "packer.errors": "PackerError",
    "packer.filling.opening": "fill_pack open_pack",
    "packer.format.pack": "Pack",
    "packer.format.verify": "verify_pack",
    "packer.inputs.image_pairs": "Soft",
    "packer.inputs.label_options": "Labels",
    "packer.load.batch_dataset": "PackedBatchDataset",
    "packer.load.order_quality": "order_quality",
    "packer.load.padded_batches": "Padding",
    "packer.load.processes.transforms": "PythonTransform",
    "packer.load.row_dataset": "PackedDataset",
    "packer.orders.buckets": "Buckets",
    "packer.orders.mixture": "Mixture",
    "packer.orders.regions": "Regions",
    "packer.orders.row_orders": "Blocks Rows Sequential Slices",
    "packer.orders.sampling": "Balanced Weighted",
    "packer.previews.contact_sheet": "preview show",
    "packer.reports.data_card": "report",
    "packer.samples.pack_builder": "PackBuilder create",
    "packer.samples.pack_dataset": "pack_dataset",
    "packer.samples.packing": "Fields",
    "packer.tables.table_conversion": "TableReport append_table convert_table",
    "packer.tables.table_options": "Csv Encode",
}
"""Module -> the public names in it, as they are imported above."""
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'packer' has no attribute {name!r}")
    if sys.platform == "win32":
        raise ImportError(NOT_ON_WINDOWS)
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
