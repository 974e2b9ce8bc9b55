"""Where rows are kept while training: on the GPU, in memory, or on the disk alone.

    memory_cache.py     rows in memory, decoded, pinned if need be
    shared_memory.py    how a node's processes find each other's memory
    gpu_cache.py        rows on the device, gathered there

Start with memory_cache.py. Imports: format, load, orders, read.
"""
