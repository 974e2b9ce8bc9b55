"""Rows of a pack into given memory, however they are stored; never torch.

    array_store.py    ArrayStore: rows 0..n-1 of a dataset, whoever has them; PackStore: read from the pack's files
    field_rows.py     one field of a pack, opened: fixed, ragged or in compressed blocks; checksums compared at first use
    gather.py         FileArray: rows out of one file, or of thousands that are opened when they are needed, by calls or from mappings, in C
    encoded_images.py images that kept their own size, undecoded: their sizes, then pixels
    row_selection.py  which rows and which fields are loaded

Start with array_store.py. Imports: codecs, format, orders.
"""
