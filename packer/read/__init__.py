"""Rows of a pack into given memory, however they are stored. Read ``reader.py`` first.

    reader.py      runs of rows of some fields into given memory
    stores.py      what stored bytes are: plain rows, ragged rows (perhaps JPEG files), compressed blocks
    extents.py     plain rows out of files: calls or mappings, whichever suits
    residency.py   is it in the page cache?
    fields.py      which fields are loaded, and what ragged rows are to a user

Imports ``packer.format``, ``packer.codecs`` and ``packer.orders``; never torch.
"""
