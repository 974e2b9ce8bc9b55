"""Examination of this machine: its resources for loading data, and its problems with remedies.

    examination.py  examine(): versions, cores, memory, GPUs and problems
    traps.py        settings and limits of this machine that slow or break loading, each with its remedy

Start with examination.py. Imports: format.
"""
