"""packer: turn a folder of images, or a table, into one file that trains at memory speed.

    convert_images, Report         a folder, list or archive becomes one pack      (packer.convert)
    Labels, Soft                   labels read from a CSV, soft maps beside images (packer.inputs)
    convert_table, TableReport     a CSV, Parquet or Arrow table becomes one pack  (packer.convert)
    pack_dataset, create           arrays, datasets, generators; sample by sample  (packer.samples)
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

from __future__ import annotations

import sys
from importlib import import_module

from packer.version import NOT_ON_WINDOWS, __version__

TYPE_CHECKING = False  # as type checkers know it; importing typing takes 10 ms, in which nothing of ours answers Ctrl-C yet
if TYPE_CHECKING:
    from typing import Any

    from packer.convert.conversion_run import Report
    from packer.convert.export import export_images
    from packer.convert.image_conversion import convert_images
    from packer.convert.repacking import append_images, merge_packs, merge_shards, repack, split_pack
    from packer.convert.repair import repair_pack
    from packer.convert.sealing import seal_pack
    from packer.errors import PackerError
    from packer.filling.opening import fill_pack, open_pack
    from packer.format.pack import Pack
    from packer.format.verify import verify_pack
    from packer.inputs.image_pairs import Soft
    from packer.inputs.label_options import Labels
    from packer.load.batch_dataset import PackedBatchDataset
    from packer.load.order_quality import order_quality
    from packer.load.padded_batches import Padding
    from packer.load.processes.transforms import PythonTransform
    from packer.load.row_dataset import PackedDataset
    from packer.orders.buckets import Buckets
    from packer.orders.mixture import Mixture
    from packer.orders.regions import Regions
    from packer.orders.row_orders import Blocks, Rows, Sequential, Slices
    from packer.orders.sampling import Balanced, Weighted
    from packer.previews.contact_sheet import preview, show
    from packer.reports.data_card import report
    from packer.samples.pack_builder import PackBuilder, create
    from packer.samples.pack_dataset import pack_dataset
    from packer.tables.table_conversion import TableReport, append_table, convert_table
    from packer.tables.table_options import Csv, Encode

_HOMES = {
    "Balanced": "packer.orders.sampling",
    "Blocks": "packer.orders.row_orders",
    "Buckets": "packer.orders.buckets",
    "Csv": "packer.tables.table_options",
    "Encode": "packer.tables.table_options",
    "Labels": "packer.inputs.label_options",
    "Mixture": "packer.orders.mixture",
    "Pack": "packer.format.pack",
    "PackBuilder": "packer.samples.pack_builder",
    "PackedBatchDataset": "packer.load.batch_dataset",
    "PackedDataset": "packer.load.row_dataset",
    "Padding": "packer.load.padded_batches",
    "PackerError": "packer.errors",
    "PythonTransform": "packer.load.processes.transforms",
    "Regions": "packer.orders.regions",
    "Report": "packer.convert.conversion_run",
    "Rows": "packer.orders.row_orders",
    "Sequential": "packer.orders.row_orders",
    "Slices": "packer.orders.row_orders",
    "Soft": "packer.inputs.image_pairs",
    "TableReport": "packer.tables.table_conversion",
    "Weighted": "packer.orders.sampling",
    "append_images": "packer.convert.repacking",
    "append_table": "packer.tables.table_conversion",
    "convert_images": "packer.convert.image_conversion",
    "convert_table": "packer.tables.table_conversion",
    "create": "packer.samples.pack_builder",
    "export_images": "packer.convert.export",
    "merge_packs": "packer.convert.repacking",
    "merge_shards": "packer.convert.repacking",
    "fill_pack": "packer.filling.opening",
    "open_pack": "packer.filling.opening",
    "order_quality": "packer.load.order_quality",
    "pack_dataset": "packer.samples.pack_dataset",
    "preview": "packer.previews.contact_sheet",
    "repack": "packer.convert.repacking",
    "repair_pack": "packer.convert.repair",
    "report": "packer.reports.data_card",
    "seal_pack": "packer.convert.sealing",
    "show": "packer.previews.contact_sheet",
    "split_pack": "packer.convert.repacking",
    "verify_pack": "packer.format.verify",
}

__all__ = [
    "Balanced",
    "Blocks",
    "Buckets",
    "Csv",
    "Encode",
    "Labels",
    "Mixture",
    "Pack",
    "PackBuilder",
    "PackedBatchDataset",
    "PackedDataset",
    "PackerError",
    "Padding",
    "PythonTransform",
    "Regions",
    "Report",
    "Rows",
    "Sequential",
    "Slices",
    "Soft",
    "TableReport",
    "Weighted",
    "__version__",
    "append_images",
    "append_table",
    "convert_images",
    "convert_table",
    "create",
    "export_images",
    "fill_pack",
    "merge_packs",
    "merge_shards",
    "open_pack",
    "order_quality",
    "pack_dataset",
    "preview",
    "repack",
    "repair_pack",
    "report",
    "seal_pack",
    "show",
    "split_pack",
    "verify_pack",
]


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
