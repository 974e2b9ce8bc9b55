from __future__ import annotations

import os
import pickle
import threading

import pytest

from packer.load.prefetcher import ahead
from packer.starting import ForkSafeThreads


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
    return (lambda k=k: Work(k, log) for k in range(count))


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
    threads = ForkSafeThreads(2)
    assert threads.submit(lambda: 5).result() == 5
    threads.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("packer-load")]
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
