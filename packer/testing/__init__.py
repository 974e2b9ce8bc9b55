"""Conformance checks for those who write a block codec, an order or a reader of the format. They need no test framework.

Each check raises an AssertionError that names the first promise that is not kept.

    codec_checks.py     a codec of blocks: round trips, damaged blocks, HDF5's filter
    order_checks.py     an order of rows: every row once, the same sequence whoever asks
    reader_checks.py    a program that reads packs: sample packs of every kind, whole and damaged

Start with reader_checks.py. Imports: codecs, format, orders.
"""

from packer.testing.codec_checks import check_block_codec as check_block_codec
from packer.testing.codec_checks import damaged_copies as damaged_copies
from packer.testing.order_checks import check_order as check_order
from packer.testing.reader_checks import check_reader as check_reader
from packer.testing.reader_checks import write_sample_pack as write_sample_pack

__all__ = ["check_block_codec", "check_order", "check_reader", "damaged_copies", "write_sample_pack"]
