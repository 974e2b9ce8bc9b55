"""Rows of a pack into given memory, however they are stored; never torch.

    row_reader.py     RowReader: runs of rows of some fields into given memory
    stored_fields.py  a field's stored bytes as rows: fixed, ragged (perhaps JPEG files), compressed blocks; checksums compared at first use
    extent_array.py   rows out of files: calls or mappings, whichever suits
    gather.py         the loops of both, in C (native/gather.c) where it was compiled
    page_cache.py     is a part of a file in the page cache?
    row_selection.py  which rows are loaded: a split, some classes, a list
    loaded_fields.py  which fields are loaded, and what ragged rows are to a user

Start with row_reader.py. Imports: codecs, format, orders.
"""
