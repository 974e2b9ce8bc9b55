from __future__ import annotations

import mmap
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from packer.format.file_io import resident


@pytest.mark.skipif(sys.platform != "linux", reason="the page cache is emptied with a Linux call")
def test_tells_cached_from_uncached_pages(tmp_path: Path, flushed: None):
    path = tmp_path / "x"
    path.write_bytes(bytes(64 << 12))
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    mapped = np.frombuffer(mmap.mmap(fd, 0, access=mmap.ACCESS_READ), np.uint8)
    assert resident(mapped, [0, 63 << 12, (64 << 12) - 1])
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    if resident(mapped, [0]):
        pytest.skip("this file system keeps its pages (tmpfs)")
    assert not resident(mapped, [32 << 12])
    os.close(fd)
