"""Packs that are filled: a process converts, and says how many rows can be read (format/frontier.py).

    filling_process.py  the process: an ordinary conversion that raises the frontier
    job_options.py      options as JSON for the process, and back
    opening.py          open_pack, with a cache for remote packs; fill_pack, a Pack converted while it is read

Only filling_process.py, which runs in a separate process, imports the converter.

Start with opening.py. Imports: convert, format, inputs, packs, progress, remote, tables, writing.
"""
