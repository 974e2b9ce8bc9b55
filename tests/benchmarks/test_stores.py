"""benchmarks/stores.py runs, and checks what it measures."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from packer import convert_images

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(FOLDER)
    return pytest.importorskip("stores")


def test_every_store_has_a_line(
    stores: ModuleType, photo_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("zstandard")
    convert_images(photo_folder, tmp_path / "photos.h5", size=16)
    assert stores.main([str(tmp_path / "photos.h5"), "--rounds", "1", "--block", "0.003"]) == 0
    printed = capsys.readouterr().out
    assert "24 images of 16x16x3" in printed
    assert "blocks of 4 rows; 1 rounds, interleaved" in printed
    lines = {line.split()[0]: line.split() for line in printed.splitlines()[4:]}
    assert list(lines) == ["bytes/image", "raw", "jpeg", "gzip", "zstd", "blosc2"]
    assert lines["raw"][1:4] == ["768", "1.00x", "lossless"]
    assert lines["jpeg"][4] == "dB"
    assert lines["blosc2"][3] == "lossless"


def test_a_changed_row_is_seen(stores: ModuleType) -> None:
    blocks = [np.zeros((2, 4, 4, 3), np.uint8)]
    store = stores.Store([b"\1" + bytes(95)], 0.0, stores.copy)
    with pytest.raises(AssertionError, match="raw changed the rows"):
        stores.fidelity("raw", store, blocks)


def test_a_pack_without_raw_images_is_refused(
    stores: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        stores.main([str(tmp_path / "none.h5")])
    assert "none.h5: cannot be read (No such file or directory)." in capsys.readouterr().err
