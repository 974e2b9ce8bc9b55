"""What this machine offers for loading data, and what is in the way.

    examination.py  examine(): versions, cores, memory, traps; how fast memory, the disk of a folder and the way to the GPU are
    traps.py        what slows loading down here, or breaks it, each with its remedy

Start with examination.py. Imports: bench, format.
"""
