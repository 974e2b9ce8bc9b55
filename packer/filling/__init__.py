"""Packs that are made while they are loaded: one process of a node converts, and says which rows are there.

    opening.py          open_pack, with a cache for remote packs; fill_pack, a Pack converted while it is read
    job_options.py      options of fill_pack as JSON, for the process that converts
    filling_process.py  the process: an ordinary conversion that raises the frontier (format/frontier.py)

Readers wait for the frontier (format/filling_pack.py) and read blocks and shards as they lie in the working
folder (read/growing_rows.py). Only filling_process.py imports the converter.

Start with opening.py. Imports: convert, format, inputs, progress, remote, tables.
"""
