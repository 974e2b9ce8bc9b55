from __future__ import annotations

import time
from pathlib import Path

import pytest

from packer.bench.limits import READ_BYTES, CopyLimit, read_rate


@pytest.mark.parametrize("threads", [1, 3])
def test_the_copy_limit_counts_what_was_copied(threads: int) -> None:
    limit = CopyLimit(batch_bytes=1 << 16, pack_bytes=1 << 20, threads=threads)
    limit._slots[:] = 0
    started = time.perf_counter()
    rate = limit.rate(0.05)
    assert rate > 100
    assert time.perf_counter() - started < 1
    assert (limit._slots == 1).all()


def test_the_copy_limit_takes_packs_smaller_than_a_batch() -> None:
    assert CopyLimit(batch_bytes=1 << 12, pack_bytes=10, threads=1).rate(0.01) > 0


@pytest.mark.parametrize("threads", [1, 2])
def test_reading_counts_every_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    paths = []
    for number, size in enumerate((READ_BYTES + 5, 0, 7)):
        path = tmp_path / str(number)
        path.write_bytes(bytes(size))
        paths.append(str(path))
    clock = iter([0.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock, 0.5))
    assert read_rate(paths, threads, 1) == (READ_BYTES + 5 + 7) / 0.5


def test_reading_stops_when_the_time_is_over(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(1000 * READ_BYTES)
    started = time.perf_counter()
    assert read_rate([str(path)], 2, 0.02) > 0
    assert time.perf_counter() - started < 0.5
