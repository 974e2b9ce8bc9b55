"""Check that the files of `make wheels` are complete: the C extension, the license, all sources, docs and tests.

    python tools/check_dist.py dist/

The extension is optional in an installation; a wheel without it, or for this Linux alone, is an error here.
"""

from __future__ import annotations

import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("benchmarks", "changes", "docs", "examples", "packer", "tests", "tools")
FILES = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "MANIFEST.in",
    "Makefile",
    "README.md",
    "pyproject.toml",
    "requirements.txt",
    "setup.cfg",
    "setup.py",
)
PAGE = "packer/reports/report.html"


def lacks_of_wheel(name: str, files: list[str]) -> list[str]:
    """Return sentences about defects of a wheel with this name and these files."""
    lacks = []
    if "manylinux" not in name and "musllinux" not in name and "macosx" not in name:
        lacks.append(f"{name}: is for this machine alone; manylinux is allowed. Run auditwheel repair.")
    if not any(file.startswith("packer/native/_native.") and file.endswith(".so") for file in files):
        lacks.append(
            f"{name}: lacks the loops in C, packer/native/_native. Install a C compiler and Python's headers."
        )
    if PAGE not in files:
        lacks.append(f"{name}: lacks {PAGE}. See package_data in setup.cfg.")
    lacks += [
        f"{name}: holds {file}, which nothing needs there." for file in files if file.endswith((".c", ".h"))
    ]
    if not any(file.endswith(".dist-info/licenses/LICENSE") for file in files):
        lacks.append(f"{name}: lacks LICENSE. See setup.cfg.")
    return lacks


def sources() -> list[str]:
    """Return the files that an archive of sources needs: all that a checkout has, but hidden and built ones."""
    found = [ROOT / name for name in FILES]
    found += [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    names = [path.relative_to(ROOT) for path in found if path.suffix not in (".pyc", ".so")]
    return sorted(
        name.as_posix()
        for name in names
        if "_build" not in name.parts and not any(part.startswith(".") for part in name.parts)
    )


def lacks_of_sources(name: str, files: list[str]) -> list[str]:
    """Return sentences about defects of a source archive with these files below its only folder."""
    return [f"{name}: lacks {path}. See MANIFEST.in." for path in sorted(set(sources()) - set(files))]


def main(folder: Path) -> int:
    """Print the files and their defects. Returns 1 if there are any."""
    lacks = []
    wheels, archives = sorted(folder.glob("*.whl")), sorted(folder.glob("*.tar.gz"))
    if not wheels or not archives:
        lacks.append(
            f"{folder}: holds {len(wheels)} wheels and {len(archives)} archives of sources;"
            " one of each is needed."
        )
    for path in wheels:
        with zipfile.ZipFile(path) as wheel:
            lacks += lacks_of_wheel(path.name, wheel.namelist())
    for path in archives:
        with tarfile.open(path) as archive:
            lacks += lacks_of_sources(path.name, [name.partition("/")[2] for name in archive.getnames()])
    for path in (*wheels, *archives):
        print(f"{path}: {path.stat().st_size:,} bytes")
    for lack in lacks:
        print(lack, file=sys.stderr)
    return 1 if lacks else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
