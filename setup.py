"""The one thing that setup.cfg cannot say: the loops in C, without which packer works all the same."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "packer.pixels._kernels",
            ["packer/pixels/_kernels.c"],
            extra_compile_args=["-O3"],
            optional=True,
        )
    ]
)
