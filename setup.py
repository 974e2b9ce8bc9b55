"""The one thing that setup.cfg cannot say: the loops in C, without which packer works all the same."""

import runpy
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# Nobody looks at errno or at floating-point exceptions; both would keep loops from becoming vectors.
FLAGS = ["-O3", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden"]

# One wheel serves CPython 3.11 and newer: buffers are part of the stable ABI since then, which free-threaded builds do not have.
STABLE_ABI = sys.version_info >= (3, 11) and not sysconfig.get_config_var("Py_GIL_DISABLED")

ROOT = Path(__file__).parent


class BuildLoops(build_ext):
    """Compiles the loops if that works here, and says in one line what is slow without."""

    def run(self) -> None:
        """As build_ext does. pip shows the line only with -v, so packer.native says the same at first use."""
        if STABLE_ABI and (self.inplace or self.editable_mode):
            # The file of a build for this version of Python alone would be imported instead.
            alone = f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
            (ROOT / "packer" / "native" / alone).unlink(missing_ok=True)
        super().run()
        if not all(Path(self.get_ext_fullpath(extension.name)).exists() for extension in self.extensions):
            native = runpy.run_path(str(ROOT / "packer" / "native" / "__init__.py"))
            self.warn(native["without"](*native["COSTS"]))


def files(pattern: str) -> list[str]:
    """Names of the extension's files, from here."""
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / "packer" / "native").glob(pattern))


setup(
    cmdclass={"build_ext": BuildLoops},
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if STABLE_ABI else {},
    ext_modules=[
        Extension(
            "packer.native._native",
            files("*.c"),
            depends=files("*.h"),
            extra_compile_args=FLAGS,
            optional=True,
            define_macros=[("Py_LIMITED_API", "0x030B0000")] if STABLE_ABI else [],
            py_limited_api=STABLE_ABI,
        )
    ],
)
