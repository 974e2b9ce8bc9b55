"""tools/check_dist.py finds what a wheel or an archive of sources lacks."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WHEEL = "packer_torch-0.1.0-cp311-cp311-manylinux_2_17_x86_64.whl"
FILES = [
    "packer/__init__.py",
    "packer_torch-0.1.0.dist-info/licenses/LICENSE",
    "packer/native/_native.abi3.so",
]


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], int]:
    monkeypatch.syspath_prepend(ROOT / "tools")
    import check_dist

    return check_dist.main


def made(folder: Path, wheel: str = WHEEL, without: str = "", more: str = "", sources: str = "") -> Path:
    """A folder with a wheel and an archive of sources, of which files whose names hold a text are left out."""
    left_out = (".so", "__pycache__", *([sources] if sources else []))
    with zipfile.ZipFile(folder / wheel, "w") as archive:
        for file in [*FILES, *([more] if more else [])]:
            if not (without and without in file):
                archive.writestr(file, "")
    with tarfile.open(folder / "packer_torch-0.1.0.tar.gz", "w:gz", compresslevel=1) as archive:
        for file in ["LICENSE", "README.md", "setup.py", "setup.cfg", "pyproject.toml", "packer"]:
            archive.add(
                ROOT / file,
                f"packer_torch-0.1.0/{file}",
                filter=lambda info: None if info.name.endswith(left_out) else info,
            )
    return folder


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
            "packer_torch-0.1.0.tar.gz: lacks packer/native/native.h. See setup.py.\n",
        ),
        ({"sources": "LICENSE"}, "packer_torch-0.1.0.tar.gz: lacks LICENSE. See setup.py.\n"),
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
