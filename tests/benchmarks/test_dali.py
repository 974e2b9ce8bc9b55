"""benchmarks/dali.py runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from packer import convert_images
from tests.conftest import Script


def test_it_runs(script: Script, photo_folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("nvidia.dali", reason="pip install nvidia-dali-cuda120 (424 MB)")
    pytest.importorskip("nvidia.nvimgcodec", reason="pip install nvidia-nvimgcodec-cu12")
    convert_images(photo_folder, tmp_path / "p.h5", size=64)
    done = script("benchmarks/dali.py", photo_folder, tmp_path / "p.h5", "--rounds", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("images/s") == 6
