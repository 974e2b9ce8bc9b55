from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest

from packer.bench.hardware_limits import READ_BYTES, CopyLimit, read_rate


@pytest.mark.parametrize("threads", [1, 3])
def test_the_copy_limit_counts_what_was_copied(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = CopyLimit(batch_bytes=1 << 16, pack_bytes=1 << 20, threads=threads)
    limit._slots[:] = 0
    clock = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock) / 100)
    rate = limit.rate(0.05)
    assert threads <= rate * (next(clock) - 1) / 100 <= 5 + threads
    filled = limit._slots.any(axis=2)
    assert (limit._slots.all(axis=2) == filled).all()
    assert filled[:, 0].all()


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


def test_reading_stops_when_the_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(1000 * READ_BYTES)
    clock = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock) / 100)
    rate = read_rate([str(path)], 2, 0.02)
    pieces = rate * (next(clock) - 1) / 100 / READ_BYTES
    assert 2 <= pieces <= 4
