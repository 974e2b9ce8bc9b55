"""Examination of this machine: its resources for loading data, and its problems with remedies.

    examination.py  examine(): versions, cores, memory, GPUs and problems
    gpu_checks.py   examine_gpu(): loading and augmenting on the GPU, checked and measured
    traps.py        settings and limits of this machine that slow or break loading, each with its remedy

Start with examination.py. Imports: augment, augment.passes, format, load, packs.
"""
