"""packer.load.batch_engine: work is begun ahead, from wherever the store has the rows, and a slot is lent only if it is filled."""

from __future__ import annotations

import gc
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packer.errors import FormatError, UsageError
from packer.load.batch import Host, LentSlot
from packer.load.batch_engine import BatchEngine, ahead
from packer.load.fillers import Reading, RowFiller
from packer.load.order_choice import context
from packer.load.stats import Stats
from packer.orders.epochs import ReadRequest, RowOrder, Share, read_request, read_requests
from packer.orders.row_orders import Rows
from packer.orders.runs import Subset
from packer.packs.pack import Pack
from packer.read.array_store import ArrayStore, PackStore
from packer.read.row_selection import select_fields
from packer.starting import ForkSafeThreads
from tests.read.conftest import ROWS, image_of, make_pack


@pytest.fixture
def pack(tmp_path: Path) -> Pack:
    return make_pack(tmp_path / "p.h5")


def store_of(pack: Pack) -> PackStore:
    return PackStore(pack, select_fields(pack, None))


def engine_of(store: ArrayStore, *, prefetch: int = 1) -> BatchEngine:
    fields, host = select_fields(store.pack, None), Host(tensors=False)
    return BatchEngine(
        RowFiller(Reading(store, store, ForkSafeThreads(2), host), fields), batch_rows=25, prefetch=prefetch
    )


def request_of(store: PackStore, order: RowOrder, start: int, stop: int) -> ReadRequest:
    bound = order.bind(context(store, Subset([(0, ROWS)]), 8, seed=3))
    return read_request(bound, 1, Share(stop, stop - start, origin=start), 0, 1)


def images(request: ReadRequest) -> np.ndarray:
    return np.stack([image_of(row) for row in request.rows().rows().tolist()])


@pytest.mark.parametrize("ahead", [None, 0, 11])
def test_rows_to_come_are_asked_for_once_and_in_order(pack: Pack, ahead: int | None):
    order = Rows().bind(context(store_of(pack), Subset([(0, ROWS)]), 5, seed=3))
    share = Share(ROWS, 5)
    requests = list(read_requests(order, 1, share, 2, ahead))
    asked = [request.upcoming().rows().tolist() for request in requests]
    rows = [request.rows().rows().tolist() for request in requests]
    if ahead is None:
        assert not any(asked)
    else:
        assert [row for some in asked for row in some] == [row for some in rows for row in some]
        assert len(asked[0]) == 5 * (1 + ahead // 5)


def test_closed_while_a_request_begins_no_thread_is_left(pack: Pack, monkeypatch: pytest.MonkeyPatch) -> None:
    """As another thread may close it at this moment."""
    before = set(threading.enumerate())  # those of datasets that other tests dropped may end later
    engine, begun = engine_of(store := store_of(pack)), RowFiller.tasks

    def tasks(filler: RowFiller, request: ReadRequest, slot: LentSlot) -> Any:
        engine.close()
        return begun(filler, request, slot)

    monkeypatch.setattr(RowFiller, "tasks", tasks)
    with pytest.raises(UsageError, match="was closed"):
        next(engine.batches_of([request_of(store, Rows(), 5, 30)], Stats()))
    left = set(threading.enumerate()) - before
    assert [t.name for t in left if t.name.startswith("packer-load")] == []


def test_rows_are_placed_once(pack: Pack, monkeypatch: pytest.MonkeyPatch) -> None:
    request, placed = request_of(store_of(pack), Rows(), 5, 30), []
    place = Rows.rows_at
    monkeypatch.setattr(Rows, "rows_at", lambda *of: placed.append(1) or place(*of))
    whole = request.rows().rows().tolist()
    assert request.rows(0, request.count).rows().tolist() == whole
    assert request.counters() is None  # the rows key the draws
    assert len(placed) == 1
    assert request.rows(3, 9).rows().tolist() == whole[3:9]


@pytest.mark.parametrize("prefetch", [0, 1])
def test_a_failed_reads_slot_comes_back_at_once(
    pack: Pack, monkeypatch: pytest.MonkeyPatch, prefetch: int
) -> None:
    """Not only when the garbage collector runs: nothing that the error's traceback holds refers to the error."""

    def fail(self: PackStore, *_: Any) -> None:
        raise FormatError("p.h5: is damaged.")

    store = store_of(pack)
    engine = engine_of(store, prefetch=prefetch)
    monkeypatch.setattr(PackStore, "copy", fail)
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            with pytest.raises(FormatError):
                next(engine.batches_of([request_of(store, Rows(), 5, 30)], Stats()))
        assert engine._slots.allocated == 1
    finally:
        gc.enable()
        engine.close()


class Work:
    """Counts what happens to it."""

    def __init__(self, number: int, log: list[str]) -> None:
        self.number, self.log = number, log
        log.append(f"start {number}")

    def cancel(self) -> None:
        self.log.append(f"cancel {self.number}")

    def advance(self) -> None:
        pass


def works(count: int, log: list[str]):
    return (Work(k, log) for k in range(count))


@pytest.mark.parametrize("count", [0, 1, 3, 10])
def test_order_is_kept_and_no_more_than_asked_is_begun(count: int):
    log: list[str] = []
    for number, work in enumerate(ahead(works(6, log), count)):
        assert work.number == number
        assert len(log) == min(6, number + 1 + count)
    assert log == [f"start {k}" for k in range(6)]


def test_leaving_early_cancels_what_was_begun():
    log: list[str] = []
    stream = ahead(works(9, log), 2)
    next(stream)
    stream.close()
    assert log == ["start 0", "start 1", "start 2", "cancel 1", "cancel 2"]


def test_threads_end_when_closed_and_come_back():
    threads, before = ForkSafeThreads(2), set(threading.enumerate())
    assert threads.submit(lambda: 5).result() == 5
    threads.close()
    assert not set(threading.enumerate()) - before
    assert threads.submit(lambda: 6).result() == 6
    threads.close()


def test_threads_travel_without_their_pool():
    threads = ForkSafeThreads(2)
    threads.submit(int).result()
    assert pickle.loads(pickle.dumps(threads)).submit(lambda: 7).result() == 7


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own():
    threads = ForkSafeThreads(1)
    threads.submit(int).result()
    child = os.fork()
    if child == 0:
        os._exit(threads.submit(lambda: 42).result(timeout=120))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
    threads.close()
