"""The one thing that setup.cfg cannot say: the loops in C, without which packer works all the same."""

import runpy
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# Nobody looks at errno or at floating-point exceptions; both would keep loops from becoming vectors.
FLAGS = ["-O3", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden"]

ROOT = Path(__file__).parent


class BuildLoops(build_ext):
    """Compiles the loops if that works here, and says in one line what is slow without."""

    def run(self) -> None:
        """As build_ext does. pip shows the line only with -v, so packer.native says the same at first use."""
        super().run()
        if not all(Path(self.get_ext_fullpath(extension.name)).exists() for extension in self.extensions):
            native = runpy.run_path(str(ROOT / "packer" / "native" / "__init__.py"))
            self.warn(native["without"](*native["COSTS"]))


def files(pattern: str) -> list[str]:
    """Names of the extension's files, from here."""
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / "packer" / "native").glob(pattern))


setup(
    cmdclass={"build_ext": BuildLoops},
    ext_modules=[
        Extension(
            "packer.native._native",
            files("*.c"),
            depends=files("*.h"),
            extra_compile_args=FLAGS,
            optional=True,
        )
    ],
)
