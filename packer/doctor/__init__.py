"""What this machine offers for loading data, and what is in the way.

    examination.py  examine(): versions, cores, memory, rates and traps, for data in one folder
    rates.py        how fast memory, the disk and the way to the GPU are
    traps.py        what slows loading down here, or breaks it, each with its remedy

Start with examination.py. Imports: bench, format.
"""
