"""Implementations of one pass over a batch: sample, change colours, scale, erase, cast, write.

    pass_spec.py        the specification: Pass, and the columns of each sample
    prepared_draws.py   the columns of a batch, in host memory and on a device
    torch_pass.py       the reference implementation in torch operations, for any device
    native_pass.py      the implementation in C (native/augment.c), for the CPU
    triton_pass.py      the implementation in Triton, for CUDA: launches of the kernels
    triton_kernels.py   the Triton kernels
    triton_sampling.py  their sampling and frames
    triton_colors.py    their colour steps, noise and casts
    pass_agreement.py   differences between implementations that rounding explains

Start with pass_spec.py. Imports: augment.
"""
