"""The one thing that setup.cfg cannot say: the loops in C, without which packer works all the same."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(name, [source], extra_compile_args=["-O3"], optional=True)
        for name, source in (
            ("packer._random", "packer/_random.c"),
            ("packer.pixels._kernels", "packer/pixels/_kernels.c"),
            ("packer.read._gather", "packer/read/_gather.c"),
        )
    ]
)
