"""Packs that are being filled: one process per node produces missing rows at the request of all that load.

    filling_server.py   serves units: those that clients wait for first, then prefetched ones, then the rest
    filling_client.py   requests units; finds the filling process or starts it
    filling_process.py  the filling process: a conversion that produces rows in the order of requests
    job_options.py      options as JSON for the filling process, and back
    opening.py          open_pack, with a cache for remote packs; fill_pack, a Pack converted while it is read

Only filling_process.py, which runs in a separate process, imports the converter.

Start with opening.py. Imports: convert, format, inputs, orders, progress, remote, tables.
"""
