"""Where rows are kept while training: on the GPU, in memory, on the disk alone. Read ``cache_placement.py`` first.

cache_placement.py  which rung of that ladder: asked for, or chosen by size
memory_cache.py  rows in memory, decoded, pinned if need be
shared_memory.py  how a node's processes find each other's memory
gpu_cache.py   rows on the device, gathered there; indexed_rows.py: or only named, for the pass that augments them
background.py  the thread that fills either, and ends with its owner
"""
