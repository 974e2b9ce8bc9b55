"""The one thing that setup.cfg cannot say: the loops in C, without which packer works all the same."""

from setuptools import Extension, setup

# Nobody looks at errno or at floating-point exceptions; both would keep loops from becoming vectors.
FLAGS = ["-O3", "-fno-math-errno", "-fno-trapping-math"]

setup(
    ext_modules=[
        Extension(name, [source], depends=headers, extra_compile_args=FLAGS, optional=True)
        for name, source, *headers in (
            ("packer._random", "packer/_random.c"),
            ("packer.augment.passes._pass", "packer/augment/passes/_pass.c", "packer/augment/passes/_pass.h"),
            (
                "packer.inputs.tables._parse",
                "packer/inputs/tables/_parse.c",
                "packer/inputs/tables/_numbers.h",
            ),
            ("packer.pixels._kernels", "packer/pixels/_kernels.c"),
            ("packer.read._gather", "packer/read/_gather.c"),
            ("packer.tables._sums", "packer/tables/_sums.c"),
        )
    ]
)
