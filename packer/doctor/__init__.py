"""Examination of this machine: its resources and rates for loading data, and its problems with remedies.

    examination.py  examine(): versions, cores, memory, problems; rates of memory, disk and copies to the GPU
    traps.py        settings and limits of this machine that slow or break loading, each with its remedy

Start with examination.py. Imports: bench, format.
"""
