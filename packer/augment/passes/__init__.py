"""Implementations of one pass over a batch: sample, colour, scale, erase, cast, lay out.

    pass_spec.py       Pass, and the columns of numbers that each sample has
    torch_pass.py      the reference: torch operations, on any device
    native_pass.py     on the CPU, in C (native/augment.c), where that was compiled
    triton_pass.py     on CUDA: one kernel, and how it is launched
    triton_kernels.py  that kernel, in Triton

Start with pass_spec.py. Imports: augment.
"""
