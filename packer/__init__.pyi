"""Public names and their modules, for type checkers and for the lazy imports of packer/__init__.py."""

# ruff: noqa: I001 - sorted imports would put each alias, which marks a public name, into its own statement
from packer.version import __version__ as __version__
from packer.convert.conversion_task import Report as Report
from packer.convert.export import export_images as export_images
from packer.convert.image_conversion import convert_images as convert_images
from packer.convert.image_appending import append_images as append_images
from packer.convert.repacking import (
    merge_packs as merge_packs,
    merge_shards as merge_shards,
    repack as repack,
    split_pack as split_pack,
)
from packer.convert.row_sequence import Sequences as Sequences
from packer.convert.sealing import seal_pack as seal_pack
from packer.errors import PackerError as PackerError
from packer.filling.opening import fill_pack as fill_pack, open_pack as open_pack
from packer.packs.joined_fields import join_fields as join_fields
from packer.packs.own_arrays import open_arrays as open_arrays
from packer.packs.pack import Pack as Pack
from packer.packs.verify import verify_pack as verify_pack
from packer.inputs.image_pairs import Soft as Soft
from packer.convert.splits import Split as Split
from packer.inputs.label_options import Labels as Labels
from packer.load.batch_dataset import PackedBatchDataset as PackedBatchDataset
from packer.load.padded_batches import Padding as Padding
from packer.load.processes.transforms import PythonTransform as PythonTransform
from packer.load.row_dataset import PackedDataset as PackedDataset
from packer.orders.blocks import Blocks as Blocks
from packer.orders.buckets import Buckets as Buckets
from packer.orders.mixture import Mixture as Mixture
from packer.orders.regions import Regions as Regions
from packer.orders.row_orders import Rows as Rows, Sequential as Sequential, Slices as Slices
from packer.orders.sampling import Weighted as Weighted
from packer.orders.windows import Windows as Windows
from packer.previews.contact_sheet import preview as preview, show as show
from packer.reports.data_card import report as report
from packer.samples.pack_builder import PackBuilder as PackBuilder, create as create
from packer.samples.pack_dataset import pack_dataset as pack_dataset
from packer.samples.packing import Fields as Fields
from packer.serving.preprocess import Preprocess as Preprocess
from packer.tables.table_conversion import (
    append_table as append_table,
    convert_table as convert_table,
)
from packer.tables.table_options import Csv as Csv, Encode as Encode

__all__: list[str]
