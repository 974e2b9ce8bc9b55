"""Where rows are kept while training: on the GPU, in memory, or on the disk alone.

    memory_cache.py     rows in memory, decoded, pinned if need be (filling/memory_pack.py keeps them there)
    gpu_cache.py        rows on the device, gathered there

Start with memory_cache.py. Imports: filling, format, load, orders, read.
"""
