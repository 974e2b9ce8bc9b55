"""Where rows are kept while training: on the GPU, in memory, on the disk alone. Read ``placement.py`` first.

placement.py   which rung of that ladder: asked for, or chosen by size
resident.py    rows in memory, decoded, pinned if need be
rendezvous.py  how a node's processes find each other's memory
ongpu.py       rows on the device, gathered there; chosen.py: or only named, for the pass that augments them
background.py  the thread that fills either, and ends with its owner
"""
