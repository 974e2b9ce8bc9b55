"""Where rows are kept while training: on the GPU, in memory, or on the disk alone.

    kept_store.py       rows of another store, which a thread copies to where they are kept: the base of both
    memory_cache.py     rows in memory, decoded, pinned if need be; each process of a node makes some
    row_memory.py       the memory, shared by all processes of a user that load the same
    gpu_cache.py        rows on the device, gathered there

Start with memory_cache.py. Imports: format, load, orders, read.
"""
