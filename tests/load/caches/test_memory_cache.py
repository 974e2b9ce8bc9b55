"""packer.load.caches.memory_cache: rows from memory are the rows of the pack, whoever filled it, and however far."""

from __future__ import annotations

import errno
import gc
import logging
import multiprocessing
import os
import pickle
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packer.errors import FormatError, PackerError
from packer.format.pack import Pack, open_pack
from packer.load.batch import size_of
from packer.load.caches import memory_cache, shared_memory
from packer.load.caches.memory_cache import MemoryCache, present
from packer.orders.runs import Runs, Subset, consecutive, one_run
from packer.read.row_reader import RowReader
from packer.read.row_selection import select_fields, select_rows
from tests.open_files import open_files
from tests.read.conftest import ROWS, SPLITS, image_of, make_pack, store_of

SPAWN = multiprocessing.get_context("spawn")
ROW_BYTES = 8 * 6 * 3 + 8  # image and label


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where processes find each other's memory; none is left to the next test, which would find it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield tmp_path
    gc.collect()
    assert until(lambda: not shared_memory._here)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill ten rows at a time."""
    monkeypatch.setattr(memory_cache, "STEP_BYTES", 10 * ROW_BYTES)


class Gate(RowReader):
    """Reads so many rows of images when told to; for one thread."""

    def __init__(self, pack: Pack, fields: Any, *, verify: bool = False) -> None:
        super().__init__(pack, fields, verify=verify)
        self.allowed = threading.Semaphore(0)
        self.read_rows: list[int] = []

    def read(self, name: str, runs: Runs, out: Any) -> None:
        if name == "image":
            self.allowed.acquire()
            self.read_rows += runs.rows().tolist()
        super().read(name, runs, out)


def resident_of(pack: Pack, *, split: str | None = None, reader: RowReader | None = None) -> MemoryCache:
    fields = select_fields(pack, None)
    return MemoryCache(reader or RowReader(pack, fields), fields, Subset(select_rows(pack, split)))


def until(condition: Any, seconds: float = 120) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    return bool(condition())


def check(held: MemoryCache, rows: np.ndarray, pack_rows: np.ndarray, images: np.ndarray) -> bool:
    """See that these rows of the subset are those rows of the pack, if they are there."""
    runs = consecutive(np.asarray(rows, np.int64))
    image = np.full((len(rows), images[0].size), 7, np.uint8)
    label = np.full((len(rows), 8), 7, np.uint8)
    found = held.read("image", runs, image)
    if not found:
        assert (image == 7).all()
        return False
    assert held.read("label", runs, label)
    assert (image.reshape(len(rows), *images[0].shape) == images[pack_rows]).all()
    assert (label.view("<i8")[:, 0] == 3 * np.asarray(pack_rows)).all()
    return True


def test_rows_of_every_kind_of_pack(stored: Pack, expected: dict[str, np.ndarray]):
    rows = np.concatenate([np.arange(a, b) for a, b in SPLITS["train"]])
    images = expected[store_of(stored)]
    held = resident_of(stored, split="train")
    assert held.names == {"image", "label"} | {f.name for f in held._made_of[1] if not f.ragged}
    assert "key" not in held.names
    assert held.wait(120)
    assert held.ready
    assert held.filled == len(rows)
    assert held.nbytes == size_of(select_fields(stored, None), len(rows)) > len(rows) * ROW_BYTES - 1
    draws = np.random.default_rng(0)
    for count in (1, 2, 40, len(rows)):
        some = draws.permutation(len(rows))[:count]
        assert check(held, some, rows[some], images)
        start = int(draws.integers(0, len(rows) - count + 1))
        some = np.arange(start, start + count)
        assert check(held, some, rows[some], images)
        view = held.view("image", start, start + count)
        assert view is not None
        assert (view.reshape(-1, *images[0].shape) == images[rows[some]]).all()
    assert held.read("image", one_run(0, 0), np.empty((0, images[0].size), np.uint8))
    with pytest.raises(IndexError, match="row 70 of 70"):
        check(held, np.array([70]), np.array([0]), images)
    held.close()


def test_what_is_there_is_read_and_what_is_not_is_left(pack: Pack, steps: None):
    images = np.stack([image_of(row) for row in range(ROWS)])
    gate = Gate(pack, select_fields(pack, None))
    held = resident_of(pack, reader=gate)
    for filled in (0, 10, 20):
        assert until(lambda filled=filled: held.filled == filled)
        assert not held.ready
        for rows, there in (
            (np.arange(filled), True),
            (np.arange(filled)[::-1], True),
            (np.arange(filled + 1), False),
            (np.array([filled, 0]), False),
            (np.array([ROWS - 1]), False),
        ):
            assert check(held, rows, rows, images) is there
        assert held.view("label", 0, filled + 1) is None
        view = held.view("label", 0, filled)
        assert view is not None
        assert len(view) == filled
        gate.allowed.release()
    for _ in range(20):
        gate.allowed.release()
    assert held.wait(120)
    assert gate.read_rows == list(range(ROWS))
    held.close()
    assert held.failed == "it was closed"
    assert not check(held, np.array([0]), np.array([0]), images)
    assert held.view("image", 0, 1) is None


def test_two_in_one_process_fill_it_once(pack: Pack, steps: None):
    gates = [Gate(pack, select_fields(pack, None)) for _ in range(2)]
    one, two = (resident_of(pack, reader=gate) for gate in gates)
    for gate in gates:
        for _ in range(6):
            gate.allowed.release()
    assert until(lambda: one.filled >= 60)
    threading.Timer(0.1, gates[0].allowed.release).start()
    one.close()  # whoever it was that filled, the other goes on
    gates[1].allowed.release(20)
    assert two.wait(120)
    done = gates[0].read_rows + gates[1].read_rows
    assert sorted(done) == list(range(ROWS))
    two.close()


class Slow(RowReader):
    """Takes its time for images, and counts their rows."""

    pause = 0.01
    count = 0

    def read(self, name: str, runs: Runs, out: Any) -> None:
        if name == "image":
            time.sleep(self.pause)
            type(self).count += runs.total
        super().read(name, runs, out)


def _train(path: str, folder: str, together: Any, results: Any, seed: int) -> None:
    """In a process: read random rows until all are in memory, each right, and say how many rows this process filled."""
    tempfile.tempdir, memory_cache.STEP_BYTES = folder, 4 * ROW_BYTES
    pack = open_pack(path)
    images = np.stack([image_of(row) for row in range(pack.rows)])
    together.wait(120)
    held = resident_of(pack, reader=Slow(pack, select_fields(pack, None)))
    draws, found, missed = np.random.default_rng(seed), 0, 0
    while not held.ready:
        start = draws.integers(0, pack.rows - 5)
        there = check(held, np.arange(start, start + 5), np.arange(start, start + 5), images)
        found, missed = found + there, missed + (not there)
    everything = draws.permutation(pack.rows)
    assert check(held, everything, everything, images)
    results.put((Slow.count, found, missed, held.why_private))
    together.wait(120)  # the last one to close it would take it away from those who come later
    held.close()


def test_processes_fill_it_once_and_read_right_rows_meanwhile(tmp_path: Path, folder: Path):
    make_pack(tmp_path / "p.h5")
    results, together = SPAWN.Queue(), SPAWN.Barrier(3)
    children = [
        SPAWN.Process(target=_train, args=(str(tmp_path / "p.h5"), str(folder), together, results, seed))
        for seed in range(3)
    ]
    for child in children:
        child.start()
    counts, found, missed, private = zip(*(results.get(timeout=120) for _ in children), strict=True)
    for child in children:
        child.join(120)
        assert child.exitcode == 0
    assert private == (None, None, None)
    assert sum(counts) == ROWS
    assert sum(found) > 0
    assert sum(missed) > 0
    assert not list(folder.glob("packer-*"))


def _fill_twelve_rows(path: str, folder: str, told: Any) -> None:
    tempfile.tempdir, memory_cache.STEP_BYTES = folder, 4 * ROW_BYTES
    pack = open_pack(path)
    gate = Gate(pack, select_fields(pack, None))
    gate.allowed.release(3)
    held = resident_of(pack, reader=gate)
    assert until(lambda: held.filled == 12)
    told.set()
    held.wait()


def test_another_process_takes_over_where_a_killed_one_stopped(tmp_path: Path, folder: Path):
    pack = make_pack(tmp_path / "p.h5")
    fields, subset = select_fields(pack, None), Subset(((0, ROWS),))
    told = SPAWN.Event()
    child = SPAWN.Process(target=_fill_twelve_rows, args=(pack.path, str(folder), told))
    child.start()
    assert told.wait(120)
    reader = Slow(pack, fields)
    assert not present(reader, fields, Subset(((0, 5),)))
    assert present(reader, fields, subset)
    gate = Gate(pack, fields)
    gate.allowed.release(ROWS)
    held = resident_of(pack, reader=gate)
    assert held.filled == 12
    assert gate.read_rows == []
    child.kill()
    child.join()
    assert held.wait(120)
    assert gate.read_rows == list(range(12, ROWS))
    everything = np.arange(ROWS)[::-1]
    assert check(held, everything, everything, np.stack([image_of(row) for row in range(ROWS)]))
    held.close()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_reads_what_the_parent_fills(pack: Pack, steps: None):
    images = np.stack([image_of(row) for row in range(ROWS)])
    gate = Gate(pack, select_fields(pack, None))
    held = resident_of(pack, reader=gate)
    gate.allowed.release()
    assert until(lambda: held.filled == 10)
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            rows = np.arange(10)
            first = check(held, rows, rows, images) and not check(held, rows + 1, rows + 1, images)
            os.write(tell, b".")
            later = until(lambda: held.filled == 30) and check(held, rows + 20, rows + 20, images)
            anew = resident_of(pack)  # may fill what the parent leaves unfilled
            status = 0 if first and later and anew.filled >= 30 and not anew.ready else 1
            held.close()
        finally:
            os._exit(status)
    os.close(tell)
    assert os.read(told, 1)
    os.close(told)
    gate.allowed.release(2)
    assert os.waitpid(child, 0)[1] == 0
    assert held.filled == 30
    gate.allowed.release(20)
    assert held.wait(120)
    held.close()


def test_unpickled_it_is_the_same_memory(pack: Pack):
    held = resident_of(pack)
    assert held.wait(120)
    again = pickle.loads(pickle.dumps(held))
    assert again.ready
    assert np.shares_memory(again.view("image", 0, 5), held.view("image", 0, 5))


def test_what_differs_is_kept_apart(tmp_path: Path):
    pack = make_pack(tmp_path / "p.h5")
    fields, everything = select_fields(pack, None), Subset(((0, ROWS),))

    def key(pack: Pack, fields: Any = fields, subset: Subset = everything, **options: bool) -> str:
        return memory_cache._key(RowReader(pack, fields, **options), fields, subset)

    plain = key(pack)
    assert key(open_pack(pack.path)) == plain
    assert key(pack, fields[:1]) != plain
    assert key(pack, verify=True) != plain
    assert key(pack, subset=Subset(((0, ROWS - 1),))) != plain
    assert key(pack, subset=Subset.of_rows(np.arange(ROWS)[::-1])) != plain
    assert key(make_pack(tmp_path / "q.h5")) != plain
    os.utime(pack.path, ns=(0, 0))
    assert key(pack) != plain


def test_a_changed_file_gives_new_memory(tmp_path: Path):
    pack = make_pack(tmp_path / "p.h5")
    old = resident_of(pack)
    assert old.wait(120)
    os.unlink(pack.path)
    os.rename(make_pack(tmp_path / "q.h5", rows=50).path, pack.path)
    new = resident_of(open_pack(pack.path))
    assert new.wait(120)
    assert new.filled == 50
    assert not np.shares_memory(new.view("image", 0, 1), old.view("image", 0, 1))


def threads() -> int:
    return sum(t.name == "packer-fill" for t in threading.enumerate())


@pytest.mark.parametrize("how", ["close", "collect", "close early", "collect early"])
def test_nothing_stays_behind(pack: Pack, folder: Path, steps: None, how: str):
    gc.collect()
    before = open_files()
    gate = Gate(pack, select_fields(pack, None))
    held = resident_of(pack, reader=gate)
    gate.allowed.release(1 if "early" in how else 20)
    assert until(lambda: held.filled >= (10 if "early" in how else ROWS))
    if "early" in how:
        assert threads() == 1
        threading.Timer(0.1, gate.allowed.release).start()
    if "close" in how:
        held.close()
        assert threads() == 0
    held = None
    gc.collect()
    assert until(lambda: threads() == 0)
    gate.close()
    assert until(lambda: not list(folder.glob("packer-*")))
    assert until(lambda: open_files() <= before)
    assert len(gate.read_rows) <= 20 or "early" not in how


def test_rows_that_cannot_be_read_are_left_to_the_disk(
    pack: Pack, steps: None, caplog: pytest.LogCaptureFixture
):
    class Broken(RowReader):
        def read(self, name: str, runs: Runs, out: Any) -> None:
            if runs.starts[0] >= 20:
                raise FormatError("p.h5: reading failed (Input/output error). Check the disk.")
            super().read(name, runs, out)

    with caplog.at_level(logging.WARNING, "packer.load"):
        held = resident_of(pack, reader=Broken(pack, select_fields(pack, None)))
        assert not held.wait(120)
    assert "Input/output error" in (held.failed or "")
    assert "Input/output error" in caplog.text
    label = np.empty((1, 8), np.uint8)
    assert held.read("label", one_run(0, 1), label)
    assert not held.read("label", one_run(40, 41), label)
    # Another may try: the memory is not locked for ever.
    again = resident_of(pack)
    assert again.wait(120)


def test_memory_that_runs_out_leaves_the_rest_to_the_disk(
    pack: Pack, steps: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def full(self: shared_memory.Memory, start: int, stop: int) -> None:
        if self.bytes[:8].view(np.int64)[0] >= 30:
            raise MemoryError("No space left on device")

    monkeypatch.setattr(shared_memory.Memory, "reserve", full)
    with caplog.at_level(logging.WARNING, "packer.load"):
        held = resident_of(pack)
        assert not held.wait(120)
    assert held.failed == "No space left on device"
    assert caplog.messages == [
        f"{pack.path}: 30 of 103 rows are kept in memory, the others are read from the disk (No space left on device)"
    ]
    images = np.stack([image_of(row) for row in range(ROWS)])
    assert check(held, np.arange(30), np.arange(30), images)
    assert not check(held, np.arange(31), np.arange(31), images)


def test_private_memory_is_said_in_the_log(
    pack: Pack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.delattr(os, "memfd_create", raising=False)
    with caplog.at_level(logging.INFO, "packer.load"):
        held = resident_of(pack)
    assert held.why_private == "only Linux offers what it takes"
    assert caplog.messages == [
        f"{pack.path}: each process keeps its own rows in memory (only Linux offers what it takes)"
    ]
    assert held.wait(120)


@pytest.mark.gpu
def test_views_of_pinned_memory_are_copied_asynchronously(pack: Pack):
    import torch

    fields = select_fields(pack, None)
    held = MemoryCache(RowReader(pack, fields), fields, Subset(((0, ROWS),)), pinned="cuda")
    assert held.wait(120)
    same = MemoryCache(RowReader(pack, fields), fields, Subset(((0, ROWS),)), pinned="cuda")
    assert same.wait(120)
    view = held.view("image", 10, 60)
    assert view is not None
    host = torch.from_numpy(view)
    assert host.is_pinned()
    images = np.stack([image_of(row) for row in range(10, 60)]).reshape(50, -1)
    assert (host.to("cuda", non_blocking=True).cpu().numpy() == images).all()
    held.close()
    same.close()
    del held, same
    gc.collect()
    assert not host.is_pinned()
    assert (view == images).all()


def test_memory_that_cannot_be_had_is_a_sentence(pack: Pack, monkeypatch: pytest.MonkeyPatch):
    def refuse(key: str, nbytes: int) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(memory_cache, "open_memory", refuse)
    fields = select_fields(pack, None)
    with pytest.raises(PackerError) as error:
        MemoryCache(RowReader(pack, fields), fields, Subset(((0, pack.rows),)))
    assert str(error.value).startswith(f"{pack.path}: ")
    assert str(error.value).endswith(
        " of memory for the rows cannot be had (Cannot allocate memory). Pass placement='disk'."
    )
