"""Staged rows: any memory, any order, threads and processes give the records that were written."""

from __future__ import annotations

import errno
import os
import resource
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from packer.convert.staged_rows import ShuffledFile
from packer.errors import SourceError
from tests.convert.plain_rows import order_of

SPLITS = (None, "a=0.5,b=0.5", "a=rest,b=last:5", "a=rest,b=0.3,c=first:4")


def write(path: Path, rows: int, itemsize: int) -> np.ndarray:
    """Records that all differ, as they lie in the file."""
    records = np.random.default_rng(rows).integers(0, 256, (rows, itemsize)).astype(np.uint8)
    path.write_bytes(records.tobytes())
    return records


def order(rows: int, split: str | None = None, *, shuffle: bool = True, seed: int = 3) -> np.ndarray:
    return order_of(rows, split, shuffle=shuffle, seed=seed).samples


def shuffled_file(
    path: str, itemsize: int, samples: np.ndarray, *, rising: bool = False, **options: Any
) -> ShuffledFile:
    return ShuffledFile(path, itemsize, samples, rising=rising, **options)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=75)
@given(
    rows=st.integers(20, 700),
    itemsize=st.sampled_from([4, 5, 12, 116, 3000, 10_000]),
    memory=st.integers(1, 40_000) | st.just(1 << 30),
    split=st.sampled_from(SPLITS),
    shuffle=st.booleans(),
    workers=st.integers(1, 3),
    data=st.data(),
)
def test_any_memory_gives_the_same_records(
    tmp_path: Path,
    rows: int,
    itemsize: int,
    memory: int,
    split: str | None,
    shuffle: bool,
    workers: int,
    data: st.DataObject,
):
    records = write(tmp_path / "s", rows, itemsize)
    samples = order(rows, split, shuffle=shuffle, seed=data.draw(st.integers(0, 9)))
    expected = records[samples[:]]
    work = str(tmp_path / "w")
    with shuffled_file(
        str(tmp_path / "s"), itemsize, samples, rising=not shuffle, memory=memory, work=work, workers=workers
    ) as shuffled:
        assert shuffled.direct == (rows * itemsize <= memory or not shuffle)
        shuffled.prepare()
        assert os.path.exists(work) != shuffled.direct
        whole = shuffled.take(samples[0:rows])
        assert whole.dtype == np.uint8
        assert (whole == expected).all()
        for _ in range(3):
            start = data.draw(st.integers(0, rows))
            stop = data.draw(st.integers(start, rows))
            assert (shuffled.take(samples[start:stop]) == expected[start:stop]).all()
        sources = np.array(data.draw(st.lists(st.integers(0, rows - 1), max_size=8)), np.int64)
        assert (shuffled.take(sources) == records[sources]).all()
    assert not os.path.exists(work)
    assert (tmp_path / "s").read_bytes() == records.tobytes()


def test_files_larger_than_a_page_in_buckets_that_begin_anywhere(tmp_path: Path):
    rows, itemsize = 40_000, 7
    records, samples = write(tmp_path / "s", rows, itemsize), order(rows)
    work = str(tmp_path / "w")
    with shuffled_file(
        str(tmp_path / "s"), itemsize, samples, memory=50_000, work=work, workers=2
    ) as shuffled:
        shuffled.prepare()
        for start in range(0, rows, 999):
            stop = min(rows, start + 999)
            assert (shuffled.take(samples[start:stop]) == records[samples[start:stop]]).all()


@pytest.mark.parametrize("memory", [20_000, 1 << 20])
def test_threads_and_forked_processes_read_at_once(tmp_path: Path, memory: int):
    rows, itemsize = 5000, 12
    records, samples = write(tmp_path / "s", rows, itemsize), order(rows)
    expected = records[samples[:]]
    with shuffled_file(
        str(tmp_path / "s"), itemsize, samples, memory=memory, work=str(tmp_path / "w")
    ) as shuffled:
        shuffled.prepare()
        starts = np.random.default_rng(0).integers(0, rows - 500, 200).tolist()
        together = threading.Barrier(4)

        def same(part: int) -> bool:
            together.wait()
            return all(
                (shuffled.take(samples[a : a + 500]) == expected[a : a + 500]).all() for a in starts[part::4]
            )

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(same, range(4)))
        children = []
        for part in range(2):
            child = os.fork()
            if child == 0:
                good = False
                try:
                    good = all(
                        (shuffled.take(samples[a : a + 500]) == expected[a : a + 500]).all()
                        for a in starts[part::2]
                    )
                finally:
                    os._exit(0 if good else 1)
            children.append(child)
        assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]


@pytest.mark.parametrize("memory", [1000, 1 << 20])
def test_a_file_that_is_cut_short_is_an_error(tmp_path: Path, memory: int):
    path, work = str(tmp_path / "s"), str(tmp_path / "w")
    write(tmp_path / "s", 499, 16)
    message = f"{path}: was truncated while it was read. Run the same command again."
    with pytest.raises(SourceError) as error:
        shuffled_file(path, 16, order(500), memory=memory, work=work)
    assert str(error.value) == message
    write(tmp_path / "s", 500, 16)
    with shuffled_file(path, 16, order(500), memory=1000, work=work) as shuffled:
        os.truncate(path, 16 * 400)
        with pytest.raises(SourceError) as error:
            shuffled.prepare()
        assert str(error.value) == message
    assert not os.path.exists(work)


def test_a_second_file_that_is_cut_short_is_an_error(tmp_path: Path):
    work = str(tmp_path / "w")
    write(tmp_path / "s", 500, 16)
    with shuffled_file(str(tmp_path / "s"), 16, order(500), memory=1000, work=work) as shuffled:
        shuffled.prepare()
        os.truncate(work, 16 * 400)
        with pytest.raises(SourceError, match="was truncated"):
            shuffled.take(order(500)[0:500])


def test_a_full_disk_is_told_before_anything_is_dealt(tmp_path: Path):
    write(tmp_path / "s", 5000, 16)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with shuffled_file(
        str(tmp_path / "s"), 16, order(5000), memory=1000, work=str(tmp_path / "w")
    ) as shuffled:
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, limits[1]))
        try:
            with pytest.raises(OSError) as error:  # noqa: PT011
                shuffled.prepare()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert error.value.errno == errno.EFBIG
    assert not os.path.exists(tmp_path / "w")


def test_memory_is_bounded(tmp_path: Path):
    """What is held while 24 MB go through 2 MB, counted by the system in a process of its own."""
    rows, itemsize = 200_000, 120
    write(tmp_path / "s", rows, itemsize)
    samples = order(rows)
    samples[:5]
    read, send = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            before = _anonymous()
            peak = 0
            with shuffled_file(
                str(tmp_path / "s"), itemsize, samples, memory=2 << 20, work=str(tmp_path / "w")
            ) as shuffled:
                shuffled.prepare()
                for start in range(0, rows, 1000):
                    shuffled.take(samples[start : start + 1000])
                    peak = max(peak, _anonymous())
            os.write(send, f"{peak - before}".encode())
        finally:
            os._exit(0)
    os.close(send)
    os.waitpid(child, 0)
    grown = int(os.read(read, 100))
    os.close(read)
    assert grown < 8 << 20  # the allocator keeps some, but nothing like the file


def _anonymous() -> int:
    """Bytes of memory that this process has to itself."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("RssAnon"))
