"""Rows of a pack into caller-supplied memory, however they are stored; never imports torch.

    array_store.py    ArrayStore: rows 0..n-1 of a dataset; PackStore: reads them from the pack's files
    field_rows.py     one opened field: fixed, ragged or in compressed blocks; verifies checksums
    gather.py         FileArray: rows of one file or thousands, by system calls or mappings, in C
    encoded_images.py images of different sizes, encoded: their sizes, then pixels
    row_pieces.py     all rows of a pack, a few at a time
    row_selection.py  selects rows and fields of a pack

Start with array_store.py. Imports: codecs, format, orders, packs.
"""
