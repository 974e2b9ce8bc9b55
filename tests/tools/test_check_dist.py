"""tools/check_dist.py finds what a wheel or an archive of sources lacks."""

from __future__ import annotations

import importlib
import re
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from setuptools.command.egg_info import FileList

ROOT = Path(__file__).parents[2]
WHEEL = "packer_torch-0.1.0-cp311-cp311-manylinux_2_17_x86_64.whl"
FILES = [
    "packer/__init__.py",
    "packer_torch-0.1.0.dist-info/licenses/LICENSE",
    "packer/native/_native.abi3.so",
    "packer/reports/report.html",
]


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module("check_dist")


@pytest.fixture
def main(tool: ModuleType) -> Callable[[Path], int]:
    return tool.main


def made(folder: Path, wheel: str = WHEEL, without: str = "", more: str = "", sources: str = "") -> Path:
    """A folder with a wheel and an archive of sources, of which files whose names hold a text are left out."""
    with zipfile.ZipFile(folder / wheel, "w") as archive:
        for file in [*FILES, *([more] if more else [])]:
            if not (without and without in file):
                archive.writestr(file, "")
    with tarfile.open(folder / "packer_torch-0.1.0.tar.gz", "w:gz") as archive:
        for file in sys.modules["check_dist"].sources():
            if not (sources and file.endswith(sources)):
                archive.addfile(tarfile.TarInfo(f"packer_torch-0.1.0/{file}"))
    return folder


def test_the_sources_are_the_checkout(tool: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """What setuptools does not find by itself, MANIFEST.in names; README.md leads to it."""
    monkeypatch.chdir(ROOT)
    listed = FileList()
    for line in Path("MANIFEST.in").read_text().splitlines():
        if not line.startswith("#"):
            listed.process_template_line(line)
    packed = {Path(file).as_posix() for file in listed.files}
    own = {"LICENSE", "MANIFEST.in", "pyproject.toml", "setup.cfg", "setup.py"}
    wanted = {file for file in tool.sources() if not file.startswith("packer/")}
    assert wanted == packed | own
    linked = re.findall(r"\]\(([\w./-]+)", Path("README.md").read_text())
    assert len(linked) > 10
    assert {file for file in linked if file not in wanted} == set()


def test_whole_ones_pass(
    main: Callable[[Path], int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(made(tmp_path)) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("lack", "said"),
    [
        (
            {"without": "_native"},
            f"{WHEEL}: lacks the loops in C, packer/native/_native. Install a C compiler and Python's headers.\n",
        ),
        (
            {"without": "report.html"},
            f"{WHEEL}: lacks packer/reports/report.html. See package_data in setup.cfg.\n",
        ),
        ({"without": "LICENSE"}, f"{WHEEL}: lacks LICENSE. See setup.cfg.\n"),
        (
            {"more": "packer/native/csv.c"},
            f"{WHEEL}: holds packer/native/csv.c, which nothing needs there.\n",
        ),
        (
            {"wheel": "packer_torch-0.1.0-cp311-cp311-linux_x86_64.whl"},
            "packer_torch-0.1.0-cp311-cp311-linux_x86_64.whl: is for this machine alone; manylinux is allowed. "
            "Run auditwheel repair.\n",
        ),
        (
            {"sources": "native.h"},
            "packer_torch-0.1.0.tar.gz: lacks packer/native/native.h. See MANIFEST.in.\n",
        ),
        (
            {"sources": "test_check_dist.py"},
            "packer_torch-0.1.0.tar.gz: lacks tests/tools/test_check_dist.py. See MANIFEST.in.\n",
        ),
    ],
)
def test_lacks_are_found(
    main: Callable[[Path], int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    lack: dict[str, str],
    said: str,
) -> None:
    assert main(made(tmp_path, **lack)) == 1
    assert capsys.readouterr().err == said


def test_nothing_is_an_error(
    main: Callable[[Path], int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(tmp_path) == 1
    assert "holds 0 wheels and 0 archives of sources" in capsys.readouterr().err
