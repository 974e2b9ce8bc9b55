"""torch that is not there, there in part, or cannot be imported here: a sentence each."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from packer.errors import MissingDependencyError, PackerError
from packer.pytorch import import_torch

pytest.importorskip("torch")


def said(purpose: str) -> str:
    with pytest.raises(PackerError) as error:
        import_torch(purpose)
    return str(error.value)


def test_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert said("augment") == "augment: torch is not installed. Run: pip install torch"


@pytest.mark.parametrize("kind", ["OSError", "ImportError"])
def test_a_library_of_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    (tmp_path / "torch.py").write_text(f'raise {kind}("libtorch_cpu.so: cannot open shared object file")')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert said("augment") == (
        "augment: torch cannot be imported (libtorch_cpu.so: cannot open shared object file)."
        " Run: pip install --force-reinstall torch"
    )
    assert issubclass(MissingDependencyError, ImportError)


def test_the_working_folder_was_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    import_torch("augment")  # imported before
    monkeypatch.delitem(sys.modules, "torch")
    assert said("augment") == (
        "augment: torch cannot be imported, because the working folder was removed. Change to another folder."
    )
