"""Implementations of one pass over a batch: sample, change colours, scale, erase, cast, write.

    pass_spec.py       the specification: Pass, and the columns of each sample
    torch_pass.py      the reference implementation in torch operations, for any device
    native_pass.py     the implementation in C (native/augment.c), for the CPU
    triton_pass.py     the implementation in Triton, for CUDA: launches of the kernels
    triton_kernels.py  the Triton kernels

Start with pass_spec.py. Imports: augment.
"""
