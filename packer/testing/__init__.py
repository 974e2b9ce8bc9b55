"""Conformance checks for implementers of a block codec, a row order or a reader of the format.

The checks need no test framework. Each raises AssertionError, which names the first violated requirement.

    codec_checks.py     a block codec: round trips, damaged blocks, HDF5's filter
    order_checks.py     a row order: every row once, the same sequence on every rank and thread
    reader_checks.py    a reader of packs: sample packs of every kind, intact and damaged

Start with reader_checks.py. Imports: codecs, format, orders.
"""

from packer.testing.codec_checks import check_block_codec as check_block_codec
from packer.testing.codec_checks import damaged_copies as damaged_copies
from packer.testing.order_checks import check_order as check_order
from packer.testing.reader_checks import check_reader as check_reader
from packer.testing.reader_checks import write_sample_pack as write_sample_pack

__all__ = ["check_block_codec", "check_order", "check_reader", "damaged_copies", "write_sample_pack"]
