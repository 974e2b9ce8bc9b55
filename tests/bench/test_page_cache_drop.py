from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from packer.bench.hardware_limits import drop, resident_share

pytestmark = pytest.mark.usefixtures("flushed")


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "file"
    path.write_bytes(np.arange(1 << 18, dtype=np.int64).tobytes())
    if resident_share(str(path)) is None:
        pytest.skip("this file system does not say what is in the page cache")
    return str(path)


def test_a_dropped_file_is_not_resident_until_it_is_read(file: str) -> None:
    assert resident_share(file) == 1
    for _ in range(50):  # the kernel keeps pages that it is busy with
        drop([file])
        if resident_share(file) == 0:
            break
        time.sleep(0.02)
    assert resident_share(file) == 0
    assert resident_share(file) == 0
    Path(file).read_bytes()
    assert resident_share(file) == 1


def test_where_the_system_does_not_say(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """mincore(2) tells those who may not write a file that everything is there."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert resident_share(file) is None
    monkeypatch.undo()
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    assert resident_share(file) is None
