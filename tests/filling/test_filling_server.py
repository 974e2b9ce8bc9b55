"""The server of missing units: which are made first, who is told, and when it ends; with a source that makes them when it is told to."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packer.errors import PackerError, SourceError
from packer.filling.filling_messages import Link, UnitStates, connect, error_of, listen, receive, send
from packer.filling.filling_server import FillingServer

UNITS = 40


class SlowSource:
    """A source of one worker that makes what it is given when `make` is called."""

    workers = 1

    def __init__(self, states: UnitStates) -> None:
        self._states = states
        self.started: list[tuple[list[int], Future[Any]]] = []
        self.came = threading.Semaphore(0)

    def start(self, units: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.started.append((units.tolist(), future))
        self.came.release()
        return future

    def arrived(self, units: Any, result: Any) -> None:
        self._states.values[units] = 1

    def open(self) -> bool:
        return False

    def broken(self, error: BaseException) -> PackerError:
        return PackerError(f"a worker died: {error}")

    def next(self) -> tuple[list[int], Future[Any]]:
        assert self.came.acquire(timeout=60)
        return self.started.pop(0)

    def make_all(self) -> list[int]:
        """Make whatever comes until all is there; return the units in order."""
        made: list[int] = []
        while len(made) < UNITS:
            units, future = self.next()
            made += units
            future.set_result(None)
        return made


class Running:
    """A server in a thread. result: what run returned or raised."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = str(folder)
        self.states = UnitStates.open(str(folder / "state"), UNITS, writable=True)
        self.source = SlowSource(self.states)
        self.server = FillingServer(self.states, self.source, lambda job: {"ready": {"job": job}}, **options)
        self.result: Any = None
        self.listener = listen(self.folder)
        self.thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self.thread.start()

    def client(self) -> Link[Any, Any]:
        link = connect(self.folder)
        assert link is not None
        send(link, {"hello": {"size": 1}})
        assert receive(link) == {"ready": {"job": {"size": 1}}}
        return link

    def _run(self) -> None:
        try:
            self.result = self.server.run(self.listener)
        except PackerError as error:
            self.result = error


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    made = Running(tmp_path)
    yield made
    made.thread.join(60)
    made.listener.close()
    assert not made.thread.is_alive()


def ask(link: Link[Any, Any], kind: str, *units: int) -> None:
    send(link, {kind: list(units)})


def test_units_that_are_waited_for_come_first_then_those_asked_for_ahead(running: Running) -> None:
    running.start()
    link = running.client()
    first = [
        running.source.next() for _ in range(2)
    ]  # handed out before anyone asked: all a worker has at a time
    ask(link, "ahead", 30, 29, 28, 27)
    ask(link, "wait", 20, 25, 22, 21)
    other = running.client()  # answered after the messages before it
    made: list[int] = []
    for units, future in first:
        made += units
        future.set_result(None)
    asked: list[int] = []
    while not {27, 28, 29, 30} <= set(asked):
        units, future = running.source.next()
        asked += units
        future.set_result(None)
    wanted = [unit for unit in asked if unit not in made]
    assert wanted[:4] == [20, 25, 22, 21]
    assert wanted[4:8] == [30, 29, 28, 27]
    running.source.came.release()  # of the loop below
    running.source.came.acquire()
    rest = UNITS - len(made) - len(asked)
    while rest:
        units, future = running.source.next()
        rest -= len(units)
        future.set_result(None)
    running.thread.join(60)
    assert running.result is True
    assert running.server.made == UNITS
    link.close()
    other.close()


def test_every_unit_is_made_once_for_many_clients(running: Running) -> None:
    running.start()
    links = [running.client() for _ in range(20)]
    draws = np.random.default_rng(0)
    for link in links:
        ask(link, "wait", *draws.permutation(UNITS).tolist())
    made = running.source.make_all()
    assert sorted(made) == list(range(UNITS))
    running.thread.join(60)
    assert running.result is True
    for link in links:
        link.close()


def test_units_that_were_there_are_not_made_again(tmp_path: Path) -> None:
    states = UnitStates.open(str(tmp_path / "state"), UNITS, writable=True)
    states.values[np.arange(0, UNITS, 2)] = np.full(UNITS // 2, 9, np.uint64)
    running = Running(tmp_path)
    running.start()
    link = running.client()
    ask(link, "wait", 0, 2, 4)
    made: list[int] = []
    while len(made) < UNITS // 2:
        units, future = running.source.next()
        made += units
        future.set_result(None)
    assert sorted(made) == list(range(1, UNITS, 2))
    running.thread.join(60)
    running.listener.close()
    link.close()


def test_whose_job_was_not_heard_is_told_nothing(running: Running) -> None:
    """It might want other rows, and would take the pack that was made for its own."""
    running.start()
    heard, unheard = running.client(), connect(running.folder)
    assert unheard is not None
    running.client().close()  # taken in after it
    running.source.make_all()
    running.thread.join(60)
    running.server.tell(sealed=UNITS)
    assert receive(heard) == {"sealed": UNITS}
    assert not unheard.poll()
    heard.close()
    unheard.close()


def test_an_error_reaches_all_clients_and_ends_it(running: Running) -> None:
    running.start()
    links = [running.client() for _ in range(3)]
    _, future = running.source.next()
    future.set_exception(SourceError("a.jpg: is no image. Remove it."))
    running.thread.join(60)
    assert isinstance(running.result, SourceError)
    for link in links:
        error = error_of(receive(link)["error"])
        assert type(error) is SourceError
        assert str(error) == "a.jpg: is no image. Remove it."
        link.close()


def test_a_worker_that_died_is_an_error_too(running: Running) -> None:
    running.start()
    link = running.client()
    _, future = running.source.next()
    future.set_exception(OSError("gone"))
    running.thread.join(60)
    assert str(running.result) == "a worker died: gone"
    link.close()


@pytest.mark.parametrize("word", [True, False], ids=["bye", "closed"])
def test_it_ends_when_all_clients_have_left(running: Running, word: bool) -> None:
    running.start()
    links = [running.client() for _ in range(2)]
    for number, link in enumerate(links):
        if word:
            send(link, {"bye": True})
            assert receive(link) == {"last": number == 1}
        link.close()
    for _ in range(2):
        _, future = running.source.next()
        future.set_result(None)
    running.thread.join(60)
    assert running.result is False


def test_a_client_that_breaks_off_in_a_message_is_dropped(running: Running) -> None:
    running.start()
    link = running.client()
    broken = connect(running.folder)
    assert broken is not None
    with socket.socket(fileno=broken.fileno()) as raw:
        raw.send(b"\0\0\1\0half")  # the length of a message, and part of it
        raw.detach()
    broken.close()
    running.source.make_all()
    running.thread.join(60)
    assert running.result is True
    link.close()


def test_tasks_grow_to_what_they_may_take(tmp_path: Path) -> None:
    running = Running(tmp_path, task_seconds=1e6)
    running.start()
    link = running.client()
    begun = [running.source.next() for _ in range(2)]
    for _, future in begun:
        future.set_result(None)
    units, future = running.source.next()
    assert [len(units) for units, _ in begun] + [len(units)] == [4, 4, UNITS - 8]
    future.set_result(None)
    running.thread.join(60)
    link.close()
    running.listener.close()
    assert running.result is True
