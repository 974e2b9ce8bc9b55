"""Rows of a pack into given memory, however they are stored. Read ``reader.py`` first.

    reader.py      runs of rows of some fields into given memory
    stores.py      what stored bytes are: plain rows, ragged rows (perhaps JPEG files), compressed blocks
    extents.py     plain rows out of files: calls or mappings, whichever suits
    gather.py      the loops of both, in C (_gather.c) where it was compiled
    residency.py   is it in the page cache?
    selection.py   which rows are loaded: a split, some classes, a list
    fields.py      which fields are loaded, and what ragged rows are to a user

Imports ``packer.format``, ``packer.codecs`` and ``packer.orders``; never torch.
"""
