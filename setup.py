"""The one thing that setup.cfg cannot say: the loops in C, without which packer works all the same."""

import runpy
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# Nobody looks at errno or at floating-point exceptions; both would keep loops from becoming vectors.
FLAGS = ["-O3", "-fno-math-errno", "-fno-trapping-math"]

LOOPS = (
    ("packer._random", "packer/_random.c"),
    ("packer.augment.passes._pass", "packer/augment/passes/_pass.c", "packer/augment/passes/_pass.h"),
    ("packer.inputs.tables._parse", "packer/inputs/tables/_parse.c", "packer/inputs/tables/_numbers.h"),
    ("packer.pixels._kernels", "packer/pixels/_kernels.c"),
    ("packer.read._gather", "packer/read/_gather.c"),
    ("packer.tables._sums", "packer/tables/_sums.c"),
)


class BuildLoops(build_ext):
    """Compiles the loops that can be compiled here, and says in one line what is slow without the others."""

    def run(self) -> None:
        """As build_ext does. pip shows the line only with -v, so packer/loops.py says the same at first use."""
        super().run()
        missing = [e.name for e in self.extensions if not Path(self.get_ext_fullpath(e.name)).exists()]
        if missing:
            without = runpy.run_path(str(Path(__file__).with_name("packer") / "loops.py"))["without"]
            self.warn(without(*missing))


setup(
    cmdclass={"build_ext": BuildLoops},
    ext_modules=[
        Extension(name, [source], depends=headers, extra_compile_args=FLAGS, optional=True)
        for name, source, *headers in LOOPS
    ],
)
