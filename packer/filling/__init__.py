"""Packs that are being filled: one process of a node makes what is missing, and all that load from it ask that one.

    filling_server.py   serves units: those that are waited for first, then those asked for ahead, then the others
    filling_client.py   asks for units; finds the process that fills, or starts it
    filling_process.py  the process that fills: a conversion whose rows are made in the order in which they are asked for
    opening.py          open_pack, with a cache of a pack in a store; fill_pack, a Pack whose rows are made while it is read

Only filling_process.py, which runs in a process of its own, imports what converts.

Start with opening.py. Imports: convert, format, inputs, orders, progress, remote, tables.
"""
