"""Which row of a table stands in which row of its pack: splits by share, from the ends, computed; records in that order."""

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

from packer.convert.sample_order import (
    arrange,
)
from packer.errors import SourceError, UsageError
from packer.tables.table_order import ShuffledFile, parse_parts, table_order


@pytest.mark.parametrize(
    ("given_", "parts"),
    [
        ("train=0.9,val=0.1", {"train": 0.9, "val": 0.1}),
        (" val = 0.1 , train=9e-1", {"train": 0.9, "val": 0.1}),
        ("train=rest,test=last:500000", {"test": "last:500000", "train": "rest"}),
        ("train=0.9,val=0.1,test=last: 5", {"test": "last:5", "train": 0.9, "val": 0.1}),
        ({"train": "rest", "val": 0.1, "a": "first:7"}, {"a": "first:7", "train": "rest", "val": 0.1}),
        ("a=first:3,b=last:4", {"a": "first:3", "b": "last:4"}),
    ],
)
def test_parts_from_text_or_mapping(given_: Any, parts: dict[str, float | str]):
    assert parse_parts(given_) == parts
    assert list(parse_parts(given_)) == sorted(parts)
    assert parse_parts(parse_parts(given_)) == parts


@pytest.mark.parametrize(
    "text",
    [
        "", "train", "=1", "train=x", "train=0.5,train=0.5", "train=1,val=0", "a=nan,b=0.5", "a=rest,b=rest", "a=last:0",
        "a=last:-1", "a=last:x", "a=middle:4", "a=last", "a=first:1,b=first:2", "a=rest:4", "a=1=1", {},
    ],
)  # fmt: skip
def test_what_is_no_list_of_parts(text: Any):
    with pytest.raises(UsageError) as error:
        parse_parts(text)
    assert str(error.value).startswith(
        f"split {text}: is not a list of names, each with a positive share, rest, first:N or last:N; the shares make "
    )
    assert str(error.value).endswith(
        ", and 1 is needed, or less with a rest. Pass for example train=0.9,val=0.1 or train=rest,test=last:500000."
    )


@pytest.mark.parametrize(
    ("text", "total"), [("a=0.5,b=0.4", 0.9), ("a=1.0,b=0.5,c=last:3", 1.5), ("a=1,b=rest", 1)]
)
def test_shares_of_parts_that_do_not_make_one(text: str, total: float):
    with pytest.raises(UsageError, match=f"the shares make {total}, and 1 is needed, or less with a rest"):
        parse_parts(text)


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (
            "a=first:60,b=last:50",
            "takes 110 rows from the ends; there are 100. Pass fewer.",
        ),
        ("a=first:60", "leaves 40 of 100 rows in no split. Add one with rest, as in train=rest."),
        (
            "a=0.999,b=0.001",
            "none of 100 rows falls to b. Pass a larger share, or fewer rows for the others.",
        ),
        (
            "a=rest,b=last:100",
            "none of 0 rows falls to a. Pass a larger share, or fewer rows for the others.",
        ),
    ],
)
def test_orders_of_tables_that_cannot_be(split: str, message: str):
    with pytest.raises(UsageError) as error:
        table_order(100, split=split, shuffle=True, seed=0)
    assert str(error.value) == f"split {split}: {message}"


GOLDEN = {
    "test": [956, 933, 981, 949, 948],
    "train": [177, 817, 599, 170, 527],
    "val": [854, 802, 608, 869, 407],
    "all": [646, 925, 894, 541, 520],
}


def test_a_tables_order_is_frozen():
    """Packs of one seed must not change from version to version."""
    split = "train=0.7,val=0.3,test=last:90"
    order = table_order(1000, split=split, shuffle=True, seed=3)
    assert order.splits == {"test": (0, 90), "train": (90, 727), "val": (727, 1000)}
    assert order.samples[:5].tolist() == GOLDEN["test"]
    assert order.samples[90:95].tolist() == GOLDEN["train"]
    assert order.samples[727:732].tolist() == GOLDEN["val"]
    assert table_order(1000, split=None, shuffle=True, seed=3).samples[:5].tolist() == GOLDEN["all"]


def test_without_splits_a_table_is_ordered_as_images_are():
    order = table_order(1000, split=None, shuffle=True, seed=7)
    assert order.splits == {}
    assert (
        order.samples[:].tolist() == arrange({"": np.arange(1000)}, shuffle=True, seed=7).samples[:].tolist()
    )
    assert table_order(9, split=None, shuffle=False, seed=7).samples[:].tolist() == list(range(9))


SPLITS = [
    None,
    "a=0.5,b=0.3,c=0.2",
    "a=rest,b=last:37",
    "b=rest,c=0.25,a=first:11,d=last:5",
    "x=first:400,y=rest",
]


@pytest.mark.parametrize("split", SPLITS)
@given(rows=st.integers(410, 1200), shuffle=st.booleans(), seed=st.integers(0, 1 << 40), data=st.data())
def test_tables_hold_each_row_once_where_it_is_said_to_be(
    split: str | None, rows: int, shuffle: bool, seed: int, data: st.DataObject
):
    order = table_order(rows, split=split, shuffle=shuffle, seed=seed)
    samples = order.samples
    everything = samples[:]
    assert len(samples) == rows
    assert everything.dtype == np.int64
    assert sorted(everything.tolist()) == list(range(rows))
    # splits
    parts = {} if split is None else parse_parts(split)
    assert list(order.splits) == list(parts)
    spans = list(order.splits.values())
    assert [a for a, _ in spans] + [rows] * bool(spans) == [0] * bool(spans) + [b for _, b in spans]
    for a, b in spans or [(0, rows)]:
        assert shuffle or (np.diff(everything[a:b]) > 0).all()
    for name, value in parts.items():
        a, b = order.splits[name]
        end, _, count = str(value).partition(":")
        if end in ("first", "last"):
            low = 0 if end == "first" else rows - int(count)
            assert sorted(everything[a:b].tolist()) == list(range(low, low + int(count)))
    start = data.draw(st.integers(0, rows))
    stop = data.draw(st.integers(0, rows))
    # a shard
    part = order.part(start, max(start, stop))
    assert part.samples[:].tolist() == everything[start : max(start, stop)].tolist()
    for name, (a, b) in part.splits.items():
        low, high = order.splits[name]
        kept = everything[max(low, start) : max(low, start, min(high, stop))]
        assert part.samples[a:b].tolist() == kept.tolist()


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("shuffle", [False, True])
def test_an_order_in_a_file_is_the_same(
    split: str | None, shuffle: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    plain = table_order(1000, split=split, shuffle=shuffle, seed=4)
    monkeypatch.setattr("packer.tables.table_order._DRAWN", 7)
    mapped = table_order(1000, split=split, shuffle=shuffle, seed=4, path=str(tmp_path / "order"))
    assert mapped.splits == plain.splits
    assert isinstance(mapped.samples, np.memmap)
    assert mapped.samples.tolist() == plain.samples[:].tolist()


def test_drawn_splits_are_no_pattern_and_differ_by_seed():
    first, second = (
        table_order(5000, split="train=0.8,val=0.2", shuffle=False, seed=seed) for seed in (0, 1)
    )
    val = [order.samples[slice(*order.splits["val"])] for order in (first, second)]
    assert len(val[0]) == len(val[1]) == 1000
    assert len(set(np.diff(val[0]).tolist())) > 10
    assert 120 < len(np.intersect1d(*val)) < 280  # a fifth of a fifth, by chance
    # the same rows whether or not they are shuffled
    shuffled = table_order(5000, split="train=0.8,val=0.2", shuffle=True, seed=0)
    assert sorted(shuffled.samples[slice(*shuffled.splits["val"])].tolist()) == val[0].tolist()


SPLITS = (None, "a=0.5,b=0.5", "a=rest,b=last:5", "a=rest,b=0.3,c=first:4")


def write(path: Path, rows: int, itemsize: int) -> np.ndarray:
    """Records that all differ, as they lie in the file."""
    records = np.random.default_rng(rows).integers(0, 256, (rows, itemsize)).astype(np.uint8)
    path.write_bytes(records.tobytes())
    return records


def order(rows: int, split: str | None = None, *, shuffle: bool = True, seed: int = 3) -> np.ndarray:
    return table_order(rows, split=split, shuffle=shuffle, seed=seed).samples[:]


def shuffled_file(
    path: str, itemsize: int, samples: np.ndarray, *, rising: bool = False, **options: Any
) -> ShuffledFile:
    return ShuffledFile(path, itemsize, samples, rising=rising, **options)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
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
    message = f"{path}: has been cut short while it was read. Run the same command again."
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
        with pytest.raises(SourceError, match="has been cut short"):
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
