"""Caches of rows during training: on the GPU or in memory.

    memory_cache.py     rows in memory, decoded; the processes of a node share the work
    row_memory.py       the memory, shared by all processes of a user that load the same rows
    gpu_cache.py        rows on the device, uploaded before the first batch and gathered there

Start with memory_cache.py. Imports: format, load, orders, packs, progress, read.
"""
