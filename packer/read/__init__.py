"""Rows of a pack into given memory, however they are stored; never torch.

    array_store.py    ArrayStore: rows 0..n-1 of a dataset, whoever has them; PackStore: read from the pack's files
    field_rows.py     one field of a pack, opened: fixed, ragged or in compressed blocks; checksums compared at first use
    gather.py         rows out of files, by calls or from mappings, in C (native/gather.c) where it was compiled
    sharded_array.py  the same of thousands of files, opened when they are needed
    encoded_images.py images that kept their own size, undecoded: their sizes, then pixels
    row_selection.py  which rows and which fields are loaded

Start with array_store.py. Imports: codecs, format, orders.
"""
